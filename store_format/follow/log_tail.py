"""The new messages at the end of the commitlog: which queues got them, and what their newest entries must be.

The commitlog only names the queues to look at; their ends are those of their consume queues. So a look costs
one read if nothing is new, and the new messages otherwise, however many queues the store has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, EndKind
from store_format.consumequeue.dispatch import find_entries
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.slices import QueueRange
from store_format.errors import (
    FileReplacedError,
    StoreError,
    StorePermissionError,
    StoreUnreachableError,
)
from store_format.files.read import offset_file_name, read_range
from store_format.java.hashes import tags_code_many
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_UNIT, as_struct
from store_format.message.locate import UnitRefs, locate
from store_format.message.properties import PropertyTable
from store_format.names import SCHEDULE_TOPIC, TAGS, QueueKey, is_light_queue

# the fixed part of a message and some of its body: offsets and times differ from any earlier message there
_HEAD_SIZE = 96
_READ_BACK_MAX = 16 << 10  # bytes of a consume queue in one read, instead of two reads of an entry
_UNIT = as_struct(CQ_UNIT)


@dataclass(frozen=True, slots=True)
class Newest:
    """The newest message of a queue, as the log has it. `stop` is the queue offset after the message.

    `tags_code` None: the queue entry does not follow from the message alone (a light queue, a message batch).
    `is_whole` says that the body's CRC is right.
    """

    stop: int
    physical_offset: int
    size: int
    tags_code: int | None
    is_whole: bool


@dataclass(slots=True)
class News:
    """The queues that got messages, and where the log ends now.

    After `end` there is nothing (`is_unwritten`) or an incomplete message (`is_torn`). `last` is the physical
    offset of the last message, -1 if there is none. `is_full`: the last file with messages is full; an empty
    file does not count.
    """

    queues: dict[QueueKey, Newest] = field(default_factory=dict)
    end: int = 0
    last: int = -1
    is_torn: bool = False
    is_unwritten: bool = False
    is_full: bool = False


def read_head(log: CommitLog, offset: int) -> bytes:
    """The bytes at a physical offset where the next message will begin; b"" without a file there.

    Other bytes at a later look mean that a message was written. Raises StorePermissionError, and the errors
    of object storage.
    """
    file = log.file_at(offset)
    if file is None:
        return b""
    try:
        return log.view(file).read(offset - file.start, _HEAD_SIZE)
    except (StorePermissionError, StoreUnreachableError):
        raise  # b"" would say that the message is gone
    except FileReplacedError:
        if file.stored is not None:
            raise
        return b""
    except StoreError:
        return b""


def read_news(
    log: CommitLog, start: int, stop: int | None, select: Callable[[str], bool], size_max: int | None = None
) -> News | None:
    """Walks the log from `start`, where a message begins or will begin, to `stop` or the end.

    None if that is more than `size_max` bytes.
    """
    news = News(end=start, is_full=True)
    if log.file_at(start) is None:
        return news
    walk = log.walk(start, stop)
    for run in walk:
        assert not isinstance(run, Damage)  # only a walk with resync has damage
        _add_newest(news.queues, log.refs_of(run), select)
        news.end, news.last = run.file.start + run.stop, run.file.start + int(run.positions[-1])
        if size_max is not None and news.end - start > size_max:
            return None
    assert walk.end is not None
    news.is_torn, news.is_unwritten = walk.end.kind is EndKind.TORN, walk.end.kind is EndKind.UNWRITTEN
    news.is_full = walk.end.kind in (EndKind.BLANK, EndKind.MISSING)
    if walk.end.kind is EndKind.MISSING or walk.end.offset > news.end:
        news.end = walk.end.offset
    return news


def is_torn(log: CommitLog, end: int) -> bool:
    """Whether the log continues at the physical offset `end` with bytes that are not a whole message."""
    try:
        walk = log.walk(end, verify_crc=True)
        return (
            next(walk, None) is None
            and walk.end is not None
            and walk.end.kind is EndKind.TORN
            and walk.end.offset == end
        )
    except StoreError:
        return False  # files were deleted: a look at the whole store finds what is left


def near_end(log: CommitLog, start: int, stop: int | None, margin_size: int) -> tuple[int, int]:
    """(place, end): the start of a message at least `margin_size` bytes before the log's end, and the end.

    Neither is before `start`, where a message must begin. Only sizes and heads of messages are read.
    """
    if log.file_at(start) is None:
        return start, start
    begins: deque[int] = deque([start])
    for run in log.walk(start, stop):
        assert not isinstance(run, Damage)
        begins.append(run.file.start + run.stop)
        while len(begins) > 1 and begins[1] <= begins[-1] - margin_size:
            begins.popleft()
    return begins[0], begins[-1]


def _add_newest(queues: dict[QueueKey, Newest], refs: UnitRefs, select: Callable[[str], bool]) -> None:
    """Takes the newest message of each selected queue into `queues`."""
    units, _ = locate(refs, verify_crc=False)
    if not len(units):
        return
    found = find_entries(units, select)
    if not len(found.key):
        return
    newest = np.full(len(found.keys), -1, np.int64)
    np.maximum.at(newest, found.key, np.arange(len(found.key)))
    rows = newest[newest >= 0]
    mine, index = np.unique(found.physical[rows], return_inverse=True)
    codes, whole = _codes(refs, np.searchsorted(refs.physical_offsets, mine))
    for row, i in zip(rows.tolist(), index.tolist(), strict=True):
        key, count = found.keys[int(found.key[row])], int(found.count[row])
        code = None if count > 1 or is_light_queue(key[0]) else int(codes[i])
        stop = int(found.offset[row]) + count
        queues[key] = Newest(stop, int(found.physical[row]), int(found.size[row]), code, bool(whole[i]))


def _codes(refs: UnitRefs, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(tags code, whether the CRC is right) of some messages of `refs`."""
    units, bad = locate(refs.select(rows), verify_crc=True)
    whole = np.ones(len(rows), bool)
    whole[[unit.index for unit in bad]] = False
    codes = np.zeros(len(rows), np.int64)
    if len(units):
        codes[whole] = tags_code_many(PropertyTable(units.raw_properties()).values(TAGS))
    return codes, whole


