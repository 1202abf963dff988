"""Offset tools: each previews exactly what it then does, is refused beside a broker, and moves running
members along.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import (
    CONSUME_FROM_WHERE,
    ConsumeFromWhere,
    MessageQueue,
    consume_from_where,
    consume_timestamp_ms,
    sort_queues,
    start_offset,
)
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.group.member import Membership, join
from rmq_spark.consume.reset import (
    RESET_COLUMNS,
    GroupPlace,
    OffsetPlan,
    copy_offsets,
    group_place,
    reset_by_time,
    reset_to,
    reset_to_earliest,
    reset_to_latest,
)
from store_format import MessageStore
from store_format.display.columns import schema_of
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreInUseError
from store_format.metadata.group_offsets import read_group_offsets
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.ownership import read_events
from tests.support.writes import held

GROUP = "CG_some"


@pytest.fixture
def store(copy_of: Golden) -> MessageStore:
    return MessageStore.open(str(copy_of("basic-5.5.0")))


@pytest.fixture
def place(store: MessageStore) -> GroupPlace:
    return group_place(GROUP, [store])


def _orders(store: MessageStore, *offsets: int) -> dict[MessageQueue, int]:
    return {
        MessageQueue("Orders", store.broker_name, queue_id): offset for queue_id, offset in enumerate(offsets)
    }


def _committed(store: MessageStore) -> dict[MessageQueue, int]:
    table = goldens.expected("basic-5.5.0")["consumerOffset"]["offsetTable"][f"Orders@{GROUP}"]
    return _orders(store, *(table[str(queue_id)] for queue_id in range(len(table))))


def _applied(plan: OffsetPlan) -> dict[MessageQueue, int]:
    """Applies it, after looking that the preview changed nothing and says what comes."""
    before = plan.place.offsets.read()
    rows = plan.table().to_pylist()
    assert plan.table().schema == schema_of(RESET_COLUMNS)
    assert plan.place.offsets.read() == before
    plan.apply()
    after = plan.place.offsets.read()
    shown = {MessageQueue(row["topic"], row["brokerName"], row["queueId"]): row for row in rows}
    assert {queue: row["targetOffset"] for queue, row in shown.items()} == {
        queue: after[queue] for queue in shown
    }
    assert {queue: row["committedOffset"] for queue, row in shown.items()} == {
        queue: before.get(queue) for queue in shown
    }
    for queue, row in shown.items():
        assert row["change"] == (None if queue not in before else after[queue] - before[queue])
    assert {queue: offset for queue, offset in after.items() if queue not in shown} == {
        q: n for q, n in before.items() if q not in shown
    }
    return {queue: offset for queue, offset in after.items() if queue in shown}


def test_to_earliest_and_latest(store: MessageStore, place: GroupPlace) -> None:
    queues = {
        MessageQueue(q.topic, store.broker_name, q.queue_id): q
        for q in store.queues(lambda topic: topic == "Orders")
    }
    latest = _applied(reset_to_latest(place, [store]))
    assert latest == {name: queue.max_offset for name, queue in queues.items()}
    earliest = _applied(reset_to_earliest(place, [store]))
    assert earliest == {name: queue.min_offset for name, queue in queues.items()}
    assert read_state(place.directory or "").reset == 2


def test_by_time(store: MessageStore, place: GroupPlace) -> None:
    queue = store.queue("Orders", 0)
    [moment] = next(iter(queue.read(20, 21, columns=["storeTimestampMs"])))["storeTimestampMs"].to_pylist()
    found = _applied(reset_by_time(place, [store], moment))
    assert found == {q: store.queue("Orders", q.queue_id).offset_at(moment) for q in found}
    assert 0 < found[MessageQueue("Orders", store.broker_name, 0)] <= 20
    assert set(_applied(reset_by_time(place, [store], moment + 10**10)).values()) == {
        store.queue("Orders", q.queue_id).max_offset for q in found
    }


def test_to_given_offsets(store: MessageStore, place: GroupPlace) -> None:
    assert _applied(reset_to(place, [store], _orders(store, 3, 4))) == _orders(store, 3, 4)
    later = {**_committed(store), **_orders(store, 3, 4)}
    assert place.offsets.read() == later
    for targets, said in [
        (
            {MessageQueue("Orders", store.broker_name, 99): 1},
            f"no store has the queue Orders-99 of {store.broker_name}; the queues",
        ),
        (
            {("Orders", store.broker_name, 99): 1},
            f"no store has the queue Orders-99 of {store.broker_name}; the queues",
        ),
        ({("", 1): 1}, "expected a queue as (topic, broker name, queue id), found ('', 1)"),
        ({MessageQueue("Oders", store.broker_name, 0): 1}, "the queues of its topic are none"),
        (_orders(store, 10**6), f"Orders-0 of {store.broker_name}: expected an offset from 0 to "),
        (_orders(store, -1), "found -1"),
    ]:
        with pytest.raises(OptionError) as caught:
            reset_to(place, [store], targets)  # type: ignore[arg-type] # as plain tuples
        assert said in str(caught.value)
    assert place.offsets.read() == later


def test_copying_between_groups(store: MessageStore, place: GroupPlace) -> None:
    new = group_place("new", [store])
    assert _applied(copy_offsets(place, new, [store])) == _committed(store)
    tags = group_place("CG_tags", [store])
    before = tags.offsets.read()
    plan = copy_offsets(place, tags, [store], ["Orders"])
    assert [row["change"] for row in plan.table().to_pylist()] == [
        _committed(store)[q] - before[q] for q in sort_queues(before)
    ]
    _applied(plan)
    with pytest.raises(OptionError) as caught:
        copy_offsets(place, new, [store], ["Audit"])
    assert str(caught.value) == "group CG_some: expected offsets of Audit to copy, found none"


def test_topics_of_a_group_without_offsets(store: MessageStore) -> None:
    new = group_place("new", [store])
    with pytest.raises(OptionError) as caught:
        reset_to_latest(new, [store])
    assert str(caught.value) == "group new: expected committed offsets, found none; name the topics"
    with pytest.raises(OptionError) as caught:
        reset_to_latest(new, [store], ["Nothing"])
    assert str(caught.value) == "no store has a topic 'Nothing'"
    plan = reset_to_latest(new, [store], ["Orders"])
    assert plan.table()["committedOffset"].null_count == plan.table().num_rows > 0
    assert plan.table()["change"].null_count == plan.table().num_rows
    _applied(plan)


def test_refused_beside_a_broker(
    store: MessageStore, place: GroupPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_spark.consume.offset_store._WAIT_SECONDS", 0.1)
    before = {path: path.read_bytes() for path in Path(store.path, "config").iterdir() if path.is_file()}
    plan = reset_to_latest(place, [store])
    with held(Path(store.path)) as broker:
        with pytest.raises(StoreInUseError) as caught:
            plan.apply()
        assert f"process {broker}" in str(caught.value)
    assert {path: path.read_bytes() for path in before} == before
    assert not os.path.exists(place.directory or "")
    plan.apply()
    with open(f"{store.path}/lock", "r+b") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)  # and the lock is free again


def test_local_offsets_may_be_moved_beside_a_broker(store: MessageStore, tmp_path: Path) -> None:
    local = group_place(GROUP, [store], kind="local", offset_store_path=str(tmp_path / "offsets"))
    before = read_group_offsets(store.opened, GROUP)
    _applied(reset_to_latest(local, [store]))
    assert read_group_offsets(store.opened, GROUP) == before
    assert local.directory == str(tmp_path / "offsets" / GROUP / "members")


def test_without_a_directory_only_offsets_are_moved(store: MessageStore) -> None:
    nowhere = group_place(GROUP, [store], kind="none")
    assert nowhere.directory is None
    assert reset_to_latest(nowhere, [store]).apply() == 0
    assert read_group_offsets(store.opened, GROUP) == {
        (q.topic, q.queue_id): n for q, n in _committed(store).items()
    }
    with pytest.raises(OptionError):
        reset_to(nowhere, [store], {}).apply()


def test_members_that_are_running_jump_along(store: MessageStore, place: GroupPlace) -> None:
    queues = sort_queues(_committed(store))
    member = join(
        place.directory or "", Membership(GROUP, ("a",), strategy("AVG"), "Orders *"), place.offsets
    )
    started = member.settle(queues, {}, begin=lambda queue: 0)
    assert started.starts == _committed(store)
    further = {queue: offset + 5 for queue, offset in _committed(store).items()}
    member.settle(queues, further, begin=lambda queue: 0)
    assert place.offsets.read() == further
    plan = reset_to(place, [store], _orders(store, 0, 1))
    assert plan.apply(clock_ms=lambda: 1) == 1
    jumped = member.settle(
        queues, {queue: offset + 1 for queue, offset in further.items()}, begin=lambda queue: 0
    )
    assert (jumped.starts, jumped.reset) == (_orders(store, 0, 1), 1)
    expected = {queue: offset + 1 for queue, offset in further.items()} | _orders(store, 0, 1)
    member.leave({})
    assert place.offsets.read() == expected
    assert [
        (e.event, e.queue, e.position, e.at) for e in read_events(place.directory or "") if e.event == "reset"
    ] == [
        ("reset", 0, 0, 1),
        ("reset", 1, 1, 1),
    ]


def test_queues_that_have_no_message_yet(store: MessageStore) -> None:
    path = Path(store.path, "config", "topics.json")
    value = json.loads(path.read_bytes())
    value["topicConfigTable"]["Fresh"] = dict(
        value["topicConfigTable"]["Orders"], topicName="Fresh", readQueueNums=2
    )
    value["topicConfigTable"]["Odd"] = dict(
        value["topicConfigTable"]["Orders"], topicName="Odd", readQueueNums=2**31 - 1
    )
    path.write_text(json.dumps(value))
    rows = reset_to_latest(group_place("g", [store]), [store], ["Fresh"]).table().to_pylist()
    assert [(row["queueId"], row["targetOffset"], row["minOffset"], row["maxOffset"]) for row in rows] == [
        (0, 0, 0, 0),
        (1, 0, 0, 0),
    ]
    with pytest.raises(OptionError):
        # no topic has two thousand million queues
        reset_to_latest(group_place("g", [store]), [store], ["Odd"])


# ---- consumeFromWhere --------------------------------------------------------------------------------------


LAST, FIRST, TIMESTAMP = ConsumeFromWhere.LAST, ConsumeFromWhere.FIRST, ConsumeFromWhere.TIMESTAMP


def _start(
    committed: int | None, where: ConsumeFromWhere, *, low: int = 0, retry: bool = False, young: bool = False
) -> tuple[int, bool]:
    """On a queue that ends at 90 and has 42 as the offset of the time asked for."""
    found = start_offset(
        committed, where=where, min_offset=low, max_offset=90, offset_at=lambda: 42, is_retry=retry,
        young_from_zero=young,
    )  # fmt: skip
    return found.offset, found.is_committed


@pytest.mark.parametrize(
    ("where", "normal", "retry"),
    [(LAST, 90, 0), (FIRST, 0, 0), (TIMESTAMP, 42, 90)],
)
def test_the_table(where: ConsumeFromWhere, normal: int, retry: int) -> None:
    for unknown in (None, -1):
        assert _start(unknown, where) == (normal, False)
        assert _start(unknown, where, retry=True) == (retry, False)
    for stored in (0, 7, 90, 1000):  # also one behind the end: whoever reads tells the loss
        assert _start(stored, where) == (stored, True)
        assert _start(stored, where, retry=True) == (stored, True)
    for failed in (-2, -3):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            _start(failed, where)
        assert f"found {failed};" in str(caught.value)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_a_computed_start_is_moved_up_to_the_minimum_and_a_committed_one_is_not(
    where: ConsumeFromWhere,
) -> None:
    assert _start(None, where, low=60) == (60 if where is not LAST else 90, False)
    assert _start(None, where, low=60, retry=True) == (90 if where is TIMESTAMP else 60, False)
    assert _start(5, where, low=60) == (5, True)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
@pytest.mark.parametrize("retry", [False, True])
def test_a_young_queue_is_read_from_its_beginning(where: ConsumeFromWhere, retry: bool) -> None:
    assert _start(None, where, retry=retry, young=True) == (0, False)
    # not young any more
    assert _start(None, where, low=60, retry=retry, young=True) == _start(None, where, low=60, retry=retry)
    assert _start(33, where, retry=retry, young=True) == (33, True)


@given(
    st.integers(-1, 200),
    st.sampled_from(list(ConsumeFromWhere)),
    st.integers(0, 50),
    st.integers(0, 50),
    st.booleans(),
    st.booleans(),
)
def test_a_computed_start_lies_in_the_queue(
    committed: int, where: ConsumeFromWhere, low: int, length: int, retry: bool, young: bool
) -> None:
    found = start_offset(
        committed, where=where, min_offset=low, max_offset=low + length,
        offset_at=lambda: low + length // 2, is_retry=retry, young_from_zero=young,
    )  # fmt: skip
    assert found.offset == committed if committed >= 0 else low <= found.offset <= low + length
    assert found.is_committed == (committed >= 0)


def test_a_time_is_looked_up_only_where_it_decides() -> None:
    def never() -> int:
        raise AssertionError

    for committed, where, retry in [
        (3, TIMESTAMP, False),
        (None, LAST, False),
        (None, FIRST, False),
        (None, TIMESTAMP, True),
    ]:
        start_offset(committed, where=where, min_offset=0, max_offset=9, offset_at=never, is_retry=retry)


def test_the_names_of_where() -> None:
    assert consume_from_where(" consume_from_first_offset ") is FIRST
    assert consume_from_where("CONSUME_FROM_TIMESTAMP") is TIMESTAMP
    for deprecated in (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    ):
        assert CONSUME_FROM_WHERE[deprecated] is LAST
    with pytest.raises(OptionError) as caught:
        consume_from_where("CONSUME_FROM_FIRST")
    assert "did you mean CONSUME_FROM_FIRST_OFFSET?" in str(caught.value)


@pytest.fixture
def _in_shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_shanghai")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20230101080000", 1672531200000),
        ("2023010108000", 1672531200000),  # the last field has one digit
        ("20230101080000 and more", 1672531200000),
        ("20221301080000", 1672531200000),  # month 13
        ("20230100080000", 1672531200000 - 86_400_000),
        ("20230101076000", 1672531200000),  # minute 60
    ],
)
def test_dates_of_a_lenient_parser(text: str, expected: int) -> None:
    assert consume_timestamp_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["202301010800", "", "2023-01-01 08:00", "x20230101080000", "00000101000000", "٢٠٢٣٠١٠١٠٨٠٠٠٠"]
)
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        consume_timestamp_ms(text)
    assert (
        str(caught.value)
        == f"consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,but received {text}"
    )
