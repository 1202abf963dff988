"""Options and stores become splits: plain values, each one Spark task's share of queues.

Planning looks at each queue's first and last entries only. Queues are packed into partitions because a Python task costs
15 to 60 ms before its first row; a queue is cut only where it is larger than a partition may be.
"""

from __future__ import annotations

import difflib
import heapq
import itertools
import logging
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rmq_spark.options import ReadOptions
from rmq_spark.positions import Earliest, Latest, Offset, Timestamp
from rmq_spark.stores import open_stores
from store_format import MessageStore, Queue
from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.log_reading import LogQueue
from store_format.reading import QueueSlice, read_slice, split_at

__all__ = ["Plan", "Share", "Split", "plan"]

_log = logging.getLogger(__name__)

_PARTITION_BYTES_MIN = 4 << 20  # smaller ones are not worth a task
_SAMPLED_ABOVE = 4096  # queues with more messages have their size estimated from more than their last message
_SAMPLES = 8
_SCAN_CUT_BYTES = 64 << 10  # a scan may be cut between windows of a walk, 1 MiB or a file
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Share:
    """What a split has of one store: slices of queues. `in_log_order` asks for one pass over the files for all of them.

    `scan`, a physical range, says that the commitlog has to be walked there, because no consume queue leads to these
    messages; `repeated` are then the queues whose offsets began anew.
    """

    store_path: str
    broker_name: str
    commit_log_paths: tuple[str, ...]
    slices: tuple[QueueSlice, ...]
    in_log_order: bool = False
    scan: tuple[int, int] | None = None
    repeated: tuple[LogQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class Split:
    """One Spark task's share. Empty when there is nothing to read at all."""

    shares: tuple[Share, ...] = ()


@dataclass(slots=True)
class Plan:
    """The splits of a read, at least one, and how many messages planning knows to be lost."""

    splits: list[Split]
    lost: int = 0


@dataclass(slots=True)
class _Piece:
    """A slice and the bytes of commitlog its messages take, by estimate."""

    store: MessageStore
    slice: QueueSlice
    bytes: int


@dataclass(slots=True)
class _Found:
    """What is to be read of all stores: by queue, and by scan."""

    pieces: list[_Piece] = field(default_factory=list)
    scanned: list[tuple[MessageStore, list[QueueSlice], list[LogQueue], list[int]]] = field(default_factory=list)
    queues: list[tuple[str, str, int]] = field(default_factory=list)
    lost: int = 0


def plan(options: ReadOptions, *, cores: int | None = None) -> Plan:
    """Look at the stores once and say who reads what. `cores` (default: this machine's) is how many tasks are worth having.

    Raises StoreNotFoundError for paths, OptionError for topics, queues or options that fit no store, OffsetOutOfRangeError
    for offsets asked for that are not there (unless failOnDataLoss is false).
    """
    stores = open_stores(options)
    found = _Found()
    for store in stores:
        _look(store, options, found)
    _refuse_unknown(stores, options, found)
    cores = cores or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores or os.cpu_count() or 1
    splits = [Split((share,)) for share in _scan_shares(found, options, cores)]
    if options.split_by == "commitlog":
        splits += _by_commitlog(found.pieces, options, cores)
    else:
        splits += _by_queue(found.pieces, options, cores)
    return Plan(splits or [Split()], found.lost)


# ---- queues and their ranges ------------------------------------------------------------------------------------------


def _look(store: MessageStore, options: ReadOptions, found: _Found) -> None:
    choice = options.topics
    scanned: list[Queue] = []
    cuts: list[int] = []
    if store.has_consume_queues:
        snapshot = store.snapshot(choice.chooses_topic)
        queues = [Queue(store, queue, None) for queue in snapshot.queues.values()]
        if snapshot.damaged:
            (topic, queue_id), error = next(iter(snapshot.damaged.items()))
            _log.warning(
                "%d consume queues cannot be used, scanning the commitlog for them; %s-%d: %s",
                len(snapshot.damaged),
                topic,
                queue_id,
                error,
            )
            lost = snapshot.damaged.keys()
            scanned, cuts = store.scanned_queues(lambda topic: any(topic == name for name, _ in lost), _SCAN_CUT_BYTES)
            scanned = [queue for queue in scanned if (queue.topic, queue.queue_id) in lost]
    else:
        _log.warning("%s has no consume queue files (RocksDB, or deleted): scanning its commitlog", store.path)
        queues = []
        scanned, cuts = store.scanned_queues(choice.chooses_topic, _SCAN_CUT_BYTES)
    chosen = [queue for queue in queues if choice.chooses_queue(queue.topic, store.broker_name, queue.queue_id)]
    for queue in chosen:
        found.queues.append((queue.topic, store.broker_name, queue.queue_id))
        piece = _slice(queue, options, found)
        if piece.start < piece.stop:
            found.pieces.append(_Piece(store, piece, min(_bytes(piece), store.log.size_bytes)))
    slices = []
    repeated = []
    for queue in scanned:
        if choice.chooses_queue(queue.topic, store.broker_name, queue.queue_id):
            found.queues.append((queue.topic, store.broker_name, queue.queue_id))
            slices.append(_slice(queue, options, found))
            repeated += [queue.scanned] if queue.scanned is not None and len(queue.scanned.epochs) > 1 else []
    if slices:
        found.scanned.append((store, slices, repeated, cuts))


def _slice(queue: Queue, options: ReadOptions, found: _Found) -> QueueSlice:
    start = _start(queue, options)
    stop = _stop(queue, options)
    name = f"{queue.topic}-{queue.queue_id} of {queue.store.broker_name}"
    low, high = queue.min_offset, queue.max_offset
    for option, offset in ((options.starting.option, start), (options.ending.option, stop)):
        if not low <= offset <= high:
            message = f"{name}: {option} {offset} is not in the queue, which holds {low} to {high}"
            if options.fail_on_data_loss:
                raise OffsetOutOfRangeError(f"{message}; correct it, or set failOnDataLoss=false to read what is there")
            if offset < low:
                lost = min(low, max(stop, offset)) - offset if option == options.starting.option else 0
                found.lost += max(lost, 0)
                _log.warning("%d messages lost: %s", lost, message)
            else:
                _log.warning("reading what is there: %s", message)
    start, stop = min(max(start, low), high), min(max(stop, low), high)
    if start > stop:
        raise OptionError(
            f"{name}: {options.starting.option} leads to offset {start}, behind {options.ending.option}, which leads to {stop}"
        )
    return queue.range.piece(start, stop)


def _start(queue: Queue, options: ReadOptions) -> int:
    match options.starting.for_queue(queue.topic, queue.store.broker_name, queue.queue_id):
        case Earliest():
            return queue.min_offset
        case Latest():
            return queue.max_offset
        case Offset(value):
            return value
        case Timestamp(ms):
            offset = _offset_at(queue, ms)
            missing = offset == queue.max_offset > queue.min_offset
            if missing and options.starting_offsets_by_timestamp_strategy == "error":
                raise OffsetOutOfRangeError(
                    f"{queue.topic}-{queue.queue_id} of {queue.store.broker_name}: no message at or after {Timestamp(ms)}; "
                    f"take an earlier time, or set startingOffsetsByTimestampStrategy=latest to read none of this queue"
                )
            return offset


def _stop(queue: Queue, options: ReadOptions) -> int:
    match options.ending.for_queue(queue.topic, queue.store.broker_name, queue.queue_id):
        case Earliest():
            return queue.min_offset
        case Latest():
            return queue.max_offset
        case Offset(value):
            return value
        case Timestamp(ms):
            return _offset_at(queue, ms)


def _offset_at(queue: Queue, timestamp_ms: int) -> int:
    """The first message stored at or after a time, the maximum when there is none.

    For a time behind the end of a BatchCQ queue a broker answers with the last unit, which was stored before it.
    """
    offset = queue.offset_at(timestamp_ms, "LOWER")
    if queue.range.is_batch and offset < queue.max_offset:
        _, units = read_slice(queue.piece(offset, offset + 1))
        if len(units) and int(units["store_timestamp"][0]) < timestamp_ms:
            return queue.max_offset
    return offset


def _refuse_unknown(stores: Sequence[MessageStore], options: ReadOptions, found: _Found) -> None:
    """Names in the options that fit nothing: a typo would otherwise look like an empty topic."""
    read = {topic for topic, _, _ in found.queues}
    missing = [topic for topic in options.topics.named_topics if topic not in read]
    if missing:
        configured = {topic for store in stores for topic in store.configured_topics()}
        missing = [topic for topic in missing if topic not in configured]
    if missing:
        known = sorted({topic for store in stores for topic in store.topics()})
        raise OptionError(f"no store has a topic {missing[0]!r}; {_nearest(missing[0], known)}")
    for queue in options.topics.queues:
        if not any(
            queue.topic == topic and queue.broker in (None, broker) and queue.queue_id == number for topic, broker, number in found.queues
        ):
            there = [(each.topic, store.broker_name, each.queue_id) for store in stores for each in store.queues()]
            raise OptionError(f"assign: no store has the queue {queue}; {_nearest_queue(queue.topic, there, 'the queues there')}")
    for spec in (options.starting, options.ending):
        unread = spec.unread(found.queues)
        if unread:
            raise OptionError(f"{spec.option}: {unread[0]} is none of the queues read; {_nearest_queue(unread[0].topic, found.queues)}")


def _nearest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.6)
    if close:
        return f"did you mean {close[0]}?"
    plain = [topic for topic in known if not topic.startswith("%")] or list(known)
    shown = ", ".join(plain[:_NAMED_MAX]) + (", …" if len(plain) > _NAMED_MAX else "")
    return f"the topics are {shown}" if plain else "the store is empty"


