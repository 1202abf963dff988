"""Recovery where the log is not simple: offsets that repeat or are lost, extensions, any damage, any kill."""

from __future__ import annotations

import os
import random
import shutil
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from store_format.commit.recover import recover
from store_format.commitlog.log import CommitLog
from store_format.diagnose import diagnose
from store_format.errors import StoreError, StoreNotFoundError
from store_format.files.read import FileCache
from store_format.layouts import CQ_UNIT
from store_format.store import MessageStore
from tests.support.damages import Damaged
from tests.support.failing_writer import Failure, install
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.fork_server import ForkServer
from tests.support.kills import States, count_changes, kill_at, killed_stores
from tests.support.oracle import Message
from tests.support.recover_scenarios import files_seen
from tests.support.referee.made import made
from tests.support.staged import append, make_store, numbered
from tests.support.store_files import write_log

_LOG_FILE_SIZE = 1 << 14


def _store(root: Path, offsets: Sequence[tuple[str, int]]) -> Path:
    """A store whose log has messages (topic, queue offset) of queue 0, and nothing else."""
    make_store(root)
    (root / "config/topics.json").unlink()
    messages = [
        Message(
            topic.encode(), b"message %d" % i, b"", queue_offset=offset, born_timestamp=1,
            store_timestamp=1_700_000_000_000 + i,
        )
        for i, (topic, offset) in enumerate(offsets)
    ]  # fmt: skip
    write_log(root, messages, _LOG_FILE_SIZE)
    return root


def _units(root: Path, topic: str) -> list[tuple[int, int]]:
    """(physical offset, size) of the units of queue 0, up to the first that is not written."""
    files = sorted((root / "consumequeue" / topic / "0").iterdir())
    units = np.frombuffer(b"".join(path.read_bytes() for path in files), CQ_UNIT)
    found = [(int(unit["physical_offset"]), int(unit["size"])) for unit in units]
    return found[: next((i for i, each in enumerate(found) if not each[1]), len(found))]


def test_a_copy_notes_the_message_that_it_gives_up(copy_of: Golden, tmp_path: Path) -> None:
    """Zeros behind the cut file's end would complete the message: no checksum covers its last bytes."""
    root, copy = copy_of("basic-5.5.0"), tmp_path / "copy"
    Damaged(root).do("cut_last_file_within_the_last_properties")
    assert "2,009 messages readable, 1 message lost" in diagnose(str(root)).verdict
    recover(str(root), into=str(copy), salvage=True).apply()
    found = diagnose(str(copy))
    assert (found.given_up, found.summary.readable) == ("1 message", 2009)
    assert "none lost" not in found.verdict


def test_a_copy_notes_that_more_may_be_lost(copy_of: Golden, tmp_path: Path) -> None:
    """Of a queue without files, nothing shows how many messages the missing commitlog file had."""
    root, copy = copy_of("basic-5.5.0"), tmp_path / "copy"
    (root / "commitlog" / f"{786432:020}").unlink()
    shutil.rmtree(root / "consumequeue" / "Orders" / "2")
    assert "at least 8 messages lost" in diagnose(str(root)).verdict
    recover(str(root), into=str(copy), salvage=True).apply()
    found = diagnose(str(copy))
    assert found.verdict.startswith("sound: 2,001 messages readable; an earlier recovery gave up at least 8")
    assert not found.lacks_ends


