"""A golden store on HDFS: Hadoop's own mini cluster holds it, and what is read is what a disk has.

Only `make proofs` runs this file: Hadoop is 93 MB to download.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from hdfs_native import Client, WriteOptions
from pyspark.sql import SparkSession

from store_format import MessageStore
from store_format.errors import FileReplacedError, StoreNotFoundError, StoreUnreachableError
from store_format.files.client import Access
from store_format.files.read import places
from store_format.views.registry import VIEWS
from tests.interop.hdfs_cluster import hdfs_cluster
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered

pytestmark = pytest.mark.whole

_NOW_MS = 1_800_000_000_000
_STREAMED = ("queueId", "queueOffset", "body")
_WITH_TIMES_OF_FILES = {"files", "retention"}  # those of the copy


class Hdfs:
    """A name node, and a client of the test's own."""

    def __init__(self, place: str, local: Path) -> None:
        self.place, self.local, self.client = place, local, Client(place)

    @property
    def url(self) -> str:
        return f"{self.place}/backup/basic"

    def listing(self) -> list[tuple[str, int, int]]:
        found = self.client.list_status("/", recursive=True)
        return sorted((each.path, each.length, each.modification_time) for each in found)

    def write(self, path: str, data: bytes) -> None:
        with self.client.create(path, WriteOptions(overwrite=True)) as file:
            file.write(data)


def _without_expiry(view: pa.Table) -> pa.Table:
    """A file expires by its own time, which is that of the copy."""
    return view.drop_columns([name for name in view.column_names if name.startswith("expires")])


