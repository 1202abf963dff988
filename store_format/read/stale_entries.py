"""Entries at the end of a consume queue whose messages were cut from the commitlog by a recovery.

A broker's recovery sets the end of its queues back in memory and clears no entry. Entries that point after
the log's end are found by that end; entries that point into messages written since are found by these
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import MissingEntries
from store_format.consumequeue.message_entries import find_entries
from store_format.consumequeue.slices import QueueRange, read_slice
from store_format.errors import StoreError
from store_format.files.read import StoreFile
from store_format.files.view import FileView
from store_format.java.hashes import java_hash
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX
from store_format.message.locate import locate
from store_format.message.property_table import PropertyTable
from store_format.message.unit_refs import Identity, UnitRefs
from store_format.names import SCHEDULE_TOPIC, TAGS, QueueKey, is_light_queue
from store_format.survey.readable_end import has_own_entry
from store_format.survey.right_entries import is_own

_UNSETTLED_MAX = 64  # newest entries of a queue in use that may be half written
_SEARCH_SIZE = 4 << 30  # of the log, for the message of an entry that leads elsewhere


def agrees(queue: QueueRange, offset: int, log: CommitLog) -> bool:
    """Whether the entry of one offset, tags code included, is what the log's message says."""
    _, units = read_slice(queue.piece(offset, offset + 1))
    if not len(units):
        return False
    unit = units[-1]
    physical, size, tags_code = int(unit["physical_offset"]), int(unit["size"]), int(unit["tags_code"])
    file = log.file_at(physical)
    if file is None or size > file.stop - physical:
        return False
    try:
        data = np.frombuffer(log.read(physical, size), np.uint8)
    except StoreError:
        return False
    queue_offset = int(unit["base_offset"]) if units.dtype == BATCH_CQ_UNIT else offset
    light = (is_light_queue(queue.topic),)
    identity = Identity(
        (queue.topic,), None, np.array([queue.queue_id], np.int32), np.array([queue_offset]), light
    )
    refs = UnitRefs(
        file,
        data,
        np.zeros(1, np.int64),
        np.array([physical]),
        np.array([size]),
        np.array([tags_code]),
        identity,
    )
    good, bad = locate(refs, verify_crc=True)
    if bad:
        return False
    if tags_code <= CQ_EXT_ADDRESS_MAX or queue.topic == SCHEDULE_TOPIC:
        return True  # an address or a delivery time, both written in one go with the rest
    tags = PropertyTable(good.raw_properties()).values(TAGS)[0].as_py()
    return tags_code == (java_hash(tags) if tags else 0)


def settled(queue: QueueRange, log: CommitLog) -> QueueRange:
    """The queue without newest entries that are half written or ahead of the log.

    These are not written yet; they are not damage.
    """
    stop = queue.max_offset
    floor = max(queue.min_offset, stop - _UNSETTLED_MAX)
    while stop > floor and not agrees(queue, stop - 1, log):
        stop -= 1
    return queue if stop == queue.max_offset else replace(queue, max_offset=stop)


def without_overwritten(
    log: CommitLog, queues: dict[QueueKey, QueueRange], start: int, stop: int
) -> tuple[dict[QueueKey, QueueRange], set[QueueKey]]:
    """After a crash: the queues without newest entries whose messages are overwritten.

    The log was recovered from `start` to `stop`. An entry that points into damage stays, and is an error or
    counted when it is read. The second result are the queues whose newest entry on disk did not agree with
    the log.
    """
    cut = {
        key: queue
        for key, queue in queues.items()
        if _last_in(queue, start) and not agrees(queue, queue.max_offset - 1, log)
    }
    if not cut:
        return queues, set()
    whole = _Whole(log, start, stop)
    return queues | {
        key: _cut_overwritten(queue, log, lambda place: whole.at(place) >= 0) for key, queue in cut.items()
    }, set(cut)


def without_cut(queue: QueueRange, found: MissingEntries) -> tuple[QueueRange, MissingEntries]:
    """The queue up to the first entry that does not point to its message, and what is missing after it.

    `found` has entries of all messages in the log's tail that were stored after the queue's last one, or of
    all in the tail. An entry that points elsewhere was written for a message that an earlier recovery has
    cut, and so were all entries after it.
    """
    offsets = found.queue_offsets
    known = offsets[offsets < queue.max_offset]
    stop = queue.max_offset
    if len(known):
        on_disk, units = read_slice(queue.piece(int(known[0]), stop))
        places = np.searchsorted(on_disk, known)
        places[places == len(on_disk)] = 0
        physical = (
            units["physical_offset"][places].astype(np.int64) if len(units) else np.full(len(known), -1)
        )
        right = (physical == found.units["physical_offset"][: len(known)]) & (
            on_disk[places] == known if len(units) else False
        )
        if len(units):
            right &= units["size"][places] == found.units["size"][: len(known)]
        if not right.all():
            stop = int(known[~right][0])
            queue = _cut_at(queue, stop)
    return queue, MissingEntries(offsets[offsets >= stop], found.units[offsets >= stop])


def without_stale(
    root: str, log: CommitLog, queues: dict[QueueKey, QueueRange], stop: int, *, is_live: bool = False
) -> dict[QueueKey, QueueRange]:
    """The same for a store without a crash, whose log ends at `stop`."""
    return judged_queues(root, log, queues, stop, is_live=is_live)[0]


