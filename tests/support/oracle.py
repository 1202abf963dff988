"""A slow scalar decoder and encoder of message units, written from the spec alone: the tests' independent
witness.

It imports nothing of store_format and copies no constant from it. `oracle_units` is its other half, and
everything is importable from here.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import pyarrow as pa

from tests.support.oracle_units import (
    IndexBuilder,
    IndexFileBuilder,
    OracleError,
    batch_cq_unit,
    blank,
    checkpoint,
    cq_ext_address,
    cq_ext_unit,
    cq_unit,
    crc_property,
    delay_levels,
    dledger_head,
    file_name,
    index_file_name,
    index_key_hash,
    index_slot_position,
    index_unit_position,
    java_hash,
    java_hashmap_order,
    java_host,
    java_utf8,
    offset_msg_id,
    parse_pop_record,
    pop_record,
    pre_blank_cq_unit,
    rocksdb_cq_key,
    rocksdb_cq_value,
    rocksdb_offset_key,
    rocksdb_offset_value,
    stored_crc,
    timer_log_blank,
    timer_log_unit,
    timer_wheel_slot,
    timer_wheel_slot_index,
    uniq_key_id,
)

__all__ = [
    "IndexBuilder",
    "IndexFileBuilder",
    "Message",
    "OracleError",
    "SubMessage",
    "Walk",
    "batch_cq_unit",
    "blank",
    "build_index_files",
    "checkpoint",
    "compress",
    "cq_ext_address",
    "cq_ext_unit",
    "cq_unit",
    "crc_property",
    "decode_message",
    "decode_properties",
    "decompress",
    "delay_levels",
    "dledger_head",
    "encode_inner_batch",
    "encode_message",
    "encode_properties",
    "file_name",
    "index_file_name",
    "index_key_hash",
    "index_keys",
    "index_keys_of",
    "index_slot_position",
    "index_unit_position",
    "java_hash",
    "java_hashmap_order",
    "java_host",
    "java_utf8",
    "offset_msg_id",
    "parse_pop_record",
    "pop_record",
    "pre_blank_cq_unit",
    "rocksdb_cq_key",
    "rocksdb_cq_value",
    "rocksdb_offset_key",
    "rocksdb_offset_value",
    "split_inner_batch",
    "stored_crc",
    "tags_code",
    "timer_log_blank",
    "timer_log_unit",
    "timer_wheel_slot",
    "timer_wheel_slot_index",
    "uniq_key_id",
    "verify_crc_property",
    "walk_commit_log",
    "walk_files",
    "with_crc_property",
]

_V1, _V2, _BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
_COMPRESSED, _BORN_V6, _STORE_V6 = 0x1, 0x10, 0x20
_SIZE_MIN = 91


# ---- properties --------------------------------------------------------------------------------------------


def encode_properties(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """`name 0x01 value 0x02` for each pair, nothing escaped (spec 2.5)."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    return "".join(f"{name}\x01{value}\x02" for name, value in items).encode()


def decode_properties(data: bytes) -> dict[str, str]:
    """What Java's decoder makes of the stored bytes, in stored order: the last value of a name at the place
    of its first.

    A segment without 0x01, or with nothing before or nothing behind the first 0x01, is dropped.
    """
    properties: dict[str, str] = {}
    for segment in java_utf8(data).split("\x02"):
        name, _, value = segment.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


# ---- compression -------------------------------------------------------------------------------------------

_STREAMS = {1: "lz4", 2: "zstd"}  # sysFlag bits 8-10; 3 and 0 are zlib


def compress(body: bytes, kind: int) -> bytes:
    """`kind` as in sysFlag bits 8-10: 1 LZ4 frame, 2 ZSTD, 3 or 0 ZLIB."""
    if kind in (0, 3):
        return zlib.compress(body, 5)
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _STREAMS[kind]) as stream:
        stream.write(body)
    return bytes(sink.getvalue())


