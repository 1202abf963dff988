"""Order pop in the in-flight log: one state for all processes, rebuilt from its records."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.read import decode_order_infos
from store_format.metadata.values import OrderInfo
from store_format.opened.store import Opened
from store_format.pop import order as order_info
from store_format.pop.log import InFlightLog, in_flight_directory, read_in_flight, snapshot
from store_format.pop.order import digest
from store_format.pop.state import PopState
from tests.support.order_commands import KEY, OurOrder, counts_in_order

NOW = 1_700_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return in_flight_directory(Opened(str(tmp_path)), "billing", "Orders")


def _open(state: PopState, *queues: int, offset: int = 100) -> None:
    state.open()
    state.order.switch(True)
    for queue_id in queues:
        state.set_offset(0, queue_id, offset)


def _view(state: PopState | None) -> object:
    assert state is not None
    order = state.order
    return (
        {key: each.next_offset for key, each in state.queues.items()},
        (order.is_on, order.batches, order.mirrored, order.in_flight),
        state.totals,
    )


def _pop(
    state: PopState, queue_id: int, offsets: list[int], now: int = NOW, attempt_id: str | None = None
) -> OrderInfo:
    return state.order.hand_out(
        queue_id, offsets, pop_time=now, invisible_ms=1000, attempt_id=attempt_id, physical_offset=7
    )


def _acknowledge(state: PopState, queue_id: int, offset: int, pop_time: int) -> bool:
    assert not state.order.change_invisible(queue_id, offset, pop_time, NOW)
    return state.order.acknowledge(queue_id, offset, pop_time)


def test_a_queue_is_blocked_until_its_batch_is_acknowledged_or_visible(directory: str) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 1))
    batch = log.run(lambda state: _pop(state, 0, [100, 101, 103], attempt_id="a"))

    def blocked(state: PopState, now: int, attempt: str | None = None) -> bool:
        return state.order.is_blocked(0, now, 1000, attempt)

    assert log.run(lambda state: blocked(state, NOW + 999))
    assert not log.run(lambda state: blocked(state, NOW + 1000))
    assert not log.run(lambda state: blocked(state, NOW, "a"))
    assert not log.run(lambda state: state.order.is_blocked(1, NOW, 1000))
    # acks in any order: the next offset is the first that is left
    assert log.run(lambda state: state.order.acknowledge(0, 101, batch.pop_time))
    assert log.run(lambda state: state.queues[0, 0].next_offset) == 100
    assert log.run(lambda state: state.order.change_invisible(0, 103, batch.pop_time, NOW + 5000))
    assert log.run(lambda state: state.order.acknowledge(0, 100, batch.pop_time))
    assert log.run(lambda state: state.queues[0, 0].lowest) == 103
    assert log.run(lambda state: state.order.next_unblocked(NOW, 1000)) == NOW + 5000
    assert log.run(lambda state: blocked(state, NOW + 4999))
    assert log.run(lambda state: state.order.acknowledge(0, 103, batch.pop_time))
    assert log.run(lambda state: state.order.next_unblocked(NOW, 1000)) is None
    state = read_in_flight(directory)
    assert state is not None
    assert (state.queues[0, 0].next_offset, state.order.in_flight) == (104, 0)
    assert state.totals == {"popped": 3, "acked": 3, "changed": 1}


def test_handles_of_earlier_batches_count_for_nothing(directory: str) -> None:
    """Also if both batches are of the same millisecond."""
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0))
    first = log.run(lambda state: _pop(state, 0, [100, 101]))
    second = log.run(lambda state: _pop(state, 0, [100, 101]))
    assert second.pop_time > first.pop_time
    assert [order_info.consumed_count(each, 101) for each in (first, second)] == [0, 1]
    for offset, pop_time in [(100, first.pop_time), (102, second.pop_time), (99, second.pop_time)]:
        assert not log.run(partial(_acknowledge, queue_id=0, offset=offset, pop_time=pop_time))
    assert log.run(lambda state: state.order.acknowledge(0, 100, second.pop_time))
    assert not log.run(lambda state: state.order.acknowledge(0, 100, second.pop_time))
    assert not log.run(lambda state: state.order.acknowledge(7, 100, second.pop_time))


def test_a_reset_drops_the_batch(directory: str) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0))
    log.run(lambda state: _pop(state, 0, [100]))
    log.run(lambda state: state.set_offset(1, 0, 5))  # of the retry topic: another queue
    assert log.run(lambda state: state.order.in_flight) == 1
    log.run(lambda state: state.set_offset(0, 0, 90))
    assert log.run(lambda state: state.order.batches) == {}
    with pytest.raises(ValueError, match="offset 89 is before 90"):
        log.run(lambda state: _pop(state, 0, [89]))


def test_messages_that_are_passed_over_hold_nothing(directory: str) -> None:
    """The batch that is in flight when its messages are deleted; an old handle moves no offset back."""
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 1))
    batch, done = log.run(lambda state: (_pop(state, 0, [100, 101]), _pop(state, 1, [100])))
    log.run(lambda state: state.order.acknowledge(1, 100, done.pop_time))
    for queue_id in (0, 1):
        log.run(partial(PopState.skip, flag=0, queue_id=queue_id, next_offset=120))
    assert not log.run(lambda state: state.order.acknowledge(0, 101, batch.pop_time))
    assert log.run(lambda state: list(state.order.batches)) == [1]
    assert log.run(lambda state: state.queues[0, 0].next_offset) == 120


def test_a_batch_that_is_older_than_the_committed_offset(directory: str) -> None:
    """A broker writes the two files at different times; who is killed leaves them apart."""
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, offset=102))
    stale, alone = OrderInfo((100, 101, 102, 103), NOW, 1000, NOW), OrderInfo((7, 8), NOW, 1000, NOW, 1)
    log.run(lambda state: state.order.take_over({0: stale, 1: alone}))
    assert log.run(lambda state: state.queues[0, 1].next_offset) == 8
    assert log.run(lambda state: (state.order.in_flight_of(0), state.order.in_flight_of(1))) == (2, 1)
    assert log.run(lambda state: state.order.is_blocked(0, NOW + 999, 1000))
    assert log.run(lambda state: state.order.acknowledge_all(0, range(100, 104), NOW)) == {102, 103}
    assert log.run(lambda state: state.queues[0, 0].next_offset) == 104


def test_dead_letters_are_acknowledged_when_they_are_stored(directory: str) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0))
    batch = log.run(lambda state: _pop(state, 0, [100, 101, 103]))
    key = (0, 0, 100, batch.pop_time)
    assert log.run(lambda state: state.order.check_point((0, 0, 100, batch.pop_time + 1))) is None
    for is_done, expected in [(False, 100), (True, 101)]:
        revive = log.run(lambda state: state.begin_revive({key: 0b101}))
        log.run(partial(PopState.end_revive, number=revive.number, is_done=is_done))
        assert log.run(lambda state: state.queues[0, 0].next_offset) == expected
    state = read_in_flight(directory)
    assert state is not None
    point = state.order.check_point(key)
    assert point is not None
    assert (list(point.unacked()), state.totals["acked"]) == ([101], 2)


def test_batches_are_forgotten_after_a_day(directory: str) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 1))
    log.run(lambda state: _pop(state, 0, [100]))
    log.run(lambda state: _pop(state, 1, [100], NOW + 1))
    log.run(lambda state: state.order.forget(NOW + order_info.FORGET_MS + 1))
    state = read_in_flight(directory)
    assert state is not None
    assert list(state.order.batches) == [1]


def test_what_the_file_was_given(directory: str) -> None:
    log = InFlightLog(directory)
    log.run(lambda state: _open(state, 0, 1))
    one = log.run(lambda state: _pop(state, 0, [100]))
    assert log.run(lambda state: state.order.not_mirrored()) == [0]
    log.run(lambda state: state.order.note_mirrored([0], {}, {0: one}))
    assert log.run(lambda state: state.order.not_mirrored()) == []
    log.run(lambda state: state.order.acknowledge(0, 100, one.pop_time))
    assert log.run(lambda state: state.order.not_mirrored()) == [0]
    log.run(lambda state: state.order.note_mirrored([0], {0: one}, state.order.batches))
    state = read_in_flight(directory)
    assert state is not None
    assert state.order.mirrored == {0: (digest(one), digest(state.order.batches[0]))}
    log.run(lambda state: state.set_offset(0, 0, 100))
    assert log.run(lambda state: state.order.not_mirrored()) == [0]


def _random_change(state: PopState, chance: random.Random, now: int) -> None:
    order = state.order
    queue_id = chance.randrange(3)
    batch = order.batches.get(queue_id)
    kind = chance.randrange(12)
    if batch is None or kind < 3:
        start = state.queues[0, queue_id].next_offset
        offsets = [start + each for each in sorted(chance.sample(range(40), chance.randint(1, 32)))]
        attempt = chance.choice([None, "a", "\ud800é"[1:]])
        order.hand_out(queue_id, offsets, pop_time=now, invisible_ms=chance.randrange(90), attempt_id=attempt)
    elif kind < 8:
        order.acknowledge(queue_id, chance.choice(batch.offsets), batch.pop_time)
    elif kind < 10:
        order.change_invisible(
            queue_id, chance.choice(batch.offsets), batch.pop_time, now + chance.randrange(99)
        )
    elif kind == 10:
        order.note_mirrored(order.not_mirrored(), {}, order.batches)
    elif chance.random() < 0.5:
        order.take_over({queue_id: chance.choice([None, OrderInfo((7, 9), 5, None)])})
    else:
        state.set_offset(0, queue_id, 100)
        order.switch(not order.is_on)


@pytest.mark.parametrize("seed", range(5))
def test_a_replay_has_the_same_batches(directory: str, seed: int) -> None:
    """Two processes' views of the log, a reader's, and a snapshot, after random changes."""
    chance = random.Random(seed)
    logs = [InFlightLog(directory), InFlightLog(directory)]
    logs[0].run(lambda state: _open(state, 0, 1, 2))
    for step in range(150):
        log = chance.choice(logs)
        log.run(partial(_random_change, chance=chance, now=NOW + step))
    expected = logs[0].run(_view)
    assert logs[1].run(_view) == expected == _view(read_in_flight(directory))
    copy = PopState()
    copy.replay(logs[0].run(snapshot), "snapshot", 0)
    assert _view(copy) == expected
    logs[1].run(PopState.close)
    order = logs[0].run(lambda state: state.order)
    assert (order.batches, order.mirrored, order.is_on) == ({}, {}, False)


# ---- rules of order pop and the bytes of consumerOrderInfo.json --------------------------------------------


VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "order_info_vectors.json").read_text())

# 5.0 to 5.3 (fastjson 1.2): store-format.md 6.9, with a second group
OLD_FILE = b"""{
	"table":{
		"T@G":{0:{
				"a":"attempt-2",
				"cm":2,
				"i":30000,
				"l":1700000030000,
				"o":[
					10,
					1,
					3
				],
				"oc":{10:1,11:1,13:1
				},
				"ot":{13:1700000099000
				},
				"popTime":1700000030000
			}
		},
		"T@other":{}
	}
}"""
INFO = OrderInfo(
    (10, 11, 13), 1700000030000, 30000, 1700000030000, 2, "attempt-2",
    {10: 1, 11: 1, 13: 1}, {13: 1700000099000},
)  # fmt: skip


@pytest.mark.parametrize("history", VECTORS)
def test_recorded_histories(history: list[list[object]]) -> None:
    """Each result, and the whole file where one is recorded, equal RocketMQ's."""
    ours = OurOrder()
    for command, result, file in history:
        found, our_file = ours.answer(command)  # type: ignore[arg-type]  # a list of words
        assert counts_in_order(found) == result, command
        if file is not None and decode_order_infos(loads(file.encode(), "file")).get(KEY):  # type: ignore[attr-defined]
            assert our_file.decode() == file, command


