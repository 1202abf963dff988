"""Splits: plain values, each one Spark task's share of what planning found, packed by bytes.

Queues are packed into partitions because a Python task costs 15 to 60 ms before its first row; a queue is cut
only where it is larger than a partition may be.
"""

from __future__ import annotations

import heapq
import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.options.read_options import ReadOptions
from store_format.consumequeue.slices import QueueSlice, cuts_at, read_slice
from store_format.read.log_reader import LogQueue
from store_format.read.store import Store

__all__ = ["Findings", "Piece", "Share", "Split", "estimate_bytes", "make_splits", "splits_of_clients"]

_log = logging.getLogger(__name__)

_PARTITION_BYTES_MIN = 4 << 20  # smaller ones are not worth a task
_PARTITIONS_MAX = 100_000  # a task costs the driver a few kilobytes and milliseconds
_SAMPLED_ABOVE = 4096  # queues with more messages have their size estimated from more than their last message
_SAMPLES = 8


@dataclass(frozen=True, slots=True)
class Share:
    """What a split has of one store: slices of queues. `in_log_order` asks for one pass over the files for
    all of them.

    `scan`, a physical range, says that the commitlog has to be walked there, because no consume queue leads
    to these messages; `repeated` are then the queues whose offsets began anew.
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
class Piece:
    """A slice and the bytes of commitlog its messages take, by estimate."""

    store: Store
    slice: QueueSlice
    bytes: int


@dataclass(slots=True)
class Findings:
    """What is to be read of all stores: by queue, and by scan."""

    pieces: list[Piece] = field(default_factory=list)
    scanned: list[tuple[Store, list[QueueSlice], list[LogQueue], list[int]]] = field(default_factory=list)
    queues: list[MessageQueue] = field(default_factory=list)
    lost: int = 0


def make_splits(found: Findings, options: ReadOptions, cores: int) -> list[Split]:
    """At least one split. `cores` is how many tasks are worth having."""
    splits = [Split((share,)) for share in _scan_shares(found, options, cores)]
    by = _by_commitlog if options.split_by == "commitlog" else _by_queue
    return (splits + by(found.pieces, options, cores)) or [Split()]


def splits_of_clients(found: Findings, clients: Sequence[frozenset[MessageQueue]]) -> list[Split]:
    """One split for each client, in their order, with exactly its queues (topic, broker, queue id); empty
    where it has none.
    """
    splits = []
    for mine in clients:
        own = [
            piece
            for piece in found.pieces
            if (piece.slice.topic, piece.store.broker_name, piece.slice.queue_id) in mine
        ]
        shares = list(_shares(own))
        for store, slices, repeated, cuts in found.scanned:
            of_client = [
                piece for piece in slices if (piece.topic, store.broker_name, piece.queue_id) in mine
            ]
            again = tuple(
                queue for queue in repeated if (queue.topic, store.broker_name, queue.queue_id) in mine
            )
            if of_client:
                shares.append(replace(_share(store, of_client), scan=(cuts[0], cuts[-1]), repeated=again))
        splits.append(Split(tuple(shares)))
    return splits


# ---- sizes -------------------------------------------------------------------------------------------------


def estimate_bytes(piece: QueueSlice) -> int:
    """Bytes of the slice's messages: its length times the mean of a few message sizes, at most what its queue
    spans in the log.
    """
    queue, count = piece.queue, piece.stop - piece.start
    if queue.bounds is None or count <= 0:
        return len(queue.extra) or 1
    mean_size = float(queue.bounds.last_size)
    if count > _SAMPLED_ABOVE:
        sizes = [queue.bounds.last_size]
        for start in range(piece.start, piece.stop, count // _SAMPLES + 1):
            _, units = read_slice(replace(piece, start=start, stop=min(start + 1, piece.stop)))
            sizes += units["size"].tolist()
        mean_size = sum(sizes) / len(sizes)
    spanned = (
        queue.bounds.last_physical_offset
        + queue.bounds.last_size
        - max(queue.bounds.first_physical_offset, 0)
    )
    estimate = int(count * mean_size)
    return max(estimate if queue.extra else min(estimate, spanned), 1)


def _target(total: int, options: ReadOptions, queues: int, cores: int) -> tuple[int, int]:
    """(bytes a partition should have, how many partitions there should be at least)."""
    wanted = min(
        options.min_partitions or max(1, min(queues, cores, total // _PARTITION_BYTES_MIN)), _PARTITIONS_MAX
    )
    target, least = min(options.max_bytes_per_partition, -(-total // wanted)), -(-total // _PARTITIONS_MAX)
    if target < least:
        told = "maxBytesPerPartition %d would make %d partitions, more than Spark can plan well: making %d of %d bytes instead"
        _log.warning(told, target, -(-total // target), _PARTITIONS_MAX, least)
    return max(target, least, 1), wanted


# ---- splits ------------------------------------------------------------------------------------------------


def _by_queue(pieces: list[Piece], options: ReadOptions, cores: int) -> list[Split]:
    """Whole queues packed into partitions of about equal size, larger queues cut."""
    if not pieces:
        return []
    total = sum(piece.bytes for piece in pieces)
    target, wanted = _target(total, options, len(pieces), cores)
    cut = [part for piece in pieces for part in _cut(piece, target)]
    count = min(max(wanted, -(-total // target)), len(cut))
    bins: list[list[Piece]] = [[] for _ in range(count)]
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


def _cut(piece: Piece, target: int) -> Iterator[Piece]:
    """Equal parts of a slice, each at most `target` bytes by estimate."""
    start, stop = piece.slice.start, piece.slice.stop
    count = min(-(-piece.bytes // target), stop - start)
    if count <= 1:
        yield piece
        return
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    for low, high in pairwise(edges):
        yield Piece(piece.store, replace(piece.slice, start=low, stop=high), piece.bytes // count)


def _shares(pieces: Sequence[Piece]) -> Iterator[Share]:
    by_store: dict[str, tuple[Store, list[QueueSlice]]] = {}
    for piece in pieces:
        by_store.setdefault(piece.store.path, (piece.store, []))[1].append(piece.slice)
    for store, slices in by_store.values():
        yield _share(store, slices)


def _share(store: Store, slices: Sequence[QueueSlice]) -> Share:
    return Share(store.path, store.broker_name, store.commit_log_paths, tuple(slices))


def _by_commitlog(pieces: list[Piece], options: ReadOptions, cores: int) -> list[Split]:
    """Physical ranges of each store; a task reads what its queues have in its range, in the order of the log."""
    splits = []
    total = sum(piece.bytes for piece in pieces)
    for store, slices in {
        piece.store.path: (piece.store, _slices_of(piece.store, pieces)) for piece in pieces
    }.values():
        low, high = _physical_range(slices)
        held = sum(piece.bytes for piece in pieces if piece.store is store)
        target, wanted = _target(held, options, len(slices), max(1, cores * held // max(total, 1)))
        count = max(-(-held // target), wanted if options.min_partitions else 1)
        edges = [low + (high - low) * i // count for i in range(1, count)]
        ranges: dict[int, list[QueueSlice]] = {}
        for piece in slices:
            cuts = cuts_at(piece, edges)
            # most of many ranges have nothing of a queue
            for number in np.flatnonzero(cuts[:-1] < cuts[1:]).tolist():
                ranges.setdefault(number, []).append(
                    replace(piece, start=int(cuts[number]), stop=int(cuts[number + 1]))
                )
        splits += [
            Split((replace(_share(store, mine), in_log_order=True),)) for _, mine in sorted(ranges.items())
        ]
    return splits


def _slices_of(store: Store, pieces: Sequence[Piece]) -> list[QueueSlice]:
    return [piece.slice for piece in pieces if piece.store is store]


def _physical_range(slices: Sequence[QueueSlice]) -> tuple[int, int]:
    """From the first message of the slices to behind the last one, as far as their queues say."""
    starts: list[int] = []
    stops: list[int] = []
    for piece in slices:
        for offset, edge in ((piece.start, starts), (piece.stop - 1, stops)):
            _, units = read_slice(replace(piece, start=offset, stop=offset + 1))
            edge += units["physical_offset"].tolist()
        if piece.queue.bounds is not None:
            starts.append(max(piece.queue.bounds.first_physical_offset, 0))
    return (min(starts, default=0), max(stops, default=0) + 1)


def _scan_shares(found: Findings, options: ReadOptions, cores: int) -> Iterator[Share]:
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
