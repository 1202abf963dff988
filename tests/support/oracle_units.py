"""The oracle's small half: hashes, identifiers and every fixed-size unit, one `struct` call each, written
from the spec alone.

Slow and plain on purpose. It shares no constant with store_format, so that an agreement between the two means
something.
"""

from __future__ import annotations

import ipaddress
import json
import struct
import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any


class OracleError(ValueError):
    """The bytes are no unit the spec describes. The only error the oracle raises about bytes."""


# ---- text and hashes ---------------------------------------------------------------------------------------


def java_utf8(data: bytes) -> str:
    """`new String(data, UTF_8)`: malformed bytes become U+FFFD.

    CPython does the same, but for one case (compared with OpenJDK 17 over all sequences of one to four bytes
    from 24 interesting values): an encoded surrogate, ED A0..BF xx, is one replacement character in Java and
    three in Python.

    >>> java_utf8(bytes.fromhex("eda080")), len(bytes.fromhex("eda080").decode(errors="replace"))
    ('\ufffd', 3)
    """
    if 0xED not in data:  # no surrogate; the loop takes most of the time of tests that make many messages
        return data.decode("utf-8", "replace")
    out = bytearray()
    i = 0
    while i < len(data):
        if data[i] == 0xED and i + 1 < len(data) and 0xA0 <= data[i + 1] <= 0xBF:
            i += 3 if i + 2 < len(data) and 0x80 <= data[i + 2] <= 0xBF else 2
            out += b"\xef\xbf\xbd"
        else:
            out.append(data[i])
            i += 1
    return out.decode("utf-8", "replace")


@lru_cache(1 << 16)  # the same keys in each of many stores
def java_hash(text: str) -> int:
    """Java's String.hashCode as a signed 32-bit number, over UTF-16 code units (spec 3.2)."""
    h = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        h = (31 * h + unit) % 2**32
    return h - 2**32 if h >= 2**31 else h


def index_key_hash(key: str) -> int:
    """The hash an index unit carries for the composed key `topic#key` (spec 4.2)."""
    h = java_hash(key)
    return 0 if h == -(2**31) else abs(h)


def java_hashmap_order(names: Iterable[str], capacity: int) -> list[str]:
    """The iteration order of a Java HashMap made with `capacity` that got `names` one after the other (spec
    2.5).
    """
    distinct = list(dict.fromkeys(names))
    while len(distinct) > 0.75 * capacity:
        capacity *= 2
    buckets: dict[int, list[str]] = {}
    for name in distinct:
        h = java_hash(name) % 2**32
        buckets.setdefault((h ^ (h >> 16)) & (capacity - 1), []).append(name)
    return [name for bucket in sorted(buckets) for name in buckets[bucket]]


def stored_crc(data: bytes) -> int:
    """CRC32 without its top bit (spec 2.4)."""
    return zlib.crc32(data) % 2**31


def crc_property(crc: int) -> bytes:
    """The 20 bytes of the appended CRC property: ten digits, the least significant first (spec 2.7)."""
    return b"__CRC32#\x01" + str(crc)[::-1].ljust(10, "0").encode() + b"\x02"


# ---- hosts, names, identifiers -----------------------------------------------------------------------------


