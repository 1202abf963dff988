"""A share: where it starts, what consumerOffset.json has, and who may move the group."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.broker.pop.share import PopGroup, ShareOptions
from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import live_topics
from rmq_spark.consume.group.member import Membership, join
from rmq_spark.consume.group.offset_mirror import compared
from rmq_spark.consume.offset_store import StoreOffsets, make_path
from rmq_spark.consume.reset import group_place, reset_to, reset_to_earliest
from rmq_spark.pop import SimpleConsumer
from store_format import MessageStore
from store_format.errors import CorruptStoreError, OptionError, StoreInUseError, UnsupportedFormatError
from store_format.files.shared_log import FileLock
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from store_format.opened.store import Opened
from store_format.pop.state import PopState
from tests.support.fixtures import Golden
from tests.support.popped import Clock
from tests.support.staged import append, make_store, numbered
from tests.support.waiting import bodies
from tests.support.writes import held

NOW_MS = 1_700_000_200_000
RETRY = "%RETRY%g_T"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with 40 messages in 4 queues of topic T."""
    make_store(tmp_path / "s")
    append(tmp_path / "s", numbered("T", 0, 40))
    return tmp_path / "s"


def open_share(root: Path, **options: Any) -> PopGroup:
    return PopGroup.open(
        MessageStore.open(str(root)), "g", "T", ShareOptions(clock_ms=Clock(NOW_MS), **options)
    )


@pytest.fixture
def share(root: Path) -> Iterator[PopGroup]:
    share = open_share(root, init_mode="MIN")
    yield share
    share.close()


QUEUES = [(0, number) for number in range(4)]


def pop(share: PopGroup, queue: tuple[int, int], count: int, invisible_ms: int = 60_000) -> Any:
    def change(state: PopState) -> Any:
        start = state.queues[queue].next_offset
        return state.hand_out(
            *queue, range(start, start + count), start + count, share.options.clock_ms(), invisible_ms
        )

    return share.run(change)


def committed(root: Path) -> dict[int, int]:
    return {
        queue: at for (topic, queue), at in read_group_offsets(Opened(str(root)), "g").items() if topic == "T"
    }


def next_offsets(share: PopGroup) -> dict[int, int]:
    return share.run(lambda state: {q: each.next_offset for (f, q), each in state.queues.items() if f == 0})


# ---- start offsets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "starts"),
    [
        ({}, 9),  # the last message
        ({"init_mode": "MIN"}, 0),
        ({"young_from_zero": True}, 0),
    ],
)
def test_a_new_group_starts_by_its_mode_and_commits_at_once(
    root: Path, options: dict[str, Any], starts: int
) -> None:
    share = open_share(root, **options)
    share.begin(QUEUES)
    assert next_offsets(share) == dict.fromkeys(range(4), starts)
    assert committed(root) == dict.fromkeys(range(4), starts)
    share.close()


def test_a_group_with_offsets_starts_there(root: Path) -> None:
    write_group_offsets(Opened(str(root)), "g", {("T", 0): 3, ("T", 1): 4, ("U", 0): 1}, timestamp=1)
    share = open_share(root)
    assert next_offsets(share) == {0: 3, 1: 4}
    share.begin(QUEUES)
    assert next_offsets(share) == {0: 3, 1: 4, 2: 9, 3: 9}
    share.close()


