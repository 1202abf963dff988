"""Recovery read-only: the end of the log and the missing entries equal what the broker's own recovery made of
the same store.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from store_format import MessageStore
from store_format.commit.recover import recover
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import EndKind
from store_format.diagnose import diagnose
from store_format.diagnose.problems import NextStep, verdict
from store_format.errors import CorruptStoreError
from store_format.files.read import FileCache
from store_format.layouts import BATCH_CQ_UNIT, CQ_PRE_BLANK_SIZE, CQ_UNIT
from store_format.message.columns import decode_options_of
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.read.store import Store, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.survey.log_end import LogEnd
from store_format.survey.scan import LogScan
from tests.support import goldens, oracle
from tests.support.entries import made_entries
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.referee.made import BrokerStore

Queue = tuple[str, int]

CRASHED = ("crash-5.5.0", "crash-torn-5.5.0")
STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]


def _open(root: Path) -> CommitLog:
    return CommitLog.open([str(root / "commitlog")], FileCache())


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


def test_entries_that_a_broker_keeps_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directories of two queues are exchanged: a broker hands out the messages of the other queue."""
    store = BrokerStore(tmp_path / "store")
    for topic in ("A", "B", "B", "A", "B"):
        store.put(topic)
    queues = store.write(crashed=True) / "consumequeue"
    assert len(MessageStore.open(str(store.root)).queue("A", 0).to_table()) == 2
    assert not caplog.records
    for old, new in (("A", "C"), ("B", "A"), ("C", "B")):
        (queues / old).rename(queues / new)
    found = MessageStore.open(str(store.root)).queue("A", 0).to_table(columns=["physicalOffset"])
    places = [each.physical_offset for each in store.messages if each.topic == "A"]
    assert found["physicalOffset"].to_pylist() == places
    (warning,) = caplog.messages
    assert "1 consume queues have entries of other messages" in warning


def test_the_first_message_behind_expired_ones_without_entries_is_read(tmp_path: Path) -> None:
    """In a store that was stopped in order, too: their offsets are no gap."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    for is_filed in (True, False):
        store.put("A", files=is_filed)
    last = store.put("A", body=bytes(800), files=False)  # the first one of the next file
    (store.write() / "commitlog" / f"{0:020}").unlink()
    assert _places(tmp_path, "A") == [(2, last.physical_offset)]


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


def test_an_entry_of_the_next_message_hides_no_other_queue(tmp_path: Path) -> None:
    """After a crash, the last entry of A-0 leads to the message behind it; A-0 began at 0 again."""
    store = BrokerStore(tmp_path)
    for topic in ("A", "A", "B", "A", "A", "A", "B"):
        if len(store.messages) == 3:
            store.restart("A")
        store.put(topic)
    store.entries["A", 0] = store.entries["A", 0][1:]
    found = MessageStore.open(str(store.write(crashed=True))).find(since=0).table
    places = sorted(zip(*(found[name].to_pylist() for name in ("topic", "queueOffset")), strict=True))
    assert places == [("A", 0), ("A", 1), ("A", 2), ("B", 0), ("B", 1)]


def test_a_question_after_a_crash_says_which_messages_are_read_without_an_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that starts files the messages behind the place from which it scans the log."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    for topic, count in (("A", 3), ("B", 30), ("A", 3), ("B", 1)):
        for _ in range(count):
            store.put(topic)
    store.restart("A")
    opened = Store.open(str(store.write(crashed=True)), fail_on_unknown=False)
    (queue,) = (each for each in opened.queues() if each.topic == "A")
    assert (queue.min_offset, queue.max_offset) == (3, 6)
    assert "These messages are left out, except those that a broker files when it starts" in caplog.text


def _blanked(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def test_messages_that_a_broker_does_not_file_at_their_offsets_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker files the messages of the last file of the log; those of B-0 begin in an earlier one."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    for topic in ("A", "B", "A", "A", "A", "A", "A", "B", "A"):
        store.put(topic)
    root = store.write(crashed=True)
    _blanked(root / "consumequeue/B/0/00000000000000000000")
    assert len(MessageStore.open(str(root)).queue("B", 0).to_table()) == 2
    (warning,) = caplog.messages
    assert "does not file all messages of 1 consume queues at their queue offsets: B-0" in warning


@pytest.mark.parametrize(("topics", "warnings"), [("BAB", 0), ("BBA", 1)])
def test_messages_behind_an_entry_that_leads_behind_the_log_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topics: str, warnings: int
) -> None:
    """A broker cuts the queue there, and files only messages behind those of all queues."""
    store = BrokerStore(tmp_path)
    for topic in topics:
        store.put(topic)
    root = store.write(crashed=True)
    overwrite(root / f"consumequeue/B/0/{0:020}", 21, b"\x04")
    assert len(MessageStore.open(str(root)).queue("B", 0).to_table()) == 2
    text = "does not file all messages of 1 consume queues at their queue offsets: B-0"
    assert [text in each for each in caplog.messages] == [True] * warnings


def test_a_first_message_behind_others_that_a_broker_files_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that makes the queue gives the message with offset 0 the entry behind those before it."""
    store = BrokerStore(tmp_path)
    store.put("B")
    for offset in (2, 0, 1):
        store.put("A", offset=offset, files=False)
    store.write(crashed=True)
    assert [offset for offset, _ in _places(tmp_path, "A")] == [0, 1, 2]
    (warning,) = caplog.messages
    assert "does not file all messages of 1 consume queues at their queue offsets: A-0" in warning


