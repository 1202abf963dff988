"""Where a group begins on a queue: at its committed offset, else by ConsumeFromWhere
(RebalancePushImpl.computePullFromWhere).

A committed offset is taken as it is, and where the queue no longer holds it that is a loss for others to
tell. A computed start is moved up to the queue's minimum without a word: nothing was promised below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.names import did_you_mean

__all__ = [
    "CONSUME_FROM_WHERE",
    "ConsumeFromWhere",
    "Start",
    "consume_from_where",
    "consume_timestamp_ms",
    "start_offset",
]

_UNKNOWN = -1
_FIELD = re.compile(r"[0-9]{13,14}", re.ASCII)


class ConsumeFromWhere(StrEnum):
    """What decides when nothing is committed."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


# The deprecated names all mean LAST, MIN_OFFSET too: RocketMQ reads them so.
CONSUME_FROM_WHERE = {
    "CONSUME_FROM_LAST_OFFSET": ConsumeFromWhere.LAST,
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFromWhere.FIRST,
    "CONSUME_FROM_TIMESTAMP": ConsumeFromWhere.TIMESTAMP,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFromWhere.LAST,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFromWhere.LAST,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFromWhere.LAST,
}


def consume_from_where(text: str) -> ConsumeFromWhere:
    """The option's text: a name of the enum, in any case. Raises OptionError with the nearest one."""
    found = CONSUME_FROM_WHERE.get(text.strip().upper())
    if found is not None:
        return found
    hint = did_you_mean(text, ConsumeFromWhere) or "write one of them"
    raise OptionError(
        f"consumeFromWhere: expected one of {', '.join(ConsumeFromWhere)}, found {text!r}; {hint}"
    )


def consume_timestamp_ms(text: str) -> int:
    """`consumeTimestamp`, yyyyMMddHHmmss in this machine's time zone, as the client's lenient
    SimpleDateFormat reads it.

    Thirteen digits are taken too (the last field has one), month 13 is the next January, and what follows the
    digits is not looked at.

    Raises OptionError for anything else, with the sentence a client would say.
    """
    match = _FIELD.match(text)
    error = OptionError(
        f"consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,but received {text}"
    )
    if match is None:
        raise error
    digits = match[0]
    year, month = int(digits[:4]), int(digits[4:6])
    day, hour, minute, second = (int(digits[i : i + 2]) for i in range(6, len(digits), 2))
    try:
        begin = datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)
        moment = begin + timedelta(days=day - 1, hours=hour, minutes=minute, seconds=second)
        return int(moment.timestamp()) * 1000
    except (ValueError, OverflowError) as cause:
        raise error from cause


@dataclass(frozen=True, slots=True)
class Start:
    """The first offset to read. `is_committed` says that the group had one; else `origin` is the rule that
    gave it.
    """

    offset: int
    origin: str
    is_committed: bool = False


def start_offset(
    committed: int | None,
    *,
    where: ConsumeFromWhere,
    min_offset: int,
    max_offset: int,
    offset_at: Callable[[], int],
    is_retry: bool = False,
    young_from_zero: bool = False,
) -> Start:
    """Where a group begins on a queue that holds [min_offset, max_offset).

    `committed` None or -1 is unknown. `offset_at` looks up the offset of consumeTimestamp (LOWER), and is
    asked only where it decides. `young_from_zero` (`consumeYoungQueueFromZero`): a queue from which nothing
    was deleted yet is read from its beginning, whatever `where` says. A broker answers so while message 0 is
    still in its page cache (ConsumerManageProcessor.queryConsumerOffset), which no file tells.

    Raises OffsetOutOfRangeError for an offset below -1, which a client takes for a failed query.
    """
    if committed is not None and committed >= 0:
        return Start(committed, "committed", is_committed=True)
    if committed is not None and committed < _UNKNOWN:
        raise OffsetOutOfRangeError(
            f"the committed offset {committed} is none: expected 0 or more, or -1; reset the group on this queue"
        )
    if young_from_zero and min_offset <= 0:
        return Start(max(min_offset, 0), "young queue")
    start, origin = _by_where(where, max_offset, offset_at, is_retry=is_retry)
    return Start(max(start, min_offset), origin)


def _by_where(
    where: ConsumeFromWhere, max_offset: int, offset_at: Callable[[], int], *, is_retry: bool
) -> tuple[int, str]:
    match where:
        case ConsumeFromWhere.FIRST:
            return 0, "first"
        case ConsumeFromWhere.LAST:
            return (0, "retry topic") if is_retry else (max_offset, "last")
        case ConsumeFromWhere.TIMESTAMP:
            # The end of a retry topic: so the client has it.
            return (max_offset, "retry topic") if is_retry else (offset_at(), "timestamp")