def test_the_vectors_cover_every_answer() -> None:
    results = {(command[0], str(result)) for history in VECTORS for command, result, _ in history}
    assert {("ack", "-1"), ("ack", "-2"), ("block", "True"), ("block", "False")} <= results


def test_an_old_file_round_trips() -> None:
    assert order_info.merge_order_infos(OLD_FILE, "T@G", {0: INFO}) is None
    acknowledged, _ = order_info.acknowledge(INFO, 10, INFO.pop_time)
    changed = order_info.merge_order_infos(OLD_FILE, "T@G", {0: acknowledged})
    assert changed == OLD_FILE.replace(b'"cm":2', b'"cm":3')


def test_other_groups_stay() -> None:
    """Members that no version has written yet stay too, and the count follows."""
    head = b'{\n\t"orderInfoCount":1,\n\t"new":[1,2],\n\t"table":{'
    other = head + b'\n\t\t"T@H":{\n\t\t\t7:{\n\t\t\t\t"z":1\n\t\t\t}\n\t\t}\n\t}\n}'
    added = order_info.merge_order_infos(other, "T@G", {0: OrderInfo((4,), 5)})
    assert added is not None
    assert b'"orderInfoCount":2' in added
    assert added.startswith(other.replace(b":1,", b":2,", 1)[:-6])
    assert order_info.merge_order_infos(added, "T@G", {}) == other


