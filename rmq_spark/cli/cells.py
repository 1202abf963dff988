"""How values and columns look: cells of a table, values for JSON and CSV, times in a zone, titles, colours.

Values are those of `plain_rows`. Bytes become base64, as in Spark's `to_json`, or text, or the JSON value
that they spell; maps become objects. The name of a column decides how it looks in a table, because all
commands use the names of the views: its unit, short title and colour, and what gives way first on a narrow
terminal.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING

from store_format.display.rows import Row, plain_rows
from store_format.display.text import body_text, shown
from store_format.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa

# ---- values ------------------------------------------------------------------------------------------------

BODY_CHARACTERS = 40  # with the note of the size, as many as fit a cell
_TEXT_CHARACTERS = 200  # a longer value is cut, with a note
BODY_FORMS = ("base64", "text", "json")
_BRACKETS_MAX = 500  # opening brackets of a body that is nested: Python's json fails near 1000 levels


def json_value(value: object, *, bodies: str) -> object:
    """A value for JSON. `bodies`, of BODY_FORMS, is the form of bytes."""
    if not isinstance(value, bytes):
        return value
    if bodies == "json":
        return _nested(value)
    return value.decode("utf-8", "replace") if bodies == "text" else base64.b64encode(value).decode()


def _nested(body: bytes) -> object:
    """The value of a JSON body; another body as text, and one that is not UTF-8 as {"base64": …}.

    A body whose numbers would change stays text.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    try:
        if body.count(b"{") + body.count(b"[") > _BRACKETS_MAX and _depth(text) > _BRACKETS_MAX:
            return text
        return json.loads(text, parse_float=_exact, parse_constant=_exact)
    except ValueError:
        return text


def _depth(text: str) -> int:
    """The largest number of open brackets; brackets within strings count, too."""
    depth = most = 0
    for character in text:
        if character in "{[":
            depth += 1
            most = max(most, depth)
        elif character in "}]":
            depth -= 1
    return most


def _exact(text: str) -> float:
    """A number of a body. ValueError for NaN, Infinity and 1e999, which are no JSON that another program
    reads, and for digits that a double loses, such as those of 12345678901234567.89.
    """
    from decimal import Decimal  # 1 ms that few runs need

    number = float(text)
    if not math.isfinite(number) or Decimal(repr(number)) != Decimal(text):
        raise ValueError(f"{text} is no number of JSON that a double holds")
    return number


def csv_value(value: object, *, bodies: str) -> object:
    """A value for CSV: null is empty, lists and maps are JSON."""
    value = json_value(value, bodies=bodies)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


def cell(value: object, characters_max: int = BODY_CHARACTERS) -> str:
    """A value as text for a terminal: one line, no control characters, cut with a note if it is long."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return body_text(value, characters_max)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return _cut_text(" ".join(f"{name}={text}" for name, text in value.items()))
    return _cut_text(" ".join(map(str, value))) if isinstance(value, list | tuple) else _cut_text(str(value))


def _cut_text(text: str) -> str:
    if len(text) <= _TEXT_CHARACTERS:
        return shown(text)
    return f"{shown(text[:_TEXT_CHARACTERS])}… ({len(text):,} characters)"


# ---- times in a time zone ----------------------------------------------------------------------------------


_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone; `place` None means that of this machine."""

    place: tzinfo | None

    def moment(self, iso: str) -> datetime | None:
        """A time of `plain_rows` in this zone; None if the calendar has no such time."""
        try:
            return datetime.fromisoformat(iso).astimezone(self.place)
        except (ValueError, OverflowError, OSError):
            return None

    def full(self, iso: str) -> str:
        """ISO 8601 with the offset of the zone; `Z` for UTC.

        >>> Zone(timezone(timedelta(hours=8))).full("2026-11-21T06:52:34.605Z")
        '2026-11-21T14:52:34.605+08:00'
        """
        if self.place is UTC:  # as `plain_rows` has it: saves 10 % of the time of a long listing
            return iso
        moment = self.moment(iso)
        return iso if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def aware(self, clock: datetime) -> datetime:
        """A moment that a person typed without a zone, in this zone.

        Raises ValueError, with both moments as a person can type them, if a clock of this zone never shows
        that time, or shows it twice, because the clock is put forward or back.
        """
        found = [
            (
                clock.replace(fold=fold).astimezone()
                if self.place is None
                else clock.replace(tzinfo=self.place, fold=fold)
            )
            for fold in (0, 1)
        ]
        offsets = [moment.utcoffset() or timedelta() for moment in found]
        if offsets[0] == offsets[1]:
            return found[0]
        first, second = (
            clock.replace(tzinfo=timezone(offset)).isoformat() for offset in sorted(offsets, reverse=True)
        )
        shows = "shows this time twice" if offsets[0] > offsets[1] else "does not show this time"
        raise ValueError(f"the clock {shows}: type {first} or {second}")

    def label(self, moment: datetime) -> str:
        """The zone at a moment, such as `UTC+08:00`."""
        offset = moment.strftime("%z")
        return "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"


