"""Divides slices of queues into groups along the log, so that tasks do not read the same pages.

Messages of a topic's queues lie interleaved in the log. All queues are therefore cut at the same physical
offsets, the edges of stretches that hold about the same number of bytes of the slices. The stores of a
cluster count as one log: the second store's begins where the first store's ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.slices import QueueSlice, cuts_at, read_slice
from store_format.read.store import Store

_PART_BYTES = 256 << 10  # smaller parts cost a task more to open than the pages that it shares with others
_SAMPLES = 16  # messages of a slice whose places are looked up …
_SAMPLED_MAX = 256  # … if there are at most so many slices; of more, the first and the last

_Floats = NDArray[np.float64]
_Part = tuple[int, "Sized"]  # the number of the slice, and the part


class Sized(NamedTuple):
    """A slice, and the estimated bytes of its messages in the commitlog."""

    store: Store
    slice: QueueSlice
    bytes: int


def groups_along_log(slices: Sequence[Sized], count: int, size: int, *, strict: bool) -> list[list[Sized]]:
    """At most `count` groups of about equal bytes, in the order of the log; within a group as in `slices`.

    With `strict` a group has exactly what lies in its stretch. Otherwise small slices are not cut at every
    edge, and a part in one group may lie in the stretch of a neighbour; no part has more than `size`
    estimated bytes.
    """
    axis = _Axis(slices)
    numbers = [count if strict else _number_of_parts(each, count, size) for each in slices]
    cut = [each for each, number in zip(slices, numbers, strict=True) if number > 1]
    edges = axis.edges(cut, count) if len(cut) > 1 else None
    classes: dict[tuple[int, int], list[_Part]] = {}
    for i, (each, number) in enumerate(zip(slices, numbers, strict=True)):
        for at, part in _cut(each, number, edges, axis):
            between = count * at // number, count * (at + 1) // number
            pieces = [part] if strict else _cut_to_size(part, size)
            classes.setdefault(between, []).extend((i, piece) for piece in pieces)
    groups: list[list[_Part]] = [[] for _ in range(count)]
    for (low, high), members in classes.items():
        for number, member in _spread(members, low, high, axis):
            groups[number].append(member)
    return [[part for _, part in sorted(group, key=lambda each: each[0])] for group in groups if group]


def _number_of_parts(sized: Sized, count: int, size: int) -> int:
    messages = sized.slice.stop - sized.slice.start
    least = -(-sized.bytes // size)
    return max(1, min(count, messages, max(least, sized.bytes // _PART_BYTES)))


def _cut(each: Sized, number: int, edges: _Floats | None, axis: _Axis) -> Iterator[tuple[int, Sized]]:
    """The parts that have messages, with their numbers: between `edges`, or of as many offsets each."""
    start, stop = each.slice.start, each.slice.stop
    if number == 1:
        yield 0, each
        return
    if edges is None:
        cuts = np.array([start + (stop - start) * at // number for at in range(number + 1)], np.int64)
    else:
        ends = (len(edges) - 1) * np.arange(1, number) // number
        cuts = cuts_at(each.slice, axis.physical(each.store, edges[ends]).tolist())
    # if there are many edges, between most of them is no message of a queue
    for at in np.flatnonzero(cuts[:-1] < cuts[1:]).tolist():
        low, high = int(cuts[at]), int(cuts[at + 1])
        held = max(each.bytes * (high - low) // (stop - start), 1)
        yield at, Sized(each.store, replace(each.slice, start=low, stop=high), held)


def _cut_to_size(sized: Sized, size: int) -> list[Sized]:
    """Equal parts of a slice, each of at most `size` estimated bytes."""
    start, stop = sized.slice.start, sized.slice.stop
    count = min(-(-sized.bytes // size), stop - start)
    if count <= 1:
        return [sized]
    edges = [start + (stop - start) * i // count for i in range(count + 1)]
    return [
        Sized(sized.store, replace(sized.slice, start=low, stop=high), sized.bytes // count)
        for low, high in pairwise(edges)
    ]


def _spread(members: list[_Part], low: int, high: int, axis: _Axis) -> Iterator[tuple[int, _Part]]:
    """(number of the group, part): as many bytes to each group [low, high), in the order of the log."""
    if high - low > 1:
        members = sorted(members, key=lambda member: axis.middle(member[1]))
    total, before = sum(part.bytes for _, part in members), 0
    for member in members:
        held = member[1].bytes
        yield low + (2 * before + held) * (high - low) // (2 * total), member
        before += held


class _Axis:
    """The logs of the stores, one behind the other, as numbers from 0 on."""

    def __init__(self, slices: Sequence[Sized]) -> None:
        self._bases: dict[str, int] = {}
        end = 0
        for each in slices:
            if each.store.path not in self._bases:
                self._bases[each.store.path] = end
                end += each.store.log.stop - each.store.log.min_offset

    def physical(self, store: Store, places: _Floats) -> NDArray[np.int64]:
        """The physical offsets in one store; places in other stores lie before its log or behind it."""
        log = store.log
        offsets = places - self._bases[store.path] + log.min_offset
        return np.clip(offsets, log.min_offset, log.stop).astype(np.int64)

    def middle(self, each: Sized) -> int:
        """About where the middle of a slice is, if its queue grew evenly."""
        queue, bounds = each.slice.queue, each.slice.queue.bounds
        low, high = self._bases[each.store.path], each.store.log.min_offset
        if bounds is None:
            return low
        share = (each.slice.start + each.slice.stop - 2 * queue.min_offset) / (
            2 * max(queue.max_offset - queue.min_offset, 1)
        )
        first, last = bounds.first_physical_offset, bounds.last_physical_offset
        return low - high + first + int((last - first) * share)

    def edges(self, slices: Sequence[Sized], count: int) -> _Floats:
        """The places 0 to `count` on the axis between which the slices have about the same bytes.

        Between two of its messages whose places are known, a slice is taken to be spread evenly.
        """
        samples = _SAMPLES if len(slices) <= _SAMPLED_MAX else 1
        starts, stops, rates = [], [], []
        for each in slices:
            log, base = each.store.log, self._bases[each.store.path]
            places = np.clip(_places(each.slice, samples), log.min_offset, log.stop) - log.min_offset + base
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
            _, units = read_slice(replace(piece, start=offset, stop=offset + 1))
            places += units["physical_offset"][:1].tolist()
    return np.maximum.accumulate(np.array(places if len(places) > 1 else (places or [0]) * 2, np.int64))
