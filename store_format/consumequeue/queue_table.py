"""The queues of stored messages by number, as `kernels/dispatch.py` looks them up."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.java.text import decode_utf8
from store_format.message.locate import UnitRefs
from store_format.names import QueueKey

_QUEUES = 64
_NAMES_SIZE = 1 << 14

_Ints = NDArray[np.int64]


class QueueRules(NamedTuple):
    """What is known of a queue: its number in entries, and which entries count.

    These are the entries with an offset of at least `offset` whose message lies behind the physical offset
    `physical`. `is_odd`: the kernel does not know the rules of the queue.
    """

    number: int
    offset: int
    physical: int
    is_odd: bool


class QueueTable:
    """Computes the entries of messages in queues with plain rules; asks for the `rules` of a queue once."""

    def __init__(self, rules: Callable[[QueueKey], QueueRules]) -> None:
        self._rules = rules
        self._keys: list[QueueKey] = []
        self._rows = np.empty((_QUEUES, kernels.dispatch.QUEUE_WIDTH), np.int64)
        self._slots = np.zeros(4 * _QUEUES, np.int64)
        self._names = np.empty(_NAMES_SIZE, np.uint8)
        self._names_size = 0

    def entries(self, refs: UnitRefs) -> tuple[_Ints, _Ints]:
        """Returns (entries of `ENTRY_WIDTH` numbers each, the numbers of units that the kernel leaves)."""
        entries = np.empty((len(refs), kernels.dispatch.ENTRY_WIDTH), np.int64)
        odd = np.empty(len(refs), np.int64)
        why, unit, count, odd_count = kernels.dispatch.NEW_QUEUE, 0, 0, 0
        while why != kernels.dispatch.DONE:
            why, unit, count, odd_count = kernels.dispatch.dispatch(
                refs.buffer, refs.positions, refs.physical_offsets, refs.sizes, unit,
                self._slots, self._rows.reshape(-1), self._names, len(self._keys), self._names_size,
                entries.reshape(-1), count, odd, odd_count,
            )  # fmt: skip
            if why == kernels.dispatch.NEW_QUEUE:
                self._add()
            elif why == kernels.dispatch.FULL:
                self._grow()
        return entries[:count], odd[:odd_count]

    def _add(self) -> None:
        row = self._rows[len(self._keys)]
        start, length, queue_id = row[:3].tolist()
        key = decode_utf8(self._names[start : start + length].tobytes()), queue_id
        row[3:] = self._rules(key)
        self._keys.append(key)
        self._names_size += length

    def _grow(self) -> None:
        self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._names = np.concatenate([self._names, np.empty(len(self._names) + _NAMES_SIZE, np.uint8)])
        self._slots = np.zeros(2 * len(self._slots), np.int64)
        kernels.dispatch.fill_slots(self._slots, self._rows.reshape(-1), self._names, len(self._keys))

    def refresh(self) -> None:
        """Asks for the rules of all queues again."""
        for row, key in zip(self._rows, self._keys, strict=False):
            row[3:] = self._rules(key)
