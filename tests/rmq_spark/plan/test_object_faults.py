"""Faults of object storage through whole reads: right rows or one clear error, never a wrong or missing row.

A read is what Spark's driver and tasks do, a read in Python, a search or a view; each takes a store that no
request has seen.
"""

from __future__ import annotations

import pickle
import random
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rmq_spark
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format import MessageStore
from store_format.errors import (
    FileReplacedError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from store_format.files import tree
from store_format.files.read import places
from store_format.message.encode import MessageColumns
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.object_server import Fault, ObjectServer, Request
from tests.support.small_store import write_small_store

_TOLERANT = {"failOnDataLoss": "false", "mode": "DROPMALFORMED"}
_NOW_MS = 10**13
_KINDS = ["denied", "expired", "deleted", "replaced", "gone", "long", "whole", "moved"]
_LASTING = {"fs.requestTimeout": "200ms"}
_SECONDS_MAX = 20  # of a read of the machine's slowest day: the tries of one request end after 0.4 s

_Read = Callable[[str, dict[str, str]], object]


def _of_spark(url: str, options: dict[str, str]) -> object:
    parsed = parse_read_options({"path": url, "includeSystemTopics": "true", **options})
    scan = Scan(fields_from_options(parsed), parsed)
    splits = pickle.loads(pickle.dumps(plan(parsed, cores=2).splits))
    return sorted(str(row) for split in splits for batch in scan.read(split) for row in batch.to_pylist())


def _open(url: str, options: dict[str, str]) -> Any:
    return rmq_spark.open(url, options={name: text for name, text in options.items() if "fs." in name})


_READS: dict[str, _Read] = {
    "batch": _of_spark,
    "tolerant": lambda url, options: _of_spark(url, options | _TOLERANT),
    "from a time": lambda url, options: _of_spark(
        url, options | {"startingTimestamp": "1700000001002", "startingOffsetsByTimestampStrategy": "latest"}
    ),
    "python": lambda url, options: _open(url, options).messages().to_table().to_pylist(),
    "find": lambda url, options: _open(url, options).find(key="k1").table.to_pylist(),
    "view": lambda url, options: _open(url, options).view("queues", now_ms=_NOW_MS).to_pylist(),
    "topics": lambda url, options: _open(url, options).view("topics", now_ms=_NOW_MS).to_pylist(),
}


class _Stores:
    """Copies of a small store, each at a place of its own, and what a read of them must return."""

    def __init__(self, server: ObjectServer) -> None:
        self.server, self._numbers = server, count()
        self._first = server.bucket / "first" / "store"
        write_small_store(self._first)

    def new(self) -> str:
        path = self.server.bucket / str(next(self._numbers)) / "store"
        shutil.copytree(self._first, path)
        return self.server.url_of(path)

    def read(self, name: str, fault: Fault, options: dict[str, str]) -> object:
        """What a read returns, with the paths of the copy left out."""
        url = self.new()
        self.server.requests.clear()
        self.server.fault = fault
        try:
            found = _READS[name](url, options)
        finally:
            self.server.fault = lambda request: None
        return str(found).replace(url, "STORE")


@pytest.fixture
def stores(server: ObjectServer) -> _Stores:
    return _Stores(server)


def _from(number: int, kind: str, *, is_once: bool) -> Fault:
    seen = count()

    def fault(request: Request) -> str | None:
        at = next(seen)
        return kind if at == number or (at > number and not is_once) else None

    return fault


def _read_at_each(stores: _Stores, read: str, kinds: list[str], step: int) -> Iterator[tuple[str, object]]:
    """What a read returns, or its error, with a fault at each request and at all from there on."""
    right = stores.read(read, lambda request: None, {})
    requests = len(stores.server.requests)
    for at, kind in enumerate(kinds):
        for is_once in (True, False):
            for number in range(at % step, requests, step):
                fault = _from(number, kind, is_once=is_once)
                name = f"{kind} at request {number} of {requests}, once: {is_once}"
                try:
                    found = stores.read(read, fault, _LASTING)
                except StoreError as error:
                    yield name, error
                else:
                    assert found == right, name


def _is_clear(server: ObjectServer, error: object) -> None:
    assert isinstance(error, (FileReplacedError, StoreNotFoundError, StoreUnreachableError)), repr(error)
    assert error.__cause__ is None
    assert error.__context__ is None or isinstance(error.__context__, StoreError)
    assert isinstance(pickle.loads(pickle.dumps(error)), type(error))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert server.environment()[name] not in repr(error)


@pytest.mark.parametrize("read", ["tolerant", "python"])
def test_no_fault_at_some_requests_costs_a_row(stores: _Stores, read: str) -> None:
    _costs_no_row(stores, read, step=8)


@pytest.mark.whole
@pytest.mark.parametrize("read", _READS)
def test_no_fault_at_any_request_costs_a_row(stores: _Stores, read: str) -> None:
    _costs_no_row(stores, read, step=1)


def _costs_no_row(stores: _Stores, read: str, step: int) -> None:
    errors = list(_read_at_each(stores, read, _KINDS, step))
    assert errors
    for _, error in errors:
        _is_clear(stores.server, error)


@pytest.mark.parametrize("kind", ["unavailable", "cut"])
@pytest.mark.parametrize("read", ["batch", "find"])
def test_some_failed_requests_cost_no_row(stores: _Stores, read: str, kind: str) -> None:
    right = stores.read(read, lambda request: None, {})
    chance = random.Random(4)
    found = stores.read(read, lambda request: kind if chance.random() < 0.3 else None, {})
    assert found == right


_TEXTS = {
    "denied": "refused the request; give the credentials the right to list and get objects there",
    "expired": "role of the instance.*, and look whether they have expired",
    "gone": r"127\.0\.0\.1:\d+ does not know s3://bucket-",
    "moved": "it names another address or region for the bucket",
    "unavailable": "it answered 503, after several tries; look at the address, region and account",
    "hang": r"no whole answer in 0\.2 s \(fs\.requestTimeout\), after several tries",
    "cut": "no answer that can be used, after several tries",
    "whole": "no answer that can be used, after several tries",
    "long": r"expected \d+ bytes from byte 0 on, found \d+",
    "replaced": "another version was uploaded since the objects were listed",
    "deleted": "the object is gone since the objects were listed",
}


@pytest.mark.parametrize("kind", _TEXTS)
def test_a_fault_that_lasts_is_one_error_and_soon(stores: _Stores, kind: str) -> None:
    """From the first request on, and from the first one to the commitlog on: in the middle of the plan."""
    for faulty in ("list", "commitlog"):
        if faulty == "list" and kind in ("long", "whole", "replaced", "deleted"):
            continue  # of a listing, these are broken answers
        seen = list[Request]()

        def fault(request: Request, faulty: str = faulty, seen: list[Request] = seen) -> str | None:
            seen += [request] if request.kind == faulty or faulty in request.key else []
            return kind if seen else None

        begun = time.monotonic()
        with pytest.raises(StoreError, match=_TEXTS[kind]) as caught:
            stores.read("tolerant", fault, _LASTING if kind == "hang" else {"fs.requestTimeout": "1s"})
        assert time.monotonic() - begun < _SECONDS_MAX
        _is_clear(stores.server, caught.value)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["unavailable", "hang", "cut"])
