"""What a broker stores when a group must get a message again: a retry, a revived copy, or a dead letter.

`send_back` is the rule of concurrent consumers (AbstractSendMessageProcessor.consumerSendMsgBack, spec
consumption.md 6.3), `give_up` the rule of orderly consumers at their maximum (spec 6.4). `revived` is the
rule when nobody acknowledges a popped message in time: a copy in the pop retry topic
(PopReviveService.reviveRetry, spec 11.6). The same group can pop the copy at once: the wait was the invisible
time. `resend` makes a new message of a dead letter, as a producer would send it with the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.consume.consumer import check_group
from rmq_spark.produce.columns import Host
from rmq_spark.produce.unique_ids import UniqueIds
from store_format.errors import IllegalMessageError, OptionError, UnsupportedFormatError
from store_format.java.text import java_hash_many
from store_format.message import sysflag
from store_format.message.encode import TOPIC_V1_LENGTH_MAX, MessageColumns, StoredMessages, edited_properties
from store_format.message.hosts import offset_msg_ids
from store_format.message.properties import PropertyTable
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.values import SubscriptionGroup
from store_format.names import (
    DELAY,
    DELAY_LEVELS_MS,
    FIRST_POP_TIME,
    INNER_MULTI_DISPATCH,
    INNER_NUM,
    MAX_RECONSUME_TIMES,
    ORIGIN_GROUP,
    ORIGIN_MESSAGE_ID,
    REAL_QID,
    REAL_TOPIC,
    RECONSUME_TIME,
    RESENT_FROM,
    RESERVED_PROPERTIES,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    WAIT,
    dead_letter_topic,
    is_retry_topic,
    pop_retry_topic,
    retry_topic,
)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

_DLQ_QUEUE_NUMS = 1  # AbstractSendMessageProcessor.DLQ_NUMS_PER_GROUP
_SCHEDULE_QUEUE_NUMS = 18  # TopicConfigManager.init, whatever messageDelayLevel is
_FIRST_RETRY_LEVEL = 3
# HookUtils.checkIfTimerMessage removes these from a message with a delay level
_TIMER_PROPERTIES = ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS")
_ORDERLY_DEAD_LEVEL = "-1"  # SendMessageProcessor.handleRetryAndDLQ
CLIENT_DEFAULT = -1  # maxReconsumeTimes of RocketMQ's consumers, if nobody sets it
_CONCURRENT_RETRIES = 16  # what it means for them: DefaultMQPushConsumerImpl.getMaxReconsumeTimes

_RETRY_QUEUE_NUMS = 1  # PopAckConstants.retryQueueNum
_MAP_CAPACITY = 16  # new HashMap(): PopReviveService does not give a capacity

_RESENT_FLAGS = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK | sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6


# ---- failed messages ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SentBack:
    """Messages to append, one for each message that was sent back, in their order.

    `is_dead` marks the dead letters; the others are retries, which wait in SCHEDULE_TOPIC_XXXX.
    `new_topics` are the topics that a broker creates if topics.json lacks them, with their queues.
    """

    messages: MessageColumns
    is_dead: _Flags
    new_topics: Mapping[str, int]

    @property
    def retried(self) -> int:
        return int(np.count_nonzero(~self.is_dead))

    @property
    def dead_letters(self) -> int:
        return int(np.count_nonzero(self.is_dead))


def send_back(
    stored: StoredMessages,
    group: SubscriptionGroup,
    *,
    delay_levels: _Ints | int = 0,
    max_reconsume_times: int | None = None,
    level_max: int = len(DELAY_LEVELS_MS),
    queue_ids: _Ints | None = None,
    store_host: Host | None = None,
) -> SentBack:
    """What a broker stores for messages that a consumer of `group` sends back.

    A message that was delivered again `max_reconsume_times` times (default: the group's retryMaxTimes; -1,
    the default of RocketMQ's consumers, is 16), or with a negative delay level, becomes a dead letter. The
    others are retried after delay level `delay_levels`, or after level 3 + reconsumeTimes if that is 0; a
    level above `level_max` is lowered.
    `queue_ids` are queues of the retry topic; a broker takes random ones, the default is computed from the
    place of the message. `store_host` is the broker's address, by default that of the stored message.

    Raises OptionError for a group whose retryQueueNums is not above 0 and for a maximum below -1,
    IllegalMessageError and UnsupportedFormatError for a message that a broker refuses or stores into other
    queues too.
    """
    topic, dlq = retry_topic(check_group(group.group_name)), dead_letter_topic(group.group_name)
    times_max = _retries_max(group, max_reconsume_times)
    refuse_without_retries(group)
    _refuse_messages(stored)
    times = np.asarray(stored.messages.reconsume_times, np.int64)
    levels = np.broadcast_to(np.asarray(delay_levels, np.int64), len(stored))
    is_dead = (times >= times_max) | (levels < 0)
    _refuse_long_topic(dlq, is_dead)
    levels = np.where(levels == 0, _FIRST_RETRY_LEVEL + times, levels)
    levels = np.where(is_dead, 0, np.minimum(levels, level_max))
    if queue_ids is None:
        queue_ids = scattered(stored.physical_offsets, group.retry_queue_nums)
    put = _origins(stored) | {WAIT: "false", DELAY: _number_texts(levels)}
    parked = put | {REAL_TOPIC: topic, REAL_QID: _number_texts(queue_ids)}
    new_topics = {topic: group.retry_queue_nums}
    if is_dead.any():
        new_topics[dlq] = _DLQ_QUEUE_NUMS
    if not is_dead.all():
        new_topics[SCHEDULE_TOPIC] = _SCHEDULE_QUEUE_NUMS
    columns = stored.copies(
        topic=pa.DictionaryArray.from_arrays(pa.array(is_dead.astype(np.int8)), [SCHEDULE_TOPIC, dlq]),
        queue_id=np.where(is_dead, 0, levels - 1),
        properties=_edited_apart(stored, is_dead, put, parked, removed_from_parked=_TIMER_PROPERTIES),
        reconsume_times=times + 1,
        prepared_transaction_offset=0,
        **_host_columns(store_host),
    )
    return SentBack(columns, is_dead, new_topics)


def give_up(
    stored: StoredMessages,
    group: str,
    *,
    reconsume_times: _Ints | int,
    max_reconsume_times: int,
    now_ms: int,
    born_host: Host,
    offset_range: tuple[_Ints | int, _Ints | int] | None = None,
    ids: UniqueIds | None = None,
    store_host: Host | None = None,
) -> SentBack:
    """The dead letters of messages that an orderly consumer gives up after `reconsume_times` failures.

    The consumer sends a new message to its retry topic, and the broker stores it as a dead letter because the
    group holds locks of queues (ConsumeMessageOrderlyService.sendMessageBack,
    SendMessageProcessor.handleRetryAndDLQ). So `born_host` and `now_ms` are those of the consumer, and the
    properties differ from those of `send_back`: DELAY is -1, RECONSUME_TIME and MAX_RECONSUME_TIMES are set.
    `offset_range` is (minimum offset, maximum offset) of each message's queue when it was pulled, which the
    consumer adds as properties; None leaves them out. A message without UNIQ_KEY gets one from `ids`.

    The messages are refused as by `send_back`.
    """
    topic, dlq = retry_topic(check_group(group)), dead_letter_topic(group)
    count = len(stored)
    is_dead = np.ones(count, bool)
    _refuse_messages(stored)
    _refuse_long_topic(dlq, is_dead)
    times = np.broadcast_to(np.asarray(reconsume_times, np.int64), count) + 1
    (unique,) = stored.properties(UNIQ_KEY)
    put: dict[str, Any] = {  # Any: one text for all messages, or an array
        **_origins(stored, by_unique_key=True, retry=topic),
        RECONSUME_TIME: _number_texts(times),
        MAX_RECONSUME_TIMES: str(max_reconsume_times),
        DELAY: _ORDERLY_DEAD_LEVEL,
    }
    for name, offsets in zip(("MIN_OFFSET", "MAX_OFFSET"), offset_range or (), strict=False):
        put[name] = _number_texts(np.broadcast_to(np.asarray(offsets, np.int64), count))
    if unique.null_count:
        made = (ids or UniqueIds.of_this_process()).take(count, now_ms)
        put[UNIQ_KEY] = pc.if_else(pc.is_null(unique), made.cast(pa.string()), pa.scalar(None, pa.string()))
    flags = np.asarray(stored.messages.sys_flag, np.int64)
    born_ip, born_port = born_host
    columns = stored.copies(
        topic=dlq,
        queue_id=0,
        properties=edited_properties(stored.messages.properties, put, removed=("TRAN_MSG",)),
        sys_flag=flags & (sysflag.COMPRESSED | sysflag.COMPRESSION_MASK | sysflag.STORE_HOST_V6),
        born_timestamp=now_ms,
        born_ip=born_ip,
        born_port=born_port,
        reconsume_times=times,
        prepared_transaction_offset=0,
        **_host_columns(store_host),
    )
    return SentBack(columns, is_dead, {dlq: _DLQ_QUEUE_NUMS})


# ---- properties --------------------------------------------------------------------------------------------


def _origins(
    stored: StoredMessages, *, by_unique_key: bool = False, retry: str | None = None
) -> dict[str, pa.StringArray]:
    """RETRY_TOPIC and ORIGIN_MESSAGE_ID: the topic and the id of the first message.

    A retry has both already. A broker names the first message by its offset message id; an orderly consumer
    names it by UNIQ_KEY, and believes RETRY_TOPIC only of messages of its topic `retry`.
    """
    first_topic, first_id, unique = stored.properties(RETRY_TOPIC, ORIGIN_MESSAGE_ID, UNIQ_KEY)
    topics = pc.cast(stored.messages.topic, pa.string())
    if retry is not None:
        first_topic = pc.if_else(pc.equal(topics, retry), first_topic, pa.scalar(None, pa.string()))
    blank = pc.equal(pc.utf8_trim_whitespace(pc.fill_null(first_id, "")), "")
    own = offset_ids(stored)
    if by_unique_key:
        own = pc.coalesce(unique, own)
    return {
        RETRY_TOPIC: pc.coalesce(first_topic, topics),
        ORIGIN_MESSAGE_ID: pc.if_else(blank, own, first_id),
    }


def offset_ids(stored: StoredMessages) -> pa.StringArray:
    """The offset message ids of stored messages: store host and physical offset."""
    messages = stored.messages
    ip, port = np.asarray(messages.store_ip), np.asarray(messages.store_port, np.int64)
    wide = np.asarray(messages.sys_flag, np.int64) & sysflag.STORE_HOST_V6 != 0
    short = np.ascontiguousarray(ip).view(np.uint8).reshape(len(stored), 16)[:, :4]
    narrow = np.ascontiguousarray(short).view("V4").reshape(len(stored))
    if not wide.any():
        return offset_msg_ids(narrow, port, stored.physical_offsets)
    ids = [offset_msg_ids(each, port, stored.physical_offsets) for each in (narrow, ip)]
    return pc.if_else(pa.array(wide), ids[1], ids[0])


def _edited_apart(
    stored: StoredMessages,
    is_dead: _Flags,
    put: Mapping[str, Any],
    parked: Mapping[str, Any],
    *,
    removed_from_parked: Collection[str],
) -> pa.LargeBinaryArray:
    """The properties of dead letters with `put`, those of the others with `parked`."""
    parts = [
        edited_properties(
            stored.messages.properties.filter(pa.array(chosen)),
            _of_chosen(changes, chosen),
            removed=removed,
        )
        for chosen, changes, removed in ((is_dead, put, ()), (~is_dead, parked, removed_from_parked))
    ]
    places = np.argsort(np.concatenate([np.flatnonzero(is_dead), np.flatnonzero(~is_dead)]))
    return pa.concat_arrays(parts).take(pa.array(places))


def _of_chosen(put: Mapping[str, Any], chosen: _Flags) -> dict[str, Any]:
    mask = pa.array(chosen)
    return {name: each if isinstance(each, str) else each.filter(mask) for name, each in put.items()}


def _number_texts(numbers: NDArray[Any]) -> pa.StringArray:
    return pa.array(np.ascontiguousarray(numbers)).cast(pa.string())


# ---- other columns -----------------------------------------------------------------------------------------


def _host_columns(host: Host | None) -> dict[str, Any]:
    return {} if host is None else {"store_ip": host[0], "store_port": host[1]}


def scattered(physical_offsets: _Ints, queue_nums: _Ints | int) -> _Ints:
    """A queue below `queue_nums` for each message: spread evenly, and the same when the work is repeated."""
    mixed = physical_offsets.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    queues: _Ints = (mixed >> np.uint64(33)).astype(np.int64) % queue_nums
    return queues


def _retries_max(group: SubscriptionGroup, given: int | None) -> int:
    """How often a message of the group is delivered again. Raises OptionError for a number below -1."""
    if given is None:
        return group.retry_max_times
    if given < CLIENT_DEFAULT:
        raise OptionError(
            f"max_reconsume_times={given}: expected -1 (RocketMQ's default, {_CONCURRENT_RETRIES}) or a "
            "number from 0"
        )
    return _CONCURRENT_RETRIES if given == CLIENT_DEFAULT else given


# ---- refusals ----------------------------------------------------------------------------------------------


def refuse_without_retries(group: SubscriptionGroup) -> None:
    """Raises OptionError for a group whose retryQueueNums is not above 0."""
    if group.retry_queue_nums <= 0:
        raise OptionError(
            f"group {group.group_name}: expected retryQueueNums above 0 in subscriptionGroup.json, found "
            f"{group.retry_queue_nums}; a broker loses the group's failed messages without an error. Raise "
            "it (mqadmin updateSubGroup -q 1), or remove the group from the file"
        )


def _refuse_messages(stored: StoredMessages) -> None:
    """Refuses messages that a broker does not take back (HookUtils.checkInnerBatch), and light queues'."""
    flags = np.asarray(stored.messages.sys_flag, np.int64)
    inner, light = stored.properties(INNER_NUM, INNER_MULTI_DISPATCH)
    batch = (flags & sysflag.INNER_BATCH != 0) | pc.is_valid(inner).to_numpy(zero_copy_only=False)
    _refuse_first(
        stored, batch, IllegalMessageError, "is a batch, which a broker does not take back (INNER_NUM)"
    )
    kinds = flags & sysflag.TRANSACTION_MASK
    undecided = (kinds == sysflag.TRANSACTION_PREPARED) | (kinds == sysflag.TRANSACTION_ROLLBACK)
    _refuse_first(
        stored, undecided, IllegalMessageError, "is prepared or rolled back, and no consumer reads it"
    )
    _refuse_first(
        stored,
        pc.is_valid(light).to_numpy(zero_copy_only=False),
        UnsupportedFormatError,
        "is also in light queues (INNER_MULTI_DISPATCH), which is not supported; send it back through its "
        "broker",
    )


def _refuse_first(stored: StoredMessages, wrong: _Flags, error: type[Exception], what: str) -> None:
    if wrong.any():
        first = stored.take(wrong)
        topic, queue = pc.cast(first.messages.topic, pa.string())[0], np.asarray(first.messages.queue_id)[0]
        raise error(f"topic {topic}, queue {queue}, offset {first.queue_offsets[0]}: the message {what}")


def _refuse_long_topic(dlq: str, is_dead: _Flags) -> None:
    """A broker lets only retry topics have longer names (HookUtils.checkBeforePutMessage)."""
    if is_dead.any() and len(dlq) > TOPIC_V1_LENGTH_MAX:
        raise IllegalMessageError(
            f"topic {dlq}: expected at most {TOPIC_V1_LENGTH_MAX} characters, found {len(dlq)}; the group's "
            "name is too long for dead letters"
        )


# ---- messages that nobody acknowledged ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _RevivedCopies:
    """Copies to append, one for each message, in their order.

    `new_topics` are the topics that a broker creates if topics.json lacks them, with their queues. The group
    starts at offset 0 in each of their queues (PopReviveService.initPopRetryOffset).
    """

    messages: MessageColumns
    new_topics: Mapping[str, int]


def revived(
    stored: StoredMessages,
    group: str,
    pop_times: _Ints | int,
    *,
    keeps_times: _Flags | bool = False,
    queue_nums: int | None = None,
    broker_host: Host | None = None,
) -> _RevivedCopies:
    """The copies of messages that `group` has popped at `pop_times` (ms) and nobody has acknowledged.

    A copy has the topic `%RETRY%<group>_<topic>`; the copy of a message that is in a retry topic stays in
    that topic. reconsumeTimes increases by one, unless `keeps_times` (a check point with `sp`: the consumer
    has only suspended the message). The property 1ST_POP_TIME has the time of the first pop. The queue is 0;
    with `queue_nums`, the queues of the topic, it is the message's own queue (useSeparateRetryQueue).
    `broker_host` is the address of the broker, by default the store host of each message; the copy is born
    there.
    """
    count = len(stored)
    topics = pc.dictionary_encode(pc.cast(stored.messages.topic, pa.string()))
    names = [
        each if is_retry_topic(each) else pop_retry_topic(group, each)
        for each in topics.dictionary.to_pylist()
    ]
    times = np.asarray(stored.messages.reconsume_times, np.int64)
    queues = np.zeros(count, np.int64)
    if queue_nums is not None:
        own = np.asarray(stored.messages.queue_id, np.int64)
        queues = np.where(own < queue_nums, own, 0)
    host = {"store_ip": stored.messages.store_ip, "store_port": stored.messages.store_port}
    flags = np.asarray(stored.messages.sys_flag, np.int64)
    if broker_host is not None:
        host = {"store_ip": broker_host[0], "store_port": broker_host[1]}
        wide = np.full(count, len(broker_host[0]) == 16)
        flags = np.where(wide, flags | sysflag.STORE_HOST_V6, flags & ~sysflag.STORE_HOST_V6)
    wide = flags & sysflag.STORE_HOST_V6 != 0
    columns = stored.copies(
        topic=pa.DictionaryArray.from_arrays(topics.indices, names),
        queue_id=queues,
        properties=_properties(stored, group, np.broadcast_to(np.asarray(pop_times, np.int64), count)),
        sys_flag=np.where(wide, flags | sysflag.BORN_HOST_V6, flags & ~sysflag.BORN_HOST_V6),
        reconsume_times=times + ~np.broadcast_to(np.asarray(keeps_times, bool), count),
        prepared_transaction_offset=np.zeros(count, np.int64),
        born_ip=host["store_ip"],
        born_port=host["store_port"],
        **host,
    )
    return _RevivedCopies(columns, dict.fromkeys(names, queue_nums or _RETRY_QUEUE_NUMS))


def refused_copies(stored: StoredMessages) -> _Flags:
    """Marks messages whose copies cannot be stored here: inner batches, and messages of light queues.

    A broker refuses the first (HookUtils.checkInnerBatch) and puts the second into the light queues again.
    """
    flags = np.asarray(stored.messages.sys_flag, np.int64)
    inner, light = stored.properties(INNER_NUM, INNER_MULTI_DISPATCH)
    either = pc.or_(pc.is_valid(inner), pc.is_valid(light)).to_numpy(zero_copy_only=False)
    refused: _Flags = (flags & sysflag.INNER_BATCH != 0) | either
    return refused


# ---- properties --------------------------------------------------------------------------------------------


def _properties(stored: StoredMessages, group: str, pop_times: _Ints) -> pa.LargeBinaryArray:
    """The properties of the copies, in the order of the HashMap that PopReviveService makes.

    The map begins with TAGS and then gets the decoded properties. Without TAGS the map is empty at first, so
    that its table is made for the number of the decoded properties.
    """
    first, tags = stored.properties(FIRST_POP_TIME, TAGS)
    is_first = pa.array(np.asarray(stored.messages.reconsume_times, np.int64) == 0)
    popped = pc.if_else(pc.or_(is_first, pc.is_null(first)), pa.array(pop_times).cast(pa.string()), first)
    # HashMap(128), into which a broker decodes properties, gives the order in which they are put
    decoded = PropertyTable(edited_properties(stored.messages.properties, {}).cast(pa.binary())).map_array()
    counts = np.diff(decoded.offsets.to_numpy())
    has_tags = tags.is_valid().to_numpy(zero_copy_only=False)
    capacities = np.where(has_tags | (counts == 0), _MAP_CAPACITY, _table_for(counts))
    ordered = _tags_first(decoded)
    parts, places = [], []
    for capacity in np.unique(capacities).tolist():
        chosen = np.flatnonzero(capacities == capacity)
        mask = pa.array(chosen)
        put = {FIRST_POP_TIME: popped.take(mask), ORIGIN_GROUP: group}
        parts.append(encode_property_columns(len(chosen), put, ordered.take(mask), capacity=capacity))
        places.append(chosen)
    if not parts:
        return pa.array([], pa.large_binary())
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places), kind="stable")))


