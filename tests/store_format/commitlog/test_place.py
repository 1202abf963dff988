"""Places of units and BLANKs against a loop that does what CommitLog.doAppend does, and queue offsets against
a dictionary.
"""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.commit.staged_units import QueueCounter
from store_format.commit.staging import NO_QUEUE, NOT_DISPATCHED
from store_format.commitlog.write import Extent, LogLayout, blank_head
from store_format.errors import CorruptStoreError, UnsupportedFormatError


def _one_by_one(position: int, file_size: int, sizes: list[int]) -> tuple[list[int], list[int]]:
    offsets, blanks = [], []
    for size in sizes:
        if size + 8 > file_size - position % file_size:
            blanks.append(position)
            position += file_size - position % file_size
        offsets.append(position)
        position += size
    return offsets, blanks


@given(st.integers(0, 3), st.integers(0, 900), st.lists(st.integers(91, 900), max_size=40), st.integers(1, 7))
def test_units_stand_where_a_broker_puts_them(file: int, within: int, sizes: list[int], chunk: int) -> None:
    start = 1000 * file + within
    layout = LogLayout(start, 1000)
    offsets: list[int] = []
    extents: list[Extent] = []
    for first in range(0, len(sizes), chunk):  # the same, however it is cut
        placed, stretches = layout.place(np.array(sizes[first : first + chunk]))
        offsets += placed.tolist()
        extents += stretches
    expected, blanks = _one_by_one(start, 1000, sizes)
    assert offsets == expected
    assert [extent.offset for extent in extents if extent.first == extent.stop] == blanks
    assert layout.position == (offsets[-1] + sizes[-1] if sizes else start)
    for extent in extents:
        assert extent.offset // 1000 == (extent.offset + max(extent.stop - extent.first, 1) - 1) // 1000


@pytest.mark.parametrize(("size", "fits"), [(992, True), (993, False)])
def test_the_largest_unit_of_a_file(size: int, fits: bool) -> None:
    layout = LogLayout(10, 1000)
    if fits:
        assert layout.place(np.array([size]))[0].tolist() == [1000]
    else:
        with pytest.raises(UnsupportedFormatError) as caught:
            layout.place(np.array([size]))
        assert "expected at most 992 bytes" in str(caught.value)


def test_a_log_that_leaves_no_room_for_a_blank_is_damaged() -> None:
    with pytest.raises(CorruptStoreError) as caught:
        LogLayout(1995, 1000).place(np.array([100]))
    assert caught.value.position == 995
    assert "00000000000000001000" in caught.value.file


def test_a_blank_by_its_bytes() -> None:
    assert blank_head(1800, 1000).hex() == "000000c8" + "cbd43194"


@given(
    st.lists(st.integers(-2, 299), max_size=200),
    st.integers(1, 50),
    st.sampled_from([3, 300, 70_000]),
    st.booleans(),
)
def test_queue_offsets_count_on(queues: list[int], chunk: int, count: int, kernel: bool) -> None:
    queues = [min(queue, count - 1) for queue in queues]
    counter = QueueCounter(tuple(range(count)))
    found: list[int] = []
    with patch.object(kernels, "worth", lambda rows, **_: kernel):
        for first in range(0, len(queues), chunk):
            found += counter.take(np.array(queues[first : first + chunk], np.int32)).tolist()
    following = dict(enumerate(range(count)))
    expected = []
    for queue in queues:
        if queue in (NO_QUEUE, NOT_DISPATCHED):
            expected.append(0)
        else:
            expected.append(following[queue])
            following[queue] += 1
    assert found == expected
    assert counter.next.tolist() == [following[queue] for queue in range(count)]