@pytest.fixture(scope="module")
def hdfs(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    local = golden("basic-5.5.0")
    copies = {f"/backup/{name}": local for name in ("basic", "changed", "denied")}
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs") / "cluster", copies) as place:
        yield Hdfs(place, local)


def test_rows_keys_views_and_commands_are_those_of_a_disk(
    hdfs: Hdfs, capsys: pytest.CaptureFixture[str]
) -> None:
    before = hdfs.listing()
    local, remote = MessageStore.open(str(hdfs.local)), MessageStore.open(hdfs.url)
    assert [queue.key for queue in remote.queues()] == [queue.key for queue in local.queues()]
    for ours, right in zip(remote.queues(), local.queues(), strict=True):
        assert ours.to_table() == right.to_table(), right.key
    for name in {view.name for view in VIEWS} - _WITH_TIMES_OF_FILES:
        found, right = (_without_expiry(store.view(name, now_ms=_NOW_MS)) for store in (remote, local))
        assert found == right, name
    rmqlog = Runner(capsys)
    for words in (
        ("info",), ("verify",), ("ls", "-l"), ("head", "-t", "Orders"),
        ("find", "-t", "Orders", "--key", "订单-1"),
    ):  # fmt: skip
        found, expected = (rmqlog(words[0], place, *words[1:]) for place in (hdfs.url, hdfs.local))
        assert found.code == expected.code == 0, found.err
        assert found.out.replace(hdfs.url, str(hdfs.local)) == expected.out
    refused = rmqlog("clean", hdfs.url, "--file-reserved-time", "1", "--apply")
    assert "HDFS is only read, because a write needs a lock" in refused.err
    assert hdfs.listing() == before


def test_workers_of_spark_read_the_rows(hdfs: Hdfs, spark: SparkSession) -> None:
    before = hdfs.listing()
    reader = spark.read.format("rmqlog").option("subscribe", "Orders").option("fs.requestTimeout", "60s")
    found = reader.load(hdfs.url).collect()
    right = spark.read.format("rmqlog").option("subscribe", "Orders").load(str(hdfs.local)).collect()
    assert sorted(map(str, found)) == sorted(map(str, right))
    assert len(found) == 1326
    assert hdfs.listing() == before


class Growing:
    """A store that grows, its copy on HDFS, and one group whose queries read the copy."""

    def __init__(self, hdfs: Hdfs, spark: SparkSession, place: Path) -> None:
        self.hdfs, self.spark, self.place = hdfs, spark, place
        self.local, self.url = make_store(place / "store"), f"{hdfs.place}/backup/growing"
        self.count = 0
        self.copied: dict[str, bytes] = {}

    def grow(self, count: int) -> None:
        append(self.local, numbered("A", self.count, count, body_size=100))
        self.count += count
        for path in sorted(self.local.rglob("*"), key=lambda path: ("commitlog" in path.parts, path)):
            name = path.relative_to(self.local).as_posix()
            if path.is_file() and self.copied.get(name) != path.read_bytes():
                self.copied[name] = path.read_bytes()
                self.hdfs.write(f"/backup/growing/{name}", self.copied[name])

    def rows(self, *, closed: bool) -> list[tuple[int, int, bytes]]:
        """All messages; with `closed`, those that are not in the last commitlog file."""
        store = MessageStore.open(str(self.local))
        columns = [*_STREAMED, "physicalOffset"]
        every = [
            tuple(row.values())
            for queue in store.queues()
            for row in queue.to_table(columns=columns).to_pylist()
        ]
        return sorted(row[:3] for row in every if not closed or row[3] < store.log.files[-1].start)

    def streamed(self, **options: str) -> list[tuple[int, int, bytes]]:
        """What the next query of the group reads: all that there is."""
        rows: list[tuple[int, int, bytes]] = []
        own = {"group": "CG_hdfs", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "offsetStore": "local"}
        places = {"offsetStorePath": str(self.place / "offsets"), "groupPath": str(self.place / "group")}
        reader = (
            self.spark.readStream.format("rmqlog")
            .option("subscribe", "A")
            .options(**own, **places, **options)
        )
        query = (
            reader.load(self.url)
            .writeStream.foreachBatch(
                lambda frame, _: rows.extend(
                    (row.queueId, row.queueOffset, bytes(row.body))
                    for row in frame.select(*_STREAMED).collect()
                )
            )
            .option("checkpointLocation", str(self.place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sorted(rows)


def test_queries_of_a_group_read_a_growing_copy(hdfs: Hdfs, spark: SparkSession, tmp_path: Path) -> None:
    """Each message once: first those of full commitlog files, then the new ones, then the last file too."""
    copy = Growing(hdfs, spark, tmp_path)
    copy.grow(300)
    first = copy.streamed()
    assert first == copy.rows(closed=True)
    copy.grow(200)
    second = copy.streamed()
    assert second
    assert sorted(first + second) == copy.rows(closed=True)
    copy.grow(1)
    third = copy.streamed(includeLastFile="true")
    assert sorted(first + second + third) == copy.rows(closed=False)
    assert copy.streamed(includeLastFile="true") == []


def test_names_of_the_configuration(hdfs: Hdfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name service whose first name node does not answer, and the default one."""
    found = {
        "fs.defaultFS": hdfs.place,
        "dfs.ha.namenodes.backups": "first,second",
        "dfs.namenode.rpc-address.backups.first": "127.0.0.1:9",
        "dfs.namenode.rpc-address.backups.second": hdfs.place.removeprefix("hdfs://"),
    }
    lines = (
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in found.items()
    )
    (tmp_path / "core-site.xml").write_text(f"<configuration>{''.join(lines)}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    right = MessageStore.open(str(hdfs.local)).queue("Orders", 0).to_table()
    for place in ("hdfs://backups", "hdfs://"):
        assert MessageStore.open(f"{place}/backup/basic").queue("Orders", 0).to_table() == right


def test_versions_are_never_mixed(hdfs: Hdfs) -> None:
    """What was fetched before stays right, and all else fails, until the store is opened again."""
    url = f"{hdfs.place}/backup/changed"
    right = {queue.key: queue.to_table() for queue in MessageStore.open(str(hdfs.local)).queues()}
    store = MessageStore.open(url)
    queues = store.queues()
    item = places().objects_at(url).listings.objects_of(f"{url}/commitlog")[0]
    path = item.path.removeprefix(hdfs.place)
    data = (hdfs.local / "commitlog" / path.rpartition("/")[2]).read_bytes()
    assert places().objects_at(url).bucket().get(item, 4, 1000) == data[4:1000]
    hdfs.write(path, data[::-1])
    with pytest.raises(FileReplacedError, match="was written or replaced since the files were listed"):
        places().objects_at(url).bucket().get(item, 4, 1000)
    for queue in queues:
        with suppress(FileReplacedError):
            assert queue.to_table() == right[queue.key]
    hdfs.write(path, data)  # again: the bytes that were listed, with another time
    assert all(queue.to_table() == right[queue.key] for queue in queues)
    newest = places().objects_at(item.path).listings.newest(item.path)
    assert newest is not None
    with hdfs.client.append(path) as file:
        file.write(b"more")
    with pytest.raises(FileReplacedError, match="was written or replaced"):
        places().objects_at(url).bucket().get(newest, 4, 1000)
    hdfs.client.delete(path)
    with pytest.raises(FileReplacedError, match="the file is gone since the files were listed"):
        places().objects_at(url).bucket().get(item, 4, 1000)
    with pytest.raises(StoreNotFoundError, match="no file is there"):
        MessageStore.open(f"{url}-missing")


def _read_again(url: str) -> None:
    places().objects_at(url).listings.take(url)
    for queue in MessageStore.open(url).queues():
        queue.to_table()


@pytest.mark.parametrize("name", ["commitlog/00000000000000000000", "consumequeue", ""])
def test_a_missing_permission_is_an_error(hdfs: Hdfs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = f"{hdfs.place}/backup/denied", f"/backup/denied/{name}".rstrip("/")
    mode = hdfs.client.get_file_info(path).permission
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    places().reach(url, Access(request_timeout_ms=60_000 + len(name)))  # a client of this user
    hdfs.client.set_permission(path, 0o700)
    try:
        with pytest.raises(
            StoreUnreachableError, match=r"HDFS gives user mallory no (READ|EXECUTE|READ_EXECUTE) perm"
        ):
            _read_again(url)
    finally:
        hdfs.client.set_permission(path, mode)
        places().reach(url, Access())


def test_a_name_node_that_stops_is_an_error(golden: Golden, tmp_path: Path) -> None:
    with hdfs_cluster(tmp_path / "cluster", {"/basic": golden("basic-5.5.0")}) as place:
        url = f"{place}/basic"
        places().reach(url, Access(request_timeout_ms=60_000))
        store = MessageStore.open(url)
    places().reach(url, Access(request_timeout_ms=2_000))
    with pytest.raises(StoreUnreachableError, match=r"HDFS could not be read, no whole answer in 2 s"):
        [queue.to_table() for queue in store.queues()]
    with pytest.raises(StoreUnreachableError, match="HDFS could not be read"):
        MessageStore.open(f"{url}-other")
