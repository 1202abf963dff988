"""What `rmqlog` says of golden stores, word for word: answers.txt has each command, and how it ends.

Before a `|` are harms that the store, a copy, has.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner, without_disk
from tests.support.file_edits import harm
from tests.support.fixtures import Golden
from tests.support.transcripts import Transcript

ANSWERS = Transcript(Path(__file__).with_name("answers.txt"))


@pytest.fixture(autouse=True)
def _in_utc() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("line", ANSWERS.questions)
def test_an_answer(rmqlog: Runner, golden: Golden, copy_of: Golden, line: str) -> None:
    *harms, command = line.split(" | ")
    store_of = copy_of if harms else golden
    names = set(re.findall(r"(?<= )[a-z-]+-\d\.\d\.\d(?=[ /]|$)", command))
    stores = {name: str(store_of(name)) for name in names}
    for each in harms:
        harm(Path(*stores.values()), each)
    for name, path in stores.items():
        command = command.replace(name, path)
    done = rmqlog(*shlex.split(command))
    said = without_disk(f"exit {done.code}\n{done.out}{done.err}")
    for name, path in stores.items():
        said = said.replace(path, name)
    assert "Traceback" not in said
    ANSWERS.check(line, said.rstrip("\n"))
