"""Decoding alone: one thread, no Spark, from the files to Arrow batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.rounds import Rates, interleave
from store_format import MessageStore
from store_format.message.columns import DEFAULT_COLUMNS, Projection
from store_format.read.tolerance import Tolerance

__all__ = ["measure_decode"]

_PROJECTIONS = {
    "default columns, CRC on": Projection(DEFAULT_COLUMNS),
    "default columns, CRC off": Projection(DEFAULT_COLUMNS, verify_crc=False),
    "body": Projection(("body",), verify_crc=False),
    "queueOffset, storeTimestamp": Projection(("queueOffset", "storeTimestamp"), verify_crc=False),
    "queueOffset, one property": Projection(("queueOffset", "region"), verify_crc=False),
}


def measure_decode(root: Path, rounds: int) -> list[Rates]:
    """Messages a second for each projection over all queues at once, and for the default columns queue by
    queue.
    """
    cases: dict[str, Callable[[], int]] = {
        name: partial(_read_together, root, projection) for name, projection in _PROJECTIONS.items()
    }
    cases["default columns, CRC on, queue by queue"] = partial(_read_one_by_one, root)
    return list(interleave(cases, rounds).values())


def _read_together(root: Path, projection: Projection) -> int:
    store = MessageStore.open(str(root))
    slices = [queue.piece() for queue in store.queues()]
    return sum(batch.num_rows for batch in store.reader(projection, Tolerance()).read(slices))


def _read_one_by_one(root: Path) -> int:
    return sum(batch.num_rows for queue in MessageStore.open(str(root)).queues() for batch in queue.read())
