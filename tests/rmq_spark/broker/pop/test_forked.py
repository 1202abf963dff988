"""Forked children of a process with consumers keep none of its files open, nor its locks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rmq_spark.pop import SimpleConsumer
from tests.support.popped import GROUP, TOPIC, popped_store

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no /dev/fd")


def _opened_in_child(root: Path) -> list[str]:
    """The files of the group that a forked child has open."""
    end, begin = os.pipe()
    child = os.fork()
    if not child:
        try:
            paths = (os.path.realpath(f"/dev/fd/{each}") for each in os.listdir("/dev/fd"))
            names = [os.path.basename(path) for path in paths if path.startswith(f"{root}/.rmqlog/pop/")]
            os.write(begin, b"".join(name.encode() + b"\n" for name in names))
        finally:
            os._exit(0)
    os.close(begin)
    with os.fdopen(end, "rb") as read:
        names = read.read().decode().split()
    os.waitpid(child, 0)
    return names


def test_a_child_keeps_no_file_of_an_open_consumer(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 3)
    with SimpleConsumer(root, GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        consumer.receive(1)
        assert _opened_in_child(root) == []
        assert len(consumer.receive(2)) == 2


def test_a_child_keeps_no_file_of_a_consumer_that_was_just_collected(tmp_path: Path) -> None:
    """Its lock would count as a member of the group for as long as the child lives."""
    root = popped_store(tmp_path / "s", 3)
    consumer = SimpleConsumer(root, GROUP, {TOPIC: "*"}, await_duration=0)
    consumer.receive(1)
    del consumer
    assert _opened_in_child(root) == []
