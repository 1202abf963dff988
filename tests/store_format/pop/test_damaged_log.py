"""Damage of an in-flight log while one process lives and others open it: all agree again, and at once."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from store_format.errors import CorruptStoreError
from store_format.opened.store import Opened
from store_format.pop.in_flight import read_pop_progress
from store_format.pop.log import LOG_NAME, InFlightLog, InFlightReader, in_flight_directory, read_in_flight
from store_format.pop.records import MAGIC, NOTE, frame, hand_out, note, skip
from store_format.pop.state import PopState
from store_format.read.store import Store
from tests.support.popped import popped_store

NOW_MS = 1_700_000_200_000


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return in_flight_directory(Opened(str(tmp_path)), "billing", "Orders")


def _begin(state: PopState) -> None:
    state.open()
    state.set_offset(0, 0, 0)


def _take(state: PopState, owner: str = "c") -> int:
    """Each owner's record has the same size."""
    start = state.queues[0, 0].next_offset
    state.hand_out(0, 0, [start], start + 1, NOW_MS, 1000, owner, physical_offset=100 * start)
    return start


def _ack(state: PopState) -> None:
    state.ack(next(state.check_points()).key)


def _view(state: PopState | None) -> object:
    assert state is not None
    queue = state.queues[0, 0]
    return queue.next_offset, queue.check_points, state.totals, state.in_flight


# ---- the kinds of damage: (path, the file some records ago) ------------------------------------------------

Damage = Callable[[Path, bytes], None]


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    _write(path, data)


def _write(path: Path, data: bytes | bytearray) -> None:
    """In place: the file keeps its inode."""
    with open(path, "r+b") as file:
        file.write(data)
        file.truncate()


def _replace(path: Path, data: bytes) -> None:
    path.with_suffix(".new").write_bytes(data)
    os.replace(path.with_suffix(".new"), path)


DAMAGE: dict[str, Damage] = {
    "cut in the middle": lambda path, old: os.truncate(path, path.stat().st_size // 2),
    "cut at the start of the last record": lambda path, old: os.truncate(path, path.stat().st_size - 1),
    "flip in the first record": lambda path, old: _flip(path, 9),
    "flip in the middle": lambda path, old: _flip(path, path.stat().st_size // 2),
    "flip in the last record": lambda path, old: _flip(path, path.stat().st_size - 5),
    "flip in the last checksum": lambda path, old: _flip(path, path.stat().st_size - 1),
    "older copy in place": _write,
    "older copy instead": _replace,
    "removed": lambda path, old: path.unlink(),
    "records twice": lambda path, old: _write(path, path.read_bytes() + path.read_bytes()[8:]),
    "garbage behind the end": lambda path, old: _write(
        path, path.read_bytes() + random.Random(1).randbytes(500)
    ),
}


def _in_another_process(directory: str, path: Path) -> None:
    def take() -> None:
        log = InFlightLog(directory)
        with open(path, "a", encoding="ascii") as taken:
            for _ in range(40):  # the file becomes longer than the live process knows it
                if log.run(lambda state: state.is_closed):
                    log.run(_begin)
                taken.write(f"{log.run(partial(_take, owner='d'))}\n")

    process = multiprocessing.get_context("fork").Process(target=take)
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.process
@pytest.mark.parametrize("kind", DAMAGE)
def test_processes_agree_after_damage(
    directory: str, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is given a message that another process has taken since, and nothing is cut twice."""
    live, reader, path = InFlightLog(directory), InFlightReader(directory), Path(directory, LOG_NAME)
    live.run(_begin)
    for number in range(40):
        live.run(_take)
        if number == 30:
            old = path.read_bytes()
        if number % 3:
            live.run(_ack)
    reader.look()
    DAMAGE[kind](path, old)
    taken, later = tmp_path / "taken", InFlightLog(directory)
    for _ in range(3):
        _in_another_process(directory, taken)
        for owner, log in (("c", live), ("e", later)):
            if log.run(lambda state: state.is_closed):
                log.run(_begin)
            with open(taken, "a", encoding="ascii") as file:
                file.write(f"{log.run(partial(_take, owner=owner))}\n")
    numbers = [int(line) for line in taken.read_text().split()]
    assert len(numbers) == len(set(numbers)) == 3 * 42
    assert numbers == list(range(numbers[0], numbers[0] + 3 * 42))
    assert live.run(_view) == later.run(_view) == _view(read_in_flight(directory)) == _view(reader.look())
    assert len(caplog.messages) <= 1, "the live process reads the file again at most once"
    reader.close()


@pytest.mark.parametrize("kind", ["flip in the middle", "older copy in place"])
def test_the_live_process_says_that_it_reads_again(
    directory: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    live, path = InFlightLog(directory), Path(directory, LOG_NAME)
    live.run(_begin)
    live.run(_take)
    old = path.read_bytes()
    for _ in range(10):
        live.run(_take)
    DAMAGE[kind](path, old)
    opener = InFlightLog(directory)
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            opener.run(partial(_take, owner="d"))
        first = live.run(_take)
    assert first == opener.run(_take) - 1
    assert sum("it is read again" in message for message in caplog.messages) == 1
    assert sum("are removed" in message for message in caplog.messages) == (kind == "flip in the middle")


_POINT = '{"key":[0,0,0,0],"run":%s,"ms":1,"owner":"","origin":null,"acked":"0x0","taken":"0x0"}'


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"do":"take","points":[' + _POINT % "[0,1000000000000]" + "]}",
        '{"do":"take","points":[' + _POINT % f"[0,{10**30}]" + "]}",
        '{"do":"take","points":[' + _POINT % "[0,-5]" + "]}",
    ],
    ids=["deep", "long", "longer", "empty"],
)
def test_records_of_another_program_are_damage(directory: str, text: str) -> None:
    os.makedirs(directory)
    record = struct.pack("<BI", NOTE, len(text)) + text.encode()
    Path(directory, LOG_NAME).write_bytes(MAGIC + frame(record))
    with pytest.raises(CorruptStoreError, match="records of pop as this release writes them"):
        read_in_flight(directory)


_FLAGGED = '{"key":[7,0,0,0],"run":[0,3],"ms":1,"owner":"","origin":null,"acked":"0x0","taken":"0x0"}'


@pytest.mark.parametrize(
    "record",
    [
        hand_out((7, 0, 0, NOW_MS), range(3), 3, 1000, "c", -1),
        skip(7, 0, 3),
        note("offset", queue=[7, 0], offset=3),
        note("new", queue=["7", 0], offset=3),
        note("take", points=[json.loads(_FLAGGED)]),
        note("mirror", queues=[[7, 0, 3]]),
        note("state", mirrored=[[7, 0, 3, 3]], number=0, totals={}),
    ],
    ids=["hand-out", "skip", "offset", "new topic", "take", "mirror", "snapshot"],
)
def test_a_queue_of_an_unknown_flag_is_damage(
    tmp_path: Path, record: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A log has the flags of the topic and of its two retry topics, and the views name the topics."""
    root = popped_store(tmp_path / "s", 3)
    directory = in_flight_directory(Opened(str(root)), "billing", "Orders")
    os.makedirs(directory)
    Path(directory, LOG_NAME).write_bytes(MAGIC + frame(note("open") + record))
    with pytest.raises(CorruptStoreError, match="records of pop as this release writes them"):
        read_in_flight(directory)
    progress = read_pop_progress(Store.open(str(root)))
    assert progress.unknown == {("billing", "Orders")}
    assert "what is in flight is unknown" in caplog.text
