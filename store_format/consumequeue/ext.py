"""The extension of a consume queue: the tags codes of messages whose unit has an address in its place
(ConsumeQueueExt).

A broker with `enableConsumeQueueExt` writes it. One queue may have units with addresses and units with plain
tags codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.consumequeue.files import FileRun, file_run
from store_format.errors import CorruptStoreError, StoreNotFoundError
from store_format.files.read import offset_file_name
from store_format.files.view import FileView
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_EXT_HEAD

_ADDRESS_MIN = -(2**63)
_HEAD_SIZE = CQ_EXT_HEAD.itemsize
_SPAN_MAX = 1 << 20  # bytes of one read

_Integers = NDArray[np.signedinteger[Any]]  # Any: big-endian from a unit or native


def is_ext_address(tags_codes: _Integers) -> NDArray[np.bool_]:
    """True where the tags code of a unit is an address in the extension (ConsumeQueueExt.isExtAddr)."""
    return np.asarray(tags_codes <= CQ_EXT_ADDRESS_MAX)


def ext_offset(addresses: _Integers) -> NDArray[np.int64]:
    """The byte offsets in the extension that the addresses mean (ConsumeQueueExt.unDecorate)."""
    return np.bitwise_xor(addresses.astype(np.int64), np.int64(_ADDRESS_MIN))  # + 2^63, without overflow


def resolve_tags_codes(directory: str, tags_codes: _Integers) -> NDArray[np.int64]:
    """`tags_codes` in native byte order, with the real tags code in place of each address.

    `directory` is the queue's directory below `consumequeue_ext`; it is read only if there is an address.
    Raises CorruptStoreError for an address that points to no unit.
    """
    resolved = tags_codes.astype(np.int64)
    places = np.flatnonzero(is_ext_address(resolved))
    for index, heads in _read_heads(directory, resolved[places]):
        resolved[places[index]] = heads["tags_code"]
    return resolved


def _read_heads(directory: str, addresses: _Integers) -> Iterator[tuple[NDArray[np.intp], NDArray[np.void]]]:
    """(indices of addresses, the checked heads at these addresses), in reads of about 1 MiB."""
    if not len(addresses):
        return
    run = file_run(directory, 1)
    offsets = ext_offset(addresses)
    if run is None:
        raise CorruptStoreError(
            directory,
            int(offsets[0]),
            "an extension of the consume queue, because a unit holds an address in it",
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
            "a unit of the extension, because an address points here",
            have,
        )
    start = 0
    while start < len(offsets):
        file_start = int(offsets[start]) // run.file_size * run.file_size
        beyond = min(int(offsets[start]) + _SPAN_MAX, file_start + run.file_size - 1)
        stop = max(start + 1, int(np.searchsorted(offsets, beyond, side="right")))
        yield order[start:stop], _heads_in_file(directory, run, file_start, offsets[start:stop] - file_start)
        start = stop


def _heads_in_file(
    directory: str, run: FileRun, file_start: int, positions: NDArray[np.int64]
) -> NDArray[np.void]:
    """The checked heads at ascending positions in one file, by one read."""
    path, first = f"{directory}/{offset_file_name(file_start)}", int(positions[0])
    try:
        with FileView(path) as view:
            data = view.read(first, int(positions[-1]) - first + _HEAD_SIZE)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{path} no longer exists: it was deleted (retention?) after planning"
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
    return heads
