"""What a check does with a half message, and when (TransactionalMessageServiceImpl, spec 7.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from rmq_spark.produce.half import check_times
from rmq_spark.services.service import Now
from store_format.java.numbers import parse_long
from store_format.message.stored import StoredMessages
from store_format.metadata.broker_conf import BrokerConf
from store_format.names import CHECK_IMMUNITY_TIME


class Act(Enum):
    """What a check does with a half message."""

    ASK = "ask"
    IMMUNE = "immune"  # stored again without a question
    DISCARD = "discard"  # checked too often
    EXPIRE = "expire"  # too old


@dataclass(frozen=True, slots=True)
class Facts:
    """What a check looks at in a half message; times in ms."""

    queue_offset: int
    born: int
    stored: int
    check_times: int
    immunity: str | None


def facts_of(halves: StoredMessages) -> list[Facts]:
    (immunity,) = halves.properties(CHECK_IMMUNITY_TIME)
    return [
        Facts(*each)
        for each in zip(
            halves.queue_offsets.tolist(),
            np.asarray(halves.messages.born_timestamp).tolist(),
            halves.store_timestamps.tolist(),
            check_times(halves),
            immunity.to_pylist(),
            strict=True,
        )
    ]


def act_of(facts: Facts, now: Now) -> tuple[Act, int]:
    """(what to do with a message whose transaction is pending, when that is due in ms).

    A broker checks every transactionCheckInterval; here a copy that a check has stored waits that long.
    """
    conf = now.conf
    again = facts.stored + conf.transaction_check_interval_ms if facts.check_times > 0 else 0
    if again > now.ms:
        return Act.ASK, again
    if facts.check_times >= conf.transaction_check_max:
        return Act.DISCARD, again
    expires = facts.born + conf.file_reserved_hours * 3_600_000
    if now.ms > expires:
        return Act.EXPIRE, max(expires, again)
    if facts.stored >= now.ms:
        return Act.ASK, facts.stored + 1
    age = now.ms - facts.born
    if facts.immunity is None:
        due = facts.born + conf.transaction_timeout_ms
        return Act.ASK, max(due, again) if age >= 0 else facts.stored
    due = facts.born + _immunity_ms(facts.immunity, conf)
    return (Act.IMMUNE, again or now.ms) if now.ms < due else (Act.ASK, max(due, again))


def _immunity_ms(text: str, conf: BrokerConf) -> int:
    """TransactionalMessageServiceImpl.getImmunityTime."""
    seconds = parse_long(text)
    return conf.transaction_timeout_ms if seconds is None or seconds == -1 else seconds * 1000


def op_stop(start: int, ops: Sequence[tuple[int, list[int]]], half_stop: int) -> int:
    """The offset after the op messages from `start` on that list only passed half messages.

    TransactionalMessageServiceImpl.calculateOpOffset.
    """
    stop = start
    for offset, listed in ops:
        if offset != stop or any(each >= half_stop for each in listed):
            break
        stop += 1
    return stop