def java_host(host: tuple[str, int]) -> str:
    """`ip:port` as Java prints it: IPv6 in brackets, eight groups, nothing compressed; IPv4-mapped addresses
    are IPv4 to Java.
    """
    address = ipaddress.ip_address(host[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if isinstance(address, ipaddress.IPv4Address):
        return f"{address}:{host[1]}"
    groups = struct.unpack(">8H", address.packed)
    return f"[{':'.join(f'{group:x}' for group in groups)}]:{host[1]}"


def offset_msg_id(host: tuple[str, int], physical_offset: int) -> str:
    """The broker's message id (spec 2.13)."""
    return (ipaddress.ip_address(host[0]).packed + struct.pack(">iq", host[1], physical_offset)).hex().upper()


def uniq_key_id(ip: str, pid: int, class_loader_hash: int, ms_since_month_start: int, counter: int) -> str:
    """The id a client gives a message, UNIQ_KEY (spec 2.13). `counter` wraps; a clock set back a little
    counts as 0.
    """
    if -1_000_000 < ms_since_month_start < 0:
        ms_since_month_start = 0
    tail = struct.pack(">HiIH", pid % 2**16, class_loader_hash, ms_since_month_start % 2**32, counter % 2**16)
    return (ipaddress.ip_address(ip).packed + tail).hex().upper()


def file_name(offset: int) -> str:
    return str(offset).zfill(20)


def index_file_name(epoch_ms: int, utc_offset_minutes: int) -> str:
    """Creation time to the millisecond, in the broker's own time zone (spec 1.4)."""
    zone = timezone(timedelta(minutes=utc_offset_minutes))
    moment = datetime.fromtimestamp(epoch_ms // 1000, zone)
    return moment.strftime("%Y%m%d%H%M%S") + str(epoch_ms % 1000).zfill(3)


def delay_levels(table: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h") -> dict[int, int]:
    """Level -> milliseconds (spec 8.1)."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    return {level: int(text[:-1]) * units[text[-1]] for level, text in enumerate(table.split(), 1)}


# ---- commitlog, consume queues, checkpoint -----------------------------------------------------------------


def blank(remaining: int) -> bytes:
    """The first 8 bytes of the record that closes a commitlog file (spec 2.9)."""
    return struct.pack(">iI", remaining, 0xCBD43194)


def cq_unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    return struct.pack(">qiq", physical_offset, size, tags_code)


def pre_blank_cq_unit() -> bytes:
    return struct.pack(">qiq", 0, 0x7FFFFFFF, 0)


def batch_cq_unit(
    physical_offset: int, size: int, tags_code: int, store_timestamp: int, base_offset: int, batch_size: int
) -> bytes:
    return struct.pack(
        ">qiqqqhii", physical_offset, size, tags_code, store_timestamp, base_offset, batch_size, -1, 0
    )


def cq_ext_unit(tags_code: int, store_timestamp: int, bit_map: bytes) -> bytes:
    return struct.pack(">hqqh", 20 + len(bit_map), tags_code, store_timestamp, len(bit_map)) + bit_map


def cq_ext_address(ext_offset: int) -> int:
    """What a consume queue unit holds in place of the tags code (spec 3.4)."""
    return ext_offset - 2**63


def checkpoint(*longs: int) -> bytes:
    """The whole file: up to six longs, then zeros (spec 5.1)."""
    return struct.pack(f">{len(longs)}q", *longs).ljust(4096, b"\0")


def dledger_head(size: int, index: int, term: int, pos: int, body_size: int) -> bytes:
    return struct.pack(">iiqqqiiii", 1, size, index, term, pos, 0, 0, 0, body_size)


# ---- index -------------------------------------------------------------------------------------------------


def index_slot_position(slot: int) -> int:
    return 40 + 4 * slot


def index_unit_position(number: int, slot_count: int) -> int:
    return 40 + 4 * slot_count + 20 * number


class IndexFileBuilder:
    """One index file, built key by key with the rules of spec 4.3.

    `end_timestamp` and `end_physical_offset` are those of the file before it, 0 for a store's first.
    """

    def __init__(
        self, slot_count: int, unit_count: int, end_timestamp: int = 0, end_physical_offset: int = 0
    ) -> None:
        self.slot_count = slot_count
        self.unit_count = unit_count
        self.begin_timestamp = self.end_timestamp = max(end_timestamp, 0)
        self.begin_physical_offset = self.end_physical_offset = max(end_physical_offset, 0)
        self.hash_slot_count = 0
        self.index_count = 1
        self.slots: dict[int, int] = {}
        self.units: list[bytes] = []

    @property
    def full(self) -> bool:
        return self.index_count >= self.unit_count

    def put(self, key: str, physical_offset: int, store_timestamp: int) -> bool:
        """False, and nothing done, when the file is full."""
        if self.full:
            return False
        key_hash = index_key_hash(key)
        slot = key_hash % self.slot_count
        previous = self.slots.get(slot, 0)
        difference = 0
        if self.begin_timestamp > 0:
            difference = max(0, min(store_timestamp - self.begin_timestamp, (2**31 - 1) * 1000)) // 1000
        self.units.append(struct.pack(">iqii", key_hash, physical_offset, difference, previous))
        self.slots[slot] = self.index_count
        if self.index_count <= 1:
            self.begin_physical_offset, self.begin_timestamp = physical_offset, store_timestamp
        self.hash_slot_count += previous == 0
        self.index_count += 1
        self.end_physical_offset, self.end_timestamp = physical_offset, store_timestamp
        return True

    def header(self) -> bytes:
        counted = self.index_count if self.units else 0  # written by the first put
        times = (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
        )
        return struct.pack(">qqqqii", *times, self.hash_slot_count, counted)

    def to_bytes(self) -> bytes:
        slots = b"".join(struct.pack(">i", self.slots.get(slot, 0)) for slot in range(self.slot_count))
        units = bytes(20) + b"".join(self.units)  # unit 0 is never used
        return self.header() + slots + units.ljust(20 * self.unit_count, b"\0")


class IndexBuilder:
    """The index files that a broker makes while it dispatches messages, in their order (spec 4.4, 4.5)."""

    def __init__(self, slot_count: int, unit_count: int) -> None:
        self._counts = slot_count, unit_count
        self.files: list[IndexFileBuilder] = []

    def put_message(self, keys: Iterable[str], physical_offset: int, store_timestamp: int) -> None:
        if physical_offset < self._last().end_physical_offset:  # the file is made before keys are looked at
            return
        for key in keys:
            assert self._last().put(key, physical_offset, store_timestamp)

    def _last(self) -> IndexFileBuilder:
        """The file that the next key goes to."""
        if not self.files or self.files[-1].full:
            last = (self.files[-1].end_timestamp, self.files[-1].end_physical_offset) if self.files else ()
            self.files.append(IndexFileBuilder(*self._counts, *last))
        return self.files[-1]


# ---- timer, RocksDB, pop -----------------------------------------------------------------------------------


def timer_log_unit(
    prev_pos: int,
    magic: int,
    write_timestamp: int,
    delayed_time: int,
    physical_offset: int,
    message_size: int,
    real_topic: str,
) -> bytes:
    times = (52, prev_pos, magic, write_timestamp, delayed_time)
    return struct.pack(">iqiqiqiiq", *times, physical_offset, message_size, java_hash(real_topic), 0)


def timer_log_blank(remaining: int) -> bytes:
    return struct.pack(">iqI", remaining, 0, 0xCBD43194)


def timer_wheel_slot(slot_time_ms: int, precision_ms: int, first_pos: int, last_pos: int, num: int) -> bytes:
    return struct.pack(">qqqii", slot_time_ms // precision_ms, first_pos, last_pos, num, 0)


def timer_wheel_slot_index(slot_time_ms: int, precision_ms: int) -> int:
    return slot_time_ms // precision_ms % (7 * 86_400 * 2)


def rocksdb_cq_key(topic: str, queue_id: int, cq_offset: int) -> bytes:
    name = topic.encode()
    return (
        struct.pack(">i", len(name))
        + b"\1"
        + name
        + b"\1"
        + struct.pack(">i", queue_id)
        + b"\1"
        + struct.pack(">q", cq_offset)
    )


def rocksdb_cq_value(physical_offset: int, size: int, tags_code: int, store_timestamp: int) -> bytes:
    return struct.pack(">qiqq", physical_offset, size, tags_code, store_timestamp)


def rocksdb_offset_key(topic: str, queue_id: int, which: str) -> bytes:
    """`which` is `max` or `min`."""
    name = topic.encode()
    return (
        struct.pack(">i", len(name))
        + b"\1"
        + name
        + b"\1"
        + which.encode()
        + b"\1"
        + struct.pack(">i", queue_id)
    )


def rocksdb_offset_value(physical_offset: int, cq_offset: int) -> bytes:
    return struct.pack(">qq", physical_offset, cq_offset)


# Short name -> what it means (spec 8.5). `sp` is 5.5's own; every other name is as old as pop.
_POP_NAMES = {
    "ao": "ackOffset",
    "aol": "ackOffsetList",
    "bm": "bitMap",
    "bn": "brokerName",
    "c": "consumerGroup",
    "d": "queueOffsetDiff",
    "it": "invisibleTime",
    "n": "num",
    "pt": "popTime",
    "q": "queueId",
    "reviveTime": "reviveTime",
    "ro": "reviveOffset",
    "rp": "rePutTimes",
    "so": "startOffset",
    "sp": "suspend",
    "t": "topic",
}


def parse_pop_record(text: str) -> dict[str, Any]:
    """A pop checkpoint, ack or batch ack under its long names. `reviveTime` is derived and left out.

    Raises OracleError for a name the spec does not list.
    """
    record = json.loads(text)
    unknown = record.keys() - _POP_NAMES.keys()
    if unknown:
        raise OracleError(f"pop record names {sorted(unknown)}")
    return {_POP_NAMES[name]: value for name, value in record.items() if name != "reviveTime"}


def pop_record(record: dict[str, Any]) -> str:
    """The inverse: compact JSON, names in alphabetical order; a checkpoint (the one with `invisibleTime`)
    gets its reviveTime.
    """
    short = {long: name for name, long in _POP_NAMES.items()}
    named = {short[name]: value for name, value in record.items()}
    if "it" in named:
        named["reviveTime"] = named["pt"] + named["it"]
    return json.dumps(named, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
