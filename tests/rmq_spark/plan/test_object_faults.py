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
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import rmq_spark
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format.errors import (
    FileReplacedError,
    StoreError,
    StoreNotFoundError,
    StoreUnreachableError,
)
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
