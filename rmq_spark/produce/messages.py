"""Makes messages of rows: what a RocketMQ client makes of them, and what a broker then writes into the log.

A task has one `Producer`. Each batch becomes `ProducedMessages`, which lack only the values that the commit
decides: offsets, store time and store host. The properties of its messages are the caller's map and columns,
and those of client and broker. Properties that RocketMQ sets itself, and those that the store cannot hold,
are left out and counted, or refused (option strictProperties). Bodies are checked for their size, and
compressed as in a client (DefaultMQProducerImpl.tryToCompressMessage).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import Host, WriteRows
from rmq_spark.produce.delays import Parked, park
from rmq_spark.produce.half import park_half
from rmq_spark.produce.queues import QueueSelector
from rmq_spark.produce.unique_ids import UniqueIds
from store_format.arrays.ranges import flat_bytes
from store_format.display.text import shown
from store_format.index.updates import index_key_hashes
from store_format.java.text import decode_utf8, tags_code_many
from store_format.layouts import (
    BLANK_HEAD,
    CRC_PROPERTY_SIZE,
    MESSAGE_HEADS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)
from store_format.message import sysflag
from store_format.message.compression import compress, compression_flag
from store_format.message.encode import (
    MESSAGE_SIZE_MAX,
    PROPERTIES_SIZE_MAX,
    Integers,
    MessageColumns,
    body_crcs,
)
from store_format.message.property_encoder import PropertyMaps, encode_property_columns
from store_format.metadata.read import BrokerConf
from store_format.names import (
    CHECK_IMMUNITY_TIME,
    KEYS,
    RESERVED_PROPERTIES,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    WAIT,
)

_log = logging.getLogger(__name__)

_BINARY = pa.large_binary()
_LENGTH_FIELDS = 1 + 2  # of topic and properties; the length of the body is the last field of the head

_GROUP_SIZE_MAX = 63  # the proxy's maxMessageGroupSize is the first length that it refuses
_SEPARATORS = (chr(NAME_VALUE_SEPARATOR), chr(PROPERTY_SEPARATOR))
_SET_BY_ROCKETMQ = (
    "RocketMQ sets this property itself (strictProperties=true); leave it out, and use the columns "
    "delayTimeLevel and deliverTimestamp for a delay"
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings for all rows of a write: plain values, because they are pickled to tasks."""

    born_host: Host
    topic: str | None = None  # None: the column topic
    property_columns: tuple[str, ...] = ()
    compression: Compression | None = None
    strict_properties: bool = False
    message_size_max: int = MESSAGE_SIZE_MAX
    # sizes of a commitlog file of each store, in the order of the routes
    file_sizes: tuple[int, ...] = (1 << 30,)
    store_host_v6: bool = False
    crc_property: bool = False  # enabledAppendPropCRC: 20 more bytes of properties
    transaction_group: str | None = None  # producer group: all rows become half messages of transactions
    transaction_id: bool = True  # a 4.9 broker does not add __transactionId__
    confs: tuple[BrokerConf, ...] = (BrokerConf(),)  # of the broker of each store, in the order of the routes

    @property
    def properties_size_max(self) -> int:
        return PROPERTIES_SIZE_MAX - CRC_PROPERTY_SIZE * self.crc_property


