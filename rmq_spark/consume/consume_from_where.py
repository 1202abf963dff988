"""Where a group starts to read a queue: at its committed offset, else by ConsumeFromWhere.

The rules are those of RebalancePushImpl.computePullFromWhere. A committed offset is returned unchanged; if
the queue no longer holds it, the caller reports the loss. A computed start below the queue's min offset is
raised to it silently, because no message below it was promised.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.names import did_you_mean

_UNKNOWN = -1
_FIELD = re.compile(r"[0-9]{13,14}", re.ASCII)


class ConsumeFromWhere(StrEnum):
    """The rule for a queue without a committed offset."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


# All deprecated names mean LAST in RocketMQ, also CONSUME_FROM_MIN_OFFSET.
CONSUME_FROM_WHERE = {
    "CONSUME_FROM_LAST_OFFSET": ConsumeFromWhere.LAST,
    "CONSUME_FROM_FIRST_OFFSET": ConsumeFromWhere.FIRST,
    "CONSUME_FROM_TIMESTAMP": ConsumeFromWhere.TIMESTAMP,
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST": ConsumeFromWhere.LAST,
    "CONSUME_FROM_MIN_OFFSET": ConsumeFromWhere.LAST,
    "CONSUME_FROM_MAX_OFFSET": ConsumeFromWhere.LAST,
}


def consume_from_where(text: str) -> ConsumeFromWhere:
    """The value of the option consumeFromWhere, in any case. Raises OptionError with the nearest name."""
    found = CONSUME_FROM_WHERE.get(text.strip().upper())
    if found is not None:
        return found
    hint = did_you_mean(text, ConsumeFromWhere) or "write one of them"
    raise OptionError(
        f"consumeFromWhere: expected one of {', '.join(ConsumeFromWhere)}, found {text!r}; {hint}"
    )


def consume_timestamp_ms(text: str) -> int:
    """The option consumeTimestamp, yyyyMMddHHmmss in this machine's time zone, in ms since the epoch.

    It is read as the client's lenient SimpleDateFormat does: thirteen digits are allowed (the last field has
    one), month 13 is the next January, and text after the digits is ignored. Raises OptionError for any other
    text, with the client's sentence.
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
    """The first offset to read, and `origin`, the rule that gave it. `is_committed`: the group had it."""

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
    """Where a group starts to read a queue that holds [min_offset, max_offset).

    `committed` None or -1 is unknown. `offset_at` looks up the offset of consumeTimestamp (LOWER) and is
    called only if that decides. `young_from_zero` (`consumeYoungQueueFromZero`): a queue from which nothing
    was deleted yet is read from offset 0, whatever `where` says. A broker does so while message 0 is still in
    its page cache (ConsumerManageProcessor.queryConsumerOffset), which no file shows.

    Raises OffsetOutOfRangeError for an offset below -1, which a client takes for a failed query.
    """
    if committed is not None and committed >= 0:
        return Start(committed, "committed", is_committed=True)
    if committed is not None and committed < _UNKNOWN:
        raise OffsetOutOfRangeError(
            f"committed offset: expected 0 or more, or -1 for none, found {committed}; reset the group on "
            "this queue"
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
            # RocketMQ's client starts a retry topic at its end here.
            return (max_offset, "retry topic") if is_retry else (offset_at(), "timestamp")
