"""Reads of object storage as the driver plans them and as tasks read them: tasks list nothing."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format import MessageStore
from store_format.errors import OptionError
from store_format.files import tree
from store_format.files.read import places
from store_format.message.encode import MessageColumns
from tests.support import goldens
from tests.support.object_server import ObjectServer

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
    with file.open("r+b") as entries:
        entries.seek(at % 500 * 20)
        entries.write((1_500_000).to_bytes(8, "big"))
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
