"""Which topics a write refuses: invalid names, and topics that only a broker writes to."""

from __future__ import annotations

import re

from store_format.errors import IllegalMessageError
from store_format.java.text import decode_utf8
from store_format.names import LMQ_PREFIX, NOT_ALLOWED_SEND_TOPICS, SYSTEM_PREFIX

TOPIC_LENGTH_MAX = 127  # Validators.checkTopic of the client; a broker lets %RETRY% topics have 255
_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")  # TopicValidator.VALID_CHAR_BIT_MAP


# A broker accepts a message to these topics and then treats it as its own bookkeeping: timer wheel, pop
# checkpoints, light queues. %RETRY% and %DLQ% are allowed, as in RocketMQ: operators resend dead letters.
REFUSED_PREFIXES = (SYSTEM_PREFIX, LMQ_PREFIX)


def topic_name(raw: bytes) -> str:
    """The name of a topic that a client may send to; raises IllegalMessageError for any other."""
    topic = decode_utf8(raw)
    shown = topic[:TOPIC_LENGTH_MAX]
    if not raw:
        raise IllegalMessageError("topic: expected at least one character, found none")
    if not _TOPIC.fullmatch(raw):
        raise IllegalMessageError(f"topic: expected letters, digits, %, |, - and _, found {shown!r}")
    if len(raw) > TOPIC_LENGTH_MAX:
        raise IllegalMessageError(
            f"topic {shown}…: expected at most {TOPIC_LENGTH_MAX} characters, found {len(raw)}"
        )
    if topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(REFUSED_PREFIXES):
        raise IllegalMessageError(f"topic {topic}: it is RocketMQ's own, and only a broker writes to it")
    return topic
