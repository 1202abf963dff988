"""Consume queues in RocksDB: databases that are damaged, or say something else than the commitlog, and what a
killed broker leaves behind their checkpoint. `tests/test_conformance.py` reads the stores as they are.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rocksdict import Options, Rdict

from store_format import MessageStore
from store_format.consumequeue import slices
from store_format.consumequeue.database import QueueDatabase
from store_format.errors import CorruptStoreError
from store_format.files.read import files_at
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.conformance import NAMES, differences, expected, rows_of
from tests.support.fixtures import Golden
from tests.support.object_server import ObjectServer
from tests.support.reads import PLACE, Place, read, told, told_places

CLEAN, KILLED = "rocksdbcq-5.5.0", "rocksdbcq-crash2-5.5.0"
QUEUE = ("Orders", 2)  # offsets 53 to 78 of CLEAN
FIRST = {
    queue["topic"]: queue for queue in goldens.expected(CLEAN)["queues"] if queue["queueId"] == QUEUE[1]
}[QUEUE[0]]["minOffset"]


def _places(root: Path) -> list[Place]:
    return read(root, includeSystemTopics=True, columns=PLACE).places()


@contextmanager
def _database(root: Path) -> Iterator[tuple[Rdict, Rdict]]:
    """The families with the entries and with the ends of the queues, to be changed."""
    families = {name: Options(raw_mode=True) for name in ("default", "offset")}
    database = Rdict(str(root / "consumequeue"), Options(raw_mode=True), column_families=families)
    offsets = database.get_column_family("offset")
    yield database, offsets
    del offsets
    database.close()


def _key(topic: str, queue_id: int, offset: int) -> bytes:
    return _queue(topic) + struct.pack(">ibq", queue_id, 1, offset)


def _queue(topic: str) -> bytes:
    return struct.pack(">i", len(topic)) + b"\1" + topic.encode() + b"\1"


def _elsewhere(entries: Rdict, _: Rdict) -> None:
    entries[_key(*QUEUE, FIRST + 5)] = entries[_key(*QUEUE, FIRST + 7)]


def _nowhere(entries: Rdict, _: Rdict) -> None:
    entries[_key(*QUEUE, FIRST + 5)] = struct.pack(">qiqq", 1 << 40, 300, 0, 0)


def _missing(entries: Rdict, _: Rdict) -> None:
    for offset in (FIRST + 5, FIRST + 6, FIRST + 9):
        del entries[_key(*QUEUE, offset)]


def _without_last(entries: Rdict, _: Rdict) -> None:
    keys = [bytes(key) for key in entries.keys() if isinstance(key, bytes)]  # noqa: SIM118 # no dict
    del entries[max(key for key in keys if key.startswith(_key(*QUEUE, 0)[:-8]))]


def _short(entries: Rdict, _: Rdict) -> None:
    entries[_key(*QUEUE, FIRST + 5)] = b"short"


def _left_behind(entries: Rdict, _: Rdict) -> None:
    """As after a crash: a broker lowers `max`, and leaves the entries."""
    for offset in range(100, 200):
        entries[_key(*QUEUE, offset)] = struct.pack(">qiqq", 131072, 300, 0, 0)


def _old_min(_: Rdict, ends: Rdict) -> None:
    ends[_queue(QUEUE[0]) + b"min\1" + struct.pack(">i", QUEUE[1])] = struct.pack(">qq", 131072, FIRST + 3)


def _odd_end(_: Rdict, ends: Rdict) -> None:
    ends[b"\0\0\0\1\1T\1max\1"] = bytes(16)


@pytest.mark.parametrize(
    "change", [_elsewhere, _nowhere, _missing, _without_last, _short, _left_behind, _old_min, _odd_end]
)
def test_the_commitlog_answers_for_wrong_records(
    copy_of: Golden, change: Callable[[Rdict, Rdict], None]
) -> None:
    root = copy_of(CLEAN)
    with _database(root) as families:
        change(*families)
    assert _places(root) == told_places(told(CLEAN))


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
def test_a_damaged_database_is_named_and_the_commitlog_scanned(
    copy_of: Golden, caplog: pytest.LogCaptureFixture, pattern: str
) -> None:
    root = copy_of(CLEAN)
    file = max((root / "consumequeue").glob(pattern), key=lambda path: path.stat().st_size)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptStoreError, match=f"{file.parent.name}.*expected "):
        QueueDatabase.read(Opened(str(root)))
    with caplog.at_level(logging.WARNING):
        assert _places(root) == told_places(told(CLEAN))
    assert f"{root}: scanning the commitlog instead: {root}/consumequeue" in caplog.text


def test_an_old_database_is_continued_by_the_log(copy_of: Golden, golden: Golden) -> None:
    """A broker that runs has written nothing since its last flush, also of new queues."""
    root = copy_of(CLEAN)
    rows = [row for row in told(CLEAN) if row["physicalOffset"] >= 250_000]
    checkpoint = min(row["physicalOffset"] for row in rows)
    before: dict[tuple[str, int], int] = {}
    for row in rows:
        key = row["topic"], row["queueId"]
        before[key] = min(before.get(key, row["queueOffset"]), row["queueOffset"])
    with _database(root) as (entries, ends):
        ends[_queue("CHECKPOINT_TOPIC") + b"max\1" + bytes(4)] = struct.pack(">q", checkpoint)
        for (topic, queue_id), first in before.items():
            end = _queue(topic) + b"max\1" + struct.pack(">i", queue_id)
            last = entries.get(_key(topic, queue_id, first - 1))
            if last is None:
                del ends[end]
            else:
                ends[end] = last[:8] + struct.pack(">q", first - 1)
    queues = MessageStore.open(str(root)).queues()
    assert {queue.key: queue.max_offset for queue in queues} == {
        queue.key: queue.max_offset for queue in MessageStore.open(str(golden(CLEAN))).queues()
    }
    assert sum(len(queue.range.extra_units) for queue in queues) == len(rows)
    assert all(queue.scanned is None for queue in queues)
    assert _places(root) == told_places(told(CLEAN))


def test_a_process_that_has_ended_is_started_again(golden: Golden) -> None:
    store = MessageStore.open(str(golden(CLEAN)))
    first = [queue.range for queue in store.queues()]
    for _, database in files_at(store.path).databases._open.values():
        os.kill(database._process.pid, signal.SIGKILL)
        database._process.wait()
    assert [queue.range for queue in store.queues()] == first


@pytest.mark.parametrize("name", [CLEAN, KILLED])
def test_tasks_read_object_storage(server: ObjectServer, name: str) -> None:
    root = goldens.unpack(name, server.bucket / name)
    columns = ",".join(NAMES)
    found = rows_of(read([server.url_of(root)], includeSystemTopics=True, columns=columns).table())  # type: ignore[list-item] # an address
    assert differences(found, expected(name, root)) == []
    assert len(found) == goldens.expected(name)["rows"]


def test_entries_of_a_range(golden: Golden) -> None:
    queue = MessageStore.open(str(golden(CLEAN))).queue(*QUEUE)
    offsets, units = queue.piece().read()
    rows = [row for row in told(CLEAN) if (row["topic"], row["queueId"]) == QUEUE]
    assert offsets.tolist() == [row["queueOffset"] for row in rows]
    assert units["physical_offset"].tolist() == [row["physicalOffset"] for row in rows]
    assert units["tags_code"].tolist() == [row["tagsCode"] for row in rows]
    assert not units.flags.writeable
    part = queue.piece(FIRST + 3, FIRST + 9).read()[1]
    assert np.array_equal(part, units[3:9])


def test_cuts_are_where_a_read_of_all_entries_finds_them(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    piece = MessageStore.open(str(golden(CLEAN))).queue(*QUEUE).piece()
    places = [row["physicalOffset"] for row in told(CLEAN) if (row["topic"], row["queueId"]) == QUEUE]
    edges = [0, places[0], places[3] + 1, places[-1], places[-1] + 1]
    whole, part = piece.cuts_at(edges), piece._replace(start=FIRST + 2, stop=FIRST + 4).cuts_at(edges)
    assert whole.tolist()[:4] == [FIRST, FIRST, FIRST, FIRST + 4]
    monkeypatch.setattr(slices, "_SPLIT_WHOLE_MAX", 0)
    assert np.array_equal(piece.cuts_at(edges), whole)
    assert np.array_equal(piece._replace(start=FIRST + 2, stop=FIRST + 4).cuts_at(edges), part)
