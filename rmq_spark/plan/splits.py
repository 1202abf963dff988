"""Splits: plain values, each one Spark task's share of a read, packed by bytes of the commitlog.

A Python task costs 15 to 60 ms before its first row, so small queues are packed into one split. Larger queues
are cut so that tasks do not read the same pages: messages of a topic's queues lie interleaved in the log, and
all queues are cut at the same physical offsets, the edges of stretches that hold about the same number of
bytes of the slices. The stores of a cluster count as one log: the second store's begins where the first
store's ends.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rmq_spark.consume.consumer import MessageQueue, sort_queues
from rmq_spark.options.read_options import COMMITLOG, QUEUE, WHOLE_QUEUE, ReadOptions
from store_format.consumequeue.slices import QueueRanges, QueueSlice, WholeSlices
from store_format.errors import OptionError
from store_format.files import paths
from store_format.files.client import StoredObject
from store_format.files.files import Files
from store_format.files.read import files_at, places
from store_format.files.tree import FileSeries
from store_format.layouts import OFFSET_MAX
from store_format.read.store import Queue, Store
from store_format.survey.scan import LogQueue

_log = logging.getLogger(__name__)

_SPLIT_BYTES_MIN = 4 << 20  # a smaller split is not worth a task
_SPLITS_MAX = 100_000  # a task costs the driver a few kilobytes and milliseconds
_SAMPLED_ABOVE = 4096  # messages; the size of longer slices is estimated from more than the last message
_SIZES_SAMPLED = 8
_PART_BYTES = 256 << 10  # smaller parts cost a task more to open than the pages that it shares with others
_PLACES_SAMPLED = 16  # messages of a slice whose places are looked up …
_SLICES_SAMPLED_MAX = 256  # … if there are at most so many slices; of more, the first and the last

_LARGE = "/(commitlog|consumequeue|consumequeue_ext|batchconsumequeue|index|timerlog)/"  # directories
_FILES_MIN = 4  # of a directory: so many go to every task that needs one of them

_Floats = NDArray[np.float64]
_Found = TypeVar("_Found")
_Look = TypeVar("_Look")


@dataclass(frozen=True, slots=True)
class StoreSplit:
    """The part of one store in a split: slices of queues.

    One pass over the commitlog files reads all slices. `scan` is a physical range of the commitlog that has
    to be walked, because no consume queue points at these messages; `repeated` are then the queues whose
    offsets began again at 0.
    """

    store_path: str
    broker_name: str
    commit_log_paths: tuple[str, ...]
    slices: Sequence[QueueSlice]
    scan: tuple[int, int] | None = None
    repeated: tuple[LogQueue, ...] = ()
    # of a store on object storage: those that the task needs, and the names of other files beside them
    objects: tuple[StoredObject, ...] = ()
    others: tuple[FileSeries, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """One Spark task's share of a read; without shares it reads nothing."""

    shares: tuple[StoreSplit, ...] = ()


@dataclass(slots=True)
class Plan:
    """The splits of a read, at least one, and the number of messages that planning knows to be lost."""

    splits: list[Split]
    lost: int = 0


@dataclass(slots=True)
class StoreSlices:
    """What a read takes from one store: `whole` queues, and slices.

    No consume queue serves the `scanned` slices: the commitlog is walked for them, in parts that adjoin at
    the physical offsets `cuts`. `repeated` are those of their queues in which not all messages count.
    """

    store: Store
    cuts: list[int] = field(default_factory=list)
    whole: QueueRanges = field(default_factory=lambda: QueueRanges.of({}))
    slices: list[QueueSlice] = field(default_factory=list)
    scanned: list[QueueSlice] = field(default_factory=list)
    repeated: list[LogQueue] = field(default_factory=list)

    def add(self, queue: Queue, piece: QueueSlice) -> None:
        """Adds a slice of a queue, to be read by its consume queue or, if it has none, by a scan."""
        if queue.scanned is None:
            self.slices.append(piece)
            return
        self.scanned.append(piece)
        if queue.scanned.claims.left:
            self.repeated.append(queue.scanned)

    def of_queues(self, names: Collection[MessageQueue]) -> StoreSlices:
        """The slices of the named queues."""

        def is_named(queue: QueueSlice | LogQueue) -> bool:
            return (queue.topic, self.store.broker_name, queue.queue_id) in names

        return StoreSlices(
            self.store,
            self.cuts,
            slices=list(filter(is_named, self.slices)),
            scanned=list(filter(is_named, self.scanned)),
            repeated=list(filter(is_named, self.repeated)),
        )


