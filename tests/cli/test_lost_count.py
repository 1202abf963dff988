"""The number of messages that are lost with missing commitlog files: all verbs say the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden


@pytest.mark.parametrize(("lacks_queue", "count"), [(False, "9 messages"), (True, "at least 8 messages")])
def test_all_verbs_say_the_same_number(
    rmqlog: Runner, golden: Golden, tmp_path: Path, lacks_queue: bool, count: str
) -> None:
    """Without the files of a queue nothing shows how many of its messages are lost."""
    store = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    max((store / "commitlog").iterdir()).unlink()
    if lacks_queue:
        shutil.rmtree(store / "consumequeue" / "Orders" / "1")
    for verb, *more in (("info",), ("lag",), ("check", "--max-lost", "0"), ("verify",), ("recover",)):
        done = rmqlog(verb, store, *more)
        text = done.out + done.err
        assert f" {count} " in text, verb
        assert ("at least" in text) == lacks_queue, verb