UTC_ZONE = Zone(UTC)


def zone_of(name: str | None, *, to_terminal: bool) -> Zone:
    """The zone of `--tz`; without it that of this machine on a terminal, and UTC elsewhere."""
    if name is None:
        return Zone(None) if to_terminal else UTC_ZONE
    if name.lower() in ("local", "utc", "z"):
        return Zone(None) if name.lower() == "local" else UTC_ZONE
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3])
        if minutes < 24 * 60:
            return Zone(timezone(timedelta(minutes=-minutes if offset[1] == "-" else minutes)))
    from zoneinfo import ZoneInfo  # 10 ms that few runs need

    try:
        return Zone(ZoneInfo(name))
    except (ValueError, OSError, LookupError) as error:
        raise OptionError(
            f"--tz: unknown time zone {name!r}; expected local, UTC, an offset such as +08:00, or a name "
            "such as Asia/Shanghai"
        ) from error


def time_columns(batch: pa.RecordBatch) -> frozenset[str]:
    """The names of the columns with times."""
    import pyarrow as pa

    return frozenset(field.name for field in batch.schema if pa.types.is_timestamp(field.type))


def zoned_rows(batch: pa.RecordBatch, zone: Zone) -> Iterator[Row]:
    """The rows of `plain_rows`, with the times in the zone."""
    times = () if zone.place is UTC else time_columns(batch)
    for row in plain_rows(batch):
        for name in times:
            if row[name] is not None:
                row[name] = zone.full(row[name])
        yield row


# ---- how columns look --------------------------------------------------------------------------------------


# Short titles on a terminal; `--columns` and `--sort` take them, too. JSON has the full names.
TITLES = {
    "brokerName": "broker",
    "queueId": "queue",
    "queueOffset": "offset",
    "physicalOffset": "position",
    "storeTimestamp": "stored",
    "bornTimestamp": "born",
    "committedOffset": "offset",
    "minOffset": "begin",
    "maxOffset": "end",
    "lagMessages": "lag",
    "lagBytes": "bytes",
    "lagMs": "age",
    "ageMs": "age",
    "lostMessages": "lost",
    "nextLostMessages": "next loss",
    "expiresTimestamp": "expires",
    "expiresInMs": "expires",
    "deletionTimestamp": "deleted",
    "readyMessages": "ready",
    "inFlightMessages": "in flight",
    "oldestPopTimestamp": "oldest pop",
    "popTimestamp": "popped",
    "visibleTimestamp": "visible",
    "deliveryAttempt": "attempt",
    "deadLetters": "dead letters",
    "consumeEnable": "enabled",
    "queueType": "type",
    "firstStoreTimestamp": "first",
    "lastStoreTimestamp": "last",
    "dueTimestamp": "due",
    "delayLevel": "level",
    "decidedTimestamp": "decided",
    "originTopic": "origin",
    "targetTopic": "target",
    "reconsumeTimes": "tries",
    "checkTimes": "checks",
    "producerGroup": "group",
    "sizeBytes": "size",
    "usedBytes": "used",
    "diskBytes": "disk",
    "addressA": "in A",
    "addressB": "in B",
}


