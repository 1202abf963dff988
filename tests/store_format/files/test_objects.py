"""Stores on object storage: the answers of a disk, few requests, and one clear error for each fault.

The server speaks the S3 API on loopback (tests/support/object_server.py); each test has a bucket of its own.
"""

from __future__ import annotations

import os
import pickle
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from store_format import MessageStore
from store_format.errors import (
    FileReplacedError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from store_format.files import tree
from store_format.files.client import Access
from store_format.files.read import StorePlaces, files_at, places
from store_format.files.view import FileView
from store_format.message.columns import decode_options_of
from store_format.message.encode import MessageColumns
from store_format.names import QueueKey
from store_format.read.store_root import store_roots
from store_format.read.tolerance import Tolerance
from tests.support import goldens
from tests.support.object_server import Fault, ObjectServer, Request, object_at

_Rows = dict[QueueKey, tuple[int, int, pa.Table | None]]
_ROOT = Path(__file__).parents[3]
_FAULTS_AT_ONCE = 3  # of each ten requests
_PLANNED_SIZE = 16 << 20
_KINDS = ("list", "config", "consumequeue", "commitlog", ".rmqlog")


def _rows(path: str) -> _Rows:
    limits = [(queue, queue.min_offset, queue.max_offset) for queue in MessageStore.open(path).queues()]
    return {queue.key: (low, high, queue.to_table() if high > low else None) for queue, low, high in limits}


def _log_file(server: ObjectServer, data: bytes) -> str:
    """A listed commitlog file in the bucket."""
    path = server.bucket / "store/commitlog" / f"{0:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    (file,) = files_at(server.url_of(path)).store_files(server.url_of(path.parent))
    server.requests.clear()
    return file.path


# ---- the same answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*goldens.NAMES, *goldens.KINDS])
def test_a_store_of_a_broker_reads_the_same(server: ObjectServer, name: str) -> None:
    root = server.bucket / name
    root.mkdir()
    for store, _ in goldens.brokers(name, goldens.unpack(name, root)).values():
        url = server.url_of(store)
        server.requests.clear()
        assert MessageStore.open(url).state is MessageStore.open(str(store)).state
        assert _rows(url) == _rows(str(store))
        assert server.counts()["list"] <= 2
        assert server.counts()["head"] == 0
    assert not server.refused


def test_a_new_look_sees_new_objects(server: ObjectServer, basic: Path) -> None:
    store = MessageStore.open(server.url_of(basic))
    before = len(store.log.relisted().files)
    last = max((basic / "commitlog").iterdir())
    size = last.stat().st_size
    (last.parent / f"{int(last.name) + size:020d}").write_bytes(bytes(size))
    places().objects_at(store.path).listings.take(store.path)
    assert len(store.log.relisted().files) == before + 1


def test_how_every_bucket_is_reached_counts_for_known_ones() -> None:
    there = StorePlaces()
    known, own = there.objects_at("s3://known/store"), there.objects_at("s3://own/store")
    there.set_access("s3://own", Access(region="eu-west-1"))
    there.set_access("", Access(region="us-east-2"))
    assert (known.access.region, own.access.region) == ("us-east-2", "eu-west-1")


def test_ranges_of_a_large_object_have_their_bytes(server: ObjectServer) -> None:
    chance = random.Random(1)
    url = _log_file(server, data := chance.randbytes(25 << 20))
    path = server.bucket / "store/commitlog" / f"{0:020d}"
    with files_at(url).view(url) as view, FileView(str(path)) as local:
        for start in range(0, len(data), 900_000):  # as a walk does, whose reads overlap
            assert view.read(start, 1 << 20) == local.read(start, 1 << 20)
        for _ in range(50):
            start, length = chance.randrange(len(data)), chance.choice([1, 100, 70_000, 300_000, 9 << 20])
            assert view.read(start, length) == local.read(start, length)
        parts = []
        for size_max, number in ((200, 30), (60_000, 300), (4_000_000, 5), (300, 1)):
            starts = np.array([chance.randrange(len(data) - size_max) for _ in range(number)], np.int64)
            sizes = np.array([chance.randrange(1, size_max) for _ in starts], np.int64)
            parts.append((starts, starts + sizes))
        for (starts, stops), window in zip(parts, view.windows(parts), strict=True):
            for start, stop, position in zip(starts, stops, window.positions, strict=True):
                assert window.data[position : position + stop - start].tobytes() == data[start:stop]
        with pytest.raises(FileReplacedError, match="expected at least"):
            list(view.windows([(np.array([len(data) - 10]), np.array([len(data) + 1]))]))


# ---- requests ----------------------------------------------------------------------------------------------


def test_a_walk_of_a_log_takes_pieces_of_8_mib(server: ObjectServer) -> None:
    url = _log_file(server, bytes(40 << 20))
    with files_at(url).view(url) as view:
        for start in range(0, view.size, 1 << 20):
            view.read(start, 1 << 20)
    assert server.counts() == {"get": 40 // 8 + 1}


def test_windows_that_adjoin_share_requests(server: ObjectServer) -> None:
    """A reader takes the messages of a log in windows of about 4 MB."""
    url = _log_file(server, data := random.Random(2).randbytes(40 << 20))
    edges = np.arange(0, len(data) + 1, 5000)
    units = [(edges[at : at + 800][:-1], edges[at : at + 800][1:]) for at in range(0, len(edges) - 1, 799)]
    with files_at(url).view(url) as view:
        for (starts, stops), window in zip(units, view.windows(units), strict=True):
            assert window.data[window.positions[0] :].tobytes() == data[starts[0] : stops[-1]]
    assert server.counts() == {"get": 40 // 8}


def test_objects_that_had_to_go_are_not_fetched_whole_again(server: ObjectServer) -> None:
    """A task reads many queues in the order of the log: a little of each, again and again."""
    directory, size = server.bucket / "store/consumequeue/T", 6 << 20
    for i in range(30):
        (directory / str(i)).mkdir(parents=True)
        with (directory / str(i) / f"{0:020d}").open("wb") as file:
            file.truncate(size)
            file.seek(i * 100_000)
            file.write(bytes([i + 1]) * 100_000)
    every = [object_at(f"{server.url_of(directory)}/{i}/{0:020d}") for i in range(30)]
    blocks = places().objects_at(every[0].path).blocks
    for start in range(0, 3_000_000, 300_000):
        for i, item in enumerate(every):
            right = bytes([i + 1]) if i * 100_000 <= start < (i + 1) * 100_000 else b"\0"
            assert bytes(blocks.read(item, start, start + 1000)) == right * 1000
    fetched = sum(request.stop - request.start for request in server.requests)
    assert fetched < 1.3 * 30 * size


def test_a_queue_file_is_fetched_once(server: ObjectServer, basic: Path) -> None:
    store = MessageStore.open(server.url_of(basic))
    server.requests.clear()
    for queue in store.queues("Orders".__eq__):
        queue.to_table()
    files = [request.key for request in server.requests if "/consumequeue/" in request.key]
    assert sorted(files) == sorted(set(files))


_PLANNED = """
| asked | requests | of which |
| --- | --- | --- |
| planning a topic of 8 queues | 12 | list 1, config 1, consumequeue 8, commitlog 1, .rmqlog 1 |
| planning a topic of 300 queues | 305 | list 1, config 1, consumequeue 300, commitlog 2, .rmqlog 1 |
"""


def _counts(server: ObjectServer) -> Counter[str]:
    return Counter(
        request.kind if request.kind == "list" else request.key.split("/")[1] for request in server.requests
    )


@pytest.fixture
def planned(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with a topic of 300 queues and one of 8, whose messages others follow in the log."""
    monkeypatch.setattr(tree, "_AGE_MIN_S", 600.0)  # a busy machine would list it again
    root = server.bucket / "store"
    store = MessageStore.create(str(root), mapped_file_size_commit_log=_PLANNED_SIZE)
    for topic, queues, messages in (("Many", 300, 600), ("Orders", 8, 80), ("Other", 1, 800)):
        properties, queue_id = pa.array([b""] * messages), (np.arange(messages) % queues).astype(np.int32)
        bodies = pa.array([b"x" * 300] * messages)
        store.append(MessageColumns(topic=topic, body=bodies, properties=properties, queue_id=queue_id))
    return root


@pytest.mark.parametrize(("topic", "row"), [("Orders", 0), ("Many", 1)])
def test_planning_costs_the_requests_of_the_docs(
    server: ObjectServer, planned: Path, topic: str, row: int
) -> None:
    """None to find the log's end by bisection, and none for the index, the checkpoint and other queues."""

    def ends(path: str) -> dict[QueueKey, tuple[int, int]]:
        queues = MessageStore.open(path).queues(topic.__eq__)
        return {queue.key: (queue.min_offset, queue.max_offset) for queue in queues}

    assert ends(server.url_of(planned)) == ends(str(planned))
    counts = _counts(server)
    told = ", ".join(f"{name} {counts[name]}" for name in sorted(counts, key=_KINDS.index))
    assert f"| {counts.total()} | {told} |" in _PLANNED.strip().splitlines()[2 + row]
    assert _PLANNED in (_ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    assert sum(request.stop - request.start for request in server.requests) < 60 << 20


def test_a_file_that_was_allocated_in_advance_is_one_request(server: ObjectServer, planned: Path) -> None:
    """A copy has all its zeros: 1 GiB of a broker's file."""
    (planned / "commitlog" / f"{_PLANNED_SIZE:020d}").write_bytes(bytes(_PLANNED_SIZE))
    MessageStore.open(server.url_of(planned)).queues("Orders".__eq__)
    assert _counts(server)["commitlog"] == 2


def test_a_directory_of_stores_is_listed_once(server: ObjectServer, basic: Path) -> None:
    assert store_roots(server.url_of(server.bucket)) == [server.url_of(basic)]
    assert server.counts() == {"list": 2}


# ---- faults ------------------------------------------------------------------------------------------------


def _some(kind: str) -> Fault:
    chance = random.Random(4)
    return lambda request: kind if chance.random() < _FAULTS_AT_ONCE / 10 else None


@pytest.mark.parametrize("kind", ["unavailable", "cut", "slow"])
def test_rows_are_right_where_some_requests_fail(server: ObjectServer, basic: Path, kind: str) -> None:
    right = _rows(str(basic))
    server.fault = _some(kind)
    assert _rows(server.url_of(basic)) == right


def _denied(request: Request) -> str | None:
    return "denied" if request.kind == "get" and "commitlog" in request.key else None


@pytest.mark.parametrize(
    ("fault", "error", "text"),
    [
        (_denied, StoreUnreachableError, "request; give the credentials the right to list and get"),
        (lambda request: "denied", StoreUnreachableError, "refused the request"),
        (lambda request: "gone", StoreNotFoundError, "does not know s3://|no object is there"),
    ],
    ids=["a refused log", "all refused", "no bucket"],
)
def test_a_fault_is_one_clear_error(
    server: ObjectServer, basic: Path, fault: Fault, error: type[StoreError], text: str
) -> None:
    server.fault = fault
    with pytest.raises(error, match=text) as caught:
        _rows(server.url_of(basic))
    _is_without_secrets(server, repr(caught.value) + repr(caught.value.__cause__))


def test_a_server_that_is_gone(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    url = f"s3://nowhere-{server.bucket.name}/store"
    places().reach(url, Access(request_timeout_ms=300))
    with pytest.raises(StoreUnreachableError, match=r"127\.0\.0\.1:9 could not be read, no answer that"):
        MessageStore.open(url)


def test_an_object_that_is_replaced_is_never_mixed(server: ObjectServer, basic: Path) -> None:
    """Each request names the version that was listed: what was fetched before stays right, all else fails."""
    right = _rows(str(basic))
    store = MessageStore.open(server.url_of(basic))
    queues = [queue for queue in store.queues() if queue.max_offset > queue.min_offset]
    items = places().objects_at(store.path).listings.objects_of(f"{store.path}/commitlog")
    for path in (basic / "commitlog").iterdir():
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[::-1])
    for item in items:
        with pytest.raises(FileReplacedError, match="another version was uploaded since the objects were"):
            places().objects_at(item.path).bucket().get(item, 0, 100)
    for queue in queues:
        with suppress(FileReplacedError):
            assert queue.to_table() == right[queue.key][2]


def test_a_missing_store_and_a_missing_bucket(server: ObjectServer, basic: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no object is there"):
        MessageStore.open(f"{server.url_of(basic)}x")
    with pytest.raises(StoreNotFoundError, match="is part of a store; the store root is s3://"):
        MessageStore.open(f"{server.url_of(basic)}/consumequeue")


def test_a_part_of_an_object_is_never_taken_for_all_of_it(server: ObjectServer, basic: Path) -> None:
    """A look at very many queues fetches blocks, and a later one whole files."""
    path = server.bucket / "store/config/large.json"
    path.write_bytes(data := bytes(range(256)) * 1000)
    item = object_at(server.url_of(path))
    every = [item] * 2001
    blocks = places().objects_at(item.path).blocks
    for _, first in blocks.look_at_each(every, lambda each: bytes(blocks.read(each, 0, 100))):
        assert first == data[:100]
    assert files_at(server.url_of(path)).read(server.url_of(path)) == data


def test_a_look_at_many_queues_is_one_of_its_thread(server: ObjectServer, basic: Path) -> None:
    """Another thread fetches a file whole meanwhile, as it does alone."""
    path = server.bucket / "store/config/large.json"
    path.write_bytes(data := bytes(range(256)) * 1000)
    item, small = (object_at(server.url_of(each)) for each in (path, basic / "config/topics.json"))
    blocks = places().objects_at(item.path).blocks
    look = blocks.look_at_each([small] * 2001, lambda each: blocks.read(each, 0, 100))
    next(look)
    with ThreadPoolExecutor(1) as pool:
        assert bytes(pool.submit(blocks.read, item, 0, 100).result()) == data[:100]
    assert server.requests[-1].stop == len(data)
    assert sum(1 for _ in look) == 2000


def test_objects_that_are_replaced_are_not_lost(server: ObjectServer, basic: Path) -> None:
    """With failOnDataLoss=false, a read that meets another version fails: the messages are still there."""
    store = MessageStore.open(server.url_of(basic))
    (queue, *_) = [queue for queue in store.queues() if queue.max_offset > queue.min_offset]
    for path in (basic / "commitlog").iterdir():
        data = bytearray(path.read_bytes())
        data[20] ^= 1  # in the first message's queue offset
        path.unlink()
        path.write_bytes(data)
    files = places().objects_at(store.path)
    files.listings.take(store.path)
    files.blocks._blocks.clear()
    files.blocks._held = 0
    files.blocks._pages.clear()
    reader = store.reader(decode_options_of(("body",), verify_crc=True), Tolerance("FAILFAST", False))
    with pytest.raises(FileReplacedError):
        list(reader.read([queue.piece()]))


def test_a_fork_is_refused_and_does_not_hang(server: ObjectServer, basic: Path) -> None:
    MessageStore.open(server.url_of(basic))
    child = os.fork()
    if not child:
        try:
            MessageStore.open(f"{server.url_of(basic)}x")
        except StoreUnreachableError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


# ---- what must not happen ----------------------------------------------------------------------------------


def _is_without_secrets(server: ObjectServer, text: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert server.environment()[name] not in text


def test_nothing_that_travels_has_a_secret(server: ObjectServer, basic: Path) -> None:
    url = server.url_of(basic)
    store = MessageStore.open(url)
    store.queues()
    with pytest.raises(TypeError, match="may not be pickled"):
        pickle.dumps(places().objects_at(url).bucket())
    shown = repr(places().objects_at(url).bucket()) + repr(store) + repr(object_at(f"{url}/checkpoint"))
    _is_without_secrets(server, shown)


_ONE = MessageColumns(topic="T", body=pa.array([b"x"]), properties=pa.array([b""]))
_WRITES: dict[str, Callable[[str], object]] = {
    "append": lambda url: MessageStore.open(url).append(_ONE),
    "flush": lambda url: MessageStore.open(url).flush(),
    "create": lambda url: MessageStore.create(f"{url}-new"),
}


@pytest.mark.parametrize("write", _WRITES.values(), ids=_WRITES)
def test_writing_is_refused(
    server: ObjectServer,
    basic: Path,
    write: Callable[[str], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match="object storage is only read"):
        write(server.url_of(basic))
    assert not server.refused
    assert [path.name for path in tmp_path.iterdir()] == ["buckets"]


def test_a_small_file_is_limited(server: ObjectServer, basic: Path) -> None:
    with pytest.raises(StoreError, match="at most 10 bytes"):
        files_at(server.url_of(basic)).read(f"{server.url_of(basic)}/config/topics.json", 10)
    assert files_at(server.url_of(basic)).read(f"{server.url_of(basic)}/config/nothing") is None
