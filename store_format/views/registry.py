"""Every view, once. The reference, the command line, the option `view` and Spark's schemas come from `VIEWS`.

To add a view, write a module that ends with its `VIEW` and put the module into `VIEWS`. A view is computed
from the files as they are when a caller reads the batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.errors import OptionError
from store_format.names import did_you_mean
from store_format.views import (
    checkpoint,
    dead_letters,
    delayed,
    files,
    groups,
    index,
    lag,
    problems,
    queues,
    retention,
    services,
    topics,
    transactions,
    usage,
)
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

VIEWS: tuple[View, ...] = (  # in the order of the reference
    topics.VIEW,
    queues.VIEW,
    groups.VIEW,
    lag.VIEW,
    retention.VIEW,
    usage.VIEW,
    files.VIEW,
    index.VIEW,
    checkpoint.VIEW,
    delayed.VIEW,
    transactions.VIEW,
    dead_letters.VIEW,
    services.VIEW,
    problems.VIEW,
)

_BY_NAME = {view.name: view for view in VIEWS}


def view_named(name: str) -> View:
    """The view with this name. Raises OptionError, which suggests the nearest name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise OptionError(f"there is no view {name!r}; {did_you_mean(name, _BY_NAME, 'views')}")


def view_batches(store: Store, name: str, *, now_ms: int | None = None) -> Iterator[pa.RecordBatch]:
    """A view in batches: memory is bounded by one batch and the list of the queues."""
    view = view_named(name)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    yield from view.batches(store, now)


def view_table(store: Store, name: str, *, now_ms: int | None = None) -> pa.Table:
    """A whole view. Ages count to `now_ms`, by default the clock."""
    return pa.Table.from_batches(view_batches(store, name, now_ms=now_ms), view_named(name).schema)
