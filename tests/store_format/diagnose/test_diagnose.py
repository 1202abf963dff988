"""diagnose(): each fault put into a copy of a broker-written store comes back alone, with its file and byte;
whole stores have none.
"""

from __future__ import annotations

import functools
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_format.diagnose import diagnose
from store_format.diagnose.problems import Diagnosis, Findings, Problem
from store_format.display.text import shown
from store_format.errors import StoreNotFoundError
from store_format.index.file import IndexFile
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.writes import held

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]
CRASHED = ("crash-5.5.0", "crash-torn-5.5.0")
FILE_SIZE = 262144  # of a commitlog file in basic-5.5.0
CQ_FILE_SIZE = 2000


@pytest.fixture
def copy(copy_of: Golden) -> Path:
    return copy_of("basic-5.5.0")


def _serious(diagnosis: Diagnosis) -> list[tuple[str, str, int]]:
    """(severity, file, byte) of everything that is more than information."""
    return [
        (problem.severity, problem.file, problem.position) for problem in diagnosis.of("damage", "warning")
    ]


def _diagnose(root: Path) -> Diagnosis:
    """Also checks what holds for every store: the sums, and that problems are sentences."""
    diagnosis = diagnose(str(root))
    files = [
        path for path in (root / "commitlog").glob("[0-9]" * 20) if path.is_file() and not path.is_symlink()
    ]
    assert diagnosis.summary.total_bytes == sum(path.stat().st_size for path in files)
    for problem in diagnosis:
        assert problem.expected
        assert problem.found
        assert problem.advice
        assert shown(problem.file) in str(problem)
    return diagnosis


def _only(root: Path, severity: str, file: Path | str, position: int = 0) -> Diagnosis:
    """Checks that one problem is more than information, and where it is."""
    diagnosis = _diagnose(root)
    assert _serious(diagnosis) == [(severity, str(file), position)]
    return diagnosis


def _flip(path: Path, position: int, mask: int = 1) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ mask]))


@functools.cache
def _rows(name: str = "basic-5.5.0") -> list[dict[str, Any]]:
    """The messages in the order of the log."""
    return sorted(goldens.expected_rows(name), key=lambda row: int(row["physicalOffset"]))


def _row(index: int = 700) -> dict[str, Any]:
    return _rows()[index]


def _queue_rows() -> list[dict[str, Any]]:
    """The messages of `_row()`'s queue, in its order."""
    queue = (_row()["topic"], _row()["queueId"])
    return [row for row in _rows() if (row["topic"], row["queueId"]) == queue]


def _log_place(root: Path, physical_offset: int) -> tuple[Path, int]:
    return (
        root / "commitlog" / f"{physical_offset // FILE_SIZE * FILE_SIZE:020d}",
        physical_offset % FILE_SIZE,
    )


def _cq_place(root: Path, row: dict[str, Any]) -> tuple[Path, int]:
    position = row["queueOffset"] * 20
    directory = root / "consumequeue" / row["topic"] / str(row["queueId"])
    return directory / f"{position // CQ_FILE_SIZE * CQ_FILE_SIZE:020d}", position % CQ_FILE_SIZE


def test_a_block_of_zeros_in_a_queue_is_one_problem(copy: Path) -> None:
    name = "consumequeue/Orders/1/" + "0" * 20
    overwrite(copy / name, 200, bytes(1000))
    (problem,) = _diagnose(copy).of("damage")
    assert (problem.file, problem.position) == (str(copy / name), 200)
    assert problem.found == "physicalOffset 0 and size 0 in 50 entries in a row, with entries behind them"


# ---- whole stores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_a_broker_written_store_is_not_damaged(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    diagnosis = _diagnose(root)
    assert diagnosis.of("damage") == []
    assert diagnosis.summary.units == answers["allCommitLogMessages"]
    assert diagnosis.summary.log_end == answers["commitLog"]["maxOffset"]
    if name not in CRASHED:
        has_topics = (root / "config/topics.json").exists()  # of the broker that writes edges: no
        advice = "" if has_topics else "Consumers cannot find the topic"
        assert all(advice and each.advice.startswith(advice) for each in diagnosis.of("warning"))
        assert diagnosis.summary.damage_bytes == 0


