"""Which of two messages with one queue offset counts: what a broker files, and what it leaves out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from store_format.consumequeue.dispatch import CLAIM, Claims, Filing, counted
from store_format.names import QueueKey


def rows(offsets: list[int], first: int = 0) -> NDArray[np.void]:
    """Messages with these queue offsets, one behind the other; the physical offset is their number."""
    made = np.ones(len(offsets), CLAIM)
    made["offset"], made["physical"] = offsets, np.arange(first, first + len(offsets))
    return made


def filed(offsets: list[int]) -> dict[int, int]:
    """Queue offset -> number of the message that a broker with an empty queue serves there.

    ConsumeQueue.putMessagePositionInfo: an offset before the end is left out, apart from 0; any other message
    gets the next entry, and only a message with the offset of its entry is served as what it is.
    """
    entries: list[int] = []
    for number, offset in enumerate(offsets):
        if offset == 0 or offset >= offsets[0] + len(entries):
            entries.append(number)
    at = [(offsets[0] + place, number) for place, number in enumerate(entries)]
    return {place: number for place, number in at if offsets[number] == place}


# messages A0 A1 B1 ... by their queue offsets, and the numbers of those that count
CASES = {
    "a second message": ([0, 1, 1, 2, 2, 3], [0, 1, 3, 5]),
    "at the end": ([0, 1, 2, 2], [0, 1, 2]),
    "both offset 0": ([0, 0, 1, 2], [0, 2, 3]),
    "a 0 that no 1 follows": ([0, 1, 2, 0, 3], [0, 1, 2, 4]),
    "a 0 at the end": ([0, 1, 2, 0], [0, 1, 2]),
    "the topic was created again": ([0, 1, 2, 0, 1], [3, 4]),
    "the same, and of its messages the log has only the last": ([12, 0, 1], [1, 2]),
    "41 became 40": ([39, 40, 40, 42], [0, 1, 3]),
    "39 became 40": ([38, 40, 40, 41], [0, 2, 3]),
    "38 became 42": ([37, 42, 39, 40, 41, 42, 43], [0, 2, 3, 4, 5, 6]),
    "a gap is filled late": ([5, 7, 6, 8], [0, 2, 1, 3]),
}


@pytest.mark.parametrize("ends", [{}, {("T", 0): (0, -1)}])
def test_no_file_shows_that_a_topic_was_created_again(ends: dict[QueueKey, tuple[int, int]]) -> None:
    """There is none, or it is blank."""
    claims = Filing(start=0, ends=ends).claims(("T", 0))
    assert [is_new for is_new, _ in claims.add(rows([0, 1, 2, 0, 1, 2, 3]))] == [False, False]
    assert claims.runs == [(0, 4)]


def test_an_end_of_all_queues_between_0_and_1_hides_no_beginning() -> None:
    claims = Filing(start=4, ends={("U", 0): (1, 3)}).claims(("T", 0))
    assert [is_new for is_new, _ in claims.add(rows([0, 1, 2, 0, 1, 2]))] == [False, True, False]


@pytest.mark.parametrize("name", CASES)
def test_which_messages_count(name: str) -> None:
    offsets, count = CASES[name]
    assert counted(rows(offsets))["physical"].tolist() == count


def test_a_broker_that_starts_files_only_the_second() -> None:
    """CommitLog.recoverNormally leaves out the message that begins where the last one with an entry ends."""
    claims = Filing(start=5, ends={("T", 0): (4, 4)}).claims(("T", 0))
    assert counted(rows([0, 1, 2, 3, 4, 4, 5]), claims)["physical"].tolist() == [0, 1, 2, 3, 5, 6]
    claims = Filing(start=3, ends={("T", 0): (4, 4)}).claims(("U", 0))  # a queue without files
    assert counted(rows([6, 7, 7, 7, 8], first=1), claims)["physical"].tolist() == [1, 3, 5]
    claims = Filing(start=1, ends={("T", 0): (0, -1)}).claims(("T", 0))  # a queue with a blank file
    assert counted(rows([0, 1, 2, 3, 1, 2, 3]), claims)["physical"].tolist() == [0, 1, 2, 6]
    claims = Filing(start=4, ends={("T", 0): (0, -1)}).claims(("T", 0))
    assert counted(rows([0, 1, 2, 3, 0]), claims)["physical"].tolist() == [4, 1, 2, 3]


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=30)
    | st.lists(st.sampled_from([0, 0, 0, 0, 1, -1, 3]), min_size=1, max_size=30).map(
        lambda steps: [max(5 + number + step, 1) for number, step in enumerate(steps)]
    ),
    st.integers(1, 5),
)
def test_what_a_broker_serves_counts(offsets: list[int], step: int) -> None:
    claims, count = Claims(), dict[int, int]()
    for start in range(0, len(offsets), step):
        for begins, part in claims.add(rows(offsets[start : start + step], start)):
            count = {} if begins else count
            count |= zip(part["offset"].tolist(), part["physical"].tolist(), strict=True)
    whole = counted(rows(offsets))
    assert dict(sorted(count.items())) == dict(
        zip(*(whole[name].tolist() for name in ("offset", "physical")), strict=False)
    )
    assert [offset for run in claims.runs for offset in range(*run)] == sorted(count)
    assert all(one[1] < other[0] for one, other in pairwise(claims.runs))
    left = {
        number
        for number, offset in enumerate(offsets)
        for low, high, start, stop in claims.left
        if low <= number < high and start <= offset < stop
    }
    assert set(range(len(offsets))) - left == set(count.values())
    if claims.begin == 0:
        assert filed(offsets).items() <= count.items()
        assert (set(count), claims.repeated) == (set(offsets), len(offsets) - len(count))
