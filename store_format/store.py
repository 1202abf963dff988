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
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import OptionError
from store_format.index.geometry import DEFAULT_GEOMETRY
from store_format.message.columns import DEFAULT_COLUMNS, decode_options_of
from store_format.read.store import Store

# Writing, searching, views and diagnosis are imported where they are used: they are half of the code, and
# the command line would wait for it at each start.
if TYPE_CHECKING:
    from store_format.commit.append import CommitResult
    from store_format.commit.prepare_store import CommitOptions
    from store_format.commit.recover import RecoverPlan
    from store_format.diagnose.problems import Diagnosis
    from store_format.message.columns import PropertyFilter
    from store_format.message.encode import MessageColumns
    from store_format.metadata.broker_conf import BrokerConf
    from store_format.search.found import Found


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, repr=False)
class MessageStore(Store):
    """A broker's store directory: `Store`, plus writing, searching, views and checks.

    Reading changes no file and takes no lock; only `create`, `append` and `flush` write. Every method
    (`topics`, `queue`, `snapshot` ...) looks at the files as they are when it is called.
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
        """Creates an empty store that a broker with these settings can load.

        The settings are written to `.rmqlog/broker.conf` in the store. `broker_name` is by default the name
        of the directory. Raises OptionError if the path already has content.
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
        """Appends the messages: all of them, or none.

        With a `key` (id, number), a repeated call appends nothing: the ledger remembers the key. See
        `commit.append.commit`.
        """
        from store_format.bookkeeping.ledger import refuse_service_key
        from store_format.commit.append import commit
        from store_format.commit.prepare_store import CommitOptions
        from store_format.commit.session import stage_messages

        if key is not None:
            refuse_service_key(key[0])
        options = options or CommitOptions()
        options = replace(options, log_directories=options.log_directories or self.commit_log_paths)
        staged = stage_messages(self.path, messages, options)
        return commit(self.path, [staged], key=key, store_timestamps=store_timestamps, options=options)

    def flush(self) -> None:
        """Writes commits that were made with ASYNC_FLUSH to the disk, so that they survive a power loss."""
        from store_format.commit.append import flush
        from store_format.commit.prepare_store import CommitOptions

        flush(self.path, options=CommitOptions(log_directories=self.commit_log_paths))

    def recover(
        self,
        *,
        rebuild_queues: bool = True,
        rebuild_index: bool = True,
        topics: Sequence[str] | None = None,
        into: str | None = None,
        cut_after_damage: bool = False,
        salvage: bool = False,
        broker_conf: str | None = None,
    ) -> RecoverPlan:
        """Plans a recovery: the log's end by the broker's rules, lost consume queues and index files rebuilt.

        `recover().table()` shows what would change, `recover().apply()` changes it. With `into`, a new
        directory, a copy is recovered and this store only read. See `commit.recover.recover`, which also
        takes stores that `open` refuses.
        """
        from store_format.commit.recover import recover

        return recover(
            self.path,
            rebuild_queues=rebuild_queues,
            rebuild_index=rebuild_index,
            topics=topics,
            into=into,
            cut_after_damage=cut_after_damage,
            salvage=salvage,
            broker_conf=broker_conf,
            commit_log_paths=self.commit_log_paths,
        )

    # ---- questions beyond reading --------------------------------------------------------------------------

    def find(
        self,
        *,
        key: str | None = None,
        message_id: str | None = None,
        topic: str | None = None,
        tags: Sequence[str] | None = None,
        since: int | datetime | None = None,
        until: int | datetime | None = None,
        where: PropertyFilter | None = None,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        verify_crc: bool = True,
        on_damage: str = "FAILFAST",
        use_index: bool = True,
        hash_slot_num: int | None = None,
        index_num: int | None = None,
        on_scanned: Callable[[int, int], object] | None = None,
    ) -> Found:
        """Finds messages by key or by id; without either, all messages that match the other arguments.

        `key` matches UNIQ_KEY or a word of KEYS; `message_id` matches UNIQ_KEY or the offset message id.
        `topic`, `tags` (any of them), `where` (by properties) and the store times `since` (inclusive) and
        `until` (exclusive), in ms since 1970 or as datetimes, restrict the result. The store that
        `rmq_spark.open` returns takes texts, too: `since="-2h"`, `where="region = 'east'"`.

        Index files answer for the part of the commitlog that they cover; the rest is scanned, and `Found.how`
        says which. `on_scanned` is called during a scan with the bytes scanned so far and the bytes to scan
        at most. See `search.look_up.look_up`.

        Example: `store.find(key="A-100017").table`.
        """
        from store_format.search.look_up import How, Question, look_up

        decode_options_of(columns, verify_crc)
        question = Question(
            key,
            message_id,
            topic,
            None if tags is None else tuple(tags),
            _time_ms("since", since),
            _time_ms("until", until),
            where,
        )
        how = How(tuple(columns), on_damage, verify_crc, use_index, hash_slot_num, index_num, on_scanned)
        return look_up(self._relisted(), question, how)

    def trace(self, message_id: str) -> pa.Table:
        """The life of a message as a timeline: its copies, retries, dead letter, and groups that consumed it.

        See `views.trace.trace`. Example: `store.trace("0A00051112672A139A4E7117B3AF7896")["what"]`.
        """
        from store_format.views.trace import trace

        return trace(self._relisted(), message_id)

    def view(
        self, name: str, *, now_ms: int | None = None, broker_conf: str | BrokerConf | None = None
    ) -> pa.Table:
        """One view of the store as a table; the names are in `views.registry.VIEWS`.

        Ages are counted up to `now_ms`, by default the clock. `broker_conf` is the path of the broker's
        broker.conf, or its settings; without it the settings are those in the store's `.rmqlog/broker.conf`,
        else the broker's defaults.

        Example: `store.view("lag").to_pylist()`.
        """
        from store_format.views.registry import view_table

        return view_table(self, name, now_ms=now_ms, broker_conf=broker_conf)

    def diagnose(self) -> Diagnosis:
        """All problems of the store. `diagnose.diagnose` also checks stores that `open` refuses."""
        from store_format.diagnose import diagnose

        return diagnose(self.path, self.commit_log_paths)

    def _relisted(self) -> MessageStore:
        """The same store with the commitlog files that exist now."""
        return replace(self, log=self.log.relisted())

    def _repr_html_(self) -> str:
        from store_format.notebook.cards import store_card

        return store_card(self).source


def _time_ms(name: str, value: int | datetime | None) -> int | None:
    """A store time in ms. Parts of a millisecond round up; a datetime without a zone is in UTC."""
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, datetime):
        raise OptionError(
            f"{name}: expected ms since 1970 or a datetime, found {value!r}; "
            "the store that rmq_spark.open(path) returns takes texts, too"
        )
    moment = value if value.tzinfo else value.replace(tzinfo=UTC)
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
