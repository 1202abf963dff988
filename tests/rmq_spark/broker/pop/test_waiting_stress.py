"""Writers that append at random moments, and waiters that must not miss one of their messages."""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq_spark.broker.pop import waiting
from rmq_spark.broker.pop.waiting import Waiter, WaiterLook
from rmq_spark.pop import SimpleConsumer
from store_format.commit.options import CommitOptions
from tests.support.fork_server import ForkServer
from tests.support.staged import append, make_store, numbered

_OPTIONS = CommitOptions(sync=False, clock=lambda: 1_700_000_100_000, lock_timeout=60.0)
_WRITERS = 2
_BEFORE = 4  # messages that are there before the consumers
_END = 8 * _WRITERS  # where the number of appends is final


def _shared(path: Path) -> mmap.mmap:
    """Numbers that processes share: 8 bytes for each writer, in a file."""
    path.touch()
    os.truncate(path, _END)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), _END)


@pytest.fixture(scope="module")
def writers() -> Iterator[list[ForkServer]]:
    """A fork of this process might hang: it has threads."""
    with ExitStack() as stack:
        yield [stack.enter_context(ForkServer()) for _ in range(_WRITERS)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(_WRITERS) as pool:
        yield pool


def _write(root: Path, shared: Path, writer: int, appends: int, pause: float) -> None:
    """Appends one message after the other, and counts each append that has returned."""
    counts = _shared(shared)
    chance = random.Random(writer)
    for number in range(appends):
        time.sleep(chance.random() * pause)
        append(root, numbered("T", 1000 * writer + number, 1), options=_OPTIONS)
        counts[8 * writer : 8 * writer + 8] = (number + 1).to_bytes(8, "little")


def _committed(counts: mmap.mmap) -> int:
    return sum(int.from_bytes(counts[8 * i : 8 * i + 8], "little") for i in range(_WRITERS))


def _seen(look: WaiterLook) -> int:
    return sum(queue.max_offset for store in look.stores for queue in store.queues.values())


class _Waiting(threading.Thread):
    """Waits again and again, and compares each answer with what was committed before. Short times vary."""

    def __init__(self, root: Path, counts: mmap.mmap, messages: int, seed: int, longest: float) -> None:
        super().__init__()
        self.root, self.counts, self.messages = root, counts, messages
        self.chance, self.longest = random.Random(seed), longest
        self.answers = self.empty = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with Waiter(str(self.root), ["T"]) as waiter:
            look = waiter.look()
            while _seen(look) < self.messages:
                before = _committed(self.counts)
                timeout = self.longest * (1.0 if self.longest > 1.0 else self.chance.random())
                found = waiter.wait(look, timeout)
                self.answers += 1
                if found is None:
                    self.empty += 1
                    if before > _seen(look):
                        self.wrong.append(f"nothing, with {before} committed and {_seen(look)} seen")
                    continue
                if _seen(found) < before:
                    self.wrong.append(f"{_seen(found)} seen, with {before} committed")
                look = found


@pytest.mark.slow
def test_no_message_is_missed(
    root: Path,
    tmp_path: Path,
    whole: bool,
    writers: list[ForkServer],
    pool: ThreadPoolExecutor,
) -> None:
    appends, pause = (1000, 0.02) if whole else (30, 0.02)
    counts = _shared(tmp_path / "counts")
    writing = [
        pool.submit(server.call, _write, root, tmp_path / "counts", number, appends, pause)
        for number, server in enumerate(writers)
    ]
    # short waits end at about the time of an append, of the long ones none may end without news
    threads = [
        _Waiting(root, counts, _WRITERS * appends, seed, longest)
        for seed, longest in enumerate((0.005, 0.05, 30.0))
    ]
    for thread in threads:
        thread.start()
    for each in writing:
        each.result()
    for thread in threads:
        thread.join(10.0)
    assert [thread.is_alive() for thread in threads] == [False] * len(threads)
    assert [thread.wrong for thread in threads] == [[], [], []]
    assert threads[0].empty > appends / 3
    assert threads[2].empty == 0


def _write_when_seen(root: Path, shared: Path, appends: int) -> None:
    """Appends a message whenever the last one was seen, after a random pause."""
    counts = _shared(shared)
    chance = random.Random(7)
    for number in range(appends):
        while int.from_bytes(counts[:8], "little") < number:
            time.sleep(0.0005)
        time.sleep(chance.choice((0, 0.0005, 0.003)))
        append(root, numbered("T", number, 1), options=_OPTIONS)


@pytest.mark.slow
def test_every_append_wakes(
    tmp_path: Path,
    whole: bool,
    writers: list[ForkServer],
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No wake is lost: here no round finds what the doorbell did not tell."""
    monkeypatch.setattr(waiting, "_ROUND_SECONDS", 1000.0)
    appends = 3000 if whole else 50
    root = make_store(tmp_path / "store")
    counts = _shared(tmp_path / "counts")
    writer = pool.submit(writers[0].call, _write_when_seen, root, tmp_path / "counts", appends)
    with Waiter(str(root), ["T"]) as waiter:
        look = waiter.look()
        while _seen(look) < appends:
            found = waiter.wait(look, 30.0)
            if found is None:
                there = _seen(waiter.look())
                counts[:8] = appends.to_bytes(8, "little")  # ends the writer
                assert there == _seen(look), f"append {there} woke nobody"
                raise AssertionError(f"the writer has not made append {there + 1}")
            look = found
            counts[:8] = _seen(look).to_bytes(8, "little")
    writer.result()


class _Receiving(threading.Thread):
    """A group of its own that receives all messages, and compares each empty answer with what was there."""

    def __init__(self, root: Path, counts: mmap.mmap, messages: int, await_duration: float) -> None:
        super().__init__()
        self.root, self.counts, self.messages, self.await_duration = root, counts, messages, await_duration
        self.received: list[bytes] = []
        self.empty = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        group = f"g{self.await_duration:g}".replace(".", "-")
        with SimpleConsumer(str(self.root), group, {"T": "*"}, self.await_duration) as consumer:
            while len(self.received) < self.messages:
                before = _BEFORE + _committed(self.counts)
                found = consumer.receive(4)
                consumer.ack(found)
                self.received += [message.body for message in found]
                self.empty += not found
                if not found and before > len(self.received):
                    self.wrong.append(f"nothing, with {before} committed, {len(self.received)} received")


@pytest.mark.slow
def test_a_consumer_is_never_told_nothing_while_a_message_is_there(
    root: Path, tmp_path: Path, whole: bool, writers: list[ForkServer], pool: ThreadPoolExecutor
) -> None:
    appends = 1000 if whole else 30
    append(root, numbered("T", 9000, _BEFORE), options=_OPTIONS)  # the topic
    counts = _shared(tmp_path / "counts")
    writing = [
        pool.submit(server.call, _write, root, tmp_path / "counts", number, appends, 0.02)
        for number, server in enumerate(writers)
    ]
    messages = _BEFORE + _WRITERS * appends
    threads = [_Receiving(root, counts, messages, seconds) for seconds in (0.0, 0.01, 30.0)]
    for thread in threads:
        thread.start()
    for each in writing:
        each.result()
    for thread in threads:
        thread.join(20.0)
    assert [thread.is_alive() for thread in threads] == [False] * len(threads)
    assert [thread.wrong for thread in threads] == [[], [], []]
    assert [len(set(thread.received)) for thread in threads] == [messages] * len(threads)
    assert threads[0].empty > appends
    assert threads[2].empty == 0
