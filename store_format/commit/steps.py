"""How a commit ends: published, undone, or, after a crash, finished by the next writer from the journal and
the staged files.

Up to the first byte of a queue a failed commit is undone; after that it only goes forward. Both ways can be
gone again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from store_format.bookkeeping.journal import Journal, abort_mark, journal_path, write_abort_mark
from store_format.bookkeeping.ledger import read_ledger, write_ledger
from store_format.commit.checkpoint import save_checkpoint
from store_format.commit.publication import Publication
from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError
from store_format.files.read import entry_names, list_directories, list_store_files, read_bytes
from store_format.files.write import FileWrites
from store_format.index.file import list_index_files
from store_format.java.fastjson import loads
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.metadata.read import config_path
from store_format.metadata.values import TopicConfig
from store_format.metadata.write import add_topics

__all__ = ["begin", "conclude", "publish", "sync_store", "undo", "write_checkpoint", "write_topics"]


def begin(root: str, journal: Journal, files: FileWrites) -> None:
    """Step 5: the journal stands already; now new topics, and our mark with its id in `abort`."""
    write_topics(root, journal.new_topics, journal.written_at, files)
    write_abort_mark(root, journal.id, files)
    files.sync_directory(root)


def publish(root: str, journal: Journal, publication: Publication, files: FileWrites) -> None:
    """Step 6 in its order. Raises what fails; `publication.touched_queues` then tells which way is left."""
    publication.append_log()
    publication.write_queues()
    if journal.sync:
        write_checkpoint(root, publication, files)
    key_id = journal.key[0] if journal.key else None
    write_ledger(root, read_ledger(root).with_entry(key_id, publication.entry), files)
    publication.check_undisturbed()


def conclude(root: str, journal: Journal, files: FileWrites) -> None:
    """Step 7: without `abort` the batch counts. An ASYNC commit leaves `abort` with our mark, and ends with
    the journal.
    """
    if journal.sync and abort_mark(root) is not None:
        files.remove(f"{root}/abort")
        files.sync_directory(root)
    # Not synced: a journal that a power loss brings back is in the ledger, and the next writer removes it.
    files.remove(journal_path(root))


def undo(root: str, publication: Publication, previous_mark: str | None, files: FileWrites) -> None:
    """The log as it was before the base, `abort` and journal too. Only before a queue was touched."""
    publication.log_files.clear_behind(publication.journal.base)
    if previous_mark:
        write_abort_mark(root, previous_mark, files)
    else:
        files.remove(f"{root}/abort")
    files.sync_directory(root)
    files.remove(journal_path(root))
    files.sync_directory(journal_path(root).rpartition("/")[0])


# ---- checkpoint and topics ---------------------------------------------------------------------------------


def write_checkpoint(root: str, publication: Publication, files: FileWrites) -> None:
    """What is known flushed now (StoreCheckpoint as of 5.5, spec 5.1). Never after an ASYNC commit: nothing
    is known then.
    """
    before = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    offset, timestamp = publication.last_queued
    after = replace(
        before,
        physic_msg_timestamp=publication.last_timestamp,
        confirm_phy_offset=publication.entry.last_offset,
    )
    if offset >= 0:
        after = replace(after, logics_msg_timestamp=timestamp, logics_physical_offset=offset)
    if publication.index_msg_timestamp is not None:
        after = replace(after, index_msg_timestamp=publication.index_msg_timestamp)
    save_checkpoint(root, after, files)


def write_topics(root: str, new_topics: Mapping[str, int], timestamp: int, files: FileWrites) -> None:
    """topics.json with those of the new topics, by name their number of queues, that it lacks."""
    if not new_topics:
        return
    path = config_path(root, "topics.json")
    topics = [TopicConfig(name, number, number) for name, number in new_topics.items()]
    data = read_bytes(path)
    is_good = bool(data) and _is_json(data or b"", path)
    text = add_topics(data if is_good else read_bytes(f"{path}.bak"), topics, timestamp, path)
    if text is not None:
        files.make_directories(root, "config")
        files.persist_config(path, text, is_good=is_good)


def _is_json(data: bytes, path: str) -> bool:
    try:
        return isinstance(loads(data, path), dict)
    except CorruptStoreError:
        return False


# ---- flushing what ASYNC commits left ----------------------------------------------------------------------


def sync_store(root: str, log: CommitLog, log_directories: tuple[str, ...], files: FileWrites) -> None:
    """Waits until everything that commits without flush have written is on the disk: files, then directories,
    from the log down.
    """
    flushed = (read_checkpoint(f"{root}/checkpoint") or Checkpoint()).logics_physical_offset
    paths = [file.path for file in log.files if file.stop > flushed]
    directories = list(log_directories)
    for _, topic_path in list_directories(f"{root}/consumequeue"):
        directories.append(topic_path)
        for _, directory in list_directories(topic_path):
            paths += [file.path for file in list_store_files(directory)]
            directories.append(directory)
    paths += [file.path for file in list_index_files(f"{root}/index")]
    directories += [f"{root}/{name}" for name in ("consumequeue", "index") if name in entry_names(root)]
    for path in paths:
        with files.open(path) as file:
            files.sync(file)
    for directory in [*directories, root]:
        files.sync_directory(directory)