@pytest.mark.parametrize("entries", [0, 1])
def test_a_second_message_with_offset_0_that_a_broker_files_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, entries: int
) -> None:
    """It gets the entry behind the first one, which is that of offset 1."""
    store = BrokerStore(tmp_path)
    store.put("A")
    store.put("A", offset=0)
    store.put("A", offset=1)
    store.entries["A", 0] = [*store.entries["A", 0][:entries], *[bytes(20)] * (2 - entries)]
    found = MessageStore.open(str(store.write(crashed=True))).queue("A", 0).to_table()
    assert found["queueOffset"].to_pylist() == [0, 1]
    (warning,) = caplog.messages
    assert "does not file all messages of 1 consume queues at their queue offsets: A-0" in warning


@pytest.mark.parametrize("has_queues", [True, False])
def test_a_message_with_a_far_queue_offset_is_left_out_as_by_a_recovery(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_queues: bool
) -> None:
    store = BrokerStore(tmp_path)
    for _ in range(3):
        store.put("A", 0)
    store.put("A", 0, offset=1 << 40, files=False)
    root = store.write(crashed=True)
    if not has_queues:
        shutil.rmtree(root / "consumequeue")
    opened = MessageStore.open(str(root), unfiled_queues="read")
    before = opened.queue("A", 0).to_table()
    assert before["queueOffset"].to_pylist() == [0, 1, 2]
    assert opened.queue("A", 0).to_table() == before
    assert caplog.text.count("A-0: 1 messages have queue offsets far behind all others") == 1
    (conf := tmp_path / "made.conf").write_text(
        "".join(f"{key}={value}\n" for key, value in store.conf.items())
    )
    recover(str(root), broker_conf=str(conf)).apply()
    assert MessageStore.open(str(root)).queue("A", 0).to_table() == before
    found = diagnose(str(root))
    assert [each.advice[:27] for each in found.of("damage")] == ["No command puts this right:"]
    assert "1 whole message that no read returns from its queue" in found.verdict
    assert "queue offset" not in found.verdict.replace("from its queue", "")
    assert verdict(found)[1] is NextStep.NOTHING


def test_a_queue_that_begins_with_a_far_queue_offset_keeps_it(tmp_path: Path) -> None:
    """A broker that builds the queue begins it with the first message, whatever its offset is."""
    store = BrokerStore(tmp_path)
    store.put("A", 0, offset=1 << 40)
    store.put("A", 0, offset=1)
    shutil.rmtree(store.write(crashed=True) / "consumequeue")
    found = MessageStore.open(str(tmp_path), unfiled_queues="read").queue("A", 0).to_table()
    assert 1 << 40 in found["queueOffset"].to_pylist()


