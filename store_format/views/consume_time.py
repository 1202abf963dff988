"""The view `consumeTime`: how long each group's consumers worked on a message, from what clients traced.

Clients with enableMsgTrace write records to a trace topic: SubBefore when a consumer gets a message, SubAfter
when it is done (TraceDataEncoder). A trace message holds many records of text fields, and the first field
names the kind of the record, which decides the other fields. Anybody may write to the topic, so records that
cannot be read are counted and skipped, and memory is bounded: for the number of groups, for the open
requests, and for the times of a group.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from store_format.display.columns import BROKER, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.java.numbers import parse_long
from store_format.java.text import decode_utf8
from store_format.names import TRACE_PREFIXES
from store_format.read.store import Store
from store_format.views.view import View, read_queues

# ---- the records of the trace topic ------------------------------------------------------------------------


_FIELD, _RECORD = "\x01", "\x02"

# The fields after the first. Older clients leave out the last fields; newer clients may add fields.
_RECORDS = {
    "Pub": (
        "timestamp", "region", "group", "topic", "msgId", "tags", "keys", "storeHost", "bodyLength",
        "costTime",
        "msgType", "offsetMsgId", "success",
    ),
    "SubBefore": ("timestamp", "region", "group", "requestId", "msgId", "retryTimes", "keys"),
    "SubAfter": ("requestId", "msgId", "costTime", "success", "keys", "contextCode", "timestamp", "group"),
    "EndTransaction": (
        "timestamp", "region", "group", "topic", "msgId", "tags", "keys", "storeHost", "msgType",
        "transactionId", "state", "fromCheck",
    ),
    "Recall": ("timestamp", "region", "group", "topic", "msgId", "success"),
}  # fmt: skip
_WHAT = {
    "Pub": "traced: sent",
    "SubBefore": "traced: consumption began",
    "SubAfter": "traced: consumption ended",
    "EndTransaction": "traced: transaction ended",
    "Recall": "traced: recalled",
}
_SHOWN = ("storeHost", "retryTimes", "state", "fromCheck", "costTime", "success", "contextCode")


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One record: time, event, group, and the informative fields as `name=value`."""

    time_ms: int | None
    what: str
    group: str | None
    detail: str


def trace_events(body: bytes, message_ids: Collection[str | None]) -> Iterator[TraceEvent]:
    """The records about one of the ids. Other text is skipped, since any client may write to the topic."""
    for text in decode_utf8(body).split(_RECORD):
        kind, *values = text.split(_FIELD)
        names = _RECORDS.get(kind)
        if names is None:
            continue
        fields = {name: value for name, value in zip(names, values, strict=False) if value != "null"}
        if fields.get("msgId") in message_ids or fields.get("offsetMsgId", "") in message_ids:
            detail = ", ".join(f"{name}={fields[name]}" for name in _SHOWN if name in fields)
            yield TraceEvent(parse_long(fields.get("timestamp")), _WHAT[kind], fields.get("group"), detail)


def consume_records(body: bytes) -> Iterator[dict[str, str] | None]:
    """The records SubBefore and SubAfter of a trace message: their fields, and the `kind`.

    None for text that is no record of any kind. Records of producers are left out.
    """
    for text in decode_utf8(body).split(_RECORD):
        if not text:
            continue
        kind, *values = text.split(_FIELD)
        names = _RECORDS.get(kind)
        if names is None:
            yield None
        elif kind in ("SubBefore", "SubAfter"):
            fields = {name: value for name, value in zip(names, values, strict=False) if value != "null"}
            yield {**fields, "kind": kind}


# ---- the view ----------------------------------------------------------------------------------------------


CONSUME_TIME_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group; null for the row of the records that were skipped."),
    ViewColumn("began", LONG, "Messages that consumers of the group got (records SubBefore)."),
    ViewColumn("consumed", LONG, "Messages that consumers of the group finished (records SubAfter)."),
    ViewColumn("failed", LONG, "Of them those that failed."),
    ViewColumn("retried", LONG, "Messages that consumers got again: `retryTimes` above 0."),
    ViewColumn("p50Ms", LONG, "Half of the finished messages took at most so long, in ms (costTime)."),
    ViewColumn("p99Ms", LONG, "99 % of the finished messages took at most so long, in ms."),
    ViewColumn("maxMs", LONG, "The longest time, in ms."),
    ViewColumn("firstTimestamp", TIME, "When the first traced message began, by the client's clock."),
    ViewColumn("lastTimestamp", TIME, "When the last traced message began or ended."),
    ViewColumn("skipped", LONG, "Records that cannot be read, or have no group; in the row without group."),
)