def test_what_is_there_beside_files_is_information(golden: Golden) -> None:
    assert [problem.found.split(":")[0] for problem in diagnose(str(golden("rocksdb-5.5.0")))] == [
        "consume queues in RocksDB (storeType=defaultRocksDB)",
        "topics in RocksDB",
    ]
    assert [problem.found.split(":")[0] for problem in diagnose(str(golden("batchcq-5.5.0")))] == [
        "topics of queue.type=BatchCQ"
    ]


def test_of_a_crash_only_what_the_crash_explains(golden: Golden) -> None:
    root = golden("crash-torn-5.5.0")
    found = _serious(_diagnose(root))
    last = sorted((root / "index").iterdir())[-1]
    assert [(severity, file) for severity, file, _ in found] == [
        ("warning", f"{root}/abort"),
        ("warning", f"{root}/commitlog/{0:020d}"),  # the torn unit
        ("warning", f"{root}/consumequeue/Orders/2/{0:020d}"),  # its entry
        ("warning", str(last)),  # its keys
    ]
    root = golden("crash-5.5.0")
    assert _serious(_diagnose(root)) == [
        ("warning", f"{root}/abort", 0),
        ("warning", f"{root}/config/consumerOffset.json", 0),  # killed while saving it
    ]


def test_a_crash_explains_queues_that_lag_behind(copy_of: Golden) -> None:
    root = copy_of("crash-5.5.0")
    queue = root / "consumequeue" / "Orders" / "1"
    units = np.frombuffer(b"".join(file.read_bytes() for file in sorted(queue.iterdir())), ">i4").reshape(
        -1, 5
    )
    last = int(np.flatnonzero(units[:, 2]).max())
    place = f"{queue}/{last * 20 // CQ_FILE_SIZE * CQ_FILE_SIZE:020d}", last * 20 % CQ_FILE_SIZE
    overwrite(Path(place[0]), place[1], bytes(20))
    assert [problem for problem in _serious(_diagnose(root)) if "consumequeue" in problem[1]] == [
        ("warning", *place)
    ]


def test_the_method_of_a_store_says_the_same(copy: Path) -> None:
    _flip(*_log_place(copy, _row()["physicalOffset"] + 95))
    diagnosis = MessageStore.open(str(copy)).diagnose()
    assert diagnosis == diagnose(str(copy))
    assert len(diagnosis.of("damage")) == 1
    assert diagnosis.summary.damage_bytes == _row()["storeSize"]


def test_diagnosing_changes_nothing(golden: Golden, unchanged: Callable[[Path], Any]) -> None:
    with unchanged(golden("crash-torn-5.5.0")):
        diagnose(str(golden("crash-torn-5.5.0")))


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        diagnose(str(tmp_path / "nothing"))
    assert list(diagnose(str(tmp_path))) == []  # an empty one is a store without messages


# ---- commitlog ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "at", "reported_at"),
    [
        ("total size, low bit", 3, None),
        ("total size, high bit", 0, 0),
        ("magic code", 4, 4),
        ("body CRC", 11, 8),
        ("physicalOffset", 35, 28),
        ("body length", 87, None),
        ("first byte of the body", 88, 8),
    ],
)
def test_a_flipped_bit_in_a_message(copy: Path, field: str, at: int, reported_at: int | None) -> None:
    row = _row()
    file, position = _log_place(copy, row["physicalOffset"])
    _flip(file, position + at)
    diagnosis = _diagnose(copy)
    ((severity, path, byte),) = _serious(diagnosis)
    assert (severity, path) == ("damage", str(file)), field
    assert position <= byte < position + row["storeSize"]
    assert reported_at is None or byte == position + reported_at
    assert diagnosis.summary.damage_bytes == row["storeSize"]
    assert diagnosis.summary.units == 2009
    (info,) = diagnosis.of("info")
    assert "1 that point to lost messages" in info.found