def follow_queue(queue: QueueRange, newest: Newest) -> QueueRange | None:
    """The queue with its newest entry, by one read of that entry and of the last known one.

    None if the entry is missing or differs from the message, if the last known entry has changed, or if the
    queue is not a plain consume queue: then its files must be read.
    """
    bounds = queue.bounds
    plain = (
        bounds is not None
        and bounds.kind == "simple"
        and not queue.extra
        and queue.max_offset == bounds.max_offset
    )
    if (
        bounds is None
        or not plain
        or bounds.first_physical_offset < 0
        or newest.tags_code is None
        or newest.stop <= queue.max_offset
    ):
        return None
    position = (newest.stop - 1) * _UNIT.size
    file_start = position - position % bounds.file_size
    before = (queue.max_offset - 1) * _UNIT.size
    begin = before if before >= file_start and position - before <= _READ_BACK_MAX else position
    data = _read_entries(bounds, begin, position + _UNIT.size)
    known = data if begin == before else _read_entries(bounds, before, before + _UNIT.size)
    if (
        not data
        or not known
        or _UNIT.unpack_from(known)[:2] != (bounds.last_physical_offset, bounds.last_size)
    ):
        return None
    physical_offset, size, code = _UNIT.unpack_from(data, position - begin)
    if (physical_offset, size) != (newest.physical_offset, newest.size):
        return None
    if code != newest.tags_code and code > CQ_EXT_ADDRESS_MAX and queue.topic != SCHEDULE_TOPIC:
        return None
    return _grown(queue, bounds, newest, file_start)


def _grown(queue: QueueRange, bounds: QueueBounds, newest: Newest, last_file: int) -> QueueRange:
    """Returns the queue up to its newest entry. `dataclasses.replace` would take three times as long."""
    grown = QueueBounds(
        bounds.topic,
        bounds.queue_id,
        bounds.directory,
        bounds.kind,
        bounds.file_size,
        bounds.first_file,
        last_file,
        bounds.commit_log_min,
        bounds.unit_start,
        newest.stop,
        bounds.min_offset,
        newest.stop,
        bounds.first_physical_offset,
        newest.physical_offset,
        newest.size,
        bounds.blank_stop,
    )
    return QueueRange(queue.topic, queue.queue_id, queue.min_offset, newest.stop, grown)


def _read_entries(bounds: QueueBounds, start: int, stop: int) -> bytes:
    """The bytes `start` to `stop` of the queue, all in one file; b"" if the file is missing or incomplete."""
    file_start = start - start % bounds.file_size
    path = f"{bounds.directory}/{offset_file_name(file_start)}"
    return read_range(path, start - file_start, stop - start, bounds.file_size)
