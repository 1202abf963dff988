"""A mistake in options is one sentence: mistakes.txt has the kind of query, its options, and the sentence."""

from __future__ import annotations

import json
import pickle
from functools import partial
from pathlib import Path

import pytest

from rmq_spark.options.option import WRITE
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.options.write_options import parse_write_options
from rmq_spark.plan.output_fields import fields_from_options
from store_format.errors import OptionError, StoreError
from tests.support.transcripts import Transcript

MISTAKES = Transcript(Path(__file__).with_name("mistakes.txt"))
NOW_MS = 1_700_000_000_000


def _read(where: str, given: dict[str, str]) -> object:
    options = parse_read_options(given, where=None if where == "any" else where, now_ms=NOW_MS)
    return fields_from_options(options)


@pytest.mark.parametrize("mistake", MISTAKES.questions)
def test_a_mistake_is_one_sentence(mistake: str) -> None:
    where, given = mistake.split(" ", 1)
    act = parse_write_options if where == WRITE else partial(_read, where)
    with pytest.raises(OptionError) as caught:
        act(json.loads(given))
    MISTAKES.check(mistake, str(caught.value))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (OptionError, str(caught.value))
    assert isinstance(again, StoreError)
    assert isinstance(again, ValueError)
