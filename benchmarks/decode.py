"""Decoding alone: one thread, no Spark, from the files to Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.rounds import Rates, interleave
from store_format import MessageStore
from store_format.message.columns import DEFAULT_COLUMNS, DecodeOptions
from store_format.read.tolerance import Tolerance

_PROJECTIONS = {
    "default columns, CRC on": DecodeOptions(DEFAULT_COLUMNS),
    "default columns, CRC off": DecodeOptions(DEFAULT_COLUMNS, verify_crc=False),
    "body": DecodeOptions(("body",), verify_crc=False),
    "queueOffset, storeTimestamp": DecodeOptions(("queueOffset", "storeTimestamp"), verify_crc=False),
    "queueOffset, one property": DecodeOptions(("queueOffset", "region"), verify_crc=False),
}


def measure_decode(root: Path, rounds: int) -> list[Rates]:
    """Messages a second for each set of options over all queues at once, and for the default columns queue by
    queue.
    """
    cases = decode_cases(root)
    cases["default columns, CRC on, queue by queue"] = partial(_read_one_by_one, root)
    return list(interleave(cases, rounds).values())


def decode_cases(root: Path) -> dict[str, Callable[[], int]]:
    """A read of all queues at once for each set of options."""
    return {
        name: partial(_read_together, root, decode_options) for name, decode_options in _PROJECTIONS.items()
    }


def _read_together(root: Path, decode_options: DecodeOptions) -> int:
    store = MessageStore.open(str(root))
    slices = [queue.piece() for queue in store.queues()]
    return sum(batch.num_rows for batch in store.reader(decode_options, Tolerance()).read(slices))


def _read_one_by_one(root: Path) -> int:
    return sum(batch.num_rows for queue in MessageStore.open(str(root)).queues() for batch in queue.read())
