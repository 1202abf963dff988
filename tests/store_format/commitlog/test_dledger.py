"""Commitlog files of DLedger: heads in front of messages, its BLANK, and bytes that are none of them."""

from __future__ import annotations

import base64
import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, EndKind, UnitRun, Walk
from store_format.diagnose import diagnose
from store_format.errors import StoreError
from store_format.files.read import FileCache
from store_format.store import MessageStore
from tests.support import goldens, oracle
from tests.support.fixtures import Golden

STORE = "dledger-5.5.0"
HEAD = 48  # bytes
CHANGES = int(os.environ.get("RMQLOG_HOSTILE_CHANGES", "100"))


def _log(root: Path) -> CommitLog:
    return CommitLog.open([str(each) for each in goldens.log_directories(root)], FileCache())


def _walked(root: Path, *, resync: bool = False, start: int = 0) -> tuple[Walk, list[int], list[Damage]]:
    """(the walk, where messages begin, the damage)"""
    walk, places, damage = _log(root).walk(start, verify_crc=True, resync=resync), [], []
    for step in walk:
        if isinstance(step, UnitRun):
            places += step.physical_offsets.tolist()
        else:
            damage.append(step)
    assert walk.end is not None
    return walk, places, damage


def _overwrite(root: Path, at: int, data: bytes) -> None:
    start = at // 65536 * 65536
    with (root / f"dledger-n0/data/{start:020d}").open("r+b") as file:
        file.seek(at - start)
        file.write(data)


@pytest.mark.parametrize("name", ["dledger-5.5.0", "dledger-crash-5.5.0", "dledger-upgraded-5.5.0"])
def test_the_heads_are_those_of_the_ledger_s_own_index(golden: Golden, name: str) -> None:
    log = _log(golden(name))
    with (golden(name) / f"dledger-n0/index/{0:020d}").open("rb") as file:
        index = file.read(32 * 1000)
    places = [
        physical - HEAD
        for run in log.runs(log.min_offset, verify_crc=True)
        if run.file.head_size
        for physical in run.physical_offsets.tolist()
    ]
    entries = [struct.unpack_from(">iqiqq", index, 32 * i) for i in range(len(places))]
    assert [(magic, pos, number, term) for magic, pos, _, number, term in entries] == [
        (1, place, i, 0) for i, place in enumerate(places)
    ]
    assert len(places) == {"dledger-5.5.0": 512, "dledger-crash-5.5.0": 336}.get(name, 260)
    assert not any(index[32 * len(places) : 32 * len(places) + 32])


@pytest.mark.parametrize(
    ("at", "data", "expected"),
    [
        (0, b"\0\0\0\2", "magic code 1 of a DLedger entry, or -1 (blank)"),
        (7, b"\xff", "a message of"),
        (15, b"\xff", "index 10 in the head"),
        (16, b"\xff", "term 0 or later in the head"),
        (24, b"\1", "pos "),
        (47, b"\xff", "body size "),
    ],
    ids=["magic", "size", "index", "term", "pos", "body size"],
)
def test_a_wrong_head_ends_a_recovery_and_loses_no_message(
    copy_of: Golden, at: int, data: bytes, expected: str
) -> None:
    root = copy_of(STORE)
    _, whole, _ = _walked(root)
    place = whole[10] - HEAD
    _overwrite(root, place + at, data)
    walk, places, _ = _walked(root)
    assert places == whole[:10]
    assert walk.end is not None
    assert (walk.end.kind, walk.end.offset) == (EndKind.TORN, place)
    if at != 7:
        assert expected in walk.end.expected
    walk, places, damage = _walked(root, resync=True)
    assert places == whole
    assert [each.range for each in damage] == [(place, place + HEAD)]
    assert walk.sums.damage_bytes == HEAD


def test_an_entry_of_an_earlier_term_does_not_follow(copy_of: Golden) -> None:
    """What another leader has cut off may lie behind the new entries, with an index that continues theirs."""
    root = copy_of(STORE)
    _, whole, _ = _walked(root)
    _overwrite(root, whole[20] - HEAD + 16, struct.pack(">q", 1))
    walk, places, _ = _walked(root)
    assert places == whole[:21]
    assert walk.end is not None
    assert "term 1 or later" in walk.end.expected


def test_a_walk_may_begin_and_stop_at_an_entry_or_at_its_message(golden: Golden) -> None:
    _, whole, _ = _walked(golden(STORE))
    log = _log(golden(STORE))
    for start in (whole[5], whole[5] - HEAD):
        for stop, count in ((whole[9], 4), (whole[9] - HEAD, 4), (whole[9] + 1, 5)):
            runs = list(log.runs(start, stop))
            assert [at for run in runs for at in run.physical_offsets.tolist()] == whole[5 : 5 + count]
    assert log.message_offset(whole[5]) == log.message_offset(whole[5] - HEAD) == whole[5]


def test_a_message_that_is_longer_than_a_window(tmp_path: Path) -> None:
    data, whole = b"", []
    for number, size in enumerate((1 << 21, 10, 1 << 21, 10)):
        place = len(data)
        message = oracle.Message(b"T", b"b" * size, physical_offset=place + HEAD)
        unit = oracle.encode_message(message)
        data += oracle.dledger_head(HEAD + len(unit), number, 3, place, len(unit)) + unit
        whole.append(place + HEAD)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{0:020d}").write_bytes(data + bytes(1 << 16))
    log = CommitLog.open([str(tmp_path / "data")], FileCache())
    for resync in (False, True):
        walk = log.walk(0, verify_crc=True, resync=resync)
        runs = [run for run in walk if isinstance(run, UnitRun)]
        assert [at for run in runs for at in run.physical_offsets.tolist()] == whole
        assert (walk.sums.unit_bytes, walk.sums.damage_bytes) == (len(data), 0)
    refs = [log.refs_of(run) for run in log.runs(0)]
    assert sum(len(each) for each in refs) == 4


def test_the_blank_of_a_full_file_and_a_head_without_its_message(copy_of: Golden) -> None:
    root = copy_of(STORE)
    walk, whole, _ = _walked(root)
    first = [place for place in whole if place < 65536]
    size = int.from_bytes((root / f"dledger-n0/data/{0:020d}").read_bytes()[first[-1] :][:4], "big")
    blank = (root / f"dledger-n0/data/{0:020d}").read_bytes()[first[-1] + size :]
    assert struct.unpack_from(">ii", blank) == (-1, len(blank))
    assert walk.end is not None
    head = struct.pack(">iiqqqiiii", 1, HEAD + 200, 512, 0, walk.end.offset, 0, 0, 0, 200)
    _overwrite(root, walk.end.offset, head)  # the head is there, the message not yet
    walk, places, damage = _walked(root, resync=True)
    assert (places, [each.at_tail for each in damage]) == (whole, [True])
    scanned = MessageStore.open(str(root)).scan(["physicalOffset"])
    assert [row["physicalOffset"] for batch in scanned for row in batch.to_pylist()] == whole


def _committed(root: Path, index: int) -> int:
    """Makes the entries behind the index uncommitted, and without entries in queues; returns their start."""
    whole = _walked(root)[1]
    (root / "dledger-n0/checkpoint").write_text(f"committedIndex={index}\nendIndex={len(whole) - 1}\n")
    for path in (path for path in (root / "consumequeue").rglob("*") if path.is_file()):
        units = path.read_bytes()
        kept = [units[at : at + 20] for at in range(0, len(units), 20)]
        kept = [unit if int.from_bytes(unit[:8], "big") <= whole[index] else bytes(20) for unit in kept]
        path.write_bytes(b"".join(kept))
    return whole[index + 1] - HEAD


def test_entries_that_the_group_has_not_committed_are_not_read(
    copy_of: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of(STORE)
    stop = _committed(root, 500)
    store = MessageStore.open(str(root))
    assert sum(queue.max_offset - queue.min_offset for queue in store.queues()) == 501
    assert caplog.text.count(f"from physical offset {stop} on are not committed: they are not read") == 1
    assert store.queue("Orders", 0).max_offset == len(store.queue("Orders", 0).to_table())
    assert store.find(since=0).table.num_rows == 501
    diagnosis = diagnose(str(root))
    assert (diagnosis.of("damage", "warning"), diagnosis.summary.readable) == ([], 501)
    (root / "abort").touch()  # a broker that was killed has not noted what it has committed since
    assert sum(queue.max_offset - queue.min_offset for queue in MessageStore.open(str(root)).queues()) == 512


def test_a_checkpoint_before_what_the_broker_has_dispatched_hides_nothing(copy_of: Golden) -> None:
    root = copy_of(STORE)
    for text in ("committedIndex=100\nendIndex=511\n", "committedIndex=-5", "committedIndex=x", ""):
        (root / "dledger-n0/checkpoint").write_text(text)
        queues = MessageStore.open(str(root)).queues()
        assert sum(queue.max_offset - queue.min_offset for queue in queues) == 512


def test_changed_bytes_are_an_error_or_right_rows(golden: Golden, tmp_path: Path) -> None:
    """Flipped, overwritten and cut bytes in the files of a ledger; the bodies are those that were written."""
    root = tmp_path / "store"
    ignored = shutil.ignore_patterns("timerwheel", "rocksdbstore", "index")
    shutil.copytree(golden(STORE), root, ignore=ignored)
    files = [*sorted((root / "dledger-n0/data").iterdir()), root / "dledger-n0/checkpoint"]
    told = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in goldens.expected_rows(STORE)}
    bodies = {place: base64.b64decode(row["body"]) for place, row in told.items()}
    written = set(bodies.values())
    chance, whole, errors = random.Random(48), {path: path.read_bytes() for path in files}, []
    for _ in range(CHANGES):
        path = chance.choice(files)
        data = bytearray(whole[path])
        for _ in range(chance.choice((1, 1, 1, 4, 40))):
            at = chance.randrange(len(data))
            data[at : at + 1] = chance.choice((bytes([data[at] ^ 1 << chance.randrange(8)]), b"\0", b"\xff"))
        kept = data[: chance.choice((len(data),) * 5 + (chance.randrange(len(data)),))]
        path.write_bytes(kept)
        try:
            store = MessageStore.open(str(root))
            for batch in store.scan(["body"], on_damage="DROPMALFORMED"):  # no sum covers a head
                assert set(batch["body"].to_pylist()) <= written
            queue = store.queue("Orders", chance.randrange(4))
            for row in queue.to_table(columns=["queueOffset", "body"]).to_pylist():
                assert bodies["Orders", queue.queue_id, row["queueOffset"]] == row["body"], row
        except StoreError as error:
            errors.append(str(error))
        finally:
            path.write_bytes(whole[path])
    assert CHANGES // 10 < len(errors) < CHANGES
    assert [error for error in errors if str(root) not in error] == []