def test_an_offset_behind_the_end_is_lowered_and_one_before_the_queue_is_raised_with_a_count(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_group_offsets(Opened(str(root)), "g", {("T", 0): 30}, timestamp=1)
    share = open_share(root)
    share.begin([(0, 0)])
    assert (next_offsets(share)[0], share.lost) == (10, 0)
    assert (
        "the next offset of T-0 is 30 and the queue holds 0 to 10: the topic was created again" in caplog.text
    )
    share.close()


def test_messages_that_retention_deleted_are_counted(
    copy_of: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    root = copy_of("cleaned-5.5.0")
    store = MessageStore.open(str(root))
    queue = next(each for each in store.queues() if each.min_offset > 1)
    write_group_offsets(Opened(str(root)), "g", {queue.key: 1}, timestamp=1)
    share = PopGroup.open(store, "g", queue.topic)
    share.begin([(0, queue.queue_id)])
    assert next_offsets(share)[queue.queue_id] == queue.min_offset
    assert share.lost == queue.min_offset - 1
    assert (
        f"retention deleted {queue.min_offset - 1} messages; pop goes on at {queue.min_offset}" in caplog.text
    )
    share.close()


def test_a_consumer_counts_messages_that_retention_deleted_once(copy_of: Golden) -> None:
    root = copy_of("cleaned-5.5.0")
    queues = [each for each in MessageStore.open(str(root)).queues() if each.min_offset > 1]
    topic = queues[0].topic
    behind = [each for each in queues if each.topic == topic]
    with SimpleConsumer(str(root), "g", {topic: "*"}, await_duration=0.0) as consumer:
        consumer.receive(1)
        share = next(iter(consumer._stores._stores[str(root)]._shares.values()))
        for each in behind:
            share.run(partial(PopState.set_offset, flag=0, queue_id=each.queue_id, offset=1))
        for _ in range(5):
            consumer.receive(32)
        assert consumer.metrics().lost == sum(each.min_offset - 1 for each in behind)


def test_a_torn_offset_file_keeps_no_message_from_coming_again(root: Path) -> None:
    clock = Clock(NOW_MS)
    group = {("T", queue_id): 0 for queue_id in range(4)}
    write_group_offsets(Opened(str(root)), "g", group, timestamp=1)
    with SimpleConsumer(str(root), "g", {"T": "*"}, await_duration=0.0, clock_ms=clock) as consumer:
        assert len(consumer.receive(32, 10)) > 0
        store = consumer._stores._stores[str(root)]
        text = (root / "config" / "consumerOffset.json").read_bytes()
        (root / "config" / "consumerOffset.json").write_bytes(text[:20])
        (root / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
        clock.ms += 10_000
        with pytest.raises(CorruptStoreError):
            store.keep()
        assert bodies(root, RETRY).total() > 0
        (root / "config" / "consumerOffset.json").write_bytes(text)


def test_a_retry_topic_starts_at_its_first_message(root: Path) -> None:
    append(root, numbered(RETRY, 0, 4, queues=1))
    share = open_share(root)
    share.begin([(1, 0)])
    assert share.run(lambda state: state.queues[1, 0].next_offset) == 0
    assert read_group_offsets(Opened(str(root)), "g") == {(RETRY, 0): 0}
    share.close()


# ---- the offset file ---------------------------------------------------------------------------------------


def test_the_file_has_the_lowest_offset_that_is_not_acknowledged(share: PopGroup, root: Path) -> None:
    share.begin(QUEUES)
    first, second = pop(share, (0, 0), 4), pop(share, (0, 0), 2)
    share.run(lambda state: state.ack(second.key))
    share.run(lambda state: state.ack(first.key, [0, 1]))
    assert committed(root)[0] == 0
    share.keep()
    assert committed(root)[0] == 2
    share.run(lambda state: state.ack(first.key))
    share.keep()
    assert committed(root)[0] == 6


def test_one_process_writes_the_file(share: PopGroup, root: Path) -> None:
    share.begin(QUEUES)
    share.keep()
    other = open_share(root)
    other.run(lambda state: state.skip(0, 0, 5))
    other.keep()  # the first keeps
    assert committed(root)[0] == 0
    share.keep()
    assert committed(root)[0] == 5
    other.close()


def test_a_reset_while_pop_runs_counts(share: PopGroup, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    share.begin(QUEUES)
    point = pop(share, (0, 0), 5)
    share.run(lambda state: state.ack(point.key))
    share.keep()
    stores = [MessageStore.open(str(root))]
    reset_to_earliest(group_place("g", stores), stores, ["T"]).apply()
    share.keep()
    assert next_offsets(share)[0] == 0
    assert "group g was moved by another program" in caplog.text
    assert "T-0 from 5 to 0" in caplog.text
    share.keep()
    assert caplog.text.count("was moved") == 1


def test_a_reset_between_two_consumers_counts(root: Path) -> None:
    share = open_share(root, init_mode="MIN")
    share.begin(QUEUES)
    pop(share, (0, 1), 5)
    share.log.close()
    share._lease.end()  # killed
    stores = [MessageStore.open(str(root))]
    target = {MessageQueue("T", stores[0].broker_name, 1): 7}
    reset_to(group_place("g", stores), stores, target).apply()
    again = open_share(root)
    assert next_offsets(again) == {0: 0, 1: 7, 2: 0, 3: 0}
    assert again.run(lambda state: state.in_flight) == 0
    again.close()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("fifo", [False, True])
def test_a_reset_to_the_offset_that_the_file_has_counts(root: Path, fifo: bool, is_killed: bool) -> None:
    share = open_share(root, init_mode="MIN", fifo=fifo)
    share.begin(QUEUES)
    if fifo:
        share.run(lambda state: state.order.hand_out(0, [0, 1], pop_time=NOW_MS, invisible_ms=3_600_000))
    else:
        point = pop(share, (0, 0), 5, invisible_ms=3_600_000)
        share.run(lambda state: state.ack(point.key, range(1, 5)))
    share.keep()
    assert committed(root)[0] == 0
    if is_killed:
        share.log.close()
        share._lease.end()
        share._keeper.close()
    stores = [MessageStore.open(str(root))]
    reset_to_earliest(group_place("g", stores), stores, ["T"]).apply()
    if is_killed:
        share = open_share(root, fifo=fifo)
    share.keep()
    assert next_offsets(share)[0] == 0
    assert share.run(lambda state: state.in_flight) == 0
    assert not share.run(lambda state: state.order.batches)
    for queue in QUEUES:
        if not fifo:
            pop(share, queue, 3)
    share.keep()
    assert next_offsets(share) == dict.fromkeys(range(4), 0 if fifo else 3)  # it is a reset only once
    share.close()


def test_a_kill_before_the_file_is_written_moves_nothing(root: Path) -> None:
    share = open_share(root, init_mode="MIN")
    share.begin(QUEUES)
    point = pop(share, (0, 1), 5)
    share.run(lambda state: state.ack(point.key))
    known = read_group_offsets(Opened(str(root)), "g")
    for _ in range(2):  # noted twice, never written
        share.run(lambda state: compared(state, share.name, known))
        share.run(lambda state: state.skip(0, 1, state.queues[0, 1].next_offset + 1))
    share.log.close()
    share._lease.end()
    again = open_share(root)
    assert next_offsets(again)[1] == 7
    assert committed(root)[1] == 7
    again.close()


def test_a_file_without_the_group_is_written_again(
    share: PopGroup, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share.begin(QUEUES)
    point = pop(share, (0, 0), 3)
    share.run(lambda state: state.ack(point.key))
    share.keep()
    (root / "config" / "consumerOffset.json").unlink()
    (root / "config" / "consumerOffset.json.bak").unlink()
    share.keep()
    assert committed(root) == {0: 3, 1: 0, 2: 0, 3: 0}
    assert "no longer has offsets of group g" in caplog.text


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("group", "topic"), [("../g", "T"), ("g", "../T"), ("g", ""), ("g/x", "T")])
def test_names_that_are_no_names_are_refused(root: Path, group: str, topic: str) -> None:
    with pytest.raises(OptionError):
        PopGroup.open(MessageStore.open(str(root)), group, topic)
    assert not (root / ".rmqlog" / "pop").exists()


@pytest.mark.parametrize(
    ("file", "said"),
    [("config/consumerOffsets/CURRENT", "RocksDB"), ("kvStore/CURRENT", "popConsumerKVServiceEnable")],
)
def test_stores_with_rocksdb_are_refused(root: Path, file: str, said: str) -> None:
    (root / file).parent.mkdir()
    (root / file).touch()
    with pytest.raises(UnsupportedFormatError, match=said):
        open_share(root)
    assert not (root / ".rmqlog" / "pop").exists()


@pytest.mark.process
def test_a_broker_is_noticed_at_the_start_and_while_consumers_run(share: PopGroup, root: Path) -> None:
    share.begin(QUEUES)
    with held(root) as broker:
        with pytest.raises(StoreInUseError, match="a broker"):
            open_share(root)
        pop(share, (0, 0), 1)
        with pytest.raises(StoreInUseError, match=f"process {broker}"):
            share.keep()
        with pytest.raises(StoreInUseError, match="stop the broker"):
            pop(share, (0, 0), 1)
    with pytest.raises(StoreInUseError):
        pop(share, (0, 0), 1)  # the broker may have moved the group: open the share again
    share.close()
    again = open_share(root)
    assert again.run(lambda state: state.in_flight) == 1
    again.close()


def test_a_group_with_queries_that_read_whole_queues_is_refused(root: Path) -> None:
    store = MessageStore.open(str(root))
    membership = Membership("g", ("client",), strategy("AVG"), "T", lease_seconds=0.6)
    directory = f"{root}/.rmqlog/groups/g"
    make_path(directory)
    member = join(directory, membership, StoreOffsets("g", {store.broker_name: str(root)}))
    try:
        with pytest.raises(OptionError, match="found the query client in"):
            open_share(root)
        PopGroup.open(store, "h", "T").close()
    finally:
        member.leave({}, 0)
    open_share(root).close()


def _descriptors(path: str) -> int:
    """How often this process has the file open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{number}") == path
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc")
def test_a_query_that_joins_meanwhile_is_noticed(root: Path) -> None:
    open_share(root).close()
    store = MessageStore.open(str(root))
    membership = Membership("g", ("client",), strategy("AVG"), "T", lease_seconds=5.0)
    directory = f"{root}/.rmqlog/groups/g"
    make_path(directory)
    closing = FileLock(f"{root}/.rmqlog/pop/g/T/members")  # the consumer before hands over
    assert closing.try_exclusive()
    with ThreadPoolExecutor(1) as threads:
        opened = threads.submit(open_share, root)
        while _descriptors(closing.path) < 2:  # until it waits for this lock
            time.sleep(0.002)
        member = join(directory, membership, StoreOffsets("g", {store.broker_name: str(root)}))
        closing.close()
        with pytest.raises(OptionError, match="found the query client in"):
            opened.result()
    member.leave({}, 0)
    assert live_topics(str(root), "g") == []


def test_live_consumers_are_known_until_the_last_has_left(root: Path) -> None:
    assert live_topics(str(root), "g") == []
    first, second = open_share(root), open_share(root)
    first.close()
    assert live_topics(str(root), "g") == ["T"]
    assert live_topics(str(root), "h") == []
    second.close()
    assert live_topics(str(root), "g") == []
