"""Failed messages of a store, staged as retries and dead letters for a commit; and the option `sendBack`.

`produce.send_back` has the rule. Here are its surroundings: the messages are found by their places, the
group's settings are read from the store, and the copies are staged in chunks, so that memory is bounded.
With the write option `sendBack`, each row names a stored message by its place. Tasks collect the places,
which are small. The driver reads the messages, stages the copies in the stores that have them, and commits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import Host, column_places
from rmq_spark.produce.send_back import refuse_without_retries, send_back
from rmq_spark.write.stage_and_commit import Staged, commit_write, is_sync
from rmq_spark.write.target import TargetStore, WriteTarget
from store_format.arrays.sql_types import type_name
from store_format.bookkeeping.identity import StagedFile
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.append import CommitResult
from store_format.commit.staging import StagingWriter
from store_format.errors import (
    IllegalMessageError,
    OffsetOutOfRangeError,
    OptionError,
    StoreInUseError,
    StoreNotFoundError,
)
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.names import DELAY_LEVELS_MS, dead_letter_topic, retry_topic
from store_format.opened.store import Opened
from store_format.read.stored_messages import FoundPlaces, find_places
from store_format.store import MessageStore

# A message that is in the store is stored again, also above the maxMessageSize of today.
_MESSAGE_SIZE_MAX = (1 << 31) - (1 << 17)


@dataclass(frozen=True, slots=True)
class SendBackSettings:
    """How messages are sent back, as the arguments of `produce.send_back.send_back`.

    `delay_levels_ms` is the broker's messageDelayLevel.
    """

    group: str
    max_reconsume_times: int | None = None
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS
    store_host: Host | None = None


@dataclass(slots=True)
class StagedBack:
    """What was staged for one store."""

    retried: int = 0
    dead_letters: int = 0
    new_topics: dict[str, int] = field(default_factory=dict)


def stage_send_back(
    writer: StagingWriter,
    found: FoundPlaces,
    delay_levels: Sequence[int] | NDArray[np.int64] | int,
    settings: SendBackSettings,
    *,
    crc_property: bool,
) -> StagedBack:
    """Stages the copies of these messages into the store that has them.

    `delay_levels` is one level for all places, or one for each. Raises what `FoundPlaces.read` and the rule
    raise, and IllegalMessageError if the group's topics do not allow writes.
    """
    group = kept_group(found.store.path, settings.group)
    levels = np.asarray(delay_levels, np.int64)
    staged = StagedBack()
    for messages, first in found.read():
        made = send_back(
            messages,
            group,
            delay_levels=levels if levels.ndim == 0 else levels[first],
            max_reconsume_times=settings.max_reconsume_times,
            level_max=len(settings.delay_levels_ms),
            store_host=settings.store_host,
        )
        writer.stage(
            made.messages,
            crc_property=crc_property,
            message_size_max=_MESSAGE_SIZE_MAX,
            delay_levels_ms=settings.delay_levels_ms,
        )
        staged.retried += made.retried
        staged.dead_letters += made.dead_letters
        staged.new_topics |= made.new_topics
    return staged


def kept_group(root: str, group: str) -> SubscriptionGroup:
    """The group's settings in subscriptionGroup.json, else the defaults of a group that a broker creates.

    If the retry topic exists with fewer queues than retryQueueNums, only these queues are used: consumers
    read no others. Raises OptionError for a group that keeps no retries, and IllegalMessageError if the retry
    or dead letter topic does not allow writes.
    """
    opened = Opened(root)
    groups: Mapping[str, SubscriptionGroup] = read_subscription_groups(opened) or {}
    config = groups.get(group, SubscriptionGroup(group))
    refuse_without_retries(config)
    topics: Mapping[str, TopicConfig] = read_topics(opened) or {}
    for topic in (retry_topic(group), dead_letter_topic(group)):
        if topic in topics and not topics[topic].writable:
            raise IllegalMessageError(
                f"{root}: topic {topic}: expected write permission (perm 6), found perm {topics[topic].perm}"
            )
    existing = topics.get(retry_topic(group))
    if existing is None:
        return config
    return replace(config, retry_queue_nums=min(config.retry_queue_nums, len(existing.written_queue_ids)))


# ---- the write option --------------------------------------------------------------------------------------


_log = logging.getLogger("rmq_spark")

_INTEGERS = ("tinyint", "smallint", "int", "bigint", "void")
_TEXTS = ("string", "void")
# name, types, whether every write with sendBack needs it
_COLUMNS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("brokerName", _TEXTS, False),
    ("storedTopic", _TEXTS, False),
    ("topic", _TEXTS, False),
    ("queueId", _INTEGERS, True),
    ("queueOffset", _INTEGERS, True),
    ("delayTimeLevel", _INTEGERS, False),
)
_NAMES = tuple(name for name, _, _ in _COLUMNS)
_OPTION = "sendBack"
_PLACES = pa.schema(
    [
        ("store", pa.int32()),  # its place in `WriteTarget.stores`
        ("topic", pa.string()),
        ("queueId", pa.int64()),
        ("queueOffset", pa.int64()),
        ("delayTimeLevel", pa.int64()),
    ]
)


def check_place_columns(columns: Sequence[tuple[str, str]], target: WriteTarget) -> None:
    """Checks the columns of a DataFrame, pairs of a name and a type as Spark writes it. Others are ignored.

    Raises OptionError for a missing column and a wrong type, StoreNotFoundError if there is no store.
    """
    for store in target.stores:
        if store.is_new:
            raise StoreNotFoundError(
                f"{store.root}: expected the store of the messages to send back, found none"
            )
    found = column_places([name for name, _ in columns], _NAMES, _OPTION)
    for name, types, is_needed in _COLUMNS:
        needed = is_needed or (name == "brokerName" and target.is_cluster)
        if name in found and not columns[found[name]][1].startswith(types):
            raise OptionError(
                f"sendBack: column {name}: expected {types[-2]}, found {columns[found[name]][1]}"
            )
        if needed and name not in found:
            raise OptionError(f"sendBack: expected the column {name} of the message, found no such column")
    if "storedTopic" not in found and "topic" not in found:
        raise OptionError("sendBack: expected the column storedTopic or topic of the message, found neither")


# ---- in a task ---------------------------------------------------------------------------------------------


def collect_places(
    target: WriteTarget, batches: Iterable[pa.RecordBatch], *, partition: int | None = None
) -> pa.Table:
    """The places of the rows' messages, with the columns `_PLACES`.

    Raises IllegalMessageError for a row without a place, or of another store; StoreInUseError if the row's
    store of a cluster takes no messages now. Errors name the row and the `partition`.
    """
    parts, first = [], 0
    for batch in batches:
        parts.append(_SendBackRows(target, batch, first, partition).places())
        first += batch.num_rows
    return pa.Table.from_batches(parts, _PLACES)


class _SendBackRows:
    """The rows of one record batch of a task; `first` is the number of its first row in the partition."""

    def __init__(self, target: WriteTarget, batch: pa.RecordBatch, first: int, partition: int | None) -> None:
        self._target, self._batch = target, batch
        self._first, self._partition = first, partition
        self._found = column_places(batch.schema.names, _NAMES, _OPTION)

    def places(self) -> pa.RecordBatch:
        topics = self._column("storedTopic", pa.string())
        other = self._column("topic", pa.string())
        if topics is None or (topics.null_count and other is not None):
            topics = other if topics is None else pc.coalesce(topics, other)
        levels = self._column("delayTimeLevel", pa.int64())
        columns = [
            self._stores(),
            self._given("storedTopic", topics),
            self._given("queueId", self._column("queueId", pa.int64())),
            self._given("queueOffset", self._column("queueOffset", pa.int64())),
            pa.array(np.zeros(len(self), np.int64)) if levels is None else pc.fill_null(levels, 0),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_PLACES)

    def __len__(self) -> int:
        count: int = self._batch.num_rows
        return count

    def _stores(self) -> pa.Array:
        """The store of each row, by the name of its broker."""
        target = self._target
        names = self._column("brokerName", pa.string())
        if target.is_cluster:
            names = self._given("brokerName", names)
        elif names is None:
            return pa.array(np.zeros(len(self), np.int32))
        known = {store.settings.broker_name: place for place, store in enumerate(target.stores)}
        coded = names.dictionary_encode()
        codes: NDArray[np.int64] = pc.fill_null(coded.indices, -1).to_numpy().astype(np.int64)
        places = [0]  # for a null, which is the only store
        for code, name in enumerate(coded.dictionary.to_pylist()):
            if name not in known:
                have = ", ".join(map(repr, known))
                self._refuse(
                    int((codes == code).argmax()), f"expected a message of the broker {have}, found {name!r}"
                )
            self._refuse_closed(target.stores[known[name]])
            places.append(known[name])
        return pa.array(np.array(places, np.int32)[codes + 1])

    def _refuse_closed(self, store: TargetStore) -> None:
        if store.closed is not None:
            raise StoreInUseError(f"sendBack: {store.root} takes no messages now: {store.closed}")

    def _column(self, name: str, kind: pa.DataType) -> pa.Array | None:
        place = self._found.get(name)
        if place is None:
            return None
        column = self._batch.column(place)
        return pa.nulls(len(column), kind) if type_name(column.type) == "void" else column.cast(kind)

    def _given(self, name: str, column: pa.Array | None) -> pa.Array:
        if column is None:
            column = pa.nulls(len(self), pa.string())
        if column.null_count:
            row = int(column.is_null().index(pa.scalar(True)).as_py())
            self._refuse(row, f"expected the {name} of a stored message, found null")
        return column

    def _refuse(self, row: int, what: str) -> None:
        of = "" if self._partition is None else f" of partition {self._partition}"
        raise IllegalMessageError(f"sendBack: row {self._first + row}{of}: {what}")


# ---- on the driver -----------------------------------------------------------------------------------------


def commit_send_back(
    target: WriteTarget,
    places: Sequence[pa.Table],
    key: tuple[str, int] | None,
    *,
    keeps_key: bool = False,
) -> Mapping[str, CommitResult]:
    """Sends back the messages at these places, all or none, once for each key.

    `keeps_key`: the batch is a stream's. A stream may repeat a committed batch with other failures. They are
    not sent back, because in the committed batch each message succeeded or was sent back.

    Raises what `commit_write` and `stage_send_back` raise, and OffsetOutOfRangeError for a place without a
    message, unless the key is committed: then retention may have deleted the message since.
    """
    group = target.options.send_back
    assert group is not None
    rows = pa.concat_tables([_PLACES.empty_table(), *places])
    is_committed = key is not None and any(Ledger.read(store.opened).has(key) for store in target.stores)
    staged, counts = Staged({}, ()), StagedBack()
    try:
        if not (is_committed and keeps_key):
            staged, counts = _staged_copies_of(target, group, rows)
        elif len(rows):
            _log.warning(
                "%d failed messages are not sent back: batch %s is committed already", len(rows), key
            )
    except OffsetOutOfRangeError as error:
        if not is_committed:
            raise
        _log.warning("batch %s is committed already and not written again: %s", key, error)
    results = commit_write(target, [staged], key, keeps_key=keeps_key)
    if all(result.committed for result in results.values()):
        _log.info(
            "sent back for group %s: %d retries, %d dead letters", group, counts.retried, counts.dead_letters
        )
    return results


def _staged_copies_of(target: WriteTarget, group: str, places: pa.Table) -> tuple[Staged, StagedBack]:
    files: dict[str, StagedFile] = {}
    counts = StagedBack()
    for number, store in enumerate(target.stores):
        rows = places.filter(pc.equal(places["store"], number))
        if not len(rows):
            continue
        writer = StagingWriter(
            store.opened, target.write, sync=is_sync(target), makes_directory=not target.is_begun
        )
        try:
            part = _stage_store(writer, target, store, group, rows)
            files[store.root] = writer.close()
        except BaseException:
            writer.discard()
            raise
        counts.retried += part.retried
        counts.dead_letters += part.dead_letters
        for topic, queue_nums in part.new_topics.items():
            counts.new_topics[topic] = max(counts.new_topics.get(topic, 0), queue_nums)
    return Staged(files, tuple(counts.new_topics.items())), counts


def _stage_store(
    writer: StagingWriter, target: WriteTarget, store: TargetStore, group: str, rows: pa.Table
) -> StagedBack:
    opened = MessageStore.open(store.root, broker_name=store.settings.broker_name)
    found = find_places(
        opened,
        zip(
            rows["topic"].to_pylist(),
            rows["queueId"].to_pylist(),
            rows["queueOffset"].to_pylist(),
            strict=True,
        ),
    )
    settings = SendBackSettings(
        group,
        target.options.max_reconsume_times,
        store.conf.message_delay_levels_ms,
        target.options.store_host,
    )
    return stage_send_back(
        writer, found, rows["delayTimeLevel"].to_numpy(), settings, crc_property=store.crc_property
    )
