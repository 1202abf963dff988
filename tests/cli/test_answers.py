"""What `rmqlog` says of golden stores, word for word: answers.txt has each command, and how it ends."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden
from tests.support.transcripts import Transcript

ANSWERS = Transcript(Path(__file__).with_name("answers.txt"))


@pytest.mark.parametrize("line", ANSWERS.questions)
def test_an_answer(rmqlog: Runner, golden: Golden, line: str) -> None:
    words = shlex.split(line)
    stores = {word: str(golden(word)) for word in words if re.fullmatch(r"[a-z-]+-\d\.\d\.\d", word)}
    done = rmqlog(*(stores.get(word, word) for word in words))
    said = f"exit {done.code}\n{done.out}{done.err}"
    for name, path in stores.items():
        said = said.replace(path, name)
    assert "Traceback" not in said
    ANSWERS.check(line, said.rstrip("\n"))
