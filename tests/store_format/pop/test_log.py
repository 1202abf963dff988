"""The in-flight log: one state for all processes, whatever is killed, torn or removed."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store_format.errors import CorruptStoreError, OptionError, StoreInUseError
from store_format.files.shared_log import FileLock
from store_format.opened.store import Opened
from store_format.pop.log import (
    LOG_NAME,
    InFlightLog,
    InFlightReader,
    in_flight_directory,
    in_flight_logs,
    read_in_flight,
)
from store_format.pop.records import MAGIC, CheckPoint, frame, note
from store_format.pop.state import PopState


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return in_flight_directory(Opened(str(tmp_path)), "billing", "Orders")


def _view(state: PopState | None) -> object:
    """Everything that counts in a state."""
    assert state is not None
    return (
        state.queues,
        (state.mirrored, state.settled, state.reviving, state.revive_number, state.renewals),
        (state.is_closed, state.totals, state.in_flight, state.next_visible, state.again.first),
    )


def _open(state: PopState, queue_id: int, offset: int) -> None:
    state.open()
    state.set_offset(0, queue_id, offset)


def _random_change(state: PopState, chance: random.Random, now: int) -> None:
    points = list(state.check_points())
    queue = chance.choice([(0, 0), (0, 1), (1, 0)])
    if queue not in state.queues or chance.random() < 0.02:
        chance.choice([state.set_offset, state.renew_queue])(*queue, chance.randrange(1000))
        return
    kind = chance.randrange(10)
    if kind < 4 or not points:
        start = state.queues[queue].next_offset
        offsets = [start + each for each in sorted(chance.sample(range(40), chance.randint(1, 32)))]
        owner, place = chance.choice("ab"), chance.choice([-1, 100 * offsets[-1]])
        state.hand_out(
            *queue, offsets, offsets[-1] + 1, now, chance.randrange(1, 100), owner, physical_offset=place
        )
        return
    point = chance.choice(points)
    position = chance.randrange(len(point.offsets))
    if kind < 7:
        state.ack(point.key, chance.choice([None, [position], range(position)]))
    elif kind == 7 and now % 2:
        state.deliver_again(point.key, position, now, now + chance.randrange(100), "b")
    elif kind == 7:
        state.change_invisible(point.key, position, now, chance.randrange(100))
    elif kind == 8:
        state.renew(point.key, chance.randrange(1000))
        state.note_mirrored({queue: state.queues[queue].lowest})
        state.skip(*queue, state.queues[queue].next_offset + 1)
    elif state.reviving is not None:
        state.end_revive(state.reviving.number, is_done=chance.random() < 0.7)
    elif state.due(now):
        state.begin_revive({each.key: each.whole & ~each.acked for each in state.due(now)})


@pytest.mark.parametrize("seed", range(5))
def test_every_reader_has_the_same_state(directory: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two logs in turn, a reader without a lock, and a snapshot that is made often."""
    monkeypatch.setattr("store_format.pop.log._COMPACT_SIZE", 3000)
    chance = random.Random(seed)
    logs = [InFlightLog(directory), InFlightLog(directory)]
    origin = CheckPoint(0, 1, 5, range(5, 8), 40, 60, origin=("broker-a", 3), acked=1, taken=1)
    logs[0].run(lambda state: _open(state, 1, 8))
    logs[0].run(lambda state: state.take_over([origin]))
    sizes = []
    for now in range(100, 500):
        chance.choice(logs).run(lambda state, now=now: _random_change(state, chance, now))  # type: ignore[misc]
        sizes.append(os.path.getsize(f"{directory}/in-flight.log"))
        if now % 20 == 0:
            views = [log.run(_view) for log in logs]
            assert views[0] == views[1] == _view(read_in_flight(directory))
    assert any(after < before for before, after in itertools.pairwise(sizes))
    state = read_in_flight(directory)
    assert state is not None
    assert state.in_flight == sum(each.left for each in state.check_points())
    assert (0, 1, 5, 40) in state.settled or state.check_point((0, 1, 5, 40)) is not None


