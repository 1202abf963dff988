"""Names that are RocketMQ's own: topics that nobody writes to from outside, and properties that it puts into
messages itself.

A message that was delivered carries traces of how that went; written again with these, it would be delayed or
committed again.
"""

from __future__ import annotations

import re

from store_format.errors import IllegalMessageError
from store_format.java.text import decode_utf8

__all__ = ["NOT_WRITTEN_PROPERTIES", "REFUSED_PREFIXES", "REFUSED_TOPICS", "TOPIC_LENGTH_MAX", "topic_name"]

TOPIC_LENGTH_MAX = 127  # Validators.checkTopic of the client; a broker lets %RETRY% topics have 255
_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")  # TopicValidator.VALID_CHAR_BIT_MAP

# TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET: client and broker refuse these.
REFUSED_TOPICS = frozenset(
    (
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    )
)

# A broker would take a message to these, and then take it for its own bookkeeping: timer wheel, pop
# checkpoints, light queues. %RETRY% and %DLQ% stay allowed, as in RocketMQ: sending dead letters round again
# is an operator's daily work.
REFUSED_PREFIXES = ("rmq_sys_", "%LMQ%")

# MessageConst, without those that a client sets on an ordinary message (spec 2.5). Exact names:
# ORIGIN_COUNTRY is a user's.
NOT_WRITTEN_PROPERTIES = frozenset(
    (
        # retry and dead letters
        "RETRY_TOPIC",
        "ORIGIN_MESSAGE_ID",
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        # delay and timer
        "DELAY",
        "REAL_TOPIC",
        "REAL_QID",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_SEC",
        "TIMER_DELAY_MS",
        "TIMER_DELIVER_MS",
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_ROLL_LABEL",
        "TIMER_DEL_UNIQKEY",
        # transactions
        "TRAN_MSG",
        "PGROUP",
        "__transactionId__",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRANS_OFFSET",
        # pop
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "ORIGIN_GROUP",
        # a broker puts these messages into other queues than the producer says
        "_SYS_MSG_PRIORITY_",
        "__LITE_TOPIC",
        # the store's and the proxy's
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "DUP_INFO",
        "__CRC32#",
        "EXTEND_UNIQ_INFO",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "TRACE_CONTEXT",
        "MIN_OFFSET",
        "MAX_OFFSET",
    )
)


def topic_name(raw: bytes) -> str:
    """A topic that a client may send to. Raises IllegalMessageError, with the topic and what is wrong with
    it.
    """
    topic = decode_utf8(raw)
    shown = topic[:TOPIC_LENGTH_MAX]
    if not raw:
        raise IllegalMessageError("topic '': a topic has at least one character")
    if not _TOPIC.fullmatch(raw):
        raise IllegalMessageError(f"topic {shown!r}: only letters, digits, %, |, - and _ are allowed")
    if len(raw) > TOPIC_LENGTH_MAX:
        raise IllegalMessageError(
            f"topic {shown}…: {len(raw)} characters long, at most {TOPIC_LENGTH_MAX} are allowed"
        )
    if topic in REFUSED_TOPICS or topic.startswith(REFUSED_PREFIXES):
        raise IllegalMessageError(f"topic {topic}: it is RocketMQ's own, and only a broker writes to it")
    return topic