def make_splits(found: Sequence[StoreSlices], options: ReadOptions, cores: int) -> list[Split]:
    """At least one split. `cores` is how many tasks can run at once."""
    if options.split_by == WHOLE_QUEUE:
        return _splits_of_queues(found) or [Split()]
    splits = [Split((share,)) for each in found for share in _scan_shares(each, options, cores)]
    # a request each: of many slices, their last messages are a sample
    is_sampled = sum(len(each.slices) for each in found) <= _SLICES_SAMPLED_MAX
    is_sampled = is_sampled or not any(paths.is_remote(each.store.path) for each in found)
    parts = [
        part
        for each in found
        for part in (_whole(each.store, each.whole), _sized(each.store, each.slices, is_sampled))
        if len(part.slices)
    ]
    return (splits + _splits_along_log(parts, options, cores)) or [Split()]


def _files_of(stores: Iterable[str]) -> Files:
    """The files to look at together: those on object storage, if any of the stores lies there."""
    return files_at(next(filter(paths.is_remote, stores), "/"))


def splits_of_clients(
    found: Sequence[StoreSlices], clients: Sequence[frozenset[MessageQueue]]
) -> list[Split]:
    """One split for each client, in their order, with exactly the client's queues."""
    return [
        Split(tuple(share for each in found for share in _whole_shares(each.of_queues(names))))
        for names in clients
    ]


def _whole_shares(own: StoreSlices) -> Iterator[StoreSplit]:
    """The slices as they are, in at most two shares: by the consume queues, and by one scan of the log."""
    if own.slices:
        yield _share(own.store, tuple(own.slices))
    if own.scanned:
        scan = own.cuts[0], own.cuts[-1]
        yield replace(_share(own.store, tuple(own.scanned), scan), repeated=tuple(own.repeated))


def _splits_of_queues(found: Sequence[StoreSlices]) -> list[Split]:
    """One split for each queue with messages to read, in the order of `sort_queues`.

    Raises OptionError for more queues than Spark plans well. Each queue without a consume queue costs a scan
    of the commitlog.
    """
    splits: dict[MessageQueue, Split] = {}
    for each in found:
        parts: dict[MessageQueue, StoreSlices] = {}

        def part_of(
            queue: QueueSlice | LogQueue,
            each: StoreSlices = each,
            parts: dict[MessageQueue, StoreSlices] = parts,
        ) -> StoreSlices:
            name = MessageQueue(queue.topic, each.store.broker_name, queue.queue_id)
            return parts.setdefault(name, StoreSlices(each.store, each.cuts))

        for piece in each.slices:
            part_of(piece).slices.append(piece)
        for piece in each.scanned:
            if piece.start < piece.stop:
                part_of(piece).scanned.append(piece)
        for repeated in each.repeated:
            part_of(repeated).repeated.append(repeated)
        splits |= {name: Split(tuple(_whole_shares(part))) for name, part in parts.items()}
    if len(splits) > _SPLITS_MAX:
        raise OptionError(
            f"splitBy={WHOLE_QUEUE}: expected at most {_SPLITS_MAX} queues, found {len(splits)}; "
            f"set splitBy={QUEUE}, or read fewer topics"
        )
    return [split for name in sort_queues(splits) if (split := splits[name]).shares]


