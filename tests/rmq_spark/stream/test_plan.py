"""What goes into one micro-batch: never more than the limits, never nothing, and every queue in its turn."""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.stream.plan import Fit, Limits, Pace, admit_bytes, admit_offsets
from rmq_spark.stream.stores import Losses
from store_format import MessageStore
from store_format.follow.log_tail import Replaced
from tests.support.staged import append, numbered

WAITING = st.lists(st.integers(0, 50) | st.integers(0, 10**12), max_size=30)


@given(WAITING, st.integers(1, 200) | st.integers(1, 10**13), st.integers(0, 10**6))
def test_the_limit_is_used_and_kept_and_nobody_starves(waiting: list[int], limit: int, turn: int) -> None:
    admitted = admit_offsets(waiting, limit, turn)
    assert sum(admitted) == min(limit, sum(waiting))
    assert all(0 <= count <= there for count, there in zip(admitted, waiting, strict=True))
    busy = sum(map(bool, waiting))
    if busy <= limit:
        assert all(count for count, there in zip(admitted, waiting, strict=True) if there)
    else:
        assert max(admitted, default=0) <= 1


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=20), st.integers(100, 10**9))
def test_shares_are_in_proportion(waiting: list[int], limit: int) -> None:
    admitted, total = admit_offsets(waiting, limit, 0), sum(waiting)
    if limit < total:
        for count, there in zip(admitted, waiting, strict=True):
            assert abs(count - limit * there / total) <= len(waiting) + 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 15))
def test_everything_is_read_in_the_least_number_of_batches(waiting: list[int], limit: int) -> None:
    positions, batches = [0] * len(waiting), 0
    while positions != waiting:
        left = [there - at for there, at in zip(waiting, positions, strict=True)]
        admitted = admit_offsets(left, limit, sum(positions))
        positions = [at + count for at, count in zip(positions, admitted, strict=True)]
        batches += 1
    assert batches == -(-sum(waiting) // limit)


def test_queues_take_turns_where_the_limit_is_below_their_number() -> None:
    seen, position = [0] * 10, 17
    for _ in range(5):
        admitted = admit_offsets([1000] * 10, 4, position)
        position += sum(admitted)
        seen = [before + count for before, count in zip(seen, admitted, strict=True)]
    assert seen == [2] * 10


def _fit(sizes: list[list[int]]) -> tuple[list[list[int]], Fit]:
    ends = [[0, *accumulate(queue)] for queue in sizes]

    def fit(i: int, count: int, size: int) -> tuple[int, int]:
        fitting = min(count, bisect_right(ends[i], size) - 1)
        return fitting, ends[i][fitting]

    return ends, fit


SIZES = st.lists(st.lists(st.integers(91, 5000), max_size=20), min_size=1, max_size=10)


@given(
    SIZES,
    st.integers(1, 20_000),
    st.integers(0, 1000),
    st.lists(st.integers(0, 10_000), min_size=10, max_size=10),
)
def test_bytes_are_kept_and_something_always_goes(
    sizes: list[list[int]], limit: int, turn: int, estimates: list[int]
) -> None:
    ends, fit = _fit(sizes)
    waiting = [len(queue) for queue in sizes]
    admitted = admit_bytes(waiting, estimates[: len(sizes)], limit, turn, fit)
    used = sum(ends[i][count] for i, count in enumerate(admitted))
    assert all(0 <= count <= there for count, there in zip(admitted, waiting, strict=True))
    assert used <= limit or sum(admitted) == 1
    assert bool(sum(admitted)) == bool(sum(waiting))
    busy = [i for i, there in enumerate(waiting) if there]
    if busy:
        assert admitted[busy[turn % len(busy)]] >= 1
    left = [sizes[i][admitted[i]] for i in busy if admitted[i] < waiting[i]]
    if used < limit and left:
        assert min(left) > limit - used  # nothing more would have fitted


def test_a_message_larger_than_the_limit_goes_alone() -> None:
    _, fit = _fit([[100, 100], [9000], [100]])
    assert admit_bytes([2, 1, 1], [200, 9000, 100], 1000, 1, fit) == [0, 1, 0]
    assert admit_bytes([2, 0, 1], [200, 0, 100], 1000, 1, fit) == [2, 0, 1]


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        ([(0, 5)], [False]),  # the first batch does not wait
        ([(0, 5), (1, 5), (999, 9), (1000, 5), (1001, 5)], [False, True, True, False, True]),
        ([(0, 5), (1, 10), (2, 9)], [False, False, True]),
    ],
)
def test_a_batch_waits_for_enough_but_not_too_long(looks: list[tuple[int, int]], waits: list[bool]) -> None:
    pace = Pace(Limits(min_offsets=10, max_delay_ms=1000))
    assert [pace.waits(waiting, now_ms) for now_ms, waiting in looks] == waits


def test_without_a_minimum_nothing_waits() -> None:
    assert not any(Pace(Limits()).waits(1, now_ms) for now_ms in range(3))


# ---- losses of a stream ------------------------------------------------------------------------------------


def test_a_queue_replaced_twice_in_the_same_way_is_reported_twice(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(root, numbered("T", 0, 8, queues=1))
    queue = MessageStore.open(str(root)).queue("T", 0)
    name, losses = MessageQueue.of(queue), Losses(fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        for position in (5, 6):  # two looks before the micro-batch begins
            assert losses.replaced(name, position, queue, Replaced(stop=8, begin=0)) == 0
            losses.report()
        assert len(caplog.messages) == 1
        losses.forget_replaced()
        assert losses.replaced(name, 7, queue, Replaced(stop=8, begin=0)) == 0
        losses.report()
    assert [message.split(":")[0] for message in caplog.messages] == ["3 messages lost", "1 messages lost"]