def _nearest_queue(topic: str | None, queues: Iterable[tuple[str, str, int]], what: str = "the queues read") -> str:
    names = [f"{name}/{broker}/{number}" for name, broker, number in queues if topic is None or name == topic] or [
        f"{name}/{broker}/{number}" for name, broker, number in queues
    ]
    return f"{what} are {', '.join(names[:_NAMED_MAX])}{', …' if len(names) > _NAMED_MAX else ''}" if names else f"{what} are none"


# ---- sizes --------------------------------------------------------------------------------------------------------------


def _bytes(piece: QueueSlice) -> int:
    """Bytes of the slice's messages: its length times the mean of a few message sizes, at most what its queue spans in the log."""
    count = piece.stop - piece.start
    if piece.bounds is None or count <= 0:
        return len(piece.extra) or 1
    sizes = [piece.bounds.last_size]
    if count > _SAMPLED_ABOVE:
        for start in range(piece.start, piece.stop, count // _SAMPLES + 1):
            _, units = read_slice(replace(piece, start=start, stop=min(start + 1, piece.stop)))
            sizes += units["size"].tolist()
    spanned = piece.bounds.last_physical_offset + piece.bounds.last_size - max(piece.bounds.first_physical_offset, 0)
    estimate = int(count * np.mean(sizes))
    return max(estimate if piece.extra else min(estimate, spanned), 1)


def _target(total: int, options: ReadOptions, queues: int, cores: int) -> tuple[int, int]:
    """(bytes a partition should have, how many partitions there should be at least)."""
    wanted = options.min_partitions or max(1, min(queues, cores, total // _PARTITION_BYTES_MIN))
    return max(min(options.max_bytes_per_partition, -(-total // wanted)), 1), wanted


# ---- splits -------------------------------------------------------------------------------------------------------------


def _by_queue(pieces: list[_Piece], options: ReadOptions, cores: int) -> list[Split]:
    """Whole queues packed into partitions of about equal size, larger queues cut."""
    if not pieces:
        return []
    total = sum(piece.bytes for piece in pieces)
    target, wanted = _target(total, options, len(pieces), cores)
    cut = [part for piece in pieces for part in _cut(piece, target)]
    count = min(max(wanted, -(-total // target)), len(cut))
    bins: list[list[_Piece]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    order = sorted(range(len(cut)), key=lambda i: -cut[i].bytes)
    place: list[int] = [0] * len(cut)
    for i in order:  # the largest first, each to the emptiest
        held, number = heapq.heappop(heap)
        place[i] = number
        heapq.heappush(heap, (held + cut[i].bytes, number))
    for i, part in enumerate(cut):  # kept in the order of topics and queues
        bins[place[i]].append(part)
    return [Split(tuple(_shares(pieces))) for pieces in bins if pieces]


def _cut(piece: _Piece, target: int) -> Iterator[_Piece]:
    """Equal parts of a slice, each at most `target` bytes by estimate."""
    start, stop = piece.slice.start, piece.slice.stop
    count = min(-(-piece.bytes // target), stop - start)
    if count <= 1:
        yield piece
        return
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    for low, high in itertools.pairwise(edges):
        yield _Piece(piece.store, replace(piece.slice, start=low, stop=high), piece.bytes // count)


def _shares(pieces: Sequence[_Piece]) -> Iterator[Share]:
    by_store: dict[str, tuple[MessageStore, list[QueueSlice]]] = {}
    for piece in pieces:
        by_store.setdefault(piece.store.path, (piece.store, []))[1].append(piece.slice)
    for store, slices in by_store.values():
        yield _share(store, slices)


def _share(store: MessageStore, slices: Sequence[QueueSlice]) -> Share:
    return Share(store.path, store.broker_name, store.commit_log_paths, tuple(slices))


def _by_commitlog(pieces: list[_Piece], options: ReadOptions, cores: int) -> list[Split]:
    """Physical ranges of each store; a task reads what its queues have in its range, in the order of the log."""
    splits = []
    total = sum(piece.bytes for piece in pieces)
    for store, slices in {piece.store.path: (piece.store, _slices_of(piece.store, pieces)) for piece in pieces}.values():
        low, high = _physical_range(slices)
        held = sum(piece.bytes for piece in pieces if piece.store is store)
        target, wanted = _target(held, options, len(slices), max(1, cores * held // max(total, 1)))
        count = max(-(-held // target), wanted if options.min_partitions else 1)
        edges = [low + (high - low) * i // count for i in range(1, count)]
        cut = [split_at(piece, edges) for piece in slices]
        for parts in zip(*cut, strict=True):
            mine = [part for part in parts if part.start < part.stop]
            if mine:
                splits.append(Split((replace(_share(store, mine), in_log_order=True),)))
    return splits


def _slices_of(store: MessageStore, pieces: Sequence[_Piece]) -> list[QueueSlice]:
    return [piece.slice for piece in pieces if piece.store is store]


def _physical_range(slices: Sequence[QueueSlice]) -> tuple[int, int]:
    """From the first message of the slices to behind the last one, as far as their queues say."""
    starts: list[int] = []
    stops: list[int] = []
    for piece in slices:
        for offset, edge in ((piece.start, starts), (piece.stop - 1, stops)):
            _, units = read_slice(replace(piece, start=offset, stop=offset + 1))
            edge += units["physical_offset"].tolist()
        if piece.bounds is not None:
            starts.append(max(piece.bounds.first_physical_offset, 0))
    return (min(starts, default=0), max(stops, default=0) + 1)


def _scan_shares(found: _Found, options: ReadOptions, cores: int) -> Iterator[Share]:
    for store, slices, repeated, cuts in found.scanned:
        edges = _thinned(cuts, options, len(slices), cores)
        for start, stop in pairwise(edges):
            yield replace(_share(store, slices), scan=(start, stop), repeated=tuple(repeated))


def _thinned(cuts: Sequence[int], options: ReadOptions, queues: int, cores: int) -> list[int]:
    """Those of the places where a scan may be cut that make parts of about the size of a partition."""
    low, total = cuts[0], cuts[-1] - cuts[0]
    target, wanted = _target(total, options, queues, cores)
    count = max(-(-total // target), wanted)
    near = {cuts[bisect_left(cuts, low + total * i // count)] for i in range(1, count)}
    return sorted({low, cuts[-1]} | near)