def test_several_faults_are_all_named(copy: Path) -> None:
    rows = [_row(i) for i in (10, 400, 900, 1500)]
    places = [_log_place(copy, row["physicalOffset"] + 90) for row in rows]
    for place in places:
        _flip(*place)
    assert _serious(_diagnose(copy)) == [("damage", str(file), position - 82) for file, position in places]


def test_a_changed_tail_is_damage_in_a_clean_store(copy: Path) -> None:
    row = _row(-1)
    file, position = _log_place(copy, row["physicalOffset"])
    _flip(file, position + 90)
    assert _only(copy, "damage", file, position + 8).summary.log_end == row["physicalOffset"]


def test_a_commitlog_file_is_missing(copy: Path) -> None:
    missing = copy / "commitlog" / f"{FILE_SIZE:020d}"
    missing.unlink()
    diagnosis = _only(copy, "damage", missing)
    assert diagnosis.summary.missing_bytes == FILE_SIZE
    assert len(diagnosis.of("info")) == 1  # the entries that lead there


@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_commitlog_file_is_cut(copy: Path, index: int) -> None:
    """Also in the middle of a message; what is before the cut is still counted and checked."""
    file = copy / "commitlog" / f"{index * FILE_SIZE:020d}"
    os.truncate(file, 100_001)
    assert _only(copy, "damage", file, 100_001).summary.unit_bytes > 3 * 190_000


def test_a_commitlog_file_is_longer(copy: Path) -> None:
    file = copy / "commitlog" / f"{FILE_SIZE:020d}"
    os.truncate(file, FILE_SIZE + 10)
    diagnosis = _diagnose(copy)
    assert ("damage", str(file), FILE_SIZE) in _serious(diagnosis)
    assert diagnosis.summary.unplaced_bytes == FILE_SIZE + 10


def test_files_of_two_logs_in_one(copy: Path) -> None:
    shutil.copy(copy / "commitlog" / f"{0:020d}", copy / "commitlog" / f"{100:020d}")
    diagnosis = _only(copy, "damage", f"{copy}/commitlog/{100:020d}")
    assert diagnosis.summary.unplaced_bytes == FILE_SIZE


def test_bytes_behind_the_end(copy: Path) -> None:
    file = copy / "commitlog" / f"{4 * FILE_SIZE:020d}"
    file.write_bytes(bytes(1000) + b"x" + bytes(FILE_SIZE - 1001))
    diagnosis = _only(copy, "warning", file, 1000)
    assert diagnosis.summary.unwritten_bytes == 59208 + FILE_SIZE


# ---- files and directories ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "place",
    [
        "commitlog/notes.txt", "commitlog/123", "commitlog/directory/", "consumequeue/file",
        "consumequeue/Audit/notanumber/", "consumequeue/Audit/4294967296/", "consumequeue/Audit/00/",
        "consumequeue/\udcff/", "consumequeue/Audit/0/tmp", "index/2026",
    ],
)  # fmt: skip
def test_what_does_not_belong_there(copy: Path, place: str) -> None:
    path = copy / place
    path.mkdir() if place.endswith("/") else path.write_bytes(b"x")
    _only(copy, "warning", path)


@pytest.mark.parametrize(
    "place",
    [
        "commitlog/00000000000009999999", "consumequeue/Link", "consumequeue/Audit/7",
        "index/20261121065231935",
    ],
)  # fmt: skip
def test_links_are_named_and_not_followed(copy: Path, place: str) -> None:
    (copy / place).symlink_to("/nowhere")
    _only(copy, "damage", copy / place)


def test_a_file_in_place_of_a_directory(copy: Path) -> None:
    shutil.rmtree(copy / "index")
    (copy / "index").write_bytes(b"")
    _only(copy, "damage", copy / "index")


