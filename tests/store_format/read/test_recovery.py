"""Recovery read-only: the end of the log and the missing entries equal what the broker's own recovery made of
the same store.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import EndKind
from store_format.files.read import FileCache
from store_format.layouts import BATCH_CQ_UNIT, CQ_PRE_BLANK_SIZE, CQ_UNIT
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.read.store import Store
from store_format.survey.log_end import LogEnd
from store_format.survey.scan import LogScan
from tests.support import goldens, oracle
from tests.support.entries import made_entries
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.referee.made import made

Queue = tuple[str, int]

CRASHED = ("crash-5.5.0", "crash-torn-5.5.0", "dledger-crash-5.5.0")
STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]


def _open(root: Path) -> CommitLog:
    return CommitLog.open(list(map(str, goldens.log_directories(root))), FileCache())


def _checkpoint(root: Path) -> Checkpoint:
    checkpoint = read_checkpoint(str(root / "checkpoint"))
    assert checkpoint is not None
    return checkpoint


def _store(golden: Golden, name: str, broker: str) -> tuple[Path, dict[str, Any]]:
    return goldens.brokers(name, golden(name))[broker]


def _units_on_disk(root: Path, end: int) -> dict[Queue, tuple[list[int], NDArray[np.void]]]:
    """(queue offsets, units) of every simple and batch queue, one unit at a time: up to the first that is
    empty or at `end`.
    """
    queues = {}
    for kind, layout in (("consumequeue", CQ_UNIT), ("batchconsumequeue", BATCH_CQ_UNIT)):
        for directory in sorted((root / kind).glob("*/*/")) if (root / kind).is_dir() else []:
            files = sorted(directory.glob("[0-9]" * 20))
            data = b"".join(file.read_bytes() for file in files)
            if not files or "rocksdb" in str(root):
                continue
            first = int(files[0].name) // layout.itemsize
            offsets, units = [], []
            for i, unit in enumerate(np.frombuffer(data, layout)):
                if unit["size"] <= 0 or unit["physical_offset"] >= end:
                    break
                if unit["size"] != CQ_PRE_BLANK_SIZE:
                    offsets.append(int(unit["base_offset"]) if layout == BATCH_CQ_UNIT else first + i)
                    units.append(unit)
            queues[directory.parent.name, int(directory.name)] = (offsets, np.array(units, layout))
    return queues


def _max_offsets(queues: dict[Queue, tuple[list[int], NDArray[np.void]]]) -> dict[Queue, int]:
    found = {}
    for queue, (offsets, units) in queues.items():
        if offsets:
            found[queue] = offsets[-1] + (int(units["batch_size"][-1]) if units.dtype == BATCH_CQ_UNIT else 1)
    return found


def _batch_topics(root: Path) -> set[str]:
    directory = root / "batchconsumequeue"
    return {path.name for path in directory.iterdir()} if directory.is_dir() else set()


# ---- the end -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_the_end_is_where_the_broker_puts_it(golden: Golden, name: str, broker: str) -> None:
    root, expected = _store(golden, name, broker)
    log = _open(root)
    end = LogEnd.after_crash(log, _checkpoint(root)) if name in CRASHED else LogEnd.after_stop(log, -1)
    assert end.offset == expected["commitLog"]["maxOffset"]
    assert end.last_unit_offset < end.offset
    assert end.end.kind is (EndKind.TORN if name == "crash-torn-5.5.0" else EndKind.UNWRITTEN)
    if expected["checkpointAfterLoad"].get("confirmPhyOffset") and name in CRASHED:
        assert end.last_unit_offset == expected["checkpointAfterLoad"]["confirmPhyOffset"]


@pytest.mark.parametrize("name", CRASHED)
def test_queues_of_a_crashed_store_end_where_the_broker_ends_them(golden: Golden, name: str) -> None:
    root, expected = _store(golden, name, "")
    log = _open(root)
    end = LogEnd.after_crash(log, _checkpoint(root))
    on_disk = _max_offsets(_units_on_disk(root, end.offset))
    added = made_entries(log, end.scan_start, end.offset, on_disk)
    found = on_disk | {queue: entries.max_offset for queue, entries in added.items()}
    assert found == {(q["topic"], q["queueId"]): q["maxOffset"] for q in expected["queues"] if q["maxOffset"]}


# ---- entries made again ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), [store for store in STORES if store[0] != "rocksdb-5.5.0"])
def test_all_entries_made_again_are_the_bytes_on_disk(golden: Golden, name: str, broker: str) -> None:
    root, expected = _store(golden, name, broker)
    log = _open(root)
    end = expected["commitLog"]["maxOffset"]
    made = made_entries(log, log.min_offset, end, {}, batch_topics=_batch_topics(root))
    on_disk = _units_on_disk(root, end)
    compared = 0
    for queue, (offsets, units) in on_disk.items():
        alive = units["physical_offset"] >= log.min_offset
        if alive.any():
            assert made[queue].queue_offsets.tolist() == np.array(offsets)[alive].tolist()
            assert made[queue].units.tobytes() == units[alive].tobytes()
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize(
    "name", ["crash-5.5.0", "basic-5.5.0", "edge-5.5.0", "batchcq-5.5.0", "delay-tx-5.5.0"]
)
@pytest.mark.parametrize("lost", [1, 3, 100])
def test_queues_that_lag_behind_the_log_are_completed(
    golden: Golden, tmp_path: Path, name: str, lost: int
) -> None:
    """As after a power loss: the commitlog was flushed, the last units of every queue were not."""
    source, expected = _store(golden, name, "")
    root = tmp_path / "store"
    shutil.copytree(source, root, ignore=shutil.ignore_patterns("timerwheel", "rocksdbstore", "index"))
    (root / "abort").write_text("4711")
    log_end = expected["commitLog"]["maxOffset"]
    before = _units_on_disk(root, log_end)
    _zero_last_units(root, log_end, lost)
    log = _open(root)
    end = LogEnd.after_crash(log, _checkpoint(root))
    assert end.offset == log_end
    lagging = _units_on_disk(root, end.offset)
    last = {queue: int(units["physical_offset"][-1]) for queue, (_, units) in lagging.items() if len(units)}
    added = made_entries(
        log,
        end.scan_start,
        end.offset,
        _max_offsets(lagging),
        last_physical_offsets=last,
        batch_topics=_batch_topics(root),
    )
    missing = sum(len(units) for _, units in before.values()) - sum(
        len(units) for _, units in lagging.values()
    )
    assert sum(len(entries.units) for entries in added.values()) == missing > 0
    for queue, (offsets, units) in before.items():
        kept_offsets, kept = lagging[queue]
        made = added.get(queue)
        assert kept_offsets + (made.queue_offsets.tolist() if made else []) == offsets
        assert kept.tobytes() + (made.units.tobytes() if made else b"") == units.tobytes()


def _zero_last_units(root: Path, log_end: int, lost: int) -> None:
    for kind, layout in (("consumequeue", CQ_UNIT), ("batchconsumequeue", BATCH_CQ_UNIT)):
        for directory in (root / kind).glob("*/*/"):
            for path in sorted(directory.glob("[0-9]" * 20), reverse=True):
                path.chmod(0o600)
                units = np.frombuffer(path.read_bytes(), layout).copy()
                places = [i for i, unit in enumerate(units) if unit["size"] > 0]
                dirty = [i for i in places if units["physical_offset"][i] >= log_end]
                real = [i for i in places if i not in dirty and units["size"][i] != CQ_PRE_BLANK_SIZE]
                units[dirty + real[len(real) - min(lost, len(real)) :]] = np.zeros(1, layout)
                path.write_bytes(units.tobytes())
                if real:
                    break


# ---- where a recovery begins -------------------------------------------------------------------------------

FILE_SIZE = 512
FILES = 14


def _many_files(directory: Path, *, broken: int = -1, skipped: int = -1) -> CommitLog:
    """14 files with a unit and a BLANK each. `broken`: the file whose unit has a wrong CRC. `skipped`: the
    file that is not there.
    """
    root = directory / "commitlog"
    root.mkdir(parents=True)
    for i in range(FILES):
        data = bytearray(
            oracle.encode_message(
                Message(
                    b"TopicTest",
                    b"body",
                    queue_offset=i,
                    store_timestamp=_at(i),
                    physical_offset=i * FILE_SIZE,
                )
            )
        )
        data += oracle.blank(FILE_SIZE - len(data))
        if i == broken:
            data[88] ^= 1
        if i != skipped:
            (root / oracle.file_name(i * FILE_SIZE)).write_bytes(bytes(data).ljust(FILE_SIZE, b"\0"))
    return _open(directory)


def _found(
    log: CommitLog, checkpoint: Checkpoint, *, crashed: bool = True, dispatch_from: int = -1
) -> tuple[int, int, int]:
    """(first file checked, first file scanned for entries, end)."""
    end = LogEnd.after_crash(log, checkpoint) if crashed else LogEnd.after_stop(log, dispatch_from)
    assert end.end.kind is EndKind.BLANK
    assert end.last_unit_offset == 13 * FILE_SIZE
    return FILES - end.units, end.scan_start // FILE_SIZE, end.offset


def _at(number: int) -> int:
    return 1_700_000_000_000 + 1000 * number


@pytest.mark.parametrize(
    ("checkpoint", "first_checked", "first_scanned"),
    [
        (Checkpoint(), 4, 0),  # nothing known: the broker looks at ten files, entries may be missing from all
        (Checkpoint(logics_physical_offset=9 * FILE_SIZE + 5), 9, 9),
        # the offset decides, not the times
        (Checkpoint(_at(2), _at(2), logics_physical_offset=9 * FILE_SIZE), 9, 9),
        (Checkpoint(logics_physical_offset=2 * FILE_SIZE), 4, 2),
        (Checkpoint(_at(13), _at(12)), 12, 9),  # 5.5 has no margin; 3 s are three files here
        (Checkpoint(_at(7), _at(12)), 12, 4),  # 5.5 does not look at the commitlog's time
        (Checkpoint(_at(7), _at(12) - 1), 11, 4),
        (Checkpoint(2**63 - 1, 2**63 - 1), 13, 13),
        (Checkpoint(-5, -5, 0, 0, 0, -5), 4, 0),
    ],
)
def test_the_checkpoint_says_where_to_begin(
    tmp_path: Path, checkpoint: Checkpoint, first_checked: int, first_scanned: int
) -> None:
    assert _found(_many_files(tmp_path), checkpoint) == (first_checked, first_scanned, 13 * FILE_SIZE + 104)


@pytest.mark.parametrize(
    ("dispatch_from", "first_checked", "first_scanned"),
    [(-1, 4, 0), (2 * FILE_SIZE, 4, 2), (8 * FILE_SIZE - 1, 7, 7)],
)
def test_after_a_clean_shutdown_the_queues_say_it(
    tmp_path: Path, dispatch_from: int, first_checked: int, first_scanned: int
) -> None:
    checkpoint = Checkpoint(_at(13), _at(13), logics_physical_offset=13 * FILE_SIZE)
    found = _found(_many_files(tmp_path), checkpoint, crashed=False, dispatch_from=dispatch_from)
    assert found == (first_checked, first_scanned, 13 * FILE_SIZE + 104)


def test_damage_in_an_old_file_does_not_end_the_log(tmp_path: Path) -> None:
    log = _many_files(tmp_path, broken=2)
    end = LogEnd.after_crash(log, Checkpoint())
    assert (end.scan_start, end.offset, end.units) == (0, 13 * FILE_SIZE + 104, 10)
    found = [(end.scan_start, end.offset)]
    entries, damage = LogScan(index=False).entries_between(log, found)
    # its bytes are found; reading it checks the CRC
    assert entries["TopicTest", 0].queue_offsets.tolist() == list(range(FILES))
    assert damage == []


def test_damage_in_the_range_is_stepped_over(tmp_path: Path) -> None:
    log = _many_files(tmp_path, skipped=2)
    path = tmp_path / "commitlog" / oracle.file_name(5 * FILE_SIZE)
    path.write_bytes(b"\x01" + path.read_bytes()[1:])
    found = [(0, FILES * FILE_SIZE)]
    entries, damage = LogScan(index=False).entries_between(log, found)
    assert entries["TopicTest", 0].queue_offsets.tolist() == [i for i in range(FILES) if i not in (2, 5)]
    assert entries["TopicTest", 0].max_offset == FILES
    assert [(each.file.start, each.stop - each.start) for each in damage] == [
        (2 * FILE_SIZE, FILE_SIZE),
        (5 * FILE_SIZE, 104),
    ]


def test_damage_in_the_files_that_are_checked_ends_the_log(tmp_path: Path) -> None:
    end = LogEnd.after_crash(_many_files(tmp_path, broken=10), Checkpoint())
    assert (end.offset, end.last_unit_offset, end.end.kind) == (10 * FILE_SIZE, 9 * FILE_SIZE, EndKind.TORN)
    assert end.end.expected.startswith("body CRC")


def test_a_start_file_whose_first_unit_is_bad_does_not_match(tmp_path: Path) -> None:
    log = _many_files(tmp_path, broken=12)
    end = LogEnd.after_crash(log, Checkpoint(logics_physical_offset=12 * FILE_SIZE))
    assert (end.scan_start, end.offset, end.units) == (11 * FILE_SIZE, 12 * FILE_SIZE, 1)


def test_the_end_is_looked_for_beyond_a_missing_file(tmp_path: Path) -> None:
    end = LogEnd.after_crash(_many_files(tmp_path, skipped=8), Checkpoint())
    assert (end.offset, end.units) == (13 * FILE_SIZE + 104, 10)


def test_a_store_without_commitlog_ends_at_0(tmp_path: Path) -> None:
    end = LogEnd.after_crash(_open(tmp_path), Checkpoint())
    assert (end.offset, end.scan_start, end.last_unit_offset, end.units) == (0, 0, -1, 0)
    assert made_entries(_open(tmp_path), 0, 0, {}) == {}


def test_a_question_after_a_crash_says_which_messages_are_read_without_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that starts files the messages behind the place from which it scans the log."""
    store = made(tmp_path, "A*3 B*30 A*3 B -A", log_file_size=1024)
    opened = Store.open(str(store.write(crashed=True)), fail_on_unknown=False)
    (queue,) = (each for each in opened.queues() if each.topic == "A")
    assert (queue.min_offset, queue.max_offset) == (3, 6)
    assert "These messages are left out, except those that a broker files when it starts" in caplog.text
