"""The view `lagByTopic`: sums of the view `lag`, of pop too, with unknown queues counted and not added."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.broker.services.clean import LOSS_COLUMNS, forecast
from store_format.display.columns import batch_of
from store_format.files.paths import DiskSpace
from store_format.metadata.read import BrokerConf
from store_format.read.store import Store
from store_format.store import MessageStore
from store_format.views.lag_by_topic import lag_by_topic
from tests.support.fixtures import Golden

NOW = 1_900_000_000_000


def _views(root: Path) -> tuple[list[dict[str, Any]], dict[tuple[str, str], list[dict[str, Any]]]]:
    """The rows of the view, and those of the view `lag` by group and topic."""
    store = MessageStore.open(str(root))
    queues = defaultdict(list)
    for row in store.view("lag", now_ms=NOW).to_pylist():
        queues[row["group"], row["topic"]].append(row)
    return store.view("lagByTopic", now_ms=NOW).to_pylist(), queues


@pytest.mark.parametrize("name", ["basic-5.5.0", "cleaned-5.5.0", "pop-5.5.0", "delay-tx-5.5.0"])
def test_the_sums_over_the_queues(golden: Golden, name: str) -> None:
    rows, queues = _views(golden(name))
    assert [(row["group"], row["topic"]) for row in rows] == sorted(queues)
    for row in rows:
        every = queues[row["group"], row["topic"]]
        known = [queue for queue in every if queue["lagMessages"] is not None]
        assert (row["brokerName"], row["queues"]) == (every[0]["brokerName"], len(every))
        is_unused = not known and all(queue["maxOffset"] == 0 for queue in every)
        for column in ("lagMessages", "readyMessages", "inFlightMessages", "lagBytes", "lostMessages"):
            values = [queue[column] for queue in known]
            if is_unused and column not in ("readyMessages", "inFlightMessages"):
                values = [0]
            assert row[column] == (sum(values) if values and None not in values else None), (row, column)
        for column, best in (("oldestPopTimestamp", min), ("nextTimestamp", min), ("lagMs", max)):
            values = [queue[column] for queue in every if queue[column] is not None]
            nothing = 0 if column == "lagMs" and row["lagMessages"] == 0 else None
            assert row[column] == best(values, default=nothing)


def test_pop_counts(golden: Golden) -> None:
    (row,) = [
        row for row in _views(golden("pop-5.5.0"))[0] if (row["group"], row["topic"]) == ("CG_pop", "PopWork")
    ]
    assert row["inFlightMessages"] > 8
    assert row["lagMessages"] == row["readyMessages"] + row["inFlightMessages"]
    assert row["oldestPopTimestamp"] is not None


def test_unknown_queues_are_counted_and_not_added(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    path = root / "config" / "consumerOffset.json"
    # No offset of queue 1, and one of a queue that the store does not have.
    offsets = {"Orders@CG_some": {"0": 64, "2": 64, "3": 58, "9": 5}}
    path.write_text(json.dumps({"offsetTable": offsets}))
    rows, queues = _views(root)
    (row,) = [row for row in rows if (row["group"], row["topic"]) == ("CG_some", "Orders")]
    lags = [queue["lagMessages"] for queue in queues["CG_some", "Orders"]]
    assert lags.count(None) == 2
    assert (row["queues"], row["unknownQueues"]) == (5, 2)
    assert row["lagMessages"] == sum(lag for lag in lags if lag is not None) == 1076 - 268


def test_the_next_loss_follows_the_settings(golden: Golden) -> None:
    store = MessageStore.open(str(golden("cleaned-5.5.0")))
    modified = 1_795_503_600_000 - 72 * 3_600_000  # of all files of this store
    rows = store.view("lagByTopic", now_ms=modified).to_pylist()
    (row,) = [row for row in rows if (row["group"], row["topic"]) == ("CG_some", "Orders")]
    assert (row["expiresInMs"], row["nextLostMessages"]) == (72 * 3_600_000, 645)
    (at_end,) = [row for row in rows if (row["group"], row["topic"]) == ("CG_all", "Audit")]
    assert (at_end["lagMessages"], at_end["nextLostMessages"], at_end["expiresTimestamp"]) == (0, None, None)


@pytest.mark.parametrize("hour", [0, 4, 13])
def test_the_next_loss_is_that_of_the_retention(copy_of: Golden, hour: int) -> None:
    """A broker deletes at `deleteWhen` all files that have expired by then, not only the first one."""
    root = copy_of("cleaned-5.5.0")
    start = 1_795_503_600_000 - 72 * 3_600_000
    for number, path in enumerate(sorted((root / "commitlog").iterdir())):
        seconds = start / 1000 + 1800 * number
        os.utime(path, (seconds, seconds))
    conf, now_ms = BrokerConf(delete_when=(hour,)), start + 3_600_000
    store = Store.open(str(root))
    names = ("group", "topic", "nextLostMessages")
    rows = [row for batch in lag_by_topic(store, now_ms, conf) for row in batch.select([*names]).to_pylist()]
    shown = {(row["group"], row["topic"]): row["nextLostMessages"] for row in rows}
    plan = forecast(store, conf, now_ms, disk=lambda _: DiskSpace("/", 100, 90, 10))
    found = pa.Table.from_batches([batch_of(LOSS_COLUMNS, plan.losses())]).to_pylist()
    assert len(found) == 3
    for each in found:
        assert each["nextLostMessages"] == shown[each["group"], each["topic"]]


def test_nothing_is_unknown_about_a_queue_that_never_had_a_message(golden: Golden) -> None:
    rows, queues = _views(golden("basic-5.5.0"))
    retries = {row["group"]: row for row in rows if row["topic"].startswith("%RETRY%")}
    for group, has_message in (("CG_all", False), ("CG_tags2", False), ("CG_some", True), ("CG_tags", True)):
        (queue,) = queues[group, f"%RETRY%{group}"]
        assert (queue["lagMessages"], queue["maxOffset"] > 0) == (None, has_message)
        assert retries[group]["unknownQueues"] == has_message
        assert retries[group]["lagMessages"] == (None if has_message else 0)