# ---- consume queues ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "at", "expected"),
    [
        (struct.pack(">q", 12345), 0, "the message"),
        (struct.pack(">q", 0), 0, "the message"),
        (struct.pack(">i", 91), 8, "size"),
        (struct.pack(">q", 4711), 12, "tagsCode 4711"),
    ],
)
def test_an_entry_that_disagrees_with_its_message(copy: Path, data: bytes, at: int, expected: str) -> None:
    file, position = _cq_place(copy, _row())
    overwrite(file, position + at, data)
    (problem,) = _only(copy, "damage", file, position + at).of("damage")
    assert expected.split(" ")[0] in problem.expected
    assert str(_row()["queueOffset"]) in problem.expected
    assert int.from_bytes(data, "big") == int("".join(filter(str.isdigit, problem.found.split(",")[0])))


def test_an_entry_of_the_queue_beside_it(copy: Path) -> None:
    row = _row()
    other = next(one for one in _rows() if one["topic"] == row["topic"] and one["queueId"] != row["queueId"])
    file, position = _cq_place(copy, row)
    from_file, from_position = _cq_place(copy, other)
    overwrite(file, position, from_file.read_bytes()[from_position : from_position + 20])
    _only(copy, "damage", file, position)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_an_entry_that_is_not_there(copy: Path, which: str) -> None:
    rows = _queue_rows()
    file, position = _cq_place(copy, rows[{"first": 0, "middle": len(rows) // 2, "last": -1}[which]])
    overwrite(file, position, bytes(20))
    _only(copy, "damage", file, position)


def test_entries_behind_the_end_of_the_log(copy: Path) -> None:
    row = _queue_rows()[-1]
    file, position = _cq_place(copy, row | {"queueOffset": row["queueOffset"] + 1})
    assert file.exists()
    overwrite(file, position, struct.pack(">qiq", 1_000_000, 200, 0))
    (problem,) = _only(copy, "damage", file, position).of("damage")
    assert "first of 1 entries" in problem.found


def test_a_queue_file_is_missing_or_cut(copy: Path) -> None:
    directory = next(
        path for path in sorted((copy / "consumequeue").glob("*/*")) if len(list(path.iterdir())) > 2
    )
    files = sorted(directory.iterdir())
    os.truncate(files[1], 1990)
    _only(copy, "damage", files[1], 1990)
    files[1].unlink()
    _only(copy, "damage", files[2])


def test_a_queue_without_files(copy: Path) -> None:
    shutil.rmtree(copy / "consumequeue" / "Audit" / "0")
    diagnosis = _only(copy, "damage", f"{copy}/consumequeue/Audit/0")
    count = sum(row["topic"] == "Audit" for row in _rows())
    assert f"none for {count} messages" in diagnosis[0].found


def test_a_topic_that_is_not_configured(copy: Path) -> None:
    for name in ("topics.json", "topics.json.bak"):
        path = copy / "config" / name
        path.write_text(path.read_text().replace('"Audit"', '"Gone"'))
    _only(copy, "warning", f"{copy}/consumequeue/Audit/0")
    shutil.rmtree(copy / "consumequeue" / "Audit")  # then it was deleted, and its messages wait for retention
    diagnosis = _diagnose(copy)
    assert _serious(diagnosis) == []
    assert [problem.file for problem in diagnosis] == [f"{copy}/consumequeue/Audit/0"]


def test_a_batch_queue(copy_of: Golden) -> None:
    root = copy_of("batchcq-5.5.0")
    row = next(row for row in _rows("batchcq-5.5.0") if "outerProperties" in row and row["queueOffset"] > 20)
    directory = root / "batchconsumequeue" / row["topic"] / str(row["queueId"])
    (file, *_) = sorted(directory.iterdir())
    number = file.read_bytes().find(struct.pack(">qi", row["physicalOffset"], row["storeSize"]))
    overwrite(file, number + 8, struct.pack(">i", row["storeSize"] + 1))
    _only(root, "damage", file, number + 8)


# ---- index -------------------------------------------------------------------------------------------------


def _index(root: Path) -> tuple[Path, int, Any]:
    """An index file, the byte of its unit 0, and its units as a copy (element i is unit i + 1)."""
    path = sorted((root / "index").iterdir())[5]
    with IndexFile.open(str(path)) as file:
        assert file.geometry is not None
        return path, file.geometry.units_start, file.units().copy()


def _in_a_circle(units: Any, slots: Any) -> tuple[int, int]:
    number = int(np.flatnonzero(units["prev_index"])[3]) + 1
    return number, number


def _past_a_unit(units: Any, slots: Any) -> tuple[int, int]:
    previous = units["prev_index"]
    number = next(i + 1 for i in range(len(units)) if previous[i] and previous[previous[i] - 1])
    return number, int(previous[previous[number - 1] - 1])


def _into_another_chain(units: Any, slots: Any) -> tuple[int, int]:
    number = int(np.flatnonzero(units["prev_index"])[-1]) + 1
    return number, next(n for n in range(number - 1, 0, -1) if slots[n - 1] != slots[number - 1])


@pytest.mark.parametrize("link", [_in_a_circle, _past_a_unit, _into_another_chain])
def test_a_wrong_link_of_a_chain(copy: Path, link: Callable[[Any, Any], tuple[int, int]]) -> None:
    path, start, units = _index(copy)
    number, previous = link(units, units["key_hash"] % ((start - 40) // 4))
    place = start + 20 * number + 16
    overwrite(path, place, struct.pack(">i", previous))
    (problem,) = _only(copy, "damage", path, place).of("damage")
    assert problem.found == f"unit {previous}"


def test_a_slot_that_leads_nowhere(copy: Path) -> None:
    path, start, units = _index(copy)
    data = path.read_bytes()
    slot = next(at for at in range(40, start, 4) if any(data[at : at + 4]))
    for number in (len(units) + 50, 0):
        overwrite(path, slot, struct.pack(">i", number))
        _only(copy, "damage", path, slot)


@pytest.mark.parametrize(
    ("at", "field", "change"),
    [
        pytest.param(0, ">i", lambda value: value + 1, id="another key"),
        pytest.param(4, ">q", lambda value: value + 1, id="no message"),
        # units in front of it lead into the log, so that its message cannot have expired
        pytest.param(4, ">q", lambda value: -(1 << 62), id="before the log"),
        pytest.param(4, ">q", lambda value: 10_000_000, id="behind the log"),
    ],
)
def test_an_index_unit_that_leads_to_no_message_of_its_key(
    copy: Path, at: int, field: str, change: Callable[[int], int]
) -> None:
    path, start, units = _index(copy)
    place = start + 20 * (len(units) // 2) + at
    (value,) = struct.unpack_from(field, path.read_bytes(), place)
    overwrite(path, place, struct.pack(field, change(value)))
    (problem,) = _only(copy, "damage", path, place).of("damage")
    assert (problem.found == "1 units that point behind it") == (change(value) == 10_000_000)


@pytest.mark.parametrize(
    ("at", "data"),
    [(16, bytes(8)), (24, bytes(8)), (32, struct.pack(">i", 3)), (36, struct.pack(">i", 100_000))],
)
def test_an_index_header_that_disagrees_with_its_units(copy: Path, at: int, data: bytes) -> None:
    path, _, _ = _index(copy)
    overwrite(path, at, data)
    assert ("damage", str(path), at) in _serious(_diagnose(copy))
    if at != 36:  # a wrong count makes units of what is none
        assert len(_serious(_diagnose(copy))) == 1


def test_an_index_file_that_is_cut(copy: Path) -> None:
    path, start, _ = _index(copy)
    os.truncate(path, start + 1)
    _only(copy, "damage", path, 36)


# ---- checkpoint, configuration -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "number"), [*((at, -5) for at in (0, 8, 16, 24)), *((at, 1 << 40) for at in (32, 40))]
)
def test_impossible_numbers_in_the_checkpoint(copy: Path, at: int, number: int) -> None:
    """Negative ones, and offsets that are ahead of the log."""
    overwrite(copy / "checkpoint", at, struct.pack(">q", number))
    _only(copy, "warning", copy / "checkpoint", at)


def test_no_checkpoint_or_a_short_one(copy: Path) -> None:
    os.truncate(copy / "checkpoint", 48)
    _only(copy, "warning", copy / "checkpoint", 48)
    (copy / "checkpoint").unlink()
    _only(copy, "warning", copy / "checkpoint")


def test_a_configuration_file_that_cannot_be_read(copy: Path) -> None:
    path = copy / "config" / "topics.json"
    path.write_bytes(path.read_bytes()[:-30])
    diagnosis = _diagnose(copy)
    assert [(severity, file) for severity, file, _ in _serious(diagnosis)] == [("warning", str(path))]
    assert "The .bak counts instead" in diagnosis[0].advice
    (copy / "config" / "topics.json.bak").write_bytes(b"[]")
    diagnosis = _diagnose(copy)  # a broker does not start (BrokerController.initializeMetadata)
    assert [(severity, file) for severity, file, _ in _serious(diagnosis)] == [("damage", str(path))] * 2
    assert "The file counts as lost" in diagnosis[0].advice
    assert "a broker refuses to start on this store" in diagnosis.verdict
    path.unlink()
    (copy / "config" / "topics.json.bak").write_bytes(path.with_name("subscriptionGroup.json").read_bytes())
    assert "is used instead, as by a broker" in _diagnose(copy)[0].advice


# ---- while a broker runs -----------------------------------------------------------------------------------


def test_what_a_broker_is_writing_is_no_damage(copy: Path) -> None:
    """A unit begun behind the end, a message whose entry and keys are still to come: all of it means "not
    yet".
    """
    last = _row(-1)
    file, position = _log_place(copy, last["physicalOffset"] + last["storeSize"])
    overwrite(file, position, file.read_bytes()[position - last["storeSize"] : position - 50])
    overwrite(*(_cq_place(copy, last)), bytes(20))
    assert len(_serious(_diagnose(copy))) == 1  # without a broker, the unit is one that a recovery has cut
    with held(copy) as broker:
        diagnosis = _diagnose(copy)
    assert _serious(diagnosis) == []
    assert (diagnosis[0].file, diagnosis[0].position) == (f"{copy}/lock", 0)
    assert f"process {broker} " in diagnosis[0].found


# ---- whatever the bytes ------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("seed", range(6))
def test_any_bytes_end_in_a_list(golden: Golden, tmp_path: Path, seed: int) -> None:
    """Ten stores a seed, each with a few flips, absurd numbers, cuts and lost files: no exception, and the
    sums hold.
    """
    random = np.random.default_rng(seed)
    for number in range(10):
        root = Path(shutil.copytree(golden("basic-4.9.7"), tmp_path / str(number)))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for path in random.choice(np.array(files, object), 4, replace=False):
            position = int(random.integers(path.stat().st_size)) if path.stat().st_size else 0
            match int(random.integers(4)):
                case 0:
                    os.truncate(path, position)
                case 1:
                    path.unlink()
                case 2:
                    overwrite(path, position, b"\x7f\xff\xff\xff")
                case 3 if path.stat().st_size:
                    _flip(path, position, 1 << int(random.integers(8)))
        _diagnose(root)


# ---- the list itself ---------------------------------------------------------------------------------------


def test_a_million_problems_of_one_kind_are_a_thousand_and_a_number() -> None:
    findings = Findings()
    for i in range(5000):
        findings.add("damage", "file", i, "a", "b", "advice")
        findings.add("damage", "file", i, "a", "b", "advice")
    problems = findings.problems()
    assert len(problems) == 1001
    assert problems[-1] == Problem("damage", "file", 4999, "a", "b, the last of 8000 more", "advice")
