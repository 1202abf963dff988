"""The rules of a RocketMQ consumer: names of groups, clients and queues, their orders, which messages of a
topic it reads, and where its group starts.

The orders of queues and clients compare UTF-16 code units, as String.compareTo does. The members of a group
allocate the same queues to the same clients only because all of them sort both lists in this way.

TAG expressions are parsed by the rules of FilterAPI.buildSubscriptionData. A tag is matched twice: the reader
of the queue compares its hash with the consume queue entry, which may let other tags through; then the TAGS
property of the message decides.

A group starts at its committed offset, else by ConsumeFromWhere (RebalancePushImpl.computePullFromWhere). A
committed offset is returned unchanged; if the queue no longer holds it, the caller reports the loss. A
computed start below the queue's min offset is raised to it silently, because no message below it was
promised.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from store_format.display.text import shown
from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.java.text import utf16_key
from store_format.names import did_you_mean
from store_format.opened.store import Opened

if TYPE_CHECKING:
    from rmq_spark.consume.sql92 import Sql92Filter
    from store_format.metadata.values import SubscriptionGroup
    from store_format.read.store import Queue

_log = logging.getLogger(__name__)

CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"

# TopicValidator's table, and Validators.CHARACTER_MAX_LENGTH
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}", re.ASCII)
_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_NAME_BYTES_MAX = 255  # of a directory: a BROADCASTING client's offsets are in a directory with its id

# Here, because each Python process of Spark parses the options, and few allocate queues or write offsets.
OFFSET_STORES = ("store", "local", "none")
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONSISTENT_HASH")

Tags: TypeAlias = frozenset[str] | None  # None matches all messages

_ALL = "*"
_SEPARATOR = "||"
_JAVA_TRIM = "".join(map(chr, range(0x21)))  # String.trim: up to U+0020, so a full-width space stays
_IN_CONDITIONS = re.compile(r"""[\s=<>'"()]""")  # hardly in a tag

_UNKNOWN = -1
_FIELD = re.compile(r"[0-9]{13,14}", re.ASCII)


# ---- names -------------------------------------------------------------------------------------------------


def check_group(group: str) -> str:
    """Returns the name, which is then safe as the name of a directory.

    Raises OptionError for a name that RocketMQ does not allow (Validators.checkGroup).
    """
    if not _GROUP.fullmatch(group):
        raise OptionError(
            f"group: expected 1 to 255 letters, digits and any of % | - _, found {group[:100]!r}"
        )
    return group


def is_own(text: str) -> bool:
    """Whether the text names code of the user, `package.module:name` (`own_code`)."""
    return _OWN.fullmatch(text) is not None


def check_client_id(client_id: str) -> str:
    """Returns the id. Raises OptionError for an id that cannot be the name of a directory."""
    if not client_id or client_id in (".", "..") or not client_id.isprintable() or "/" in client_id:
        raise OptionError(
            f"clientId: expected a name without slashes and control characters, found {client_id[:100]!r}"
        )
    if len(client_id.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
        raise OptionError(f"clientId: expected at most {_NAME_BYTES_MAX} bytes, found {client_id[:100]!r}…")
    return client_id


def default_client_id(message_model: str, *, process_id: int, now_ns: int) -> str:
    """`ip@pid#nanos`, new at each start; for BROADCASTING `ip@DEFAULT`, which finds its offsets again.

    ClientConfig.changeInstanceNameToPID.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    return f"{address}@{'DEFAULT' if message_model == BROADCASTING else f'{process_id}#{now_ns}'}"


def client_ids(client_id: str, consumers: int) -> list[str]:
    """The ids of a query's logical clients: `client_id` for one client, else with `@` and their numbers.

    RocketMQ has a client's unit name in the place of the number.

    >>> client_ids("10.0.0.7@4711#1", 2)
    ['10.0.0.7@4711#1@0', '10.0.0.7@4711#1@1']
    """
    return [client_id] if consumers == 1 else [f"{client_id}@{number}" for number in range(consumers)]


# ---- whether a group may consume ---------------------------------------------------------------------------


def consuming_group(root: str, name: str, *, is_broadcasting: bool = False) -> SubscriptionGroup:
    """The group in subscriptionGroup.json of the store at `root`, with the defaults if it is not there.

    Raises OptionError if the group may not consume: a broker answers NO_PERMISSION (PullMessageProcessor,
    PopMessageProcessor).
    """
    # Here, because commands and tasks import this module for its names only.
    from store_format.metadata.read import read_subscription_groups
    from store_format.metadata.values import SubscriptionGroup

    groups: Mapping[str, SubscriptionGroup] = read_subscription_groups(Opened(root)) or {}
    group = groups.get(name, SubscriptionGroup(name))
    if not group.consume_enable:
        raise _refusal(root, name, "that may consume", "consumeEnable=false", "-s true")
    if is_broadcasting and not group.consume_broadcast_enable:
        raise _refusal(root, name, "that may consume BROADCASTING", "consumeBroadcastEnable=false", "-d true")
    return group


def _refusal(root: str, name: str, expected: str, found: str, argument: str) -> OptionError:
    return OptionError(
        f"{root}: group {name}: expected a group {expected}, found {found} in subscriptionGroup.json; "
        f"change it with mqadmin updateSubGroup {argument}"
    )


# ---- queues, and the orders of queues and clients ----------------------------------------------------------


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker: RocketMQ's partition. Equal to the plain tuple of its fields.

    Plain comparison (`<`) is by Unicode code points; `sort_queues` has the order of RocketMQ's clients.
    """

    topic: str
    broker_name: str
    queue_id: int

    @staticmethod
    def of(queue: Queue) -> MessageQueue:
        return MessageQueue(queue.topic, queue.store.broker_name, queue.queue_id)

    def __str__(self) -> str:
        """The text in errors and log lines, escaped: `Orders-0 of broker-a`."""
        return shown(f"{self.topic}-{self.queue_id} of {self.broker_name}")

    @staticmethod
    def given(queue: object) -> MessageQueue:
        """A queue that a user gave, maybe as a plain tuple. Raises OptionError for what is no queue."""
        if isinstance(queue, tuple) and len(queue) == 3:
            return MessageQueue(*queue)
        raise OptionError(f"expected a queue as (topic, broker name, queue id), found {queue!r}")

    def java_text(self) -> str:
        """MessageQueue.toString, which CONSISTENT_HASH hashes."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"

    def sort_key(self) -> tuple[bytes, bytes, int]:
        """MessageQueue.compareTo."""
        return utf16_key(self.topic), utf16_key(self.broker_name), self.queue_id


def offset_limits(queue: Queue | None) -> tuple[int, int]:
    """(min offset, max offset) of a queue; (0, 0) for None, a queue without a message."""
    return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def sort_queues(queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """The queues in the order in which RebalanceImpl.rebalanceByTopic passes `mqAll` to a strategy."""
    return sorted(queues, key=MessageQueue.sort_key)


def sort_clients(client_ids: Iterable[str]) -> list[str]:
    """The client ids (`cidAll`) in the order that every member of a group uses."""
    return sorted(client_ids, key=utf16_key)


# ---- which messages ----------------------------------------------------------------------------------------


def parse_subscription(expression_type: str, expression: str | None) -> tuple[Tags, Sql92Filter | None]:
    """The tags and the condition of the options `expressionType` (TAG or SQL92) and `subExpression`.

    Raises OptionError for an expression that RocketMQ's client or broker refuses. Warns of tags that look
    like a condition.
    """
    if expression_type == "TAG":
        tags = parse_tags(expression)
        _warn_of_condition(tags)
        return tags, None
    if expression is None:
        raise OptionError(
            "subExpression: expected a condition such as price > 3 for expressionType=SQL92, found none; "
            "set subExpression, or leave expressionType out"
        )
    from rmq_spark.consume.sql92 import parse_sql92

    return None, parse_sql92(expression)


@lru_cache(maxsize=64)  # a query parses its options several times
def _warn_of_condition(tags: Tags) -> None:
    """FilterAPI accepts any text as a tag, so `region = 'north'` is no error and matches no message."""
    meant = min((tag for tag in tags or () if _IN_CONDITIONS.search(tag)), default=None)
    if meant is not None:
        _log.warning(
            "subExpression: %s is read as a tag, and looks like a SQL92 condition; for a condition, set "
            "expressionType=SQL92",
            shown(meant),
        )


def parse_tags(expression: str | None) -> Tags:
    """Parses tags between `||`, trimmed, without empty ones.

    `*`, an empty text or None matches all messages: the result is None.

    >>> sorted(parse_tags("TagA || TagB ||") or ())
    ['TagA', 'TagB']

    `*` is a wildcard only if it is the whole text: `* || TagA` and ` * ` name a tag `*`, as in RocketMQ.
    Raises OptionError if no tag is left: RocketMQ refuses `||` too; of a blank expression its broker matches
    nothing and its client everything.
    """
    if not expression or expression == _ALL:
        return None
    tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip(_JAVA_TRIM)))
    if not tags:
        raise OptionError(
            f"subExpression: expected tags such as TagA || TagB, found {expression!r}, which names no tag; "
            "use * for all messages"
        )
    return tags


# ---- where a group starts ----------------------------------------------------------------------------------


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