def column_of(name: str, known: Iterable[str], preferred: Collection[str] = ()) -> str | None:
    """The column that a person means: its name, or its title, in any case and with or without its blanks.

    Of several columns with one title, that among the `preferred`. None for an unknown name.

    >>> column_of("LAG", ["lagMs", "lagMessages"]), column_of("next-loss", ["nextLostMessages"])
    ('lagMessages', 'nextLostMessages')
    """
    plain = _plain(name)
    named = [column for column in known if _plain(column) == plain]
    titled = [column for column in known if _plain(TITLES.get(column, column)) == plain]
    found = named or [column for column in titled if column in preferred] or titled
    return found[0] if found else None


def _plain(name: str) -> str:
    return name.lower().translate(_BLANKS)


_BLANKS = str.maketrans("", "", " -_")

# Text that may be cut, with the columns that each keeps at least.
FLEXIBLE = {
    "body": 12,
    "rawBody": 12,
    "properties": 12,
    "detail": 12,
    "reason": 12,
    "keys": 8,
    "tags": 6,
    "advice": 16,
    "expected": 12,
    "found": 12,
    "meaning": 12,
    "owner": 8,
    "fields": 8,
}

# Text with a middle that may be left out: see `short_id` and `short_file`.
IDS = frozenset(("msgId", "id", "uniqKey", "offsetMsgId"))
FILES = frozenset(("file",))

# Left out on a terminal where all rows have one value.
CONSTANT = frozenset(
    ("brokerName", "perm", "queueType", "configured", "consumeEnable", "source", "deliveryAttempt")
)

# What a narrow terminal goes without, the first first: some columns before free text gets less than twice its
# least room, some after it. `--wide` and `--columns` keep them.
LEFT_OUT_FIRST = (
    "source",
    "owner",
    "perm",
    "queueType",
    "configured",
    "consumeEnable",
    "diskBytes",
    "usedBytes",
    "physicalOffset",
    "minOffset",
    "decidedTimestamp",
    "checkTimes",
)
LEFT_OUT_LAST = (
    "firstStoreTimestamp",
    "reconsumeTimes",
    "lagBytes",
    "delayLevel",
    "oldestPopTimestamp",
    "readyMessages",
    "deliveryAttempt",
    "tags",
    "keys",
    "topics",
    "queues",
    "bytes",
    "fill",
    "entries",
    "start",
    "stop",
    "file",
    "detail",
    "expiresInMs",
    "inFlightMessages",
)

RED, YELLOW, BOLD, DIM = "31", "33", "1", "2"
_ALARMS = {
    "lostMessages": RED,
    "nextLostMessages": RED,
    "lagMessages": YELLOW,
    "deadLetters": YELLOW,
    "failures": RED,
    "failed": YELLOW,
}
_ALARMING_WORDS = {
    ("state", "crashed"): RED,
    ("severity", "damage"): RED,
    ("severity", "warning"): YELLOW,
    ("what", "dead letter"): RED,
}

_ID_HEAD, _ID_TAIL = 4, 12


def colour_of(name: str, value: object) -> str:
    """The code of the colour of a value: damage and loss are red, lag is yellow; "" for all others."""
    if isinstance(value, str):
        return _ALARMING_WORDS.get((name, value), "")
    return _ALARMS.get(name, "") if isinstance(value, int) and value > 0 else ""


def painted(text: str, colour: str) -> str:
    """The text in a colour of the terminal; without a colour as it is."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and text else text


def short_id(text: str) -> str:
    """An id without its middle: the end has the time and the counter of the client, or the position.

    >>> short_id("7F00000129765FFD2B2768793AFE0009")
    '7F00…68793AFE0009'
    """
    short = len(text) > _ID_HEAD + 1 + _ID_TAIL and text.isascii()
    return f"{text[:_ID_HEAD]}…{text[-_ID_TAIL:]}" if short else text


def short_file(path: str) -> str:
    """A path without the leading zeros of a file name of 20 digits. Different files keep different names.

    >>> short_file("commitlog/00000000000000196608")
    'commitlog/…196608'
    """
    directory, slash, name = path.rpartition("/")
    is_numbered = len(name) == 20 and name.isascii() and name.isdecimal()
    return f"{directory}{slash}…{int(name)}" if is_numbered and name[:2] == "00" else path


def are_told_apart(ids: Collection[str]) -> bool:
    """Whether different ids stay different without their middle."""
    distinct = set(ids)
    return len({short_id(text) for text in distinct}) == len(distinct)
