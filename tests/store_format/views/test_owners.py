"""The view `owners`: members of groups as their directory has them, and what is wrong with a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_spark.client.pull_consumer import PullConsumer
from store_format import MessageStore
from store_format.errors import CorruptStoreError
from tests.support.staged import append, numbered


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


def _consumer(root: Path, name: str) -> PullConsumer:
    made = PullConsumer(root, "g", instance_name=name, consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    made.subscribe("T")
    made.start()
    return made


def test_each_queue_has_its_owner(root: Path) -> None:
    store = MessageStore.open(str(root))
    assert store.view("owners").num_rows == 0
    with _consumer(root, "one") as one:
        one.poll(5)
        one.commit()
        (polled,) = [queue for queue in one.message_queues if one.committed(queue)]
        rows = store.view("owners").to_pylist()
        assert [(row["topic"], row["queueId"], row["epoch"]) for row in rows] == [
            ("T", n, 1) for n in range(4)
        ]
        assert {row["client"].rpartition("@")[2] for row in rows} == {"one"}
        assert {(row["group"], row["kind"], row["strategy"]) for row in rows} == {("g", "pull", "AVG")}
        lag = {row["queueId"]: row["lagMessages"] for row in rows}
        assert lag == dict.fromkeys(range(4), 5) | {polled.queue_id: 0}
        assert all(row["since"] is not None for row in rows)
        with _consumer(root, "two"):
            idle = [row for row in store.view("owners").to_pylist() if row["topic"] is None]
            assert [row["client"].rpartition("@")[2] for row in idle] == ["two"]
    assert store.view("owners").num_rows == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"members": {"x": 1}, "queues": [], "logSize": 0}'])
def test_a_state_that_is_none(root: Path, text: str) -> None:
    path = root / ".rmqlog" / "groups" / "g" / "group.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(CorruptStoreError, match="expected the state of a consumer group"):
        MessageStore.open(str(root)).view("owners")