def test_the_count_of_renewed_queues_outlives_a_snapshot(
    directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By it a consumer that was stopped meanwhile knows that what it has read ahead is of a deleted topic."""
    monkeypatch.setattr("store_format.pop.log._COMPACT_SIZE", 300)
    log, other = InFlightLog(directory), InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 10))
    assert other.run(lambda state: state.renewals) == 0
    log.run(lambda state: state.renew_queue(0, 0, 0))
    for offset in range(200):
        log.run(lambda state, offset=offset: state.skip(0, 0, offset))  # type: ignore[misc]
    assert os.path.getsize(f"{directory}/in-flight.log") < 3000
    assert [each.run(lambda state: state.renewals) for each in (log, other)] == [1, 1]


def test_what_a_group_has_in_flight() -> None:
    state = PopState()
    state.set_offset(0, 2, 100)
    point = state.hand_out(0, 2, [100, 101, 104], 106, 1000, 50)
    again = state.hand_out(0, 2, [106], 107, 1000, 20)
    assert (state.queues[0, 2].next_offset, state.queues[0, 2].lowest, state.in_flight) == (107, 100, 4)
    assert state.ack(point.key, [0, 0, 7]) == 1
    assert (list(point.unacked()), state.queues[0, 2].lowest) == ([101, 104], 101)
    changed = state.change_invisible(point.key, 1, 1010, 0)
    assert changed is not None
    assert (changed.key, list(changed.unacked())) == ((0, 2, 101, 1010), [101])
    assert state.change_invisible(point.key, 1, 1011, 0) is None
    assert [each.key for each in state.due(1020)] == [changed.key, again.key]
    assert (state.due(1009), state.next_visible) == ([], 1010)
    assert state.renew(again.key, 500)
    assert not state.renew((0, 2, 1, 1), 500)
    assert [each.key for each in state.due(1050)] == [changed.key, point.key]
    revive = state.begin_revive({changed.key: 1})
    assert (state.ack(changed.key), state.ack(point.key)) == (0, 1)
    state.end_revive(revive.number, is_done=True)
    assert (state.check_point(changed.key), state.in_flight, state.queues[0, 2].lowest) == (None, 1, 106)
    with pytest.raises(ValueError, match="offsets 106 to 106"):
        state.hand_out(0, 2, [106], 107, 1000, 20)


def test_a_message_of_the_same_moment_gets_a_handle_of_its_own() -> None:
    state = PopState()
    state.set_offset(0, 0, 0)
    first = state.hand_out(0, 0, [0], 1, 1000, 50)
    state.set_offset(0, 0, 0)
    changed = state.change_invisible(state.hand_out(0, 0, [0], 1, 1000, 50).key, 0, 1000, 50)
    assert changed is not None
    assert (first.pop_time, changed.pop_time) == (1000, 1001)


def test_a_change_that_fails_has_no_effect_and_hinders_nobody(directory: str) -> None:
    log, other = InFlightLog(directory), InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 7))

    def failing(state: PopState) -> None:
        state.set_offset(0, 0, 9)
        raise OptionError("no")

    with pytest.raises(OptionError, match="no"):
        log.run(failing)
    assert log.run(lambda state: state.queues[0, 0].next_offset) == 7
    assert other.run(lambda state: state.queues[0, 0].next_offset) == 7


def test_a_torn_end_is_cut(directory: str, caplog: pytest.LogCaptureFixture) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 7))
    path = Path(directory, "in-flight.log")
    whole = path.read_bytes()
    log.run(lambda state: state.set_offset(0, 0, 8))
    last = path.read_bytes()[len(whole) :]
    for size in range(1, len(last)):
        path.write_bytes(whole + last[:size])
        read = read_in_flight(directory)
        assert read is not None
        assert read.queues[0, 0].next_offset == 7
        with caplog.at_level(logging.WARNING):
            assert InFlightLog(directory).run(lambda state: state.queues[0, 0].next_offset) == 7
        assert f"the last {size} bytes, from byte {len(whole)} on" in caplog.messages[-1]
        assert path.read_bytes() == whole
    # The log that is open sees the same.
    path.write_bytes(whole + last)
    assert log.run(lambda state: state.queues[0, 0].next_offset) == 8


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"something else", "expected the bytes 726d71706f70320a, found 736f6d657468696e"),
        (MAGIC + frame(b"\x63abc"), "found a record of kind 99"),
        (MAGIC + frame(note("unheard")), "'do': 'unheard'"),
        (MAGIC + frame(note("offset", queue=7, offset=1)), "'queue': 7"),
        (MAGIC + frame(b"\x01\x00"), "found a record of kind 1"),
        (MAGIC + frame(b"\x06\x05\x00\x00\x00[[[[["), "found a record of kind 6"),
    ],
)
def test_a_foreign_file_is_an_error_that_says_what_to_do(directory: str, data: bytes, expected: str) -> None:
    InFlightLog(directory).run(lambda state: None)
    Path(directory, "in-flight.log").write_bytes(data)
    for read in (read_in_flight, lambda directory: InFlightLog(directory).run(lambda state: None)):
        with pytest.raises(CorruptStoreError) as error:
            read(directory)
        assert expected in str(error.value)
        assert "remove the file" in str(error.value)
    assert Path(directory, "in-flight.log").read_bytes() == data


def test_a_directory_that_was_removed_or_restored(directory: str, tmp_path: Path) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 7))
    os.rename(tmp_path / ".rmqlog", tmp_path / "old")
    assert log.run(lambda state: (state.is_closed, state.queues)) == (True, {})
    log.run(lambda state: state.set_offset(0, 0, 1))
    os.rename(tmp_path / ".rmqlog", tmp_path / "newer")
    os.rename(tmp_path / "old", tmp_path / ".rmqlog")
    assert log.run(lambda state: state.queues[0, 0].next_offset) == 7


def test_a_log_that_was_cut_in_place_is_read_again(directory: str) -> None:
    one, other = InFlightLog(directory), InFlightLog(directory)
    one.run(lambda state: state.set_offset(0, 0, 10))
    path = Path(directory, LOG_NAME)
    backup = path.read_bytes()
    other.run(lambda state: state.set_offset(0, 0, 20))
    path.write_bytes(backup)
    other.run(lambda state: state.set_offset(0, 1, 30))
    for log in (one, other):
        assert log.run(lambda state: [state.queues[0, queue].next_offset for queue in (0, 1)]) == [10, 30]


def test_names_that_are_no_names(tmp_path: Path) -> None:
    groups, topics = ("..", "", "g" * 256), ("a/b", "T" * 128, "é")
    for group, topic in (*((group, "T") for group in groups), *(("g", topic) for topic in topics)):
        with pytest.raises(OptionError, match="expected letters, digits"):
            in_flight_directory(Opened(str(tmp_path)), group, topic)
    InFlightLog(in_flight_directory(Opened(str(tmp_path)), "g", "%RETRY%g_T")).run(lambda state: None)
    (tmp_path / ".rmqlog/pop/g/no log").mkdir()
    assert in_flight_logs(Opened(str(tmp_path))) == [("g", "%RETRY%g_T")]
    assert in_flight_logs(Opened(str(tmp_path / "missing"))) == []
    assert read_in_flight(str(tmp_path / ".rmqlog/pop/g/no log")) is None


def test_threads_share_a_write(directory: str) -> None:
    log = InFlightLog(directory, sync=True)
    log.run(lambda state: _open(state, 0, 0))

    def take() -> None:
        for _ in range(50):
            log.run(lambda state: _take_one(state))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    state = read_in_flight(directory)
    assert state is not None
    assert (state.queues[0, 0].next_offset, state.in_flight, state.totals["popped"]) == (400, 400, 400)


def _take_one(state: PopState) -> int:
    start = state.queues[0, 0].next_offset
    state.hand_out(0, 0, [start], start + 1, 1000, 1000, str(os.getpid()))
    return start


def _take_for_ever(directory: str) -> None:
    log = InFlightLog(directory)
    while True:
        log.run(_take_one)


@pytest.mark.process
def test_processes_that_are_killed_leave_whole_records(directory: str) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 0))
    chance, context = random.Random(7), multiprocessing.get_context("fork")
    workers = [context.Process(target=_take_for_ever, args=(directory,)) for _ in range(3)]
    for each in workers:
        each.start()
    for _ in range(12):
        time.sleep(chance.uniform(0.01, 0.04))
        number = chance.randrange(3)
        os.kill(workers[number].pid or 0, signal.SIGKILL)
        workers[number].join()
        workers[number] = context.Process(target=_take_for_ever, args=(directory,))
        workers[number].start()
    for each in workers:
        os.kill(each.pid or 0, signal.SIGKILL)
        each.join()
    seen = log.run(lambda state: sorted(each.start for each in state.check_points()))
    assert len(seen) > 100
    assert seen == list(range(len(seen)))
    assert _view(read_in_flight(directory)) == log.run(_view)


@pytest.mark.process
def test_a_lock_that_a_stopped_process_holds(directory: str) -> None:
    log = InFlightLog(directory, lock_timeout=0.05)
    log.run(lambda state: None)
    held = FileLock(f"{directory}/lock")
    with held.exclusive(), pytest.raises(StoreInUseError, match="state T in ps"):
        log.run(lambda state: None)
    log.run(lambda state: None)


def test_the_last_of_those_who_share_a_lock_knows(tmp_path: Path) -> None:
    path = str(tmp_path / "members")
    one, other = FileLock(path), FileLock(path)
    assert one.share()
    assert other.share()
    assert not one.try_exclusive()
    other.close()
    assert one.try_exclusive()
    assert not other.share(0)


@pytest.mark.parametrize("size", range(len(MAGIC)))
def test_a_kill_in_the_first_write_leaves_a_log_that_is_begun_again(tmp_path: Path, size: int) -> None:
    directory = in_flight_directory(Opened(str(tmp_path)), "g", "T")
    Path(directory).mkdir(parents=True)
    Path(directory, "in-flight.log").write_bytes(MAGIC[:size])
    reader = InFlightReader(directory)
    assert read_in_flight(directory) is None
    assert reader.look() is None
    InFlightLog(directory).run(lambda state: state.set_offset(0, 0, 7))
    for state in (read_in_flight(directory), reader.look()):
        assert state is not None
        assert state.queues[0, 0].next_offset == 7
    reader.close()


# ---- following an in-flight log without its lock -----------------------------------------------------------


NOW_MS = 1_700_000_200_000


def test_a_reader_follows_the_log_over_compactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = in_flight_directory(Opened(str(tmp_path)), "g", "T")
    log, reader = InFlightLog(directory), InFlightReader(directory)
    assert reader.look() is None
    monkeypatch.setattr("store_format.pop.log._COMPACT_SIZE", 2_000)
    log.run(PopState.open)
    log.run(partial(PopState.set_offset, flag=0, queue_id=0, offset=0))

    def hand_out(state: PopState) -> Any:
        start = state.queues[0, 0].next_offset
        return state.hand_out(0, 0, range(start, start + 32), start + 32, NOW_MS, 1000).key

    sizes = []
    for number in range(600):
        key = log.run(hand_out)
        if number % 60 == 5:
            found = reader.look()
            assert found is not None
            assert found.in_flight == log.run(lambda state: state.in_flight) == 64
            sizes.append(Path(reader.path).stat().st_size)
        if number:  # the first stays in flight
            log.run(partial(PopState.ack, key=key))
    assert sizes != sorted(sizes), "no compaction"
    reader.close()