def test_entries_behind_one_of_zeros_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker counts the first entry of the last file, whatever it is, and those behind it."""
    store = BrokerStore(tmp_path)
    store.put("A")
    store.put("B")
    store.entries["A", 0].insert(0, bytes(20))
    found = MessageStore.open(str(store.write(crashed=True))).queue("A", 0).to_table()
    assert found["queueOffset"].to_pylist() == [0]
    (warning,) = caplog.messages
    assert "1 consume queues have entries of other messages" in warning


def test_an_entry_behind_the_log_before_the_last_file_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that starts looks for such entries in the last file of a queue alone, and keeps this one."""
    store = BrokerStore(tmp_path, queue_entries=2)
    for _ in range(5):
        store.put("A")
    store.entries["A", 0][3] = oracle.cq_unit(1 << 41, 100, 0)
    found = MessageStore.open(str(store.write(crashed=True))).queue("A", 0).to_table()
    assert found["queueOffset"].to_pylist() == [0, 1, 2, 3, 4]
    (warning,) = caplog.messages
    assert "1 consume queues have entries of other messages" in warning


def _places(root: Path, topic: str) -> list[tuple[int, int]]:
    """(queue offset, physical offset) of the messages that a read of queue 0 returns."""
    found = MessageStore.open(str(root)).queue(topic, 0).to_table(columns=["queueOffset", "physicalOffset"])
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def test_a_queue_whose_first_entry_is_right_does_not_begin_again(tmp_path: Path) -> None:
    """The offsets of its messages begin at 0 again. Its file is full, so the commitlog is scanned."""
    store = BrokerStore(tmp_path, queue_entries=4)
    first = [store.put("A").physical_offset for _ in range(3)]
    store.put("A", offset=0)
    store.put("A", offset=1)
    last = store.put("A", offset=6, files=False).physical_offset
    assert _places(store.write(), "A") == [*enumerate(first), (6, last)]


def test_a_broker_files_offset_0_in_a_blank_file(tmp_path: Path) -> None:
    """The topic was deleted and created again: its earlier messages are before the end of B's queue."""
    store = BrokerStore(tmp_path)
    store.put("A")
    second = store.put("A").physical_offset
    store.restart("A")
    store.put("B")
    last = store.put("A").physical_offset
    _blanked(store.write() / "consumequeue/A/0" / f"{0:020d}")
    assert _places(tmp_path, "A") == [(0, last), (1, second)]


def test_a_queue_whose_files_cannot_be_used_has_files(tmp_path: Path) -> None:
    """A broker makes no queue that has files: its topic was deleted and created again."""
    store = BrokerStore(tmp_path)
    store.put("A")
    store.put("A")
    store.restart("A")
    again = [store.put("A").physical_offset for _ in range(3)]
    (store.write(crashed=True) / "consumequeue/A/0" / f"{3:020d}").mkdir()
    assert _places(tmp_path, "A") == [*enumerate(again)]


def test_entries_of_expired_messages_in_exchanged_files_are_no_damage(tmp_path: Path) -> None:
    """Retention has deleted the messages 0 to 5. The first two files of the queue that it left are
    exchanged.
    """
    store = BrokerStore(tmp_path, log_file_size=1024, queue_entries=4)
    for _ in range(14):
        store.put("A")
    first, second, third, _ = sorted((store.write() / "consumequeue/A/0").iterdir())
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    first.unlink()
    second.rename(first)
    third.rename(second)
    first.rename(third)
    assert [offset for offset, _ in _places(tmp_path, "A")] == [*range(6, 14)]


def test_entries_of_a_shifted_file_hide_no_new_beginning(tmp_path: Path) -> None:
    """The topic was deleted and created again: the first messages of the log are not of its queue."""
    store = BrokerStore(tmp_path)
    for _ in range(5):
        store.put("A")
    store.restart("A")
    for _ in range(3):
        store.put("A")
    store.entries["A", 0].insert(0, bytes(20))
    found = MessageStore.open(str(store.write())).queue("A", 0).to_table(0, 3, columns=["physicalOffset"])
    assert found["physicalOffset"].to_pylist() == [each.physical_offset for each in store.messages[5:]]


