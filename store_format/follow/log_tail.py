"""What a look at the end of the commitlog says of queues: that they have new messages, or other messages at
offsets that were read before.

The commitlog only names the queues to look at; their ends are those of their consume queues. So a look costs
one read if nothing is new, and the new messages otherwise, however many queues the store has.

Queues have other messages if store files were restored, a topic was deleted and created again, or the tail of
the log was written again. Queue offsets cannot show it. A message of an earlier look that is another one now
shows it: the last message of the log by its first bytes, the last of each queue by the place to which its
entry points. A checkpoint keeps the *place* of a message: its physical offset, and from bit 63 on the CRC32
of its first bytes. Messages of equal size stand at equal offsets in a store that was restored and written to
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, EndKind
from store_format.consumequeue.dispatch import find_entries
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.slices import Newest, QueueRange
from store_format.errors import (
    FileReplacedError,
    StoreError,
    StorePermissionError,
    StoreUnreachableError,
)
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.java.text import tags_code_many
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_UNIT, OFFSET_MAX, as_struct
from store_format.message.locate import UnitRefs, locate
from store_format.message.properties import PropertyTable
from store_format.names import SCHEDULE_TOPIC, TAGS, QueueKey, is_light_queue
from store_format.read.store import Queue
from store_format.survey.scan import LogQueues

# the fixed part of a message and some of its body: offsets and times differ from any earlier message there
_HEAD_SIZE = 96
_READ_BACK_MAX = 16 << 10  # bytes of a consume queue in one read, instead of two reads of an entry
_UNIT = as_struct(CQ_UNIT)
MARKED_SIZE = 64  # of a message: with the body's CRC, the offsets and the times, and without the body
_TRUSTED_MIN = 256  # queues; the files of fewer are read
_SAMPLED = 64


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
    places = np.searchsorted(refs.physical_offsets, mine)
    codes, whole = _codes(refs, places)
    data = refs.buffer.data
    marks = [crc32(data[position : position + MARKED_SIZE]) for position in refs.positions[places].tolist()]
    # the first offset, if the offsets are consecutive; else the newest one
    number, first = found.key[rows], found.offset[rows]
    starts = np.full(len(found.keys), OFFSET_MAX)
    np.minimum.at(starts, found.key, found.offset)
    seen = np.bincount(found.key, found.count, len(found.keys)).astype(np.int64)
    stops = first + found.count[rows]
    first = np.where(stops - starts[number] == seen[number], starts[number], first)
    columns = (
        stops, found.physical[rows], found.size[rows], codes[index], whole[index], first,
        np.array(marks, np.int64)[index],
    )  # fmt: skip
    rows_of = zip(*(each.tolist() for each in columns), strict=True)
    made = dict(zip([found.keys[n] for n in number.tolist()], map(Newest._make, rows_of), strict=True))
    light = {topic for topic, _ in found.keys if is_light_queue(topic)}
    many = found.count[rows] > 1
    for key in [key for key, is_many in zip(made, many.tolist(), strict=True) if is_many or key[0] in light]:
        made[key] = made[key]._replace(tags_code=None)
    for key in made.keys() & queues.keys():
        if queues[key].stop == made[key].start:
            made[key] = made[key]._replace(start=queues[key].start)
    queues |= made


def _codes(refs: UnitRefs, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """(tags code, whether the CRC is right) of some messages of `refs`."""
    units, bad = locate(refs.select(rows), verify_crc=True)
    whole = np.ones(len(rows), bool)
    whole[[unit.index for unit in bad]] = False
    codes = np.zeros(len(rows), np.int64)
    if len(units):
        codes[whole] = tags_code_many(PropertyTable(units.raw_properties()).values(TAGS))
    return codes, whole


def follow_queues(
    queues: Mapping[QueueKey, Queue], news: Mapping[QueueKey, Newest], pending: Collection[QueueKey]
) -> Collection[QueueKey]:
    """Those of the queues with news whose newest entries `has_newest` finds.

    A broker writes entries in the order of the log. So of many queues that go on without a gap, the one with
    the last message is read, and a sample: if they have their entries, all have, except `pending` ones, which
    have lacked an entry before.
    """
    going = [key for key, newest in news.items() if key not in pending and _goes_on(queues[key], newest)]
    found: set[QueueKey] = set()
    if len(going) >= _TRUSTED_MIN:
        places = [news[key].physical_offset for key in going]
        sample = {*going[:: len(going) // _SAMPLED], going[places.index(max(places))]}
        found = {key for key in sample if has_newest(queues[key].range, news[key])}
        if len(found) == len(sample):
            if len(going) == len(news):
                return news.keys()
            found.update(going)
    return found | {key for key in news if key not in found and has_newest(queues[key].range, news[key])}


def _goes_on(queue: Queue, newest: Newest) -> bool:
    """Whether the messages follow the last entry of a plain consume queue. A queue with a `newest` is one."""
    return (
        newest.start == queue.max_offset < newest.stop
        and newest.tags_code is not None
        and (queue.newest is not None or _is_plain(queue.range))
    )


def _is_plain(queue: QueueRange) -> bool:
    bounds = queue.bounds
    return (
        bounds is not None
        and bounds.kind == "simple"
        and not queue.extra
        and queue.max_offset == bounds.max_offset
        and bounds.first_physical_offset >= 0
    )


def has_newest(queue: QueueRange, newest: Newest) -> bool:
    """Whether the queue has its newest entry, by one read of that entry and of the last known one.

    False if the entry is missing or differs from the message, if the last known entry has changed, or if the
    queue is not a plain consume queue: then its files must be read.
    """
    bounds = queue.bounds
    if bounds is None or not _is_plain(queue) or newest.tags_code is None or newest.stop <= queue.max_offset:
        return False
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
        return False
    physical_offset, size, code = _UNIT.unpack_from(data, position - begin)
    is_of_message = (physical_offset, size) == (newest.physical_offset, newest.size)
    is_other_code = code != newest.tags_code and code > CQ_EXT_ADDRESS_MAX and queue.topic != SCHEDULE_TOPIC
    return is_of_message and not is_other_code


def _read_entries(bounds: QueueBounds, start: int, stop: int) -> bytes:
    """The bytes `start` to `stop` of the queue, all in one file; b"" if the file is missing or incomplete."""
    file_start = start - start % bounds.file_size
    path = f"{bounds.directory}/{StoreFile.name_at(file_start)}"
    return files_at(path).read_range(path, start - file_start, stop - start, bounds.file_size)


# ---- queues that have other messages -----------------------------------------------------------------------


_SAMPLES_MAX = 8
_OFFSET_BITS = 63


@dataclass(frozen=True, slots=True)
class Replaced:
    """A queue that has other messages at offsets below `stop`, its end at the earlier look.

    From offset `begin` all its messages are new, because the topic was deleted and created again; None if
    files were replaced.
    """

    stop: int
    begin: int | None


class LogSamples:
    """The last message of the commitlog at each of the last looks: (physical offset, first bytes)."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, bytes]] = deque(maxlen=_SAMPLES_MAX)

    def add(self, log: CommitLog, physical_offset: int) -> None:
        """Remembers the message at the offset; the same message again costs nothing."""
        if physical_offset < 0 or (self._samples and self._samples[-1][0] == physical_offset):
            return
        head = read_head(log, physical_offset)
        if head:
            self._samples.append((physical_offset, head[: int.from_bytes(head[:4])]))

    def is_intact(self, log: CommitLog) -> bool:
        """Whether the newest sample is unchanged, or was deleted by retention."""
        return not self._samples or _is_same(log, *self._samples[-1])

    def take_intact(self, log: CommitLog) -> int:
        """The physical offset of the newest unchanged sample, -1 without one; later samples are forgotten."""
        while self._samples and not _is_same(log, *self._samples[-1]):
            self._samples.pop()
        return self._samples[-1][0] if self._samples else -1


