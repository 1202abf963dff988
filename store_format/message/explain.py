"""Why one message unit fails the checks of `locate`: the scalar twin of `locate`, for errors only."""

from __future__ import annotations

from store_format.errors import ChecksumError, CorruptStoreError, TruncatedRecordError
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_SIZE_MIN
from store_format.message.crc import range_crc
from store_format.message.parts import MessageHead, find_parts, head_layout, head_offset, read_head
from store_format.message.unit_refs import UnitRefs


def explain(refs: UnitRefs, index: int, *, verify_crc: bool = True) -> CorruptStoreError:
    """Returns the first check that the unit fails, as an error with file, byte, expected and found."""
    position, size = int(refs.positions[index]), int(refs.sizes[index])
    buffer, path = refs.buffer, refs.path
    if size < MESSAGE_SIZE_MIN:
        expected = f"a message of at least {MESSAGE_SIZE_MIN} bytes"
        return CorruptStoreError(path, position, expected, f"an entry of size {size}")
    if position < 0 or position + size > len(buffer):
        expected = f"a message of {size} bytes"
        return TruncatedRecordError(path, position, expected, f"a file of {len(buffer)} bytes")
    data = buffer[position : position + size].tobytes()
    head = read_head(data)
    wrong = _wrong_number(refs, index, data, size)
    if wrong is not None:
        return wrong
    if head is None:
        expected = f"a head of {head_layout(data).itemsize} bytes"
        return TruncatedRecordError(path, position, expected, f"a message of {size} bytes")
    return _wrong_part(refs, index, data, head, verify_crc)


def _wrong_number(refs: UnitRefs, index: int, data: bytes, size: int) -> CorruptStoreError | None:
    """Returns the first wrong number among the head fields that lie at the same place in every head."""
    position, identity = int(refs.positions[index]), refs.identity
    magic = _head_number(data, "magic") & 0xFFFFFFFF
    expected = "magic code 0xDAA320A7 (V1) or 0xDAA320AB (V2)"
    if magic not in (MAGIC_V1, MAGIC_V2):
        return CorruptStoreError(refs.path, position + head_offset("magic"), expected, f"0x{magic:08X}")
    checks = [
        ("total_size", size, f"total size {size}"),
        ("physical_offset", refs.base + position, f"physicalOffset {refs.base + position}"),
    ]
    if identity is not None and not _is_light(refs, index):
        queue_id, queue_offset = int(identity.queue_ids[index]), int(identity.queue_offsets[index])
        checks += [
            ("queue_id", queue_id, f"queueId {queue_id} of {identity.topic_of(index)}"),
            ("queue_offset", queue_offset, f"queueOffset {queue_offset}"),
        ]
    for name, right, expected in checks:
        found = _head_number(data, name)
        if found != right:
            return CorruptStoreError(refs.path, position + head_offset(name), expected, str(found))
    return None


def _head_number(data: bytes, name: str) -> int:
    at = head_offset(name)
    size = head_layout(data)[name].itemsize
    return int.from_bytes(data[at : at + size], "big", signed=True)


def _is_light(refs: UnitRefs, index: int) -> bool:
    light = None if refs.identity is None else refs.identity.light_rows()
    return light is not None and bool(light[index])


def _wrong_part(
    refs: UnitRefs, index: int, data: bytes, head: MessageHead, verify_crc: bool
) -> CorruptStoreError:
    path, position, identity = refs.path, int(refs.positions[index]), refs.identity
    parts, wrong = find_parts(data, 0, len(data), head)
    if wrong is not None:
        return CorruptStoreError(path, position + wrong.at, wrong.expected, wrong.found)
    topic = data[parts.topic_start : parts.topic_start + (parts.topic_length or 0)]
    if identity is not None and not _is_light(refs, index) and topic != identity.topic_of(index).encode():
        found = repr(topic.decode(errors="backslashreplace"))
        expected = f"topic {identity.topic_of(index)!r}"
        return CorruptStoreError(path, position + parts.topic_start, expected, found)
    computed = range_crc(data, parts.body_start, parts.body_start + parts.body_length)
    if verify_crc and parts.body_length and computed != head.body_crc:
        expected = f"body CRC 0x{computed:08X} of the {parts.body_length} stored bytes"
        found = f"0x{head.body_crc & 0xFFFFFFFF:08X}"
        return ChecksumError(path, position + head_offset("body_crc"), expected, found)
    return CorruptStoreError(path, position, "a valid message", "a message that fails a check")