@pytest.mark.parametrize("has_queues", [True, False])
def test_a_torn_message_is_noted_once(copy_of: Golden, tmp_path: Path, has_queues: bool) -> None:
    """Also if its topic lost all queues, so that the head alone shows it, and if the recovery was killed."""
    root, new = copy_of("crash-5.5.0"), tmp_path / "new"
    last = Damaged(root).units[-1]
    overwrite(last.path, last.position + last.size // 2, bytes(last.size - last.size // 2))
    if not has_queues:
        shutil.rmtree(root / "consumequeue" / "Metrics")
    shutil.copytree(root, tmp_path / "before")
    assert "849 messages readable, 1 message lost with the crash" in diagnose(str(root)).verdict
    recover(str(root), into=str(new)).apply()
    recover(str(root)).apply()
    assert [diagnose(str(path)).given_up for path in (root, new)] == ["1 message", "1 message"]
    # as a recovery leaves it that is killed when the entries are cut, and the log is not
    for name in ("commitlog", "abort"):
        before, now = tmp_path / "before" / name, root / name
        shutil.copytree(before, now, dirs_exist_ok=True) if before.is_dir() else shutil.copy(before, now)
    recover(str(root)).apply()
    assert diagnose(str(root)).given_up == "1 message"


def test_a_new_copy_that_fails_is_removed(golden: Golden, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    plan = recover(str(golden("basic-5.5.0")), into=str(copy), salvage=True)
    originals = install(Failure("ENOSPC", 60))
    try:
        with pytest.raises(StoreError, match="No space left"):
            plan.apply()
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    assert not copy.exists()
    assert plan.apply().num_rows
    assert not diagnose(str(copy))


def test_lost_offsets_keep_their_places(tmp_path: Path) -> None:
    root = _store(tmp_path / "s", [("T", offset) for offset in (7, 8, 11, 12)])
    recover(str(root), topics=["T"]).apply()
    size = _units(root, "T")[-1][1]
    blank = (0, 0x7FFFFFFF)
    stored = [(place * size, size) for place in range(4)]
    # In the places of lost messages the units lead to the next message.
    assert _units(root, "T") == [*[blank] * 7, *stored[:2], *stored[2:3] * 3, stored[3]]
    queue = MessageStore.open(str(root)).queue("T", 0)
    assert queue.max_offset == 13
    offsets = [offset for batch in queue.read(columns=["queueOffset"]) for offset in batch[0].to_pylist()]
    assert offsets == [7, 8, 11, 12]
    assert [each for each in diagnose(str(root)) if each.severity == "damage"] == []
    assert recover(str(root)).table().num_rows == 1  # only the end


def test_a_message_behind_offsets_without_messages_stays_where_later_entries_are_lost(tmp_path: Path) -> None:
    """A broker files it next to the one before, and the message behind it follows its offset."""
    store = made(tmp_path / "store", "A*3 A@8 A@9", queue_entries=4)
    queue = store.write() / "consumequeue" / "A" / "0"
    (queue / f"{80:020}").write_bytes(bytes(80))
    recover(str(store.root)).apply()
    data = (queue / f"{160:020}").read_bytes()
    places = [each.physical_offset for each in store.messages[3:]]
    assert [int.from_bytes(data[at : at + 8]) for at in (0, 20)] == places


def test_messages_with_impossible_offsets_are_left_and_not_the_others(tmp_path: Path) -> None:
    root = _store(tmp_path / "s", [("T", 0), ("T", 2**40), ("T", 1), ("U", 0), ("..", 0), ("V", 2**62)])
    plan = recover(str(root), topics=["T", "U", "V", ".."])
    rows = {(row["topic"], row["action"]): row for row in plan.table().to_pylist() if row["part"] != "topics"}
    assert rows["T", "create"]["entries"] == 2
    assert rows["U", "create"]["entries"] == 1
    assert rows[None, "left"]["entries"] == 3
    plan.apply()
    assert len(_units(root, "T")) == 2
    assert len(_units(root, "U")) == 1
    assert not (root / "commitlog/0").exists()


def test_right_entries_behind_one_that_leads_behind_the_log_are_kept(tmp_path: Path) -> None:
    """The cut behind the log's end removes only the last entry."""
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 120))
    before = files_seen(str(root))
    for path, unit in ((_queue_files(root)[0], 2), (_queue_files(root)[-1], 9)):
        data = bytearray(path.read_bytes())
        struct.pack_into(">q", data, 20 * unit, 2**40)
        path.write_bytes(data)
    plan = recover(str(root), cut_after_damage=True)
    rows = [row for row in plan.table().to_pylist() if row["topic"]]
    assert [(row["action"], row["position"]) for row in rows] == [("cut", 29), ("correct", 2)]
    plan.apply()
    assert files_seen(str(root)) == before


