"""`MessageStore`: a store directory with its messages, searches, views, checks and writes.

store = MessageStore.open("/data/store")
for batch in store.queue("Orders", 0).read(columns=["queueOffset", "body"]):
    ...
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import OptionError
from store_format.files import paths
from store_format.index.file import DEFAULT_GEOMETRY
from store_format.message.columns import DEFAULT_COLUMNS, decode_options_of
from store_format.read.store import Store

# Writing, searching, views and diagnosis are imported where they are used: they are half of the code, and
# the command line would wait for it at each start.
if TYPE_CHECKING:
    from store_format.commit.append import CommitResult
    from store_format.commit.options import CommitOptions
    from store_format.commit.recover import RecoverPlan
    from store_format.diagnose.problems import Diagnosis
    from store_format.message.columns import PropertyFilter
    from store_format.message.encode import MessageColumns
    from store_format.metadata.read import BrokerConf
    from store_format.search.look_up import Found
    from store_format.views.diff import StoreDiff


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, repr=False)
class MessageStore(Store):
    """A broker's store directory, opened with `MessageStore.open(path)` or made with
    `MessageStore.create(path)`.

    Reads, searches and views change no file and take no lock. Only `create`, `append`, `flush` and an applied
    `recover` write. Every method looks at the files as they are when you call it.

    Example::

        store = MessageStore.open("/data/store")
        store.queue("Orders", 0).to_table(columns=["queueOffset", "body"])
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
        """Creates an empty store and opens it. A broker with the same settings can load the store.

        `broker_name` is by default the name of the directory. The other arguments are the broker's settings
        of the same names: file sizes in bytes, and the numbers of slots and entries of an index file. They
        are written to `.rmqlog/broker.conf` in the store.

        Raises OptionError if `path` already has content.

        Example: `MessageStore.create("/data/new-store", broker_name="broker-a")`.
        """
        from store_format.commit.create_store import StoreDirectory

        root = paths.given(path)
        settings = StoreSettings(
            broker_name or paths.base_name(root),
            mapped_file_size_commit_log,
            mapped_file_size_consume_queue,
            max_hash_slot_num,
            max_index_num,
        )
        StoreDirectory(root).create(settings, timestamp=time.time_ns() // 1_000_000)
        return MessageStore.open(root)

    def append(
        self,
        messages: MessageColumns,
        *,
        key: tuple[str, int] | None = None,
        store_timestamps: int | NDArray[np.int64] | None = None,
        options: CommitOptions | None = None,
    ) -> CommitResult:
        """Appends the messages in one commit: all of them, or none.

        With a `key` (id, number), a call is ignored if this number or a higher number of this id was
        committed before; the result then has `committed=False`. `store_timestamps` is in ms since 1970: one
        value for all messages, or an array with one value for each message; None is the clock. Returns a
        `CommitResult`, whose `queues` maps (topic, queue id) to the new queue offsets (start, stop).

        Raises StoreInUseError if another process has the store open, IllegalMessageError for a message that
        breaks a limit, UnsupportedFormatError for a store or topic that rmqlog cannot write to, and
        StoreWriteError for a file that cannot be written, and for a disk that is more than 90 % full
        (`CommitOptions.disk_limit`).

        Example::

            result = store.append(messages, key=("import", 1))
            print(result.committed, result.queues)
        """
        from store_format.bookkeeping.ledger import ServiceTurn
        from store_format.commit.append import commit
        from store_format.commit.options import CommitOptions
        from store_format.commit.session import stage_messages
        from store_format.message.encode import MessageColumns

        if not isinstance(messages, MessageColumns):
            kind = type(messages).__qualname__  # type: ignore[unreachable]
            raise OptionError(
                f"append: expected MessageColumns, found {kind}; rmq_spark.open(path).append takes tables"
            )
        if key is not None:
            key = ServiceTurn.user_key(key)
        options = options or CommitOptions()
        options = replace(options, log_directories=options.log_directories or self.commit_log_paths)
        staged = stage_messages(self.path, messages, options)
        return commit(self.path, [staged], key=key, store_timestamps=store_timestamps, options=options)

    def flush(self) -> None:
        """Writes all commits that were made with ASYNC_FLUSH to the disk, so that they survive a power loss.

        Raises StoreInUseError if another process has the store open.
        """
        from store_format.commit.append import flush
        from store_format.commit.options import CommitOptions

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
        ignore_missing_stores: bool = False,
        broker_conf: str | None = None,
    ) -> RecoverPlan:
        """Plans a recovery: ends the log where a broker would end it, and rebuilds lost queues and index
        files.

        Nothing changes until you call `apply()` on the plan; `table()` shows the changes first. With `into`,
        the path of a new directory, the plan recovers a copy and only reads this store. `salvage` keeps
        messages behind damage in the copy, `cut_after_damage` removes them. With `ignore_missing_stores`,
        stores of the cluster that are missing now do not come back. `topics` are the topics whose queues are
        rebuilt (default: all). `rmq_spark.services.recover` does the same for stores that `open` refuses.

        Example::

            plan = store.recover(into="/data/recovered", salvage=True)
            plan.table()
            plan.apply()
        """
        from store_format.commit.recover import recover

        return recover(
            self.path,
            rebuild_queues=rebuild_queues,
            rebuild_index=rebuild_index,
            topics=topics,
            into=into,
            cut_after_damage=cut_after_damage,
            ignore_missing_stores=ignore_missing_stores,
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
        **how: Any,  # Any: the other fields of `search.look_up.How`
    ) -> Found:
        """Finds messages by key or by id; without either, all messages that match the other arguments.

        `key` matches UNIQ_KEY or a word of KEYS; `message_id` matches UNIQ_KEY or the offset message id. The
        other arguments restrict the result: `topic`, `tags` (any of them), `where` (a condition on the
        properties), and the store times `since` (inclusive) and `until` (exclusive), in ms since 1970 or as
        datetimes. The store that `rmq_spark.open` returns also accepts texts: `since="-2h"`,
        `where="region = 'east'"`.

        Returns a `Found`: its `table` has the `columns` and `physicalOffset`, in commitlog order, all in
        memory. Index files answer for the part of the commitlog that they cover, and the rest is scanned;
        `Found.how` says which was used.

        `how` are more keywords: `on_damage` (FAILFAST raises at damaged bytes, DROPMALFORMED skips them),
        `verify_crc`, `use_index` (False scans the whole commitlog), `hash_slot_num` and `index_num` of the
        index files, and `on_scanned`, which a scan calls with the bytes scanned so far and the bytes to scan
        at most.

        Raises OptionError for an unknown column and for a key together with an id, CorruptStoreError for
        damage.

        Example: `store.find(key="A-100017").table`.
        """
        from store_format.read.choice import MessageChoice
        from store_format.search.look_up import How, look_up

        decode_options_of(columns, how.get("verify_crc", True))
        choice = MessageChoice(
            names=() if topic is None else (topic,),
            tags=None if tags is None else frozenset(tags),
            key=key,
            message_id=message_id,
            where=where,
            since_ms=_time_ms("since", since),
            until_ms=_time_ms("until", until),
        )
        return look_up(self, choice, How(tuple(columns), **how))

    def trace(self, message_id: str) -> pa.Table:
        """Returns the life of a message as a table, oldest event first; empty if the store has no such
        message.

        The events are birth, copies, retries, dead letter, and the groups that consumed the message. The
        columns are `time`, `what`, `topic`, `brokerName`, `queueId`, `queueOffset`, `physicalOffset`, `group`
        and `detail`. `message_id` is the id that clients show (UNIQ_KEY), or an offset message id.
        Damaged copies are left out, and a warning says what damage may hide.

        Example: `store.trace("0A00051112672A139A4E7117B3AF7896").select(["time", "what"]).to_pylist()`.
        """
        from store_format.views.trace import LifeSearch

        search = LifeSearch(self)
        events = search.life_of(message_id)
        search.warn_of_missing()
        return events

    def view(
        self, name: str, *, now_ms: int | None = None, broker_conf: str | BrokerConf | None = None
    ) -> pa.Table:
        """Returns one view of the store as a table: `topics`, `queues`, `groups`, `lag`, `retention` and
        others.

        docs/views.md lists all views and their columns. Ages are computed at `now_ms` (ms since 1970, by
        default now). `broker_conf` is the path of the broker's broker.conf, or its settings; by default the
        view uses the store's `.rmqlog/broker.conf`, or else the broker's defaults. Unknown values are null.

        Raises OptionError for an unknown name; the message lists the views.

        Example: `store.view("lag").to_pylist()`.
        """
        from store_format.views.registry import view_table

        return view_table(self, name, now_ms=now_ms, broker_conf=broker_conf)

    def diff(
        self,
        other: Store | Sequence[Store],
        *,
        topics: Sequence[str] = (),
        include_system_topics: bool = False,
    ) -> StoreDiff:
        """Compares the messages of this store (A) with those of another one, or of several (B).

        Two messages are equal if they have the same topic, decompressed body, flag, born time and host,
        reconsumeTimes, and properties without those that a broker adds
        (`store_format.views.message_digests.BROKER_PROPERTIES`). File sizes, numbers of queues, store times
        and the version of RocketMQ make no difference. `topics` are the topics that are compared, by default
        all that are no system topics.

        Returns a `StoreDiff` with `is_equal`, `counts`, `to_table()` and `batches()`. Memory is bounded: the
        digests of many messages are in a temporary directory until `close`. Damaged messages are left out
        with a warning, and counted in `unread`. Raises OptionError for a path in the place of an open store.

        Example::

            with store.diff(MessageStore.open("/backup/store")) as found:
                print(found.is_equal, found.counts)
                print(found.to_table().select(["difference", "topic", "msgId"]))
        """
        from store_format.read.choice import MessageChoice
        from store_format.views.diff import diff_stores, stores_of

        choice = MessageChoice(names=tuple(topics), include_system_topics=include_system_topics)
        return diff_stores([self], stores_of(other, "MessageStore.open"), choice)

    def diagnose(self) -> Diagnosis:
        """Checks the whole store and returns a list of its problems; the list is empty for a sound store.

        A `Problem` has a severity (damage, warning or info), file, byte position, what was expected and
        found, and advice. The list's `verdict` sums the problems up in one sentence. Its `summary` says how
        many bytes of the commitlog are messages, padding, damage or unwritten.
        `store_format.diagnose.diagnose(path)` also checks stores that `open` refuses.

        Example: `[str(problem) for problem in store.diagnose().of("damage")]`.
        """
        from store_format.diagnose import diagnose

        return diagnose(self.path, self.commit_log_paths)

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