def decompress(stored: bytes, sys_flag: int) -> bytes:
    """The body a producer gave. Raises OracleError when the stored bytes are not what sysFlag says."""
    if not sys_flag & _COMPRESSED or not stored:
        return stored
    kind = sys_flag >> 8 & 7
    if kind not in (0, 1, 2, 3):
        raise OracleError(f"compression type {kind}")
    try:
        if kind in (0, 3):
            inflater = zlib.decompressobj()
            body = inflater.decompress(stored)
            if not inflater.eof:
                raise OracleError("the zlib stream ends early")
            return body
        with pa.CompressedInputStream(pa.BufferReader(stored), _STREAMS[kind]) as stream:
            return bytes(stream.read())
    except (zlib.error, OSError, pa.ArrowException) as error:
        raise OracleError(f"body is not {_STREAMS.get(kind, 'zlib')}: {error}") from error


# ---- messages ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Message:
    """One message unit, field by field as stored (spec 2.1). A host is (ip, port), its family the one the
    ip's text shows.

    `body` is as stored, maybe compressed. `body_crc` -1 stands for the right one.
    """

    topic_bytes: bytes
    body: bytes = b""
    properties_bytes: bytes = b""
    queue_id: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    store_timestamp: int = 0
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    magic: int = _V1
    body_crc: int = -1

    def __post_init__(self) -> None:
        if self.body_crc == -1:
            object.__setattr__(self, "body_crc", stored_crc(self.body))

    @property
    def total_size(self) -> int:
        hosts = 12 * _is_v6(self.born_host) + 12 * _is_v6(self.store_host)
        return (
            _SIZE_MIN
            + (self.magic == _V2)
            + hosts
            + len(self.topic_bytes)
            + len(self.body)
            + len(self.properties_bytes)
        )

    @cached_property
    def topic(self) -> str:
        return java_utf8(self.topic_bytes)

    @cached_property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_bytes)

    @cached_property
    def decompressed(self) -> bytes:
        """The body as the producer gave it. Raises OracleError."""
        return decompress(self.body, self.sys_flag)

    @property
    def offset_msg_id(self) -> str:
        return offset_msg_id(self.store_host, self.physical_offset)

    @property
    def msg_id(self) -> str:
        """What a client's getMsgId() says."""
        return self.properties.get("UNIQ_KEY") or self.offset_msg_id


def _is_v6(host: tuple[str, int]) -> bool:
    return ":" in host[0]


def _encode_host(host: tuple[str, int]) -> bytes:
    return ipaddress.ip_address(host[0]).packed + struct.pack(">i", host[1])


def _decode_host(data: bytes) -> tuple[str, int]:
    (port,) = struct.unpack(">i", data[-4:])
    if len(data) == 8:
        return ".".join(str(byte) for byte in data[:4]), port
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", data[:16])), port


def encode_message(message: Message) -> bytes:
    """The unit's bytes. Raises OracleError when hosts and sysFlag disagree or a field does not fit."""
    flags = _BORN_V6 * _is_v6(message.born_host) + _STORE_V6 * _is_v6(message.store_host)
    if message.sys_flag & (_BORN_V6 | _STORE_V6) != flags:
        raise OracleError(f"sysFlag {message.sys_flag:#x} does not say {flags:#x} for the hosts")
    if message.magic == _V1 and len(message.topic_bytes) > 127:
        raise OracleError("a V1 topic has at most 127 bytes")
    try:
        parts = [
            struct.pack(
                ">iIiii", message.total_size, message.magic, message.body_crc, message.queue_id, message.flag
            ),
            struct.pack(">qqi", message.queue_offset, message.physical_offset, message.sys_flag),
            struct.pack(">q", message.born_timestamp),
            _encode_host(message.born_host),
            struct.pack(">q", message.store_timestamp),
            _encode_host(message.store_host),
            struct.pack(">iq", message.reconsume_times, message.prepared_transaction_offset),
            struct.pack(">i", len(message.body)),
            message.body,
            struct.pack(">B" if message.magic == _V1 else ">h", len(message.topic_bytes)),
            message.topic_bytes,
            struct.pack(">h", len(message.properties_bytes)),
            message.properties_bytes,
        ]
    except struct.error as error:
        raise OracleError(f"a field does not fit: {error}") from error
    return b"".join(parts)


