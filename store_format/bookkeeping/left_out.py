"""Notes in a store about batches that were written without it, in `.rmqlog/left-out`.

A broker may hold the store, so a note is written without its lock: each note is a file of its own, which is
replaced as a whole. The store's next commit removes the notes of batches that its ledger knows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import NamedTuple

from store_format.bookkeeping.identity import ClusterMember, members_from
from store_format.bookkeeping.ledger import JOB_KEYS_MAX, read_ledger
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.errors import CorruptStoreError
from store_format.files.read import entry_names, read_bytes, stat_identity
from store_format.files.write import FileWrites

LEFT_OUT = "left-out"  # in `.rmqlog`
_SUFFIX, _KEPT_SUFFIX = ".json", ".kept.json"


class LeftOut(NamedTuple):
    """A batch that may be committed in the `members`, and not in the store with this note."""

    key: tuple[str, int]
    members: tuple[ClusterMember, ...]


def note_left_out(root: str, note: LeftOut, files: FileWrites, *, is_kept: bool) -> None:
    """Writes the note, and removes older notes of the same key.

    Of the keys of batch jobs (not `is_kept`), the notes of the newest stay, as in the ledger.
    """
    directory = files.make_directories(root, OWN_DIRECTORY, LEFT_OUT)
    key_id, number = note.key
    prefix = f"{hashlib.sha256(key_id.encode()).hexdigest()[:16]}-"
    name = f"{prefix}{number}{_KEPT_SUFFIX if is_kept else _SUFFIX}"
    _write_note(f"{directory}/{name}", note, files)
    names = entry_names(directory)
    for other in names:
        if other.startswith(prefix) and other.endswith(_SUFFIX) and _number(other) < number:
            files.remove(f"{directory}/{other}")
    jobs = [each for each in names if each.endswith(_SUFFIX) and not each.endswith(_KEPT_SUFFIX)]
    if len(jobs) > JOB_KEYS_MAX:
        paths = [f"{directory}/{each}" for each in jobs]
        for path in sorted(paths, key=_changed_at)[:-JOB_KEYS_MAX]:
            files.remove(path)


def _write_note(path: str, note: LeftOut, files: FileWrites) -> None:
    value = {"version": 1, "key": note.key, "members": note.members}
    files.replace(path, json.dumps(value).encode())


def members_in_notes(root: str) -> set[ClusterMember]:
    """The stores that the notes name. Raises CorruptStoreError for a file that is not a note."""
    return {member for note in _notes(root).values() for member in note.members}


def settle_notes(root: str, files: FileWrites) -> None:
    """Removes the notes of batches that the store's ledger has."""
    notes = _notes(root)
    if notes:
        ledger = read_ledger(root)
        _remove(root, [path for path, note in notes.items() if ledger.has(note.key)], files)


def forget_members(root: str, ids: Collection[str], files: FileWrites) -> None:
    """Removes these stores from the notes, and the notes that name no other store."""
    notes = _notes(root)
    left = {path: tuple(each for each in note.members if each.id not in ids) for path, note in notes.items()}
    for path, members in left.items():
        if members and members != notes[path].members:
            _write_note(path, notes[path]._replace(members=members), files)
    _remove(root, [path for path, members in left.items() if not members], files)


def _remove(root: str, paths: list[str], files: FileWrites) -> None:
    for path in paths:
        files.remove(path)
    if paths:
        files.remove_directory(f"{root}/{OWN_DIRECTORY}/{LEFT_OUT}")


def _notes(root: str) -> dict[str, LeftOut]:
    """The notes by path."""
    directory = f"{root}/{OWN_DIRECTORY}/{LEFT_OUT}"
    found = {}
    for name in sorted(entry_names(directory, missing_ok=True)):
        path = f"{directory}/{name}"
        data = read_bytes(path) if name.endswith(_SUFFIX) else None
        if data is not None:
            found[path] = _note(data, path)
    return found


def _note(data: bytes, path: str) -> LeftOut:
    try:
        value = json.loads(data)
        key_id, number = value["key"]
        return LeftOut((str(key_id), int(number)), members_from(value["members"]))
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptStoreError(path, 0, "a note of this project", str(error) or "something else") from error


def _changed_at(path: str) -> int:
    identity = stat_identity(path)
    return 0 if identity is None else identity[2]


def _number(name: str) -> int:
    digits = name.partition("-")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() else -1
