"""What stands in a store's directories: files with wrong names, lengths or neighbours, links, and what a
broker would refuse.

The commitlog is put together here from the files that fit, where `CommitLog.open` refuses the whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import FileRun, file_run
from store_format.diagnose.problems import Findings
from store_format.errors import CorruptStoreError
from store_format.files.read import Entry, FileCache, StoreFile, list_entries

__all__ = [
    "INDEX_ADVICE",
    "QUEUE_ADVICE",
    "QUEUE_FOLDERS",
    "checked_files",
    "checked_queue_files",
    "entries_of",
    "queue_directories",
    "usable_log",
]

_OFFSET_NAME = re.compile(r"[0-9]{20}\Z", re.ASCII)
_OFFSET_MAX = 2**63 - 1
_QUEUE_ID_MAX = 2**31 - 1
QUEUE_ADVICE = (
    "Copy the store, and move consumequeue out of the copy: readers then scan the commitlog of the copy for all queues. Do not start a "
    "broker on it before rmqlog has rebuilt them: howto-recover.md, section 6"
)
INDEX_ADVICE = (
    "Move the index file out of the store: messages are found by a scan then. A broker does not rebuild it, and no "
    "longer answers queries by keys from it"
)
_LINK_ADVICE = "Links below the root level are not followed: put the file itself there"
_STRAY_ADVICE = "Move it away: a broker may refuse to start on it, and readers pass over it"

QUEUE_FOLDERS = (("consumequeue", "simple", 20), ("batchconsumequeue", "batch", 46))


def entries_of(findings: Findings, directory: str) -> list[Entry]:
    """What is in a directory; problems for links and for a file in its place."""
    try:
        entries = list_entries(directory)
    except CorruptStoreError as error:
        findings.add_error("damage", error, "Put the directory back in its place")
        return []
    for entry in entries:
        if entry.kind == "link":
            findings.add("damage", entry.path, 0, "a file or directory", "a symbolic link", _LINK_ADVICE)
    return entries


def checked_files(
    findings: Findings, directory: str, name: re.Pattern[str] = _OFFSET_NAME, what: str = "20 digits"
) -> list[Entry]:
    """The files of a directory that have the right kind of name, by name; everything else in it is a problem."""
    found = []
    for entry in entries_of(findings, directory):
        if entry.kind == "link":
            continue
        if entry.kind == "file" and name.match(entry.name):
            found.append(entry)
        else:
            kind = (
                f"the {entry.kind} {entry.name!r}"
                if entry.kind != "other"
                else f"{entry.name!r}, neither file nor directory"
            )
            findings.add("warning", entry.path, 0, f"only files whose names are {what}", kind, _STRAY_ADVICE)
    return found


# ---- commitlog ---------------------------------------------------------------------------------------------


def usable_log(findings: Findings, directories: Sequence[str]) -> tuple[CommitLog, int, int]:
    """The commitlog of the files that fit together, the length they should have, and the bytes of those that
    do not fit.
    """
    entries = [entry for directory in directories for entry in checked_files(findings, directory)]
    files = sorted(
        (StoreFile(entry.path, int(entry.name), entry.size) for entry in entries), key=lambda file: file.start
    )
    if files and files[-1].size == 0:
        empty = files.pop()
        advice = "Nothing needs to be done: a broker deletes it when it starts (MappedFileQueue.doLoad)"
        findings.add("info", empty.path, 0, "a file with content", "an empty last file", advice)
    size = _likely_size(files)
    kept: list[StoreFile] = []
    unplaced = 0
    for file in files:
        reason = _misfit(file, kept[-1] if kept else None)
        if file.size != size:
            advice = "Restore the file: a broker refuses to start on it (MappedFileQueue.doLoad)"
            findings.add(
                "damage",
                file.path,
                min(file.size, size),
                f"a file of {size} bytes, like the others",
                f"{file.size} bytes",
                advice,
            )
        elif reason is not None:
            findings.add(
                "damage", file.path, 0, *reason, "Move away the file that does not belong to this log"
            )
        if reason is None and 0 < file.size <= size:
            kept.append(file)
        else:
            unplaced += file.size
    starts, stops = (
        np.array([file.start for file in kept], np.int64),
        np.array([file.stop for file in kept], np.int64),
    )
    return CommitLog(tuple(kept), (), FileCache(), starts, stops, tuple(directories)), size, unplaced


def _likely_size(files: Sequence[StoreFile]) -> int:
    """The length most files have, or the distance most names have: a single good file and a cut one are one
    vote each.
    """
    votes = Counter(file.size for file in files if file.size)
    votes.update(
        after.start - before.start for before, after in pairwise(files) if after.start > before.start
    )
    return max(votes, key=lambda size: (votes[size], size)) if votes else 0


def _misfit(file: StoreFile, before: StoreFile | None) -> tuple[str, str] | None:
    if file.start > _OFFSET_MAX - file.size:
        return "a name below 2^63 - 1, less the file's size", str(file.start)
    if before is None or file.start >= before.stop:
        return None
    if file.start == before.start:
        return f"one file that starts at {file.start}", f"another one, {before.path}"
    return f"a file that starts at or behind {before.stop}", f"{file.start}, inside of {before.path}"


# ---- queues ------------------------------------------------------------------------------------------------


def queue_directories(findings: Findings, root: str) -> list[tuple[str, int, str, str]]:
    """(topic, queue id, directory, kind) of every queue directory, sorted; problems for what else stands
    beside them.
    """
    found = []
    for folder, kind, _ in QUEUE_FOLDERS:
        entries = entries_of(findings, f"{root}/{folder}")
        rocksdb = any(entry.name == "CURRENT" for entry in entries)
        for topic in entries:
            if topic.kind == "directory" and not _is_text(topic.name):
                findings.add(
                    "warning", topic.path, 0, "a topic's name in UTF-8", repr(topic.name), _STRAY_ADVICE
                )
            elif topic.kind == "directory":
                found += [
                    (topic.name, queue_id, path, kind) for queue_id, path in _queue_ids(findings, topic.path)
                ]
            elif topic.kind != "link" and not rocksdb:
                findings.add(
                    "warning",
                    topic.path,
                    0,
                    "only directories named as topics",
                    f"{topic.name!r}",
                    _STRAY_ADVICE,
                )
    return sorted(found)


def _is_text(name: str) -> bool:
    """Bytes of a name that are no UTF-8 come as lone surrogates, and no message carries such a topic."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _is_queue_id(name: str) -> bool:
    return (
        name.isascii()
        and name.isdigit()
        and len(name) < 11
        and name == str(int(name))
        and int(name) <= _QUEUE_ID_MAX
    )


def _queue_ids(findings: Findings, directory: str) -> list[tuple[int, str]]:
    found = []
    for entry in entries_of(findings, directory):
        if entry.kind == "directory" and _is_queue_id(entry.name):
            found.append((int(entry.name), entry.path))
        elif entry.kind != "link":
            findings.add(
                "warning",
                entry.path,
                0,
                "only directories named as queue ids",
                f"{entry.name!r}",
                _STRAY_ADVICE,
            )
    return found


def checked_queue_files(findings: Findings, directory: str, unit_size: int) -> tuple[FileRun | None, bool]:
    """The files of one queue, None without any, and whether they fit together; where they do not, that is a
    problem.
    """
    checked_files(findings, directory)
    try:
        return file_run(directory, unit_size), True
    except CorruptStoreError as error:
        findings.add_error("damage", error, QUEUE_ADVICE, kind="queue")
        return None, False
