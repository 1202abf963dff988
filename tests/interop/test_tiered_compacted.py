"""A compacted topic and tiered storage: one broker writes both while the store is read, is killed, and goes
on, deleting what it has uploaded.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from store_format.bookkeeping.journal import StoreState
from store_format.errors import FileReplacedError
from store_format.store import MessageStore
from tests.interop.harness import Broker, RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, dispatched, ours
from tests.support.unchanged import unchanged

PLAIN, COMPACTED = "Live", "Prices"
SENT, KILLED_AFTER, SENT_LATER, PAUSE_MS, KEYS = 300, 60, 100, 5, 20
LOOKS, SECONDS_MAX = 20, 60
# Small files: what is read rolls over while it is read.
CONFIG = {
    "mappedFileSizeCommitLog": "32768",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "compactionMappedFileSize": "4600",
    "compactionCqMappedFileSize": "920",
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
    "tieredStoreGroupCommit": "false",
    "tieredStoreCommitLogMaxSize": "16384",
    "tieredStoreConsumeQueueMaxSize": "1000",
    "tieredStoreIndexFileMaxHashSlotNum": "100",
    "tieredStoreIndexFileMaxIndexNum": "200",
    "fileReservedTime": "48",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
}
# A round of compaction each second, or none.
_ROUNDS, _NO_ROUNDS = ({"compactionScheduleInternal": interval} for interval in ("1", "3600000"))
# A message that is in two places has two of each.
_PLACE = ("physicalOffset", "msgId")

Place = tuple[int, int]


class Look(NamedTuple):
    """What the consume queues of COMPACTED had before a look, and what the look found: place -> key."""

    before: frozenset[Place]
    found: dict[Place, str]


def test_a_broker_compacts_and_uploads_is_killed_and_deletes_what_it_has_uploaded(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    store, tiered, java = _new_store(tmp_path / "broker-a"), tmp_path / "tiered", rocketmq("5.5.0")
    config = CONFIG | {"tieredStoreFilePath": str(tiered)}
    with java.broker(store, config | _ROUNDS) as broker:
        client = broker.client()
        client.begin("send", f"{PLAIN},{COMPACTED}", SENT, "seed=1", f"keys={KEYS}", f"pause={PAUSE_MS}")
        looks = _looks_at_both(broker, store, tiered)
        acknowledged = client.finish()
        _newest_of_each_key_is_found(looks, acknowledged)
        client.begin("send", f"{PLAIN},{COMPACTED}", SENT, "seed=2", f"keys={KEYS}")
        acknowledged += client.acknowledged(KILLED_AFTER)
        _kill_between_rounds(broker, store)

    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    with unchanged(tmp_path):
        plain, compacted = (ours(store, [topic], tiered_path=tiered) for topic in (PLAIN, COMPACTED))
    assert {_place(line) for line in acknowledged if line["topic"] == PLAIN} <= set(map(_place, plain))
    with java.broker(store, config | _NO_ROUNDS) as broker:
        client = broker.client()
        assert _wherever(client.messages([PLAIN])) == _wherever(plain)
        # of messages that are not the newest of their key, it may pass over some
        served = client.messages([COMPACTED])
        again = as_client(ours(store, [COMPACTED], tiered_path=tiered))
        assert all(line in again for line in as_client(served))
        assert _newest(again) == _newest(_wherever(compacted)) == _newest(_wherever(served))

        _delete_uploaded(broker, store, tiered)
        client.begin("send", PLAIN, SENT_LATER, "seed=3", f"pause={PAUSE_MS}")
        for i in range(LOOKS):
            assert min((store / "commitlog").iterdir()).name > f"{0:020d}"
            _look(store, tiered, len(plain))
            if i % 8 == 4:
                _delete_uploaded(broker, store, tiered)
        client.finish()
        final = client.messages([PLAIN])
        assert len(final) == len(plain) + SENT_LATER
        assert _wherever(ours(store, [PLAIN], tiered_path=tiered)) == _wherever(final)
        broker.kill()  # sooner than a stop


def _new_store(store: Path) -> Path:
    """With the two topics. Its name is the broker's, which topics.json does not say yet."""
    topic = {"readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    table = {
        PLAIN: topic | {"topicName": PLAIN},
        COMPACTED: topic | {"topicName": COMPACTED, "attributes": {"cleanup.policy": "COMPACTION"}},
    }
    (store / "config").mkdir(parents=True)
    (store / "config/topics.json").write_text(json.dumps({"topicConfigTable": table}))
    return store


