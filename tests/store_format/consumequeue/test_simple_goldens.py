"""Every consume queue of every golden store: bounds, units and offsets by time as the broker's own classes
answered them.

Of the two crashed stores the broker answered after its recovery, which cuts units behind the commitlog's end
and adds missing ones; here only what recovery leaves alone is compared, the rest is the store's part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from store_format.consumequeue.files import QueueBounds, QueueKind, queue_directory
from store_format.consumequeue.offset_by_time import offset_at
from store_format.consumequeue.units import message_mask, queue_bounds, read_batch_units, read_units
from tests.support import goldens

CRASHED = ("crash-5.5.0", "crash-torn-5.5.0")
WITH_QUEUE_FILES = tuple(name for name in goldens.NAMES if not name.startswith("rocksdb"))
CLEAN = tuple(name for name in WITH_QUEUE_FILES if name not in CRASHED)

Golden = Callable[[str], Path]


class Log:
    """The commitlog's bytes by physical offset, read without any code under test."""

    def __init__(self, root: Path) -> None:
        self.files = {int(path.name): path for path in (root / "commitlog").iterdir()}
        self.min = min(self.files)
        self.size = next(iter(self.files.values())).stat().st_size

    def read(self, physical_offset: int, length: int) -> bytes:
        start = physical_offset - physical_offset % self.size
        if start not in self.files:
            return b""
        with self.files[start].open("rb") as file:
            file.seek(physical_offset - start)
            return file.read(length)

    def store_timestamp(self, physical_offset: int) -> int:
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
    directory = queue_directory(str(root), topic, queue_id, kind)
    return queue_bounds(
        kind, directory, topic, queue_id, commit_log_min, commit_log_stop=commit_log_stop, scan=scan
    )


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


@pytest.mark.parametrize("name", CRASHED)
def test_bounds_and_units_of_a_crashed_store_up_to_what_recovery_adds(golden: Golden, name: str) -> None:
    root, answers = golden(name), goldens.expected(name)
    log, commit_log_stop, hidden, missing = Log(root), answers["commitLog"]["maxOffset"], 0, 0
    rows = _rows(name, "")
    for queue in answers["queues"]:
        key = queue["topic"], queue["queueId"]
        raw = _bounds(root, *key, log.min)
        bounds = _bounds(root, *key, log.min, commit_log_stop, scan=True)
        assert raw is not None
        assert bounds is not None
        assert (bounds.min_offset, bounds.first_physical_offset) == (
            queue["minOffset"],
            queue["minPhysicalOffset"],
        )
        assert bounds.last_physical_offset + bounds.last_size <= queue["maxPhysicalOffset"]
        expected = [(row["physicalOffset"], row["storeSize"], row["tagsCode"]) for row in rows[key]]
        units = _columns(read_units(bounds, bounds.min_offset, bounds.max_offset))
        assert units == expected[: len(units)]
        hidden += raw.max_offset - bounds.max_offset
        missing += queue["maxOffset"] - bounds.max_offset
    # the torn message's unit
    assert (hidden, missing) == {"crash-5.5.0": (0, 0), "crash-torn-5.5.0": (1, 0)}[name]


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


def _offset_at_4(bounds: QueueBounds, timestamp: int, log: Log, file_start: int) -> int:
    """The search in one file of 4.9's ConsumeQueue.getOffsetInQueueByTime: an exact hit, else the nearer of
    two neighbours.
    """
    start = file_start // 20
    low, high = max(start, bounds.min_offset), min(start + bounds.file_size // 20, bounds.max_offset) - 1
    units = read_units(bounds, start, high + 1)
    left: tuple[int, int] | None = None
    right: tuple[int, int] | None = None
    while low <= high:
        middle = (low + high) // 2
        time = log.store_timestamp(int(units[middle - start]["physical_offset"]))
        if time == timestamp:
            return middle
        if time > timestamp:
            high, right = middle - 1, (middle, time)
        else:
            low, left = middle + 1, (middle, time)
    if left is None or right is None:
        return (left or right or (0, 0))[0]
    return right[0] if timestamp - left[1] > right[1] - timestamp else left[0]


def _choices_of_4(bounds: QueueBounds, timestamp: int) -> set[int]:
    """The files that MappedFileQueue.getMappedFileByTime may have chosen: by modification time, of which an
    archive keeps the second.
    """
    choices = set()
    for start in bounds.file_starts:
        modified = int((Path(bounds.directory) / f"{start:020d}").stat().st_mtime) * 1000
        if modified + 999 >= timestamp:
            choices.add(start)
        if modified >= timestamp:
            return choices
    return choices | {bounds.last_file}


def test_offsets_by_time_of_4_9(golden: Golden) -> None:
    """4.9 has no boundaries and trusts modification times: its answers are those of its own search over our
    units, and not LOWER's.
    """
    root = golden("basic-4.9.7")
    log, sure, differ = Log(root), 0, 0
    for probe in goldens.expected("basic-4.9.7")["offsetsByTime"]:
        bounds = _bounds(root, probe["topic"], probe["queueId"], log.min)
        assert bounds is not None
        assert probe["boundary"] == "V4"
        answers = {
            _offset_at_4(bounds, probe["timestamp"], log, start)
            for start in _choices_of_4(bounds, probe["timestamp"])
        }
        assert probe["offset"] in answers, probe
        sure += len(answers) == 1
        times = [
            log.store_timestamp(unit[0])
            for unit in read_units(bounds, bounds.min_offset, bounds.max_offset).tolist()
        ]
        lower = offset_at(bounds, probe["timestamp"], "LOWER", log.store_timestamp)
        assert lower == bounds.min_offset + sum(time < probe["timestamp"] for time in times)
        differ += lower != probe["offset"]
    assert sure > 70
    assert differ > 20
