"""A store under its lock, for several commits and changes of files in a row.

A service of the broker reads where it stopped, appends what is due and writes its progress. Between these
steps nobody else may write, so it holds the lock over all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.identity import StagedFile
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.append import CommitResult, commit_held
from store_format.commit.append_position import find_writer_end
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.staging import StagingWriter
from store_format.commit.unsupported import StoreRefusals
from store_format.commitlog.log import open_log
from store_format.commitlog.write import LogLayout
from store_format.errors import IllegalMessageError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites, saying_nothing_written
from store_format.message.encode import MESSAGE_SIZE_MAX, MessageColumns, StoredMessages, encode
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.survey.gone import LostLog

# A message that is in the store is stored again, also above the maxMessageSize of today.
_COPY_SIZE_MAX = (1 << 31) - (1 << 17)


def stage_messages(
    root: str, messages: MessageColumns, options: CommitOptions, *, message_size_max: int = MESSAGE_SIZE_MAX
) -> StagedFile:
    """Writes the messages into the staging directory, as one write of its own.

    Raises IllegalMessageError as `StagingWriter.stage` does, StoreNotFoundError for a lost commitlog, and
    StoreWriteError for a disk that is too full (`CommitOptions.disk_limit`).
    """
    opened = Opened(root)
    StoreRefusals(opened).refuse_full_disk(options.disk_limit, options.conf, options.log_directories)
    log = open_log(options.log_directories or (f"{root}/commitlog",))
    LostLog.refuse(opened, log)
    with saying_nothing_written():
        writer = StagingWriter(opened, os.urandom(8).hex(), sync=options.sync)
        try:
            writer.stage(
                messages,
                crc_property=Ledger.read(opened).ends_with_crc_property(log),
                tag_keys=options.tag_keys,
                message_size_max=message_size_max,
                delay_levels_ms=broker_conf_of(opened, options.conf).message_delay_levels_ms,
            )
            return writer.close()
        except BaseException:
            writer.discard()
            raise


@dataclass(slots=True)
class WriteSession:
    """A locked store whose last crash is completed. Use `write_session` to make one."""

    opened: Opened
    options: CommitOptions
    lock: StoreLock
    files: FileWrites

    def store(self) -> Store:
        """The store as it is now: open it again after an append."""
        return Store.open(
            self.opened.path,
            commit_log_paths=self.options.log_directories,
            unfiled_queues=self.options.unfiled_queues,
            fail_on_unknown=False,
            compacted=False,
        )

    def ledger(self) -> Ledger:
        return Ledger.read(self.opened)

    def append(
        self,
        messages: MessageColumns,
        *,
        turn: ServiceTurn | None = None,
        store_timestamps: int | NDArray[np.int64] | None = None,
        new_topics: Mapping[str, int] | None = None,
    ) -> CommitResult:
        """Appends the messages, all or none, and notes the turn in the ledger with the same commit.

        `new_topics` are topics that topics.json lacks, with their number of queues. See `commit.append`.
        """
        options = replace(self.options, new_topics={**self.options.new_topics, **(new_topics or {})})
        return self.append_staged(
            stage_messages(self.opened.path, messages, options, message_size_max=_COPY_SIZE_MAX),
            turn,
            store_timestamps,
            options,
        )

    def next_places(self, messages: MessageColumns) -> NDArray[np.int64]:
        """The physical offsets that these messages get if the next append begins with them."""
        held = open_store(self.opened.path, self.options, self.files)
        end = find_writer_end(held)
        crc_property = held.ledger.ends_with_crc_property(held.log)
        units = encode(messages, crc_property=crc_property, message_size_max=_COPY_SIZE_MAX)
        layout = LogLayout(end.offset, held.settings.mapped_file_size_commit_log)
        return layout.place(units.sizes)[0]

    def refused(self, messages: StoredMessages) -> dict[int, IllegalMessageError]:
        """The messages that `append` refuses for their topic or a size: the error by place."""
        held = open_store(self.opened.path, self.options, self.files)
        crc_property = held.ledger.ends_with_crc_property(held.log)
        found: dict[int, IllegalMessageError] = {}
        ranges = [(0, len(messages))]
        while ranges:
            start, stop = ranges.pop()
            if start == stop:
                continue
            part = messages.take(np.arange(start, stop)).messages
            try:
                encode(part, crc_property=crc_property, message_size_max=_COPY_SIZE_MAX)
            except IllegalMessageError as error:
                middle = (start + stop) // 2
                if stop - start == 1:
                    found[start] = error
                else:
                    ranges += [(start, middle), (middle, stop)]
        return found

    def flush(self) -> None:
        """Writes what ASYNC commits left to the disk. `abort` is gone then, as after a clean shutdown."""
        open_store(self.opened.path, replace(self.options, sync=True), FileWrites(sync=True))

    def append_staged(
        self,
        staged: StagedFile,
        turn: ServiceTurn | None,
        store_timestamps: int | NDArray[np.int64] | None,
        options: CommitOptions,
    ) -> CommitResult:
        return commit_held(
            self.lock, self.opened, [staged], turn=turn, store_timestamps=store_timestamps, options=options
        )


@contextmanager
def write_session(root: str, options: CommitOptions | None = None) -> Iterator[WriteSession]:
    """Locks the store, completes what a crash left, and releases the lock at the end.

    Raises StoreInUseError if a broker or another writer has the store, and UnsupportedFormatError for a store
    that is not written to.
    """
    opened = Opened(root)
    options = options or CommitOptions()
    StoreRefusals(opened).refuse_store()
    with StoreLock(root, timeout=options.lock_timeout) as lock:
        lock.refuse_other_openers()
        files = FileWrites(sync=options.sync)
        open_store(root, options, files)
        yield WriteSession(opened, options, lock, files)
        lock.refuse_other_openers()
