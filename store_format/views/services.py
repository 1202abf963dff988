"""The view `services`: what rmqlog's own services have done on the store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.bookkeeping.ledger import read_counters
from store_format.display.columns import BROKER, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

SERVICES_COLUMNS = (
    BROKER,
    ViewColumn("service", TEXT, "The service: `schedule`, `timer`, `flush`, `clean` ..."),
    ViewColumn("turns", LONG, "Turns that did something or failed."),
    ViewColumn("done", LONG, "Messages written by the service; `clean`: files deleted."),
    ViewColumn("failures", LONG, "Turns that ended with an error."),
    ViewColumn("lastTurn", TIME, "The last of these turns."),
    ViewColumn("lateMsMax", LONG, "How late the latest message was delivered."),
)


def services(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each service of rmqlog that has done something on the store, by name."""
    counters = sorted((read_counters(store.path) or {}).items())
    return batches_of(
        SERVICES_COLUMNS,
        (
            (
                store.broker_name, name, each.turns, each.done, each.failures, time_us(each.last_turn),
                each.late_ms_max,
            )
            for name, each in counters
        ),
    )  # fmt: skip


VIEW = View(
    "services",
    "What rmqlog's own services have done on the store: turns, messages, lateness.",
    SERVICES_COLUMNS,
    services,
)
