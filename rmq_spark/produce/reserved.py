"""Which topics a write refuses: names that are no topic's, and the topics that only a broker writes to."""

from __future__ import annotations

import re

from store_format.errors import IllegalMessageError
from store_format.java.text import decode_utf8
from store_format.names import LMQ_PREFIX, NOT_ALLOWED_SEND_TOPICS, SYSTEM_PREFIX

TOPIC_LENGTH_MAX = 127  # Validators.checkTopic of the client; a broker lets %RETRY% topics have 255
_TOPIC = re.compile(rb"[%|a-zA-Z0-9_-]+")  # TopicValidator.VALID_CHAR_BIT_MAP


# A broker would take a message to these, and then take it for its own bookkeeping: timer wheel, pop
# checkpoints, light queues. %RETRY% and %DLQ% stay allowed, as in RocketMQ: sending dead letters round again
# is an operator's daily work.
REFUSED_PREFIXES = (SYSTEM_PREFIX, LMQ_PREFIX)


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
    if topic in NOT_ALLOWED_SEND_TOPICS or topic.startswith(REFUSED_PREFIXES):
        raise IllegalMessageError(f"topic {topic}: it is RocketMQ's own, and only a broker writes to it")
    return topic
