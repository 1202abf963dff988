"""Files of `config/` as brokers, power losses and people leave them, and law 5: the product reads what the
broker's own classes load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

from store_format.errors import StoreError
from store_format.metadata.read import (
    read_consumer_offsets,
    read_delay_offsets,
    read_subscription_groups,
    read_topics,
)
from store_format.opened.store import Opened
from tests.support.referee.law import Breach
from tests.support.store_files import write_file

_VERSION = '"dataVersion":{"counter":%d,"stateVersion":0,"timestamp":1700000000000}'


def _topic(name: str, queues: int) -> str:
    return (
        f'"{name}":{{"order":false,"perm":6,"readQueueNums":{queues},"topicFilterType":"SINGLE_TAG",'
        f'"topicName":"{name}","topicSysFlag":0,"writeQueueNums":{queues}}}'
    )


def _group(name: str, retries: int) -> str:
    return f'"{name}":{{"consumeEnable":true,"groupName":"{name}","retryMaxTimes":{retries}}}'


# File -> the text of the file and of an older `.bak`. The number 8 is only in the file, 5 only in the `.bak`.
FILES: dict[str, tuple[str, str]] = {
    "consumerOffset.json": (
        f'{{{_VERSION % 5},"offsetTable":{{"T@G":{{0:8,1:3}},"U@G":{{0:4}}}}}}',
        f'{{{_VERSION % 4},"offsetTable":{{"T@G":{{0:5}}}}}}',
    ),
    "delayOffset.json": (
        f'{{{_VERSION % 5},"offsetTable":{{3:8,4:3}}}}',
        f'{{{_VERSION % 4},"offsetTable":{{3:5}}}}',
    ),
    "topics.json": (
        f'{{{_VERSION % 5},"topicConfigTable":{{{_topic("T", 8)},{_topic("U", 4)}}}}}',
        f'{{{_VERSION % 4},"topicConfigTable":{{{_topic("T", 5)}}}}}',
    ),
    "subscriptionGroup.json": (
        (
            f'{{{_VERSION % 5},"forbiddenTable":{{}},'
            f'"subscriptionGroupTable":{{{_group("G", 8)},{_group("H", 3)}}}}}'
        ),
        f'{{{_VERSION % 4},"subscriptionGroupTable":{{{_group("G", 5)}}}}}',
    ),
}

Change = Callable[[bytes], bytes]


def _value(text: bytes) -> Change:
    """Another text for the number 8."""
    return lambda data: data.replace(b":8", b":" + text)


def _first_comma(text: bytes) -> Change:
    return lambda data: data.replace(b",", text, 1)


_DATA_VERSION = (_VERSION % 5).partition(":")[2].encode()

CHANGES: dict[str, Change] = {
    "as written": lambda data: data,
    "NULs behind": lambda data: data + bytes(50),
    "NULs up to a page": lambda data: data.ljust(4096, b"\0"),
    "NULs before": lambda data: b"\0\0" + data,
    "a BOM": lambda data: b"\xef\xbb\xbf" + data,
    "single quotes": lambda data: data.replace(b'"', b"'"),
    "a comma before }": lambda data: data.replace(b"}}", b"},}"),
    "commas before every }": lambda data: data.replace(b"}", b",}"),
    "a comment line": lambda data: b"// by hand\n" + data,
    "a comment block": lambda data: b"/* by hand */" + data,
    "a comment within": lambda data: data.replace(b"{", b"{/*ops*/", 2),
    "a comment at a line's end": _first_comma(b", // 100\n"),
    "unquoted names": lambda data: data.replace(b'"dataVersion"', b"dataVersion"),
    "a semicolon behind": lambda data: data + b";",
    "a letter behind": lambda data: data + b"x",
    "two objects": lambda data: data + b"{}",
    "a stale tail": lambda data: data + data[-20:],
    "a text for a number": _value(b'"8"'),
    "8.0": _value(b"8.0"),
    "8e0": _value(b"8e0"),
    "+8": _value(b"+8"),
    "08": _value(b"08"),
    "0x8": _value(b"0x8"),
    "8L": _value(b"8L"),
    "-8": _value(b"-8"),
    "null for a number": _value(b"null"),
    "true for a number": _value(b"true"),
    "2^63": _value(b"9223372036854775808"),
    "an empty text for a number": _value(b'""'),
    "CRLF": lambda data: data.replace(b",", b",\r\n"),
    "VT and FF": _first_comma(b"\x0b\x0c,"),
    "a no-break space": _first_comma("\u00a0,".encode()),
    "a wide space": _first_comma("\u3000,".encode()),
    "0x1A behind": lambda data: data + b"\x1a",
    "a wrong byte in a name": lambda data: data.replace(b'"U', b'"U\xe9'),
    "another case of a name": lambda data: data.replace(b"Table", b"table"),
    "null": lambda data: b"null",
    "an empty object": lambda data: b"{}",
    "an array": lambda data: b"[]",
    "blanks": lambda data: b"  \n",
    "nothing": lambda data: b"",
    "zeros": lambda data: bytes(200),
    "no last brace": lambda data: data[:-1],
    "no last two braces": lambda data: data[:-2],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "a version that is a text": lambda data: data.replace(_DATA_VERSION, b'"x"'),
    "a version that is null": lambda data: data.replace(_DATA_VERSION, b"null"),
    "another member": lambda data: data[:-1] + b',"x":[1,{"y":2}]}',
    "a member that is null": lambda data: data.replace(b'Table":{', b'Table":{"N":null,', 1),
    "a table that is null": lambda data: data[: data.index(b'Table":{') + 7] + b"null}",
    "a member twice": lambda data: data[:-1] + b"," + data[1:],
}  # fmt: skip


def make(root: Path, random: Random) -> str:
    """A root with one file and its `.bak`; returns the name of the file and what was done."""
    name, (text, older) = random.choice(sorted(FILES.items()))
    change = random.choice(sorted(CHANGES))
    write_file(root / "config" / name, CHANGES[change](text.encode()))
    backup = random.choices(["an older .bak", "no .bak", "a broken .bak"], (4, 2, 1))[0]
    if backup != "no .bak":
        data = older.encode() if backup == "an older .bak" else older.encode()[:-6]
        write_file(root / "config" / f"{name}.bak", data)
    return f"{name}: {change}, {backup}"


def breaches(root: Path, name: str, held: Mapping[str, Any] | None) -> Iterator[Breach]:
    """`held` is what a broker holds; None if it does not start."""
    what = name.partition(".json")[0]
    try:
        read = _READERS[what](str(root))
    except StoreError as error:
        if held is not None:
            yield Breach(
                5, f"{what}: the product refuses what a broker loads", f"{name}: {error} and {held}"[:300]
            )
        return
    if held is None and read:
        yield Breach(5, f"{what}: the product reads what no broker loads", f"{name}: {read}"[:300])
    elif held is not None and read != held:
        yield Breach(
            5, f"{what}: the product reads something else than a broker", f"{name}: {read} and {held}"[:300]
        )


def _offsets(root: str) -> dict[str, Any]:
    found = read_consumer_offsets(Opened(root))
    table = {} if found is None else found.offsets
    return {key: {str(queue): offset for queue, offset in each.items()} for key, each in table.items()}


def _delays(root: str) -> dict[str, Any]:
    return {str(level): offset for level, offset in (read_delay_offsets(Opened(root)) or {}).items()}


def _topics(root: str) -> dict[str, Any]:
    return {
        name: {
            "name": topic.topic_name,
            "readQueueNums": topic.read_queue_nums,
            "writeQueueNums": topic.write_queue_nums,
            "perm": topic.perm,
        }
        for name, topic in (read_topics(Opened(root)) or {}).items()
    }


def _groups(root: str) -> dict[str, Any]:
    return {
        name: {
            "retryMaxTimes": group.retry_max_times,
            "consumeEnable": group.consume_enable,
            "consumeFromMinEnable": group.consume_from_min_enable,
        }
        for name, group in (read_subscription_groups(Opened(root)) or {}).items()
    }


_READERS: dict[str, Callable[[str], dict[str, Any]]] = {
    "consumerOffset": _offsets,
    "delayOffset": _delays,
    "topics": _topics,
    "subscriptionGroup": _groups,
}
TABLES = {
    "consumerOffset": "offsets",
    "delayOffset": "delays",
    "topics": "topics",
    "subscriptionGroup": "groups",
}
