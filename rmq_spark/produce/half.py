"""Transactions: what a broker writes for a half message, its decision, its check and its end (spec 8.4).

A half message waits in RMQ_SYS_TRANS_HALF_TOPIC, queue 0, under its real topic's and queue's names in its
properties (TransactionalMessageBridge). A commit stores it in its real queue (EndTransactionProcessor); an op
message lists the queue offsets of half messages that are decided. Nothing here reads a store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.produce.columns import WriteRows
from rmq_spark.produce.delays import Parked
from rmq_spark.produce.delivered import real_queues
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.message.encode import MessageColumns, StoredMessages, edited_properties
from store_format.message.property_encoder import encode_property_columns
from store_format.names import (
    CHECK_TIMES,
    DELAY,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    PGROUP,
    PREPARED_QUEUE_OFFSET,
    REAL_QID,
    REAL_TOPIC,
    TRAN_MSG,
    TRANSACTION_ID,
    WAIT,
)

HALF_QUEUE_ID = 0
OP_TAG = "d"  # TransactionalMessageUtil.REMOVE_TAG, of a commit and of a rollback
OP_BODY_SIZE_MAX = 4096  # BrokerConfig.transactionOpMsgMaxSize

_TIMES_OF_DELIVERY = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_KIND = pa.large_binary()
_MESSAGE_MAP_CAPACITY = 16  # Message.properties of an op message, which no client has sent
_V16 = np.dtype("V16")

# ---- what a producer sends ---------------------------------------------------------------------------------


def park_half(
    rows: WriteRows, queue_id: NDArray[np.int64], uniq_key: pa.LargeBinaryArray | None, producer_group: str
) -> Parked:
    """Every row in the half topic, with its real topic and queue in its properties.

    TransactionMQProducer and TransactionalMessageBridge.parseHalfMessageInner. The transaction bits of the
    sys flag are 0, so that the half message has a place in its queue. `uniq_key` is None for a 4.9 broker,
    which does not add it as __transactionId__.

    Raises IllegalMessageError for a row with a delay: 5.5 refuses delayed transactions.
    """
    level = rows.integers("delayTimeLevel", 0, low=0)
    times = rows.times_ms("deliverTimestamp")
    for name, delayed in (
        ("delayTimeLevel", None if level is None else level > 0),
        ("deliverTimestamp", None if times is None else times[1]),
    ):
        if delayed is not None and delayed.any():
            rows.refuse(
                delayed.argmax(),
                f"{name}: expected null with transaction=half, because RocketMQ does not delay transactional "
                "messages; set the column to null, or write the row without a transaction",
            )
    return Parked(
        (*rows.topics, HALF_TOPIC),
        np.full(rows.count, len(rows.topics), np.int64),
        np.full(rows.count, HALF_QUEUE_ID, np.int64),
        np.zeros(rows.count, np.int64),
        {
            TRAN_MSG: _same_for_all(b"true", rows.count),
            PGROUP: _same_for_all(producer_group.encode(), rows.count),
        },
        {
            **({} if uniq_key is None else {TRANSACTION_ID: uniq_key}),
            REAL_TOPIC: pa.array([name.encode() for name in rows.topics], _KIND).take(pa.array(rows.codes)),
            REAL_QID: pc.cast(pa.array(queue_id), pa.large_string()).cast(_KIND),
        },
    )


def _same_for_all(value: bytes, count: int) -> pa.LargeBinaryArray:
    return pa.repeat(pa.scalar(value, _KIND), count)


# ---- the decision ------------------------------------------------------------------------------------------


def delayed(halves: StoredMessages) -> NDArray[np.bool_]:
    """Half messages with a delay, which Java producers do not send (5.5) or remove (before).

    A broker would delay the committed message. So these must not be committed as they are.
    """
    levels, *times = halves.properties(DELAY, *_TIMES_OF_DELIVERY)
    is_level = np.array([(parse_long(text) or 0) > 0 for text in levels.to_pylist()], bool)
    for column in times:
        is_level |= column.is_valid().to_numpy(zero_copy_only=False)
    return is_level


def committed(halves: StoredMessages, *, is_old: bool = False) -> MessageColumns:
    """The messages that consumers get: EndTransactionProcessor.endMessageTransaction.

    Body, flag, birth, both hosts and reconsumeTimes are those of the half message. `is_old`: up to 5.3 a
    broker keeps REAL_TOPIC and REAL_QID in the properties. All halves have a real topic and queue.
    """
    queues = real_queues(halves)
    raw = halves.messages.properties
    sys_flag = np.asarray(halves.messages.sys_flag) & ~sysflag.TRANSACTION_MASK
    return halves.copies(
        topic=queues.topics,
        queue_id=queues.queue_ids,
        properties=edited_properties(raw, {}, removed=() if is_old else (REAL_TOPIC, REAL_QID)),
        sys_flag=sys_flag | sysflag.TRANSACTION_COMMIT,
        prepared_transaction_offset=halves.physical_offsets,
    )


def op_bodies(queue_offsets: Sequence[int], *, is_old: bool = False) -> list[bytes]:
    """The bodies of the op messages that list these half messages.

    Each offset ends in a comma. A body gets offsets until it has 4096 bytes or more
    (TransactionalMessageServiceImpl.getOpMessage). `is_old`: 4.9 writes one op message for each half message,
    with its offset and no comma.

    >>> op_bodies([3, 12]), op_bodies([3, 12], is_old=True)
    ([b'3,12,'], [b'3', b'12'])
    """
    if is_old:
        return [b"%d" % offset for offset in queue_offsets]
    bodies: list[bytes] = []
    body = bytearray()
    for offset in queue_offsets:
        body += b"%d," % offset
        if len(body) >= OP_BODY_SIZE_MAX:
            bodies.append(bytes(body))
            body.clear()
    return [*bodies, bytes(body)] if body else bodies


def op_messages(bodies: Sequence[bytes], host: tuple[bytes, int], now_ms: int) -> MessageColumns:
    """Op messages with these bodies, born at `now_ms` in the broker itself, at address and port `host`."""
    count = len(bodies)
    address = np.frombuffer(host[0].ljust(16, b"\0") * count, _V16)
    ports = np.full(count, host[1], np.int64)
    v6 = len(host[0]) == 16
    return MessageColumns(
        topic=pa.repeat(pa.scalar(OP_TOPIC), count),
        body=pa.array(bodies, _KIND),
        properties=encode_property_columns(
            count, {"TAGS": OP_TAG, WAIT: "true"}, capacity=_MESSAGE_MAP_CAPACITY
        ),
        queue_id=np.full(count, HALF_QUEUE_ID, np.int64),
        flag=np.zeros(count, np.int64),
        queue_offset=np.zeros(count, np.int64),
        sys_flag=np.full(count, sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6 if v6 else 0, np.int64),
        born_timestamp=np.full(count, now_ms, np.int64),
        born_ip=address,
        born_port=ports,
        store_timestamp=np.zeros(count, np.int64),
        store_ip=address,
        store_port=ports,
        reconsume_times=np.zeros(count, np.int64),
        prepared_transaction_offset=np.zeros(count, np.int64),
    )


# ---- the check ---------------------------------------------------------------------------------------------


def check_times(halves: StoredMessages) -> list[int]:
    """How often each half message was checked: TRANSACTION_CHECK_TIMES, 0 without it, -1 for no number."""
    (texts,) = halves.properties(CHECK_TIMES)
    return [0 if text is None else _java_int(text) for text in texts.to_pylist()]


def _java_int(text: str) -> int:
    """TransactionalMessageServiceImpl.getInt: -1 for a text that is no int."""
    number = parse_long(text)
    return number if number is not None and -(2**31) <= number < 2**31 else -1


def checked(halves: StoredMessages, immune: NDArray[np.bool_]) -> MessageColumns:
    """The half messages as a check stores them again, at the end of the half topic.

    TRANSACTION_CHECK_TIMES counts the check. `immune` are those whose CHECK_IMMUNITY_TIME_IN_SECONDS is not
    over: they get the queue offset of the first copy too, TRAN_PREPARED_QUEUE_OFFSET. Flag and reconsumeTimes
    are not copied (TransactionalMessageBridge.renewHalfMessageInner).
    """
    put = {CHECK_TIMES: _numbers([times + 1 for times in check_times(halves)])}
    if immune.any():
        (first,) = halves.properties(PREPARED_QUEUE_OFFSET)
        own = pa.array(halves.queue_offsets, mask=~immune).cast(pa.string())
        put[PREPARED_QUEUE_OFFSET] = pc.coalesce(pc.if_else(pa.array(immune), first, None), own)
    zeros = np.zeros(len(halves), np.int64)
    return halves.copies(
        properties=edited_properties(halves.messages.properties, put),
        flag=zeros,
        reconsume_times=zeros,
        prepared_transaction_offset=zeros,
    )


def discarded(halves: StoredMessages, counted: NDArray[np.bool_]) -> MessageColumns:
    """The half messages as they are moved to TRANS_CHECK_MAX_TIME_TOPIC, queue 0: effectively rolled back.

    `counted` are those that are too old, and not checked too often: a broker has counted one more check
    before it looks at the age (DefaultTransactionalMessageCheckListener.resolveDiscardMsg).
    """
    times = check_times(halves)
    put = {
        CHECK_TIMES: _numbers(
            [each + 1 if more else None for each, more in zip(times, counted.tolist(), strict=True)]
        )
    }
    return halves.copies(
        topic=pa.repeat(pa.scalar(DISCARDED_TOPIC), len(halves)),
        queue_id=np.full(len(halves), HALF_QUEUE_ID, np.int64),
        properties=edited_properties(halves.messages.properties, put),
        prepared_transaction_offset=np.zeros(len(halves), np.int64),
    )


def _numbers(values: Sequence[int | None]) -> pa.StringArray:
    return pa.array(values, pa.int64()).cast(pa.string())
