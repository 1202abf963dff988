"""Every consume queue of every golden store: bounds, units and offsets by time as the broker's own classes
answered them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from store_format.consumequeue.files import QueueBounds, QueueKind
from store_format.consumequeue.offset_by_time import offset_at
from store_format.consumequeue.units import FiledQueue, message_mask, read_batch_units, read_units
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.fixtures import Golden

CRASHED = ("crash-5.5.0", "crash-torn-5.5.0", "dledger-crash-5.5.0")
WITH_QUEUE_FILES = tuple(name for name in goldens.NAMES if not name.startswith("rocksdb"))
CLEAN = tuple(name for name in WITH_QUEUE_FILES if name not in CRASHED)


class Log:
    """The commitlog's bytes by physical offset, read without any code under test."""

    def __init__(self, root: Path) -> None:
        paths = (path for each in goldens.log_directories(root) for path in each.iterdir())
        self.files = {int(path.name): path for path in paths}
        self.min = min(self.files)
        self.size = next(iter(self.files.values())).stat().st_size

    def read(self, physical_offset: int, length: int) -> bytes:
        start = physical_offset - physical_offset % self.size
        if start not in self.files:
            return b""
        with self.files[start].open("rb") as file:
            file.seek(physical_offset - start)
            return file.read(length)

    def store_timestamp(self, physical_offset: int, _: int) -> int:
        head = self.read(physical_offset, 76)
        if physical_offset < self.min or not int.from_bytes(head[4:8], "big"):
            return -1
        position = 68 if int.from_bytes(head[36:40], "big") & 0x10 else 56
        return int.from_bytes(head[position : position + 8], "big", signed=True)


def _bounds(
    root: Path,
    topic: str,
    queue_id: int,
    commit_log_min: int,
    commit_log_stop: int | None = None,
    scan: bool = False,
) -> QueueBounds | None:
    batch = root / "batchconsumequeue" / topic / str(queue_id)
    kind: QueueKind = "batch" if batch.is_dir() else "simple"
    queue = FiledQueue.of(Opened(str(root)), topic, queue_id, kind)
    return queue.bounds(commit_log_min, commit_log_stop=commit_log_stop, scan=scan)


def _stores(golden: Golden, name: str) -> list[tuple[Path, dict[str, Any]]]:
    return list(goldens.brokers(name, golden(name)).values())


def _queue_directories(root: Path) -> set[tuple[str, int]]:
    kinds = [kind for kind in (root / "consumequeue", root / "batchconsumequeue") if kind.is_dir()]
    return {
        (topic.name, int(queue.name))
        for kind in kinds
        for topic in kind.iterdir()
        for queue in topic.iterdir()
    }


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("scan", [False, True])
def test_bounds(golden: Golden, name: str, scan: bool) -> None:
    for root, answers in _stores(golden, name):
        log = Log(root)
        found = {}
        for queue in answers["queues"]:
            bounds = _bounds(root, queue["topic"], queue["queueId"], log.min, scan=scan)
            if bounds is None:
                assert queue["maxOffset"] == 0
                continue
            found[queue["topic"], queue["queueId"]] = bounds
            # BatchConsumeQueue.getMaxPhysicOffset is where the last message begins, ConsumeQueue's is where
            # it ends.
            last = bounds.last_physical_offset + (bounds.last_size if bounds.kind == "simple" else 0)
            expected = [
                queue[key] for key in ("minOffset", "maxOffset", "minPhysicalOffset", "maxPhysicalOffset")
            ]
            assert [bounds.min_offset, bounds.max_offset, bounds.first_physical_offset, last] == expected, (
                queue
            )
            if bounds.kind == "simple":
                assert bounds.min_offset * 20 == queue["minLogicOffset"]
        assert set(found) == _queue_directories(root)


def _rows(name: str, broker: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    queues: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in goldens.expected_rows(name):
        if row.get("brokerName", "") == broker:
            queues[row["topic"], row["queueId"]].append(row)
    return queues


def _columns(units: NDArray[np.void]) -> list[tuple[int, int, int]]:
    return [unit[:3] for unit in units.tolist()]


@pytest.mark.parametrize("name", CLEAN)
def test_units(golden: Golden, name: str) -> None:
    for broker, (root, _) in goldens.brokers(name, golden(name)).items():
        for (topic, queue_id), rows in _rows(name, broker).items():
            bounds = _bounds(root, topic, queue_id, Log(root).min)
            assert bounds is not None
            expected = [(row["physicalOffset"], row["storeSize"], row["tagsCode"]) for row in rows]
            offsets = [row["queueOffset"] for row in rows]
            if bounds.kind == "simple":
                units = read_units(bounds, bounds.min_offset, bounds.max_offset)
                assert message_mask(units).all()
                assert offsets == list(range(bounds.min_offset, bounds.max_offset))
                assert _columns(units) == expected
                continue
            assert offsets == list(range(bounds.min_offset, bounds.max_offset))
            for offset, unit in zip(offsets, expected, strict=True):  # one row for each message of a batch
                assert _columns(read_batch_units(bounds, offset, offset + 1)) == [unit]
            whole = read_batch_units(bounds, bounds.min_offset, bounds.max_offset)
            assert _columns(whole) == list(dict.fromkeys(expected))


@pytest.mark.parametrize("name", [name for name in WITH_QUEUE_FILES if name != "basic-4.9.7"])
def test_offsets_by_time(golden: Golden, name: str) -> None:
    for root, answers in _stores(golden, name):
        log = Log(root)
        compared = 0
        for probe in answers["offsetsByTime"]:
            bounds = _bounds(
                root, probe["topic"], probe["queueId"], log.min, answers["commitLog"]["maxOffset"]
            )
            assert bounds is not None
            found = offset_at(bounds, probe["timestamp"], probe["boundary"], log.store_timestamp)
            assert found == probe["offset"], probe
            compared += 1
        assert compared > 50