@dataclass(frozen=True, slots=True)
class ProducedMessages:
    """Messages as columns, in the order of the rows.

    `topic` and `store` are places in `topics` and in `Routes.stores`.
    """

    topics: tuple[str, ...]
    real_topics: tuple[str, ...]  # the topics of the rows; `topic` of a delayed message is another
    topic: NDArray[np.int64]
    store: NDArray[np.int64]
    queue_id: NDArray[np.int64]
    body: pa.LargeBinaryArray  # as stored
    properties: pa.LargeBinaryArray
    flag: NDArray[np.int64]
    sys_flag: NDArray[np.int64]
    born_timestamp: NDArray[np.int64]
    born_ip: NDArray[np.void] | bytes
    born_port: Integers
    tags_code: NDArray[np.int64]
    # In SCHEDULE_TOPIC_XXXX tags_code is a delay in ms; the commit adds the store time.
    timed: NDArray[np.bool_]
    uniq_key: pa.LargeBinaryArray
    keys: pa.LargeBinaryArray  # separated by spaces; null without keys
    tags: pa.LargeBinaryArray
    real_topic: NDArray[np.int64]  # place in `real_topics`
    real_queue_id: NDArray[np.int64]
    body_crc: NDArray[np.int64] | None  # of bodies before compression; None without compression
    first_timer_ms: int | None  # the earliest TIMER_OUT_MS; None without messages in the timer

    def __len__(self) -> int:
        return len(self.topic)

    def of_store(self, store: int) -> ProducedMessages:
        """The messages of one store, in their order."""
        places = np.flatnonzero(self.store == store)
        if len(places) == len(self):
            return self

        def taken(values: Any) -> Any:  # Any: each field has its type
            if isinstance(values, np.ndarray):
                return values[places]
            return values.take(pa.array(places)) if isinstance(values, pa.Array) else values

        return ProducedMessages(**{name: taken(getattr(self, name)) for name in self.__slots__})

    def columns(self, store_host: Host) -> MessageColumns:
        """The columns for `store_format.message.encode`; the commit assigns offsets and store times."""
        return MessageColumns(
            topic=self._coded_topics(),
            body=self.body,
            properties=self.properties,
            queue_id=self.queue_id,
            flag=self.flag,
            sys_flag=self.sys_flag,
            born_timestamp=self.born_timestamp,
            born_ip=self.born_ip,
            born_port=self.born_port,
            store_ip=store_host[0],
            store_port=store_host[1],
        )

    def queues(self) -> tuple[list[tuple[str, int]], NDArray[np.int32]]:
        """The distinct (topic, queue id) over all stores, and the place of each message among them."""
        coded = pa.array(self.topic << 32 | self.queue_id).dictionary_encode()
        distinct = [
            (self.topics[number >> 32], number & 0xFFFFFFFF) for number in coded.dictionary.to_pylist()
        ]
        places: NDArray[np.int32] = coded.indices.to_numpy()
        return distinct, places

    def queue_nums(self) -> dict[str, int]:
        """The queues that each topic needs at least, over all stores; also topics of delayed messages."""
        nums = np.zeros(len(self.topics), np.int64)
        np.maximum.at(nums, self.topic, self.queue_id + 1)
        np.maximum.at(nums, self.real_topic, self.real_queue_id + 1)
        return {
            topic: int(number) for topic, number in zip(self.topics, nums.tolist(), strict=True) if number
        }

    def parked_queues(self) -> list[tuple[str, int]]:
        """The (topic, queue id) to which delayed messages will be delivered."""
        moved = self.topic >= len(self.real_topics)
        distinct = np.unique(self.real_topic[moved] << 32 | self.real_queue_id[moved])
        return [(self.real_topics[number >> 32], number & 0xFFFFFFFF) for number in distinct.tolist()]

    def key_hashes(self, *, tag_keys: bool = True) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The entries for the index, as `store_format.index.updates.index_key_hashes` returns them."""
        return index_key_hashes(self._coded_topics(), self.uniq_key, self.keys, self.tags, tag_keys=tag_keys)

    def _coded_topics(self) -> pa.DictionaryArray:
        codes, names = pa.array(self.topic), pa.array(self.topics, pa.string())
        return pa.DictionaryArray.from_arrays(codes, names, safe=False)


class Producer:
    """Makes messages of the batches of one task."""

    def __init__(
        self,
        settings: ProducerSettings,
        selector: QueueSelector,
        ids: UniqueIds,
        *,
        partition: int | None = None,
    ) -> None:
        """`partition` is Spark's number of the rows' partition; errors name it."""
        self._settings = settings
        self._partition = partition
        self._rows = 0  # so far
        self._selector = selector
        self._ids = ids
        self.left_out: Counter[str] = Counter()  # properties that were not written, by name

    def produce(self, batch: pa.RecordBatch, now_ms: int) -> ProducedMessages:
        """The messages of a batch, made at `now_ms`.

        Raises OptionError for its columns; IllegalMessageError, with the row, for a message that a client or
        a broker would refuse; and the errors of `QueueSelector.select`.
        """
        settings = self._settings
        rows = WriteRows(
            batch,
            settings.topic,
            property_columns=settings.property_columns,
            first=self._rows,
            partition=self._partition,
        )
        self._rows += rows.count
        messages = self._messages(rows, now_ms)
        self._check_unit_sizes(rows, messages)
        return messages

    def _messages(self, rows: WriteRows, now_ms: int) -> ProducedMessages:
        settings = self._settings
        body, sizes = checked_bodies(rows, settings.message_size_max)
        group = settings.transaction_group
        allowed = () if group is None else (CHECK_IMMUNITY_TIME,)
        properties = _MessageProperties(rows, strict=settings.strict_properties, allowed=allowed)
        self.left_out.update(properties.left_out)
        selected = self._selector.select(rows, properties.sharding_key)
        uniq_key = properties.uniq_keys(self._ids, now_ms)
        if group is None:
            place = park(rows, selected.queue_id, now_ms, selected.store, settings.confs)
        else:
            place = park_half(rows, selected.queue_id, uniq_key if settings.transaction_id else None, group)
        strings = properties.strings(uniq_key, place, settings.properties_size_max)
        stored, sys_flag = compress_bodies(body, sizes, settings.compression)
        sys_flag[selected.multi_tags] |= sysflag.MULTI_TAGS
        born = rows.hosts("bornHost", settings.born_host)
        sys_flag[born.v6] |= sysflag.BORN_HOST_V6
        flag = rows.integers("flag", 0)
        tags = pa.nulls(rows.count, _BINARY) if properties.tags is None else properties.tags
        return ProducedMessages(
            topics=place.topics,
            real_topics=rows.topics,
            topic=place.topic,
            store=selected.store,
            queue_id=place.queue_id,
            body=stored,
            properties=strings,
            flag=np.zeros(rows.count, np.int64) if flag is None else flag,
            sys_flag=sys_flag,
            born_timestamp=_born_timestamps(rows, now_ms),
            born_ip=born.ip,
            born_port=born.port,
            tags_code=np.where(place.delay_ms > 0, place.delay_ms, tags_code_many(tags)),
            timed=place.delay_ms > 0,
            uniq_key=uniq_key,
            keys=pa.nulls(rows.count, _BINARY) if properties.keys is None else properties.keys,
            tags=tags,
            real_topic=rows.codes,
            real_queue_id=selected.queue_id,
            body_crc=None if settings.compression is None else body_crcs(body),
            first_timer_ms=place.first_timer_ms,
        )

    def report(self) -> None:
        """Logs one warning about all properties that were left out."""
        if self.left_out:
            _log.warning(
                "%d properties were left out because RocketMQ sets them itself or they are empty: %s; "
                "strictProperties=true makes this an error",
                self.left_out.total(),
                shown(", ".join(f"{name} ({count})" for name, count in sorted(self.left_out.items()))),
            )

    def _check_unit_sizes(self, rows: WriteRows, messages: ProducedMessages) -> None:
        """Refuses a message that does not fit a commitlog file of its store (spec 2.9)."""
        settings = self._settings
        topic_sizes = np.array([len(topic) for topic in messages.topics], np.int64)
        sizes = (
            pc.add(pc.binary_length(messages.body), pc.binary_length(messages.properties)).to_numpy()
            + topic_sizes[messages.topic]
        )
        sizes += np.where(
            messages.sys_flag & sysflag.BORN_HOST_V6 != 0, *(self._overhead(born_v6) for born_v6 in (1, 0))
        )
        if int(sizes.max(initial=0)) + BLANK_HEAD.itemsize <= min(settings.file_sizes):
            return
        file_sizes = np.array(settings.file_sizes)[messages.store]
        over = sizes + BLANK_HEAD.itemsize - file_sizes
        if int(over.max()) > 0:
            row = int(over.argmax())
            rows.refuse(
                row,
                f"expected a message of at most {file_sizes[row] - BLANK_HEAD.itemsize} bytes, which fits "
                f"a commitlog file of {file_sizes[row]} bytes (mappedFileSizeCommitLog), "
                f"found {sizes[row]} bytes",
            )

    def _overhead(self, born_v6: int) -> int:
        """The size of a message in bytes without its body, topic and properties."""
        settings = self._settings
        return (
            int(MESSAGE_HEADS[born_v6 | settings.store_host_v6 << 1].itemsize)
            + _LENGTH_FIELDS
            + CRC_PROPERTY_SIZE * settings.crc_property
        )


def _born_timestamps(rows: WriteRows, now_ms: int) -> NDArray[np.int64]:
    born = np.full(rows.count, now_ms)
    for name in ("bornTimestampMs", "bornTimestamp"):  # the later one wins
        times = rows.times_ms(name)
        if times is not None:
            born = np.where(times[1], times[0], born)
    return born


# ---- properties --------------------------------------------------------------------------------------------


def _sharding_keys(rows: WriteRows) -> pa.LargeBinaryArray | None:
    """The columns `shardingKey` and `messageGroup`, of which a row has one.

    Raises IllegalMessageError for a message group that RocketMQ's proxy refuses
    (SendMessageActivity.validateMessageGroup, with the default maxMessageGroupSize).
    """
    keys, groups = rows.text("shardingKey"), rows.text("messageGroup")
    if groups is None:
        return keys
    texts, is_given = groups.cast(pa.large_string()), pc.is_valid(groups)
    beside = pa.array(np.zeros(rows.count, bool)) if keys is None else pc.is_valid(keys)
    for expected, wrong in (
        ("a text that is not blank", pc.equal(pc.utf8_trim_whitespace(texts), "")),
        (f"at most {_GROUP_SIZE_MAX} bytes", pc.greater(pc.binary_length(groups), _GROUP_SIZE_MAX)),
        ("no control characters", pc.match_substring_regex(texts, r"[\x00-\x1f\x7f-\x9f]")),
        ("no shardingKey beside it", pc.and_(is_given, beside)),
    ):
        if (row := pc.index(wrong, True).as_py()) >= 0:
            found = decode_utf8(groups[row].as_py())
            rows.refuse(row, f"messageGroup: expected {expected}, found {found!r}")
    return _first(groups, keys)


class _MessageProperties:
    """The properties of one batch. `left_out` counts the properties that are not written, by name."""

    def __init__(self, rows: WriteRows, *, strict: bool = False, allowed: Collection[str] = ()) -> None:
        """Raises IllegalMessageError for a separator in a name or a value.

        With `strict` also for a property that would be left out. `allowed` are reserved properties that these
        messages may bring.
        """
        self._rows = rows
        self._reserved = RESERVED_PROPERTIES.difference(allowed)
        self._maps, self.left_out = _written_maps(rows, self._reserved, strict=strict)
        self._columns = self._property_columns(strict=strict)
        # A column that is not null wins over the map's entry.
        self._given = {
            TAGS: rows.text("tags"),
            KEYS: _unless_same(rows.keys(), self._entry(KEYS)),
            SHARDING_KEY: _sharding_keys(rows),
        }
        self.tags, self.keys, self.sharding_key = (
            _first(column, self._entry(name)) for name, column in self._given.items()
        )

    def uniq_keys(self, ids: UniqueIds, now_ms: int) -> pa.LargeBinaryArray:
        """The UNIQ_KEYs of the rows, and new ones for rows without."""
        brought = self._entry(UNIQ_KEY)
        if brought is None:
            return ids.take(self._rows.count, now_ms)
        if not brought.null_count:
            return brought
        return pc.replace_with_mask(brought, brought.is_null(), ids.take(brought.null_count, now_ms))

    def strings(self, uniq_key: pa.LargeBinaryArray, parked: Parked, size_max: int) -> pa.LargeBinaryArray:
        """The property strings as the broker stores them.

        The map's properties come first, so that a message that was read and is written again keeps the order
        of names in the same hash bucket.
        """
        given = self._columns | {name: column for name, column in self._given.items() if column is not None}
        columns: dict[str, Any] = {
            name: _first(column, self._columns.get(name)) for name, column in given.items()
        }
        wait = self._entry(WAIT)
        if wait is None or wait.null_count:
            # The constructors of Message set WAIT.
            columns[WAIT] = "true" if wait is None else pc.fill_null(wait, b"true")
        columns |= parked.by_client
        if UNIQ_KEY in self._columns or uniq_key is not self._entry(UNIQ_KEY):
            columns[UNIQ_KEY] = uniq_key
        columns |= parked.by_broker
        for name, column in given.items():
            if (place := _separator_in(column)) is not None:
                self._rows.refuse(
                    place,
                    f"property {name}: expected a value without 0x02, which ends a property in the store",
                )
        strings = encode_property_columns(self._rows.count, columns, self._maps)
        sizes = pc.binary_length(strings).to_numpy()
        if int(sizes.max(initial=0)) > size_max:
            row = int(sizes.argmax())
            self._rows.refuse(
                row, f"expected properties of at most {size_max} bytes, found {sizes[row]} bytes"
            )
        return strings

    def _entry(self, name: str) -> pa.LargeBinaryArray | None:
        """The property in the rows: its own column, else its entries in the map."""
        return _first(self._columns.get(name), None if self._maps is None else self._maps.column(name))

    def _property_columns(self, *, strict: bool) -> dict[str, pa.LargeBinaryArray]:
        """The columns of propertyColumns with a value in some row, without RocketMQ's own properties."""
        found = {}
        for name in self._rows.property_columns:
            column = self._rows.text(name)
            if column is None:
                continue
            if name not in self._reserved:
                found[name] = column
            elif strict and column.null_count < len(column):
                row = column.is_valid().index(pa.scalar(True)).as_py()
                self._rows.refuse(row, f"property {name!r}: {_SET_BY_ROCKETMQ}")
            elif self._maps is None or name not in self._maps.names:
                self.left_out[name] += len(column) - column.null_count
        return found