@pytest.mark.parametrize("crashed", [False, True])
def test_exchanged_queues_leave_nothing_behind_their_ends(root: Path, crashed: bool) -> None:
    """The longer queue's last entries lead to messages of another queue, behind the shorter one's end."""
    append(root, numbered("T", 0, 83, queues=2) + numbered("T", 83, 60, queues=1))
    before, topic = files_seen(str(root)), root / "consumequeue/T"
    assert len(list((topic / "0").iterdir())) > len(list((topic / "1").iterdir())) + 1
    for source, target in (("0", "aside"), ("1", "0"), ("aside", "1")):
        (topic / source).rename(topic / target)
    if crashed:
        (root / "abort").touch()
    table = recover(str(root)).apply().to_pylist()
    (reason,) = [row["reason"] for row in table if (row["topic"], row["queueId"]) == ("T", 1)]
    assert reason.endswith("61 entries behind its end lead to other messages, and are removed")
    assert files_seen(str(root)) == before
    assert list(diagnose(str(root))) == []


def _queue_files(root: Path) -> list[Path]:
    return sorted((root / "consumequeue/T/0").iterdir())


def test_a_queue_is_written_in_place_where_its_directory_cannot_be_replaced(tmp_path: Path) -> None:
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 30))
    before = files_seen(str(root))
    for path in (root / "consumequeue/T/0").iterdir():
        path.unlink()
    (root / "consumequeue/T/0/note.txt").write_text("of somebody")
    (changed,) = [row for row in recover(str(root), topics=["T"]).table().to_pylist() if row["topic"]]
    assert changed["action"] == "create"
    recover(str(root), topics=["T"]).apply()
    assert (root / "consumequeue/T/0/note.txt").exists()
    (root / "consumequeue/T/0/note.txt").unlink()
    assert files_seen(str(root)) == before


@pytest.mark.parametrize(
    ("units", "action", "said"),
    [((2, 5), "correct", "in 3 entries in a row"), ((17, 20), "complete", "none for 3 messages")],
)
def test_verify_and_a_preview_count_the_same_entries(
    tmp_path: Path, units: tuple[int, int], action: str, said: str
) -> None:
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 80))
    path = min((root / "consumequeue/T/0").iterdir())
    data = bytearray(path.read_bytes())
    assert len(data) == 20 * 20
    data[20 * units[0] : 20 * units[1]] = bytes(60)
    path.write_bytes(data)
    (changed,) = [row for row in recover(str(root)).table().to_pylist() if row["topic"]]
    assert (changed["action"], changed["position"], changed["entries"]) == (action, units[0], 3)
    (problem,) = [each for each in diagnose(str(root)) if "consumequeue/T" in each.file]
    assert said in problem.found


def test_a_preview_needs_no_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: Unchanged
) -> None:
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 40))
    shutil.rmtree(root / "consumequeue")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with unchanged(root):
        rows = recover(str(root)).table().to_pylist()
    assert sum(row["entries"] for row in rows if row["action"] == "create") == 40


# ---- any damage --------------------------------------------------------------------------------------------

_DAMAGED = ("batchcq-5.5.0", "retry-dlq-5.5.0", "edge-5.5.0", "crash-torn-5.5.0", "cleaned-5.5.0")


def _spoil(root: Path, chance: random.Random) -> None:
    folders = ("commitlog", "consumequeue", "batchconsumequeue", "index")
    files = [path for folder in folders for path in sorted((root / folder).rglob("*")) if path.is_file()]
    for path in chance.choices(files, k=chance.randint(1, 5)):
        data = bytearray(path.read_bytes()) if path.exists() else bytearray()
        if not data:
            continue
        at = chance.randrange(min(len(data), chance.choice([100, 5000, len(data)])))
        what = chance.choice(["flip", "flip", "zero", "random", "cut", "delete"])
        if what == "delete" and path.parent.name != "commitlog":
            path.unlink()
            continue
        if what == "flip":
            data[at] ^= 1 << chance.randrange(8)
        elif what == "zero":
            data[at : at + 300] = bytes(len(data[at : at + 300]))
        elif what == "random":
            data[at : at + 40] = chance.randbytes(len(data[at : at + 40]))
        elif path.parent.name != "commitlog":
            del data[at:]
        path.write_bytes(data)


