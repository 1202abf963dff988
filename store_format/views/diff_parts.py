"""The comparison of two sets of messages by their digests, in bounded memory.

Both sides are read in turns. Two equal messages in one queue that are read soon after another, as those of a
copy are, leave only a word of their digest. The other records lie in parts, by a digest, so that all records
of one message and of one id lie in one part. Parts that need more memory than HELD_BYTES are files of a
temporary directory. Each part is compared alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.views.message_digests import PLACE, RECORD

HELD_BYTES = 16 << 20
PART_BYTES = 16 << 20  # of a part on average; at most twice as many are compared at once
_PARTS_MAX = 4096
_WINDOW = 1 << 16  # records of a side that wait for those of the other side

KINDS = ("onlyInA", "onlyInB", "changed", "moved", "moreInA", "moreInB")
ONLY_A, ONLY_B, CHANGED, MOVED, MORE_A, MORE_B = range(len(KINDS))
DIFFERENCE = np.dtype([("kind", "u1"), ("copies_a", "i8"), ("copies_b", "i8"), ("a", PLACE), ("b", PLACE)])

_Records = NDArray[np.void]
_Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]


class Parts:
    """Records of one dtype in `count` parts. A record is added with the number of its part."""

    def __init__(self, dtype: np.dtype[Any], count: int) -> None:
        self.dtype, self.count = dtype, min(max(count, 1), _PARTS_MAX)
        self._waiting: list[tuple[NDArray[Any], _Ints]] = []
        self._waiting_bytes = 0
        self._directory: TemporaryDirectory[str] | None = None

    def add(self, records: NDArray[Any], parts: _Ints) -> None:
        self._waiting.append((records, parts))
        self._waiting_bytes += records.nbytes + parts.nbytes
        if self._waiting_bytes >= HELD_BYTES:
            self._write()

    def size(self, part: int) -> int:
        """The number of records of a part, whose records are then all in a file if any are."""
        if self._directory is None:
            return sum(int(np.count_nonzero(parts == part)) for _, parts in self._waiting)
        self._write()
        path = self._path(part)
        return os.path.getsize(path) // self.dtype.itemsize if os.path.exists(path) else 0

    def all_of(self, part: int) -> NDArray[Any]:
        """The records of a part in the order in which they were added."""
        return np.concatenate([np.empty(0, self.dtype), *self.read(part, self.size(part))])

    def read(self, part: int, records_max: int) -> Iterator[NDArray[Any]]:
        """The records of a part in their order, in arrays of at most so many if the part is a file."""
        left, start = self.size(part), 0
        if self._directory is None:
            held = (records[parts == part] for records, parts in self._waiting)
            yield np.concatenate([np.empty(0, self.dtype), *held])
            return
        while left > 0:
            yield np.fromfile(self._path(part), self.dtype, records_max, offset=start * self.dtype.itemsize)
            start, left = start + records_max, left - records_max

    def _path(self, part: int) -> str:
        assert self._directory is not None
        return os.path.join(self._directory.name, str(part))

    def _write(self) -> None:
        if not self._waiting:
            return
        if self._directory is None:
            self._directory = TemporaryDirectory(prefix="rmqlog-diff-")
        records, parts = (np.concatenate(each) for each in zip(*self._waiting, strict=True))
        self._waiting, self._waiting_bytes = [], 0
        order = np.argsort(parts.astype(np.uint16), kind="stable")  # of 16 bits: a radix sort
        edges = np.searchsorted(parts[order], np.arange(self.count + 1)).tolist()
        for part in range(self.count):
            if edges[part] < edges[part + 1]:
                with open(self._path(part), "ab") as file:
                    records[order[edges[part] : edges[part + 1]]].tofile(file)

    def close(self) -> None:
        """Removes the files."""
        self._waiting = []
        if self._directory is not None:
            self._directory.cleanup()


class RecordParts(Parts):
    """Records of messages, in parts by the digest of the id, else by that of the message.

    The first `stores_a` stores are those of A.
    """

    def __init__(self, messages: int, stores_a: int) -> None:
        super().__init__(RECORD, -(-messages * RECORD.itemsize // PART_BYTES))
        self._stores_a = stores_a
        self._windows = [np.empty(0, RECORD), np.empty(0, RECORD)]  # of A and B: what was read last
        self._equal = Parts(np.dtype(np.uint64), self.count)  # `low` of two records that left

    def put(self, records: _Records, store: int) -> None:
        """Takes the records of messages of a store in the order in which they are read, of both sides in
        turns.
        """
        side = int(store >= self._stores_a)
        self._windows[side] = np.concatenate([self._windows[side], records])
        count = min(map(len, self._windows))
        if not count:
            if len(self._windows[side]) > _WINDOW:
                self._keep_windows()
            return
        first, second = (window[:count] for window in self._windows)
        if _are_equal(first, second).all():  # the order is that of a copy
            one, two = np.arange(count), np.arange(count)
        else:
            one, two = _pairs(np.concatenate(self._windows), self._stores_a)
            two -= len(self._windows[0])
            in_one_queue = _are_equal(self._windows[0][one], self._windows[1][two])
            one, two = one[in_one_queue], two[in_one_queue]
        gone = self._windows[0][one]
        self._equal.add(gone["low"].copy(), self._parts_of(gone))
        self._windows = [
            np.delete(window, rows) for window, rows in zip(self._windows, (one, two), strict=True)
        ]
        if len(one) < sum(map(len, self._windows)):  # the sides are in another order, or differ
            self._keep_windows()

    def _keep_windows(self) -> None:
        for window in self._windows:
            self.add(window, self._parts_of(window))
        self._windows = [window[:0] for window in self._windows]

    def _parts_of(self, records: _Records) -> _Ints:
        digests = np.where(records["id"] != 0, records["id"], records["low"])
        return (((digests >> np.uint64(32)) * np.uint64(self.count)) >> np.uint64(32)).astype(np.int64)

    def differences(self) -> Iterator[_Records]:
        """The DIFFERENCEs, in no order.

        A part is too large if very many messages share one id, or are copies of one message. These messages
        are not paired by the id, and their copies in one queue become one record.
        """
        self._keep_windows()
        records_max = 2 * PART_BYTES // RECORD.itemsize
        for part in range(self.count):
            equal = partial(self._equal_copies, part)
            if self.size(part) <= records_max:
                yield differences(self.all_of(part), equal, self._stores_a)
                continue
            with closing(RecordParts(2 * self.size(part), self._stores_a)) as smaller:
                frequent = [_frequent_ids(records) for records in self.read(part, records_max)]
                for records in self.read(part, records_max):
                    records["id"][np.isin(records["id"], np.concatenate(frequent))] = 0
                    records = _without_copies(records)
                    smaller.add(records, smaller._parts_of(records))
                for number in range(smaller.count):
                    held = np.empty(0, RECORD)
                    for records in smaller.read(number, records_max):
                        held = _without_copies(np.concatenate([held, records]))
                    yield differences(held, equal, self._stores_a)

    def _equal_copies(self, part: int, low: _Words) -> _Ints:
        """How many copies of each of these messages of a part left in pairs."""
        found = np.zeros(len(low), np.int64)
        for words in self._equal.read(part, PART_BYTES // 8) if len(low) else ():
            words.sort()
            first, last = (np.searchsorted(words, low, side) for side in ("left", "right"))
            found += last - first
        return found

    def close(self) -> None:
        """Removes the files."""
        super().close()
        self._equal.close()


def _frequent_ids(records: _Records) -> _Words:
    ids, counts = np.unique(records["id"], return_counts=True)
    found: _Words = ids[counts > len(records) // 8]
    return found


def _without_copies(records: _Records) -> _Records:
    """One record for all copies of a message in one queue, with their number; the first one in the log."""
    place = records["place"]
    keys = [records["low"], records["high"], place["store"], place["queue"]]
    order = np.lexsort((place["physical"], *reversed(keys)))
    starts = _starts(*(key[order] for key in keys))
    found = records[order][starts]
    found["copies"] = np.add.reduceat(records["copies"][order], starts) if len(starts) else 0
    return found


# ---- one part ----------------------------------------------------------------------------------------------


def differences(records: _Records, equal: Callable[[_Words], _Ints], stores_a: int) -> _Records:
    """The DIFFERENCEs of all records of some messages and ids.

    `equal` says how many copies of messages, by the word `low`, are not among the records because both sides
    have them.
    """
    moved, records = _moved(records, equal, stores_a)
    if not len(records):
        return moved
    place = records["place"]
    order = np.lexsort((place["physical"], place["store"], records["high"], records["low"]))
    records, place = records[order], place[order]
    in_b = place["store"] >= stores_a
    starts = _starts(records["low"], records["high"])
    message = _of_runs(starts, np.arange(len(starts)), len(records))
    left_before = equal(records["low"][starts])
    copies_a, copies_b = (
        np.add.reduceat(np.where(side, records["copies"], 0), starts) + left_before for side in (~in_b, in_b)
    )
    more_here = _more_in_queue(message, place["queue"], np.where(in_b, -records["copies"], records["copies"]))
    count = len(starts)
    first_a = _first(message, ~in_b & (more_here > 0), count, _first(message, ~in_b, count))
    first_b = _first(message, in_b & (more_here < 0), count, _first(message, in_b, count))
    is_moved = np.zeros(count, bool)
    is_moved[message[(more_here != 0) & (records["id"] != 0)]] = True
    kinds = np.select(
        [copies_b == 0, copies_a == 0, copies_a > copies_b, copies_a < copies_b, is_moved],
        [ONLY_A, ONLY_B, MORE_A, MORE_B, MOVED], -1,
    )  # fmt: skip
    first = np.where(first_a < 0, first_b, first_a)
    left = np.flatnonzero((kinds == ONLY_A) | (kinds == ONLY_B))
    left = left[records["id"][first[left]] != 0]
    for names in (("id", "topic"), ("id",)):  # rather with the message of the same topic
        keys = [(records["id"] if name == "id" else place[name])[first[left]] for name in names]
        in_a, of_b = _paired(keys, kinds[left] == ONLY_B)
        changed, gone = left[in_a], left[of_b]
        kinds[changed], kinds[gone] = CHANGED, -1
        first_b[changed], copies_b[changed] = first_b[gone], copies_b[gone]
        left = np.setdiff1d(left, np.concatenate([changed, gone]))
    found = _found(kinds, place[first_a], place[first_b], copies_a, copies_b)
    # of copies beyond those of the other side: only their own place
    found["a"]["store"][(first_a < 0) | (kinds == MORE_B)] = -1
    found["b"]["store"][(first_b < 0) | (kinds == MORE_A)] = -1
    return np.concatenate([moved, found[kinds >= 0]])


def _moved(records: _Records, equal: Callable[[_Words], _Ints], stores_a: int) -> tuple[_Records, _Records]:
    """(the moved ones of the messages that are once in each side, the records of the other messages)"""
    one, two = _pairs(records, stores_a)
    left = np.ones(len(records), bool)
    left[one] = left[two] = False
    place = records["place"]
    is_moved = (place["queue"][one] != place["queue"][two]) & (records["id"][one] != 0)
    one, two = one[is_moved], two[is_moved]
    copies = 1 + equal(records["low"][one])
    return _found(np.full(len(one), MOVED), place[one], place[two], copies, copies), records[left]


def _pairs(records: _Records, stores_a: int) -> tuple[_Ints, _Ints]:
    """(rows of A, rows of B) of the messages that have one record in each side.

    Most messages are such ones, and one sort by one word finds them.
    """
    # contiguous arrays, of which numpy takes rows several times as fast as of a field of records
    low, high, store = map(np.ascontiguousarray, (records["low"], records["high"], records["place"]["store"]))
    order = np.argsort(low)
    low = low[order]
    same = np.concatenate([[False], low[1:] == low[:-1], [False]])
    at = np.flatnonzero(same[1:-1] & ~same[:-2] & ~same[2:])  # the first of two
    one, two = order[at], order[at + 1]
    swapped = store[one] > store[two]
    one, two = np.where(swapped, two, one), np.where(swapped, one, two)
    is_pair = (store[one] < stores_a) & (store[two] >= stores_a) & (high[one] == high[two])
    is_pair &= (records["copies"][one] == 1) & (records["copies"][two] == 1)
    return one[is_pair], two[is_pair]


def _are_equal(a: _Records, b: _Records) -> NDArray[np.bool_]:
    """Whether each message of `a` is that of `b`, and in the same queue."""
    same: NDArray[np.bool_] = (a["low"] == b["low"]) & (a["high"] == b["high"])
    same &= a["place"]["queue"] == b["place"]["queue"]
    return same


def _found(kinds: _Ints, a: _Records, b: _Records, copies_a: _Ints, copies_b: _Ints) -> _Records:
    found = np.empty(len(kinds), DIFFERENCE)
    found["kind"] = kinds.astype(np.uint8)
    found["a"], found["b"], found["copies_a"], found["copies_b"] = a, b, copies_a, copies_b
    return found


def _starts(*sorted_keys: NDArray[np.generic]) -> _Ints:
    """Where each run of equal keys begins."""
    changes = np.zeros(len(sorted_keys[0]), bool)
    changes[:1] = True
    for key in sorted_keys:
        changes[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(changes)


def _of_runs(starts: _Ints, values: _Ints, count: int) -> _Ints:
    """The value of its run for each of `count` rows."""
    return np.repeat(values, np.diff(np.append(starts, count)))


def _more_in_queue(message: _Ints, queue: _Ints, copies: _Ints) -> _Ints:
    """For each record: how many copies of its message A has more in its queue than B (below 0: fewer)."""
    order = np.lexsort((queue, message))
    starts = _starts(message[order], queue[order])
    sums = np.add.reduceat(copies[order], starts)
    found = np.empty(len(order), np.int64)
    found[order] = _of_runs(starts, sums, len(order))
    return found


def _first(message: _Ints, chosen: NDArray[np.bool_], count: int, otherwise: _Ints | None = None) -> _Ints:
    """The first chosen record of each message; without one that of `otherwise`, else -1."""
    found = np.full(count, -1) if otherwise is None else otherwise
    rows = np.flatnonzero(chosen)
    messages, at = np.unique(message[rows], return_index=True)
    found[messages] = rows[at]
    return found


def _paired(keys: Sequence[NDArray[np.generic]], in_b: NDArray[np.bool_]) -> tuple[_Ints, _Ints]:
    """(indexes in A, indexes in B) with equal keys, one to one: the first with the first."""
    order = np.lexsort((in_b, *reversed(keys)))
    sorted_keys = [key[order] for key in keys]
    sides = in_b[order]
    count, groups, runs = len(order), _starts(*sorted_keys), _starts(*sorted_keys, sides)
    rank = np.arange(count) - _of_runs(runs, runs, count)
    code = _of_runs(groups, groups, count) * (count + 1) + rank
    _, a, b = np.intersect1d(code[~sides], code[sides], assume_unique=True, return_indices=True)
    return order[~sides][a], order[sides][b]
