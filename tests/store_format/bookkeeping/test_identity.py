"""Names of stores and directories in journals, ledgers and notes: a file of another program is damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import ClusterMember, LogPlace, parsed_json
from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import Ledger, LedgerEntry, LeftOut
from store_format.errors import CorruptStoreError, StoreWriteError
from store_format.files.write import FileWrites
from store_format.opened.store import Opened

_FILES = FileWrites(sync=False)
_BAD_MEMBERS: tuple[object, ...] = (
    5, [5], [[]], [["x"]], [["x", 1]], [["a/b", "1"]], [["..", "1"]], [["", "1"]], [["x\0", "1"]],
    [["\ud800", "1"]], [["x" * 256, "1"]], ["x"], [["x", ""]], [{}],
)  # fmt: skip
_JOURNAL: dict[str, object] = {
    "version": 2, "id": "j", "key": None, "staged": [], "skip": 0, "base": 0, "file_size": 1024,
    "queue_file_size": 20, "queues": [], "queue_bases": [], "new_topics": {}, "store_timestamp": 1,
    "store_timestamps": None, "sync": False, "index": False, "hash_slot_num": 1, "index_num": 2,
    "index_base": None, "written_at": 1, "zone_seconds": 0, "log_places": [["commitlog", ""]],
    "members": [["x", "1"], ["y", "2"]], "before": [0, 1, 2], "gaps": [],
}  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / ".rmqlog").mkdir()
    return str(tmp_path)


def _refuses(path: str | Path, value: object, read: Callable[[], object], kind: str) -> None:
    Path(path).write_text(json.dumps(value))
    with pytest.raises(CorruptStoreError, match=f"expected a {kind} of this project"):
        read()


def test_the_stores_of_a_journal(root: str) -> None:
    Path(Journal.path(Opened(root))).write_text(json.dumps(_JOURNAL))
    journal = Journal.read(Opened(root))
    assert journal is not None
    assert journal.members == (ClusterMember("x", "1"), ClusterMember("y", "2"))
    assert journal.before == (0, 1, 2)


@pytest.mark.parametrize("members", _BAD_MEMBERS, ids=lambda each: ascii(each)[:20])
def test_members_that_are_no_stores(root: str, members: object) -> None:
    Ledger(last=LedgerEntry(1, "j", 0, 1, 0, 1, 0, 1)).write(Opened(root), _FILES)
    Ledger.read(Opened(root))
    value = json.loads(Path(Ledger.path(Opened(root))).read_text())
    for bad in ({"last": value["last"] | {"members": members}}, {"begun": {"j": members}}):
        _refuses(Ledger.path(Opened(root)), value | bad, lambda: Ledger.read(Opened(root)), "ledger")
    LeftOut(("job", 1), (ClusterMember("z", "1"),)).add_to(Opened(root), _FILES, is_kept=False)
    (note,) = (Path(root) / ".rmqlog" / "left-out").iterdir()
    value = json.loads(note.read_text())
    _refuses(note, value | {"members": members}, lambda: LeftOut.all_members(Opened(root)), "note")
    _refuses(
        Journal.path(Opened(root)),
        _JOURNAL | {"members": members},
        lambda: Journal.read(Opened(root)),
        "journal",
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"before": [1]},
        {"before": ["a", 1, 2]},
        {"before": [float("inf"), 1, 2]},
        {"log_places": [["\0", ""]]},
        {"log_places": [["", "1"]]},
        {"log_places": []},
    ],
    ids=str,
)
def test_a_journal_with_a_place_that_is_none(root: str, bad: dict[str, object]) -> None:
    _refuses(Journal.path(Opened(root)), _JOURNAL | bad, lambda: Journal.read(Opened(root)), "journal")


def test_an_id_that_cannot_be_written_beside_a_commitlog_may_be_put_there_by_another_user(root: str) -> None:
    """For example beside the mount point /data1, in a directory that only root changes."""
    elsewhere = Path(root) / "disk" / "commitlog"
    elsewhere.mkdir(parents=True)
    store = Path(root) / "store"
    store.mkdir()
    path = Path(LogPlace.id_path(str(elsewhere)))
    path.with_name(f"{path.name}.new").mkdir()
    with pytest.raises(
        StoreWriteError, match=rf"{path}: .*create the file.*: echo [0-9a-f]{{16}} > {path}"
    ) as raised:
        LogPlace.of(Opened(str(store)), str(elsewhere), _FILES)
    made = str(raised.value).rpartition("echo ")[2].partition(" ")[0]
    path.write_text(f"{made}\n")
    assert LogPlace.of(Opened(str(store)), str(elsewhere), _FILES) == LogPlace(str(elsewhere), made)


def test_a_note_with_a_number_that_is_none(root: str) -> None:
    LeftOut(("job", 1), (ClusterMember("z", "1"),)).add_to(Opened(root), _FILES, is_kept=False)
    (note,) = (Path(root) / ".rmqlog" / "left-out").iterdir()
    value = json.loads(note.read_text())
    _refuses(note, value | {"key": ["job", float("inf")]}, lambda: LeftOut.all_members(Opened(root)), "note")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b'{"number": x}', "a.json at byte 11: expected a note, found no JSON (Expecting value)"),
        (b'{"other": 1}', "a.json at byte 0: expected a note, found JSON without the member 'number'"),
        (b"[]", "a.json at byte 0: expected a note, found JSON of another form (list indices must be int"),
    ],
)
def test_a_file_that_is_no_note_says_what_it_is(data: bytes, said: str) -> None:
    with pytest.raises(CorruptStoreError) as raised:
        parsed_json(data, "a.json", "a note", lambda value: value["number"])
    assert str(raised.value).startswith(said)
