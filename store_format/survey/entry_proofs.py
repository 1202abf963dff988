"""What the log says against an entry of a consume queue, and what an entry says against the log.

Entries that are zeros or lead to no message of the queue are made again from the log: nothing else has the
right entry. The entries before and behind it, which lead to messages of the queue, bound the place of its
message: between their messages the log is read.

No checksum covers the topic, the queue id and the queue offset in a message. A flipped bit makes others of
them, and the entry of the message's own place still points to it. Such a message is damaged; it does not
belong to a topic that was deleted, nor to the place of another message (`Contradictions`).
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import consecutive, gather_units, merged_ranges
from store_format.bookkeeping.journal import Abort
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import MadeEntries, find_entries
from store_format.consumequeue.files import DISORDER, FOLDERS, can_be_queue
from store_format.consumequeue.slices import QueueRange, QueueRanges, QueueSlice
from store_format.consumequeue.units import FiledQueue, list_queues
from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.paths import StoreFile
from store_format.files.view import FileView
from store_format.java.text import decode_utf8
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN, OFFSET_MAX
from store_format.message.locate import Units, inner_batches, locate
from store_format.message.single import LENGTH_MAX, TOPIC_LENGTH_MAX_V1, find_parts, head_variant, read_head
from store_format.names import QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.survey.log_end import entries_of_run, entry_at
from store_format.survey.scan import LogScan

_log = logging.getLogger(__name__)

_READ_SIZE = 1024
_CHUNK = 1 << 16  # entries
_MANY = 64  # messages of one file that are worth whole arrays
_AT_ONCE = 4096  # messages, with the bytes between those that are near each other: at most 70 MB
_NEIGHBOURS = 64  # entries that are read at once to find one that leads to its message
_BESIDE = 8  # entries in front of a queue's first one that are doubted with it
_DIFFERENT_MAX = 2  # characters of two topics of one length
_LOOKS_MAX = 1 << 10  # messages whose entries are looked for
_PLACE = ("physical_offset", "size")  # fields of an entry

_Ints = NDArray[np.int64]
_Units = NDArray[np.void]


# ---- entries and the log -----------------------------------------------------------------------------------


class MessagePlace(NamedTuple):
    """What the head of a message says: its queue, its queue offset, its size in bytes and its sysFlag."""

    key: QueueKey
    offset: int
    size: int
    sys_flag: int


@dataclass(frozen=True, slots=True)
class LogEntries:
    """The entries of queues as the messages of the log give them, and what the log says against others."""

    NOWHERE: ClassVar = -1  # the physical offset of an entry whose message is not in the log
    log: CommitLog

    def message_at(
        self, physical: int, view_of: Callable[[StoreFile], FileView] | None = None
    ) -> MessagePlace | None:
        """What the message says that begins at the physical offset, by one read of its first bytes; None
        without one. No checksum is checked.
        """
        file = self.log.file_at(physical)
        if file is None:
            return None
        try:
            view, position = (view_of or self.log.view)(file), physical - file.start
            data = view.read(position, _READ_SIZE)
            head = read_head(data)
            if head is None or head.physical_offset != physical or head.magic not in (MAGIC_V1, MAGIC_V2):
                return None
            unit, at = (data, 0) if len(data) >= head.total_size else (view, position)
            parts, wrong = find_parts(unit, at, head.total_size, head)
            if wrong is not None or parts.topic_length is None:
                return None
            name = data[parts.topic_start : parts.topic_start + parts.topic_length]
            if len(name) < parts.topic_length:
                name = view.read(position + parts.topic_start, parts.topic_length)
            return MessagePlace(
                (decode_utf8(name), head.queue_id), head.queue_offset, head.total_size, head.sys_flag
            )
        except (StoreError, OSError):
            return None

    def places_at(self, physical: int) -> set[tuple[QueueKey, int]]:
        """The queues and queue offsets of the whole message that begins there; none without it."""
        runs = self.log.runs(physical, physical + 1) if self.log.has_message_at(physical) else ()
        return {each[:2] for run in runs for each in entries_of_run(self.log, run, verify_crc=True)}

    def shown_record(
        self, key: QueueKey, offset: int, place: tuple[int, int], *, claims: bool
    ) -> UnitRun | None:
        """The record at `place` (physical offset, size), to which an entry leads, with its right size, magic
        code and physical offset; None if it is not whole then. With `claims`, it has to claim the queue
        offset, else it gets this claim, too.
        """
        start, size = place
        file = self.log.file_at(start)
        if file is None or not MESSAGE_SIZE_MIN <= size <= file.stop - start:
            return None
        data = np.frombuffer(self.log.read(start, size), np.uint8).copy()
        head = data[: MESSAGE_HEADS[0].itemsize].view(MESSAGE_HEADS[0])
        head["total_size"], head["physical_offset"] = size, start
        if not claims:
            head["queue_id"], head["queue_offset"] = key[1], offset
        run = UnitRun(file, np.array([start - file.start]), np.array([size]), data, start - file.start)
        for magic in (int(head["magic"][0]), MAGIC_V1, MAGIC_V2):
            head["magic"] = magic
            if any(each[:2] == (key, offset) for each in entries_of_run(self.log, run, verify_crc=True)):
                return run
        return None

    def is_own(
        self,
        key: QueueKey,
        offset: int,
        place: tuple[int, int],
        view_of: Callable[[StoreFile], FileView] | None = None,
    ) -> bool:
        """Whether the entry of a queue offset, with `place` (physical offset, size), leads to its message.

        False for a light queue, whose messages belong to other queues.
        """
        found = self.message_at(place[0], view_of)
        return found is not None and (found.key, found.offset, found.size) == (key, offset, place[1])

    def leads_to_own(
        self, key: QueueKey, offsets: _Ints, units: _Units, *, or_record: bool = False
    ) -> NDArray[np.bool_]:
        """Which entries of a simple queue lead to a message that claims their place, with `or_record` or to a
        `shown_record`, which a broker hands out. No checksum of a message is checked.
        """
        places, damaged = self._claims_at(key, units["physical_offset"].astype(np.int64))
        claimed = zip(offsets.tolist(), *(units[name].tolist() for name in _PLACE), strict=True)
        is_own = (
            place in places
            or (
                or_record
                and place[1] in damaged
                and self.shown_record(key, place[0], place[1:], claims=True) is not None
            )
            for place in claimed
        )
        return np.fromiter(is_own, bool, len(units))

    def leads_elsewhere(self, key: QueueKey, offsets: _Ints, units: _Units) -> NDArray[np.bool_]:
        """Which entries of a simple queue lead to a message of the queue that claims another place."""
        physical = units["physical_offset"].astype(np.int64)
        places = {place[:2] for place in self._claims_at(key, physical, verify_crc=True)[0]}
        known = {at for _, at in places}
        claimed = zip(offsets.tolist(), physical.tolist(), strict=True)
        return np.fromiter((each[1] in known and each not in places for each in claimed), bool, len(units))

    def _claims_at(
        self, key: QueueKey, physical: _Ints, *, verify_crc: bool = False
    ) -> tuple[set[tuple[int, int, int]], set[int]]:
        """The queue offset, the physical offset and the size of each message of the queue at the physical
        offsets, and the physical offsets of those that are not whole.
        """
        places, damaged = set[tuple[int, int, int]](), set[int]()
        in_files = self.log.file_index(physical)
        for index in np.unique(in_files[in_files >= 0]).tolist():
            for _, refs in self.log.refs_at(self.log.files[index], np.unique(physical[in_files == index])):
                good, bad = locate(refs, verify_crc=verify_crc)
                damaged.update(int(refs.physical_offsets[each.index]) for each in bad)
                found = find_entries(good)
                mine = found.key == (found.keys.index(key) if key in found.keys else -1)
                columns = (each[mine].tolist() for each in (found.offset, found.physical, found.size))
                places |= set(zip(*columns, strict=True))
        return places, damaged

    def messages_at(self, physical: int) -> int:
        """How many messages the body of the inner batch at the physical offset has; 0 without a whole one."""
        from store_format.message.decode import split_batches  # it imports pyarrow.compute

        file = self.log.file_at(physical)
        for _, refs in self.log.refs_at(file, np.array([physical])) if file is not None else ():
            units, _ = locate(refs, verify_crc=True)
            if inner_batches(units).any():
                return int(split_batches(units.stored_bodies().to_pylist())[0].counts[0])
        return 0

    def own_newest(self, queues: QueueRanges) -> NDArray[np.bool_]:
        """The queues whose newest entry `is_own`, as far as few reads of many short messages show it."""
        columns = queues.columns
        places, sizes = columns["last_physical_offset"], columns["last_size"]
        asked = (sizes >= MESSAGE_SIZE_MIN) & (sizes <= _READ_SIZE)
        asked &= columns["max_offset"] > columns["min_offset"]
        own, rows = np.zeros(len(columns), bool), np.flatnonzero(asked)
        if len(rows) < _MANY:
            return own
        rows = rows[np.argsort(places[rows], kind="stable")]
        begins = np.array([file.start for file in self.log.files], np.int64)
        numbers = np.searchsorted(begins, places[rows], side="right") - 1
        edges = np.flatnonzero(np.diff(numbers)) + 1
        for low, high in pairwise([0, *edges.tolist(), len(rows)]):
            if numbers[low] < 0 or high - low < _MANY:
                continue
            for start in range(low, high, _AT_ONCE):
                mine = rows[start : min(start + _AT_ONCE, high)]
                mine = mine[self._are_own_in(self.log.files[numbers[low]], queues, mine)]
                own[mine] = True
        return own

    def _are_own_in(self, file: StoreFile, queues: QueueRanges, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Which of these rows' newest messages, whose physical offsets are in the file, are their own."""
        own, keys, columns = np.zeros(len(rows), bool), queues.keys_in_order, queues.columns[rows]
        physical, sizes = columns["last_physical_offset"], columns["last_size"]
        inside = np.flatnonzero(physical + sizes <= file.stop)
        # on object storage a look at each costs no more requests
        if file.stored is not None or not len(inside):
            return own
        if len(inside) < len(rows):
            own[inside] = self._are_own_in(file, queues, rows[inside])
            return own
        try:
            starts = physical - file.start
            (window,) = self.log.view(file).windows([(starts, starts + sizes)])
        except (StoreError, OSError):
            return own  # a look at one of the messages finds the same
        heads = gather_units(window.data, window.positions, MESSAGE_HEADS[0])
        width = 1 + (heads["magic"] == MAGIC_V2)
        topic_at = MESSAGE_HEADS[0].itemsize + np.maximum(heads["body_length"], 0).astype(np.int64)
        rest = sizes - topic_at - width - 2  # of topic and properties
        fits = (heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2)
        fits &= (head_variant(heads["sys_flag"]) == 0) & (rest >= 0)
        fits &= (heads["physical_offset"] == physical) & (heads["total_size"] == sizes)
        fits &= heads["queue_offset"] == columns["max_offset"] - 1
        named = [keys[row] for row in rows.tolist()]
        fits &= heads["queue_id"] == np.fromiter((queue_id for _, queue_id in named), np.int64, len(rows))
        known: dict[str, int] = {}
        of = [known.setdefault(topic, len(known)) for topic, _ in named]
        texts = [topic.encode(errors="surrogatepass") for topic in known]
        topics, lengths = np.array(texts)[of], np.array([*map(len, texts)])[of]
        rest -= lengths  # bytes of the properties
        fits &= (lengths <= TOPIC_LENGTH_MAX_V1) & (rest >= 0) & (rest <= LENGTH_MAX)
        kinds = lengths * 4 + width
        for kind in {*kinds[fits].tolist()}:
            length, width_of = divmod(kind, 4)
            text = np.dtype([("length", f">u{width_of}"), ("topic", f"S{length}"), ("rest", ">u2")])
            mine = np.flatnonzero(fits & (kinds == kind))
            found = gather_units(window.data, (window.positions + topic_at)[mine], text)
            same = (found["length"] == length) & (found["rest"] == rest[mine])
            own[mine] = same & (found["topic"] == topics[mine].astype(f"S{length}"))
        return own

    def read(self, piece: QueueSlice) -> tuple[_Ints, _Units]:
        """What `QueueSlice.read` gives, with the entries that can be seen to be wrong made again from the
        log.

        Wrong are zeros, and entries that are not in the order of the log and do not lead to their message.
        Zeros whose message the log does not have lead NOWHERE.
        """
        offsets, units = piece.read()
        if not piece.queue.is_derived or not len(units) or not self.log.files or is_light_queue(piece.topic):
            return offsets, units
        physical = units["physical_offset"].astype(np.int64)
        if physical[0] >= max(self.log.min_offset, 1) and not (physical[1:] < physical[:-1]).any():
            return offsets, units
        wrong = self._wrong(piece, offsets, units, physical)
        if not len(wrong):
            return offsets, units
        right = self.entries_of([(piece.queue, offsets[wrong])]).get((piece.topic, piece.queue_id))
        units = units.copy()
        nowhere = wrong[physical[wrong] < max(self.log.min_offset, 1)]  # not expired
        units["physical_offset"][nowhere] = self.NOWHERE
        made, gone = 0, wrong
        if right is not None:
            _, at, of = np.intersect1d(offsets[wrong], right.queue_offsets, return_indices=True)
            units[wrong[at]] = right.units[of]
            made, gone = len(at), np.delete(wrong, at)
        zeros = gone[units["size"][gone] == 0]
        holes = zeros[self.are_holes(piece.queue, offsets[zeros])]
        name = f"{shown(piece.topic)}-{piece.queue_id}"
        if len(holes):
            text = (
                "%s: %d queue offsets, the first %d, have no entry and no message: a broker counted them. %s"
            )
            _log.warning(text, name, len(holes), int(offsets[holes[0]]), "No message is lost")
        if len(holes) < len(wrong):
            _log.warning(
                "%s: %d entries of the consume queue are zeros or lead to other messages, the first at "
                "offset %d: %d of their messages are read from the commitlog",
                name, len(wrong) - len(holes), int(offsets[np.setdiff1d(wrong, holes)[0]]), made,
            )  # fmt: skip
        return np.delete(offsets, holes), np.delete(units, holes)

    def are_holes(self, queue: QueueRange, offsets: _Ints) -> NDArray[np.bool_]:
        """Which of the ascending queue offsets, without an entry and without a message in the log, never had
        one: between the messages beside them the log is whole. A broker that starts on a blank last file,
        which a power loss leaves, counts one place too many (ConsumeQueue.truncateDirtyLogicFiles).
        """
        found = np.zeros(len(offsets), bool)
        for start, stop in consecutive(offsets):
            before, behind = self._beside(queue.piece(start, stop))
            if before is None or behind is None or before >= behind or self.log.damage(before, behind):
                continue
            found |= (offsets >= start) & (offsets < stop)
        return found

    def _wrong(self, piece: QueueSlice, offsets: _Ints, units: _Units, physical: _Ints) -> NDArray[np.intp]:
        """The places in `units` of entries that are wrong, without the first ones that may have expired
        since.
        """
        is_wrong = (units["size"] <= 0) | (physical < 0)
        expired = (physical < self.log.min_offset) & (offsets >= piece.queue.min_offset)
        bounds = piece.queue.bounds
        if bounds is None or self.log.min_offset > bounds.commit_log_min:  # since the queue was looked at
            good = ~expired & ~is_wrong
            first = int(good.argmax()) if good.any() else len(units)
            is_wrong[:first] = expired[:first] = False
        valid = np.flatnonzero(~is_wrong & ~expired)
        in_order = valid[LogEntries.longest_ascent(physical[valid])]
        is_wrong |= expired
        for i in np.setdiff1d(valid, in_order).tolist():
            place = int(physical[i]), int(units["size"][i])
            is_wrong[i] = not self.is_own((piece.topic, piece.queue_id), int(offsets[i]), place)
        return np.flatnonzero(is_wrong)

    @staticmethod
    def longest_ascent(values: _Ints) -> NDArray[np.intp]:
        """The places of a longest subsequence that does not descend."""
        if not (values[1:] < values[:-1]).any():
            return np.arange(len(values))
        ends: list[int] = []  # of the subsequences of each length, the least last value
        places: list[int] = []
        before = np.full(len(values), -1)
        for i, value in enumerate(values.tolist()):
            at = bisect_right(ends, value)
            before[i] = places[at - 1] if at else -1
            ends[at : at + 1], places[at : at + 1] = [value], [i]
        chain = [places[-1]]
        while before[chain[-1]] >= 0:
            chain.append(int(before[chain[-1]]))
        return np.array(chain[::-1])

    def entries_of(
        self, wanted: Sequence[tuple[QueueRange, _Ints]], log_stop: int = OFFSET_MAX
    ) -> dict[QueueKey, MadeEntries]:
        """The entries that the log's messages before `log_stop` give for these ascending queue offsets; each
        queue once.
        """
        offsets = {(queue.topic, queue.queue_id): mine for queue, mine in wanted}
        runs = [queue.piece(*run) for queue, mine in wanted for run in consecutive(mine)]
        places = (self._stretch(run) for run in runs)
        stretches = merged_ranges((start, min(stop, log_stop)) for start, stop in places)

        def floor(key: QueueKey) -> tuple[int, int]:  # a message with offset 0 may begin the queue again
            return 0, -1 if key in offsets else OFFSET_MAX

        found = {}
        for key, entries in LogScan(index=False, floor=floor).entries_between(self.log, stretches)[0].items():
            mine = np.isin(entries.queue_offsets, offsets[key])
            found[key] = MadeEntries(entries.queue_offsets[mine], entries.units[mine])
        return found

    def first_live(self, queue: QueueRange) -> int:
        """The first queue offset of a queue whose oldest entries are zeros, wrong or exchanged, and partly
        expired: that of the first message in the log. Where the log is damaged there the queue stays as it
        is.
        """
        bounds = queue.bounds
        if bounds is None or queue.is_batch or self.log.min_offset != bounds.commit_log_min:
            return queue.min_offset
        low, front, key = queue.min_offset, bounds.front, (queue.topic, queue.queue_id)
        stop = self.log.stop if bounds.first_physical_offset < 0 else bounds.first_physical_offset
        if 0 <= front < self.log.min_offset and self.is_flipped(
            key, low - 1, front, self.log.min_offset, stop
        ):
            return low - 1
        if front == DISORDER:
            low = max(low - _BESIDE, bounds.first_file // bounds.unit_size)
        elif not (
            0 <= bounds.first_physical_offset < self.log.min_offset
            or (self.log.min_offset and bounds.may_lack_first_entries)
        ):
            return low
        offsets, units = queue.piece(low, min(queue.max_offset, queue.min_offset + _CHUNK)).read()
        physical, sizes = units["physical_offset"].tolist(), units["size"].tolist()
        for i in np.flatnonzero(
            (units["physical_offset"] >= self.log.min_offset) & (units["size"] > 0)
        ).tolist():
            if is_light_queue(queue.topic) or self.is_own(key, int(offsets[i]), (physical[i], sizes[i])):
                break
        else:
            return queue.min_offset
        if i and self.log.damage(self.log.min_offset, physical[i]):
            return queue.min_offset
        found = self.entries_of([(queue, offsets[:i])] if i else []).get(key)
        return int(offsets[i] if found is None or not len(found.units) else found.queue_offsets[0])

    def is_flipped(self, key: QueueKey, offset: int, physical: int, start: int, stop: int) -> bool:
        """Whether the entry of a queue offset, which leads out of [start, stop) of the log, is that of a
        message there, apart from one bit. Costs a read only where a change of one bit leads into the range.
        """
        nearest = start - physical if physical < start else physical - stop + 1
        for bit in range(nearest.bit_length() - 1, max(physical, stop).bit_length()):
            place = physical ^ (1 << bit)
            if start <= place < stop:
                found = self.message_at(place)
                if found and (found.key, found.offset) == (key, offset):
                    return True
        return False

    def last_own(self, queue: QueueRange) -> int | None:
        """The physical offset of the last entry of a queue that leads to its message; None without one."""
        newest = queue.piece(queue.max_offset, queue.max_offset)
        return self._nearest_own(newest, range(queue.max_offset - 1, queue.min_offset - 1, -_NEIGHBOURS))

    def _stretch(self, run: QueueSlice) -> tuple[int, int]:
        """The physical offsets between which the messages of a run of offsets are.

        The message behind them is inside: a 1 shows that the queue begins again with the 0 before it.
        """
        before, behind = self._beside(run)
        start = self.log.min_offset if before is None else max(before, self.log.min_offset)
        return start, self.log.stop if behind is None else behind + 1

    def _beside(self, run: QueueSlice) -> tuple[int | None, int | None]:
        """The physical offsets of the nearest own messages before and behind a run of offsets."""
        queue = run.queue
        before = self._nearest_own(run, range(run.start - 1, queue.min_offset - 1, -_NEIGHBOURS))
        return before, self._nearest_own(run, range(run.stop, queue.max_offset, _NEIGHBOURS))

    def _nearest_own(self, run: QueueSlice, steps: range) -> int | None:
        """The physical offset of the nearest entry before or behind a run that leads to its own message."""
        queue = run.queue
        for at in steps:
            low, high = (at - _NEIGHBOURS + 1, at + 1) if steps.step < 0 else (at, at + _NEIGHBOURS)
            try:
                offsets, units = queue.piece(max(low, queue.min_offset), min(high, queue.max_offset)).read()
            except StoreError:  # retention has deleted a file
                return None
            rows = range(len(units))
            for i in rows[::-1] if steps.step < 0 else rows:
                place = int(units["physical_offset"][i]), int(units["size"][i])
                if self.is_own((queue.topic, queue.queue_id), int(offsets[i]), place):
                    return place[0]
        return None


# ---- messages whose topic the consume queues contradict ----------------------------------------------------


@dataclass(slots=True)
class Contradictions:
    """Messages whose own entry shows that their topic, queue id or queue offset is wrong: bits are flipped.

    Compares messages of topics without consume queues with the entries of topics of similar names, and
    messages whose queue offset does not follow that of the message before with entries beside their place.
    `own` are the queues and queue offsets of those that `of_queue` has found, by their physical offsets.
    """

    opened: Opened
    log: CommitLog
    own: dict[int, tuple[QueueKey, int]] = field(default_factory=dict)
    _topics: set[str] | None = None
    _similar: dict[str, list[str]] = field(default_factory=dict)
    _behind: dict[QueueKey, int] = field(default_factory=dict)  # the offset behind the last message
    _left: int = _LOOKS_MAX

    def of_units(self, units: Units) -> dict[int, CorruptStoreError]:
        """The errors of the messages whose topic is damaged, by their physical offsets."""
        found = find_entries(units, lambda topic: bool(self.similar_to(topic)))
        damaged: dict[int, CorruptStoreError] = {}
        for number in np.unique(found.key).tolist():
            rows = found.key == number
            damaged |= self.of_topic(found.keys[number], found.offset[rows], found.physical[rows])
        return damaged

    def of_log(self, units: Units) -> dict[int, CorruptStoreError]:
        """`of_queue` of all messages, which must come in the order of the log."""
        found = find_entries(units)
        damaged: dict[int, CorruptStoreError] = {}
        for number in np.unique(found.key).tolist():
            damaged |= self.of_queue(found.keys[number], found.claims(found.key == number))
        return damaged

    def of_queue(self, key: QueueKey, rows: _Units) -> dict[int, CorruptStoreError]:
        """The errors of the damaged messages of one queue, by their physical offsets. The next messages
        of the queue, in the order of the log, are records with the fields of `CLAIM`.
        """
        offsets, physical = rows["offset"], rows["physical"]
        if is_light_queue(key[0]):
            return {}
        if self.similar_to(key[0]):
            return self.of_topic(key, offsets, physical)
        following = offsets + rows["batch_size"]
        before = np.append(self._behind.get(key, -1 if len(rows) == 1 else offsets[0]), following[:-1])
        self._behind[key] = int(following[-1])
        odd = np.flatnonzero(offsets != before)
        damaged: dict[int, CorruptStoreError] = {}
        for i in np.union1d(odd, odd[odd > 0] - 1).tolist():
            if i + 1 < len(rows) and offsets[i + 1] == following[i]:
                continue  # the next message follows it
            place, offset = int(physical[i]), int(offsets[i])
            beside = {(key, int(before[i])), (key, int(offsets[i + 1]) - 1 if i + 1 < len(rows) else -1)}
            beside |= {(key, offset ^ (1 << bit)) for bit in range(63)}
            beside |= {((key[0], _flipped(key[1], bit)), offset) for bit in range(32)}
            file, entry = self.log.file_at(place), self._entry(key, offset)
            if file is None or not self._left or entry == place:
                continue
            self._left -= 1
            other = None if entry is None else LogEntries(self.log).message_at(entry)
            if other is not None and (other.key, other.offset) != (key, offset):
                continue  # the entries of the queue are wrong
            if entry is None:  # a queue file that is shifted by an entry
                beside.discard((key, offset + 1))
            own = next((each for each in beside if self._entry(*each) == place and self._fits(*each)), None)
            if own is not None and not self._is_built(key):
                (topic, queue_id), at = self.own[place] = own
                expected = f"a message of {topic}-{queue_id} offset {at}, whose entry points to it"
                found = f"one of {topic}-{key[1]} offset {offset}"
                damaged[place] = CorruptStoreError(file.path, place - file.start, expected, found)
        return damaged

    def of_topic(
        self, key: QueueKey, offsets: _Ints, physical_offsets: _Ints
    ) -> dict[int, CorruptStoreError]:
        """The errors of the messages of one queue whose topic is damaged, by their physical offsets.

        The messages have these queue offsets and physical offsets, one each.
        """
        topic, queue_id = key
        damaged: dict[int, CorruptStoreError] = {}
        for other in self.similar_to(topic):
            for offset, physical in zip(offsets.tolist(), physical_offsets.tolist(), strict=True):
                file = self.log.file_at(physical)
                if file and entry_at(self.opened, (other, queue_id), offset) == physical:
                    expected = (
                        f"a message of {other}-{queue_id}, whose consume queue points to it at offset "
                        f"{offset}"
                    )
                    found = f"the topic {topic}, which has no queue"
                    damaged[physical] = CorruptStoreError(file.path, physical - file.start, expected, found)
        return damaged

    def _is_built(self, key: QueueKey) -> bool:
        """Whether a broker that starts after a crash makes the queue, of the messages that claim it."""
        is_crashed = can_be_queue(*key) and Abort.read_mark(self.opened) == ""
        folders = (FiledQueue.of(self.opened, *key, kind).directory for kind in FOLDERS)
        return is_crashed and not any(
            self.opened.files.store_files(each, irregular=lambda _: None) for each in folders
        )

    def _entry(self, key: QueueKey, offset: int) -> int | None:
        return entry_at(self.opened, key, offset) if offset >= 0 else None

    def _fits(self, key: QueueKey, offset: int) -> bool:
        """Whether the entries beside that of the offset, as far as there are any, lead to their messages.
        Those of expired messages alone show nothing.
        """
        beside = {at: self._entry(key, at) for at in (offset - 1, offset + 1)}
        places = {at: place for at, place in beside.items() if place is not None}
        messages = {at: LogEntries(self.log).message_at(place) for at, place in places.items()}
        found = [(at, message) for at, message in messages.items() if message is not None]
        return all((each.key, each.offset) == (key, at) for at, each in found) and bool(found or not places)

    def similar_to(self, topic: str) -> list[str]:
        """The topics with queues whose names differ little from that of a topic without queues."""
        if self._topics is None:
            self._topics = set()
            with suppress(StoreError):  # a reader of queues raises the error
                self._topics = {each[0] for each in list_queues(self.opened, lambda _: True, lambda _: None)}
        if topic not in self._similar:
            others = self._topics if topic not in self._topics else ()
            self._similar[topic] = [each for each in others if _is_similar(topic, each)]
        return self._similar[topic]


def _flipped(number: int, bit: int) -> int:
    """A Java int with one bit flipped."""
    flipped = (number ^ (1 << bit)) & 0xFFFFFFFF
    return flipped - (flipped >> 31 << 32)


def _is_similar(one: str, other: str) -> bool:
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) <= _DIFFERENT_MAX
