"""Between a broker's pop and ours: what is in flight is the same set on both sides, in both directions."""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Iterable
from dataclasses import replace

import pytest

from rmq_spark.broker.pop.hand_over import (
    HandedOver,
    PopRecord,
    hand_over,
    pop_record_messages,
    revive_topic_of,
    take_over,
)
from rmq_spark.consume.group.offset_mirror import PopOffsetMirror
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.commit.steps import write_topics
from store_format.diagnose import diagnose
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from store_format.metadata.read import BrokerConf, read_subscription_groups, read_topics
from store_format.names import REVIVE_GROUP, REVIVE_PREFIX, TIMER_TOPIC
from store_format.opened.store import Opened
from store_format.pop.broker_in_flight import (
    BrokerCheckPoint,
    BrokerInFlight,
    parse_record,
    read_broker_in_flight,
)
from store_format.pop.log import InFlightLog, PopName
from store_format.pop.state import PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice
from tests.support import goldens
from tests.support.staged import append, make_store, numbered

NOW_MS = (
    1_795_244_370_000  # after the golden store's broker has stopped; two of its check points are due then
)
Places = dict[tuple[int, int, int], int]


def _places(found: Iterable[BrokerInFlight]) -> Places:
    return {
        (each.flag, each.queue_id, offset): each.visible_at
        for each in found
        for offset in each.record.unacked
    }


def _in_state(state: PopState) -> Places:
    return {
        (each.flag, each.queue_id, offset): each.visible_at
        for each in state.check_points()
        for offset in each.unacked()
    }


def _broker_has(root: str, name: PopName) -> Places:
    found = read_broker_in_flight(Store.open(root))
    return _places(each for each in found if (each.group, each.topic) == (name.group, name.topic))


def _opened(name: PopName, offsets: dict[tuple[int, int], int]) -> InFlightLog:
    log = InFlightLog(name.directory)

    def change(state: PopState) -> None:
        state.open()
        for (flag, queue_id), offset in offsets.items():
            state.set_offset(flag, queue_id, offset)
            state.note_mirrored({(flag, queue_id): offset})

    log.run(change)
    return log


def _closed(
    name: PopName, log: InFlightLog, now_ms: int, conf: BrokerConf | None = None
) -> HandedOver | None:
    options = CommitOptions(sync=False, conf=conf, clock=lambda: now_ms)
    with write_session(name.opened.path, options) as session:
        mirror = PopOffsetMirror(name, log, lambda: now_ms, sync=False)
        return hand_over(name, log, mirror, session, now_ms)


@pytest.fixture
def golden(tmp_path: pathlib.Path) -> PopName:
    return PopName(Opened(str(goldens.unpack("pop-5.5.0", tmp_path))), "CG_pop", "PopWork")


@pytest.fixture
def own(tmp_path: pathlib.Path) -> PopName:
    append(make_store(tmp_path / "s"), numbered("Orders", 0, 400))
    return PopName(Opened(str(tmp_path / "s")), "billing", "Orders")


_GOLDEN_OFFSETS = {(0, 0): 18, (0, 1): 20, (0, 2): 20, (0, 3): 23, (1, 0): 0}


def test_a_broker_s_check_points_go_there_and_back(golden: PopName) -> None:
    before = _broker_has(golden.opened.path, golden)
    log = _opened(golden, _GOLDEN_OFFSETS)
    assert take_over(golden, log, Store.open(golden.opened.path)) == 12
    assert log.run(_in_state) == before
    assert log.run(lambda state: state.queues[0, 1].lowest) == 5
    # some are acknowledged, a changed time is a check point of ours, one is handed out here
    points = {each.queue_id: each.key for each in log.run(lambda state: list(state.check_points()))}

    def work(state: PopState) -> None:
        assert state.ack(points[3], [2]) == 1
        assert state.ack(points[0]) == 1
        changed = state.change_invisible(points[2], 4, NOW_MS, 90_000)
        assert changed is not None
        state.hand_out(0, 1, [20, 22, 23], 24, NOW_MS, 60_000)

    log.run(work)
    wanted = log.run(_in_state)
    assert _closed(golden, log, NOW_MS) == HandedOver(len(wanted), 2, 3)
    assert _broker_has(golden.opened.path, golden) == wanted
    offsets = read_group_offsets(golden.opened, "CG_pop")
    assert [offsets["PopWork", queue_id] for queue_id in range(4)] == [18, 24, 20, 23]
    assert log.run(lambda state: state.is_closed)
    # and the next consumer finds the same
    again = _opened(golden, _GOLDEN_OFFSETS | {(0, 1): 24})
    take_over(golden, again, Store.open(golden.opened.path))
    assert again.run(_in_state) == wanted
    assert not diagnose(golden.opened.path).of("damage", "warning")


