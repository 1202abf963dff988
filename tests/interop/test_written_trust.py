"""What is appended to a store with settings of its own, under the real classes: nothing is truncated, nothing
waits where nobody reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.write.stage_and_commit import abort_write, commit_write, stage_rows
from store_format.errors import IllegalMessageError
from tests.interop.harness import RocketMQ
from tests.interop.rows import by_place, ours
from tests.interop.versions import OLD
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, messages_of, numbered
from tests.support.writes import numbered_rows, target_of, write


def test_nothing_is_truncated_by_a_broker_that_verifies_the_crc_property(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    name = "propcrc-5.5.0"
    java, store, config = rocketmq("5.5.0"), copy_of(name), goldens.config(name)
    assert config["forceVerifyPropCRC"] == "true"
    before = java.open_store(store, config)
    for first in (0, 150):
        write(
            store, numbered_rows(first, first + 75, "Orders"), numbered_rows(first + 75, first + 150, "New")
        )
    after = java.open_store(store, config, start=True)
    assert (len(before.messages), len(after.messages)) == (310, 610)
    assert after.commit_log[1] > before.commit_log[1]


@pytest.mark.parametrize("version", OLD)
def test_consumers_get_all_messages_of_two_first_writers(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, version: str
) -> None:
    """The second to commit chose eight queues and is refused; run again it uses the two that there are."""
    store = tmp_path / "store"
    late = target_of(store, defaultTopicQueueNums="8")
    staged = stage_rows(late, [numbered_rows(0, 17)])
    write(store, numbered_rows(17, 21), defaultTopicQueueNums="2")
    with pytest.raises(IllegalMessageError):
        commit_write(late, [staged], None)
    abort_write(late)
    write(store, numbered_rows(0, 17), defaultTopicQueueNums="8")
    with rocketmq(version).broker(store) as broker:
        client = broker.client()
        places = [(line["queueId"], line["queueOffset"]) for line in client.messages(["T"])]
        consumed = client.push_consume("CG_new", "T", places)
    assert Counter(line["properties"]["KEYS"] for line in consumed) == Counter(f"k{i}" for i in range(21))


def test_no_queue_leads_to_foreign_messages_behind_a_damaged_end(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """The last message of a broker's clean store is damaged; the next one has its size, and comes to stand in
    its place.
    """
    store, config = (
        make_store(tmp_path / "store"),
        {"mappedFileSizeCommitLog": str(1 << 14), "mappedFileSizeConsumeQueue": "400"},
    )
    config |= {"maxHashSlotNum": "50", "maxIndexNum": "200"}
    append(store, numbered("T", 0, 12))
    append(store, numbered("U", 0, 3, queues=1))
    (store / ".rmqlog" / "ledger.json").unlink()
    last = messages_of(store)[-1]
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(last.body, last.physical_offset)] ^= 1
    path.write_bytes(data)
    append(store, numbered("T", 4, 8))
    opened = rocketmq("5.5.0").open_store(store, config)
    counts = Counter((line["topic"], line["queueId"]) for line in opened.messages)
    assert counts == {("T", 0): 5, ("T", 1): 5, ("T", 2): 5, ("T", 3): 5, ("U", 0): 2}
    assert last.physical_offset in [
        line["physicalOffset"] for line in opened.messages if line["topic"] == "T"
    ]
    assert by_place(opened.messages) == ours(store)
