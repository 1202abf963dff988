"""The directories of a store: links, and files with wrong names, lengths or neighbours.

`CommitLog.open` refuses a log whose files do not fit together. `usable_log` builds a log of those that do.
What a broker serves from files that are not read is named only (`check_elsewhere`): nothing there is damage,
and none of it is checked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np

from store_format.bookkeeping.settings import StoreSettings
from store_format.commitlog.dledger import with_heads
from store_format.commitlog.log import STRAY_ADVICE, CommitLog, strays
from store_format.consumequeue.compacted import has_compacted_files
from store_format.consumequeue.files import (
    FOLDERS,
    FileRun,
    file_run,
    has_rocksdb_queues,
    is_queue_id,
    run_of,
)
from store_format.diagnose.own_files import check_compacted
from store_format.diagnose.problems import NO_FILE_ADVICE, ODD_SIZE_ADVICE, REFUSES, Findings, Severity
from store_format.display.text import first_names
from store_format.errors import CorruptStoreError
from store_format.files.paths import OFFSET_NAME, DirectoryEntry, StoreFile
from store_format.files.read import FileCache, files_at
from store_format.layouts import OFFSET_MAX
from store_format.metadata.read import config_path
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.read.store_root import OtherFiles

QUEUE_ADVICE = (
    "rmqlog recover writes the entries again from the commitlog. Do not start a broker before that: "
    "howto-recover.md, section 6"
)
_LINK_ADVICE = "Links below the store's root are not followed: put the file itself in its place"
SIZE_ADVICE = (
    f"rmqlog recover writes the queue's files again from the commitlog. Until then a {REFUSES} "
    "(MappedFileQueue.doLoad)"
)
_STRAY_ADVICE = (
    "Move it out of the store: a broker refuses to start on this store (MappedFileQueue.doLoad), and readers "
    "ignore it"
)
_RESTORE_ADVICE = "Restore the file: a broker refuses to start on this store (MappedFileQueue.doLoad)"
_EXTEND_ADVICE = (
    "Restore the file, or add the zeros that it lacks (rmqlog recover STORE --apply): a broker refuses to "
    "start on this store (MappedFileQueue.doLoad)"
)
_OLD_STRAY_ADVICE = (
    "Move it out of the store: a 4.9 broker does not start with it. A 5.x broker skips a directory, and "
    "deletes an empty last file (MappedFileQueue.doLoad)"
)
_IGNORED_ADVICE = "Nothing needs to be done: a broker and readers ignore it"
_EMPTY_ADVICE = "Nothing needs to be done: a broker deletes it when it starts (MappedFileQueue.doLoad)"
_COMPACTED = "the entries and messages in compaction/ are checked, also their order and their checksums"
_KEPT_ADVICE = "It is not checked whether they are the newest of each key"
_DLEDGER_ADVICE = "It is not checked; name its directory too (--commitlog DIR), or read it through a broker"


# ---- any directory -----------------------------------------------------------------------------------------


def entries_of(findings: Findings, directory: str) -> list[DirectoryEntry]:
    """The entries of a directory. Reports links, and a file in the place of the directory."""
    try:
        entries = files_at(directory).entries(directory)
    except CorruptStoreError as error:
        findings.add_error("damage", error, "Put the directory back in its place")
        return []
    for entry in entries:
        if entry.kind == "link":
            findings.add("damage", entry.path, 0, "a file or directory", "a symbolic link", _LINK_ADVICE)
    return entries


def checked_files(
    findings: Findings,
    directory: str,
    name: re.Pattern[str] = OFFSET_NAME,
    what: str = "20 digits",
    *,
    may_refuse: bool = True,
) -> list[DirectoryEntry]:
    """The files whose names match, ascending by name. Reports every other entry of the directory; a broker
    `may_refuse` to start because of one.
    """
    return _checked(findings, entries_of(findings, directory), name, what, may_refuse=may_refuse)


def _checked(
    findings: Findings,
    entries: Sequence[DirectoryEntry],
    name: re.Pattern[str] = OFFSET_NAME,
    what: str = "20 digits",
    *,
    may_refuse: bool = True,
) -> list[DirectoryEntry]:
    found = []
    last = max((entry.name for entry in entries), default="")
    for entry in entries:
        if entry.kind == "link":
            continue
        if entry.kind == "file" and name.match(entry.name):
            found.append(entry)
            continue
        found_kind = f"the {entry.kind} {entry.name!r}"
        if entry.kind == "other":
            found_kind = f"{entry.name!r}, neither file nor directory"
        if name.match(entry.name):  # as `Files.store_files` refuses it
            findings.add("damage", entry.path, 0, "a regular file", found_kind, NO_FILE_ADVICE)
        else:
            is_last = entry.kind == "file" and not entry.size and entry.name == last
            log_advice = _OLD_STRAY_ADVICE if is_last or entry.kind == "directory" else _STRAY_ADVICE
            advice = log_advice if may_refuse else _IGNORED_ADVICE
            severity: Severity = "warning" if may_refuse else "info"
            expected = f"only files whose names are {what}"
            findings.add(severity, entry.path, 0, expected, found_kind, advice)
    return found


# ---- commitlog ---------------------------------------------------------------------------------------------


def usable_log(
    findings: Findings, opened: Opened, directories: Sequence[str]
) -> tuple[CommitLog, int, tuple[int, int]]:
    """(the commitlog of the files that fit, the length that files should have, bytes of files that do not
    fit, and of `strays`)

    The log begins with the first name of a file, also if that file does not fit. The walk finds the gaps.
    """
    cache, files = FileCache(), list[StoreFile]()
    for directory in directories:
        entries = checked_files(findings, directory)
        listed = [StoreFile(entry.path, int(entry.name), entry.size) for entry in entries]
        files += with_heads(directory, listed, cache)
    files.sort(key=lambda file: file.start)
    if files and files[-1].size == 0:
        empty = files.pop()
        findings.add("info", empty.path, 0, "a file with content", "an empty last file", _EMPTY_ADVICE)
    stray = strays(files, cache)
    for error in stray.values():
        findings.add_error("damage", error, STRAY_ADVICE)
    stray_bytes = sum(file.size for file in files if file.path in stray)
    files = [file for file in files if file.path not in stray]
    size = _likely_size(files)
    with suppress(CorruptStoreError):  # a bad store.json: a write reports the file
        size = StoreSettings.size_of_cut_file(opened, _log_of(files, directories)) or size
    kept: list[StoreFile] = []
    unplaced = 0
    for file in files:
        reason = _misfit(file, kept[-1] if kept else None)
        if file.size != size:
            can_extend = file is files[-1] and 0 < file.size < size
            advice = _EXTEND_ADVICE if can_extend else _RESTORE_ADVICE
            whose = "like the others" if len(files) > 1 else "as in .rmqlog/store.json"
            expected, found = f"a file of {size} bytes, {whose}", f"{file.size} bytes"
            findings.add("damage", file.path, min(file.size, size), expected, found, advice)
        elif reason is not None:
            advice = "Move away the file that does not belong to this log"
            findings.add("damage", file.path, 0, *reason, advice)
        if reason is None and 0 < file.size <= size:
            kept.append(file)
        else:
            unplaced += file.size
    if len(files) == 1 and size % 1024:  # people choose multiples of 1,024
        findings.add(
            "warning",
            files[0].path,
            size,
            "a file of mappedFileSizeCommitLog bytes (1073741824 by default)",
            f"{size} bytes",
            ODD_SIZE_ADVICE,
        )
    named = [
        int(entry.name)
        for directory in directories
        for entry in entries_of(findings, directory)
        if OFFSET_NAME.match(entry.name) and entry.path not in stray
    ]
    begin = min(named, default=OFFSET_MAX)
    return replace(_log_of(kept, directories), begin=begin), size, (unplaced, stray_bytes)


def _log_of(files: Sequence[StoreFile], directories: Sequence[str]) -> CommitLog:
    starts = np.array([file.start for file in files], np.int64)
    stops = np.array([file.stop for file in files], np.int64)
    return CommitLog(tuple(files), (), FileCache(), starts, stops, tuple(directories))


def _likely_size(files: Sequence[StoreFile]) -> int:
    """The length that most files have. The distance between two names counts as a vote for a length, too."""
    votes = Counter(file.size for file in files if file.size)
    votes.update(
        after.start - before.start for before, after in pairwise(files) if after.start > before.start
    )
    return max(votes, key=lambda size: (votes[size], size)) if votes else 0


def _misfit(file: StoreFile, before: StoreFile | None) -> tuple[str, str] | None:
    """(expected, found) of a file whose name does not fit the log or the file before it; else None."""
    if before is None or file.start >= before.stop:
        return None
    if file.start == before.start:
        return f"one file that starts at {file.start}", f"another one, {before.path}"
    return f"a file that starts at or behind {before.stop}", f"{file.start}, inside {before.path}"


# ---- queues ------------------------------------------------------------------------------------------------


def queue_directories(findings: Findings, opened: Opened) -> list[tuple[str, int, str, str]]:
    """(topic, queue id, directory, kind) of every queue directory, sorted. Reports other entries."""
    found = []
    for kind, folder in FOLDERS.items():
        entries = entries_of(findings, f"{opened.path}/{folder}")
        rocksdb = any(entry.name == "CURRENT" for entry in entries)
        for topic in entries:
            # Bytes that are not UTF-8 come as lone surrogates: no message has such a topic.
            if topic.kind == "directory" and any("\ud800" <= each <= "\udfff" for each in topic.name):
                expected = "a topic's name in UTF-8"
                findings.add("info", topic.path, 0, expected, repr(topic.name), _IGNORED_ADVICE)
            elif topic.kind == "directory":
                found += [
                    (topic.name, queue_id, path, kind) for queue_id, path in _queue_ids(findings, topic.path)
                ]
            elif topic.kind != "link" and not rocksdb:
                expected = "only directories named as topics"
                findings.add("info", topic.path, 0, expected, repr(topic.name), _IGNORED_ADVICE)
    return sorted(found)


def _queue_ids(findings: Findings, directory: str) -> list[tuple[int, str]]:
    found = []
    for entry in entries_of(findings, directory):
        if entry.kind == "directory" and is_queue_id(entry.name):
            found.append((int(entry.name), entry.path))
        elif entry.kind != "link":
            expected = "only directories named as queue ids"
            findings.add("info", entry.path, 0, expected, repr(entry.name), _IGNORED_ADVICE)
    return found


def checked_queue_files(findings: Findings, directory: str, unit_size: int) -> tuple[FileRun | None, bool]:
    """(the queue's files or None, whether they fit together). Reports files that do not fit."""
    entries = entries_of(findings, directory)
    files = _checked(findings, entries)
    try:
        if len(files) == len(entries) == 1 and files[0].size:  # as of most queues, which are listed once
            return run_of([StoreFile(files[0].path, int(files[0].name), files[0].size)], unit_size), True
        return file_run(directory, unit_size), True
    except CorruptStoreError as error:
        advice = SIZE_ADVICE if error.found.endswith(" bytes") else QUEUE_ADVICE
        if error.expected != "a regular file":  # which is reported
            findings.add_error("damage", error, advice, kind="queue")
        return None, False


# ---- served by a broker, and not read ----------------------------------------------------------------------


def kinds_of(store: Store) -> list[str]:
    """What a store has that a plain one has not, in the words of docs/stores.md."""
    opened, other = store.opened, OtherFiles(store.opened)
    found = {
        "DLedger": store.log.has_heads,
        "queues in RocksDB": has_rocksdb_queues(opened),
        "configuration in RocksDB": bool(opened.config_databases),
        "compaction topics": bool(other.compacted),
        "tiered storage": other.tiered is not None,
        "static topics": opened.files.exists(config_path(opened, "topicQueueMapping.json")),
    }
    return [name for name, is_there in found.items() if is_there]


def check_elsewhere(findings: Findings, opened: Opened, directories: Sequence[str], *, is_live: bool) -> bool:
    """Reports files that are not read, and returns whether there are any; checks compacted topics. The
    commitlog is in `directories`.
    """
    other = OtherFiles(opened)
    logs, tiered, compacted = opened.unread_ledgers(directories), other.tiered, other.compacted
    read = [topic for topic in compacted if has_compacted_files(opened, topic)]
    compacted = [topic for topic in compacted if topic not in read]
    check_compacted(findings, opened, read, is_live=is_live)
    for path in logs:
        findings.add("info", path, 0, "a commitlog that is read", other.DLEDGER, _DLEDGER_ADVICE)
    if tiered is not None:
        findings.add("info", tiered, 0, "all messages in this directory", other.TIERED, "It is not checked")
    if compacted:
        found = f"cleanup.policy=COMPACTION of {first_names(compacted)}: {other.COMPACTED}"
        path = config_path(opened, "topics.json")
        findings.add(
            "info", path, 0, "topics whose messages only retention deletes", found, "It is not checked"
        )
    if read:
        found = f"cleanup.policy=COMPACTION of {first_names(read)}: {_COMPACTED}"
        path = config_path(opened, "topics.json")
        findings.add("info", path, 0, "topics that a broker serves from compaction/", found, _KEPT_ADVICE)
    return bool(logs or tiered or compacted)
