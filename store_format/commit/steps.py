"""The steps of a commit that change the store, in their order, and how they end: concluded or undone.

A store and every store of a cluster run the same list: `publish`, then `conclude`. The next writer runs the
list again after a crash (`roll_forward`). Up to the first byte of a consume queue a failed commit is undone;
after that it is only completed. Every step may be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from store_format.bookkeeping.journal import Abort, Journal, ring_doorbell
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.publication import Publication, save_checkpoint
from store_format.commitlog.log import CommitLog
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.index.file import list_index_files
from store_format.metadata.read import Checkpoint, config_path, known_topics, loaded_bytes, read_checkpoint
from store_format.metadata.values import TopicConfig, put_topics
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.survey.fates import StoredTopics


def publish(publication: Publication, files: FileWrites) -> None:
    """Does the steps from the written journal to the ledger.

    The order is that of a broker that writes the same messages: a reader that stops at the journal's base
    sees nothing of the batch, and no queue entry is written before its message. After a failure the
    caller undoes the commit if `publication.touched_queues` is False, else repeats the steps.
    """
    opened, journal = publication.opened, publication.journal
    write_topics(opened, journal.new_topics, journal.written_at, files)
    Abort.write_mark(opened, journal.id, files)
    files.sync_directory(opened.path)
    publication.append_log()
    publication.write_queues()
    if journal.sync:
        _write_checkpoint(publication, files)
    note_in_ledger(publication, files)
    publication.check_undisturbed()


def note_in_ledger(publication: Publication, files: FileWrites) -> None:
    opened, journal = publication.opened, publication.journal
    ends = dict(zip(journal.queues, publication.queue_stops, strict=True))
    counter = StoredTopics(opened).counter if journal.new_topics else None
    created = {} if counter is None else {name: (each, counter) for name, each in journal.new_topics.items()}
    ledger = Ledger.read(opened).with_entry(
        journal.key[0] if journal.key else None, publication.entry, ends, created
    )
    ledger.write(opened, files)


def conclude(opened: Opened, journal: Journal, files: FileWrites) -> None:
    """Makes the batch count: removes `abort`, then the journal. An ASYNC commit leaves `abort` there."""
    if journal.sync and Abort.read_mark(opened) is not None:
        files.remove(f"{opened.path}/abort")
        files.sync_directory(opened.path)
    remove_journal(opened, files)


def remove_journal(opened: Opened, files: FileWrites) -> None:
    """Removes the journal of a commit in the ledger. Readers see the batch now, so the doorbell rings."""
    # Not synced: a journal that a power loss brings back is in the ledger, and the next writer removes it.
    files.remove(Journal.path(opened))
    ring_doorbell(opened, files)


def undo(publication: Publication, previous_mark: str | None, files: FileWrites) -> None:
    """Restores the log and `abort`, and removes the journal. Only before a consume queue was touched."""
    opened = publication.opened
    publication.log_files.clear_behind(publication.journal.base)
    if previous_mark:
        Abort.write_mark(opened, previous_mark, files)
    else:
        files.remove(f"{opened.path}/abort")
    files.sync_directory(opened.path)
    files.remove(Journal.path(opened))
    files.sync_directory(Journal.path(opened).rpartition("/")[0])


# ---- checkpoint and topics ---------------------------------------------------------------------------------


def _write_checkpoint(publication: Publication, files: FileWrites) -> None:
    """Notes what is flushed (StoreCheckpoint as of 5.5, spec 5.1). An ASYNC commit flushes nothing."""
    opened = publication.opened
    before = read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint()
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
    save_checkpoint(opened, after, files)


def write_topics(opened: Opened, new_topics: Mapping[str, int], timestamp: int, files: FileWrites) -> None:
    """Adds the new topics, by name with their number of queues, that topics.json lacks, and those that it
    lacks because it is older than the ledger: with the new ones it is not older any more.
    """
    if not new_topics:
        return
    path = config_path(opened, "topics.json")
    all_topics = {**StoredTopics(opened).missing(known_topics(opened) or ()), **new_topics}
    topics = [TopicConfig(name, number, number) for name, number in all_topics.items()]
    place, data = loaded_bytes(path)
    # A topics.json from before topics were created, as in a copy, is older than the ledger.
    least = max((counter for _, counter in Ledger.read(opened).created.values()), default=0)
    text = put_topics(data, topics, timestamp, place, least)
    if text is not None:
        files.make_directories(opened.path, "config")
        files.persist_config(path, text, is_good=place == path and data is not None)


# ---- flushing what ASYNC commits left ----------------------------------------------------------------------


def sync_store(opened: Opened, log: CommitLog, log_directories: tuple[str, ...], files: FileWrites) -> None:
    """Syncs what ASYNC commits and services wrote: the files of log, queues and index, the state files of
    services, the ledger, then their directories.
    """
    flushed = (read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint()).logics_physical_offset
    paths = [file.path for file in log.files if file.stop > flushed]
    directories = list(log_directories)
    for _, topic_path in opened.files.directories(f"{opened.path}/consumequeue"):
        directories.append(topic_path)
        for _, directory in files_at(topic_path).directories(topic_path):
            paths += [file.path for file in files_at(directory).store_files(directory)]
            directories.append(directory)
    paths += [file.path for file in list_index_files(f"{opened.path}/index")]
    paths += [file.path for file in opened.files.store_files(f"{opened.path}/timerlog")]
    names = opened.files.names(opened.path)
    paths += [f"{opened.path}/timerwheel"] if "timerwheel" in names else []
    paths += [entry.path for entry in opened.files.entries(f"{opened.path}/config") if entry.kind == "file"]
    folders = ("consumequeue", "index", "timerlog", "config", OWN_DIRECTORY)
    directories += [f"{opened.path}/{name}" for name in folders if name in names]
    for path in paths:
        with files.open(path) as file:
            files.sync(file)
    own = FileWrites(sync=files.is_sync)  # not `files`: these are replaced, and by no other process
    for entry in opened.files.entries(f"{opened.path}/{OWN_DIRECTORY}"):
        if entry.kind == "file":
            with own.open(entry.path) as file:
                own.sync(file)
    for directory in [*directories, opened.path]:
        files.sync_directory(directory)
    Ledger.drop_backup(opened, files)