def test_hand_over_writes_what_a_broker_expects(own: PopName) -> None:
    log = _opened(own, {(0, queue_id): 0 for queue_id in range(4)})

    def work(state: PopState) -> None:
        state.hand_out(0, 0, range(70), 70, NOW_MS, 60_000)  # three check points of a broker
        state.ack((0, 0, 0, NOW_MS), [3])
        state.hand_out(0, 1, [0, 2, 5], 9, NOW_MS - 60_000, 30_000)  # their time is past

    log.run(work)
    wanted = log.run(_in_state)
    assert _closed(own, log, NOW_MS) == HandedOver(72, 4, 0)
    found = read_broker_in_flight(Store.open(own.opened.path))
    assert _places(found) == wanted
    assert sorted(len(each.unacked) for each in found) == [3, 5, 32, 32]
    assert {each.revive_queue_id for each in found} == {0}  # nobody knows how many a broker reads
    assert {each.record.broker_name for each in found} == {"broker-a"}
    topics = read_topics(own.opened)
    assert topics is not None
    revive = f"{REVIVE_PREFIX}DefaultCluster"
    assert (topics[revive].write_queue_nums, topics[revive].perm) == (8, 6)
    assert topics[TIMER_TOPIC].write_queue_nums == 1
    # past ones are delivered already, the others wait in the timer
    store = Store.open(own.opened.path)
    counts = {
        queue.key: queue.max_offset for queue in store.queues(lambda topic: topic.startswith("rmq_sys"))
    }
    assert counts == {(revive, 0): 1, (TIMER_TOPIC, 0): 3}
    groups = read_subscription_groups(own.opened)
    assert groups is not None
    assert groups["billing"].retry_max_times == 16
    offsets = read_group_offsets(own.opened, "billing")
    assert offsets == {("Orders", 0): 70, ("Orders", 1): 9, ("Orders", 2): 0, ("Orders", 3): 0}
    assert not diagnose(own.opened.path).of("damage", "warning")


@pytest.mark.parametrize(
    ("conf", "offsets", "queues"),
    [({}, {}, [0]), ({}, {0: 4, 2: 9}, [0, 2]), ({"reviveQueueNum": "3"}, {0: 4}, [0, 1, 2])],
)
def test_only_queues_that_the_broker_reads_get_check_points(
    own: PopName, conf: dict[str, str], offsets: dict[int, int], queues: list[int]
) -> None:
    revive = f"{REVIVE_PREFIX}DefaultCluster"
    write_topics(own.opened, {revive: 8}, NOW_MS, FileWrites(sync=False))  # also by an earlier hand-over
    read = {(revive, queue_id): offset for queue_id, offset in offsets.items()}
    write_group_offsets(own.opened, REVIVE_GROUP, read, timestamp=NOW_MS)
    log = _opened(own, {(0, 0): 0})
    log.run(lambda state: [state.hand_out(0, 0, [n], n + 1, NOW_MS, 60_000) for n in range(5)])
    _closed(own, log, NOW_MS, BrokerConf.of(conf, "broker.conf"))
    found = [each.revive_queue_id for each in read_broker_in_flight(Store.open(own.opened.path))]
    assert found == sorted(queues[n % len(queues)] for n in range(5))


def test_retry_topics_of_both_versions_go_there_and_back(own: PopName) -> None:
    for topic in ("%RETRY%billing_Orders", "%RETRY%billing+Orders"):
        append(pathlib.Path(own.opened.path), [replace(each, queue_id=0) for each in numbered(topic, 0, 8)])
    log = _opened(own, {(1, 0): 0, (2, 0): 5})

    def work(state: PopState) -> None:
        state.hand_out(1, 0, [0, 1], 2, NOW_MS, 60_000)
        state.hand_out(2, 0, [5, 7], 8, NOW_MS, 60_000)

    log.run(work)
    wanted = log.run(_in_state)
    _closed(own, log, NOW_MS)
    found = read_broker_in_flight(Store.open(own.opened.path))
    names = {each.flag: (each.record.topic, each.topic, each.unacked) for each in found}
    assert names == {
        1: ("%RETRY%billing_Orders", "Orders", (0, 1)),
        2: ("%RETRY%billing+Orders", "Orders", (5, 7)),
    }
    log = _opened(own, {(1, 0): 2})  # the offset of the other queue is taken from the file
    take_over(own, log, Store.open(own.opened.path))
    assert log.run(_in_state) == wanted
    assert log.run(lambda state: state.queues[2, 0].next_offset) == 8


