"""A topic that a broker deleted and created again while a query was stopped, or between two of its looks.

No file of a store says so. A checkpoint has the place of the message before each position (`$at`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.reset import group_place, reset_to
from store_format import CommitOptions, MessageStore
from store_format.errors import OffsetOutOfRangeError
from store_format.follow.log_tail import physical_offset_of
from tests.rmq_spark.stream.test_group_positions import Clock, Query
from tests.rmq_spark.stream.test_positions import Stream, delete_log_files, expected, grown
from tests.support.staged import append, deleted_topic, numbered, rows_by_queue


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages, and another topic."""
    append(root, numbered("T", 0, 20) + numbered("Other", 0, 4))
    return root


def _restart(query: Stream) -> None:
    if isinstance(query, Query):
        query.die()
    query.restart()


def _created_again(root: Path, count: int) -> None:
    deleted_topic(root, "T")
    append(root, numbered("T", 100, count))


def _reset(root: Path, target: int) -> None:
    """As `rmqlog offsets` resets group g in topic T."""
    store = MessageStore.open(str(root))
    targets = {MessageQueue("T", "broker-a", queue_id): target for queue_id in range(4)}
    reset_to(group_place("g", [store]), [store], targets).apply()


class _Life:
    """How a query that has read everything goes on behind something that happened to its store."""

    def __init__(self, root: Path, place: Path, kind: str, then: str, fails: str) -> None:
        self.options: dict[str, Any] = {"subscribe": "T", "failOnDataLoss": fails}
        self.root, self.place, self.then, self.fails = root, place, then, fails
        self.query: Stream = Query(root, place, Clock(), "one", **self.options)
        if kind == "stream":
            self.query = Stream(root, **self.options)

    def go_on(self) -> None:
        if self.then == "restarts":
            _restart(self.query)
        elif self.then == "another query":  # without a checkpoint: the group's files alone show it
            self.query = Query(self.root, self.place, Clock(), "two", **self.options)

    def leave(self) -> None:
        if isinstance(self.query, Query):
            assert self.query.step() is None
            if self.then == "another query":
                self.query.leave()


_LIVES = pytest.mark.parametrize(
    ("kind", "then"),
    [
        ("stream", "goes on"),
        ("stream", "restarts"),
        ("group", "goes on"),
        ("group", "restarts"),
        ("group", "another query"),
    ],
)
_FAILS = pytest.mark.parametrize("fails", ["false", "true"])