_GROUPS_MAX = 10_000
_REQUESTS_MAX = 100_000  # SubAfter of old and of cloud clients names no group, only the request
_EXACT_BITS = 10  # times are exact below 1024 ms, and within 0.2 % above
_TIME_MAX_MS = 2**31 - 1  # costTime is a Java int


@dataclass(slots=True)
class _Group:
    began: int = 0
    consumed: int = 0
    failed: int = 0
    retried: int = 0
    longest: int | None = None
    first: int | None = None
    last: int | None = None
    times: Counter[int] = field(default_factory=Counter)  # by `_bucket`

    def saw(self, timestamp: int | None) -> None:
        if timestamp is not None:
            self.first = timestamp if self.first is None else min(self.first, timestamp)
            self.last = timestamp if self.last is None else max(self.last, timestamp)

    def took(self, cost: int) -> None:
        self.times[_bucket(cost)] += 1
        self.longest = cost if self.longest is None else max(self.longest, cost)

    def percentile(self, percent: int) -> int | None:
        """The smallest time that so many percent of the messages did not exceed."""
        left = -(-sum(self.times.values()) * percent // 100)
        for bucket in sorted(self.times):
            left -= self.times[bucket]
            if left <= 0:
                return bucket
        return None


def _bucket(cost: int) -> int:
    """The time with its first 10 bits: at most 23,000 buckets for all times of a group.

    >>> _bucket(1000), _bucket(1025), _bucket(1_000_000)
    (1000, 1024, 999424)
    """
    shift = max(cost.bit_length() - _EXACT_BITS, 0)
    return cost >> shift << shift


@dataclass(slots=True)
class ConsumeTimes:
    """The sums by group, and the records that were skipped."""

    groups: dict[str, _Group] = field(default_factory=dict)
    skipped: int = 0
    requests: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def add(self, records: Iterable[dict[str, str] | None]) -> None:
        """Takes in records of `consume_records`, in the order of the trace topic."""
        for record in records:
            if record is None or not self._add(record):
                self.skipped += 1

    def _add(self, record: dict[str, str]) -> bool:
        name = record.get("group") or self.requests.get(record.get("requestId", ""))
        timestamp = parse_long(record.get("timestamp"))
        if not name or (record["kind"] == "SubBefore" and timestamp is None):
            return False
        group = self.groups.get(name)
        if group is None:
            if len(self.groups) >= _GROUPS_MAX:
                return False
            group = self.groups[name] = _Group()
        if record["kind"] == "SubBefore":
            group.saw(timestamp)
            group.began += 1
            group.retried += (parse_long(record.get("retryTimes")) or 0) > 0
            self._remember(record.get("requestId", ""), name)
            return True
        cost = parse_long(record.get("costTime"))
        success = record.get("success")
        if cost is None or not 0 <= cost <= _TIME_MAX_MS or success not in ("true", "false"):
            return False
        group.saw(timestamp)
        group.consumed += 1
        group.failed += success == "false"
        group.took(cost)
        return True

    def _remember(self, request: str, group: str) -> None:
        if request:
            self.requests[request] = group
            self.requests.move_to_end(request)
            if len(self.requests) > _REQUESTS_MAX:
                self.requests.popitem(last=False)


def consume_time(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row a group, and one without group if records were skipped."""
    return batches_of(CONSUME_TIME_COLUMNS, _consume_time_rows(store))


def _consume_time_rows(store: Store) -> Iterator[tuple[object, ...]]:
    found = ConsumeTimes()
    for batch in read_queues(store.queues(lambda topic: topic.startswith(TRACE_PREFIXES)), ("body",)):
        for body in batch.column("body"):
            found.add(consume_records(body.as_py() or b""))
    for name in sorted(found.groups):
        each = found.groups[name]
        yield (
            store.broker_name, name, each.began, each.consumed, each.failed, each.retried,
            each.percentile(50), each.percentile(99), each.longest,
            time_us(each.first), time_us(each.last), None,
        )  # fmt: skip
    if found.skipped:
        yield (store.broker_name, *[None] * (len(CONSUME_TIME_COLUMNS) - 2), found.skipped)


VIEW = View(
    "consumeTime",
    "How long each group's consumers worked on a message, and how many failed, from the clients' trace.",
    CONSUME_TIME_COLUMNS,
    consume_time,
)