class _Cursor:
    """Reads forward in one unit and never past its end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, length: int) -> bytes:
        if length < 0 or length > len(self.data) - self.at:
            raise OracleError(f"{length} bytes wanted at byte {self.at} of a unit of {len(self.data)}")
        self.at += length
        return self.data[self.at - length : self.at]

    def number(self, code: str) -> int:
        value = struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0]
        assert isinstance(value, int)
        return value


def decode_message(buffer: bytes, position: int, base_offset: int, verify_crc: bool = True) -> Message:
    """The unit at `position`; the buffer's first byte stands at `base_offset` of the commitlog.

    Checks what spec 11 asks a reader to check; negative lengths are refused. As in the broker's own check,
    the CRC of an empty body is not looked at. Raises OracleError.
    """
    remaining = len(buffer) - position
    if position < 0 or remaining < 8:
        raise OracleError(f"{remaining} bytes left at {position}")
    size, magic = struct.unpack(">iI", buffer[position : position + 8])
    if magic not in (_V1, _V2):
        raise OracleError(f"magic 0x{magic:08X}")
    if not _SIZE_MIN <= size <= remaining:
        raise OracleError(f"size {size} of {remaining} bytes left")
    unit = bytes(buffer[position : position + size])
    decode = _decode_unit_once if size <= _CACHED_SIZE_MAX else _decode_unit
    return decode(unit, base_offset + position, verify_crc)


def _decode_unit(unit: bytes, expected_offset: int, verify_crc: bool) -> Message:
    magic = int.from_bytes(unit[4:8], "big")
    cursor = _Cursor(unit)
    cursor.take(8)
    body_crc, queue_id, flag = cursor.number("i"), cursor.number("i"), cursor.number("i")
    queue_offset, physical_offset, sys_flag = cursor.number("q"), cursor.number("q"), cursor.number("i")
    born_timestamp, born_host = (
        cursor.number("q"),
        _decode_host(cursor.take(20 if sys_flag & _BORN_V6 else 8)),
    )
    store_timestamp, store_host = (
        cursor.number("q"),
        _decode_host(cursor.take(20 if sys_flag & _STORE_V6 else 8)),
    )
    reconsume_times, prepared_transaction_offset = cursor.number("i"), cursor.number("q")
    body = cursor.take(cursor.number("i"))
    topic_bytes = cursor.take(cursor.number("b" if magic == _V1 else "h"))
    properties_bytes = cursor.take(cursor.number("h"))
    if cursor.at != len(unit):
        raise OracleError(f"fields end at {cursor.at} of {len(unit)}")
    if physical_offset != expected_offset:
        raise OracleError(f"physical offset {physical_offset} at {expected_offset}")
    if verify_crc and body and stored_crc(body) != body_crc:
        raise OracleError(f"body CRC {body_crc}")
    return Message(
        topic_bytes,
        body,
        properties_bytes,
        queue_id,
        queue_offset,
        physical_offset,
        flag,
        sys_flag,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
        prepared_transaction_offset,
        magic,
        body_crc,
    )


# The tests of kills decode the same units in each of some hundred stores.
_CACHED_SIZE_MAX = 1024
_decode_unit_once = lru_cache(1 << 13)(_decode_unit)


def with_crc_property(message: Message) -> Message:
    """The message as a broker with enabledAppendPropCRC stores it; its positions and times must be final
    (spec 2.7).
    """
    kept = message.properties_bytes
    if "__CRC32#" in message.properties:
        segments = kept.split(b"\x02")
        kept = b"\x02".join(segment for segment in segments if not segment.startswith(b"__CRC32#\x01"))
    if kept and not kept.endswith(b"\x02"):
        kept += b"\x02"
    draft = replace(message, properties_bytes=kept + crc_property(0))
    return replace(draft, properties_bytes=kept + crc_property(stored_crc(encode_message(draft)[:-20])))


def verify_crc_property(unit: bytes) -> bool:
    """Whether the unit ends in the CRC property and the digits are right."""
    return len(unit) > 20 and unit[-20:] == crc_property(stored_crc(unit[:-20]))


def tags_code(message: Message, levels: Mapping[int, int] | None = None) -> int:
    """What dispatch writes into the consume queue (spec 3.2). Raises OracleError for a DELAY that is no
    number on the schedule topic.
    """
    levels = delay_levels() if levels is None else levels
    tags = message.properties.get("TAGS")
    code = java_hash(tags) if tags else 0
    delay = message.properties.get("DELAY")
    if message.topic == "SCHEDULE_TOPIC_XXXX" and delay is not None:
        try:
            level = min(int(delay), max(levels))
        except ValueError as error:
            raise OracleError(f"DELAY {delay!r} is no number") from error
        if level > 0:
            return message.store_timestamp + levels.get(level, 1000)
    return code


# ---- inner batches -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SubMessage:
    """One message inside the body of an inner batch (spec 2.11)."""

    flag: int
    body: bytes
    properties_bytes: bytes

    @property
    def properties(self) -> dict[str, str]:
        return decode_properties(self.properties_bytes)


def encode_inner_batch(messages: Iterable[SubMessage]) -> bytes:
    parts = []
    for message in messages:
        size = 22 + len(message.body) + len(message.properties_bytes)
        head = struct.pack(">iiiii", size, 0, 0, message.flag, len(message.body))
        parts += [
            head,
            message.body,
            struct.pack(">h", len(message.properties_bytes)),
            message.properties_bytes,
        ]
    return b"".join(parts)


def split_inner_batch(body: bytes) -> list[SubMessage]:
    """The messages of a (decompressed) inner batch. Raises OracleError."""
    messages = []
    whole = _Cursor(body)
    while whole.at < len(body):
        (size,) = struct.unpack(">i", whole.take(4))
        cursor = _Cursor(whole.take(size - 4))
        cursor.take(8)  # magic and CRC, both 0 and never looked at
        flag = cursor.number("i")
        content = cursor.take(cursor.number("i"))
        properties_bytes = cursor.take(cursor.number("h"))
        if cursor.at != len(cursor.data):
            raise OracleError(f"inner message ends at {cursor.at + 4} of {size}")
        messages.append(SubMessage(flag, content, properties_bytes))
    return messages


# ---- whole files -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """The valid units of a commitlog file, where they end, and whether a blank record says that the next file
    goes on.
    """

    messages: list[Message]
    stop: int
    blank: bool


def walk_commit_log(file_bytes: bytes, start: int, file_size: int) -> Walk:
    """Reads units from the file that starts at offset `start` until a blank record or the first byte that is
    no unit.
    """
    messages: list[Message] = []
    position = 0
    end = min(len(file_bytes), file_size)
    data = file_bytes[:end]
    while end - position >= 8:
        size, magic = struct.unpack(">iI", data[position : position + 8])
        if magic == _BLANK and size <= end - position:
            return Walk(messages, start + position, True)
        try:
            messages.append(decode_message(data, position, start))
        except OracleError:
            break
        position += messages[-1].total_size
    return Walk(messages, start + position, False)


def walk_files(files: Mapping[int, bytes], file_size: int) -> Walk:
    """The walk over files that follow each other; `files` maps start offsets to contents."""
    messages: list[Message] = []
    walk = Walk(messages, min(files), True)
    start = min(files)
    while start in files:
        walk = walk_commit_log(files[start], start, file_size)
        messages += walk.messages
        if not walk.blank:
            break
        start += file_size
    return Walk(messages, walk.stop, walk.blank)


def index_keys(message: Message, tag_keys: bool = True) -> list[str]:
    """The composed keys dispatch puts into the index, in order; `tag_keys` since 5.4 (spec 4.4)."""
    if message.sys_flag & 0xC == 0xC:
        return []
    return index_keys_of(message.topic, message.properties, tag_keys)


def index_keys_of(topic: str, properties: Mapping[str, str], tag_keys: bool = True) -> list[str]:
    keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
    keys += [key for key in properties.get("KEYS", "").split(" ") if key]
    if tag_keys and properties.get("TAGS"):
        keys.append("T#" + properties["TAGS"])
    return [f"{topic}#{key}" for key in keys]


def build_index_files(
    messages: Sequence[Message], slot_count: int, unit_count: int, tag_keys: bool = True
) -> list[bytes]:
    """The index files a broker makes while it dispatches `messages` (spec 4.4, 4.5)."""
    builder = IndexBuilder(slot_count, unit_count)
    for message in messages:
        builder.put_message(index_keys(message, tag_keys), message.physical_offset, message.store_timestamp)
    return [file.to_bytes() for file in builder.files]