def judged_queues(
    root: str, log: CommitLog, queues: dict[QueueKey, QueueRange], stop: int, *, is_live: bool = False
) -> tuple[dict[QueueKey, QueueRange], set[QueueKey]]:
    """The queues without stale entries, and those whose newest entry is wrong and not stale.

    Costs one read a queue, and more only if its newest entry is wrong. If the entry's message is elsewhere in
    the log, the entry is wrong, and stays. The message to which it points is damaged if no entry of
    the queue that the message names points there; in a store that a broker writes (`is_live`) that entry may
    not be written yet.
    """
    whole = _Whole(log)

    def is_foreign(physical: int) -> bool:
        start = whole.at(physical)
        return start >= 0 and (is_live or has_own_entry(root, log, start))

    changed, wrong = {}, set()
    view_of = lru_cache(maxsize=64)(log.view)  # which looks at the file's status for each queue otherwise
    for key, queue in queues.items():
        is_light = is_light_queue(queue.topic)  # its messages belong to other queues
        if (
            is_light
            or not _is_plain(queue)
            or leads_to_own(queue, log, view_of)
            or agrees(queue, queue.max_offset - 1, log)
        ):
            continue
        cut = _cut_overwritten(queue, log, is_foreign)
        if cut.max_offset < queue.max_offset and not _is_elsewhere(queue, cut, log, stop):
            changed[key] = cut
        else:
            wrong.add(key)
    return queues | changed if changed else queues, wrong


def _is_plain(queue: QueueRange) -> bool:
    return (
        queue.bounds is not None
        and not queue.is_batch
        and not queue.extra
        and queue.max_offset > queue.min_offset
    )


def _last_in(queue: QueueRange, start: int) -> bool:
    """Whether the newest entry points to `start` or after it."""
    return _is_plain(queue) and queue.bounds is not None and queue.bounds.last_physical_offset >= start


def leads_to_own(
    queue: QueueRange, log: CommitLog, view_of: Callable[[StoreFile], FileView] | None = None
) -> bool:
    """Whether the newest entry leads to the message of the queue with this offset: one read of its first
    bytes.
    """
    bounds = queue.bounds
    if bounds is None or bounds.max_offset != queue.max_offset:
        return False
    place = bounds.last_physical_offset, bounds.last_size
    return is_own(log, (queue.topic, queue.queue_id), queue.max_offset - 1, place, view_of)


@dataclass(slots=True)
class _Whole:
    """Whole messages, CRC included: of [start, stop) of the log, or of each file that `at` asks for."""

    log: CommitLog
    start: int | None = None
    stop: int | None = None
    # where they begin and end
    known: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def at(self, physical: int) -> int:
        """Where the whole message with the byte at this physical offset begins; -1 without one."""
        if self.start is not None:
            first, stop = self.start, self.stop
        else:
            file = self.log.file_at(physical)
            if file is None:
                return -1
            first, stop = file.start, file.stop
        if first not in self.known:
            walk = self.log.walk(first, stop, verify_crc=True, resync=True)
            runs = [(run.physical_offsets, run.sizes) for run in walk if isinstance(run, UnitRun)]
            starts = np.concatenate([np.empty(0, np.int64), *(starts for starts, _ in runs)])
            self.known[first] = (
                starts,
                starts + np.concatenate([np.empty(0, np.int64), *(sizes for _, sizes in runs)]),
            )
        starts, stops = self.known[first]
        i = int(np.searchsorted(starts, physical, side="right")) - 1
        return int(starts[i]) if i >= 0 and physical < int(stops[i]) else -1


def _cut_overwritten(queue: QueueRange, log: CommitLog, is_overwritten: Callable[[int], bool]) -> QueueRange:
    stop = queue.max_offset
    while stop > queue.min_offset:
        _, units = read_slice(queue.piece(stop - 1, stop))
        physical = int(units[0]["physical_offset"]) if len(units) else -1
        if not is_overwritten(physical) or agrees(queue, stop - 1, log):
            break
        stop -= 1
    return _cut_at(queue, stop)


def _cut_at(queue: QueueRange, stop: int) -> QueueRange:
    """The queue without its entries from offset `stop` on."""
    assert queue.bounds is not None
    physical, size = -1, 0
    if stop > queue.min_offset:
        _, units = read_slice(queue.piece(stop - 1, stop))
        physical, size = (int(units[0]["physical_offset"]), int(units[0]["size"])) if len(units) else (-1, 0)
    last = replace(
        queue.bounds, unit_stop=stop, max_offset=stop, last_physical_offset=physical, last_size=size
    )
    return replace(
        queue,
        max_offset=stop,
        bounds=last if stop > queue.min_offset else replace(last, first_physical_offset=-1),
    )


def _is_elsewhere(queue: QueueRange, cut: QueueRange, log: CommitLog, stop: int) -> bool:
    """Whether the log has a message of the queue at an offset that was cut.

    True if the search would be too long.
    """
    assert cut.bounds is not None
    first = max(cut.bounds.last_physical_offset, log.min_offset)
    if stop - first > _SEARCH_SIZE:
        return True
    for run in log.walk(first, stop, resync=True) if first < stop else ():
        if not isinstance(run, UnitRun):
            continue
        units, _ = locate(log.refs_of(run), verify_crc=False)
        found = find_entries(units, queue.topic.__eq__)
        mine = [i for i, key in enumerate(found.keys) if key == (queue.topic, queue.queue_id)]
        if len(found.key) and bool(
            (
                np.isin(found.key, mine)
                & (found.offset >= cut.max_offset)
                & (found.offset < queue.max_offset)
            ).any()
        ):
            return True
    return False