def _is_same(log: CommitLog, physical_offset: int, head: bytes) -> bool:
    return physical_offset < log.min_offset or read_head(log, physical_offset)[: len(head)] == head


def replaced_by(before: Queue, now: Queue, intact: int | None) -> Replaced | None:
    """How the queue of an earlier look was replaced; None if the queue continues.

    `intact`: only the log up to this physical offset is the same; None: all of it.
    """
    stop = before.max_offset
    if before.scanned is not None or now.scanned is not None:
        last = last_physical_offset(before.range) if before.scanned is None else before.scanned.last
        begin, first = _begin(now)
        if 0 <= last < begin and first < stop:  # -1: an entry does not say where the last message was
            return Replaced(stop, first)
        return Replaced(stop, None) if intact is not None and stop else None
    last, bounds = last_physical_offset(before.range), now.range.bounds
    if last < 0:
        return None
    if bounds is not None and now.min_offset < stop and _begins_behind(now.range, last):
        return Replaced(stop, now.min_offset)
    if intact is not None and last > intact:
        return Replaced(stop, None)
    if bounds is None or now.min_offset >= stop:  # retention deleted the entry
        return None
    # Offsets show a queue that ends earlier.
    return (
        Replaced(stop, None)
        if now.max_offset >= stop and _physical_offset(now.range, stop - 1) not in (last, None)
        else None
    )