def _looks_at_both(broker: Broker, store: Path, tiered: Path) -> list[Look]:
    """Looks while the broker writes, until two rounds of compaction were seen."""
    end, looks, rounds, replaced = time.monotonic() + SECONDS_MAX, list[Look](), set[int](), 0
    first = store / f"compaction/compactionCq/{COMPACTED}/0/{0:020d}"
    while not (first.exists() and (store / "consumequeue" / PLAIN).exists()):
        assert time.monotonic() < end
    while len(looks) < LOOKS or len(rounds) < 3:
        assert time.monotonic() < end, f"{len(looks)} looks, {len(rounds)} files"
        rounds |= {first.stat().st_ino} if first.exists() else set()
        try:
            looks.append(_look(store, tiered))
        except FileReplacedError:
            replaced += 1
        broker.upload()
    assert replaced < len(looks)
    return looks


def _look(store: Path, tiered: Path, least: int = 0) -> Look:
    """Finds each message of PLAIN once, those that were dispatched before, and none of COMPACTED twice."""
    before = {topic: dispatched(store, topic) for topic in (PLAIN, COMPACTED)}
    opened = MessageStore.open(str(store), tiered_path=str(tiered) if tiered.exists() else None)
    found: dict[str, list[tuple[Place, str]]] = defaultdict(list)
    for queue in opened.queues(before.__contains__):
        for batch in queue.read(columns=["queueOffset", "keys"]):
            for offset, keys in zip(*(batch[name].to_pylist() for name in batch.schema.names), strict=True):
                found[queue.topic].append(((queue.queue_id, offset), " ".join(keys)))
    plain = [place for place, _ in found[PLAIN]]
    whole = [place for queue_id in (0, 1) for place in _range_of(plain, queue_id)]
    assert sorted(plain) == whole
    assert before[PLAIN].keys() <= set(plain)
    assert len(plain) >= least
    assert len(dict(found[COMPACTED])) == len(found[COMPACTED])
    return Look(frozenset(before[COMPACTED]), dict(found[COMPACTED]))


def _range_of(places: list[Place], queue_id: int) -> Iterator[Place]:
    """All places of the queue from offset 0 to its last one."""
    stop = max((offset + 1 for at, offset in places if at == queue_id), default=0)
    return ((queue_id, offset) for offset in range(stop))


def _newest_of_each_key_is_found(looks: list[Look], acknowledged: list[Line]) -> None:
    keys = {_place(line): line["properties"]["KEYS"] for line in acknowledged if line["topic"] == COMPACTED}
    for look in looks:
        assert look.found.items() <= keys.items()
        newest: dict[tuple[int, str], int] = {}
        for (queue_id, offset), key in sorted(look.found.items()):
            newest[queue_id, key] = offset
        for queue_id, offset in look.before:
            assert newest.get((queue_id, keys[queue_id, offset]), -1) >= offset
    assert len({len(look.before) for look in looks}) > 5, "the looks saw no writing"
    assert any(len(look.found) < len(look.before) for look in looks), "the looks saw no round"


def _kill_between_rounds(broker: Broker, store: Path) -> None:
    """No broker starts on a store whose broker was killed while a round replaced files: CompactionStore.load
    takes a name that ends in .delete for a number.
    """
    end = time.monotonic() + SECONDS_MAX
    while True:
        assert time.monotonic() < end
        os.kill(broker.pid, signal.SIGSTOP)
        time.sleep(0.02)
        if not any((store / "compaction").rglob("*.delete")):
            return broker.kill()
        os.kill(broker.pid, signal.SIGCONT)
        time.sleep(0.02)


def _delete_uploaded(broker: Broker, store: Path, tiered: Path) -> None:
    """The broker uploads what it has, and then deletes the files of the commitlog that lie before that."""
    end, entries = time.monotonic() + SECONDS_MAX, dispatched(store, PLAIN)
    while not all(
        any(_uploaded(file) > offset for file in tiered.glob(f"*/*/{PLAIN}/{queue_id}/CONSUME_QUEUE/*"))
        for queue_id, offset in (max(place for place in entries if place[0] == each) for each in (0, 1))
    ):
        assert time.monotonic() < end
        broker.upload()
        time.sleep(0.02)
    for file in (store / "commitlog").iterdir():
        if int(file.name) + file.stat().st_size <= max(entries.values()):
            os.utime(file, (1, 1))
    broker.clean()


def _uploaded(file: Path) -> int:
    """The queue offset behind the last entry of a segment."""
    return (int(file.name[8:]) + file.stat().st_size) // 20


def _newest(lines: list[Line]) -> dict[tuple[int, str], Line]:
    """(queue, key) -> the last message."""
    found = {(line["queueId"], line["properties"]["KEYS"]): line for line in lines}
    return {
        key: {name: value for name, value in line.items() if name not in _PLACE}
        for key, line in found.items()
    }


def _place(line: Line) -> Place:
    return line["queueId"], line["queueOffset"]


def _wherever(lines: list[Line]) -> list[Line]:
    return [{name: value for name, value in line.items() if name not in _PLACE} for line in as_client(lines)]
