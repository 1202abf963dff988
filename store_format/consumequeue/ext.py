"""The extension of a consume queue: tags code, store time and filter bit map of messages whose unit holds an
address (ConsumeQueueExt).

It exists where the broker ran with `enableConsumeQueueExt`; a queue may have addresses and plain tags codes
side by side.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.consumequeue.files import FileRun, file_run
from store_format.errors import CorruptStoreError, StoreNotFoundError
from store_format.files.read import FileView, offset_file_name
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_EXT_HEAD

__all__ = ["ExtUnits", "ext_offset", "is_ext_address", "read_ext_units", "resolve_tags_codes"]

_ADDRESS_MIN = -(2**63)
_HEAD_SIZE = CQ_EXT_HEAD.itemsize
_UNIT_SIZE_MAX = 2**15 - 1  # ConsumeQueueExt.CqExtUnit.MAX_EXT_UNIT_SIZE
_SPAN_MAX = 1 << 20  # addresses further apart are read apart

_Integers = NDArray[np.signedinteger[Any]]  # Any: big-endian from a unit or native


class ExtUnits(NamedTuple):
    """Units of the extension, one for each address asked for, in that order."""

    tags_codes: NDArray[np.int64]
    store_timestamps: NDArray[np.int64]
    filter_bit_maps: list[bytes]  # bit i is byte i / 8, mask 1 << i % 8; empty when the broker had no filter


def is_ext_address(tags_codes: _Integers) -> NDArray[np.bool_]:
    """True where a consume queue unit's tags code is an address of the extension (ConsumeQueueExt.isExtAddr)."""
    return np.asarray(tags_codes <= CQ_EXT_ADDRESS_MAX)


def ext_offset(addresses: _Integers) -> NDArray[np.int64]:
    """The byte offsets in the extension that addresses stand for (ConsumeQueueExt.unDecorate)."""
    return np.bitwise_xor(addresses.astype(np.int64), np.int64(_ADDRESS_MIN))  # + 2^63, without overflow


def resolve_tags_codes(directory: str, tags_codes: _Integers) -> NDArray[np.int64]:
    """`tags_codes` in native order, with the real tags code in place of each address.

    `directory` is the queue's own below `consumequeue_ext`; it is looked at only when there is an address.

    Raises CorruptStoreError for an address that leads to no unit.
    """
    resolved = tags_codes.astype(np.int64)
    places = np.flatnonzero(is_ext_address(resolved))
    for part in _read_parts(directory, resolved[places], 0):
        resolved[places[part.places]] = part.heads["tags_code"]
    return resolved


def read_ext_units(directory: str, addresses: _Integers) -> ExtUnits:
    """The units at `addresses`.

    Raises CorruptStoreError for a value that is no address, or leads to no unit.
    """
    wrong = np.flatnonzero(~is_ext_address(addresses))
    if len(wrong):
        raise CorruptStoreError(
            directory, 0, f"an address of at most {CQ_EXT_ADDRESS_MAX}", str(int(addresses[wrong[0]]))
        )
    units = ExtUnits(
        np.empty(len(addresses), np.int64), np.empty(len(addresses), np.int64), [b""] * len(addresses)
    )
    for part in _read_parts(directory, addresses, _UNIT_SIZE_MAX - _HEAD_SIZE):
        units.tags_codes[part.places] = part.heads["tags_code"]
        units.store_timestamps[part.places] = part.heads["store_timestamp"]
        starts = part.positions + _HEAD_SIZE
        stops = starts + part.heads["filter_bit_map_size"]
        for place, start, stop in zip(part.places.tolist(), starts.tolist(), stops.tolist(), strict=True):
            units.filter_bit_maps[place] = part.data[start:stop]
    return units


class _Part(NamedTuple):
    places: NDArray[np.intp]  # in the array of addresses
    positions: NDArray[np.int64]  # of their heads in `data`
    heads: NDArray[np.void]
    data: bytes


def _read_parts(directory: str, addresses: _Integers, tail: int) -> Iterator[_Part]:
    """The heads at `addresses`, checked, in reads of about a megabyte that go `tail` bytes beyond the last
    head.
    """
    if not len(addresses):
        return
    run = file_run(directory, 1)
    offsets = ext_offset(addresses)
    if run is None:
        raise CorruptStoreError(
            directory,
            int(offsets[0]),
            "an extension of the consume queue, as a unit holds an address",
            "no file",
        )
    order = np.argsort(offsets, kind="stable")
    offsets = offsets[order]
    outside = (offsets < run.first_file) | (offsets - run.last_file >= run.file_size)
    if outside.any():
        have = f"files of bytes {run.first_file} to {run.last_file + run.file_size}"
        raise CorruptStoreError(
            directory,
            int(offsets[outside.argmax()]),
            "a unit of the extension, as an address leads here",
            have,
        )
    start = 0
    while start < len(offsets):
        file_start = int(offsets[start]) // run.file_size * run.file_size
        beyond = min(int(offsets[start]) + _SPAN_MAX, file_start + run.file_size - 1)
        stop = max(start + 1, int(np.searchsorted(offsets, beyond, side="right")))
        yield _read_part(
            directory, run, file_start, offsets[start:stop] - file_start, order[start:stop], tail
        )
        start = stop


def _read_part(
    directory: str,
    run: FileRun,
    file_start: int,
    positions: NDArray[np.int64],
    places: NDArray[np.intp],
    tail: int,
) -> _Part:
    path, first = f"{directory}/{offset_file_name(file_start)}", int(positions[0])
    try:
        with FileView(path) as view:
            data = view.read(first, int(positions[-1]) - first + _HEAD_SIZE + tail)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{path}: the file is gone; it was deleted (retention?) after planning"
        ) from error
    whole = int(np.searchsorted(positions, first + len(data) - _HEAD_SIZE, side="right"))
    heads = gather_units(np.frombuffer(data, np.uint8), positions[:whole] - first, CQ_EXT_HEAD)
    sizes = heads["size"].astype(np.int64)
    right = (heads["filter_bit_map_size"] >= 0) & (
        sizes == _HEAD_SIZE + heads["filter_bit_map_size"].astype(np.int64)
    )
    right &= positions[:whole] + sizes <= run.file_size
    if whole < len(positions) or not right.all():
        wrong = int(right.argmin()) if not right.all() else whole
        found = (
            f"size {heads['size'][wrong]}, bit map of {heads['filter_bit_map_size'][wrong]}"
            if wrong < whole
            else "the end of the file"
        )
        raise CorruptStoreError(
            path,
            int(positions[wrong]),
            f"a unit of {_HEAD_SIZE} bytes and its bit map inside the file",
            found,
        )
    return _Part(places, positions - first, heads, data)
