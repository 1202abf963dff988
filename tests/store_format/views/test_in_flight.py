"""The view `inFlight` and the lag of groups that pop: by our in-flight log, and by a broker's records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from store_format.names import pop_retry_topic
from store_format.opened.store import Opened
from store_format.pop.log import InFlightLog, in_flight_directory
from store_format.pop.state import PopState
from store_format.store import MessageStore
from store_format.views.retention import unread_before
from tests.support.fixtures import Golden
from tests.support.popped import GROUP, TOPIC, append_numbered, popped_and_open, popped_store
from tests.support.stored_rows import rows_in

NOW = 1_800_000_000_000
_KNOWN = ("lagMessages", "readyMessages", "inFlightMessages")


def _rows(root: Path, view: str = "lag") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(view, now_ms=NOW).to_pylist()
    return [row for row in rows if row["group"] == GROUP] if view == "lag" else rows


def _at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _log(root: Path) -> InFlightLog:
    return InFlightLog(in_flight_directory(Opened(str(root)), GROUP, TOPIC))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with 10 messages. 0 to 5 were popped; 1 and 2 are acknowledged, and 4 was changed later."""
    root = popped_store(tmp_path / "store", 10)

    def pop(state: PopState) -> None:
        state.open()
        state.set_offset(0, 0, 0)
        first = state.hand_out(0, 0, range(3), 3, NOW - 9000, 10_000, "one")
        state.ack(first.key, [1, 2])
        second = state.hand_out(0, 0, range(3, 6), 6, NOW - 5000, 30_000, "two")
        state.change_invisible(second.key, 1, NOW - 1000, 60_000)

    _log(root).run(pop)
    return root


def test_what_our_log_has_in_flight(root: Path) -> None:
    rows = _rows(root, "inFlight")
    names = ("topic", "queueId", "queueOffset", "msgId", "deliveryAttempt", "owner", "source")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (TOPIC, 0, 0, "0", 1, "one", "rmqlog"),
        (TOPIC, 0, 3, "3", 1, "two", "rmqlog"),
        (TOPIC, 0, 4, "4", 1, "two", "rmqlog"),
        (TOPIC, 0, 5, "5", 1, "two", "rmqlog"),
    ]
    waits = (1000, 25_000, 59_000, 25_000)
    assert [row["visibleTimestamp"] for row in rows] == [_at(NOW + wait) for wait in waits]
    assert [row["popTimestamp"] for row in rows] == [_at(NOW - age) for age in (9000, 5000, 1000, 5000)]


def test_the_lag_of_a_group_that_pops_here(root: Path) -> None:
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [8, 4, 4]
    assert (row["committedOffset"], row["lostMessages"]) == (0, 0)
    assert row["oldestPopTimestamp"] == _at(NOW - 9000)
    rows = rows_in(root, "queueOffset", "storeTimestamp", topic=TOPIC)
    sizes = {each["queueOffset"]: each for each in rows}
    assert row["nextTimestamp"] == sizes[0]["storeTimestamp"]
    [whole] = MessageStore.open(str(root)).view("queues").to_pylist()
    assert row["lagBytes"] == whole["bytes"] * 8 // 10
    _log(root).run(lambda state: [state.ack(point.key) for point in list(state.check_points())] and None)
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [4, 4, 0]
    assert row["oldestPopTimestamp"] is None
    assert row["nextTimestamp"] == sizes[6]["storeTimestamp"]


def test_a_deletion_would_lose_what_is_in_flight(root: Path) -> None:
    store = MessageStore.open(str(root))
    [rows] = store.queues(TOPIC.__eq__)[0].read(columns=["physicalOffset"])
    places = rows["physicalOffset"].to_pylist()
    # 1 and 2 are acknowledged; 0, 3, 4 and 5 are in flight, and the rest is ready
    for before, lost in ((1, 1), (3, 1), (5, 3), (6, 4), (8, 6)):
        assert [row[-1] for row in unread_before(store, places[before], NOW)] == [lost]


def test_a_retry_topic_of_pop_is_a_row_of_its_group(root: Path) -> None:
    retry = pop_retry_topic(GROUP, TOPIC)
    append_numbered(root, 3, first=90, topic=retry)

    def pop(state: PopState) -> None:
        state.set_offset(1, 0, 0)
        state.hand_out(1, 0, range(2), 2, NOW, 10_000, "one")

    _log(root).run(pop)
    row, other = _rows(root)
    assert (row["topic"], other["topic"]) == (retry, TOPIC)
    assert [row[name] for name in _KNOWN] == [3, 1, 2]
    assert [each["queueOffset"] for each in _rows(root, "inFlight") if each["topic"] == retry] == [0, 1]


def test_the_batches_of_a_group_that_pops_in_order(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "store", 10)

    def pop(state: PopState) -> None:
        state.open()
        state.order.switch(True)
        state.set_offset(0, 0, 0)
        for _ in range(2):
            info = state.order.hand_out(0, range(4), pop_time=NOW, invisible_ms=10_000)
        state.order.acknowledge(0, 1, info.pop_time)

    _log(root).run(pop)
    assert [(each["queueOffset"], each["deliveryAttempt"]) for each in _rows(root, "inFlight")] == [
        (0, 2), (2, 2), (3, 2),
    ]  # fmt: skip
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [9, 6, 3]


def test_a_log_that_is_damaged_makes_the_lag_unknown(root: Path) -> None:
    path = Path(in_flight_directory(Opened(str(root)), GROUP, TOPIC)) / "in-flight.log"
    path.write_bytes(b"not a log")
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [None, 10, None]
    assert (row["lagBytes"], row["lagMs"], row["lostMessages"]) == (None, None, None)
    assert _rows(root, "inFlight") == []


def test_after_a_hand_over_the_log_counts_no_more(root: Path) -> None:
    _log(root).run(lambda state: state.close())
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [10, 10, 0]
    assert _rows(root, "inFlight") == []


def test_what_a_broker_left_in_flight(golden: Golden) -> None:
    rows = _rows(golden("pop-5.5.0"), "inFlight")
    found = {(row["topic"], row["queueId"], row["queueOffset"]): row["visibleTimestamp"] for row in rows}
    assert found == {place: _at(ms) for place, ms in popped_and_open().items()}
    told = {(row["group"], row["deliveryAttempt"], row["owner"], row["source"]) for row in rows}
    assert told == {("CG_pop", 1, None, "broker")}


def test_state_of_pop_in_rocksdb_is_unknown(copy_of: Golden) -> None:
    root = copy_of("pop-5.5.0")
    kv = root / "kvStore"
    kv.mkdir()
    (kv / "CURRENT").write_text("MANIFEST-000001\n")
    rows = [row for row in MessageStore.open(str(root)).view("lag").to_pylist() if row["group"] == "CG_pop"]
    assert {row["readyMessages"] for row in rows} == {24, 12, 10, 7}
    assert {row[name] for row in rows for name in ("lagMessages", "inFlightMessages", "lagMs")} == {None}
    assert _rows(root, "inFlight") == []


def test_a_group_that_is_set_to_pop_has_nothing_in_flight(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "store", 10)
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [10, None, None]  # no file says that it pops, nor what is pulled
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP"}
    text = json.dumps({"messageRequestModeMap": {TOPIC: {GROUP: mode}}})
    (root / "config" / "messageRequestMode.json").write_text(text)
    [row] = _rows(root)
    assert [row[name] for name in _KNOWN] == [10, 10, 0]
