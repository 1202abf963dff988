"""An append to a clean store whose commitlog ends before its queues do: no queue leads to messages of another
one afterwards.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store_format.bookkeeping.ledger import GivenUp, Ledger
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import recover
from store_format.commit.options import CommitOptions
from store_format.commit.publication import save_checkpoint
from store_format.commit.recover import recover as plan_recovery
from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites
from store_format.layouts import CQ_UNIT
from store_format.metadata.read import read_checkpoint
from store_format.opened.store import Opened
from store_format.store import MessageStore
from store_format.survey.gone import QueueProofs
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.fork_server import ForkServer
from tests.support.kills import killed_stores
from tests.support.referee.world import commit_killed
from tests.support.staged import append, make_store, messages_of, numbered, settings_from

_CLOCK = CommitOptions(clock=lambda: 1_700_000_100_000)


@pytest.fixture
def root(root: Path) -> Path:
    """Twelve messages of T in four queues, then three of U in one."""
    append(root, numbered("T", 0, 12))
    append(root, numbered("U", 0, 3, queues=1))
    return root


def _damage_last_body(root: Path) -> int:
    last = messages_of(root)[-1]
    path = root / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(last.body, last.physical_offset)] ^= 1
    path.write_bytes(data)
    return last.physical_offset


def _as_of_broker(root: Path) -> None:
    (root / ".rmqlog" / "ledger.json").unlink()


def _bodies(root: Path) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    queues: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for queue in MessageStore.open(str(root)).queues():
        for batch in queue.read(columns=["queueOffset", "body"]):
            bodies = [body.rstrip(b".") for body in batch["body"].to_pylist()]
            queues.setdefault((queue.topic, queue.queue_id), []).extend(
                zip(batch["queueOffset"].to_pylist(), bodies, strict=True)
            )
    return queues


def _problems(root: Path) -> list[str]:
    return [str(problem) for problem in MessageStore.open(str(root)).diagnose().of("damage", "warning")]


def _files(root: Path) -> dict[Path, bytes]:
    return {
        path: path.read_bytes() for path in root.rglob("*") if path.is_file() and ".rmqlog" not in path.parts
    }


# ---- a damaged end -----------------------------------------------------------------------------------------


def test_queues_that_are_newer_than_log_and_ledger_show_what_is_lost(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Log and ledger come from a backup: the ledger's last commit ends the log and its queue."""
    backup = shutil.copytree(root, tmp_path / "backup")
    append(root, numbered("U", 3, 5, queues=1))
    for name in ("commitlog", ".rmqlog"):
        shutil.rmtree(root / name)
        shutil.copytree(backup / name, root / name)
    caplog.clear()
    assert append(root, numbered("U", 20, 2, queues=1)).queues == {("U", 0): (8, 10)}
    assert "first at U-0 offset 3" in caplog.text
    assert "entries: 5, queues: 1" in caplog.text
    assert GivenUp.read(Opened(str(root))).messages == (("U", 0, 3, 8),)
    assert [offset for offset, _ in _bodies(root)["U", 0]] == [0, 1, 2, 8, 9]
    assert _problems(root) == []


@pytest.mark.process
def test_places_of_lost_messages_are_filled_wherever_the_commit_is_killed(
    root: Path, tmp_path: Path, forks: ForkServer
) -> None:
    _damage_last_body(root)
    append(root, numbered("T", 12, 1, queues=1))
    checked = 0
    messages = numbered("U", 3, 2, queues=1)
    for _, killed in killed_stores(
        forks, root, tmp_path, "both", commit_killed, messages, 1_700_000_200_000, every=2
    ):
        recover(str(killed), options=_CLOCK)
        new = _bodies(killed)["U", 0][2:]
        assert new in ([], [(3, b"message 3 of U"), (4, b"message 4 of U")])
        append(killed, numbered("U", 5, 1, queues=1))
        assert _bodies(killed)["U", 0][2 + len(new) :] == [(3 + len(new), b"message 5 of U")]
        assert MessageStore.open(str(killed)).diagnose().of("damage", "warning") == []
        checked += 1
    assert checked > 20