def _table_for(counts: _Ints) -> _Ints:
    """The buckets of an empty HashMap after putAll of maps with so many names (HashMap.putMapEntries)."""
    wanted = (counts / 0.75 + 1.0).astype(np.int64)
    sizes: _Ints = 1 << np.ceil(np.log2(np.maximum(wanted, 1))).astype(np.int64)
    return sizes


def _tags_first(maps: pa.MapArray) -> pa.MapArray:
    """The maps with TAGS moved to the front."""
    offsets = maps.offsets.to_numpy()
    keys, items = maps.keys[offsets[0] : offsets[-1]], maps.items[offsets[0] : offsets[-1]]
    rows = np.repeat(np.arange(len(maps)), np.diff(offsets))
    is_other = pc.not_equal(keys, TAGS).to_numpy(zero_copy_only=False)
    order = pa.array(np.lexsort((is_other, rows)))
    return pa.MapArray.from_arrays(
        pa.array((offsets - offsets[0]).astype(np.int32)), keys.take(order), items.take(order)
    )


# ---- dead letters again ------------------------------------------------------------------------------------


def resend(
    dead: StoredMessages,
    topics: pa.StringArray,
    queue_nums: _Ints,
    *,
    origin_topics: pa.StringArray | None = None,
) -> MessageColumns:
    """New messages for these topics, with the content of dead letters.

    Body, flag, tags, keys, UNIQ_KEY, the user's properties, the time of birth and the born host are kept. All
    properties that RocketMQ sets itself are removed, as the write does with the column `properties`, and
    reconsumeTimes is 0: the message can fail and be retried as often as a new one. The property RESENT_FROM
    has the offset message id of the dead letter. `queue_nums` are the queues of each topic: a message with
    a sharding key gets the queue of SelectMessageQueueByHash, another one a queue that follows from its
    place. With `origin_topics` the copies go to a retry topic and have RETRY_TOPIC, which consumers show as
    the topic.
    """
    put: dict[str, Any] = {WAIT: "true", RESENT_FROM: offset_ids(dead)}  # Any: a text, or an array
    if origin_topics is not None:
        put[RETRY_TOPIC] = origin_topics
    return dead.copies(
        topic=topics,
        queue_id=_resend_queues(dead, queue_nums),
        properties=edited_properties(dead.messages.properties, put, removed=RESERVED_PROPERTIES),
        sys_flag=np.asarray(dead.messages.sys_flag, np.int64) & _RESENT_FLAGS,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


def _resend_queues(dead: StoredMessages, queue_nums: _Ints) -> _Ints:
    (keys,) = dead.properties(SHARDING_KEY)
    by_place = scattered(dead.physical_offsets, queue_nums)
    if keys.null_count == len(keys):
        return by_place
    hashed = java_hash_many(keys.fill_null("").cast(pa.large_binary())).astype(np.int64)
    by_key = np.abs(np.fmod(hashed, queue_nums))
    return np.where(keys.is_valid().to_numpy(zero_copy_only=False), by_key, by_place)
