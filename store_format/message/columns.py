"""The columns of messages, and what a caller may select and filter. `decode.py` makes the record batches.

`COLUMNS` maps every built-in column to its Arrow type; its names are those of MessageExt. Any other name is
the name of a property.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import pyarrow as pa

from store_format.errors import OptionError
from store_format.message.properties import WORDS_TYPE
from store_format.names import QueueKey

TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")
_STRING = pa.string()

COLUMNS: dict[str, pa.DataType] = {
    "topic": _STRING,
    "flag": pa.int32(),
    "body": pa.binary(),
    "properties": pa.map_(_STRING, _STRING),
    "brokerName": _STRING,
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "bornTimestamp": TIMESTAMP_TYPE,
    "storeTimestamp": TIMESTAMP_TYPE,
    "tags": _STRING,
    "keys": WORDS_TYPE,
    "msgId": _STRING,
    "bornTimestampMs": pa.int64(),
    "storeTimestampMs": pa.int64(),
    "offsetMsgId": _STRING,
    "bornHost": _STRING,
    "storeHost": _STRING,
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "storeSize": pa.int32(),
    "tagsCode": pa.int64(),
    "storedTopic": _STRING,
    "rawBody": pa.binary(),
    "logicalQueueId": pa.int32(),
    "logicalQueueOffset": pa.int64(),
    "_corrupt_record": _STRING,
}
DEFAULT_COLUMNS = tuple(COLUMNS)[:12]
LOGICAL_COLUMNS = ("logicalQueueId", "logicalQueueOffset")

BODY_SIZE_MAX = 64 << 20  # a decompressed body: sixteen times the default maxMessageSize


class LogicalRange(NamedTuple):
    """The offsets [start, stop) of a broker's queue, whose messages are in the logical queue `queue_id`.

    The message at `start` has the logical `offset`; None while no broker has decided it. `moved_to` is the
    broker that has the logical queue now, if that is another one.
    """

    queue: QueueKey
    start: int
    stop: int
    queue_id: int
    offset: int | None
    moved_to: str = ""


class PropertyFilter(Protocol):
    """Selects messages by their properties."""

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        """Returns which of `count` messages to keep; `values(name)` is a property of each, null if absent."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Which columns to build, in order, and which messages to keep. Plain values: Spark sends them to tasks.

    A name outside COLUMNS is a property. `tags` keeps messages whose TAGS is one of these (after the filter
    by tags code), `key` those with this word in KEYS or as UNIQ_KEY, `message_id` the message with this
    UNIQ_KEY or offset message id, `where` the messages that it selects. With `group` the `topic` of a delayed
    message, and of a message that the group retries, is the topic that it was sent to. `logical` are the
    ranges of static topics, for the columns `logicalQueueId` and `logicalQueueOffset`.
    """

    names: tuple[str, ...] = DEFAULT_COLUMNS
    verify_crc: bool = True
    body_size_max: int = BODY_SIZE_MAX
    tags: frozenset[str] | None = None
    key: str | None = None
    message_id: str | None = None
    where: PropertyFilter | None = None
    group: str | None = None
    logical: tuple[LogicalRange, ...] = ()

    @property
    def wants_logical(self) -> bool:
        return not set(LOGICAL_COLUMNS).isdisjoint(self.names)

    @property
    def filters(self) -> bool:
        return any(wish is not None for wish in (self.tags, self.key, self.message_id, self.where))


def decode_options_of(columns: Sequence[str], verify_crc: bool) -> DecodeOptions:
    """The options for these columns. Raises OptionError for a name that is no column."""
    if isinstance(columns, str):
        raise OptionError(f"columns: expected a list of columns, found {columns!r}")
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise OptionError(f"unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    return DecodeOptions(tuple(columns), verify_crc, BODY_SIZE_MAX)


def arrow_schema(names: Collection[str]) -> pa.Schema:
    """Returns the schema of batches with these columns; every field is nullable, as in Spark."""
    return _schema(tuple(names))


@lru_cache(maxsize=64)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, COLUMNS.get(name, _STRING)) for name in names])