def _written_maps(
    rows: WriteRows, reserved: frozenset[str], *, strict: bool
) -> tuple[PropertyMaps | None, Counter[str]]:
    column = rows.column("properties")
    if column is None:
        return None, Counter()
    maps = PropertyMaps.of(column)
    for name in maps.names:
        if any(separator in name for separator in _SEPARATORS):
            rows.refuse(
                maps.rows[_of_name(maps, name).argmax()],
                f"property {name!r}: expected a name without 0x01 and 0x02, "
                "which separate properties in the store",
            )
    place = _separator_in(maps.values)
    if place is not None:
        name = maps.names[maps.codes[place]]
        rows.refuse(
            maps.rows[place],
            f"property {name}: expected a value without 0x02, which ends a property in the store",
        )
    own = reserved.intersection(maps.names)
    gone = maps.empty()
    for name in own:
        gone = gone | _of_name(maps, name)
    if not gone.any():
        return maps, Counter()
    if strict:
        entry = int(gone.argmax())
        name = maps.names[maps.codes[entry]]
        why = (
            _SET_BY_ROCKETMQ
            if name in own
            else "the store cannot hold an empty name or value (strictProperties=true); leave it out"
        )
        rows.refuse(maps.rows[entry], f"property {name!r}: {why}")
    counts = np.bincount(maps.codes[gone], minlength=len(maps.names)).tolist()
    return maps.where(~gone), Counter(
        {name: count for name, count in zip(maps.names, counts, strict=True) if count}
    )