@pytest.mark.parametrize("faulty", ["", "/commitlog/"])
def test_without_options_an_error_comes_within_a_minute(stores: _Stores, kind: str, faulty: str) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnreachableError):
        stores.read("tolerant", lambda request: kind if faulty in request.key else None, {})
    assert time.monotonic() - begun < 60


def _replace(store: Path) -> None:
    for path in (store / "commitlog").iterdir():
        path.write_bytes(path.read_bytes()[::-1])


def _delete(store: Path) -> None:
    for path in [*(store / "commitlog").iterdir(), *(store / "consumequeue").rglob("0*")]:
        if path.is_file():
            path.unlink()


@pytest.mark.parametrize("change", [_replace, _delete])
@pytest.mark.parametrize("options", [{}, _TOLERANT], ids=["strict", "tolerant"])
def test_a_store_that_changes_in_the_middle(
    stores: _Stores, change: Callable[[Path], None], options: dict[str, str]
) -> None:
    """Before one request for bytes, all objects become others; what was fetched may still be used."""
    right = stores.read("batch", lambda request: None, options)
    for number in range(0, 12, 3):
        seen = count()

        def fault(request: Request, number: int = number, seen: Iterator[int] = seen) -> None:
            if request.kind == "get" and next(seen) == number:
                change(stores.server.bucket / request.key.partition("/")[0] / "store")

        try:
            assert stores.read("batch", fault, options) == right
        except (
            FileReplacedError,
            StoreNotFoundError,
        ) as error:  # nothing is there, if all were deleted first
            _is_clear(stores.server, error)


