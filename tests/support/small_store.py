"""One small store with a message of every kind, and the rows that must come out of it: what tests damage byte
by byte.

Two commitlog files of 2 KiB, consume queues of three units a file, light queues and a BatchCQ topic; made by
the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support import oracle
from tests.support.oracle import Message, SubMessage
from tests.support.rows import expected_row, inner_rows
from tests.support.store_files import write_file, write_files

FILE_SIZE = 2048
UNITS_A_FILE = 3
V6_BORN, V6_STORE = ("2001:db8:0:0:0:0:0:1", 7), ("2001:db8:0:0:0:0:0:2", 10911)
LONG_TOPIC = b"%RETRY%" + b"g" * 140
LIGHT = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02"
SOME = b"KEYS\x01k1 k2\x02UNIQ_KEY\x017F00000100\x02TAGS\x01red\x02"

Key = tuple[str, int]


def _batch(count: int) -> bytes:
    return oracle.encode_inner_batch(
        SubMessage(i, b"part%d" % i, b"TAGS\x01t\x02UNIQ_KEY\x01U%d\x02" % i) for i in range(count)
    )


def _numbered(count: int, base: int) -> bytes:
    return oracle.encode_properties([("INNER_NUM", str(count)), ("INNER_BASE", str(base))])


# Name -> (topic, queue id, queue offset, how many offsets it covers, the message). Prepared messages are in
# no queue.
KINDS: dict[str, Message] = {
    "plain": Message(b"Orders", b"some body", SOME, 0, 0, flag=3),
    "zlib": Message(b"Orders", oracle.compress(b"z" * 300, 3), b"TAGS\x01a\x02", 0, 1, sys_flag=0x301),
    "v6": Message(b"Orders", b"six", SOME, 1, 0, sys_flag=0x30, born_host=V6_BORN, store_host=V6_STORE),
    "v6 store": Message(b"Orders", b"six", b"", 1, 1, sys_flag=0x20, store_host=V6_STORE),
    "v2": Message(LONG_TOPIC, b"long", SOME, 0, 0, magic=0xDAA320AB, reconsume_times=2),
    "empty": Message(b"Orders", b"", b"", 0, 2),
    "lz4": Message(b"Orders", oracle.compress(b"l" * 300, 1), b"", 1, 2, sys_flag=0x101),
    "zstd": Message(b"Orders", oracle.compress(b"s" * 300, 2), b"", 0, 3, sys_flag=0x201),
    "light": Message(b"Parent", b"shared", LIGHT, 0, 0),
    "batch": Message(b"Batches", _batch(3), _numbered(3, 0), 0, 0, sys_flag=0xC0),
    "one of a batch topic": Message(b"Batches", b"alone", b"", 0, 3),
    "second batch": Message(b"Batches", _batch(2), _numbered(2, 4), 0, 4, sys_flag=0xC0),
    "commit": Message(b"Orders", b"committed", SOME, 1, 3, sys_flag=0x8, prepared_transaction_offset=77),
    "prepared": Message(b"Half", b"undecided", SOME, 0, 0, sys_flag=0x4),
    "crc property": Message(b"Orders", b"sealed", SOME, 0, 4),
}

# Header fields by the byte they begin at, for IPv4 hosts; an IPv6 host moves what follows by 12.
FIELDS = (
    ("total_size", 4),
    ("magic", 4),
    ("body_crc", 4),
    ("queue_id", 4),
    ("flag", 4),
    ("queue_offset", 8),
    ("physical_offset", 8),
    ("sys_flag", 4),
    ("born_timestamp", 8),
    ("born_host", 8),
    ("store_timestamp", 8),
    ("store_host", 8),
    ("reconsume_times", 4),
    ("prepared_transaction_offset", 8),
    ("body_length", 4),
)


def field_at(message: Message, byte: int) -> str:
    """The name of the field that byte `byte` of the unit belongs to."""
    at = 0
    for name, width in FIELDS:
        width += 12 if name.endswith("_host") and ":" in getattr(message, name)[0] else 0
        at += width
        if byte < at:
            return name
    topic_width = 2 if message.magic == 0xDAA320AB else 1
    rest = (
        ("body", len(message.body)), ("topic_length", topic_width), ("topic", len(message.topic_bytes)),
        ("properties_length", 2), ("properties", len(message.properties_bytes)),
    )  # fmt: skip
    for name, width in rest:
        at += width
        if byte < at:
            return name
    raise IndexError(byte)


@dataclass
class SmallStore:
    """Where it is, its messages as stored, and the rows of each queue in order."""

    root: Path
    messages: dict[str, Message] = field(default_factory=dict)
    rows: dict[Key, list[dict[str, Any]]] = field(default_factory=dict)

    def files(self) -> Iterator[Path]:
        """Everything a reader of messages looks at."""
        for folder in ("commitlog", "consumequeue", "batchconsumequeue"):
            yield from sorted(path for path in (self.root / folder).rglob("*") if path.is_file())

    def unit_place(self, name: str) -> tuple[Path, int, int]:
        """(commitlog file, byte in it, size) of a message."""
        message = self.messages[name]
        within = message.physical_offset % FILE_SIZE
        return (
            self.root / "commitlog" / oracle.file_name(message.physical_offset - within),
            within,
            message.total_size,
        )


def write_small_store(root: Path) -> SmallStore:
    """A store as a clean shutdown leaves it."""
    store = SmallStore(root)
    files: dict[int, bytes] = {0: b""}
    start = 0
    for i, (name, kind) in enumerate(KINDS.items()):
        message = replace(kind, born_timestamp=1_700_000_000_000 + i, store_timestamp=1_700_000_001_000 + i)
        size = message.total_size + 20 * (name == "crc property")
        if len(files[start]) + size + 8 > FILE_SIZE:
            files[start] = (files[start] + oracle.blank(FILE_SIZE - len(files[start]))).ljust(
                FILE_SIZE, b"\0"
            )
            start += FILE_SIZE
            files[start] = b""
        message = replace(message, physical_offset=start + len(files[start]))
        message = oracle.with_crc_property(message) if name == "crc property" else message
        files[start] += oracle.encode_message(message)
        store.messages[name] = message
    for start, data in files.items():
        write_files(root / "commitlog", data, FILE_SIZE, start)
    _write_queues(store)
    write_file(root / "checkpoint", oracle.checkpoint(0, 0))
    write_file(root / "config" / "topics.json", b'{"topicConfigTable":{}}')
    write_file(root / "lock", b"lock")
    return store


def _write_queues(store: SmallStore) -> None:
    simple: dict[Key, list[bytes]] = {}
    batch: list[bytes] = []
    for name, message in store.messages.items():
        if name == "prepared":
            continue
        code = oracle.tags_code(message)
        entry = oracle.cq_unit(message.physical_offset, message.total_size, code)
        keys = [(message.topic, message.queue_id)] + (
            [("%LMQ%a", 0), ("%LMQ%b", 0)] if name == "light" else []
        )
        for key in keys:
            place = {"topic": key[0]}
            expand = (
                inner_rows
                if message.sys_flag & 0xC0
                else lambda *args, **kwargs: [expected_row(*args, **kwargs)]
            )
            rows = expand(message, tags_code=code, **place)
            store.rows.setdefault(key, []).extend(rows)
            if message.topic == "Batches":
                place_and_size = (message.physical_offset, message.total_size, code, message.store_timestamp)
                batch.append(oracle.batch_cq_unit(*place_and_size, message.queue_offset, len(rows)))
            else:
                simple.setdefault(key, []).append(entry)
    for (topic, queue_id), units in simple.items():
        _write_units(store.root / "consumequeue" / topic / str(queue_id), units)
    _write_units(store.root / "batchconsumequeue" / "Batches" / "0", batch)


def _write_units(directory: Path, units: list[bytes]) -> None:
    """Files of three units, one file in advance when the last is full: so the end of the queue is always on
    disk.
    """
    blank = bytes(len(units[0]))
    write_files(directory, b"".join([*units, blank]), len(blank) * UNITS_A_FILE)