def test_a_death_while_entries_are_removed_is_made_good(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    _damage_last_body(root)
    for name in ("cut_queue", "cut_index"):
        with monkeypatch.context() as patch:
            patch.setattr(f"store_format.commit.repair.{name}", die)
            with pytest.raises(KeyboardInterrupt):
                append(root, numbered("T", 12, 8))
    append(root, numbered("T", 12, 8))
    assert _problems(root) == []
    assert len(_bodies(root)["U", 0]) == 2


def test_a_store_of_ours_in_order_costs_no_look_at_its_queues(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueProofs, "queues", None)
    append(root, numbered("T", 12, 8))
    assert len(messages_of(root)) == 23


@pytest.mark.process
@pytest.mark.parametrize("hole", [100, 1 << 12, 80 << 10, 300 << 10])
def test_messages_of_a_broker_behind_lost_pages_are_not_overwritten(tmp_path: Path, hole: int) -> None:
    """A broker went on behind our commit; the first pages of what it wrote are zeros now. A reader sees its
    other messages, so a writer must not put the log's end in front of them.
    """
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 20, 20 * 20_000, 50, 20_000))
    append(root, numbered("T", 0, 12))
    ledger = root / ".rmqlog" / "ledger.json"
    ours, stop = ledger.read_bytes(), Ledger.read(Opened(str(root))).last
    assert stop is not None
    append(root, numbered("T", 12, 4000, body_size=60))  # as a broker
    ledger.write_bytes(ours)
    (root / ".rmqlog" / "queues.json").unlink(missing_ok=True)
    overwrite(root / "commitlog" / f"{0:020d}", stop.stop, bytes(hole))
    seen = MessageStore.open(str(root)).diagnose().summary.log_end
    assert seen > stop.stop + hole
    before = _files(root)
    with pytest.raises(CorruptStoreError, match="whole messages behind it"):
        append(root, numbered("T", 4012, 8))
    assert _files(root) == before


# ---- missing files -----------------------------------------------------------------------------------------


@pytest.fixture
def short(copy_of: Golden) -> Path:
    """A broker's store whose copy lacks the last two of four commitlog files."""
    root = copy_of("basic-5.5.0")
    for path in sorted((root / "commitlog").iterdir())[-2:]:
        path.unlink()
    return root


_BASIC = replace(_CLOCK, settings=settings_from(goldens.config("basic-5.5.0")))


@pytest.mark.process
@pytest.mark.parametrize("by_append", [True, False])
def test_the_messages_of_missing_files_can_be_given_up(
    short: Path, caplog: pytest.LogCaptureFixture, by_append: bool
) -> None:
    options = replace(_BASIC, cut_after_damage=True)
    if not by_append:
        recover(str(short), options=options)
        assert sum(map(len, _bodies(short).values())) == 1381
        options = _BASIC
    append(short, numbered("Orders", 0, 3000), options=options)
    assert "the commitlog ends at 523902: no file follows" in caplog.text
    assert sum(map(len, _bodies(short).values())) == 4381
    assert _problems(short) == []  # and no blank file of a queue that lost all its messages


def test_a_copy_that_ends_within_a_file_is_refused_by_its_checkpoint(root: Path) -> None:
    append(root, numbered("T", 12, 100))
    _as_of_broker(root)
    (root / "commitlog" / f"{1 << 14:020d}").unlink()
    overwrite(root / "commitlog" / f"{0:020d}", 14_000, bytes((1 << 14) - 14_000))
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    assert checkpoint is not None
    save_checkpoint(
        Opened(str(root)),
        replace(checkpoint, physic_msg_timestamp=checkpoint.physic_msg_timestamp + 1),
        FileWrites(sync=False),
    )
    with pytest.raises(CorruptStoreError, match="Copy the missing commitlog files"):
        append(root, numbered("T", 112, 8))


# ---- missing files after a crash ---------------------------------------------------------------------------


@pytest.fixture
def crashed(root: Path) -> Path:
    """A broker's store with `abort`, whose second commitlog file is on another disk."""
    append(root, numbered("T", 12, 100))
    shutil.rmtree(root / ".rmqlog")
    (root / "abort").touch()
    (root / "commitlog" / f"{1 << 14:020d}").rename(root.parent / f"{1 << 14:020d}")
    return root


@pytest.mark.parametrize("by_append", [True, False])
def test_a_crashed_store_without_its_last_file_is_refused(crashed: Path, by_append: bool) -> None:
    before = _files(crashed)
    write = (
        (lambda: append(crashed, numbered("T", 112, 8))) if by_append else plan_recovery(str(crashed)).apply
    )
    with pytest.raises(CorruptStoreError, match=r"consume queue T-3 points .*storePathCommitLog"):
        write()
    assert _files(crashed) == before
    rows = plan_recovery(str(crashed)).table().to_pylist()
    assert ["--cut-after-damage" in row["reason"] for row in rows if row["action"] == "refused"] == [True]


@pytest.mark.parametrize("cut", [True, False])
def test_a_recovery_keeps_the_blank_that_leads_to_missing_files(crashed: Path, cut: bool) -> None:
    """Not all queues show that a file is missing: a broker may have crashed before it wrote the entries."""
    if not cut:
        for path in (crashed / "consumequeue").glob("*/*/*"):
            data = path.read_bytes()
            path.write_bytes(data[: 3 * CQ_UNIT.itemsize].ljust(len(data), b"\0"))
    log = crashed / "commitlog" / f"{0:020d}"
    before = log.read_bytes()
    plan_recovery(str(crashed), cut_after_damage=cut).apply()
    assert not (crashed / "abort").exists()
    assert log.read_bytes() == before
    (crashed.parent / f"{1 << 14:020d}").rename(crashed / "commitlog" / f"{1 << 14:020d}")
    plan_recovery(str(crashed)).apply()
    assert len(messages_of(crashed)) == 115
