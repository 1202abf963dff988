"""The trace topic's records: which client sent or consumed a message, and when (TraceDataEncoder).

A trace message holds many records of text fields. The first field names the kind of the record, which
decides the other fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from store_format.java.numbers import parse_long
from store_format.java.text import decode_utf8

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
