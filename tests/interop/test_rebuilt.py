"""Queues and index rebuilt from the commitlog alone, by a real broker and by us: the same files.

With --whole the log is 1 GiB of messages of 1 KiB; the times of both are printed (-s).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.fill import Filling, fill
from store_format.commit.recover import recover
from store_format.index.file import open_index_files
from store_format.layouts import INDEX_UNIT
from tests.interop.harness import RocketMQ
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden

_MESSAGES, _BODY, _LOG_FILE_SIZE = 5_000, 400, 1 << 20
_WHOLE_MESSAGES, _WHOLE_BODY = 1_048_576, 815  # message records of 1 KiB: 1 GiB of log


def _files(root: Path) -> dict[Path, Path]:
    return {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}


def test_a_rebuilt_store_equals_the_broker_s(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, whole: bool
) -> None:
    filling = (
        Filling(messages=_WHOLE_MESSAGES, body_size=_WHOLE_BODY)
        if whole
        else Filling(messages=_MESSAGES, body_size=_BODY, topics=3, commit_log_file_size=_LOG_FILE_SIZE)
    )
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    fill(theirs, filling)
    shutil.rmtree(theirs / "consumequeue")
    (theirs / "checkpoint").unlink()
    shutil.copytree(theirs, mine)
    (theirs / "abort").touch()  # the broker dispatches all messages after a crash only
    config = {
        "mappedFileSizeCommitLog": str(filling.commit_log_file_size),
        "commitLogRecoverMaxNum": "1000",
        "haListenPort": "0",
    }
    begun = time.perf_counter()
    with rocketmq("5.5.0").broker(theirs, config) as broker:
        started = time.perf_counter()
        broker.stop()
    conf = tmp_path / "broker.conf"
    conf.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    rebuilt = time.perf_counter()
    recover(str(mine), broker_conf=str(conf)).apply()
    done = time.perf_counter()
    found, wanted = _files(mine / "consumequeue"), _files(theirs / "consumequeue")
    assert len(wanted) >= filling.queues
    assert found.keys() == wanted.keys()
    compared = 0
    for name, path in wanted.items():
        data = path.read_bytes()
        assert found[name].read_bytes() == data, name
        compared += len(data)
    entries = 0
    index, other = (open_index_files(str(root / "index")) for root in (mine, theirs))
    assert len(index) == len(other) > 0
    for file, their_file in zip(index, other, strict=True):
        units = file.units()
        assert len(units) > filling.messages
        assert np.array_equal(units, np.asarray(their_file.units(), INDEX_UNIT))
        assert np.array_equal(file.slots(), their_file.slots())
        entries += len(units)
    log_bytes = sum(path.stat().st_blocks * 512 for path in (mine / "commitlog").iterdir())
    print(
        f"\n{filling.messages} messages, {log_bytes} bytes of log; {compared} bytes of queues in "
        f"{len(wanted)} files equal, {entries} index entries equal; broker {started - begun:.1f} s to start, "
        f"rmqlog {done - rebuilt:.1f} s"
    )


def test_a_broker_serves_all_that_was_salvaged(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, tmp_path: Path
) -> None:
    """The copy of a store with two damaged places: the broker ends its log where the last message ends."""
    name, new = "crash-5.5.0", tmp_path / "new"
    store, config = copy_of(name), goldens.config(name)
    rows = sorted(goldens.expected_rows(name), key=lambda row: int(row["physicalOffset"]))
    files = sorted((store / "commitlog").iterdir())
    size = files[0].stat().st_size
    for place in (len(rows) // 4, len(rows) // 2):
        physical = int(rows[place]["physicalOffset"])
        overwrite(files[physical // size], physical % size + 40, b"\xff" * 60)
    recover(str(store), into=str(new), salvage=True).apply()
    java = rocketmq("5.5.0")
    opened = java.open_store(new, config)
    served = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in opened.messages}
    wanted = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in rows}
    assert opened.commit_log[1] == goldens.expected(name)["commitLog"]["maxOffset"]
    assert served.keys() < wanted.keys()
    assert len(wanted) - len(served) == 2
    for key, row in served.items():
        assert row["physicalOffset"] == wanted[key]["physicalOffset"]
        assert row["body"] == wanted[key]["body"]
    (new / "abort").touch()  # as after another crash: the broker checks every message
    with java.broker(new, config | {"commitLogRecoverMaxNum": "100"}) as broker:
        pulled = broker.client().messages(["Orders", "Metrics"])
    # A client that pulls over the place of a lost message misses no other one.
    assert {(row["topic"], row["queueId"], row["queueOffset"]) for row in pulled} == {
        key for key in served if key[0] in ("Orders", "Metrics")
    }