def _of_name(maps: PropertyMaps, name: str) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = maps.codes == maps.names.index(name)
    return found


def _separator_in(values: pa.LargeBinaryArray) -> int | None:
    """The place of the first value with a 0x02, which would end the property there."""
    data, offsets = flat_bytes(values)
    place = data.tobytes().find(PROPERTY_SEPARATOR)
    return None if place < 0 else int(np.searchsorted(offsets, place, side="right")) - 1


def _unless_same(
    keys: pa.LargeBinaryArray | None, entry: pa.LargeBinaryArray | None
) -> pa.LargeBinaryArray | None:
    """The column, null where the map's entry has the same keys.

    Some producers write several spaces between keys. A read splits at spaces, so the entry keeps them.
    """
    if keys is None or entry is None:
        return keys
    other = pc.fill_null(pc.not_equal(keys, entry), False)
    if not pc.any(other).as_py():
        return keys
    pairs = zip(keys.filter(other).to_pylist(), entry.filter(other).to_pylist(), strict=True)
    same = pa.array(
        [[*filter(None, own.split(b" "))] == [*filter(None, mapped.split(b" "))] for own, mapped in pairs]
    )
    return pc.replace_with_mask(keys, other, pc.if_else(same, pa.scalar(None, _BINARY), keys.filter(other)))


