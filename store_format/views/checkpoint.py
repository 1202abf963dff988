"""The views `checkpoint` and `services`: how far the broker had flushed; what rmqlog's services have done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import pyarrow as pa

from store_format.bookkeeping.ledger import ServiceCounters
from store_format.display.columns import (
    BROKER,
    LONG,
    TEXT,
    TIME,
    ViewColumn,
    batches_of,
    time_us,
)
from store_format.metadata.read import CHECKPOINT_SINCE, read_checkpoint
from store_format.metadata.timer import TimerCheck
from store_format.metadata.values import java_name
from store_format.read.store import Store
from store_format.views.view import View

# ---- the view checkpoint -----------------------------------------------------------------------------------


_TIMER_SINCE = "5.0"

CHECKPOINT_COLUMNS = (
    BROKER,
    ViewColumn("file", TEXT, "`checkpoint`, or `config/timercheck`."),
    ViewColumn("name", TEXT, "The broker's name of the number."),
    ViewColumn("value", LONG, "The number; 0 if the broker has not set it."),
    ViewColumn("timestamp", TIME, "The number as a time, if it is one."),
    ViewColumn("since", TEXT, "The first release that writes the number."),
)


def checkpoint(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each number of `checkpoint` and of `config/timercheck`."""
    rows: list[tuple[object, ...]] = []
    for file, read, since in (
        ("checkpoint", read_checkpoint(f"{store.path}/checkpoint"), CHECKPOINT_SINCE),
        ("config/timercheck", TimerCheck.read(store.opened), {}),
    ):
        for name, value in (asdict(read) if read is not None else {}).items():
            time = time_us(value) if name.endswith(("timestamp", "time")) and value > 0 else None
            rows.append(
                (store.broker_name, file, java_name(name), value, time, since.get(name, _TIMER_SINCE))
            )
    return batches_of(CHECKPOINT_COLUMNS, rows)


CHECKPOINT = View("checkpoint", "How far the broker had flushed its files.", CHECKPOINT_COLUMNS, checkpoint)


# ---- the view services -------------------------------------------------------------------------------------


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
    counters = sorted((ServiceCounters.read_all(store.opened) or {}).items())
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


SERVICES = View(
    "services",
    "What rmqlog's own services have done on the store: turns, messages, lateness.",
    SERVICES_COLUMNS,
    services,
)
