"""The store that people open in Python: `MessageStore` with messages by topic, time and condition; and a
cluster of such stores.

`since`, `until`, `where`, `tags` and `key` mean what they mean on the command line.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import pyarrow as pa

from rmq_spark.options.access_options import parse_access
from rmq_spark.options.option import Given, timestamp_ms
from store_format.display.page import wide_last
from store_format.display.text import first_names
from store_format.errors import CorruptStoreError, OptionError, StoreError, StoreNotFoundError
from store_format.files import paths
from store_format.files.read import files_at, places
from store_format.message.columns import DEFAULT_COLUMNS, arrow_schema
from store_format.names import did_you_mean
from store_format.read.choice import MessageChoice
from store_format.read.chosen_messages import ranges_in_time, read_chosen
from store_format.read.store import Queue, Store
from store_format.read.store_root import refuse_equal_names, store_roots
from store_format.read.tolerance import Tolerance
from store_format.store import MessageStore

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rmq_spark.consume.sql92 import Sql92Filter
    from store_format.commit.append import CommitResult
    from store_format.commit.options import CommitOptions
    from store_format.message.columns import PropertyFilter
    from store_format.message.encode import MessageColumns
    from store_format.search.look_up import Found
    from store_format.views.diff import StoreDiff

Time: TypeAlias = "str | int | date"  # ISO 8601 (UTC without a zone), `-2h`, ms since 1970

_CARD_ROWS = 20


class Messages:
    """Messages of one or more stores, chosen by `messages(...)`. They are read when you use them.

    Iterate over the record batches (about 2 MB each), or call `to_table`, `to_pandas` or `head`. Polars,
    DuckDB and pyarrow take the object itself through Arrow's stream interface; DuckDB reads batch by batch.
    The order is the commitlog's order, one store after another. Damaged messages raise CorruptStoreError.

    Example::

        for batch in store.messages("Orders", columns=["keys", "body"]):
            print(batch.num_rows)
        duckdb.sql("SELECT count(*) FROM orders")  # orders = store.messages("Orders")
    """

    def __init__(
        self,
        stores: Sequence[Store],
        choice: MessageChoice,
        columns: Sequence[str],
        keys: Sequence[str] = (),
        *,
        skip_damage: bool = False,
    ) -> None:
        self._stores, self._choice, self._columns = tuple(stores), choice, tuple(columns)
        self._keys = tuple(keys)  # several; one key is part of the choice
        self._mode = "DROPMALFORMED" if skip_damage else "FAILFAST"

    @property
    def _topics(self) -> str:
        return self._choice.glob or first_names(self._choice.names) or "all topics"

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the chosen columns."""
        return arrow_schema(self._columns)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from rmq_spark.python_search import AnyKey, warn_of_missing_keys, warn_of_nothing

        any_key = AnyKey(self._keys) if self._keys else None
        wanted = tuple(dict.fromkeys((*self._columns, *(any_key.NEEDS if any_key else ()))))
        count = 0
        for store in self._stores:
            queues = store.queues(self._choice.chooses_topic)
            ranges = ranges_in_time(queues, self._choice)
            for batch in _advised(read_chosen(ranges, wanted, Tolerance(self._mode), self._choice)):
                batch = any_key.messages_of(batch) if any_key else batch
                if batch.num_rows:
                    count += batch.num_rows
                    yield batch.select(list(self._columns))
        if any_key:
            warn_of_missing_keys("messages", any_key.missing)
        else:
            warn_of_nothing("messages", self._stores, self._choice, count)

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The record batches for another library: the Arrow PyCapsule interface."""
        return pa.RecordBatchReader.from_batches(self.schema, self).__arrow_c_stream__(requested_schema)

    def to_table(self) -> pa.Table:
        """Returns all messages as one Arrow table in memory."""
        return pa.Table.from_batches(self, self.schema)

    def __array__(self, *_: object, **__: object) -> NoReturn:
        """Raises TypeError: `pd.DataFrame(messages)` would have a row for each batch, without the columns."""
        raise TypeError("messages are no array: for a DataFrame, write messages.to_pandas()")

    def to_pandas(self) -> Any:  # Any: a pandas.DataFrame; pandas has no types here
        """Returns all messages as a pandas DataFrame in memory. Needs pandas."""
        return self.to_table().to_pandas()

    def head(self, count: int = 10) -> pa.Table:
        """Returns the first `count` messages as an Arrow table, and reads no further."""
        batches, left = [], count
        for batch in self:
            batches.append(batch.slice(0, left))
            left -= len(batches[-1])
            if not left:
                break
        return pa.Table.from_batches(batches, self.schema)

    def __repr__(self) -> str:
        of = ", ".join(store.broker_name for store in self._stores)
        return f"<Messages of {self._topics} in {of}: iterate, head(), to_table()>"

    def _repr_html_(self) -> str:
        from store_format.notebook.cards import table_card  # a task shows no table

        table = self.head(_CARD_ROWS)
        table = table.select(wide_last(table.schema.names))
        return table_card(table.to_batches(), table.schema, self._topics, limit=_CARD_ROWS).source


def _advised(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches. The error for damage says how to read the other messages."""
    try:
        yield from batches
    except CorruptStoreError as error:
        error.add_note(
            "messages(…, skip_damage=True) leaves damaged messages out; store.diagnose() lists the damage"
        )
        raise