def test_a_file_of_another_kind() -> None:
    where = r"config/consumerOrderInfo\.json at byte 0: expected an object as table"
    with pytest.raises(CorruptStoreError, match=where):
        order_info.merge_order_infos(b'{"table":[]}', "T@G", {})


def test_a_batch_without_an_invisible_time() -> None:
    """Each pop that asks lends its own time."""
    info = OrderInfo((5,), 1000)
    assert order_info.is_blocked(info, 1099, 100)
    assert not order_info.is_blocked(info, 1100, 100)


@given(
    offsets=st.lists(st.integers(0, (1 << 63) - 100), min_size=1, max_size=70, unique=True).map(sorted),
    times=st.none() | st.dictionaries(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 60)),
    acked=st.lists(st.integers(0, 69)),
)
def test_any_batch_round_trips(offsets: list[int], times: dict[int, int] | None, acked: list[int]) -> None:
    info = OrderInfo(tuple(offsets), 7, 8, 9, 0, None, {}, times)
    for index in acked:
        info, _ = order_info.acknowledge(info, offsets[index % len(offsets)], 7)
    data = order_info.merge_order_infos(None, "T@G", {3: info})
    assert data is not None
    assert decode_order_infos(loads(data, "file")) == {"T@G": {3: info}}
    assert order_info.merge_order_infos(data, "T@G", {3: info}) is None
