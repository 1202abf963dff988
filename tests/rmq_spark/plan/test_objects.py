"""Reads of object storage as the driver plans them and as tasks read them: tasks list nothing."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from store_format.errors import OptionError
from store_format.files import tree
from tests.support.object_server import ObjectServer


def _read(options: dict[str, str], server: ObjectServer | None = None) -> pa.Table:
    """What the tasks return; they know nothing of what planning has listed."""
    parsed = parse_read_options(options)
    scan = Scan(fields_from_options(parsed), parsed)
    splits = pickle.loads(pickle.dumps(plan(parsed, cores=2).splits))
    tree._trees.clear()
    before = server.counts()["list"] if server else 0
    batches = [batch for split in splits for batch in scan.read(split)]
    assert server is None or server.counts()["list"] == before
    table = pa.Table.from_batches(batches, scan.fields.to_arrow_schema())
    return table.sort_by([("topic", "ascending"), ("queueId", "ascending"), ("queueOffset", "ascending")])


def test_tasks_list_nothing(server: ObjectServer, basic: Path) -> None:
    assert _read({"path": server.url_of(basic)}, server) == _read({"path": str(basic)})


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
