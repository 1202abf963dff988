"""Revive: what nobody acknowledged is stored again once, in the pop retry topic."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_spark.broker.pop import revive
from rmq_spark.broker.pop.revive import ReviveCounts, bits_of, first_due, positions_of, revive_due
from rmq_spark.broker.pop.share import PopGroup, ShareOptions
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from store_format.pop.records import CheckPoint, as_json, from_json
from store_format.pop.state import PopState
from tests.rmq_spark.broker.pop.test_share import NOW_MS, QUEUES, RETRY, open_share, pop
from tests.support import oracle
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.popped import Clock
from tests.support.staged import append, deleted_topic, make_store, messages_of, numbered
from tests.support.waiting import bodies

LATER_MS = NOW_MS + 60_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_store(tmp_path / "s")
    append(tmp_path / "s", numbered("T", 0, 40))
    return tmp_path / "s"


@pytest.fixture
def share(root: Path) -> Iterator[PopGroup]:
    share = open_share(root, init_mode="MIN")
    share.begin(QUEUES)
    yield share
    share.close()


def wait_until(share: PopGroup, ms: int) -> None:
    clock = share.options.clock_ms
    assert isinstance(clock, Clock)
    clock.ms = ms


def copies(root: Path) -> list[Message]:
    return sorted((m for m in messages_of(root) if m.topic == RETRY), key=lambda m: m.queue_offset)


def in_flight(share: PopGroup) -> int:
    return share.run(lambda state: state.in_flight)


def test_what_is_not_acknowledged_comes_again_after_its_time_and_once(share: PopGroup, root: Path) -> None:
    point = pop(share, (0, 0), 4)
    pop(share, (0, 1), 3)
    share.run(lambda state: state.ack(point.key, [0, 2]))
    wait_until(share, LATER_MS - 1)
    assert share.revive() == ReviveCounts()
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=5)
    assert share.revive() == ReviveCounts()
    assert in_flight(share) == 0
    found = copies(root)
    # numbered() puts message i into queue i % 4
    assert [m.body.rstrip(b".") for m in found] == [b"message %d of T" % i for i in (4, 12, 1, 5, 9)]
    assert {(m.queue_id, m.reconsume_times) for m in found} == {(0, 1)}
    assert {m.properties["1ST_POP_TIME"] for m in found} == {str(NOW_MS)}
    assert {m.properties["ORIGIN_GROUP"] for m in found} == {"g"}
    topics = read_topics(Opened(str(root)))
    assert topics is not None
    assert (topics[RETRY].read_queue_nums, topics[RETRY].write_queue_nums, topics[RETRY].perm) == (1, 1, 6)
    assert read_group_offsets(Opened(str(root)), "g")[RETRY, 0] == 0


def test_an_old_handle_acknowledges_nothing_after_the_revive(share: PopGroup) -> None:
    point = pop(share, (0, 0), 4)
    wait_until(share, LATER_MS)
    share.revive()
    assert share.run(lambda state: state.ack(point.key)) == 0
    assert share.run(lambda state: state.change_invisible(point.key, 0, LATER_MS, 1)) is None


def test_an_invisible_time_of_0_comes_again_at_once(share: PopGroup, root: Path) -> None:
    point = pop(share, (0, 0), 2)
    share.run(lambda state: state.change_invisible(point.key, 1, NOW_MS, 0))
    assert share.revive() == ReviveCounts(copies=1)
    assert [m.body.rstrip(b".") for m in copies(root)] == [b"message 4 of T"]
    assert in_flight(share) == 1


def test_a_suspended_message_of_a_broker_keeps_its_times(share: PopGroup, root: Path) -> None:
    """A check point with `sp` (PopReviveService.reviveRetry), also after the log was written again."""
    points = [CheckPoint(0, 0, at, range(at, at + 1), NOW_MS, 60_000, suspend=at == 1) for at in (0, 1)]
    share.run(lambda state: state.take_over(points))
    assert from_json(as_json(points[1])) == points[1]
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=2)
    assert [m.reconsume_times for m in copies(root)] == [1, 0]


def test_a_copy_that_fails_again_stays_in_the_retry_topic(share: PopGroup, root: Path) -> None:
    pop(share, (0, 0), 1)
    for times in (1, 2, 3):
        wait_until(share, NOW_MS + times * 60_000)
        assert share.revive() == ReviveCounts(copies=1)
        share.begin([(1, 0)])
        pop(share, (1, 0), 1)
    assert [(m.reconsume_times, m.properties["1ST_POP_TIME"]) for m in copies(root)] == [
        (times, str(NOW_MS)) for times in (1, 2, 3)
    ]
    share.keep()
    assert read_group_offsets(Opened(str(root)), "g")[RETRY, 0] == 2


@pytest.mark.parametrize("conf", ["", "flushDiskType=ASYNC_FLUSH\n"])
def test_copies_are_flushed_as_the_other_commits_of_the_store(share: PopGroup, root: Path, conf: str) -> None:
    (root / ".rmqlog" / "broker.conf").write_text(conf)
    pop(share, (0, 0), 1)
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=1)
    assert (root / "abort").exists() is bool(conf)


def test_many_messages_need_several_revives(
    share: PopGroup, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_due, "__defaults__", (4,))
    for queue in QUEUES:
        pop(share, queue, 3)
    wait_until(share, LATER_MS)
    assert [share.revive().copies for _ in range(4)] == [4, 4, 4, 0]
    assert len(copies(root)) == len({m.body for m in copies(root)}) == 12
    monkeypatch.setattr(revive, "BYTES_MAX", 250)
    pop(share, (0, 0), 5)
    wait_until(share, LATER_MS + 60_000)
    assert [share.revive().copies for _ in range(6)] == [1, 1, 1, 1, 1, 0]


def test_a_message_that_no_longer_exists_is_done_with_a_warning(
    share: PopGroup, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pop(share, (0, 0), 2)
    deleted_topic(root, "T")
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(gone=2)
    assert in_flight(share) == 0
    assert "2 messages that nobody acknowledged are not delivered again: the topic was deleted" in caplog.text


def test_a_group_that_was_deleted_gets_nothing_if_groups_are_not_created(share: PopGroup, root: Path) -> None:
    (root / ".rmqlog" / "broker.conf").write_text("autoCreateSubscriptionGroup=false\n")
    pop(share, (0, 0), 2)
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(gone=2)
    assert copies(root) == []


def test_a_message_that_cannot_be_stored_is_delivered_in_place_and_stops_no_other(
    share: PopGroup, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    light = replace(numbered("T", 40, 1)[0], queue_id=0)
    light = replace(light, properties_bytes=light.properties_bytes + b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02")
    append(root, [light])
    share.begin(QUEUES)
    share.run(lambda state: state.skip(0, 0, 9))
    pop(share, (0, 0), 2)
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=1, again=1)
    assert "1 messages of T-0 cannot be stored again, and are delivered again from their own" in caplog.text
    assert "the first is offset 10: it is a batch, or in light queues too" in caplog.text
    assert share.revive() == ReviveCounts()
    (point,) = share.run(lambda state: state.again.due(LATER_MS))
    assert (point.offsets, point.again) == (range(10, 11), 1)
    share.log.close()  # as another process reads it
    (read,) = share.run(lambda state: state.again.due(LATER_MS))
    assert read == point == from_json(as_json(point))
    assert share.run(lambda state: state.next_visible) is None


def test_messages_of_a_damaged_queue_are_tried_later(
    share: PopGroup, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pop(share, (0, 0), 1)
    wait_until(share, LATER_MS)
    (root / "consumequeue" / "T" / "0" / ("0" * 20)).write_bytes(b"\xff" * 400)
    waits = []
    for _ in range(3):
        assert share.revive() == ReviveCounts(postponed=1)
        visible = share.run(lambda state: state.next_visible)
        assert visible is not None
        waits.append((visible - share.options.clock_ms()) // 1000)
        wait_until(share, visible)
    assert waits == [60, 120, 240]
    assert "1 messages of T-0 cannot be stored again for now, the first is offset 0" in caplog.text


def test_separate_queues_of_the_retry_topic(share: PopGroup, root: Path) -> None:
    (root / ".rmqlog" / "broker.conf").write_text("useSeparateRetryQueue=true\n")
    pop(share, (0, 3), 2)
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=2)
    assert Counter(m.queue_id for m in copies(root)) == {3: 2}
    assert {q for t, q in read_group_offsets(Opened(str(root)), "g") if t == RETRY} == {0, 1, 2, 3}


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_revive_that_was_broken_off_is_completed_or_taken_back(
    share: PopGroup, root: Path, is_committed: bool
) -> None:
    point = pop(share, (0, 0), 2)
    wait_until(share, LATER_MS)

    def begin(state: PopState) -> Any:
        return state.begin_revive({point.key: 3})

    if is_committed:  # as before the last step of a revive
        before = shutil.copytree(share.name.directory, root / "log before")
        share.revive()
        share.log.close()
        shutil.copytree(before, share.name.directory, dirs_exist_ok=True)
    share.run(begin)
    assert share.run(lambda state: state.ack(point.key)) == 0
    assert share.revive() == ReviveCounts(copies=0 if is_committed else 2)
    assert len(copies(root)) == 2
    assert in_flight(share) == 0


def test_a_new_log_does_not_believe_the_revives_of_an_older_one(share: PopGroup, root: Path) -> None:
    pop(share, (0, 0), 2)
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=2)
    share.log.close()
    (Path(share.name.directory) / "in-flight.log").unlink()
    share.run(lambda state: state.open())
    share.run(lambda state: state.set_offset(0, 0, 2))
    point = pop(share, (0, 0), 2)
    share.run(lambda state: state.begin_revive({point.key: 3}))
    wait_until(share, LATER_MS + 60_000)
    assert share.revive() == ReviveCounts(copies=2)
    assert len(copies(root)) == 4


def test_an_ack_between_look_and_revive_wins(
    share: PopGroup, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = pop(share, (0, 0), 2)
    wait_until(share, LATER_MS)
    read = revive._read

    def acknowledge_then_read(*given: Any) -> Any:
        found = read(*given)
        assert share.run(lambda state: state.ack(point.key, [1])) == 1
        return found

    monkeypatch.setattr(revive, "_read", acknowledge_then_read)
    assert share.revive() == ReviveCounts(copies=1)
    assert [m.body.rstrip(b".") for m in copies(root)] == [b"message 0 of T"]


def test_bits_and_positions() -> None:
    assert positions_of(0b1011).tolist() == [0, 1, 3]
    assert positions_of(0).tolist() == []
    assert bits_of(np.array([0, 1, 3])) == 0b1011
    assert bits_of(positions_of(1 << 100_000)) == 1 << 100_000


def test_due_messages_are_those_of_the_oldest_check_points(share: PopGroup) -> None:
    first = pop(share, (0, 0), 3, invisible_ms=500)
    second = pop(share, (0, 1), 3, invisible_ms=400)
    share.run(lambda state: state.ack(second.key, [1]))
    found = share.run(lambda state: first_due(state, NOW_MS + 500, 4))
    assert [(each.key, each.offsets.tolist()) for each in found] == [
        (second.key, [0, 2]), (first.key, [0, 1])
    ]  # fmt: skip
    assert [len(each.offsets) for each in share.run(lambda state: first_due(state, NOW_MS + 400))] == [2]


def test_another_writer_of_the_store_makes_it_wait(share: PopGroup, root: Path) -> None:
    pop(share, (0, 0), 1)
    wait_until(share, LATER_MS)
    with write_session(str(root), CommitOptions()) as session:
        assert share.revive() == ReviveCounts()
        assert revive_due(share.name, share.log, session, LATER_MS) == ReviveCounts(copies=1)
    pop(share, (0, 0), 1)
    wait_until(share, LATER_MS + 70_000)  # late: it waits a moment for the other writer
    with ThreadPoolExecutor(1) as pool, write_session(str(root), CommitOptions()):
        late = pool.submit(share.revive)
        time.sleep(0.05)
    assert late.result() == ReviveCounts(copies=1)
    assert bodies(root, RETRY).total() == 2
    assert MessageStore.open(str(root)).queue(RETRY, 0).max_offset == 2


_PLACES = ((20, 36), (56, 64), (64, 72))  # queue offset, physical offset; store time; store host


def without_places(unit: bytes) -> bytes:
    masked = bytearray(unit)
    for start, stop in _PLACES:
        masked[start:stop] = bytes(stop - start)
    return bytes(masked)


def test_revives_the_bytes_that_a_broker_revived(copy_of: Golden) -> None:
    """What a real broker revived is in flight again, with the same pop times, and revived here."""
    root = copy_of("pop-5.5.0")
    topic = "%RETRY%CG_pop_PopWork"
    before = messages_of(root)
    by_broker = {m.properties["UNIQ_KEY"]: m for m in before if m.topic == topic}
    originals = [m for m in before if m.topic == "PopWork" and m.properties["UNIQ_KEY"] in by_broker]
    store, now_ms = MessageStore.open(str(root)), max(m.store_timestamp for m in before) + 1
    share = PopGroup.open(store, "CG_pop", "PopWork", ShareOptions(clock_ms=lambda: now_ms))

    def hand_out(state: PopState) -> None:
        for queue_id in range(4):
            state.set_offset(0, queue_id, 0)  # forgets what was taken over
        for each in sorted(originals, key=lambda m: m.queue_offset):
            popped = int(by_broker[each.properties["UNIQ_KEY"]].properties["1ST_POP_TIME"])
            offset = each.queue_offset
            state.hand_out(0, each.queue_id, [offset], offset + 1, popped, 1)

    share.run(hand_out)
    assert share.revive() == ReviveCounts(copies=24)
    ours = [m for m in messages_of(root)[len(before) :] if m.topic == topic]
    assert [m.queue_offset for m in ours] == list(range(24, 48))
    assert {m.properties["UNIQ_KEY"]: without_places(oracle.encode_message(m)) for m in ours} == {
        key: without_places(oracle.encode_message(m)) for key, m in by_broker.items()
    }
    share.close()


def test_a_damaged_queue_waits_and_the_others_are_revived(
    share: PopGroup, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pop(share, (0, 0), 3)
    pop(share, (0, 1), 2)
    (root / "consumequeue" / "T" / "0" / ("0" * 20)).write_bytes(b"\xff" * 400)
    wait_until(share, LATER_MS)
    assert share.revive() == ReviveCounts(copies=2, postponed=3)
    assert "3 messages of T-0 cannot be stored again for now" in caplog.text
    assert in_flight(share) == 3
    assert share.revive() == ReviveCounts()
