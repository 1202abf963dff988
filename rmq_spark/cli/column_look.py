"""How columns look in a table: unit, short title, colour, and what gives way first on a narrow terminal.

A name decides, because all commands use the names of the views. Nothing here applies to JSON and CSV.
"""

from __future__ import annotations

from collections.abc import Collection

# Short titles on a terminal; `--columns` and JSON keep the full names.
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
    "expiresTimestamp": "from",
    "expiresInMs": "earliest",
    "deletionTimestamp": "deleted",
    "deletionInMs": "when",
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
    "originTopic": "topic",
    "targetTopic": "target",
    "reconsumeTimes": "retries",
    "checkTimes": "checks",
    "producerGroup": "group",
    "sizeBytes": "size",
    "usedBytes": "used",
    "diskBytes": "disk",
}

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
