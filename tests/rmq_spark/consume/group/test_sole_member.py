"""A query that shares its queues with nobody: where it begins, and when it records."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.member import Membership, SoleMember
from rmq_spark.consume.offset_store import LocalOffsets, OffsetStore, StoreOffsets
from store_format.files.polling import Clocks
from tests.support.ownership import begins, queues_by_client
from tests.support.writes import held

QUEUES = [MessageQueue("T", "b", queue_id) for queue_id in range(4)]


class Time:
    """In the test's hand."""

    now = 100.0


@pytest.fixture
def offsets(tmp_path: Path) -> LocalOffsets:
    return LocalOffsets(str(tmp_path / "g" / "offsets.json"))


def _alone(
    offsets: OffsetStore, *clients: str, shares: bool = True, persist_seconds: float = 5.0
) -> SoleMember:
    Time.now = 100.0
    spec = Membership("g", clients or ("a",), strategy("AVG"), "T *", persist_seconds=persist_seconds)
    return SoleMember(spec, offsets, shares=shares, clocks=Clocks(lambda: Time.now))


def _begin(queue: MessageQueue) -> int:
    return 7


def test_a_queue_begins_at_its_checkpoint_else_at_the_groups_offset_else_by_the_rule(
    offsets: LocalOffsets,
) -> None:
    offsets.write({QUEUES[0]: 9, QUEUES[1]: 3})
    alone = _alone(offsets)
    found = alone.settle(QUEUES, {QUEUES[0]: 2}, begin=_begin)
    assert found.starts == {QUEUES[1]: 3, QUEUES[2]: 7, QUEUES[3]: 7}
    assert begins(found, {QUEUES[0]: 2}) == {QUEUES[0]: 2, QUEUES[1]: 3, QUEUES[2]: 7, QUEUES[3]: 7}
    assert found.is_settled
    assert alone.settle(QUEUES, dict.fromkeys(QUEUES, 8), begin=_begin).starts == {}


def test_a_start_is_decided_once(offsets: LocalOffsets) -> None:
    alone, positions = _alone(offsets), dict[MessageQueue, int]()
    assert alone.settle(QUEUES, positions, begin=_begin).starts[QUEUES[0]] == 7
    assert alone.settle(list(QUEUES), {QUEUES[1]: 8}, begin=lambda queue: 99).starts[QUEUES[0]] == 7


@pytest.mark.parametrize("shares", [True, False])
def test_the_strategy_shares_among_the_own_clients_unless_broadcasting(
    offsets: LocalOffsets, shares: bool
) -> None:
    found = queues_by_client(_alone(offsets, "a", "b", shares=shares).settle(QUEUES, {}, begin=_begin))
    assert found == ({"a": QUEUES[:2], "b": QUEUES[2:]} if shares else {"a": QUEUES})


def test_it_records_every_interval_when_forced_and_when_it_leaves(offsets: LocalOffsets) -> None:
    alone = _alone(offsets)
    alone.settle(QUEUES, {}, begin=_begin)
    alone.settle(QUEUES, {QUEUES[0]: 1}, begin=_begin)
    assert offsets.read() == {}
    Time.now += 5
    alone.settle(QUEUES, {QUEUES[0]: 2}, begin=_begin)
    assert offsets.read() == {QUEUES[0]: 2}
    alone.settle(QUEUES, {QUEUES[0]: 3}, begin=_begin, force=True)
    assert offsets.read() == {QUEUES[0]: 3}
    alone.leave({QUEUES[0]: 4})
    assert offsets.read() == {QUEUES[0]: 4}


def test_what_could_not_be_saved_is_tried_again_but_not_at_each_look(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "lock").write_bytes(b"lock")
    offsets, positions = StoreOffsets("g", {"b": str(tmp_path)}, lock_timeout=0.1), {QUEUES[0]: 1}
    alone = _alone(offsets, persist_seconds=0.0)
    with held(tmp_path):
        alone.settle(QUEUES, positions, begin=_begin)
    alone.settle(QUEUES, positions, begin=_begin)
    assert offsets.read() == {}
    Time.now += 1
    alone.settle(QUEUES, positions, begin=_begin)
    assert offsets.read() == positions