def test_messages_of_a_deleted_topic_stay_deleted_if_the_later_ones_are_lost(tmp_path: Path) -> None:
    """After a crash. The topic was created again, and the last file of the log is lost, with its messages."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    store.put("A")
    store.put("A")
    store.restart("A")
    store.put("A", 1)
    for topic in "BBBAA":
        store.put(topic)
    (store.write(crashed=True) / "commitlog" / f"{1024:020d}").unlink()
    queues = Store.open(str(tmp_path)).queues("A".__eq__)
    assert [(queue.queue_id, queue.max_offset) for queue in queues] == [(1, 1)]


def _skipping(root: Path) -> list[str]:
    """The topics of the messages that a read returns which skips damage."""
    queues = [(queue, queue.piece()) for queue in Store.open(str(root)).queues()]
    options = decode_options_of(("topic",), True)
    rows = read_pieces(queues, options, Tolerance("DROPMALFORMED", fail_on_data_loss=False))
    return [topic for batch in rows for topic in batch["topic"].to_pylist()]


@pytest.mark.parametrize("crashed", [False, True])
def test_messages_of_a_deleted_topic_take_no_place_of_lost_ones(tmp_path: Path, crashed: bool) -> None:
    """The first entry leads to the end of the log, behind all messages of the queue. An entry of A-1 leads to
    one.
    """
    store = BrokerStore(tmp_path)
    store.put("A", offset=3, files=False)
    store.put("B")
    for offset in range(4):
        store.put("A", offset=offset)
    end, first = store.messages[2].physical_offset, store.messages[0]
    store.entries["A", 1], store.first["A", 1] = [oracle.cq_unit(0, first.total_size, 0)], 0
    log = store.write(crashed=crashed) / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:end].ljust(store.log_file_size, b"\0"))
    assert _skipping(tmp_path) == ["B"]


def test_messages_of_a_deleted_topic_do_not_complete_a_queue_of_a_cut_log(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    store.put("A")
    store.restart("A")
    for topic in "BAAB":
        store.put(topic)
    os.truncate(store.write() / "commitlog" / f"{0:020d}", store.messages[1].physical_offset + 20)
    assert _skipping(tmp_path) == []


def test_a_broker_goes_on_behind_a_record_with_a_wrong_physical_offset(tmp_path: Path) -> None:
    """After a crash. It serves the last message by its entry: a read names the damage."""
    store = BrokerStore(tmp_path)
    store.put("A")
    last = store.put("A").physical_offset
    path = store.write(crashed=True) / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[last + 28] ^= 1
    path.write_bytes(data)
    assert LogEnd.after_crash(_open(tmp_path), _checkpoint(tmp_path)).offset == store.end
    with pytest.raises(CorruptStoreError, match=f"expected physicalOffset {last}, found"):
        MessageStore.open(str(tmp_path)).queue("A", 0).to_table()
    assert diagnose(str(tmp_path)).verdict == "damaged in 1 place: 1 message readable, 1 message lost"


@pytest.mark.parametrize(("bit", "found"), [(63, 5 - (1 << 63)), (2, 1)])
def test_a_flipped_queue_offset_hides_no_other_message(tmp_path: Path, bit: int, found: int) -> None:
    """After a crash, of the newest message of a queue whose first file is expired."""
    store = BrokerStore(tmp_path, log_file_size=1024, queue_entries=4)
    for _ in range(6):
        store.put("A", body=b"b" * 300)
    root, last = store.write(crashed=True), store.messages[-1].physical_offset
    for expired in ("commitlog/0", "commitlog/1024", "consumequeue/A/0/0"):
        (root / expired).with_name(Path(expired).name.zfill(20)).unlink()
    path = root / "commitlog" / f"{last // 1024 * 1024:020d}"
    data = bytearray(path.read_bytes())
    data[last % 1024 + 20 + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    queue = MessageStore.open(str(root)).queue("A", 0)
    with pytest.raises(CorruptStoreError, match=f"expected queueOffset 5, found {found}"):
        queue.to_table()


def test_a_foreign_queue_file_hides_no_earlier_entries(tmp_path: Path) -> None:
    """After a crash, of which only the last file of the log is recovered."""
    store = BrokerStore(tmp_path, log_file_size=1024, queue_entries=4)
    for topic in "AAAAABCCCCCB":
        store.put(topic)
    queues = store.write(crashed=True) / "consumequeue"
    (queues / "A/0" / f"{80:020d}").write_bytes((queues / "B/0" / f"{0:020d}").read_bytes())
    assert [offset for offset, _ in _places(tmp_path, "A")][:4] == [*range(4)]
