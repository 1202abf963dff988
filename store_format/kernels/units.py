"""Checks message units and finds their parts (CommitLog.calMsgLength, spec 2.1), many in one pass.

    head | body | topic length | topic | properties length | properties

`message/single.py` has the same checks for one unit, and the words for what is wrong.
"""

from __future__ import annotations

import numpy as np

from store_format.kernels.crc32 import crc32
from store_format.kernels.jit import (
    BOOL,
    BOOLS,
    BYTES,
    INT,
    INTS,
    INTS32,
    NOTHING,
    OUT_BOOLS,
    OUT_BYTES,
    OUT_INTS,
    OUT_INTS32,
    kernel,
    part,
)
from store_format.kernels.strings import PADDING, copy_text
from store_format.kernels.words import U64, load16, load32, load64, prefetch_range, word
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN

_V1, _V2 = MAGIC_V1 - 2**32, MAGIC_V2 - 2**32  # as signed numbers
_MAGIC, _BODY_CRC, _QUEUE_ID, _FLAG, _QUEUE_OFFSET, _PHYSICAL_OFFSET, _SYS_FLAG = (
    int(MESSAGE_HEADS[0].fields[name][1])  # type: ignore[index]
    for name in ("magic", "body_crc", "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag")
)
_BORN_TIMESTAMP, _BORN_PORT, _STORE_TIMESTAMP, _STORE_PORT = (
    int(MESSAGE_HEADS[0].fields[name][1])  # type: ignore[index]
    for name in ("born_timestamp", "born_port", "store_timestamp", "store_port")
)
_HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # with two IPv4 hosts
_MORE = MESSAGE_HEADS[1].itemsize - _HEAD_SIZE  # for each IPv6 host
_CLOSED = 0x1 | 0x80  # MessageSysFlag: the body is compressed, or has messages of its own
_PORT_MAX = 0xFFFF
_TOPIC_LENGTH_MAX_V1 = 0x7F  # MessageDecoder reads one signed byte
_CRC_MASK = 0x7FFFFFFF
# How far ahead units are prefetched, and how many bytes of each: of long ones the head and the properties.
_AHEAD = 8
_PREFETCHED_MAX, _PREFETCHED_WITH_BODY_MAX = 320, 1344


@part
def find_parts(buffer, position, size, physical_offset):
    """Returns (body start, body length, topic start, topic length, properties start, properties length).

    Starts are positions in `buffer`; all are 0 for bytes that are no unit of `size` bytes with its own
    `physical_offset`. The last bytes of a unit that fits are its properties.
    """
    none = (0, 0, 0, 0, 0, 0)
    if size < MESSAGE_SIZE_MIN or position < 0 or position > len(buffer) - size:
        return none
    magic = load32(buffer, position + _MAGIC)
    if (
        load32(buffer, position) != size
        or (magic != _V1 and magic != _V2)
        or load64(buffer, position + _PHYSICAL_OFFSET) != physical_offset
    ):
        return none
    sys_flag = load32(buffer, position + _SYS_FLAG)
    head_size = _HEAD_SIZE + _MORE * ((sys_flag >> 4 & 1) + (sys_flag >> 5 & 1))
    width = 1 if magic == _V1 else 2
    room = size - head_size - width - 2  # of body, topic and properties
    if room < 0:
        return none
    body_start = position + head_size
    body_length = max(load32(buffer, body_start - 4), 0)  # negative: no body, as in MessageDecoder
    if body_length > room:
        return none
    topic_at = body_start + body_length
    if width == 1:
        topic_length = np.int64(buffer[topic_at])
        topic_fits = topic_length <= _TOPIC_LENGTH_MAX_V1
    else:
        topic_length = load16(buffer, topic_at)
        topic_fits = topic_length >= 0
    properties_length = room - body_length - topic_length
    if not topic_fits or properties_length < 0:
        return none
    topic_start = topic_at + width
    properties_at = topic_start + topic_length
    if load16(buffer, properties_at) != properties_length:
        return none
    return body_start, body_length, topic_start, topic_length, properties_at + 2, properties_length


@part
def prefetch_unit(buffer, position, size, verify_crc):
    """Prefetches what the checks of the unit look at, and the properties; any numbers are harmless."""
    if size <= (_PREFETCHED_WITH_BODY_MAX if verify_crc else _PREFETCHED_MAX):
        prefetch_range(buffer, position, size)
    else:
        prefetch_range(buffer, position, 128)
        prefetch_range(buffer, position + size - 256, 256)


@part
def is_intact(buffer, position, body_start, body_length):
    """Returns whether the body has its stored CRC. An empty body has none, as in recovery by a broker."""
    return body_length == 0 or (
        crc32(buffer, body_start, body_length) & _CRC_MASK == load32(buffer, position + _BODY_CRC)
    )


@part
def _is_equal(buffer, at, padded, start, size):
    """Returns whether two ranges of `size` bytes are equal; `padded` has eight more bytes behind it."""
    done = 0
    while done < size:
        left = size - done
        if at + done <= len(buffer) - 8:
            different = word(buffer, at + done) ^ word(padded, start + done)
            if different << U64(64 - 8 * min(left, 8)) != U64(0):
                return False
            done += 8
        else:
            if buffer[at + done] != padded[start + done]:
                return False
            done += 1
    return True