@pytest.mark.slow
@pytest.mark.timeout(1400)
def test_any_damage_is_recovered_or_refused(golden: Golden, tmp_path: Path, whole: bool) -> None:
    """After a recovery there is nothing left to recover."""
    recovered = 0
    for seed in range(200 if whole else 8):
        chance = random.Random(seed)
        root, new = tmp_path / f"{seed}", tmp_path / f"{seed}-new"
        ignored = shutil.ignore_patterns("timerwheel", "compaction")
        shutil.copytree(golden(_DAMAGED[seed % len(_DAMAGED)]), root, ignore=ignored)
        _spoil(root, chance)
        if chance.random() < 0.3:
            (root / "abort").touch()
        into = str(new) if chance.random() < 0.3 else None
        try:
            plan = recover(
                str(root), into=into, salvage=into is not None, cut_after_damage=chance.random() < 0.7
            )
            plan.apply()
        except StoreError:
            continue
        try:
            rows = recover(into or str(root)).table().to_pylist()
        except StoreNotFoundError:
            continue  # All messages were given up.
        assert {row["action"] for row in rows} <= {"end", "keep", "left"}, (seed, rows)
        recovered += 1
        shutil.rmtree(root)
    assert recovered > (150 if whole else 4)


# ---- any kill ----------------------------------------------------------------------------------------------


def _copy_salvaged(target: Path, failure: Failure, root: Path) -> None:
    install(failure)
    recover(str(root), into=str(target), salvage=True).apply()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_copy_that_was_killed_is_completed(tmp_path: Path, forks: ForkServer, whole: bool) -> None:
    """Every change is a kill with --whole, else every fifth one."""
    root = make_store(tmp_path / "damaged")
    append(root, numbered("T", 0, 200))
    overwrite(root / "commitlog" / f"{0:020d}", 3000, b"\xff" * 50)
    shutil.rmtree(root / "consumequeue/T/1")
    unkilled = tmp_path / "whole"
    changes = count_changes(forks, unkilled, _copy_salvaged, root)
    wanted = files_seen(str(unkilled))
    log = [path.read_bytes() for path in sorted((unkilled / "commitlog").iterdir())]
    states = States()
    for at in range(1, changes + 1, 1 if whole else 5):
        target = tmp_path / f"new{at}"
        kill_at(forks, target, "torn", at, _copy_salvaged, root)
        if not states.is_new(target):
            shutil.rmtree(target, ignore_errors=True)
            continue
        is_complete = (target / "commitlog").exists() and not (
            target / ".rmqlog" / "recover-into.json"
        ).exists()
        if not is_complete:
            recover(str(root), into=str(target), salvage=True).apply()
        assert files_seen(str(target)) == wanted, at
        assert [path.read_bytes() for path in sorted((target / "commitlog").iterdir())] == log
        shutil.rmtree(target)
    assert changes > 100


def _recover_in_place(root: Path, failure: Failure) -> None:
    install(failure)
    recover(str(root)).apply()


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_short_file_is_extended_once_its_cut_message_is_gone(tmp_path: Path, forks: ForkServer) -> None:
    """Killed at any point, the recovery never leaves the cut message in a file of full length."""
    root = make_store(tmp_path / "short")
    append(root, numbered("T", 0, 200))
    damage = Damaged(root)
    damage.do("cut_last_file_within_the_last_properties")
    cut = int(damage.last.name) + damage.units[-1].position

    def found(target: Path) -> tuple[object, list[bytes]]:
        files = sorted((target / "commitlog").iterdir())
        return files_seen(str(target)), [path.read_bytes() for path in files]

    assert "extend" in {row["action"] for row in recover(str(root)).table().to_pylist()}
    shutil.copytree(root, tmp_path / "expected")
    recover(str(tmp_path / "expected")).apply()
    wanted = found(tmp_path / "expected")
    kills = 0
    states = States()
    for at, target in killed_stores(forks, root, tmp_path, "torn", _recover_in_place):
        kills += 1
        if not states.is_new(target):
            continue
        log = CommitLog.open([str(target / "commitlog")], FileCache())
        assert next(log.walk(cut), None) is None, at
        recover(str(target)).apply()
        assert found(target) == wanted, at
    assert kills > 10
