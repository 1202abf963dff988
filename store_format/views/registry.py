"""Every view, once. The reference, the command line, the option `view` and Spark's schemas come from
`ALL_VIEWS`; `VIEWS` are those of one store.

To add a view, write a module that ends with its `VIEW` and put that into `VIEWS`. A view is computed
from the files as they are when a caller reads the batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa

from store_format.display.instants import number_advice
from store_format.errors import OptionError
from store_format.files.read import all_answered
from store_format.metadata.read import BrokerConf
from store_format.names import did_you_mean
from store_format.read.store import Store
from store_format.views import (
    checkpoint,
    consume_time,
    dead_letters,
    delayed,
    diff,
    duplicates,
    files,
    in_flight,
    lag,
    lag_by_topic,
    owners,
    problems,
    queues,
    retention,
    transactions,
)
from store_format.views.view import View

VIEWS: tuple[View, ...] = (  # in the order of the reference
    queues.TOPICS,
    queues.QUEUES,
    lag.GROUPS,
    lag_by_topic.VIEW,
    lag.LAG,
    owners.VIEW,
    in_flight.VIEW,
    retention.VIEW,
    files.USAGE,
    files.FILES,
    files.INDEX,
    checkpoint.CHECKPOINT,
    delayed.VIEW,
    transactions.VIEW,
    dead_letters.VIEW,
    duplicates.VIEW,
    consume_time.VIEW,
    checkpoint.SERVICES,
    problems.VIEW,
)
ALL_VIEWS = (*VIEWS, diff.VIEW)  # with the one that compares stores

_BY_NAME = {view.name: view for view in ALL_VIEWS}


def view_named(name: str) -> View:
    """The view with this name. Raises OptionError, which suggests the nearest name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise OptionError(f"there is no view {name!r}; {did_you_mean(name, _BY_NAME, 'views')}")


def refuse_no_ms(now_ms: object) -> None:
    """Raises OptionError if `now_ms` is no time in ms since 1970, such as a year or seconds."""
    if isinstance(now_ms, bool) or not isinstance(now_ms, int) or now_ms < 0:
        raise OptionError(f"now_ms: expected ms since 1970, found {now_ms!r}")
    advice = number_advice(str(now_ms))
    if advice:
        raise OptionError(f"now_ms: expected ms since 1970, found {now_ms}; {advice}")


def view_batches(
    store: Store,
    name: str,
    *,
    now_ms: int | None = None,
    broker_conf: str | BrokerConf | None = None,
) -> Iterator[pa.RecordBatch]:
    """A view in batches: memory is bounded by one batch and the list of the queues. See `view_table`."""
    view = view_named(name)
    if view.of_two is not None:
        raise OptionError(
            f"the view {name} compares stores; use rmqlog diff, the method diff of the store, or in Spark "
            "the option otherPath"
        )
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    refuse_no_ms(now)
    with all_answered():
        yield from view.rows(store, now, broker_conf)


def view_table(
    store: Store,
    name: str,
    *,
    now_ms: int | None = None,
    broker_conf: str | BrokerConf | None = None,
) -> pa.Table:
    """A whole view. Ages count to `now_ms`, by default the clock.

    `broker_conf` is the path of the broker's broker.conf, or its settings; without it the settings are those
    in the store's `.rmqlog/broker.conf`, else the broker's defaults.
    """
    batches = view_batches(store, name, now_ms=now_ms, broker_conf=broker_conf)
    return pa.Table.from_batches(batches, view_named(name).schema)
