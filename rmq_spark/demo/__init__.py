"""A demo store: three days of a shop's messages, with a burst, slow groups, a retry storm and dead letters.

`python -m rmq_spark.demo DIRECTORY` creates the store. The messages are JSON; the same end time gives the
same messages. Broker services (`rmq_spark.services`) deliver, retry and bury messages as a broker does.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rmq_spark.demo.broker import STORM_MS, Broker, messages_until, steps_until, write_groups
from rmq_spark.store import LogStore
from store_format.files.write import directory_until_exit
from store_format.store import MessageStore

__all__ = ["create"]


def create(
    path: str | None = None,
    *,
    end_ms: int | None = None,
    orders: int = 8000,
    on_progress: Callable[[float], None] | None = None,
) -> LogStore:
    """Creates the demo store at `path`, a new or empty directory, and returns it as `rmq_spark.open` does.

    Without a path, the store is in the system's temporary directory until this process ends.

    The last message is stored just before `end_ms` (ms since 1970, default: now), and the first message three
    days earlier. `orders` is the number of orders; each order makes about four messages of 0.5 KB. By default
    the store has the same orders, groups and dead letters at every time of day: those of a store that ends at
    12:00 UTC. `on_progress` is called with the share of the work that is done, from 0 to 1.

    The topics are Orders, Payments and Reminders. The group CG_report stopped reading on the first day and is
    the first to lose messages. CG_search is hours behind. CG_mail failed for 25 minutes: its messages were
    retried, and some became dead letters. Reminders wait for delivery, and three transactions wait for their
    decision.

    Raises OptionError if the directory has content.

    Example::

        from rmq_spark import demo

        store = demo.create()
        store.messages("Orders").head(5)
    """
    end_hour = 12 if end_ms is None else None
    if path is None:
        path = os.path.join(directory_until_exit("rmqlog-demo-"), "shop")
    end_ms = time.time_ns() // 1_000_000 if end_ms is None else end_ms
    MessageStore.create(
        path,
        broker_name="broker-a",
        mapped_file_size_commit_log=4 << 20,
        mapped_file_size_consume_queue=600_000,
        max_hash_slot_num=50_000,
        max_index_num=200_000,
    )
    broker = Broker(os.path.abspath(path), end_ms - STORM_MS)
    messages = sorted(messages_until(end_ms, orders, end_hour), key=lambda message: message.time_ms)
    steps = list(steps_until(end_ms))
    for i, now_ms in enumerate(steps):
        if on_progress is not None:
            on_progress(i / len(steps))
        stop = next((i for i, each in enumerate(messages) if each.time_ms > now_ms), len(messages))
        broker.step(messages[:stop], now_ms)
        del messages[:stop]
    store = MessageStore.open(path)
    store.flush()
    write_groups(store, end_ms)
    broker.date_files(store)
    return LogStore.open(path)
