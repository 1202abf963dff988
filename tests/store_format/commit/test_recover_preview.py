"""What a recovery shows before is what it does, for every kind of damage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store_format.bookkeeping.ledger import FILLER_TOPIC
from store_format.commit.recover import RecoverPlan, recover
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.diagnose import diagnose
from store_format.diagnose.problems import NextStep, verdict
from store_format.errors import CorruptStoreError, OptionError, StoreError
from store_format.files.read import FileCache
from tests.support.damages import OF_THE_LOG, OTHERS, Damaged
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered

pytestmark = pytest.mark.slow

STORES = ("cleaned-5.5.0", "crash-5.5.0")
CUTS = (
    "cut_last_file_within_the_last_properties",
    "cut_last_file_within_the_last_body",
    "cut_last_file_behind_the_last_message",
)


def _damaged(golden: Golden, name: str, target: Path, damage: str) -> Path:
    ignored = shutil.ignore_patterns("timerwheel", "compaction", "rocksdbstore")
    shutil.copytree(golden(name), target, ignore=ignored)
    Damaged(target).do(damage)
    return target


def _rows(plan: RecoverPlan, roots: tuple[Path, ...], *, apply: bool) -> list[dict[str, object]] | str:
    """The plan's rows, or its error, without the names of the directories."""
    try:
        rows = (plan.apply() if apply else plan.table()).to_pylist()
    except StoreError as error:
        return _anonymous(str(error), roots)
    refused = [row["reason"] for row in rows if row["action"] == "refused"]
    if refused:
        return _anonymous(refused[0], roots)
    return [
        {key: _anonymous(value, roots) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
    ]


def _anonymous(text: str, roots: tuple[Path, ...]) -> str:
    for root in roots:
        text = text.replace(str(root), "ROOT")
    return text


def _bytes_of_messages(root: Path) -> dict[int, bytes]:
    """The bytes of every whole message of the log by physical offset, without fillers."""
    log = CommitLog.open([str(root / "commitlog")], FileCache())
    found = {
        offset: log.read(offset, size)
        for run in log.walk(log.min_offset, resync=True, verify_crc=True)
        if isinstance(run, UnitRun)
        for offset, size in zip(run.physical_offsets.tolist(), run.sizes.tolist(), strict=True)
    }
    return {offset: data for offset, data in found.items() if FILLER_TOPIC.encode() not in data}


def _cases() -> Iterator[object]:
    """Each damage once, with one of the stores; damage of the log with both stores with --whole."""
    for i, damage in enumerate(OF_THE_LOG):
        for j, name in enumerate(STORES):
            yield pytest.param(name, damage, marks=() if (i + j) % 2 else (pytest.mark.whole,))
    for damage in OTHERS:
        yield pytest.param(STORES[0], damage)


@pytest.mark.parametrize(("name", "damage"), list(_cases()))
def test_a_salvaged_copy_is_what_the_preview_shows(
    golden: Golden, tmp_path: Path, name: str, damage: str
) -> None:
    root, new = _damaged(golden, name, tmp_path / "store", damage), tmp_path / "new"
    try:
        plan = recover(str(root), into=str(new), salvage=True)
    except StoreError:
        return
    shown = _rows(plan, (new, root), apply=False)
    assert shown == _rows(plan, (new, root), apply=True)
    if isinstance(shown, str):
        assert not new.exists()
        return
    before, after = _bytes_of_messages(root), _bytes_of_messages(new)
    assert before.items() <= after.items()  # all that is whole, and what entries show
    restored = sum(int(str(row["entries"])) for row in shown if row["action"] == "restore")
    assert len(after) == len(before) + restored
    assert [each for each in diagnose(str(new)) if each.severity == "damage"] == []


@pytest.mark.parametrize(
    "damage",
    [each for each in OF_THE_LOG if each.startswith(("cut_", "flip_first", "lose_middle"))],
)
@pytest.mark.parametrize(("name", "is_copy"), [(STORES[0], True), (STORES[1], False)])
def test_a_recovery_that_gives_up_what_is_behind_damage_is_what_the_preview_shows(
    golden: Golden, tmp_path: Path, name: str, is_copy: bool, damage: str
) -> None:
    root, new = _damaged(golden, name, tmp_path / "store", damage), tmp_path / "new"
    try:
        plan = recover(str(root), into=str(new) if is_copy else None, cut_after_damage=True)
    except StoreError:
        return
    before = _bytes_of_messages(root) if (root / "commitlog").exists() and damage in CUTS else {}
    shown = _rows(plan, (new, root), apply=False)
    assert shown == _rows(plan, (new, root), apply=True)
    if before:
        assert _bytes_of_messages(new if is_copy else root) == before


@pytest.mark.parametrize("damage", CUTS)
@pytest.mark.parametrize("name", STORES)
def test_a_store_whose_last_file_is_short_is_sound_after_a_recovery_in_place(
    golden: Golden, tmp_path: Path, name: str, damage: str
) -> None:
    root = _damaged(golden, name, tmp_path / "store", damage)
    before, sizes = _bytes_of_messages(root), {path.stat().st_size for path in (root / "commitlog").iterdir()}
    found = diagnose(str(root))
    assert verdict(found)[0].endswith("; a broker refuses to start on this store")
    (extended,) = [row for row in recover(str(root)).table().to_pylist() if row["action"] == "extend"]
    assert extended["part"] == "commitlog"
    recover(str(root)).apply()
    assert {path.stat().st_size for path in (root / "commitlog").iterdir()} == {max(sizes)}
    found = diagnose(str(root))
    assert verdict(found)[1] in (NextStep.NOTHING, NextStep.RECOVER), found
    assert [each for each in found if each.severity == "damage"] == []
    assert "refuses" not in found.verdict
    assert _bytes_of_messages(root) == before
    rows = recover(str(root)).table().to_pylist()
    assert {row["action"] for row in rows} == {"end"}


@pytest.mark.parametrize("damage", CUTS)
@pytest.mark.parametrize("is_copy", [False, True])
def test_the_only_file_of_our_store_has_the_length_of_its_settings(
    tmp_path: Path, damage: str, is_copy: bool
) -> None:
    root, new = make_store(tmp_path / "store"), tmp_path / "new"
    append(root, numbered("T", 0, 20))
    (path,) = (root / "commitlog").iterdir()
    size = path.stat().st_size
    Damaged(root).do(damage)
    before = _bytes_of_messages(root)
    assert f"expected a file of {size} bytes, as in .rmqlog/store.json" in "\n".join(
        map(str, diagnose(str(root)))
    )
    with pytest.raises(CorruptStoreError, match=f"expected a file of {size} bytes, as in .rmqlog/store.json"):
        append(root, numbered("T", 20, 1))
    plan = recover(str(root), into=str(new) if is_copy else None, salvage=is_copy)
    assert _rows(plan, (new, root), apply=False) == _rows(plan, (new, root), apply=True)
    after = new if is_copy else root
    assert [each.stat().st_size for each in (after / "commitlog").iterdir()] == [size]
    assert _bytes_of_messages(after) == before
    append(after, numbered("T", 20, 1))
    assert [each.stat().st_size for each in (after / "commitlog").iterdir()] == [size]


def test_a_refused_copy_leaves_nothing_behind(golden: Golden, tmp_path: Path) -> None:
    root = _damaged(golden, "cleaned-5.5.0", tmp_path / "store", "lose_consume_queues")
    new, conf = tmp_path / "new", tmp_path / "default.conf"
    with pytest.raises(OptionError, match=r"mappedFileSizeConsumeQueue=6000000$"):
        recover(str(root), into=str(new)).apply()
    assert not new.exists()
    new.mkdir()
    with pytest.raises(OptionError):
        recover(str(root), into=str(new)).apply()
    assert os.listdir(new) == []
    conf.write_text("mappedFileSizeConsumeQueue=6000000\n")
    recover(str(root), into=str(new), broker_conf=str(conf)).apply()
    assert [each for each in diagnose(str(new)) if each.severity == "damage"] == []
