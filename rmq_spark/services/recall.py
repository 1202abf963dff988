"""Recalls timer messages that wait for their time (RecallMessageProcessor of RocketMQ 5.3 and later)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_spark.consume.client_ids import check_group
from rmq_spark.produce.timers import recall_messages
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.commit.unsupported import refuse_store
from store_format.errors import OptionError
from store_format.metadata.broker_conf import BrokerConf
from store_format.names import TIMER_TOPIC, UNIQ_KEY
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored
from store_format.views.delayed import delayed

_COLUMNS = ["topic", "queueId", "msgId", "dueTimestamp", "physicalOffset"]


@dataclass(frozen=True, slots=True)
class RecallPlan:
    """A plan that recalls the waiting timer messages of `topic` with the key `uniq_key`."""

    root: str
    topic: str
    uniq_key: str
    rows: pa.Table
    conf: BrokerConf
    producer_group: str
    now_ms: int | None
    log_directories: tuple[str, ...]
    lock_timeout: float

    def table(self) -> pa.Table:
        """Returns one row for each message that will not be delivered.

        The columns are topic, queueId, msgId, dueTimestamp (the delivery time, UTC) and physicalOffset.
        """
        return self.rows

    def apply(self) -> int:
        """Stores the recalls and returns their number; 0 if all messages are already recalled.

        Raises OptionError if a message of the plan was delivered meanwhile, and StoreInUseError while a
        broker has the store.
        """
        now_ms = _clock(self.now_ms)
        options = CommitOptions(
            lock_timeout=self.lock_timeout,
            log_directories=self.log_directories,
            conf=self.conf,
            clock=lambda: now_ms,
        )
        with write_session(self.root, options) as session:
            store = session.store()
            rows = _waiting_rows(store, self.topic, self.uniq_key, now_ms, self.conf)
            if not rows.num_rows:
                return 0
            victims, _, damaged = read_stored(
                store.log,
                rows["physicalOffset"].to_numpy().astype(np.int64),
                rows["bytes"].to_numpy().astype(np.int64),
            )
            if damaged:
                raise damaged[0].error
            messages = recall_messages(
                victims,
                has_topic=self.conf.timer_delete_key_has_topic,
                producer_group=self.producer_group,
                now_ms=now_ms,
            )
            session.append(messages, new_topics={TIMER_TOPIC: 1})
            return len(victims)


def recall(
    store: Store | str,
    *,
    topic: str,
    uniq_key: str,
    producer_group: str = "rmqlog",
    now_ms: int | None = None,
    broker_conf: str | BrokerConf | None = None,
    lock_timeout: float = 10.0,
) -> RecallPlan:
    """Returns a plan that recalls the timer message of `topic` (its destination) with the UNIQ_KEY
    `uniq_key`.

    `table()` shows the message, `apply()` stores the recall. After that, neither the service `timer` nor a
    broker delivers the message. `now_ms` is the clock (ms since 1970). `broker_conf` is the path of the
    broker's settings (appendTopicForTimerDeleteKey), as for `run_once`. `lock_timeout` is the time to wait
    for the lock, in seconds.

    Raises OptionError if no such message waits: it does not exist, or its time has come.

    Example::

        plan = timer.recall("/data/store", topic="Orders", uniq_key="7F0000010000...")
        plan.table()
        plan.apply()
    """
    store = Store.open(store) if isinstance(store, str) else store
    refuse_store(store.path)
    conf = broker_conf_of(store.path, broker_conf)
    rows = _waiting_rows(store, topic, uniq_key, _clock(now_ms), conf)
    return RecallPlan(
        store.path,
        topic,
        uniq_key,
        rows.select(_COLUMNS),
        conf,
        check_group(producer_group),
        now_ms,
        store.commit_log_paths,
        lock_timeout,
    )


def _waiting_rows(store: Store, topic: str, uniq_key: str, now_ms: int, conf: BrokerConf) -> pa.Table:
    """The rows of the view `delayed`; none if the message is recalled already."""
    found: list[dict[str, Any]] = []
    states = set()
    batches = list(delayed(store, now_ms, conf))
    for row in (row for batch in batches for row in batch.to_pylist()):
        if (row["kind"], row["topic"], row["msgId"]) == ("timer", topic, uniq_key):
            waits = row["dueInMs"] > -conf.timer_precision_ms and row["state"] in ("waiting", "unknown")
            states.add("waiting" if waits else row["state"])
            if waits:
                found.append(row)
    if not states & {"waiting", "recalled"}:
        reason = "its time has come" if states & {"due", "unknown"} else "none waits in the timer"
        raise OptionError(
            f"{store.path}: expected a message of topic {topic!r} with {UNIQ_KEY} {uniq_key!r} that waits "
            f"for its time, but {reason}; the view `delayed` has those that wait"
        )
    return pa.Table.from_pylist(found, batches[0].schema)


def _clock(now_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms
