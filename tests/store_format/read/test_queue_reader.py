"""From queue entries to batches: any slice is that part of the queue, batches stay small, loss and damage are
told as asked.
"""

from __future__ import annotations

import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import MessageStore
from store_format.consumequeue import slices as slices_room
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError
from store_format.message.columns import COLUMNS, DecodeOptions
from store_format.read.queue_reader import Entries, QueueReader
from store_format.read.tolerance import Tolerance
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.rows import ALL, BROKER, expected_row, table_rows
from tests.support.small_store import SmallStore, write_small_store
from tests.support.store_files import write_log, write_queue
from tests.support.strategies import StoredLog, commit_logs


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    return write_small_store(tmp_path / "store")


def opened(small: SmallStore) -> MessageStore:
    return MessageStore.open(str(small.root), broker_name=BROKER)


def reader_of(
    store: MessageStore, mode: str = "FAILFAST", names: tuple[str, ...] = ALL, **more: object
) -> QueueReader:
    return store.reader(DecodeOptions(names), Tolerance(mode, **more))  # type: ignore[arg-type] # fail_on_data_loss is the only one


# ---- slices ------------------------------------------------------------------------------------------------


def test_any_slice_of_any_queue(small: SmallStore) -> None:
    store = opened(small)
    for queue in store.queues():
        right = small.rows[queue.topic, queue.queue_id]
        for start in range(queue.min_offset, queue.max_offset + 1):
            for stop in range(start, queue.max_offset + 1):
                assert (
                    table_rows(queue.read(start, stop, columns=ALL))
                    == right[start - queue.min_offset : stop - queue.min_offset]
                )


@given(log=commit_logs(), chunk=st.sampled_from([1, 2, 1 << 18]))
def test_all_queues_at_once_give_each_its_rows_in_order(
    tmp_path_factory: pytest.TempPathFactory, log: StoredLog, chunk: int
) -> None:
    root = tmp_path_factory.mktemp("any")
    log.write(root)
    store = MessageStore.open(str(root), broker_name=BROKER)
    reader = reader_of(store)
    reader.chunk_entries = chunk
    pieces = [queue.piece() for queue in store.queues() if not queue.topic.startswith("%LMQ%")]
    rows = table_rows(reader.read(pieces))
    for key, messages in log.queues.items():
        if key[0].startswith("%LMQ%"):
            continue
        expected = [expected_row(message, tags_code=oracle.tags_code(message)) for message in messages]
        assert [row for row in rows if (row["topic"], row["queueId"]) == key] == expected


@given(
    log=commit_logs(),
    edges=st.lists(st.integers(-1, 300_000), max_size=4).map(sorted),
    chunk=st.sampled_from([0, 1, 3, 1 << 18]),
)
def test_cut_pieces_adjoin(
    tmp_path_factory: pytest.TempPathFactory, log: StoredLog, edges: list[int], chunk: int
) -> None:
    """By bisection (0), and by reading all entries, so many at a time."""
    root = tmp_path_factory.mktemp("any")
    log.write(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices_room, "_SPLIT_WHOLE_MAX", 1 << 16 if chunk else 0)
        patch.setattr(slices_room, "CHUNK_ENTRIES", chunk or slices_room.CHUNK_ENTRIES)
        for queue in MessageStore.open(str(root)).queues():
            parts = queue.piece().split_at(edges)
            assert len(parts) == len(edges) + 1
            assert (parts[0].start, parts[-1].stop) == (queue.min_offset, queue.max_offset)
            assert all(part.stop == following.start for part, following in pairwise(parts))
            for part, low, high in zip(parts, [-(2**63), *edges], [*edges, 2**63 - 1], strict=True):
                _, units = part.read()
                assert all(low <= physical < high for physical in units["physical_offset"].tolist())


def test_tags_codes_skip_entries_before_their_messages_are_touched(small: SmallStore) -> None:
    store = opened(small)
    # of Orders-0, without a tag: not looked at, so damage in it is not met
    path, first, size = small.unit_place("empty")
    data = path.read_bytes()
    path.write_bytes(data[:first] + b"\xff" * size + data[first + size :])
    codes = frozenset({oracle.java_hash("red")})
    reader = store.reader(DecodeOptions(("body",)), Tolerance(), codes)
    assert [row["body"] for row in table_rows(reader.read([store.queue("Orders", 0).piece()]))] == [
        b"some body",
        b"sealed",
    ]
    batches = [row["body"] for row in table_rows(reader.read([store.queue("Batches", 0).piece()]))]
    assert batches == [row["body"] for row in small.rows["Batches", 0]]  # a batch's code is not its messages'


# ---- batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "names", "cuts"),
    [
        ([100] * 3, ALL, [(0, 3)]),
        ([100_000] * 30, ALL, [(0, 30)]),  # few rows may be 8 MB together
        ([100_000] * 100, ALL, [(0, 83), (83, 100)]),
        ([5000] * 1000, ALL, [(0, 838), (838, 1000)]),  # up to 4,096 rows may be 4 MB together
        ([20 << 20] * 3, ALL, [(0, 1), (1, 2), (2, 3)]),
        ([1000] * 20_000, ("queueOffset",), [(0, 8192), (8192, 16384), (16384, 20_000)]),
        ([1 << 20] * 40, ("queueOffset",), [(0, 16), (16, 32), (32, 40)]),  # at most 16 MiB are read
        # a hostile size makes no room for others
        ([-(2**31)] * 2 + [20 << 20] * 2, ALL, [(0, 2), (2, 3), (3, 4)]),
        ([2**31 - 1] * 3, ALL, [(0, 1), (1, 2), (2, 3)]),
        ([], ALL, []),
    ],
)
def test_batches_by_bytes_and_rows(
    small: SmallStore, sizes: list[int], names: tuple[str, ...], cuts: list[tuple[int, int]]
) -> None:
    reader = reader_of(opened(small), names=names)
    offsets = np.cumsum([0, *(max(size, 0) for size in sizes)], dtype=np.int64)[:-1]
    numbers, nowhere = np.arange(len(sizes)), np.zeros(len(sizes), np.int32)
    entries = Entries(nowhere, numbers, offsets, np.array(sizes, np.int64), None)
    assert list(reader._cuts(entries)) == cuts


# ---- what is wrong -----------------------------------------------------------------------------------------


def test_permissive_gives_a_row_for_each_bad_message_in_its_place(small: SmallStore) -> None:
    path, first, _ = small.unit_place("zlib")
    data = bytearray(path.read_bytes())
    data[first + 4] ^= 1  # its magic code
    path.write_bytes(data)
    queue_file = small.root / "consumequeue" / "Orders" / "0" / oracle.file_name(60)
    # zstd: points behind the log, which does not have the message any more
    path, at, _ = small.unit_place("zstd")
    data[at + 4] ^= 1
    path.write_bytes(data)
    queue_file.write_bytes(oracle.cq_unit(2**40, 100, 5) + queue_file.read_bytes()[20:])
    store = opened(small)
    reader = reader_of(store, "PERMISSIVE")
    rows = table_rows(reader.read([store.queue("Orders", 0).piece()]))
    right = small.rows["Orders", 0]
    assert [row["queueOffset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [rows[i] for i in (0, 2, 4)] == [right[i] for i in (0, 2, 4)]
    known = {
        "topic",
        "brokerName",
        "queueId",
        "queueOffset",
        "physicalOffset",
        "storeSize",
        "tagsCode",
        "_corrupt_record",
    }
    for i in (1, 3):
        assert {name for name in COLUMNS if rows[i][name] is not None} == known
        assert (rows[i]["topic"], rows[i]["queueId"], rows[i]["brokerName"]) == ("Orders", 0, BROKER)
    assert rows[1]["_corrupt_record"].startswith(f"{path} at byte {first + 4}: expected magic code")
    where = f"{queue_file} at byte 0: expected a commitlog offset between 0 and 4096, inside a file"
    assert rows[3]["_corrupt_record"] == f"{where}, found {2**40} at queue offset 3"
    assert (rows[3]["physicalOffset"], rows[3]["tagsCode"]) == (2**40, 5)
    assert reader.tolerance.dropped == 2


def test_damage_is_counted_and_said(small: SmallStore, caplog: pytest.LogCaptureFixture) -> None:
    path, first, _ = small.unit_place("plain")
    data = bytearray(path.read_bytes())
    data[first + 90] ^= 1
    path.write_bytes(data)
    store = opened(small)
    with pytest.raises(CorruptStoreError, match="body CRC"):
        list(reader_of(store).read([store.queue("Orders", 0).piece()]))
    reader = reader_of(store, "DROPMALFORMED")
    assert table_rows(reader.read([store.queue("Orders", 0).piece()])) == small.rows["Orders", 0][1:]
    assert reader.tolerance.dropped == 1
    assert "1 malformed message dropped, the first:" in caplog.text


# ---- what is gone ------------------------------------------------------------------------------------------


def pieces_of(store: MessageStore) -> list[QueueSlice]:
    return [store.queue("Orders", 0).piece()]


def test_messages_deleted_after_planning(small: SmallStore, caplog: pytest.LogCaptureFixture) -> None:
    pieces = pieces_of(opened(small))
    os.unlink(small.root / "commitlog" / oracle.file_name(0))
    later = opened(small)
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"Orders-0 offset 0: the message at commitlog 0 was deleted \(retention\)",
    ) as caught:
        list(reader_of(later).read(pieces))
    assert str(caught.value).endswith(
        "; the log now begins at 2048. Start later, or set failOnDataLoss=false to continue without these "
        "messages"
    )
    reader = reader_of(later, fail_on_data_loss=False)
    kept = [row for row in small.rows["Orders", 0] if row["physicalOffset"] >= 2048]
    assert table_rows(reader.read(pieces)) == kept
    assert 0 < len(kept) == 5 - reader.tolerance.lost
    # nothing to advise
    assert [record.message.endswith("; the log now begins at 2048") for record in caplog.records] == [True]


def test_a_log_file_deleted_between_two_batches(small: SmallStore) -> None:
    store = opened(small)
    pieces = pieces_of(store)
    os.unlink(small.root / "commitlog" / oracle.file_name(0))  # the store still lists it
    reader = reader_of(store, fail_on_data_loss=False)
    rows = table_rows(reader.read(pieces))
    assert rows == [row for row in small.rows["Orders", 0] if row["physicalOffset"] >= 2048]
    assert reader.tolerance.lost == 5 - len(rows)


def test_queue_files_deleted_after_planning(small: SmallStore) -> None:
    store = opened(small)
    pieces = pieces_of(store)
    file = small.root / "consumequeue" / "Orders" / "0" / oracle.file_name(0)
    os.unlink(file)
    sentence = rf"Orders-0.*{file} .* no longer exists: it was deleted \(retention\?\) after planning"
    with pytest.raises(OffsetOutOfRangeError, match=sentence):
        list(reader_of(store).read(pieces))
    reader = reader_of(store, fail_on_data_loss=False)
    assert table_rows(reader.read(pieces)) == small.rows["Orders", 0][3:]
    assert reader.tolerance.lost == 3
    shutil.rmtree(small.root / "consumequeue" / "Orders")
    reader = reader_of(store, fail_on_data_loss=False)
    assert list(reader.read(pieces)) == []
    assert reader.tolerance.lost == 5


def test_a_queue_that_became_shorter_after_planning(small: SmallStore) -> None:
    """A topic deleted and made again."""
    store = opened(small)
    pieces = [piece._replace(start=3) for piece in pieces_of(store)]
    directory = small.root / "consumequeue" / "Orders" / "0"
    os.unlink(directory / oracle.file_name(60))
    reader = reader_of(store, fail_on_data_loss=False)
    assert list(reader.read(pieces)) == []
    assert reader.tolerance.lost == 2


def test_entries_out_of_the_order_of_the_log_keep_the_order_of_the_queue(tmp_path: Path) -> None:
    stored = write_log(tmp_path, [Message(b"T", b"%d" % i, queue_offset=1 - i) for i in range(2)], 1000)
    write_queue(tmp_path, reversed(stored), 50)
    store = MessageStore.open(str(tmp_path))
    rows = table_rows(reader_of(store).read([store.queue("T", 0).piece()] * 2))
    assert [row["queueOffset"] for row in rows] == [0, 1, 0, 1]
    assert [row["body"] for row in rows] == [b"1", b"0", b"1", b"0"]
