"""A mistake in options, or in the offset of a checkpoint, is one sentence.

mistakes.txt has what reads the text, the text, and the sentence.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.offset_store import offset_store
from rmq_spark.consume.stream_offset import PopOffset, StreamOffset
from rmq_spark.options.option import BATCH, STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.options.write_options import parse_write_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from store_format.errors import OptionError, StoreError
from tests.support.fixtures import Golden
from tests.support.transcripts import Transcript

MISTAKES = Transcript(Path(__file__).with_name("mistakes.txt"))
NOW_MS = 1_700_000_000_000
STORE = "basic-5.5.0"


def _read(where: str | None, given: dict[str, str]) -> object:
    return fields_from_options(parse_read_options(given, where=where, now_ms=NOW_MS))


def _plan(given: dict[str, str]) -> object:
    fields_from_options(parse_read_options(given))
    return plan(parse_read_options(given))


KINDS: dict[str, Callable[[Any], object]] = {
    "batch": partial(_read, BATCH),
    "stream": partial(_read, STREAM),
    "any": partial(_read, None),
    "plan": _plan,
    "write": parse_write_options,
    "offset": StreamOffset.from_json,
    "pop-offset": PopOffset.from_json,
    "strategy": lambda given: strategy(**given),
    "offset-store": lambda given: offset_store(**given),
}


@pytest.mark.parametrize("mistake", MISTAKES.questions)
def test_a_mistake_is_one_sentence(golden: Golden, mistake: str) -> None:
    kind, given = mistake.split(" ", 1)
    root = str(golden(STORE)) if STORE in given else STORE
    with pytest.raises(StoreError) as caught:
        KINDS[kind](json.loads(given.replace(STORE, root)))
    error = type(caught.value)
    told = str(caught.value) if error is OptionError else f"{error.__name__}: {caught.value}"
    MISTAKES.check(mistake, told.replace(root, STORE))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (error, str(caught.value))
    assert isinstance(again, StoreError)
    assert isinstance(again, ValueError) or error is not OptionError
