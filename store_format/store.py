"""A store directory as a whole: the class that people meet first.

store = MessageStore.open("/data/store")
for batch in store.queue("Orders", 0).read(columns=["queueOffset", "body"]):
    ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.settings import StoreSettings
from store_format.commitlog.log import CommitLog
from store_format.index.geometry import DEFAULT_GEOMETRY
from store_format.message.columns import DEFAULT_COLUMNS
from store_format.read.store import Store, decode_options_of

# Writing, searching, views and diagnosis are imported where they are used: half of all rooms, and a command
# line waits for each.
if TYPE_CHECKING:
    from store_format.commit.append import CommitResult
    from store_format.commit.prepare_store import CommitOptions
    from store_format.diagnose.problems import Diagnosis
    from store_format.message.encode import MessageColumns
    from store_format.search.found import Found


@dataclass(frozen=True, slots=True)
class MessageStore(Store):
    """One broker's store directory: what `Store` reads, and the ways to write, search, list and check it.

    Reading changes no file and takes no lock; only `create`, `append` and `flush` write. Every question
    (`topics`, `queue`, `snapshot` ...) looks at the files as they are when it is asked.
    """

    @staticmethod
    def create(
        path: str,
        *,
        broker_name: str | None = None,
        mapped_file_size_commit_log: int = 1 << 30,
        mapped_file_size_consume_queue: int = 6_000_000,
        max_hash_slot_num: int = DEFAULT_GEOMETRY.hash_slot_num,
        max_index_num: int = DEFAULT_GEOMETRY.index_num,
    ) -> MessageStore:
        """Makes an empty store that a broker with these settings loads; `.rmqlog/broker.conf` in it says
        them.

        The broker's name is, unless given, that of the directory. Raises OptionError where something is
        already.
        """
        from store_format.commit.create_store import create_store

        root = os.path.abspath(path)
        settings = StoreSettings(
            broker_name or os.path.basename(root),
            mapped_file_size_commit_log,
            mapped_file_size_consume_queue,
            max_hash_slot_num,
            max_index_num,
        )
        create_store(root, settings, timestamp=time.time_ns() // 1_000_000)
        return MessageStore.open(root)

    def append(
        self,
        messages: MessageColumns,
        *,
        key: tuple[str, int] | None = None,
        store_timestamps: int | NDArray[np.int64] | None = None,
        options: CommitOptions | None = None,
    ) -> CommitResult:
        """Appends the messages, all or none; with a `key` (id, number) once, however often it is called. See
        `append.commit`.

        What this object has listed stays as it was: open the store again to read them.
        """
        from store_format.bookkeeping.ledger import read_ledger
        from store_format.commit.append import commit
        from store_format.commit.appended_crc import ends_with_crc_property
        from store_format.commit.lost_log import refuse_lost_log
        from store_format.commit.prepare_store import CommitOptions
        from store_format.commit.staging import StagingWriter, stage_columns

        options = options or CommitOptions()
        options = replace(options, log_directories=options.log_directories or self.commit_log_paths)
        refuse_lost_log(
            self.path, CommitLog.open(options.log_directories, self.files), options.log_directories
        )
        writer = StagingWriter(self.path, os.urandom(8).hex(), sync=options.sync)
        try:
            crc_property = ends_with_crc_property(self.log.relisted(), read_ledger(self.path))
            stage_columns(writer, messages, crc_property=crc_property, tag_keys=options.tag_keys)
            staged = writer.close()
        except BaseException:
            writer.discard()
            raise
        return commit(self.path, [staged], key=key, store_timestamps=store_timestamps, options=options)

    def flush(self) -> None:
        """Makes commits without flush outlast a power loss."""
        from store_format.commit.append import flush
        from store_format.commit.prepare_store import CommitOptions

        flush(self.path, options=CommitOptions(log_directories=self.commit_log_paths))

    # ---- questions beyond reading ------------------------------------------------------------------------------

    def find(
        self,
        *,
        key: str | None = None,
        message_id: str | None = None,
        topic: str | None = None,
        tags: Sequence[str] | None = None,
        begin_ms: int | None = None,
        end_ms: int | None = None,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        verify_crc: bool = True,
        on_damage: str = "FAILFAST",
        use_index: bool = True,
        hash_slot_num: int | None = None,
        index_num: int | None = None,
        on_scanned: Callable[[int, int], object] | None = None,
    ) -> Found:
        """Messages with `key` as a word of KEYS or as UNIQ_KEY; with `message_id` as UNIQ_KEY or as offset
        message id; else all.

        Of a topic, or of any; with one of `tags`; between two store times (both inclusive). Index files are
        used for the part of the log they cover, the rest is scanned; the answer says which. `on_scanned` is
        told how far a scan is: bytes looked at, and bytes to look at, at most. See `lookup.look_up`.
        """
        from store_format.search.look_up import How, Question, look_up

        decode_options_of(columns, verify_crc)
        how = How(tuple(columns), on_damage, verify_crc, use_index, hash_slot_num, index_num, on_scanned)
        return look_up(
            self,
            Question(key, message_id, topic, None if tags is None else tuple(tags), begin_ms, end_ms),
            how,
        )

    def trace(self, message_id: str) -> pa.Table:
        """The life of a message as a timeline: its copies, retries, dead letter, and the groups that have
        passed it. See `trace.trace`.
        """
        from store_format.views.trace import trace

        return trace(self, message_id)

    def view(self, name: str, *, now_ms: int | None = None) -> pa.Table:
        """What is in the store, as one of the tables of `views.table.VIEWS`. Ages count to `now_ms`, by
        default the clock.
        """
        from store_format.views.registry import view_table

        return view_table(self, name, now_ms=now_ms)

    def diagnose(self) -> Diagnosis:
        """Every problem of the store; `diagnose.diagnose` also looks at stores that `open` refuses."""
        from store_format.diagnose import diagnose

        return diagnose(self.path, self.commit_log_paths)

    def _repr_html_(self) -> str:
        from store_format.notebook.cards import store_card

        return store_card(self).source
