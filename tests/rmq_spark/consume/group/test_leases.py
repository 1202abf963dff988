"""The lease that consumers of an in-flight log share: who is the last, and who is alive."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rmq_spark.consume.group.directory import PopLease, live_topics
from store_format.errors import StoreInUseError
from store_format.opened.store import Opened
from store_format.pop.log import InFlightLog, in_flight_directory
from store_format.pop.state import PopState


@pytest.fixture
def directory(tmp_path: Path) -> str:
    directory = in_flight_directory(Opened(str(tmp_path)), "g", "T")
    InFlightLog(directory).run(PopState.open)
    return directory


def member(directory: str) -> PopLease:
    made = PopLease(directory)
    made.begin(0.1)
    return made


def test_only_the_last_of_the_consumers_is_the_last(directory: str) -> None:
    first, second = member(directory), member(directory)
    assert not first.is_last()
    first.end()
    assert second.is_last()
    second.end()


def test_nobody_joins_while_the_last_consumer_hands_over(directory: str) -> None:
    last = member(directory)
    assert last.is_last()
    with pytest.raises(StoreInUseError, match="the last consumer ends"):
        member(directory)
    last.end()
    member(directory).end()


@pytest.mark.process
def test_a_consumer_that_is_killed_is_not_alive(tmp_path: Path, directory: str) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            member(directory)
            os.write(writer, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.read(reader, 1)
    assert live_topics(str(tmp_path), "g") == ["T"]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert live_topics(str(tmp_path), "g") == []
    os.close(reader)
    os.close(writer)


def test_to_ask_disturbs_nobody(tmp_path: Path, directory: str) -> None:
    assert live_topics(str(tmp_path), "g") == []
    assert not Path(directory, "members").exists()
    one = member(directory)
    assert live_topics(str(tmp_path), "g") == ["T"]
    assert live_topics(str(tmp_path), "h") == []
    assert one.is_last()
    one.end()