@pytest.mark.parametrize("count", [4, 20, 40])  # fewer messages, as many, and more than before
@_LIVES
@_FAILS
def test_the_new_topic_is_read_from_its_first_message(
    root: Path, tmp_path: Path, kind: str, then: str, count: int, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    life = _Life(root, tmp_path, kind, then, fails)
    assert life.query.step() == expected("T", *[(0, 5)] * 4)
    life.leave()
    _created_again(root, count)
    life.go_on()
    if fails == "true":
        with pytest.raises(
            OffsetOutOfRangeError,
            match=r"T-0 of broker-a: the next offset is 5 .*the topic (was )?deleted and created again.*and "
            r"3 more queues.*; (start with a new checkpoint|move group g with rmqlog offsets), or set "
            "failOnDataLoss=false to (continue at offset 0|move it back)",
        ):
            life.query.step()
        return
    assert life.query.step() == expected("T", *[(0, count // 4)] * 4)
    assert sum("created again" in message for message in caplog.messages) >= 4
    if then != "another query":
        _restart(life.query)
    assert life.query.step() is None
    append(root, numbered("T", 200, 4))
    assert life.query.step() == expected("T", *[(count // 4, count // 4 + 1)] * 4)


@pytest.mark.parametrize(
    "starting",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"T":{"0":5,"1":5,"2":5,"3":5}}'},
        {"startingOffsets": '{"T":{"broker-a":{"0":5,"1":5,"2":5,"3":5}}}'},
        {"startingTimestamp": "1900000000000", "startingOffsetsByTimestampStrategy": "latest"},
    ],
    ids=["latest", "json", "json with broker", "timestamp"],
)
@_FAILS
def test_a_query_that_has_read_nothing_notices_the_new_topic(
    root: Path, starting: dict[str, Any], fails: str
) -> None:
    stream = Stream(root, subscribe="T", failOnDataLoss=fails, **starting)
    first = stream.start()
    assert stream.positions.latest(first) is first  # Spark logs it as an empty micro-batch
    stream.log.append((first, first))
    _created_again(root, 40)
    stream.restart()
    if fails == "true":
        with pytest.raises(OffsetOutOfRangeError, match="the topic was deleted and created again"):
            stream.step()
        return
    assert stream.step() == expected("T", *[(0, 10)] * 4)


@_LIVES
@_FAILS
def test_other_messages_at_the_same_places_show_a_store_from_a_backup(
    root: Path, tmp_path: Path, kind: str, then: str, fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages of equal size stand where those stood that were lost."""
    backup = shutil.copytree(root, tmp_path / "backup")
    append(root, numbered("T", 20, 20))
    life = _Life(root, tmp_path, kind, then, fails)
    assert life.query.step() == expected("T", *[(0, 10)] * 4)
    life.leave()
    before = rows_by_queue(root)
    shutil.rmtree(root)
    shutil.copytree(backup, root)
    later = CommitOptions(clock=lambda: 1_700_000_200_000)
    append(root, numbered("T", 20, 20), options=later)  # the same messages, stored later
    assert rows_by_queue(root) == before
    append(root, numbered("T", 40, 4), options=later)
    life.go_on()
    if fails == "true":
        with pytest.raises(OffsetOutOfRangeError, match="other messages than at the last look"):
            life.query.step()
        return
    assert life.query.step() == expected("T", *[(10, 11)] * 4)
    assert "but other messages than at the last look" in caplog.text
    assert life.query.step() is None


def test_a_reset_to_the_offset_of_the_deleted_topic_counts(root: Path, tmp_path: Path) -> None:
    """As the error of failOnDataLoss advises: `rmqlog offsets` moves the group in the new topic."""
    options: dict[str, Any] = {"subscribe": "T", "offsetStore": "store"}
    first = Query(root, tmp_path, Clock(), "one", **options)
    assert first.step() == expected("T", *[(0, 5)] * 4)
    assert first.step() is None
    first.leave()
    _created_again(root, 40)
    _reset(root, 5)
    assert Query(root, tmp_path, Clock(), "two", **options).step() == expected("T", *[(5, 10)] * 4)


@pytest.mark.parametrize("target", [0, 2, 5, 7])  # the checkpoint is at 5
def test_a_reset_in_the_new_topic_counts_more_than_the_checkpoint(
    root: Path, tmp_path: Path, target: int
) -> None:
    """Somebody chose the offset who knew that the topic was created again."""
    query = Query(root, tmp_path, Clock(), "one", subscribe="T", offsetStore="store")
    assert query.step() == expected("T", *[(0, 5)] * 4)
    assert query.step() is None
    query.die()
    _created_again(root, 40)
    _reset(root, target)
    query.restart()
    assert query.step() == expected("T", *[(target, 10)] * 4)
    _restart(query)
    assert query.step() is None
    append(root, numbered("T", 200, 4))
    assert query.step() == expected("T", *[(10, 11)] * 4)


def test_a_reset_to_the_end_of_the_new_topic_holds_after_the_next_restart(root: Path, tmp_path: Path) -> None:
    """A micro-batch without messages of a queue notes the place of its message in the new topic, too."""
    query = Query(root, tmp_path, Clock(), "one", subscribe="T,Other", offsetStore="store")
    assert len(query.step() or []) == 24
    assert query.step() is None
    query.die()
    _created_again(root, 20)
    append(root, numbered("Other", 200, 4))
    _reset(root, 5)
    query.restart()
    assert query.step() == expected("Other", *[(1, 2)] * 4)
    _restart(query)
    assert query.step() is None
    append(root, numbered("T", 300, 4))
    assert query.step() == expected("T", *[(5, 6)] * 4)


@pytest.mark.parametrize("target", [3, 5])
def test_a_reset_before_the_topic_was_created_again_counts_for_the_old_topic(
    root: Path, tmp_path: Path, target: int
) -> None:
    """At 5 there was nothing to read, so that no offset of the query has the reset."""
    options = {"subscribe": "T", "offsetStore": "store", "failOnDataLoss": "false"}
    query = Query(root, tmp_path, Clock(), "one", **options)
    query.step()
    assert query.step() is None
    query.die()
    _reset(root, target)
    query.restart()
    assert query.step() == (None if target == 5 else expected("T", *[(3, 5)] * 4))
    _created_again(root, 40)
    assert query.step() == expected("T", *[(0, 10)] * 4)


@pytest.mark.parametrize("kind", ["stream", "group"])
def test_a_query_that_waits_for_more_messages_while_the_topic_is_gone(
    root: Path, tmp_path: Path, kind: str
) -> None:
    """With minOffsetsPerTrigger, Spark asks again with the positions of the deleted topic."""
    query = _Life(root, tmp_path, kind, "restarts", "false").query
    query.restart(subscribe="T,Other", minOffsetsPerTrigger="50", maxTriggerDelay="1h")
    assert len(query.step() or []) == 24
    append(root, numbered("Other", 100, 4))
    deleted_topic(root, "T")
    assert query.step() is None
    append(root, numbered("T", 100, 80))
    found = query.step() or []
    assert [place for place in found if place[0] == "T"] == expected("T", *[(0, 20)] * 4)


@_FAILS
def test_a_repeated_batch_has_no_message_of_the_new_topic(root: Path, fails: str) -> None:
    """Its messages no longer exist. The next batch reads the new topic from its first message."""
    stream = Stream(root, subscribe="T", failOnDataLoss=fails)
    stream.step()
    _created_again(root, 40)
    stream.restart()
    if fails == "true":
        with pytest.raises(OffsetOutOfRangeError, match="5 of the messages 0 to 5 of this batch"):
            stream.read()
        return
    assert stream.read() == []
    assert stream.lost == 20
    assert stream.step() == expected("T", *[(0, 10)] * 4)


def test_damage_of_the_last_message_that_was_read_is_no_other_store(root: Path) -> None:
    stream = Stream(root, subscribe="T")
    assert stream.step() == expected("T", *[(0, 5)] * 4)
    path = root / "commitlog/00000000000000000000"
    data = path.read_bytes()
    for number in range(16, 20):
        data = data.replace(b"message %d of T" % number, b"Xessage %d of T" % number)
    path.write_bytes(data)
    append(root, numbered("Other", 4, 4))
    append(root, numbered("T", 40, 4))
    stream.restart()
    assert stream.step() == expected("T", *[(5, 6)] * 4)


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_checkpoint_without_places_goes_on_as_before(root: Path, start: str) -> None:
    """Its offsets are those of startingOffsets: nothing tells the new topic from the deleted one."""
    stream = Stream(root, subscribe="T", failOnDataLoss=False, startingOffsets=start)
    if stream.step() is None:
        first = stream.start()
        stream.log.append((first, {"T": first["T"]}))
    stream.log[-1][1].pop("$at", None)
    append(root, numbered("T", 20, 4))
    stream.restart()
    assert stream.step() == expected("T", *[(5, 6)] * 4)
    assert stream.start()["$at"]["T"]["broker-a"].keys() == {*"0123"}


def test_the_checkpoint_has_the_places_of_the_last_messages(root: Path) -> None:
    stream = Stream(root, subscribe="T", maxOffsetsPerTrigger=8)
    places = []
    for _ in range(3):
        stream.step()
        at = stream.start()["$at"]["T"]["broker-a"]
        places.append([physical_offset_of(at[queue]) for queue in "0123"])
    assert all(before < after for before, after in zip(places[0], places[1], strict=True))
    last = {key: rows[-1][1] for key, rows in rows_by_queue(root).items()}
    assert places[2] == [last["T", queue_id] for queue_id in range(4)]


# ---- a topic that is gone, and comes back ------------------------------------------------------------------


def _away(root: Path, tmp_path: Path) -> Callable[[], None]:
    """Takes topic T away as if it was deleted; the result brings it back."""
    shutil.copy(root / "config/topics.json", tmp_path / "T.json")
    shutil.copytree(root / "consumequeue/T", tmp_path / "T")
    deleted_topic(root, "T")

    def back() -> None:
        shutil.copy(tmp_path / "T.json", root / "config/topics.json")
        shutil.copytree(tmp_path / "T", root / "consumequeue/T")

    return back


@pytest.mark.parametrize("then", ["goes on", "restarts", "restarts before it has new messages"])
def test_a_queue_that_comes_back_is_read_on(root: Path, tmp_path: Path, then: str) -> None:
    """A backup that is restored, or a directory that is there again: no message is read a second time."""
    stream = Stream(root, failOnDataLoss=False)
    assert len(stream.step() or []) == 24
    back = _away(root, tmp_path)
    assert stream.step() == []
    assert stream.start().keys() == {"Other", "$at"}
    assert stream.start()["$at"].keys() == {"T", "Other"}
    back()
    if then == "restarts before it has new messages":
        stream.restart()
        assert stream.step() is None
        append(root, numbered("Other", 4, 4))
        assert stream.step() == expected("Other", *[(1, 2)] * 4)
    append(root, numbered("T", 20, 4))
    if then == "restarts":
        stream.restart()
    assert stream.step() == expected("T", *[(5, 6)] * 4)
    assert stream.step() is None


def test_a_topic_that_is_created_again_is_new(root: Path) -> None:
    stream = Stream(root, failOnDataLoss=False)
    stream.step()
    deleted_topic(root, "T")
    assert stream.step() == []
    append(root, numbered("T", 100, 40))
    stream.restart(failOnDataLoss=True)  # the loss was reported before
    assert stream.step() == expected("T", *[(0, 10)] * 4)


def test_the_place_is_forgotten_with_the_message(tmp_path: Path) -> None:
    root = grown(tmp_path)
    stream = Stream(root, failOnDataLoss=False)
    stream.step()
    deleted_topic(root, "T")
    stream.step()
    assert "T" in stream.start()["$at"]
    append(root, numbered("Other", 0, 400))
    stream.step()
    delete_log_files(root, 5)
    append(root, numbered("Other", 400, 4))
    stream.step()
    assert "T" not in stream.start()["$at"]


def test_without_consume_queues_one_message_is_no_new_topic(root: Path) -> None:
    """One message at offset 0 of each queue is a second message of this offset. A broker that rebuilds the
    queues puts it behind the others, where it serves no message of that place (putMessagePositionInfo).
    """
    shutil.rmtree(root / "consumequeue")
    stream = Stream(root, subscribe="T", failOnDataLoss=False)
    assert stream.step() == expected("T", *[(0, 5)] * 4)
    _created_again(root, 4)
    shutil.rmtree(root / "consumequeue")
    assert stream.step() is None


@pytest.mark.parametrize("count", [20, 40])
@pytest.mark.parametrize("restarts", [True, False])
def test_without_consume_queues(root: Path, count: int, restarts: bool) -> None:
    """A broker that rebuilds the queues begins with the messages of the deleted topic: those of the new one
    follow where their offsets go on, and the others are in no queue.
    """
    shutil.rmtree(root / "consumequeue")
    stream = Stream(root, subscribe="T", failOnDataLoss=False)
    assert stream.step() == expected("T", *[(0, 5)] * 4)
    _created_again(root, count)
    shutil.rmtree(root / "consumequeue")
    if restarts:
        stream.restart()
    more = expected("T", *[(5, count // 4)] * 4)
    assert (stream.step() or []) == more
    assert stream.step() is None
    assert not more or stream.replay(1) == more


def test_a_queue_whose_files_are_lost_is_read_on(root: Path, tmp_path: Path) -> None:
    """Part of its messages in the commitlog were read when it was gone."""
    stream = Stream(root, failOnDataLoss=False)
    stream.step()
    back = _away(root, tmp_path)
    stream.step()
    back()
    append(root, numbered("T", 20, 4))
    for directory in ("consumequeue", "index"):
        shutil.rmtree(root / directory)
    stream.restart()
    assert stream.step() == expected("T", *[(5, 6)] * 4)
    assert stream.step() is None


@_FAILS
def test_between_two_looks_retention_and_a_new_topic(tmp_path: Path, fails: str) -> None:
    """Retention has deleted the message before the next offset, and the new topic has fewer messages."""
    root = grown(tmp_path)
    append(root, numbered("Other", 0, 4))
    stream = Stream(root, subscribe="T", failOnDataLoss=fails)
    stream.step()
    deleted_topic(root, "T")
    append(root, numbered("Other", 4, 400))
    delete_log_files(root, 8)
    append(root, numbered("T", 800, 8))
    if fails == "true":
        with pytest.raises(OffsetOutOfRangeError, match="the topic was deleted and created again"):
            stream.step()
        return
    assert stream.step() == expected("T", *[(0, 2)] * 4)
    assert stream.step() is None
