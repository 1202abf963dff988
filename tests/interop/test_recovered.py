"""A real broker that has recovered a damaged store: while it runs, after its stop, and when it runs again we
read what it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rmq_spark.options.topic_choice import TopicChoice
from store_format import MessageStore
from store_format.bookkeeping.state import StoreState
from store_format.commit.prepare_store import CommitOptions
from store_format.follow.follower import StoreFollower
from tests.interop.harness import RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, ours
from tests.support import goldens
from tests.support.staged import append, numbered, settings_from

_NAME = "crash-5.5.0"
_DAMAGED = 30  # of the golden's messages in the order of the log
_SENT = 20


def _followed(follower: StoreFollower, topics: set[str]) -> int:
    follower.look()
    return sum(queue.max_offset for queue in follower.queues.values() if queue.topic in topics)


def test_what_a_recovery_cut_stays_hidden(
    rocketmq: Callable[[str], RocketMQ], copy_of: Callable[[str], Path]
) -> None:
    store, config, java = copy_of(_NAME), goldens.config(_NAME), rocketmq("5.5.0")
    rows = sorted(goldens.expected_rows(_NAME), key=lambda row: int(row["physicalOffset"]))
    topics = {row["topic"] for row in rows}
    with (store / "commitlog" / "00000000000000000000").open("r+b") as file:
        file.seek(rows[_DAMAGED]["physicalOffset"] + 95)
        file.write(b"\xff\xff")

    def check(served: list[Line], state: StoreState) -> None:
        assert MessageStore.open(str(store)).state is state
        assert as_client(ours(store, topics)) == as_client(served)
        assert _followed(follower, topics) == len(served)

    with java.broker(store, config) as broker:
        client = broker.client()
        served = client.messages()
        assert len(served) == _DAMAGED
        follower = StoreFollower(MessageStore.open(str(store)), TopicChoice())
        check(served, StoreState.LIVE)
        for part in range(2):
            client.send("Orders", _SENT // 2, seed=4 + part)
            served = client.messages()
            assert len(served) == _DAMAGED + _SENT // 2 * (part + 1)
            check(served, StoreState.LIVE)
        broker.stop()
    check(served, StoreState.CLEAN)
    append(store, numbered("Orders", 0, 8), options=CommitOptions(settings=settings_from(config, "broker-a")))
    written = ours(store, topics)
    assert len(written) == len(served) + 8
    with java.broker(store, config) as broker:
        served = broker.client().messages()
        assert as_client(written) == as_client(served)
        check(served, StoreState.LIVE)
        broker.stop()