def available_cores() -> int:
    """How many tasks this machine can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- sizes -------------------------------------------------------------------------------------------------


def estimate_bytes(piece: QueueSlice, is_sampled: bool = True) -> int:
    """Estimated bytes of the slice's messages, at least 1.

    The number of messages times the mean of a few message sizes, at most what the queue spans in the log.
    """
    queue, count = piece.queue, piece.stop - piece.start
    bounds = queue.bounds
    if bounds is None or count <= 0:
        return len(queue.extra) or 1
    last_size = bounds.last_size
    mean_size = float(last_size)
    if count > _SAMPLED_ABOVE and is_sampled:
        sizes = [last_size]
        for start in range(piece.start, piece.stop, count // _SIZES_SAMPLED + 1):
            _, units = piece._replace(start=start, stop=min(start + 1, piece.stop)).read()
            sizes += units["size"].tolist()
        mean_size = sum(sizes) / len(sizes)
    first = bounds.first_physical_offset
    spanned = bounds.last_physical_offset + last_size - (first if first > 0 else 0)
    estimate = int(count * mean_size)
    if estimate > spanned and not queue.extra:
        estimate = spanned
    return estimate if estimate > 1 else 1


def _split_size(total: int, options: ReadOptions, queues: int, cores: int) -> tuple[int, int]:
    """(bytes of a split, the least number of splits) for `total` bytes."""
    default = max(1, min(queues, cores, total // _SPLIT_BYTES_MIN))
    wanted = min(options.min_partitions or default, _SPLITS_MAX)
    size, size_min = min(options.max_bytes_per_partition, -(-total // wanted)), -(-total // _SPLITS_MAX)
    if size < size_min:
        _log.warning(
            "maxBytesPerPartition %d would make %d partitions, more than the %d that Spark plans well; "
            "using %d bytes per partition",
            size, -(-total // size), _SPLITS_MAX, size_min,
        )  # fmt: skip
    return max(size, size_min, 1), wanted


# ---- splits ------------------------------------------------------------------------------------------------


def _splits_along_log(parts: Sequence[_SizedSlices], options: ReadOptions, cores: int) -> list[Split]:
    """Each split is a stretch of the log; with splitBy=commitlog exactly, else small queues stay whole."""
    if not parts:
        return []
    slices = _AllSlices(parts)
    total = int(slices.bytes.sum())
    size, wanted = _split_size(total, options, len(slices.bytes), cores)
    groups = _groups_along_log(
        slices, max(wanted, -(-total // size)), size, strict=options.split_by == COMMITLOG
    )
    ranges = _physical_ranges(chain.from_iterable(map(slices.members, groups))) if slices.are_remote else {}
    return [Split(tuple(_shares(slices, members, ranges))) for members in groups]


def _shares(
    slices: _AllSlices, members: NDArray[np.int64], ranges: Mapping[int, tuple[int, int]]
) -> Iterator[StoreSplit]:
    whole = slices.whole(members)
    if whole is not None:
        for store, queues in whole:
            yield _share(store, WholeSlices(queues), None, ranges)
        return
    found: dict[str, tuple[Store, list[QueueSlice]]] = {}
    for store, mine in groupby(slices.members(members), _STORE):
        found.setdefault(store.path, (store, []))[1].extend(map(_SLICE, mine))
    for store, pieces in found.values():
        yield _share(store, tuple(pieces), None, ranges)


def _share(
    store: Store,
    slices: Sequence[QueueSlice],
    scan: tuple[int, int] | None = None,
    ranges_of: Mapping[int, tuple[int, int]] = MappingProxyType({}),
) -> StoreSplit:
    """The share, with the objects that its task needs: of the files of the log and of its queues, those in
    which its messages and entries are.
    """
    share = StoreSplit(store.path, store.broker_name, store.commit_log_paths, slices, scan)
    if not any(map(paths.is_remote, (store.path, *store.commit_log_paths))):
        return share
    ranges: dict[str, tuple[int, int]] = {}

    def need(directory: str, start: int, stop: int) -> None:
        low, high = ranges.get(directory, (start, stop))
        ranges[directory] = min(low, start), max(high, stop)

    held = (ranges_of.get(id(piece)) or physical_range(piece) for piece in slices)
    for low, high in [scan] if scan else held:
        for directory in store.commit_log_paths:
            need(directory, low, high)
    for piece in slices:
        bounds = piece.queue.bounds
        if bounds is None or piece.queue.own is not None:  # the task knows its own files
            continue
        is_batch, size = piece.queue.is_batch, bounds.unit_size
        need(bounds.directory, *((0, OFFSET_MAX) if is_batch else (piece.start * size, piece.stop * size)))
        need(f"{store.path}/consumequeue_ext/{piece.topic}/{piece.queue_id}", 0, OFFSET_MAX)
    objects = list[StoredObject]()
    if paths.is_remote(store.path):
        objects = places().objects_at(store.path).listings.objects_below(store.path, _LARGE)
    others: list[FileSeries] = []
    for directory in filter(paths.is_remote, ranges):
        listings = places().objects_at(directory).listings
        files = listings.numbered_files(directory)
        if not files.objects:  # a database
            objects += listings.objects_of(directory)
        if len(files.objects) > _FILES_MIN:
            others += files.series
        objects += files.between(*ranges[directory]) if len(files.objects) > _FILES_MIN else files.objects
    last = store.log.files[-1].path if store.log.files else ""
    if any(item.path == last for item in objects):  # a task may find a later version of it
        newest = store.log.newest_object()
        objects = [newest if newest is not None and item.path == last else item for item in objects]
    return replace(share, objects=tuple(objects), others=tuple(others))


def physical_range(piece: QueueSlice) -> tuple[int, int]:
    """The physical offsets [start, stop) of the messages of a slice that is not empty, as its first and its
    last entry say, or else its queue.
    """
    queue, bounds = piece.queue, piece.queue.bounds
    low, high, size = 0, 0, 1
    if bounds is not None:
        low, high, size = bounds.first_physical_offset, bounds.last_physical_offset, bounds.last_size
    if queue.extra or (piece.start, piece.stop) != (queue.min_offset, queue.max_offset):
        _, first = piece._replace(stop=piece.start + 1).read()
        _, last = piece._replace(start=piece.stop - 1).read()
        low = int(first[0]["physical_offset"]) if len(first) else low
        high, size = (int(last[-1]["physical_offset"]), int(last[-1]["size"])) if len(last) else (high, size)
    return max(min(low, high), 0), max(low, high) + max(size, 1)


def _physical_ranges(slices: Iterable[_Sized]) -> dict[int, tuple[int, int]]:
    """`physical_range` by the identity of each slice of object storage. Slices of one queue are looked at
    together: its file is fetched once.
    """
    remote = [
        each
        for store, mine in groupby(slices, _STORE)
        if any(map(paths.is_remote, store.commit_log_paths))
        for each in mine
    ]
    queues: dict[int, list[QueueSlice]] = {}
    for each in remote:
        queues.setdefault(id(each.slice.queue), []).append(each.slice)
    looked = _files_of({each.store.path for each in remote}).look_at_each(
        queues.values(), lambda pieces: [physical_range(piece) for piece in pieces]
    )
    return {id(piece): held for pieces, ranges in looked for piece, held in zip(pieces, ranges, strict=True)}


def _scan_shares(found: StoreSlices, options: ReadOptions, cores: int) -> Iterator[StoreSplit]:
    if not found.scanned:
        return
    for scan in pairwise(_scan_edges(found.cuts, options, len(found.scanned), cores)):
        yield replace(_share(found.store, tuple(found.scanned), scan), repeated=tuple(found.repeated))


def _scan_edges(cuts: Sequence[int], options: ReadOptions, queues: int, cores: int) -> list[int]:
    """Chooses those `cuts` that divide a scan into parts of about the size of a split."""
    low, total = cuts[0], cuts[-1] - cuts[0]
    size, wanted = _split_size(total, options, queues, cores)
    count = max(-(-total // size), wanted)
    near = {cuts[bisect_left(cuts, low + total * i // count)] for i in range(1, count)}
    return sorted({low, cuts[-1]} | near)


# ---- stretches of the log ----------------------------------------------------------------------------------


class _Sized(NamedTuple):
    """A slice, and the estimated bytes of its messages in the commitlog."""

    store: Store
    slice: QueueSlice
    bytes: int


_STORE, _SLICE = itemgetter(0), itemgetter(1)


class _SizedSlices(NamedTuple):
    """Slices of a store: the estimated bytes and the number of their messages, and about the physical offset
    of the middle of each, if its queue grew evenly.
    """

    store: Store
    slices: Sequence[QueueSlice]
    bytes: NDArray[np.int64]
    messages: NDArray[np.int64]
    middles: _Floats


def _sized(store: Store, slices: Sequence[QueueSlice], is_sampled: bool) -> _SizedSlices:
    """The slices of a store, each of at most the bytes of its log."""
    if paths.is_remote(store.path):
        looked = files_at(store.path).look_at_each(slices, lambda each: estimate_bytes(each, is_sampled))
        sizes = [size for _, size in looked]
    else:
        sizes = [estimate_bytes(each, is_sampled) for each in slices]
    held = np.minimum(np.array(sizes, np.int64), store.log.size_bytes)
    edges = np.array([(start, stop) for _, start, stop in slices], np.int64).reshape(-1, 2)
    return _SizedSlices(store, slices, held, edges[:, 1] - edges[:, 0], _middles(store, slices))


def _whole(store: Store, queues: QueueRanges) -> _SizedSlices:
    """`_sized` of queues of a local store that are read whole, if they have messages."""
    filled = queues.columns["min_offset"] < queues.columns["max_offset"]
    queues = queues if filled.all() else queues.rows(np.flatnonzero(filled))
    slices, columns = WholeSlices(queues), queues.columns
    messages = columns["max_offset"] - columns["min_offset"]
    first, last = columns["first_physical_offset"], columns["last_physical_offset"]
    size = columns["last_size"]
    held = np.maximum(np.minimum(messages * size, last + size - np.maximum(first, 0)), 1)
    middles = first + np.trunc((last - first) / 2)
    others = list(queues.others)
    held[others] = [estimate_bytes(slices[i]) for i in others]
    middles[others] = _middles(store, [slices[i] for i in others])
    return _SizedSlices(store, slices, np.minimum(held, store.log.size_bytes), messages, middles)


def _middles(store: Store, slices: Sequence[QueueSlice]) -> _Floats:
    rows = list[tuple[int, ...]]()
    for queue, start, stop in slices:
        bounds, low, high = queue.bounds, queue.min_offset, queue.max_offset
        if bounds is None:
            rows.append((store.log.min_offset, store.log.min_offset, 0, 1))
        else:
            places = bounds.first_physical_offset, bounds.last_physical_offset
            rows.append((*places, start + stop - 2 * low, 2 * max(high - low, 1)))
    first, last, passed, whole = np.array(rows, np.float64).reshape(-1, 4).T
    middles: _Floats = first + np.trunc((last - first) * (passed / whole))
    return middles


class _AllSlices:
    """The slices of a read, with the numbers from 0 on, and parts of them, with the numbers behind."""

    def __init__(self, found: Sequence[_SizedSlices]) -> None:
        self.axis = _Axis(each.store for each in found)
        self._found, self._cut, self._cut_of = found, list[_Sized](), list[int]()
        self._ends = np.cumsum([len(each.slices) for each in found])
        self.bytes = np.concatenate([each.bytes for each in found])
        self.messages = np.concatenate([each.messages for each in found])

    @property
    def are_remote(self) -> bool:
        """Whether the messages of any slice are on object storage."""
        return any(
            map(paths.is_remote, chain.from_iterable(each.store.commit_log_paths for each in self._found))
        )

    def slice(self, number: int) -> _Sized:
        """The slice or part of a number."""
        if number >= len(self.bytes):
            return self._cut[number - len(self.bytes)]
        at = int(np.searchsorted(self._ends, number, side="right"))
        store, slices, *_ = self._found[at]
        return _Sized(store, slices[number - int(self._ends[at])], int(self.bytes[number]))

    def members(self, numbers: NDArray[np.int64]) -> list[_Sized]:
        """The slices and parts of these numbers."""
        return [self.slice(number) for number in numbers.tolist()]

    def whole(self, numbers: NDArray[np.int64]) -> list[tuple[Store, QueueRanges]] | None:
        """Which queues of each store are read whole, if the numbers are those of no other slices."""
        of, found = np.searchsorted(self._ends, numbers, side="right"), []
        for at in np.flatnonzero(np.bincount(of, minlength=1)).tolist():
            each = self._found[at] if at < len(self._found) else None
            if each is None or not isinstance(each.slices, WholeSlices):
                return None
            rows = numbers[of == at] - int(self._ends[at]) + len(each.slices)
            found.append((each.store, each.slices.queues.rows(rows)))
        return found

    def add_part(self, number: int, part: _Sized) -> int:
        """Returns the number of a part of the slice of a number."""
        self._cut.append(part)
        self._cut_of.append(number)
        return len(self.bytes) + len(self._cut) - 1

    def columns(self) -> tuple[NDArray[np.int64], _Floats, NDArray[np.int64]]:
        """Of all slices and parts the bytes, the middles on the axis, and the number of the slice."""
        middles = [self.axis.places(each.store, each.middles) for each in self._found]
        for store, mine in groupby(self._cut, _STORE):
            middles.append(self.axis.places(store, _middles(store, [*map(_SLICE, mine)])))
        held = np.concatenate((self.bytes, np.array([each.bytes for each in self._cut], np.int64)))
        of = np.concatenate((np.arange(len(self.bytes)), np.array(self._cut_of, np.int64)))
        return held, np.concatenate(middles), of


def _groups_along_log(slices: _AllSlices, count: int, size: int, *, strict: bool) -> list[NDArray[np.int64]]:
    """At most `count` groups of about equal bytes, in the order of the log; within a group as in `slices`.

    With `strict` a group has exactly what lies in its stretch. Otherwise small slices are not cut at every
    edge, and a part in one group may lie in the stretch of a neighbour; no part has more than `size`
    estimated bytes.
    """
    axis, held = slices.axis, slices.bytes
    numbers = np.full(len(held), count) if strict else _numbers_of_parts(slices, count, size)
    several = [(slices.slice(i), int(numbers[i])) for i in np.flatnonzero(numbers > 1).tolist()]
    edges = axis.edges([each for each, _ in several], count) if len(several) > 1 else None
    looked = _files_of(axis.bases).look_at_each(several, lambda found: list(_cut(*found, edges, axis)))
    is_whole = (numbers == 1) & (strict | (held <= size))  # of 10,000 queues, nearly all
    classes = {(0, count): np.flatnonzero(is_whole).tolist()}
    for i in np.flatnonzero(~is_whole).tolist():
        number = int(numbers[i])
        for at, part in next(looked)[1] if number > 1 else [(0, slices.slice(i))]:
            between = count * at // number, count * (at + 1) // number
            pieces = [part] if strict or part.bytes <= size else _cut_to_size(part, size)
            classes.setdefault(between, []).extend([slices.add_part(i, piece) for piece in pieces])
    held, middles, of = slices.columns()
    spread = [
        _spread(np.array(members, np.int64), *between, held, middles) for between, members in classes.items()
    ]
    members, groups = map(np.concatenate, zip(*spread, strict=True))
    order = np.lexsort((of[members], groups))
    return np.split(members[order], np.flatnonzero(np.diff(groups[order])) + 1)


def _numbers_of_parts(slices: _AllSlices, count: int, size: int) -> NDArray[np.int64]:
    wanted = np.maximum(-(-slices.bytes // size), slices.bytes // _PART_BYTES)
    numbers: NDArray[np.int64] = np.maximum(np.minimum(np.minimum(slices.messages, count), wanted), 1)
    return numbers


def _cut(each: _Sized, number: int, edges: _Floats | None, axis: _Axis) -> Iterator[tuple[int, _Sized]]:
    """The parts that have messages, with their numbers: between `edges`, or of as many offsets each."""
    start, stop = each.slice.start, each.slice.stop
    if edges is None:
        cuts = np.array([start + (stop - start) * at // number for at in range(number + 1)], np.int64)
    else:
        ends = (len(edges) - 1) * np.arange(1, number) // number
        cuts = each.slice.cuts_at(axis.physical(each.store, edges[ends]).tolist())
    # if there are many edges, between most of them is no message of a queue
    for at in np.flatnonzero(cuts[:-1] < cuts[1:]).tolist():
        low, high = int(cuts[at]), int(cuts[at + 1])
        held = max(each.bytes * (high - low) // (stop - start), 1)
        yield at, _Sized(each.store, each.slice._replace(start=low, stop=high), held)


def _cut_to_size(sized: _Sized, size: int) -> list[_Sized]:
    """Equal parts of a slice, each of at most `size` estimated bytes."""
    start, stop = sized.slice.start, sized.slice.stop
    count = min(-(-sized.bytes // size), stop - start)
    if count <= 1:
        return [sized]
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return [
        _Sized(sized.store, sized.slice._replace(start=low, stop=high), sized.bytes // count)
        for low, high in pairwise(edges)
    ]


def _spread(
    members: NDArray[np.int64], low: int, high: int, held: NDArray[np.int64], middles: _Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The members, and the number of the group of each: as many bytes to each group [low, high), in the order
    of the log. `held` and `middles` are those of all slices and parts.
    """
    count = high - low
    if count == 1 or not len(members):
        return members, np.full(len(members), low, np.int64)
    members = members[np.argsort(middles[members], kind="stable")]
    mine = held[members]
    places, total = np.cumsum(mine.astype(np.float64) * 2) - mine, int(mine.sum())
    ends = [-(-2 * total * number // count) for number in range(1, count)]
    return members, low + np.searchsorted(np.array(ends, np.float64), places, side="right")


class _Axis:
    """The logs of the stores, one behind the other, as numbers from 0 on."""

    def __init__(self, stores: Iterable[Store]) -> None:
        self.bases: dict[str, int] = {}  # by the path of the store
        end = 0
        for store in stores:
            if store.path not in self.bases:
                self.bases[store.path] = end
                end += store.log.stop - store.log.min_offset

    def places(self, store: Store, physical: _Floats) -> _Floats:
        """Where physical offsets of one store are."""
        found: _Floats = self.bases[store.path] - store.log.min_offset + physical
        return found

    def physical(self, store: Store, places: _Floats) -> NDArray[np.int64]:
        """The physical offsets in one store; places in other stores lie before its log or behind it."""
        log = store.log
        offsets = places - self.bases[store.path] + log.min_offset
        return np.clip(offsets, log.min_offset, log.stop).astype(np.int64)

    def edges(self, slices: Sequence[_Sized], count: int) -> _Floats:
        """The places 0 to `count` on the axis between which the slices have about the same bytes.

        Between two of its messages whose places are known, a slice is taken to be spread evenly.
        """
        samples = _PLACES_SAMPLED if len(slices) <= _SLICES_SAMPLED_MAX else 1
        starts, stops, rates = [], [], []
        looked = _files_of(self.bases).look_at_each(slices, lambda each: _places(each.slice, samples))
        for each, found in looked:
            log, base = each.store.log, self.bases[each.store.path]
            places = np.clip(found, log.min_offset, log.stop) - log.min_offset + base
            low = places[:-1].astype(np.float64)
            high = np.maximum(places[1:], places[:-1] + 1).astype(np.float64)
            starts.append(low)
            stops.append(high)
            rates.append(each.bytes / len(low) / (high - low))
        rate = np.concatenate(rates)
        at = np.concatenate((*starts, *stops))
        order = np.argsort(at, kind="stable")
        at, rate = at[order], np.cumsum(np.concatenate((rate, -rate))[order])
        held = np.concatenate(([0.0], np.cumsum(np.maximum(rate[:-1], 0) * np.diff(at))))
        return np.interp(np.linspace(0, held[-1], count + 1), held, at)


def _places(piece: QueueSlice, samples: int) -> NDArray[np.int64]:
    """Physical offsets of `samples` + 1 evenly spaced messages of a slice, at least two; ascending."""
    queue, bounds = piece.queue, piece.queue.bounds
    whole = bounds is not None and not queue.extra and (piece.start, piece.stop) == (
        queue.min_offset,
        queue.max_offset,
    )  # fmt: skip
    if bounds is not None and whole and samples == 1:
        places = [bounds.first_physical_offset, bounds.last_physical_offset]
    else:
        messages = piece.stop - piece.start
        places = []
        for number in range(samples + 1):
            offset = piece.start + (messages - 1) * number // samples
            _, units = piece._replace(start=offset, stop=offset + 1).read()
            places += units["physical_offset"][:1].tolist()
    return np.maximum.accumulate(np.array(places if len(places) > 1 else (places or [0]) * 2, np.int64))
