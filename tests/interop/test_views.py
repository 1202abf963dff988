"""The views of a store beside what mqadmin's own client answers about the same store, served by a real
broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from store_format.store import MessageStore
from tests.interop.harness import Client, RocketMQ
from tests.interop.programs import Line
from tests.support import goldens
from tests.support.fixtures import Golden

VERSIONS = {"basic-5.5.0": "5.5.0", "retry-dlq-5.5.0": "5.5.0", "basic-4.9.7": "4.9.7"}
_STILL_TIMEOUT_S = 120
VIEWS = ("topics", "queues", "groups", "lag")


@dataclass(frozen=True)
class Session:
    """What the admin client answered while the broker served the store, and our views of it at that time."""

    topics: set[str]
    configs: dict[str, Line]
    stats: dict[tuple[str, int], Line]
    groups: dict[str, Line]
    lag: dict[tuple[str, str, int], Line]
    views: dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=sorted(VERSIONS))
def session(request: pytest.FixtureRequest, rocketmq: Callable[[str], RocketMQ], copy_of: Golden) -> Session:
    name = request.param
    store = copy_of(name)
    java = rocketmq(VERSIONS[name])
    with java.broker(store, goldens.config(name)) as broker:
        admin = Client(java.program("Admin", [broker.namesrv]))
        try:
            stored, deadline = (
                {queue["topic"] for queue in goldens.expected(name)["queues"]},
                time.monotonic() + _STILL_TIMEOUT_S,
            )
            # a broker delivers delayed messages by itself: its answers are those between two equal views
            while True:
                session = _ask(admin, store, broker.address, stored)
                if session.views["queues"] == MessageStore.open(str(store)).view("queues").to_pylist():
                    return session
                assert time.monotonic() < deadline
        finally:
            admin.program.close()


def _ask(admin: Client, store: Path, address: str, stored: set[str]) -> Session:
    topics = {line["topic"] for line in admin.ask("topics")}
    views = {view: MessageStore.open(str(store)).view(view).to_pylist() for view in VIEWS}
    groups = {line["group"]: line for line in admin.ask("groups", address)}
    consuming = sorted({row["group"] for row in views["lag"] if f"%RETRY%{row['group']}" in topics})
    return Session(
        topics,
        {topic: admin.ask("topic-config", address, topic)[0] for topic in sorted(stored & topics)},
        {
            (line["topic"], line["queueId"]): line
            for topic in sorted(stored & topics)
            for line in admin.ask("topic-stats", topic)
        },
        groups,
        {
            (group, line["topic"], line["queueId"]): line
            for group in consuming
            for line in admin.ask("consume-stats", group)
        },
        views,
    )


def _ms(time: Any) -> int:
    return 0 if time is None else round(time.timestamp() * 1000)


def test_topics(session: Session) -> None:
    rows = {row["topic"]: row for row in session.views["topics"]}
    assert session.configs
    assert session.configs.keys() <= rows.keys()
    for topic, config in session.configs.items():
        row = rows[topic]
        assert (row["readQueueNums"], row["writeQueueNums"], row["ordered"]) == (
            config["readQueueNums"],
            config["writeQueueNums"],
            config["order"],
        )
        assert row["perm"] == "".join(
            letter if config["perm"] & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1))
        )


def test_queues(session: Session) -> None:
    rows = {(row["topic"], row["queueId"]): row for row in session.views["queues"]}
    seen = 0
    for key, stats in session.stats.items():
        if key not in rows:  # a queue without files
            assert (stats["minOffset"], stats["maxOffset"]) == (0, 0)
            continue
        row = rows[key]
        assert (row["minOffset"], row["maxOffset"]) == (stats["minOffset"], stats["maxOffset"])
        assert _ms(row["lastStoreTimestamp"]) == stats["lastUpdateTimestamp"]
        seen += row["maxOffset"] > 0
    assert seen > 5


def test_groups(session: Session) -> None:
    rows = {row["group"]: row for row in session.views["groups"] if row["configured"]}
    assert rows.keys() <= session.groups.keys()
    assert len(rows) > 3
    for name, row in rows.items():
        told = session.groups[name]
        assert (row["consumeEnable"], row["retryQueueNums"], row["retryMaxTimes"]) == (
            told["consumeEnable"],
            told["retryQueueNums"],
            told["retryMaxTimes"],
        )


def test_lag_of_committed_queues(session: Session) -> None:
    rows = {(row["group"], row["topic"], row["queueId"]): row for row in session.views["lag"]}
    committed = {
        key for key, row in rows.items() if row["committedOffset"] is not None and key in session.lag
    }
    assert len(committed) > 5
    for key, told in session.lag.items():
        row = rows[key]
        assert row["maxOffset"] == told["brokerOffset"]
        if row["committedOffset"] is None:  # the broker shows "no offset" as 0
            assert (row["lagMessages"], told["consumerOffset"]) == (None, 0)
            continue
        assert (row["committedOffset"], row["lagMessages"]) == (
            told["consumerOffset"],
            told["brokerOffset"] - told["consumerOffset"],
        )
        if told["consumerOffset"] > 0:
            assert _ms(row["lastConsumedTimestamp"]) == told["lastTimestamp"]