@pytest.mark.whole
def test_planning_beside_100_000_objects(stores: _Stores) -> None:
    """Of another topic: the plan of one topic fetches none of them, and its tasks get none of their names."""
    url = stores.new()
    store = stores.server.bucket / url.split("/")[3] / "store"
    for number in range(1000):
        queue = store / "consumequeue/Others" / str(number)
        queue.mkdir(parents=True)
        for file in range(100):
            (queue / f"{file * 6_000_000:020d}").touch()
    stores.server.requests.clear()
    begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    planned = plan(parse_read_options({"path": url, "subscribe": "Orders"}), cores=2)
    took, used = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(f"{took:.1f} s, {used >> 10} MiB, {stores.server.counts()}")
    assert stores.server.counts()["list"] <= 110
    assert stores.server.counts()["get"] <= 30
    assert took < 60
    assert used < 300 << 10  # KiB
    assert len(pickle.dumps(planned.splits)) < 100_000


# ---- reads of object storage -------------------------------------------------------------------------------


_SPLIT_SIZE_MAX = 4000  # bytes


def _read(options: dict[str, str], server: ObjectServer | None = None) -> pa.Table:
    """What the tasks return; they know nothing of what planning has listed."""
    parsed = parse_read_options(options)
    scan = Scan(fields_from_options(parsed), parsed)
    splits = pickle.loads(pickle.dumps(plan(parsed, cores=2).splits))
    if server:
        places().objects_at(server.url_of(server.bucket)).listings.forget()
    before = server.counts()["list"] if server else 0
    batches = [batch for split in splits for batch in scan.read(split)]
    assert server is None or server.counts()["list"] == before
    table = pa.Table.from_batches(batches, scan.fields.to_arrow_schema())
    return table.sort_by([("topic", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")])


def test_tasks_list_nothing(server: ObjectServer, basic: Path) -> None:
    assert _read({"path": server.url_of(basic)}, server) == _read({"path": str(basic)})


# ---- a part of a listing -----------------------------------------------------------------------------------

_VIEWED = ("queues", "lagByTopic", "retention", "usage", "files", "index", "problems")


def _views(url: str) -> dict[str, pa.Table]:
    return {name: MessageStore.open(url).view(name, now_ms=1_795_300_000_000) for name in _VIEWED}


@pytest.fixture
def cleaned(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store of 120 files, of which the first are gone. What is listed is believed for as long as a test."""
    monkeypatch.setattr(tree, "_AGE_MIN_S", 600.0)
    (server.bucket / "store").mkdir()
    return server.url_of(goldens.unpack("cleaned-5.5.0", server.bucket / "store"))


def _tasks(url: str, topic: str) -> Iterator[Iterator[pa.RecordBatch]]:
    """The batches of each task of a read."""
    parsed = parse_read_options({"path": url, "subscribe": topic, "columns": "queueOffset"})
    scan = Scan(fields_from_options(parsed), parsed)
    return (scan.read(split) for split in plan(parsed, cores=4).splits)


def test_a_view_behind_or_within_a_task_sees_the_whole_store(server: ObjectServer, cleaned: str) -> None:
    """As tasks of `messages.union(view)` in one Python worker of Spark."""
    right = _views(cleaned)
    assert (right["files"].num_rows, right["problems"].num_rows) == (120, 0)
    batches = next(_tasks(cleaned, "Orders"))
    assert next(batches).num_rows
    assert _views(cleaned) == right
    for _ in batches:
        pass
    assert _views(cleaned) == right


def test_two_threads_see_what_each_was_given(server: ObjectServer, cleaned: str) -> None:
    right, expected = _views(cleaned), {"Orders": 687, "Audit": 163}

    def read(topic: str) -> int:
        return sum(batch.num_rows for batches in _tasks(cleaned, topic) for batch in batches)

    with ThreadPoolExecutor(4) as pool:
        reads = {topic: pool.submit(read, topic) for topic in expected}
        viewed = [pool.submit(_views, cleaned) for _ in range(2)]
        assert {topic: count.result() for topic, count in reads.items()} == expected
        assert all(views.result() == right for views in viewed)


@pytest.fixture
def long_log(server: ObjectServer) -> Path:
    """A store of 200 commitlog files, in which the messages of 3 queues lie from the begin to the end."""
    root, messages = server.bucket / "store", 9000
    store = MessageStore.create(
        str(root), mapped_file_size_commit_log=16 << 10, mapped_file_size_consume_queue=10_000
    )
    queue_id, properties = (np.arange(messages) % 3).astype(np.int32), pa.array([b""] * messages)
    bodies = pa.array([b"x" * 250] * messages)
    store.append(MessageColumns(topic="Orders", body=bodies, properties=properties, queue_id=queue_id))
    return root


def test_a_split_has_the_objects_of_its_stretch_of_the_log(server: ObjectServer, long_log: Path) -> None:
    """A log of 10 TB has 10,000 files: all of them in 10,000 splits would be 12 GB."""
    options = {"path": server.url_of(long_log), "minPartitions": "40"}
    splits = plan(parse_read_options(options), cores=2).splits
    shares = [share for split in splits for share in split.shares]
    assert len(shares) == 40
    for share in shares:
        names = [item.path.rpartition("/")[0].rpartition("/store/")[2] for item in share.objects]
        assert 4 < names.count("commitlog") <= 20
        assert all(names.count(f"consumequeue/Orders/{queue}") <= 2 for queue in range(3))
        assert len(pickle.dumps(share)) < _SPLIT_SIZE_MAX
    assert _read(options, server) == _read({"path": str(long_log), "minPartitions": "40"})


@pytest.mark.parametrize("at", [700, *(pytest.param(at, marks=pytest.mark.whole) for at in (0, 2999))])
def test_a_damaged_entry_leads_to_a_file_that_no_split_has(
    server: ObjectServer, long_log: Path, at: int
) -> None:
    """The task lists then what it was not given, and finds what a local read finds."""
    file = sorted((long_log / "consumequeue/Orders/1").iterdir())[at // 500]
    overwrite(file, at % 500 * 20, (1_500_000).to_bytes(8, "big"))
    options = {"path": str(long_log), "minPartitions": "40", "mode": "PERMISSIVE"}
    assert _read({**options, "path": server.url_of(long_log)}) == _read(options)


def test_no_secret_travels_to_tasks(server: ObjectServer, basic: Path) -> None:
    parsed = parse_read_options({"path": server.url_of(basic), "fs.endpoint": server.url})
    planned = plan(parsed, cores=2)
    travelling = pickle.dumps((parsed, planned, Scan(fields_from_options(parsed), parsed)))
    assert server.url.encode() in travelling
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert server.environment()[name].encode() not in travelling


@pytest.mark.parametrize("is_root_local", [False, True])
def test_a_commitlog_outside_the_root(
    server: ObjectServer, basic: Path, tmp_path: Path, is_root_local: bool
) -> None:
    """With storePathCommitLog; also where only the commitlog lies on object storage."""
    right = _read({"path": str(basic)})
    logs = server.bucket / "logs"
    shutil.move(basic / "commitlog", logs)
    root = str(shutil.copytree(basic, tmp_path / "root")) if is_root_local else server.url_of(basic)
    options = {"path": root, "storePathCommitLog": server.url_of(logs), "brokerName": "broker-a"}
    assert _read(options, server).drop(["brokerName"]) == right.drop(["brokerName"])


@pytest.mark.parametrize("more", [{"group": "G"}, {"group": "G", "consumeMode": "pop"}])
def test_streams_that_write_beside_the_store_are_refused(
    server: ObjectServer, basic: Path, more: dict[str, str]
) -> None:
    with pytest.raises(OptionError, match="object storage"):
        parse_read_options({"path": server.url_of(basic), "subscribe": "Orders", **more}, where=STREAM)
