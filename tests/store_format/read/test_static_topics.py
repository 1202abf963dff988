"""Static topics: logical queues and offsets as a consumer of real brokers got them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from store_format.errors import UnsupportedFormatError
from store_format.message.columns import LogicalRange
from store_format.opened.store import Opened
from store_format.read.static_topics import logical_ranges
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered

STORE, BROKERS = "static-5.5.0", ("broker-a", "broker-b")
COLUMNS = ("msgId", "logicalQueueId", "logicalQueueOffset", "bodyCRC", "physicalOffset")


def _got() -> list[dict[str, object]]:
    """What a lite pull consumer read from the two brokers."""
    lines = (goldens.ROOT / STORE / "client-static.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_a_message_is_where_a_consumer_got_it(golden: Golden) -> None:
    rows = {
        row["msgId"]: row
        for broker in BROKERS
        for queue in MessageStore.open(str(golden(STORE) / broker)).queues("Static".__eq__)
        for row in queue.to_table(columns=COLUMNS).to_pylist()
    }
    got = _got()
    assert len(rows) == 300 > len(got) > 200
    for each in got:
        wanted = (each["queueId"], each["queueOffset"], each["bodyCRC"], each["physicalOffset"])
        assert tuple(rows[each["msgId"]].values())[1:] == wanted


def test_a_message_that_is_found_by_its_id_has_its_logical_place(golden: Golden) -> None:
    store = MessageStore.open(str(golden(STORE) / "broker-b"))
    last = _got()[-1]
    columns = ["logicalQueueId", "logicalQueueOffset"]
    for wanted in (str(last["msgId"]), str(last["offsetMsgId"])):
        (row,) = store.find(message_id=wanted, columns=columns).table.select(columns).to_pylist()
        assert (*row.values(),) == (last["queueId"], last["queueOffset"])


def test_a_broker_does_not_know_the_offsets_of_a_queue_that_moved_away(golden: Golden) -> None:
    mine, other = (logical_ranges(Opened(str(golden(STORE) / each)), "broker-b") for each in BROKERS[::-1])
    assert mine[0] == LogicalRange(("Static", 0), 0, 2**63 - 1, 0, 10_000)
    assert [each.offset for each in mine] == [10_000] * 4
    assert [each.offset for each in other] == [None] * 4
    assert {
        each.moved_to for each in logical_ranges(Opened(str(golden(STORE) / "broker-a")), "broker-a")
    } == {"broker-b"}


def _commit(root: Path, offset: int) -> None:
    path = root / "config/consumerOffset.json"
    table = {"offsetTable": {"Static@CG_static": {"0": offset}}}
    path.write_text(json.dumps(table), encoding="utf-8")


def test_lag_says_that_a_group_may_have_gone_on_elsewhere(
    copy_of: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    """Queue 0 has 37 messages in the store of broker-a, which gave it away, and 38 in that of broker-b."""
    root = copy_of(STORE)
    for broker, offset, lag, warns in (
        ("broker-a", 30, 7, True),
        ("broker-a", 37, 0, False),
        ("broker-b", 30, 8, False),
    ):
        _commit(root / broker, offset)
        caplog.clear()
        rows = MessageStore.open(str(root / broker)).view("lag").to_pylist()
        (row,) = [each for each in rows if (each["topic"], each["queueId"]) == ("Static", 0)]
        assert row["lagMessages"] == lag
        assert ("moved to another broker: Static-0 (broker-b)" in caplog.text) is warns


def test_a_static_topic_is_not_written_to(copy_of: Golden) -> None:
    with pytest.raises(UnsupportedFormatError, match="topic Static: cannot write to a static topic"):
        append(copy_of(STORE) / "broker-b", numbered("Static", 0, 3))