def test_nothing_in_flight_leaves_only_offsets(own: PopName) -> None:
    log = _opened(own, {(0, 0): 0})

    def work(state: PopState) -> None:
        state.hand_out(0, 0, range(10), 10, NOW_MS, 60_000)
        state.ack((0, 0, 0, NOW_MS))

    log.run(work)
    topics = read_topics(own.opened)
    assert _closed(own, log, NOW_MS) == HandedOver(0, 0, 0)
    assert read_topics(own.opened) == topics
    assert read_group_offsets(own.opened, "billing") == {("Orders", 0): 10}


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"timerWheelEnable": "false"}, "set timerWheelEnable=true"),
        ({"timerRocksDBEnable": "true"}, "timerRocksDBEnable"),
        ({"popConsumerKVServiceEnable": "true"}, "popConsumerKVServiceEnable=false"),
    ],
)
def test_a_broker_that_would_not_revive_gets_the_lowest_offsets(
    own: PopName, conf: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = _opened(own, {(0, 0): 4})
    log.run(lambda state: state.hand_out(0, 0, range(4, 10), 10, NOW_MS, 60_000))
    with caplog.at_level(logging.WARNING):
        assert _closed(own, log, NOW_MS, BrokerConf.of(conf, "broker.conf")) is None
    assert message in caplog.text
    assert read_group_offsets(own.opened, "billing") == {("Orders", 0): 4}
    assert not log.run(lambda state: state.is_closed)
    assert _broker_has(own.opened.path, own) == {}


def test_an_offset_that_somebody_has_set_stays(own: PopName, caplog: pytest.LogCaptureFixture) -> None:
    log = _opened(own, {(0, 0): 0, (0, 1): 0})
    log.run(lambda state: state.skip(0, 0, 10))
    log.run(lambda state: state.skip(0, 1, 10))
    write_group_offsets(own.opened, "billing", {("Orders", 0): 50}, timestamp=NOW_MS)
    with caplog.at_level(logging.WARNING):
        _closed(own, log, NOW_MS)
    assert read_group_offsets(own.opened, "billing") == {("Orders", 0): 50, ("Orders", 1): 10}
    assert "was moved by another program" in caplog.text


def test_the_cluster_is_that_of_the_broker_s_own_topics(golden: PopName, own: PopName) -> None:
    assert revive_topic_of(golden.opened.path, BrokerConf()) == "rmq_sys_REVIVE_LOG_GoldenCluster"
    assert revive_topic_of(own.opened.path, BrokerConf()) == "rmq_sys_REVIVE_LOG_DefaultCluster"
    given = BrokerConf.of({"brokerClusterName": "c2"}, "broker.conf")
    assert revive_topic_of(golden.opened.path, given) == "rmq_sys_REVIVE_LOG_c2"


def test_a_killed_consumer_s_log_and_the_records_come_together(golden: PopName) -> None:
    """The log has taken over; then a broker ran: it acknowledged, revived, and handed out more."""
    log = _opened(golden, _GOLDEN_OFFSETS)
    take_over(golden, log, Store.open(golden.opened.path))

    def lose(state: PopState) -> None:
        # as if the log had one check point that the records no longer have, and one with fewer acks
        for point in list(state.check_points()):
            if point.queue_id == 3:
                state.change_invisible(point.key, 2, point.pop_time, point.invisible_ms)

    log.run(lose)
    before = _broker_has(golden.opened.path, golden)
    take_over(golden, log, Store.open(golden.opened.path))
    assert log.run(_in_state) == before
    again = Store.open(golden.opened.path)
    assert take_over(golden, log, again) == 0
    assert log.run(_in_state) == before


def test_a_hand_over_that_was_broken_off_is_found(own: PopName) -> None:
    """Killed after the commit: the records are the broker's, and are not written twice."""
    log = _opened(own, {(0, 0): 0})
    log.run(lambda state: state.hand_out(0, 0, range(40), 40, NOW_MS, 60_000))
    wanted = log.run(_in_state)
    mirror = PopOffsetMirror(own, log, lambda: NOW_MS, sync=False)
    mirror.compare(mirror.read())
    files = [
        pathlib.Path(own.directory, "in-flight.log"),
        pathlib.Path(own.opened.path, "config/consumerOffset.json"),
    ]
    saved = [path.read_bytes() for path in files]
    _closed(own, log, NOW_MS)
    log.close()
    for path, data in zip(files, saved, strict=True):
        path.write_bytes(data)
    log = InFlightLog(own.directory)
    assert take_over(own, log, Store.open(own.opened.path)) == 40
    assert log.run(_in_state) == wanted
    assert {each.origin for each in log.run(lambda state: list(state.check_points()))} == {("broker-a", 0)}
    log.run(lambda state: state.ack((0, 0, 0, NOW_MS), [5, 6]))
    assert _closed(own, log, NOW_MS) == HandedOver(38, 0, 1)
    assert _broker_has(own.opened.path, own) == {
        key: at for key, at in wanted.items() if key[2] not in (5, 6)
    }


def test_acks_of_waiting_check_points_come_after_them(golden: PopName) -> None:
    """The broker was stopped for so long that all times have passed: its timer reads the slots in order."""
    from rmq_spark.services import run_once

    late = NOW_MS + 3_600_000
    log = _opened(golden, _GOLDEN_OFFSETS)
    take_over(golden, log, Store.open(golden.opened.path))
    points = [each.key for each in log.run(lambda state: list(state.check_points()))]
    for key in points:
        log.run(lambda state, key=key: state.ack(key))  # type: ignore[misc]
    assert _closed(golden, log, late) == HandedOver(0, 0, 5)
    assert _broker_has(golden.opened.path, golden) == {}
    # what a broker's timer delivers now, in the order of the revive queues
    conf = BrokerConf()
    while True:
        table = run_once(golden.opened.path, ["timer"], late + 5_000, broker_conf=conf, apply=True)
        if not table["done"].to_pylist()[0]:
            break
    store = Store.open(golden.opened.path)
    order: dict[tuple[int, int], list[str]] = {}
    for queue in store.queues(lambda topic: topic.startswith(REVIVE_PREFIX)):
        stored, _, _ = read_stored_slice(store.log, queue.piece())
        (tags,) = stored.properties("TAGS")
        for tag, body in zip(tags.to_pylist(), stored.messages.body.to_pylist(), strict=True):
            record = parse_record(tag, body, "")
            key = (0, record.queue_id, record.start, record.pop_time)
            if key in points:
                order.setdefault((queue.queue_id, record.pop_time), []).append(tag)
    assert len(order) == 5
    for tags_in_order in order.values():
        assert tags_in_order[0] == "ck"
        assert set(tags_in_order[1:]) <= {"ack", "bAck"}
    assert _broker_has(golden.opened.path, golden) == {}


def test_a_broker_without_pop_gets_the_lowest_offsets(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = PopName(Opened(str(goldens.unpack("basic-4.9.7", tmp_path))), "billing", "Orders")
    log = _opened(name, {(0, 0): 2})
    log.run(lambda state: state.hand_out(0, 0, [2, 3], 4, NOW_MS, 60_000))
    with caplog.at_level(logging.WARNING):
        assert _closed(name, log, NOW_MS) is None
    assert "brokers up to 4.9 have no pop" in caplog.text
    assert read_group_offsets(name.opened, "billing") == {("Orders", 0): 2}


def test_check_points_behind_the_end_of_their_queue_are_passed_over(
    own: PopName, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was created again, or the record is hostile: its offsets must not move the group."""
    point = BrokerCheckPoint("Orders", "billing", 1, 10**18, 2, NOW_MS, 60_000, "broker-a", diffs=(0, 1))
    good = replace(point, start=90)
    revive = f"{REVIVE_PREFIX}DefaultCluster"
    messages = pop_record_messages(
        [PopRecord.of(point, 0), PopRecord.of(good, 1), PopRecord.of(good, 1 << 20)],
        revive, now_ms=NOW_MS, precision_ms=1000, broker_host=(bytes(4), 1),
    )  # fmt: skip
    with write_session(own.opened.path, CommitOptions(sync=False, clock=lambda: NOW_MS)) as session:
        session.append(messages, new_topics={revive: 8, TIMER_TOPIC: 1})
    log = _opened(own, {})
    with caplog.at_level(logging.WARNING):
        assert take_over(own, log, Store.open(own.opened.path)) == 2
    assert "2 messages that were in flight at a broker are forgotten" in caplog.text
    assert "such as offset 1000000000000000000 of Orders-1" in caplog.text
    assert log.run(_in_state) == {(0, 1, 90): NOW_MS + 60_000, (0, 1, 91): NOW_MS + 60_000}
    assert log.run(lambda state: state.queues[0, 1].next_offset) == 90  # nothing is skipped