def _begins_behind(queue: QueueRange, physical_offset: int) -> bool:
    """Whether the queue's first entry leads behind a physical offset, and the second one still further: a
    single entry may be wrong.
    """
    first = -1 if queue.bounds is None else queue.bounds.first_physical_offset
    if 0 <= first <= physical_offset:
        return False
    last = physical_offset
    for at in range(queue.min_offset, min(queue.min_offset + 2, queue.max_offset)):
        place = _physical_offset(queue, at)
        if place is None or place <= last:
            return False
        last = place
    return last > physical_offset


def _begin(queue: Queue) -> tuple[int, int]:
    """The physical offset and the queue offset of the first message since the queue began again at 0."""
    if queue.scanned is not None:
        return queue.scanned.claims.begin, queue.min_offset
    bounds = queue.range.bounds
    return (-1 if bounds is None else bounds.first_physical_offset), queue.min_offset


def place_before(queue: Queue, offset: int) -> int | None:
    """The place of the message before a queue offset; None without a message.

    None also without a consume queue, unless that message is the last one.
    """
    newest = queue.newest
    if newest is not None and offset == newest.stop:
        return place_at(newest.physical_offset, newest.mark)  # of 10,000 queues, after each look
    physical = _physical_offset_before(queue, offset)
    return None if physical is None else place_at(physical, _mark(queue.store.log, physical))


def place_at(physical_offset: int, mark: int) -> int:
    """The place of a message whose first bytes have the CRC32 `mark`; 0: not known."""
    return physical_offset | mark << _OFFSET_BITS


def physical_offset_of(place: int) -> int:
    """The physical offset of a place."""
    return place & ((1 << _OFFSET_BITS) - 1)


def mark_of(place: int) -> int:
    """The CRC32 of a place; 0 without one."""
    return place >> _OFFSET_BITS


def _mark(log: CommitLog, physical_offset: int) -> int:
    """The CRC32 of the first bytes of a message; 0 if no message can be read there."""
    if not log.has_message_at(physical_offset):
        return 0
    return crc32(read_head(log, physical_offset)[:MARKED_SIZE])


def _physical_offset_before(queue: Queue, offset: int) -> int | None:
    if not queue.min_offset < offset <= queue.max_offset:
        return None
    if queue.scanned is not None:
        return queue.scanned.last if offset == queue.max_offset else None
    last = last_physical_offset(queue.range) if offset == queue.max_offset else -1
    found = last if last >= 0 else _physical_offset(queue.range, offset - 1)
    return None if found is None or found < 0 else found


def replaced_since(queue: Queue, offset: int, place: int) -> Replaced | None:
    """How the queue was replaced since the message before `offset` was at `place`.

    None if the message is still there, or if nothing can tell: retention deleted it, or its entry or the
    message cannot be read.
    """
    physical_offset = physical_offset_of(place)
    if queue.scanned is not None:
        begin, first = _begin(queue)
        if begin > physical_offset and first < offset:
            return Replaced(offset, first)
        return Replaced(offset, None) if _is_other(queue.store.log, place) else None
    if queue.range.bounds is None or offset <= queue.min_offset:
        return None
    is_there = offset <= queue.max_offset
    if is_there:
        now = _physical_offset_before(queue, offset)
        if now in (physical_offset, None):
            return Replaced(offset, None) if now is not None and _is_other(queue.store.log, place) else None
    if _begins_behind(queue.range, physical_offset):
        return Replaced(offset, queue.min_offset)
    return Replaced(offset, None) if is_there else None


def _is_other(log: CommitLog, place: int) -> bool:
    """Whether another message is at a place."""
    before, now = mark_of(place), _mark(log, physical_offset_of(place))
    return before != now and 0 not in (before, now)


def offset_behind(queue: Queue, place: int) -> int:
    """The first offset of a queue whose message is behind the message at a place."""
    physical_offset = physical_offset_of(place)
    if queue.scanned is None:
        return queue.piece().split_at([physical_offset + 1])[1].start
    if queue.scanned.last <= physical_offset:
        return queue.max_offset
    begin, first = _begin(queue)
    if begin > physical_offset:
        return first
    behind = LogQueues.of(queue.store.log, queue.topic.__eq__, start=physical_offset).queues[queue.key]
    begin, first, _ = behind.epochs[0]
    return first + (begin == physical_offset)


def last_physical_offset(queue: QueueRange) -> int:
    """The physical offset of the last message; -1 without one, or if only the queue's files could tell."""
    if queue.extra:
        units = queue.extra_units
        return int(units["physical_offset"][-1])
    bounds = queue.bounds
    return -1 if bounds is None or bounds.max_offset != queue.max_offset else bounds.last_physical_offset


def _physical_offset(queue: QueueRange, offset: int) -> int | None:
    """The physical offset that the entry of a queue offset points to; None if it cannot be read."""
    try:
        _, units = queue.piece(offset, offset + 1).read()
    except StoreError:
        return None
    return int(units["physical_offset"][-1]) if len(units) and units["size"][-1] > 0 else None
