"""Plans of consume queues: against units packed one by one, and carried out against every queue of real
brokers' stores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.consumequeue.updates import CqBatch, CqUpdate, QueueEnd, cq_updates, pre_blank_bytes
from store_format.errors import CorruptStoreError, OptionError, StoreError
from tests.support import goldens, oracle
from tests.support.fixtures import Golden

Row = tuple[int, int, int, int, int]  # queue, queue offset, physical offset, size, tags code
Files = dict[tuple[str, int, int], bytearray]  # by topic, queue id and first byte

SIMPLE_STORES = [
    (name, broker)
    for name in goldens.NAMES
    if not name.startswith(("rocksdb", "crash"))  # no such queues; entries that the log does not have
    for broker in (goldens.expected(name).get("brokers") or {"": None})
]


def _batch(rows: Sequence[Row]) -> CqBatch:
    queues, offsets, physical, sizes, tags = np.array(rows, np.int64).reshape(-1, 5).T
    return CqBatch(queues, offsets, physical, sizes.astype(np.int32), tags)


def _apply(files: Files, updates: Sequence[CqUpdate], file_size: int) -> None:
    for update in updates:
        key = (update.topic, update.queue_id, update.file_start)
        assert (key not in files) == update.is_new_file
        raw = files.setdefault(key, bytearray(file_size))
        data = pre_blank_bytes(update.pre_blank) + update.units.tobytes()
        start = update.position - 20 * update.pre_blank
        assert raw[start : start + len(data)] == bytes(len(data))  # no byte twice
        raw[start : start + len(data)] = data
        assert len(raw) == file_size


# ---- drawn -------------------------------------------------------------------------------------------------


@pytest.fixture(params=[True, False], autouse=True)
def kernel(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of this module runs with the kernel and without."""
    with patch.object(kernels, "ready", lambda rows=0: request.param):
        yield