@kernel(
    INT, BYTES, INTS, INTS, INTS, BOOL,
    INTS32, INTS, BYTES, INTS, INTS32, BOOLS,
    OUT_BOOLS, OUT_BOOLS, OUT_INTS32, OUT_INTS32,
    OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_INTS32, OUT_BYTES,
)  # fmt: skip
def locate(
    buffer, positions, physical_offsets, sizes, verify_crc,
    queue_ids, queue_offsets, topics, topic_edges, topic_index, light,
    fits, is_unusual, sys_flag, flag, body_start, body_length, topic_start, topic_length, properties_start,
    properties_length, born_timestamp, store_timestamp, body_offsets, bodies,
):  # fmt: skip
    """Marks the units that fit in `fits`, and fills the other outputs for them. Returns their number.

    Unless `body_offsets` is empty, the bodies are copied into `bodies` while the core's cache has them, one
    behind the other: that of unit i is bodies[body_offsets[i]:body_offsets[i + 1]]. body_offsets[0] is -1 if
    `bodies` has not PADDING bytes more than all of them.

    Unit i should lie at positions[i] of `buffer` with sizes[i] bytes, and have the physical offset
    physical_offsets[i]. Unless `topic_edges` is empty, its queue id and queue offset should be queue_ids[i]
    and queue_offsets[i], and its topic number topic_index[i] (0 where that is empty) of `topics`: topic k is
    topics[topic_edges[k]:topic_edges[k + 1]], and eight bytes of padding follow the last. light[k] says that
    a unit has another topic, queue id and queue offset than its queue (%LMQ%).
    """
    count = end = 0
    with_bodies = len(body_offsets) > len(positions)
    if with_bodies:
        body_offsets[0] = 0
    for i in range(len(positions)):
        if i + _AHEAD < len(positions):
            prefetch_unit(buffer, positions[i + _AHEAD], sizes[i + _AHEAD], verify_crc or with_bodies)
        if with_bodies:
            body_offsets[i + 1] = end
        position = positions[i]
        parts = find_parts(buffer, position, sizes[i], physical_offsets[i])
        if parts[0] == 0:
            continue
        if len(topic_edges):
            topic = np.int64(topic_index[i]) if len(topic_index) else 0
            start = topic_edges[topic]
            size = topic_edges[topic + 1] - start
            if not light[topic] and (
                load32(buffer, position + _QUEUE_ID) != queue_ids[i]
                or load64(buffer, position + _QUEUE_OFFSET) != queue_offsets[i]
                or parts[3] != size
                or not _is_equal(buffer, parts[2], topics, start, size)
            ):
                continue
        if verify_crc and not is_intact(buffer, position, parts[0], parts[1]):
            continue
        count += 1
        fits[i] = True
        flags = load32(buffer, position + _SYS_FLAG)
        born_more = _MORE * (flags >> 4 & 1)
        more = born_more + _MORE * (flags >> 5 & 1)
        born_port, store_port = (
            load32(buffer, position + _BORN_PORT + born_more),
            load32(buffer, position + _STORE_PORT + more),
        )
        is_unusual[i] = (
            flags & _CLOSED != 0 or not 0 <= born_port <= _PORT_MAX or not 0 <= store_port <= _PORT_MAX
        )
        sys_flag[i], flag[i] = flags, load32(buffer, position + _FLAG)
        body_start[i], body_length[i] = parts[0], parts[1]
        if with_bodies:
            if end + parts[1] + PADDING <= len(bodies):
                copy_text(bodies, end, buffer, parts[0], parts[1])
                end += parts[1]
                body_offsets[i + 1] = end
            else:
                body_offsets[0] = -1
        topic_start[i], topic_length[i] = parts[2], parts[3]
        properties_start[i], properties_length[i] = parts[4], parts[5]
        born_timestamp[i] = load64(buffer, position + _BORN_TIMESTAMP)
        store_timestamp[i] = load64(buffer, position + _STORE_TIMESTAMP + born_more)
    return count


@part
def _field_place(positions, sys_flags, offsets, i):
    return positions[i] + offsets[sys_flags[i] >> 4 & 3]


@kernel(NOTHING, BYTES, INTS, INTS32, INTS, OUT_INTS)
def head_longs(buffer, positions, sys_flags, offsets, values):
    """Writes a field of eight bytes of each head, which the caller has checked, into `values`.

    The field lies `offsets[v]` bytes behind the position, where v is the variant (`one.head_variant`).
    """
    for i in range(len(positions)):
        values[i] = load64(buffer, _field_place(positions, sys_flags, offsets, i))


@kernel(NOTHING, BYTES, INTS, INTS32, INTS, OUT_INTS32)
def head_ints(buffer, positions, sys_flags, offsets, values):
    """Writes a field of four bytes of each head, as `head_longs`."""
    for i in range(len(positions)):
        values[i] = load32(buffer, _field_place(positions, sys_flags, offsets, i))