def _first(
    column: pa.LargeBinaryArray | None, entry: pa.LargeBinaryArray | None
) -> pa.LargeBinaryArray | None:
    """The column; where it is null, the map's entry."""
    if column is None or entry is None:
        return entry if column is None else column
    return pc.coalesce(column, entry)


# ---- bodies ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compression:
    """Compresses bodies of at least `size_min` bytes. `type` is ZLIB, LZ4 or ZSTD."""

    type: str
    size_min: int = 4096  # DefaultMQProducer.compressMsgBodyOverHowmuch
    level: int = 5


def checked_bodies(rows: WriteRows, message_size_max: int) -> tuple[pa.LargeBinaryArray, NDArray[np.int64]]:
    """The bodies and their sizes in bytes.

    Raises IllegalMessageError for a body that is null, empty or too large (Validators.checkMessage).
    """
    body = pa.array([], _BINARY) if rows.count == 0 else rows.bytes("body")
    if body is None or body.null_count:
        rows.refuse(
            0 if body is None else body.is_null().index(pa.scalar(True)).as_py(),
            "expected a body of at least 1 byte, found null",
        )
    sizes: NDArray[np.int64] = pc.binary_length(body).to_numpy()
    if not sizes.all():
        rows.refuse((sizes == 0).argmax(), "expected a body of at least 1 byte, found an empty one")
    if int(sizes.max(initial=0)) > message_size_max:
        row = sizes.argmax()
        rows.refuse(
            row,
            f"expected a body of at most {message_size_max} bytes (maxMessageSize), found {sizes[row]} bytes",
        )
    return body, sizes


def compress_bodies(
    body: pa.LargeBinaryArray, sizes: NDArray[np.int64], compression: Compression | None
) -> tuple[pa.LargeBinaryArray, NDArray[np.int64]]:
    """The stored bodies and their compression bits of the sys flag.

    As in a client, a large body is stored compressed even if that makes it larger.
    """
    flags = np.zeros(len(sizes), np.int64)
    if compression is None:
        return body, flags
    large = sizes >= compression.size_min
    if not large.any():
        return body, flags
    flags[large] = compression_flag(compression.type)
    mask = pa.array(large)
    packed = [compress(raw, compression.type, compression.level) for raw in body.filter(mask).to_pylist()]
    return pc.replace_with_mask(body, mask, pa.array(packed, _BINARY)), flags
