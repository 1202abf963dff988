"""Streams of a copy that a program brings up to date while the query runs, on object storage and on a disk:
no message is lost, and none comes twice.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan import scan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.errors import (
    FileReplacedError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from store_format.files.read import places
from store_format.files.source import ObjectBucket
from tests.support.object_server import ObjectServer, Request
from tests.support.staged import append, make_store, numbered

_ORDER = ("config", ".rmqlog", "checkpoint", "index", "consumequeue", "commitlog")  # docs/howto-mirror.md
_COLUMNS = ("topic", "queueId", "queueOffset", "body")
_Message = tuple[str, int, int, bytes]


class _Source:
    """A store that grows, and the copies of its files."""

    def __init__(self, root: Path) -> None:
        self.root = make_store(root)
        self.count = 0

    def grow(self, count: int, topic: str = "A") -> None:
        append(self.root, numbered(topic, self.count, count, body_size=100))
        self.count += count

    def changed(self, target: Path) -> Iterator[Path]:
        """The files that the copy lacks or has an older version of, in the order in which to copy them."""
        found = [path for path in self.root.rglob("*") if path.is_file()]
        for path in sorted(found, key=lambda path: (self._place(path), path)):
            copy = target / path.relative_to(self.root)
            if not copy.exists() or copy.read_bytes() != path.read_bytes():
                yield path

    def copy_to(self, target: Path, stop_after: int | None = None) -> None:
        for path in list(self.changed(target))[:stop_after]:
            copy = target / path.relative_to(self.root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy.with_name(f"{copy.name}.part"))
            copy.with_name(f"{copy.name}.part").rename(copy)

    def _place(self, path: Path) -> int:
        first = path.relative_to(self.root).parts[0]
        return _ORDER.index(first) if first in _ORDER else 0

    def rows(self, *, closed: bool) -> list[_Message]:
        """All messages; with `closed`, those that are not in the last commitlog file."""
        store = MessageStore.open(str(self.root))
        last = store.log.files[-1].start
        tables = [queue.to_table(columns=[*_COLUMNS, "physicalOffset"]) for queue in store.queues()]
        places = [place for table in tables for place in table["physicalOffset"].to_pylist()]
        every = zip((row for table in tables for row in _rows(table)), places, strict=True)
        return sorted(row for row, place in every if not closed or place < last)


def _rows(table: pa.Table | pa.RecordBatch) -> list[_Message]:
    return list(zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True))


class _Query:
    """A streaming query without Spark: its positions, and its tasks, which know nothing of the driver."""

    def __init__(self, path: str, checkpoint: str | None = None, **more: str) -> None:
        self.options = parse_read_options({"path": path, "startingOffsets": "earliest", **more}, where=STREAM)
        self.positions = StreamPositions(StreamStores(self.options))
        self.at = self.positions.initial() if checkpoint is None else json.loads(checkpoint)
        self.scan = Scan(fields_from_options(self.options), self.options)

    def batch(self, before_tasks: Callable[[], object] = lambda: None) -> list[_Message]:
        _forget_young()
        end = json.loads(json.dumps(self.positions.latest(self.at)))
        if end == self.at:
            return []
        splits = pickle.loads(pickle.dumps(self.positions.plan(self.at, end).splits))
        before_tasks()
        kept = dict(places()._remote)
        places()._remote.clear()
        scan._FILES._views.clear()
        rows = [row for split in splits for batch in self.scan.read(split) for row in _rows(batch)]
        places()._remote.update(kept)
        self.at = end
        return rows


def _forget_young() -> None:
    """As if a second had passed since the last listing."""
    for files in places()._remote.values():
        for each in files.listings._trees.values():
            each.taken -= 2


@pytest.fixture
def source(tmp_path: Path) -> _Source:
    return _Source(tmp_path / "source")


@pytest.fixture(params=["objects", "disk"])
def target(request: pytest.FixtureRequest, server: ObjectServer, tmp_path: Path) -> tuple[Path, str]:
    """The copy, and its path for a reader."""
    if request.param == "disk":
        return tmp_path / "copy", str(tmp_path / "copy")
    return server.bucket / "copy", server.url_of(server.bucket / "copy")


@pytest.mark.parametrize("is_crashed", [False, True])
def test_each_message_once_whatever_is_copied(
    source: _Source, target: tuple[Path, str], is_crashed: bool, whole: bool
) -> None:
    """Copies that are complete or broken off at any file; queries that are begun again."""
    place, path = target
    draw = random.Random(7)
    source.grow(40)
    source.copy_to(place)
    if is_crashed:  # a broker is running
        (place / "abort").touch()
    query, seen = _Query(path, includeLastFile="false"), []
    for _ in range(100 if whole else 12):
        if draw.random() < 0.8:
            source.grow(draw.randrange(1, 120), draw.choice("AAAB"))
        source.copy_to(place, draw.choice([None, None, draw.randrange(1, 8)]))
        seen += query.batch()
        if draw.random() < 0.2:
            query = _Query(path, json.dumps(query.at), includeLastFile="false")
    source.copy_to(place)
    seen += query.batch()
    assert sorted(seen) == source.rows(closed=True)
    assert query.batch() == []


def test_what_is_held_back_is_told(source: _Source, target: tuple[Path, str]) -> None:
    place, path = target
    source.grow(30)
    source.copy_to(place)
    query = _Query(path, includeLastFile="false")
    seen = query.batch()
    report = query.positions.report()
    assert report is not None
    assert report["$held"] == {"broker-a": 1 << 14} == {"broker-a": MessageStore.open(path).log.held_bytes}
    assert sorted(seen) == source.rows(closed=True) == []
    source.grow(200)
    source.copy_to(place)
    assert sorted(query.batch()) == source.rows(closed=True) != []


def test_a_stream_may_read_the_last_file_too(source: _Source, server: ObjectServer) -> None:
    place = server.bucket / "copy"
    source.grow(40)
    source.copy_to(place)
    query, seen = _Query(server.url_of(place), includeLastFile="true"), []
    for messages in (10, 50, 1, 90):
        source.grow(messages)
        source.copy_to(place)
        seen += query.batch()
    assert sorted(seen) == source.rows(closed=False)


def test_files_that_are_uploaded_again_before_tasks_read_them(source: _Source, server: ObjectServer) -> None:
    """A queue file, and the last commitlog file, in which the messages of the batch stay as they are."""
    place = server.bucket / "copy"
    source.grow(40)
    source.copy_to(place)
    query = _Query(server.url_of(place), includeLastFile="true")
    right = source.rows(closed=False)

    def grown() -> None:
        source.grow(20)
        source.copy_to(place)

    assert sorted(query.batch(grown)) == right


def test_a_commitlog_file_with_other_messages_is_refused(
    source: _Source, server: ObjectServer, tmp_path: Path
) -> None:
    place = server.bucket / "copy"
    source.grow(40)
    source.copy_to(place)
    query = _Query(server.url_of(place), includeLastFile="true")
    other = _Source(tmp_path / "other")
    other.count = 7
    other.grow(40)
    with pytest.raises(FileReplacedError, match="another version"):
        query.batch(lambda: other.copy_to(place))


@pytest.mark.parametrize(
    ("kind", "include_last"),
    [("denied", "true")]
    + [
        pytest.param(kind, include_last, marks=pytest.mark.whole)
        for kind in ("denied", "unavailable", "gone", "cut")
        for include_last in ("true", "false")
        if (kind, include_last) != ("denied", "true")
    ],
)
def test_a_fault_at_any_request_of_a_stream_loses_nothing(
    source: _Source, server: ObjectServer, kind: str, include_last: str, whole: bool
) -> None:
    """From one request on, the service fails: an error, or the right rows; afterwards all of them, once."""
    place = server.bucket / "copy"
    source.grow(200)
    source.copy_to(place)
    before = _Query(server.url_of(place), includeLastFile=include_last)
    first = before.batch()
    checkpoint = json.dumps(before.at)
    source.grow(300, "AB"[whole])
    source.copy_to(place)
    right = sorted(set(source.rows(closed=include_last == "false")) - set(first))
    assert right
    last, number, failed = False, 0, 0
    while not last:
        seen, query = (
            count(),
            _Query(
                server.url_of(place),
                checkpoint,
                includeLastFile=include_last,
                **{"fs.requestTimeout": "200ms"},
            ),
        )

        def fault(request: Request, number: int = number, seen: Iterator[int] = seen) -> str | None:
            return kind if next(seen) >= number else None

        server.fault, found = fault, []
        with suppress(StoreUnreachableError, FileReplacedError, StoreNotFoundError):
            found = query.batch()
        last = next(seen) <= number
        server.fault = lambda request: None
        bucket = places().objects_at(server.url_of(place)).bucket()
        assert isinstance(bucket, ObjectBucket)
        bucket._rests_until = 0.0
        failed += not found
        found += query.batch()
        assert sorted(found) == right
        number += 1 if whole else 1 + number
    assert failed