def messages_in(
    stores: Sequence[Store],
    topic: str | Sequence[str] | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    since: Time | None = None,
    until: Time | None = None,
    where: str | None = None,
    tags: Sequence[str] | None = None,
    key: str | Sequence[str] | None = None,
    *,
    skip_damage: bool = False,
) -> Messages:
    """See `LogStore.messages`."""
    from rmq_spark.python_search import keys_of, refuse_columns, tags_of, topics_of

    refuse_columns(columns)
    keys = keys_of(key)
    since_ms, until_ms = _times_ms(since, until)
    names = () if topic is None else topics_of(topic, _known_topics(stores))
    choice = MessageChoice(
        names=() if isinstance(topic, str) else names,
        glob=topic if isinstance(topic, str) else None,
        tags=tags_of(tags),
        key=keys[0] if len(keys) == 1 else None,
        where=_condition(where),
        since_ms=since_ms,
        until_ms=until_ms,
    )
    return Messages(stores, choice, columns, keys if len(keys) > 1 else (), skip_damage=skip_damage)


def _known_topics(stores: Iterable[Store]) -> set[str]:
    return {name for store in stores for name in (*store.topics(), *store.configured_topics())}


def _find(
    stores: Sequence[Store],
    *,
    topic: str | Sequence[str] | None = None,
    since: Time | None = None,
    until: Time | None = None,
    where: str | PropertyFilter | None = None,
    **others: Any,  # Any: the other arguments of `LogStore.find`
) -> list[Found]:
    """What `find` finds in each store. Of a cluster, not every store has each topic."""
    from rmq_spark.python_search import search_of, topics_of

    topics = () if topic is None else topics_of(topic, _known_topics(stores))
    condition = _condition(where) if isinstance(where, str) else where
    return search_of(topics, *_times_ms(since, until), condition, **others).run(stores)


def _condition(where: str | None) -> Sql92Filter | None:
    if where is None:
        return None
    from rmq_spark.consume.sql92 import parse_condition
    from rmq_spark.python_search import warn_of_columns

    condition = parse_condition(where, "where")
    warn_of_columns(condition.names)
    return condition


def _times_ms(since: Time | None, until: Time | None) -> tuple[int | None, int | None]:
    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = _time_ms("since", since, now_ms), _time_ms("until", until, now_ms)
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise OptionError(f"since must be before until, found since={since!r} and until={until!r}")
    return since_ms, until_ms