@given(st.data(), st.integers(1, 5), st.lists(st.integers(0, 4), max_size=40))
def test_queues_are_those_of_a_scalar_writer_however_the_log_is_cut(
    data: st.DataObject, per_file: int, queues: list[int]
) -> None:
    file_size = 20 * per_file
    begins = [data.draw(st.integers(0, 12)) for _ in range(5)]
    next_offsets, rows = list(begins), []
    for i, queue in enumerate(queues):
        rows.append((queue, next_offsets[queue], 100 * i, i + 1, data.draw(st.integers(-(2**63), 2**63 - 1))))
        next_offsets[queue] += 1
    ends = [QueueEnd(f"T{queue}", queue, file_size) for queue in range(5)]
    files: Files = {}
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        updates = cq_updates(ends, _batch(rows[start:stop]))
        _apply(files, updates, file_size)
        for update in updates:
            ends[update.queue_id] = ends[update.queue_id].after(update)
    expected: Files = {}
    for queue, begin in enumerate(begins):
        first_file = 20 * begin // file_size * file_size
        units = [oracle.pre_blank_cq_unit()] * (begin - first_file // 20)
        mine = [oracle.cq_unit(*row[2:]) for row in rows if row[0] == queue]
        data_bytes = b"".join(units + mine) if mine else b""
        for position in range(0, len(data_bytes), file_size):
            key = (f"T{queue}", queue, first_file + position)
            expected[key] = bytearray(data_bytes[position : position + file_size].ljust(file_size, b"\0"))
    assert files == expected
    assert [end.max_offset for end in ends if end.file_stop is not None] == [
        next_offsets[queue] for queue in sorted(set(queues))
    ]


# ---- one by one --------------------------------------------------------------------------------------------


def test_a_queue_that_begins_inside_a_file_is_filled_up_to_there() -> None:
    (first, second) = cq_updates([QueueEnd("T", 3, 60)], _batch([(0, 5, 700, 91, -1), (0, 6, 800, 91, 7)]))
    assert (first.file_start, first.position, first.pre_blank, first.is_new_file) == (60, 40, 2, True)
    assert (second.file_start, second.position, second.pre_blank, second.is_new_file) == (120, 0, 0, True)
    assert first.units.tobytes().hex() == "00000000000002bc" + "0000005b" + "ffffffffffffffff"
    assert pre_blank_bytes(2).hex() == "00000000000000007fffffff0000000000000000" * 2


def test_a_queue_with_files_is_continued_without_pre_blank_units() -> None:
    ends = [
        QueueEnd("T", 0, 60, max_offset=4, file_stop=120),
        QueueEnd("T", 1, 60, max_offset=3, file_stop=60),
    ]
    inside, behind = cq_updates(ends, _batch([(1, 3, 0, 91, 0), (0, 4, 91, 91, 0)]))
    assert (inside.queue_id, inside.file_start, inside.position, inside.is_new_file, inside.pre_blank) == (
        0,
        60,
        20,
        False,
        0,
    )
    assert (behind.queue_id, behind.file_start, behind.position, behind.is_new_file, behind.pre_blank) == (
        1,
        60,
        0,
        True,
        0,
    )
    assert ends[1].after(behind) == QueueEnd("T", 1, 60, max_offset=4, file_stop=120)
    assert ends[0].after(inside) == QueueEnd("T", 0, 60, max_offset=5, file_stop=120)


def test_no_messages_write_nothing() -> None:
    assert cq_updates([QueueEnd("T", 0, 60)], _batch([])) == []


@pytest.mark.parametrize(
    ("end", "rows", "message"),
    [
        (
            QueueEnd("T", 1, 60, 7, 180),
            [(0, 8, 0, 91, 0)],
            "consumequeue/T/1 at byte 140: expected a message with queue offset 7, the next",
        ),
        (QueueEnd("T", 1, 60, 7, 180), [(0, 6, 0, 91, 0)], "consumequeue/T/1 at byte 140: .* found offset 6"),
        (
            QueueEnd("T", 1, 60),
            [(0, 1, 0, 91, 0), (0, 3, 91, 91, 0)],
            "at byte 40: expected a message with queue offset 2, .* offset 3",
        ),
        (
            QueueEnd("T", 1, 60),
            [(0, 1, 0, 91, 0), (0, 1, 91, 91, 0)],
            "at byte 40: expected a message with queue offset 2, .* offset 1",
        ),
        (QueueEnd("T", 1, 60), [(0, -1, 0, 91, 0)], r"expected queue offsets in \[0, 2\^63 / 20\), found -1"),
        (
            QueueEnd("T", 1, 60),
            [(0, 2**63 // 20, 0, 91, 0)],
            r"expected queue offsets in \[0, 2\^63 / 20\), found",
        ),
        (
            QueueEnd("T", 1, 60),
            [(0, 2**63 - 1, 0, 91, 0), (0, -(2**63), 91, 91, 0)],
            r"expected queue offsets in \[0, 2\^63 / 20\)",
        ),
        (
            QueueEnd("T", 1, 50),
            [(0, 0, 0, 91, 0)],
            "consumequeue/T/1: files of 50 bytes; mappedFileSizeConsumeQueue must be a multiple of 20",
        ),
        (QueueEnd("T", 1, 0), [(0, 0, 0, 91, 0)], "files of 0 bytes"),
    ],
)
def test_what_has_no_place_is_refused(end: QueueEnd, rows: list[Row], message: str) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        cq_updates([end], _batch(rows))
    assert isinstance(caught.value, OptionError if end.file_size in (0, 50) else CorruptStoreError)


def test_the_queue_of_a_wrong_offset_is_named() -> None:
    ends = [QueueEnd("A", 0, 60), QueueEnd("B", 1, 60), QueueEnd("C", 2, 60)]
    rows = [
        (2, 0, 0, 91, 0),
        (1, 4, 0, 91, 0),
        (0, 9, 0, 91, 0),
        (1, 5, 0, 91, 0),
        (2, 1, 0, 91, 0),
        (1, 7, 0, 91, 0),
    ]
    with pytest.raises(
        CorruptStoreError, match="consumequeue/B/1 at byte 120: expected a message with queue offset 6"
    ):
        cq_updates(ends, _batch(rows))


# ---- broker-written stores ---------------------------------------------------------------------------------


def _rows_by_queue(name: str, broker: str, root: Path) -> dict[tuple[str, int], list[dict[str, Any]]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in goldens.expected_rows(name):
        if (
            row.get("brokerName", broker) == broker
            and (root / "consumequeue" / row["topic"] / str(row["queueId"])).is_dir()
        ):
            found[row["topic"], row["queueId"]].append(row)
    return found


@pytest.mark.parametrize(("name", "broker"), SIMPLE_STORES)
def test_the_brokers_own_files(golden: Golden, name: str, broker: str) -> None:
    """All queues of the store at once, from what the broker read. A queue whose first messages are gone goes
    on at its first whole file.
    """
    root = goldens.brokers(name, golden(name))[broker][0]
    ends: list[QueueEnd] = []
    rows: list[Row] = []
    written: dict[tuple[str, int, int], bytes] = {}
    for (topic, queue_id), queue_rows in _rows_by_queue(name, broker, root).items():
        paths = sorted((root / "consumequeue" / topic / str(queue_id)).iterdir())
        file_size, first = paths[0].stat().st_size, queue_rows[0]["queueOffset"]
        kept = -(-first // (file_size // 20)) * (file_size // 20)
        ends.append(QueueEnd(topic, queue_id, file_size, kept, kept * 20 if first else None))
        for row in queue_rows:
            if row["queueOffset"] >= kept:
                rows.append(
                    (
                        len(ends) - 1,
                        row["queueOffset"],
                        row["physicalOffset"],
                        row["storeSize"],
                        row["tagsCode"],
                    )
                )
        written |= {
            (topic, queue_id, int(path.name)): path.read_bytes()
            for path in paths
            if int(path.name) >= kept * 20
        }
    rows.sort(key=lambda row: row[2])  # the commitlog's order
    made: Files = {}
    for update in cq_updates(ends, _batch(rows)):
        _apply(made, [update], ends[0].file_size)
    # A broker may make a file before it has units for it.
    assert made == {key: value for key, value in written.items() if any(value[:20])}
    assert made or not rows
