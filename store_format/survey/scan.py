"""The queues and entries of the messages in the commitlog, while all cores read it.

`LogScan.parts` cuts the log into parts of about 64 MiB, which threads scan: reads and kernels run without the
interpreter lock. The parts, with the queue and index entries of their messages, come back in the order of the
log. `LogQueues.of` finds the queues and their offsets in this way, where no file names them: a `LogQueue` has
the places where its offsets went back.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field
from threading import local
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import within_ranges
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, UnitRun
from store_format.consumequeue.dispatch import ENTRY_ROW, NO_FILING, Claims, Dispatch, Filing, MadeEntries
from store_format.consumequeue.files import QueueKind
from store_format.consumequeue.slices import QueueRange
from store_format.display.text import shown
from store_format.errors import CorruptStoreError
from store_format.names import DELAY_LEVELS_MS, QueueKey

if TYPE_CHECKING:
    from store_format.index.updates import IndexBatch

_log = logging.getLogger(__name__)

PART_SIZE = 64 << 20  # bytes of the log
_EPOCHS_MAX = 1000  # each costs a pass over the entries; topics are rarely deleted and created again

_Ints = NDArray[np.int64]
_Mask = NDArray[np.bool_]


# ---- the entries, in parts of the log ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogScan:
    """What is looked for. `index` is False if nobody needs the index entries. With `check_bodies`, messages
    with a wrong body are counted as damage; their entries stay. With `is_live`, a broker is writing: an
    incomplete message at the end does not count. `batch_topics` as for `find_entries`, `floor` and
    `places_only` as for `Dispatch`.
    """

    batch_topics: frozenset[str] | None = frozenset()
    delay_levels_ms: tuple[int, ...] = tuple(DELAY_LEVELS_MS)
    index: bool = True
    tag_keys: bool = True
    check_bodies: bool = False
    is_live: bool = False
    places_only: bool = False
    floor: Callable[[QueueKey], tuple[int, int]] = lambda _: (0, -1)

    def parts(
        self,
        log: CommitLog,
        start: int,
        stop: int,
        holes: Sequence[tuple[int, int, UnitRun | None]] = (),
        *,
        threads: int | None = None,
    ) -> Iterator[LogPart]:
        """The parts of [start, stop) in their order. A unit begins at `start`; damage is skipped and listed.

        Of the `holes` [start, stop) each with a record has that message, the others none. `threads` is by
        default the number of cores; 0 scans in this thread.
        """
        for low, high, record in (*holes, (stop, stop, None)):
            if start < low:
                yield from self._parts(log, start, low, threads)
            if record is not None and start <= low:
                yield self._part(log, low, high, record)
            start = max(start, high)

    def entries_between(
        self,
        log: CommitLog,
        ranges: Iterable[tuple[int, int]],
        *,
        old: Sequence[tuple[int, int]] = (),
        filing: Callable[[], Filing] = Filing,
    ) -> tuple[dict[QueueKey, MadeEntries], list[Damage]]:
        """The entries of the messages that count in `ranges` of the log, each from the beginning of a message
        on, and the damage there. Messages in the `old` ranges do not count; `filing` decides between
        messages with one offset. All in this thread: `floor` may look at files of the store.
        """
        found, damage = dict[QueueKey, list[NDArray[np.void]]](), list[Damage]()
        for start, stop in ranges:
            for part in self.parts(log, start, stop, threads=0):
                damage += part.damage
                rows = part.rows[~within_ranges(part.rows["physical"], old)]
                for key, mine in by_queue(part.queues, rows):
                    found.setdefault(key, []).append(mine)
        batch_topics = self.batch_topics or ()
        return {
            key: MadeEntries.of(key, np.concatenate(mine), filing, batch=key[0] in batch_topics)
            for key, mine in found.items()
        }, damage

    def _parts(self, log: CommitLog, start: int, stop: int, threads: int | None) -> Iterator[LogPart]:
        cuts = _cuts(log, start, stop)
        if threads is None:
            threads = len(os.sched_getaffinity(0)) if stop - start > PART_SIZE else 0
        covered = start
        with ExitStack() as stack:
            parts = (
                _in_threads(self, log, cuts, threads, stack)
                if threads
                else (self._part(log, *each) for each in cuts)
            )
            for (low, high), part in zip(cuts, parts, strict=True):
                # A part begins where a message was found by its bytes. The messages before decide whether one
                # begins there: such bytes may be within a message, and a message may have a wrong checksum.
                if low != start and covered >= low and part.runs[:1] != [covered]:
                    part = self._part(log, covered, high)
                covered = max(covered, part.stop)
                yield part

    def _part(self, log: CommitLog, start: int, stop: int, record: UnitRun | None = None) -> LogPart:
        """The entries of the messages that begin in [start, stop); only the `record` if it is given."""
        dispatch = Dispatch(self.batch_topics, self.delay_levels_ms, self.floor, self.places_only)
        runs, end, units = list[int](), -1, 0
        indexed: list[IndexBatch] = []
        if self.index:
            from store_format.index.updates import index_batch  # reads need none of it
        damage = []
        steps = log.walk(start, stop, resync=True) if start < stop and record is None else ()
        for run in steps if record is None else (record,):
            if isinstance(run, Damage):
                damage += [] if self.is_live and run.at_tail else [run]
                continue
            refs = log.written_refs(run) if self.is_live else log.refs_of(run)
            if not len(refs):
                continue
            runs.append(int(refs.physical_offsets[0]))
            end, units = int(refs.physical_offsets[-1] + refs.sizes[-1]), units + len(refs)
            dispatch.add(refs)
            if self.index:
                indexed.append(index_batch(refs, tag_keys=self.tag_keys))
        closed = 0
        if self.check_bodies and start < stop and record is None:
            from store_format.message.decode import unopened  # it imports pyarrow.compute

            walk, damage = log.walk(start, stop, verify_crc=True, resync=True), []
            for step in walk:
                if isinstance(step, Damage):
                    damage.append(step)
                else:
                    closed += len(unopened(log.refs_of(step)))
            units = walk.sums.units
        queues, rows = dispatch.take_rows()
        damaged = within_ranges(rows["physical"], [each.range for each in damage])
        units += int((rows["batch_size"][~damaged] - 1).sum())
        joined = _joined_batches(indexed) if self.index else None
        return LogPart(runs, end, units, queues, rows, joined, damage, closed, dispatch.levels)


@dataclass(frozen=True, eq=False, slots=True)
class LogPart:
    """The entries of the messages that begin in one part of the log, in the order of the log.

    `rows` are ENTRY_ROW records whose `queue` is a place in `queues`. At the physical offsets `runs` messages
    begin, the first one included; the last one ends at `stop`, -1 without messages. `units` counts the
    messages; `unopened` ones pass all checks, and no client decodes them. `levels` as in `Dispatch`.
    """

    runs: list[int]
    stop: int
    units: int
    queues: list[QueueKey]
    rows: NDArray[np.void]
    index: IndexBatch | None
    damage: list[Damage]
    unopened: int = 0
    levels: Collection[tuple[QueueKey, int]] = ()


def by_queue(names: list[QueueKey], rows: NDArray[np.void]) -> Iterator[tuple[QueueKey, NDArray[np.void]]]:
    """The ENTRY_ROW records of each queue, in the order of the log."""
    if not len(rows):
        return
    small = len(names) < 1 << 15  # numpy sorts 16-bit numbers in one pass
    order = np.argsort(rows["queue"].astype(np.int16 if small else np.int64), kind="stable")
    # numpy takes rows of numbers in half the time of records
    rows = rows.view(np.int64).reshape(len(rows), -1).take(order, axis=0).view(ENTRY_ROW).reshape(-1)
    for mine in np.split(rows, np.flatnonzero(np.diff(rows["queue"])) + 1):
        physical = mine["physical"]
        if (physical[1:] < physical[:-1]).any():
            mine = mine[np.argsort(physical, kind="stable")]
        yield names[int(mine["queue"][0])], mine


def _joined_batches(batches: list[IndexBatch]) -> IndexBatch:
    from store_format.index.updates import IndexBatch

    counts = np.cumsum([0, *(len(each.physical_offsets) for each in batches)])
    empty = np.empty(0, np.int64)
    return IndexBatch(
        np.concatenate([empty, *(each.physical_offsets for each in batches)]),
        np.concatenate([empty, *(each.store_timestamps for each in batches)]),
        np.concatenate([np.empty(0, np.int32), *(each.key_hashes for each in batches)]),
        np.concatenate(
            [empty, *(each.message_index + base for each, base in zip(batches, counts, strict=False))]
        ),
    )


def _cuts(log: CommitLog, start: int, stop: int) -> list[tuple[int, int]]:
    """[start, stop) in parts. Every file begins a part."""
    places = [start]
    for file in log.files:
        places += [place for place in range(file.start, file.stop, PART_SIZE) if start < place < stop]
    return list(zip(places, [*places[1:], stop], strict=True))


def _in_threads(
    scan: LogScan, log: CommitLog, cuts: list[tuple[int, int]], threads: int, stack: ExitStack
) -> Iterator[LogPart]:
    """The parts in order, at most two a thread ahead of the caller: they are held in memory."""

    own = local()  # a FileCache is for one thread

    def run(start: int, stop: int) -> LogPart:
        own.log = getattr(own, "log", None) or log.apart()
        return scan._part(own.log, start, stop)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="rmqlog-scan")
    stack.callback(pool.shutdown, cancel_futures=True)
    ahead: deque[Future[LogPart]] = deque()
    left = iter(cuts)
    while True:
        while len(ahead) < 2 * threads and (cut := next(left, None)) is not None:
            ahead.append(pool.submit(run, *cut))
        if not ahead:
            return
        yield ahead.popleft().result()


# ---- the queues --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LogQueue:
    """A queue as the commitlog shows it: offsets [min_offset, max_offset) of its messages.

    `epochs` has one element for each time that the queue's offsets went back: the physical offset of that
    place, the first queue offset and the offset after the last. Usually there is one; more mean that the
    topic was deleted and created again, or that two messages claim one offset: the `claims` say which count.
    `last` is the physical offset of the last message, `last_old` that of the last message before the newest
    epoch.
    """

    topic: str
    queue_id: int
    is_batch: bool = False
    bytes: int = 0
    physical_stop: int = 0  # the end of the log when it was walked
    epochs: list[tuple[int, int, int]] = field(default_factory=list)
    last: int = -1
    last_old: int = -1
    claims: Claims = field(default_factory=Claims)

    @property
    def min_offset(self) -> int:
        return self.claims.runs[0][0]

    @property
    def max_offset(self) -> int:
        """The offset after the last message since the queue last started at 0.

        Messages of a deleted topic do not count.
        """
        return self.claims.runs[-1][1]

    @property
    def gaps(self) -> int:
        """How many queue offsets between others no message has."""
        return sum(stop - start for start, stop in self.claims.gaps)

    @property
    def range(self) -> QueueRange:
        """The offsets of the queue. No file has them."""
        kind: QueueKind = "batch" if self.is_batch else "simple"
        return QueueRange(self.topic, self.queue_id, self.min_offset, self.max_offset, None, kind=kind)

    def copy(self) -> LogQueue:
        found = copy(self)  # a fifth of the time of `replace`
        found.epochs, found.claims = [*self.epochs], self.claims.copy()
        return found

    def add(self, rows: NDArray[np.void]) -> list[tuple[bool, NDArray[np.void]]]:
        """Takes in messages in commitlog order; at least one. Returns what `Claims.add` yields."""
        physical, offset, stop = rows["physical"], rows["offset"], rows["offset"] + rows["batch_size"]
        starts = (np.flatnonzero(offset[1:] < stop[:-1]) + 1).tolist() if len(rows) > 1 else ()
        for low, high in zip([0, *starts], [*starts, len(offset)], strict=True):
            first, last = int(offset[low]), int(stop[high - 1])
            if low == 0 and self.epochs and first >= self.epochs[-1][2]:
                self.epochs[-1] = (*self.epochs[-1][:2], last)
            else:
                self.last_old = int(physical[low - 1]) if low else self.last
                self.epochs.append((int(physical[low]), first, last))
        self.last = int(physical[-1])
        return list(self.claims.add(rows))

    def join(self, later: LogQueue) -> None:
        """Takes in what another walk found after this part of the commitlog."""
        for number, (begin, first, stop) in enumerate(later.epochs):
            if self.epochs and first >= self.epochs[-1][2]:
                self.epochs[-1] = (*self.epochs[-1][:2], stop)
            else:
                self.last_old = later.last_old if number else self.last
                self.epochs.append((begin, first, stop))
        self.last = later.last
        begins = not later.min_offset and later.claims.has_more and self.claims.has_more
        if begins or not self.claims.runs or any(low < 0 for low, *_ in later.claims.left[:1]):
            self.claims = later.claims.copy()
        else:
            for run in later.claims.runs:
                self.claims.take(*run)

    def counts(self, physical: _Ints, offset: _Ints) -> NDArray[np.bool_]:
        """Which messages count: those whose queue offset no other message has taken."""
        keep: NDArray[np.bool_] = physical >= self.epochs[0][0]
        for low, high, start, stop in self.claims.left:
            keep &= (physical < low) | (physical >= high) | (offset < start) | (offset >= stop)
        return keep


@dataclass(slots=True)
class LogQueues:
    """The queues as the commitlog shows them.

    `log` is the commitlog as it was listed. `cuts` are physical offsets at which messages begin, about evenly
    spaced, the first and the end included.
    """

    log: CommitLog
    queues: dict[QueueKey, LogQueue]
    cuts: list[int]
    damage: list[Damage]

    @staticmethod
    def of(
        log: CommitLog,
        select: Callable[[str], bool],
        *,
        start: int | None = None,
        stop: int | None = None,
        cut_bytes: int = PART_SIZE,
        is_live: bool = False,
        begins: Mapping[QueueKey, int] = MappingProxyType({}),
        filing: Filing = NO_FILING,
    ) -> LogQueues:
        """The queues of the selected topics. Damage is skipped and listed; a read decides whether it is an
        error.

        From the log's first byte, or from `start`, where no message need begin. `is_live` as for `LogScan`.
        Messages before the physical offset at which their queue `begins` are of a deleted topic. `filing`
        decides between messages with one offset.
        """
        end = log.min_offset if start is None else start
        found = LogQueues(log, {}, [end], [])
        scan = LogScan(None, index=False, is_live=is_live, places_only=True)
        for part in scan.parts(log, end, log.stop if stop is None else stop):
            found.damage += part.damage
            for run in part.runs:
                if run - found.cuts[-1] >= cut_bytes:
                    found.cuts.append(run)
            chosen = np.array([select(topic) for topic, _ in part.queues], bool)
            rows = part.rows if chosen.all() else part.rows[chosen[part.rows["queue"]]]
            for key, mine in by_queue(part.queues, rows):
                _add(
                    found.queues,
                    key,
                    mine[mine["physical"] >= begins[key]] if key in begins else mine,
                    log,
                    filing,
                )
            end = max(end, part.stop)
        if end > found.cuts[-1] or len(found.cuts) == 1:
            found.cuts.append(end)
        for key, queue in found.queues.items():
            queue.physical_stop = end
            if far := queue.claims.leave_far(queue.epochs[0][1]):
                warn_of_far(key, far, queue.claims.left[-1][2], log.cache.said)
        return found


def warn_of_far(key: QueueKey, count: int, first: int, said: set[object]) -> None:
    """Warns once for each queue, as `said` shows, of messages that are left out."""
    if (warn_of_far, key) not in said:
        said.add((warn_of_far, key))
        text = "%s-%d: %d messages have queue offsets far behind all others, from %d on, and are left out"
        _log.warning(text, shown(key[0]), key[1], count, first)


def _add(
    queues: dict[QueueKey, LogQueue], key: QueueKey, rows: NDArray[np.void], log: CommitLog, filing: Filing
) -> None:
    if not len(rows):
        return
    queue = queues.setdefault(key, LogQueue(*key, claims=filing.claims(key)))
    queue.add(rows)
    if len(queue.epochs) > _EPOCHS_MAX:
        file = log.file_at(queue.epochs[-1][0])
        assert file is not None
        raise CorruptStoreError(
            file.path,
            queue.epochs[-1][0] - file.start,
            f"at most {_EPOCHS_MAX} restarts of the queue offsets of {key[0]}-{key[1]}",
            f"more, the newest from offset {queue.epochs[-1][1]}",
        )
    queue.bytes += int(rows["size"].sum())
    queue.is_batch = queue.is_batch or bool((rows["batch_size"] > 1).any())