def _time_ms(name: str, value: Time | None, now_ms: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value < 0 else timestamp_ms(Given(name, str(value), now_ms))
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if not isinstance(value, str):
        raise OptionError(
            f"{name}: expected a text, ms since 1970, a date or a datetime, found {value!r}; "
            'a text is such as "-1h"'
        )
    return timestamp_ms(Given(name, value, now_ms))


# ---- what `open` returns -----------------------------------------------------------------------------------


class _WithMessages:
    """The methods that a store and a cluster share."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def stores(self) -> tuple[LogStore, ...]: ...

    def messages(
        self,
        topic: str | Sequence[str] | None = None,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        since: Time | None = None,
        until: Time | None = None,
        where: str | None = None,
        tags: Sequence[str] | None = None,
        key: str | Sequence[str] | None = None,
        skip_damage: bool = False,
    ) -> Messages:
        """Returns the messages of a topic, read lazily. `topic` may be a pattern such as `Order*`, or a list.

        Without a topic, all topics except RocketMQ's own are read. In a cluster, the stores follow one
        another. `since` (inclusive) and `until` (exclusive) are store times: ISO 8601, `-2h` before now, ms
        since 1970, a date or a datetime, in UTC if no zone is given. `where` is a condition on message
        properties in RocketMQ's SQL92. `tags` keeps messages with any of these tags. `key` keeps messages
        with this word in KEYS or this UNIQ_KEY; of a list, with any. An empty list is an error.
        `skip_damage` leaves damaged messages out, with a warning that has their number.

        A key, tags and properties that no message has are logged when the messages are read.
        Raises OptionError for an unknown topic or column, and for an invalid time or condition. The read
        raises CorruptStoreError for a damaged message.

        Example::

            orders = store.messages("Orders", columns=["storeTimestamp", "keys", "body"], since="-2h")
            orders.head(5)
            table = orders.to_table()
        """
        return messages_in(
            self.stores, topic, columns, since, until, where, tags, key, skip_damage=skip_damage
        )

    def diff(
        self,
        other: Store | Sequence[Store] | LogCluster,
        *,
        topics: Sequence[str] = (),
        include_system_topics: bool = False,
    ) -> StoreDiff:
        """Compares the messages of this store or cluster (A) with those of another one (B).

        `MessageStore.diff` has the rules and the result. The brokers' names make no difference, so a store
        can be compared with a cluster that has taken over its topics.

        Raises OptionError for a topic that neither has, and for a path in the place of an open store.

        Example::

            with rmq_spark.open("/data/store").diff(rmq_spark.open("/backup/store")) as found:
                print(found.is_equal, found.counts)
        """
        from rmq_spark.python_search import topics_of
        from store_format.views.diff import diff_stores, stores_of

        others = stores_of(other.stores if isinstance(other, LogCluster) else other, "rmq_spark.open")
        if isinstance(topics, str):
            raise OptionError(f"topics: expected a list of topics, found {topics!r}")
        known = _known_topics((*self.stores, *others))
        choice = MessageChoice(
            names=topics_of(list(topics) or None, known), include_system_topics=include_system_topics
        )
        return diff_stores(self.stores, others, choice)


@dataclass(frozen=True, slots=True, repr=False)
class LogStore(_WithMessages, MessageStore):
    """A store, as `rmq_spark.open` returns it: a `MessageStore` with `messages`, and texts in `find`."""

    @property
    def stores(self) -> tuple[LogStore, ...]:
        """This store alone. A cluster has several stores."""
        return (self,)

    def append(
        self,
        messages: MessageColumns | Any,  # Any: whatever has Arrow's stream
        *,
        key: tuple[str, int] | None = None,
        store_timestamps: int | NDArray[np.int64] | None = None,
        options: CommitOptions | Mapping[str, object] | None = None,
    ) -> CommitResult:
        """Appends the rows of a table in one commit: all of them, or none.

        `messages` is an Arrow table, or anything with Arrow's stream: a DataFrame of Polars or pandas, a
        query of DuckDB, `messages(...)` of another store. Its columns and `options` are those of the Spark
        writer, with the same checks and errors; null or missing columns are filled as there (UNIQ_KEY, queue,
        times). `MessageColumns` are stored as they are, see `MessageStore.append`; then `options` are
        `CommitOptions`, and only then `store_timestamps` may be given.

        With a `key` (id, number), a call is ignored, with a warning, if this number or a higher number of
        this id was committed before: the number must rise, as that of a date (20261130) does.

        Raises OptionError for wrong columns and options, and what `MessageStore.append` raises.

        Example::

            orders = pa.table({"keys": ["A-1", "A-2"], "body": ["one", "two"]})
            store.append(orders, options={"topic": "Orders"}, key=("import", 1))
        """
        from store_format.message.encode import MessageColumns

        if isinstance(messages, MessageColumns):
            if isinstance(options, Mapping):
                raise OptionError("append: expected CommitOptions for MessageColumns, found a mapping")
            return MessageStore.append(
                self, messages, key=key, store_timestamps=store_timestamps, options=options
            )
        from rmq_spark.write.append_table import append_table
        from store_format.bookkeeping.ledger import ServiceTurn
        from store_format.commit.unsupported import StoreRefusals

        if store_timestamps is not None or not (options is None or isinstance(options, Mapping)):
            raise OptionError(
                "append: expected neither store_timestamps nor CommitOptions for a table: its options are "
                "those of the Spark writer, such as options={'topic': 'Orders'}"
            )
        StoreRefusals(self.opened).refuse_store()
        if self.commit_log_paths != (f"{self.path}/commitlog",):
            raise OptionError(
                f"append: expected the commitlog in {self.path}, found {', '.join(self.commit_log_paths)}; a "
                "table, as a write of Spark, goes to no other place: append MessageColumns"
            )
        if key is not None:
            key = ServiceTurn.user_key(key)
        return append_table(self.path, messages, options or {}, key)

    def find(
        self,
        key: str | Sequence[str] | None = None,
        *,
        message_id: str | None = None,
        topic: str | Sequence[str] | None = None,
        tags: Sequence[str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
        where: str | PropertyFilter | None = None,
        body: str | None = None,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        **how: Any,  # Any: the other arguments of `MessageStore.find`
    ) -> Found:
        """Finds messages by key or by id; without either, all messages that match the other arguments.

        `key` matches UNIQ_KEY or a word of KEYS, whole and in its case; of a list, any of the keys.
        `message_id` matches UNIQ_KEY or the offset message id. `since`, `until`, `where` and `tags` have the
        same meaning as in `messages`. `topic` is a name or a pattern such as `Order*`, or a list of them;
        without a topic, system topics are searched, too.
        `body` is a text in the body (UTF-8). `how` passes the other arguments of `MessageStore.find`. Returns
        a `Found`, whose `table` has the messages in memory. Keys, tags and properties that no message has are
        logged.

        Raises OptionError for an unknown topic, column or argument, for an invalid time or condition, and for
        a key together with an id.

        Example::

            store.find("A-100017", since="-2d").table
            store.find(key=["A-100017", "A-100018"]).table
            store.find(topic=["Orders", "Payments"], where="region = 'east'", columns=["keys", "body"]).table
        """
        return _find(
            (self,),
            key=key,
            message_id=message_id,
            topic=topic,
            tags=tags,
            since=since,
            until=until,
            where=where,
            body=body,
            columns=columns,
            **how,
        )[0]

    def trace(self, message_id: str | None = None, *, key: str | Sequence[str] | None = None) -> pa.Table:
        """Returns the life of a message, or with `key` the lives of all messages that have the key.

        The table is that of `MessageStore.trace`. With `key`, the columns `key` and `msgId` are in front, and
        the messages follow one another in the order of the commitlog, key after key; the records of clients'
        traces are not such messages. It is empty, with a warning, if no message has the id or the key. A
        warning also says what damage may hide.

        Raises OptionError without an id and a key, for both, and for an id that is only a key.

        Example: `store.trace(key="A-100017").select(["msgId", "time", "what"]).to_pylist()`.
        """
        from rmq_spark.python_search import trace

        return trace(self, message_id, key)


@dataclass(frozen=True, slots=True, repr=False)
class LogCluster(_WithMessages):
    """The stores of several brokers, as `rmq_spark.open` returns them for a directory of stores.

    Example: `rmq_spark.open("/data/cluster").view("lag")` has the lag in all stores.
    """

    path: str
    stores: tuple[LogStore, ...]

    def __repr__(self) -> str:
        return f"<LogCluster at {self.path}: {', '.join(store.broker_name for store in self.stores)}>"

    def store(self, broker_name: str) -> LogStore:
        """Returns the store of one broker. Raises OptionError for an unknown name."""
        for store in self.stores:
            if store.broker_name == broker_name:
                return store
        names = [store.broker_name for store in self.stores]
        raise OptionError(
            f"no broker is named {broker_name!r}; {did_you_mean(broker_name, names, 'brokers')}"
        )

    def topics(self) -> list[str]:
        """Returns the topics that have queues in any store, sorted; system topics included."""
        return sorted({topic for store in self.stores for topic in store.topics()})

    def queues(self) -> list[Queue]:
        """Returns every queue of every store, one store after another."""
        return [queue for store in self.stores for queue in store.queues()]

    def view(self, name: str, *, now_ms: int | None = None) -> pa.Table:
        """Returns one view of all stores as one table. The column brokerName names the store."""
        return pa.concat_tables([store.view(name, now_ms=now_ms) for store in self.stores])

    def find(
        self,
        key: str | Sequence[str] | None = None,
        **conditions: Any,  # Any: the other arguments of `LogStore.find`
    ) -> dict[str, Found]:
        """Calls `LogStore.find` for every store, and returns a dict of broker name -> `Found`.

        Raises OptionError as it does, and for a topic that no store has.
        """
        found = _find(self.stores, key=key, **conditions)
        return {store.broker_name: each for store, each in zip(self.stores, found, strict=True)}

    def _repr_html_(self) -> str:
        return "".join(store._repr_html_() for store in self.stores)


def open_path(
    path: str,
    commit_log_paths: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    *,
    compacted: bool = True,
    tiered_path: str | None = None,
) -> LogStore | LogCluster:
    """See `rmq_spark.open`."""
    path = paths.given(path)
    if options is not None:
        access = parse_access(options, path)
        for place in filter(paths.is_remote, (path, *map(paths.given, commit_log_paths))):
            places().reach(place, access)
    try:
        return _opened(path, commit_log_paths, compacted=compacted, tiered_path=tiered_path)
    except StoreNotFoundError as error:
        if commit_log_paths or paths.is_remote(path) or not _may_be_new(path):
            raise
        new = f"store_format.MessageStore.create({path!r}, broker_name=…)"
        fill = f"rmq_spark.open({path!r}).append(table)"
        raise StoreNotFoundError(f"{error}; a new store is made by {new}, then {fill}") from error


def _opened(path: str, commit_log_paths: Sequence[str], **kinds: Any) -> LogStore | LogCluster:
    if commit_log_paths:
        return LogStore.open(path, commit_log_paths=commit_log_paths, **kinds)
    roots = store_roots(path)
    if roots == [path]:
        return LogStore.open(path, **kinds)
    stores = tuple(LogStore.open(root, **kinds) for root in roots)
    refuse_equal_names((store.broker_name, store.path) for store in stores)
    return LogCluster(path, stores)


def _may_be_new(path: str) -> bool:
    """Whether nothing is there, or an empty directory."""
    try:
        return not files_at(path).names(path, missing_ok=True)
    except StoreError:
        return False
