"""A real broker that has recovered a damaged store: while it runs, after its stop, and when it runs again we
read what it serves.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.commit.options import CommitOptions
from store_format.commit.recover import recover
from store_format.follow.follower import StoreFollower
from store_format.read.choice import MessageChoice
from tests.interop.harness import RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, ours
from tests.support import goldens
from tests.support.damages import Damaged
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered, settings_from

_NAME = "crash-5.5.0"
_DAMAGED = 30  # of the golden's messages in the order of the log
_SENT = 20


def _followed(follower: StoreFollower, topics: set[str]) -> int:
    follower.look()
    return sum(queue.max_offset for queue in follower.queues.values() if queue.topic in topics)


def test_what_a_recovery_cut_stays_hidden(rocketmq: Callable[[str], RocketMQ], copy_of: Golden) -> None:
    store, config, java = copy_of(_NAME), goldens.config(_NAME), rocketmq("5.5.0")
    rows = sorted(goldens.expected_rows(_NAME), key=lambda row: int(row["physicalOffset"]))
    topics = {row["topic"] for row in rows}
    overwrite(
        store / "commitlog" / "00000000000000000000", rows[_DAMAGED]["physicalOffset"] + 95, b"\xff\xff"
    )

    def check(served: list[Line], state: StoreState) -> None:
        assert MessageStore.open(str(store)).state is state
        assert as_client(ours(store, topics)) == as_client(served)
        assert _followed(follower, topics) == len(served)

    with java.broker(store, config) as broker:
        client = broker.client()
        served = client.messages()
        assert len(served) == _DAMAGED
        follower = StoreFollower(MessageStore.open(str(store)), MessageChoice())
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
        broker.kill()  # nothing more is asked


@pytest.mark.parametrize(
    ("name", "damage", "is_copy"),
    [
        ("cleaned-5.5.0", "cut_middle_file_within_its_last_properties", True),
        ("crash-5.5.0", "cut_last_file_within_the_last_properties", False),
        *(
            pytest.param(
                "cleaned-5.5.0",
                "cut_last_file_within_the_last_properties",
                is_copy,
                marks=pytest.mark.whole,
            )
            for is_copy in (False, True)
        ),
    ],
)
def test_a_broker_starts_with_a_recovered_store_whose_commitlog_file_was_short(
    rocketmq: Callable[[str], RocketMQ],
    copy_of: Golden,
    tmp_path: Path,
    name: str,
    damage: str,
    is_copy: bool,
) -> None:
    """The message that the file cut off is gone, for the broker too: nobody completes it with zeros."""
    store, config = copy_of(name), goldens.config(name)
    damaged = Damaged(store)
    path = damaged.middle if damage.startswith("cut_middle_file") else damaged.last
    cut = int(path.name) + damaged.units_of(path)[-1].position
    damaged.do(damage)
    root = tmp_path / "recovered" if is_copy else store
    recover(str(store), into=str(root) if is_copy else None, salvage=is_copy).apply()
    opened = rocketmq("5.5.0").open_store(root, config, start=True)
    places = {message["physicalOffset"] for message in opened.messages}
    assert cut not in places
    assert len(opened.messages) == sum(
        queue.max_offset - queue.min_offset for queue in MessageStore.open(str(root)).queues()
    )
