"""Copies what a recovery needs into a new directory, so that the damaged store stays as it is.

Consume queues and index are not copied: they are built in the copy. Holes of sparse files stay holes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from store_format.bookkeeping.ledger import GivenUp, LeftOut
from store_format.commitlog.log import CommitLog
from store_format.errors import OptionError
from store_format.files import paths
from store_format.files.paths import StoreFile, symbolic_link
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.opened.store import OWN_DIRECTORY, Opened

_PIECE = 1 << 16
_FILES = ("checkpoint", "abort")
_DIRECTORIES = ("config", "timerlog", "compaction", "rocksdbstore")
_OWN_FILES = (
    "id",
    "store.json",
    "ledger.json",
    "ledger.json.bak",
    "broker.conf",
    "services.json",
    "resent.json",
    GivenUp.NAME,
)
_PREFIX = "timerwheel"  # and its snapshots
_POP = "pop"  # what the consumers of groups have in flight, in logs beside empty files for locks
_LEFT_OUT = ("consumequeue", "batchconsumequeue", "index", "consumequeue_ext", "lock", "abort.bak")
NOT_COPIED = "consumequeue, batchconsumequeue and index are built; consumequeue_ext and lock are left out"


@dataclass(frozen=True, slots=True)
class CopiedPart:
    """Files below one name of the store: how many, and their bytes (those of holes included)."""

    name: str
    files: int
    size: int


def marker_path(target: str) -> str:
    """The file that marks a copy that is not complete."""
    return f"{target}/{OWN_DIRECTORY}/recover-into.json"


def refuse_target(root: str, target: str) -> None:
    """Raises OptionError unless `target` is missing, empty, or a copy of `root` that was broken off."""
    if paths.is_inside(root, target) or paths.is_inside(target, root):
        raise OptionError(
            f"{target}: expected a directory outside of the store {root} for the recovered copy"
        )
    if not files_at(target).is_directory(target):
        above, *names = _missing_directories(target)
        first = f"{above}/{[*names, paths.base_name(target)][0]}"
        if files_at(first).read(first) is not None:
            is_target = first == target
            what = "a new directory for the recovered copy" if is_target else "a directory above the copy"
            raise OptionError(f"{first}: expected {what}, found a file")
        return
    begun_names = {"recover-into.json", "recover-into.json.new"}
    if files_at(target).names(target) <= {"lock", OWN_DIRECTORY} and (
        files_at(target).names(f"{target}/{OWN_DIRECTORY}", missing_ok=True) <= begun_names
    ):
        return  # Nothing was copied yet.
    begun = files_at(target).read(marker_path(target))
    if begun is None or json.loads(begun).get("source") != root:
        raise OptionError(
            f"{target}: expected a new or empty directory for the recovered copy, "
            f"found {len(files_at(target).names(target))} entries. Give another directory, or empty this one"
        )


def make_target(target: str, files: FileWrites) -> None:
    """Creates the directory of a recovered copy, and the missing ones above it."""
    above, *names = _missing_directories(target)
    files.make_directories(above, *names, paths.base_name(target))


def _missing_directories(target: str) -> list[str]:
    """The nearest directory above `target`, and the names of the directories between the two."""
    above, names = paths.parent(target), list[str]()
    while not files_at(above).is_directory(above) and paths.parent(above) != above:
        above, names = paths.parent(above), [paths.base_name(above), *names]
    return [above, *names]


def copy_parts(opened: Opened, log: CommitLog) -> list[CopiedPart]:
    """What `copy_store` copies, without `abort`, which the recovered copy does not have."""
    found: dict[str, list[int]] = {"commitlog": [file.size for file in log.files]}
    for name, path, _ in _others(opened):
        if name == "abort":
            continue
        found.setdefault(name, []).append(_size(path))
    return [CopiedPart(name, len(sizes), sum(sizes)) for name, sizes in found.items()]


def copy_store(root: str, log: CommitLog, target: str, files: FileWrites) -> None:
    """Copies commitlog, configuration, checkpoint, `abort`, timers and rmqlog's own files.

    A second call completes a copy that was broken off. The caller calls `end_copy` after the recovery.
    """
    files.make_directories(paths.parent(target), paths.base_name(target), OWN_DIRECTORY)
    files.replace(marker_path(target), json.dumps({"version": 1, "source": root}).encode())
    files.make_directories(target, "commitlog")
    for file in log.files:
        size = max(file.size, log.file_size)  # a short file gets its full length: a broker needs it
        _copy(file.path, f"{target}/commitlog/{StoreFile.name_at(file.start)}", size, files)
    for _, path, names in _others(Opened(root)):
        directory = files.make_directories(target, *names[:-1])
        files.remove(
            f"{directory}/{names[-1]}"
        )  # the recovery of a copy that was broken off may have changed it
        _copy(path, f"{directory}/{names[-1]}", _size(path), files)
        files.sync_directory(directory)
    files.sync_directory(f"{target}/commitlog")
    files.sync_directory(target)


def not_copied(opened: Opened) -> list[str]:
    """What lies in the store and is of no use to a recovery, or is unknown, such as tiered storage."""
    known = {"commitlog", OWN_DIRECTORY, *_FILES, *_DIRECTORIES, *_LEFT_OUT}
    names = opened.files.names(opened.path)
    return sorted(name for name in names - known if not name.startswith(_PREFIX))


def keep_times(opened: Opened, log: CommitLog, target: str, files: FileWrites) -> None:
    """Gives the copied commitlog files the times of the originals, by which retention deletes them, and the
    `.bak` of the configuration, whose times show how old they are.

    The caller does so after the last write: a copy that looked new would keep expired files for another
    fileReservedTime, and then lose all of them at once.
    """
    for name, path, names in _others(opened):
        if name == "config" and path.endswith(".bak"):
            copied, status = f"{target}/{'/'.join(names)}", files_at(path).status(path)
            if status is not None and files_at(copied).read(copied) == files_at(path).read(path):
                files.set_modified(copied, status[1])
    for file in log.files:
        copied, status = (
            f"{target}/commitlog/{StoreFile.name_at(file.start)}",
            files_at(file.path).status(file.path),
        )
        if status is not None and files_at(copied).exists(copied):
            files.set_modified(copied, status[1])


def end_copy(target: str, files: FileWrites) -> None:
    """The copy is complete and recovered."""
    files.remove(marker_path(target))
    files.sync_directory(f"{target}/{OWN_DIRECTORY}")


def _others(opened: Opened) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(first name, path, names below the root) of every file that is copied but the commitlog.

    A directory of the store may be a link to a directory elsewhere. Raises CorruptStoreError for another link
    at the root in place of something that is copied.
    """
    for entry in opened.files.entries(opened.path):
        is_file = entry.name in _FILES or entry.name.startswith(_PREFIX)
        if not is_file and entry.name not in _DIRECTORIES:
            continue
        if entry.kind == "link" and (is_file or not files_at(entry.path).is_directory(entry.path)):
            raise symbolic_link(entry.path)
        if is_file and entry.kind == "file":
            yield entry.name, entry.path, (entry.name,)
        elif not is_file and entry.kind in ("directory", "link"):
            yield from ((entry.name, path, names) for path, names in _below(entry.path, (entry.name,)))
    for name in _OWN_FILES:
        if name in opened.files.names(f"{opened.path}/{OWN_DIRECTORY}", missing_ok=True):
            yield OWN_DIRECTORY, opened.own(name), (OWN_DIRECTORY, name)
    for name, ending in ((LeftOut.NAME, ""), (_POP, ".log")):
        for path, names in _below(opened.own(name), (OWN_DIRECTORY, name)):
            if path.endswith(ending):
                yield OWN_DIRECTORY, path, names


def _below(directory: str, names: tuple[str, ...]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for entry in files_at(directory).entries(directory):
        if entry.kind == "directory":
            yield from _below(entry.path, (*names, entry.name))
        elif entry.kind == "file" and entry.name not in ("LOCK",):
            yield entry.path, (*names, entry.name)


def _size(path: str) -> int:
    with files_at(path).view(path) as view:
        return view.size


def _copy(source: str, target: str, size: int, files: FileWrites) -> None:
    """Copies the data of a file, not its holes. The target has `size` bytes from the start."""
    with files_at(source).view(source) as view:
        file, made = files.open_full(target, size)
        with file:
            if not made:
                file.zero(0, size)
            at = 0
            while at < view.size:
                at = view.data_from(at)
                data = view.read(at, min(_PIECE, view.size - at))
                if not data:
                    break
                if data.strip(b"\0"):
                    file.write(at, data)
                at += len(data)
            files.sync(file)
