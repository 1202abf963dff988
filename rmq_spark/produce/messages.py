"""Makes messages of rows: what a RocketMQ client makes of them, and what a broker then writes into the log.

A task has one `Producer`. Each batch becomes `ProducedMessages`, which lack only the values that the commit
decides: offsets, store time and store host.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.bodies import Compression, checked_bodies, compress_bodies
from rmq_spark.produce.delays import park
from rmq_spark.produce.half import park_half
from rmq_spark.produce.properties import MessageProperties
from rmq_spark.produce.queues import QueueSelector
from rmq_spark.produce.rows import Host, WriteRows
from rmq_spark.produce.unique_ids import UniqueIds
from store_format.display.text import shown
from store_format.index.keys import index_key_hashes
from store_format.java.hashes import tags_code_many
from store_format.layouts import BLANK_HEAD, CRC_PROPERTY_SIZE, MESSAGE_HEADS
from store_format.message.crc import body_crcs
from store_format.message.encode import MESSAGE_SIZE_MAX, PROPERTIES_SIZE_MAX, Integers, MessageColumns
from store_format.message.sysflag import BORN_HOST_V6, MULTI_TAGS
from store_format.metadata.broker_conf import BrokerConf
from store_format.names import CHECK_IMMUNITY_TIME

_log = logging.getLogger(__name__)

_KIND = pa.large_binary()
_LENGTH_FIELDS = 1 + 2  # of topic and properties; the length of the body is the last field of the head


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
        taken: dict[str, Any] = {}
        for name in self.__slots__:
            values = getattr(self, name)
            if isinstance(values, np.ndarray):
                taken[name] = values[places]
            else:
                taken[name] = values.take(pa.array(places)) if isinstance(values, pa.Array) else values
        return ProducedMessages(**taken)

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
        """The entries for the index, as `store_format.index.keys.index_key_hashes` returns them."""
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
        properties = MessageProperties(rows, strict=settings.strict_properties, allowed=allowed)
        self.left_out.update(properties.left_out)
        selected = self._selector.select(rows, properties.sharding_key)
        uniq_key = properties.uniq_keys(self._ids, now_ms)
        if group is None:
            place = park(rows, selected.queue_id, now_ms, selected.store, settings.confs)
        else:
            place = park_half(rows, selected.queue_id, uniq_key if settings.transaction_id else None, group)
        strings = properties.strings(uniq_key, place, settings.properties_size_max)
        stored, sys_flag = compress_bodies(body, sizes, settings.compression)
        sys_flag[selected.multi_tags] |= MULTI_TAGS
        born = rows.hosts("bornHost", settings.born_host)
        sys_flag[born.v6] |= BORN_HOST_V6
        flag = rows.integers("flag", 0)
        tags = pa.nulls(rows.count, _KIND) if properties.tags is None else properties.tags
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
            keys=pa.nulls(rows.count, _KIND) if properties.keys is None else properties.keys,
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
            messages.sys_flag & BORN_HOST_V6 != 0, *(self._overhead(born_v6) for born_v6 in (1, 0))
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
