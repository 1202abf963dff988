"""Damaged stores: each function without a leading `_` is a case, which damages a store, and says what is
right. It changes the world that `new_world` makes, or makes another one at a place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from types import FunctionType

from tests.support import goldens
from tests.support.damages import Damaged
from tests.support.file_edits import overwrite
from tests.support.fork_server import ForkServer
from tests.support.kills import States, killed_stores
from tests.support.referee.answers import rmqlog
from tests.support.referee.askers import batch_read, flush, recover_report, verify, written
from tests.support.referee.followers import Follower
from tests.support.referee.truth import Fate, Truth, truth_of_golden
from tests.support.referee.world import (
    ENTRY_SIZE,
    LOG_FILE_SIZE,
    QUEUE_FILE_SIZE,
    World,
    commit_killed,
    empty_world,
    golden_world,
    new_world,
)
from tests.support.staged import numbered

# ---- consume queues ---------------------------------------------------------------------------------------


def zeros_in_the_middle(world: World) -> None:
    """A write overwrites valid entries and repeats offsets, then everything says "sound"."""
    world.zero_entries("T", 0, 45, 47)


def zeros_after_retention(place: Path) -> World:
    """A reader calls zeros retention, and advises to skip the messages; nothing can export the store."""
    world = golden_world("cleaned-5.5.0", place)
    overwrite(world.queue_files("Orders", 0)[1], 60, bytes(5 * ENTRY_SIZE))
    world.truth.differences.append("zeros in 5 entries of Orders-0")
    return world


def flipped_entry(world: World) -> None:
    """Entries lead to no message: behind the log, into another message, before its place, to another queue.

    Readers leave out whole messages, and name them.
    """
    for offset, byte, bit in ((20, 1, 0x40), (45, 7, 0x10), (60, 6, 0x08), (99, 7, 0x01), (0, 0, 0x80)):
        world.flip_entry("T", 0, offset, byte, bit)


def flipped_size(world: World) -> None:
    """The same for entries with a wrong size."""
    for offset, byte, bit in ((20, 11, 0x02), (45, 8, 0x80), (60, 8, 0x40), (99, 11, 0x01)):
        world.flip_entry("T", 0, offset, byte, bit)


def flipped_last_entry(world: World) -> None:
    """The last entry of a queue leads far behind the log, which has its message: no file is missing."""
    world.flip_entry("T", 0, 99, 3, 0x20)


def _lost_tail(place: Path, *, sync: bool) -> World:
    world = empty_world(place)
    world.append(numbered("T", 0, 50, queues=1))
    world.append(numbered("T", 50, 50, queues=1), sync=sync)
    world.zero_entries("T", 0, 95, 100)
    world.commit_offset("G", "T", 0, 5)
    world.truth.is_crashed = not sync
    return world


def lost_tail(place: Path) -> World:
    """The entries of the last messages of the log are lost, after a commit that waited for the disk."""
    return _lost_tail(place, sync=True)


def lost_tail_after_power_loss(place: Path) -> World:
    """The same after a commit with ASYNC_FLUSH: a flush and a write hide for good what a broker recovers."""
    world = _lost_tail(place, sync=False)
    world.more.append(flush)
    return world


def expired_queue_without_directory(place: Path) -> World:
    """New offsets begin below what a group has committed."""
    world = empty_world(place)
    world.append(numbered("Old", 0, 60, queues=1))
    for first in range(1000, 1800, 200):
        world.append(numbered("Big", first, 200, queues=1))
    world.retain(3)
    world.commit_offset("G", "Old", 0, 60)
    world.commit_offset("G", "Big", 0, 10)
    world.lose(world.root / "consumequeue/Old")
    world.write_to = (("Old", 0), ("Big", 0))
    return world


def expired_queue(place: Path) -> World:
    """A salvaged copy lacks the files of a queue whose messages are expired."""
    world = empty_world(place)
    world.append(numbered("Old", 0, 60, queues=1))
    world.append(numbered("Big", 1000, 200, queues=1))
    world.commit_offset("G", "Old", 0, 60)
    world.retain(3)
    return world


def lost_topics_json(place: Path) -> World:
    """A write creates the topic again with fewer queues."""
    world = empty_world(place)
    world.append(numbered("T", 0, 80, queues=8), queues=8)
    world.commit_offset("G", "T", 0, 5)
    world.lose(*sorted((world.root / "config").glob("topics.json*")))
    return world


def lost_simple_queues_beside_batch_queues(place: Path) -> World:
    """No rebuild: the writer takes the queues for those of deleted topics."""
    world = golden_world("batchcq-5.5.0", place)
    world.lose(world.root / "consumequeue")
    world.write_to = (("New", 0),)
    return world


def lost_first_queue_file(world: World) -> None:
    """It is left as it is."""
    world.lose(world.queue_files("T", 0)[0])


def lost_first_queue_file_after_retention(world: World) -> None:
    """Readers silently leave out the first messages of the log."""
    world.append(numbered("T", 800, 5, queues=1))
    world.retain(1)
    expired = len(world.truth.of(Fate.EXPIRED)) * ENTRY_SIZE // QUEUE_FILE_SIZE
    world.lose(*world.queue_files("T", 0)[: expired + 1])


def lost_first_queue_file_beside_a_running_query(place: Path) -> World:
    """Running queries say that retention has deleted the messages, and go on behind them."""
    world = empty_world(place)
    world.append(numbered("T", 0, 10, queues=1))
    world.follow()
    world.append(numbered("T", 10, 35, queues=1))
    world.lose(world.queue_files("T", 0)[0])
    world.step()
    return world


def new_queue_beside_a_query_of_a_crashed_store_is_lost(world: World) -> None:
    """The same where the query cannot follow the log from where it stopped, but looks at the whole store."""
    world.append(numbered("W", 1, 1, queues=2))
    world.follow()
    world.broker_writes(numbered("T", 800, 10, queues=1), queued=2, torn=True)
    world.step()
    run = rmqlog(world.root, "recover", world.root, "--apply")
    assert not run.code, run.err
    world.append(numbered("W", 2, 30, queues=2))
    world.lose(world.root / "consumequeue/W/0")
    world.commit_offset("G", "W", 0, 1)
    world.step()


def flipped_first_entry_beside_a_running_query(world: World) -> None:
    """The queue seems to begin behind all that the query has read: it reads the other messages again."""
    world.append(numbered("W", 0, 5, queues=1))
    world.follow()
    world.flip_entry("V", 0, 0, 1, 0x10)
    world.delete_topic("W")  # a sign to look at the whole store again
    world.step()


def lost_first_queue_file_beside_a_query_and_retention(place: Path) -> World:
    """The same where the log has lost its first file too: the queue seems to begin later because of that."""
    world = empty_world(place)
    world.append([*numbered("T", 0, 10, queues=1), *numbered("V", 0, 35, queues=1)])
    world.follow()
    world.append(numbered("T", 10, 35, queues=1))
    world.retain(1)
    world.lose(world.queue_files("T", 0)[0])
    world.step()
    return world


def cut_queue_file(world: World) -> None:
    """A write refuses what `recover` mends."""
    os.truncate(world.queue_files("T", 0)[-1], 10 * ENTRY_SIZE + 7)
    world.truth.differences.append("the last file of T-0 is cut")


def flipped_last_queue_entry(world: World) -> None:
    """A write appends behind an entry that leads to no message, and leaves it."""
    at = world.truth.next_offset(("T", 0)) - 1
    overwrite(world.queue_files("T", 0)[-1], at * ENTRY_SIZE % QUEUE_FILE_SIZE + 7, b"\xff")
    world.truth.differences.append("the last entry of T-0 is damaged")


def batch_queue_lacks_entries(place: Path) -> World:
    """The writer refuses what `recover` completes."""
    world = golden_world("batchcq-5.5.0", place)
    directory = world.root / "batchconsumequeue/Inner/0"
    path = max(path for path in directory.iterdir() if any(path.read_bytes()))
    data = path.read_bytes()
    last = max(at for at in range(0, len(data), 46) if any(data[at : at + 46]))
    overwrite(path, last, bytes(46))
    (world.root / "abort").write_text("4711")
    world.truth.is_crashed = True
    world.truth.differences.append("the last entry of a batch consume queue is missing")
    return world


def batch_queue_is_lost(place: Path) -> World:
    """`verify` counts each batch as one message."""
    world = golden_world("batchcq-5.5.0", place)
    world.lose(world.root / "batchconsumequeue/Inner")
    world.commit_offset("G", "Inner", 0, 1)
    return world


def new_queue_beside_a_running_query_is_lost(world: World) -> None:
    """Running queries never ask the log about queues that came, and lost their files, between two looks."""
    world.follow()
    world.append(numbered("W", 800, 10, queues=1))
    world.append(numbered("X", 850, 35, queues=1))
    world.commit_offset("G", "W", 0, 1)
    world.commit_offset("G", "X", 0, 1)
    world.lose(world.root / "consumequeue/W/0", world.queue_files("X", 0)[0])
    world.step()


def lost_tail_that_only_the_ledger_shows(world: World) -> None:
    """After a broker's messages the next commit forgets where earlier commits ended their queues: it has to
    complete these queues, also those that it does not write to.
    """
    world.broker_appends(numbered("T", 100, 5, queues=1))
    world.zero_entries("V", 0, 15, 30)
    world.write(numbered("T", 110, 3, queues=1))


def lost_tail_before_messages_of_a_deleted_topic(place: Path) -> World:
    """The log's last message, which has no entry, is all that shows it, and a write hides that message."""
    world = empty_world(place)
    world.append(numbered("T", 0, 30, queues=1))
    world.append(numbered("W", 0, 3, queues=1))
    world.broker_appends(numbered("V", 700, 30, queues=1))
    world.append(numbered("W", 3, 5, queues=1))
    world.delete_topic("W")
    world.zero_entries("V", 0, 15, 30)
    world.write(numbered("X", 900, 3, queues=1))
    return world


def lost_tail_before_a_deleted_topic_of_a_write(place: Path) -> World:
    """The same, and the write creates the topic of the log's last message again."""
    world = empty_world(place)
    world.append(numbered("T", 0, 30, queues=1))
    world.broker_appends(numbered("V", 700, 30, queues=1))
    world.append(numbered("W", 0, 5, queues=1))
    world.delete_topic("W")
    world.zero_entries("V", 0, 15, 30)
    world.write(numbered("W", 900, 3, queues=1))
    return world


def lost_queue_of_the_last_message(place: Path) -> World:
    """Queues beside it that end earlier than before their topic was created again get deleted messages."""
    world = empty_world(place)
    world.append(numbered("T", 0, 30, queues=3))
    world.append(numbered("V", 0, 20, queues=1))
    world.delete_topic("T")
    world.broker_appends(numbered("T", 100, 25, queues=3))
    (last,) = [each for each in world.truth.messages if each.physical_stop == world.log_end()]
    world.lose(*world.queue_files(*last.queue))
    world.commit_offset("G", *last.queue, 1)
    return world


def lost_tail_with_a_given_up_place(place: Path) -> World:
    """`info` and `ls` count the place as a message."""
    world = new_world(place)
    world.flip_body(world.truth.of(Fate.KEPT)[-10])
    salvaged = _salvaged(world)
    salvaged.zero_entries("V", 0, 19, 30)
    return salvaged


def zeros_over_a_given_up_place(place: Path) -> World:
    """`info` and `ls` count the place as a message."""
    world = new_world(place)
    world.flip_body(world.truth.of(Fate.KEPT)[-10])
    salvaged = _salvaged(world)
    salvaged.zero_entries("V", 0, 18, 24)
    return salvaged


def lost_newest_entry_behind_expired_ones(world: World) -> None:
    """The queue counts as one without messages."""
    world.append(numbered("T", 800, 200, queues=1))
    world.append(numbered("V", 900, 1, queues=1))
    world.append(numbered("T", 1000, 2, queues=1))
    world.retain(4)
    world.zero_entries("V", 0, 30, 31)


def flipped_last_entry_behind_expired_ones(world: World) -> None:
    """It leads far behind the log: readers leave it out as one that a recovery has cut, with its message."""
    world.append(numbered("T", 800, 200, queues=1))
    world.broker_appends([*numbered("V", 900, 1, queues=1), *numbered("T", 1000, 2, queues=1)])
    world.retain(4)
    world.flip_entry("V", 0, 30, 1, 0x20)


def flipped_last_entry_that_a_write_removes(world: World) -> None:
    """It leads far behind the log: a write removes it, and nothing shows its message any more."""
    world.broker_appends(numbered("T", 100, 5, queues=1))
    world.flip_entry("V", 0, 29, 2, 0x08)
    world.write(numbered("T", 800, 3, queues=1))


def lost_queue_beside_a_running_query(world: World) -> None:
    """Running queries say nothing of the messages of the queue that they have not read."""
    world.follow()
    world.append(numbered("T", 800, 10, queues=1))
    world.lose(world.root / "consumequeue/T/0")
    world.step()


def lost_queue_that_a_broker_begins_again(world: World) -> None:
    """The broker dispatches the newest messages of the queue, and readers leave the earlier ones out."""
    world.append(numbered("W", 300, 3, queues=1))
    world.append(numbered("T", 800, 10, queues=1))
    world.append(numbered("W", 900, 2, queues=1))
    world.lose(world.root / "consumequeue/W")
    world.broker_opens()


def lost_queue_after_a_crash(world: World) -> None:
    """A recovery scans the last messages, and the queue and the index have lost earlier ones as well."""
    world.broker_writes(
        [*numbered("T", 800, 30, queues=1), *numbered("V", 800, 20, queues=1)], queued=40, torn=False
    )
    world.commit_offset("G", "V", 0, 3)
    world.lose(world.root / "consumequeue/V", max((world.root / "index").iterdir()))
    world.refresh()


def lost_queue_and_torn_message_after_a_crash(world: World) -> None:
    """`verify` calls the torn message, which was never stored, lost."""
    world.broker_writes(numbered("T", 800, 10, queues=1), queued=2, torn=True)
    world.lose(world.root / "consumequeue/V")
    world.refresh()


def lost_tails_behind_messages_of_a_broker(world: World) -> None:
    """The ledger does not know the ends; the last message of the log, which has no entry either, shows it."""
    world.broker_appends([*numbered("T", 800, 10, queues=1), *numbered("V", 800, 1, queues=1)])
    (last,) = [each for each in world.truth.messages if each.physical_stop == world.log_end()]
    world.zero_entries("T", 0, world.truth.next_offset(("T", 0)) - 5, world.truth.next_offset(("T", 0)))
    world.zero_entries(*last.queue, last.queue_offset, last.queue_offset + 1)


def log_and_ledger_are_older_than_the_queues(world: World) -> None:
    """Both come from a backup: the ledger's last commit ends the log, and queues have later messages."""
    older, end = world.place / "older", world.log_end()
    shutil.copytree(world.root, older)
    world.append(numbered("V", 800, 25, queues=1))
    for name in ("commitlog", ".rmqlog"):
        shutil.rmtree(world.root / name)
        (older / name).rename(world.root / name)
    world.truth.lose_bytes(end, 1 << 40, "log and ledger are older")


def zeros_beside_a_flipped_body(world: World) -> None:
    """Of the messages of zeros, one is damaged itself: nothing takes its place."""
    world.flip_body(world.truth.messages[50])
    world.zero_entries("T", 0, 49, 52)


def flipped_bodies_after_a_crash(place: Path) -> World:
    """Damage in four places of a crashed store, one of them behind the entries that were never written."""
    world = golden_world("crash-5.5.0", place)
    messages = sorted(world.truth.messages, key=lambda each: each.physical_offset)
    for each in messages[490:]:
        world.zero_entries(*each.place, each.queue_offset + 1)
    for number in (30, 200, 201, 500):
        world.flip_body(messages[number])
    return world


# ---- the commitlog ----------------------------------------------------------------------------------------


def commitlog_is_empty(place: Path) -> World:
    """Its disk is not mounted: planning divides by zero, `info` and `ls` count what nobody can read."""
    world = World(*_one_of_a_cluster(place), place)
    shutil.rmtree(world.root / "commitlog")
    (world.root / "commitlog").mkdir()
    _miss_the_log(world)
    return world


def _one_of_a_cluster(place: Path) -> tuple[Path, Truth]:
    root = goldens.unpack("cluster-5.5.0", place / "cluster") / "broker-b"
    return root, truth_of_golden("cluster-5.5.0", root, "broker-b")


def commitlog_is_missing(place: Path) -> World:
    """The same with a crashed broker, and without the directory."""
    world = golden_world("crash-5.5.0", place)
    shutil.rmtree(world.root / "commitlog")
    _miss_the_log(world)
    return world


def _miss_the_log(world: World) -> None:
    world.truth.set(Fate.LOST, lambda each: True)
    world.truth.is_log_missing = True
    world.truth.differences.append("the commitlog is missing")


def directory_for_a_log_file(place: Path) -> World:
    """`verify` says "sound", and all others refuse."""
    world = golden_world("cleaned-5.5.0", place)
    path = world.log_files()[0]
    world.lose_log_file(path)
    path.mkdir()
    return world


def first_log_file_is_empty(place: Path) -> World:
    """`verify` says how many messages are readable, and all others refuse."""
    world = golden_world("cleaned-5.5.0", place)
    path = world.log_files()[0]
    size = path.stat().st_size
    os.truncate(path, 0)
    start = int(path.name)
    world.truth.lose_bytes(start, start + size, "the first commitlog file is empty")
    return world


def lost_last_log_file(place: Path) -> World:
    """`scan` and `find` answer with a part and exit code 0; no verdict counts what is gone."""
    world = golden_world("cleaned-5.5.0", place)
    world.lose_log_file(world.log_files()[-1])
    return world


def lost_last_log_file_again(world: World) -> None:
    """`info` and `ls` count the places of messages that were given up as lost a second time."""
    world.append(numbered("V", 900, 5, queues=1))
    _lose_last_log_file(world)
    world.append(numbered("T", 900, 60, queues=1))
    world.append(numbered("V", 950, 20, queues=1))
    world.lose_log_file(world.log_files()[-1])


def lost_tail_behind_given_up_places(world: World) -> None:
    """A read leaves out the first message behind the places, to which their entries lead."""
    world.append(numbered("V", 900, 60, queues=1))
    _lose_last_log_file(world)
    world.append(numbered("V", 990, 3, queues=1))
    world.lose(world.queue_files("V", 0)[-1])


def lost_first_log_file(place: Path) -> World:
    """`verify` says "none lost; nothing has to be done"."""
    world = golden_world("cleaned-5.5.0", place)
    world.retain(1)
    world.truth.begins_by_hand = int(world.log_files()[0].name)
    return world


def flipped_topic(place: Path) -> World:
    """A bit of a message's topic: the message is "of a deleted topic", and `recover` removes the trace."""
    world = golden_world("cleaned-5.5.0", place)
    orders = [each for each in world.truth.messages if each.queue == ("Orders", 1)]
    message = orders[len(orders) // 2]
    path = max(path for path in world.log_files() if int(path.name) <= message.physical_offset)
    at = message.physical_offset - int(path.name)
    unit = path.read_bytes()[at : at + message.size]
    where = unit.index(b"\x06Orders") + 3
    overwrite(path, at + where, bytes([unit[where] ^ 0x40]))
    world.truth.set(Fate.DAMAGED, lambda each: each is message)
    world.truth.differences.append("the topic of a message is another one")
    return world


def flipped_body(place: Path) -> World:
    """`verify` counts the units that a salvage puts into the places of lost messages."""
    world = golden_world("cleaned-5.5.0", place)
    damaged = Damaged(world.root)
    unit = damaged.a_unit(damaged.middle)
    start = int(unit.path.name) + unit.position
    damaged.do("flip_body_in_the_middle")
    world.truth.lose_bytes(start, start + unit.size, "the body of a message is damaged", Fate.DAMAGED)
    return world


def _torn_and_cut(place: Path, *, is_overwritten: bool) -> World:
    world = new_world(place)
    (torn,) = numbered("T", 800, 1, queues=1, body_size=200)
    world.broker_writes([*numbered("V", 800, 2, queues=1), torn], queued=2, torn=True)
    if is_overwritten:
        world.broker_writes(numbered("V", 850, 1, queues=1, body_size=0), queued=1, torn=False)
    (world.root / "abort").unlink()
    world.truth.is_crashed = False
    return world


def torn_message_that_a_broker_has_cut(place: Path) -> World:
    """A broker's recovery clears no byte: those of half a message stay behind the log's end. `scan` and
    `verify` call the sound store damaged.
    """
    return _torn_and_cut(place, is_overwritten=False)


def torn_message_that_a_broker_has_overwritten(place: Path) -> World:
    """The same after a shorter message was written over the beginning."""
    return _torn_and_cut(place, is_overwritten=True)


def flipped_last_body(world: World) -> None:
    """The next write cuts the message off, gives its offset again, and `verify` says "none lost"."""
    world.flip_body(world.truth.messages[-1])
    world.write_to = (("V", 0),)


def flipped_last_body_and_another(world: World) -> None:
    """A recovery gives up the last message, and not the other one, which stays damaged."""
    world.flip_body(world.truth.messages[50])
    world.flip_body(world.truth.messages[-1])


def only_message_is_flipped(place: Path) -> World:
    """After a recovery "the commitlog is missing", and a recovered copy is refused when it is made."""
    world = empty_world(place)
    world.append(numbered("T", 0, 1, queues=1))
    world.flip_body(world.truth.messages[0])
    return world


def log_is_older_than_its_queues(world: World) -> None:
    """Queues lead behind the end of the log, within its last file: a search says nothing."""
    log, end = world.place / "older", world.log_end()
    shutil.copytree(world.root / "commitlog", log)
    world.append(numbered("T", 800, 25, queues=1))
    shutil.rmtree(world.root / "commitlog")
    log.rename(world.root / "commitlog")
    world.truth.lose_bytes(end, 1 << 40, "the log is older")


def store_is_older_than_its_ledger(world: World) -> None:
    """A backup without `.rmqlog` was copied back: only the ledger shows that later messages were there."""
    older, end, own = world.place / "older", world.log_end(), world.root / ".rmqlog"
    shutil.copytree(world.root, older)
    world.append(numbered("T", 800, 25, queues=1))
    shutil.rmtree(older / ".rmqlog")
    own.rename(older / ".rmqlog")
    shutil.rmtree(world.root)
    older.rename(world.root)
    world.truth.lose_bytes(end, 1 << 40, "the store is older")


def flipped_first_sizes_behind_a_deleted_topic(world: World) -> None:
    """In a salvaged copy, blank entries in front of a queue's first one seem to lead to the log's first
    message, which belongs to a deleted topic of a similar name.
    """
    for message in world.truth.messages[100:102]:
        world.flip(message, 3)
    world.delete_topic("T")
    world.refresh()


def flipped_first_size(world: World) -> None:
    """The first message of a queue is damaged, and its queue is lost: a scan begins behind it."""
    world.flip(world.truth.messages[0], 3)
    world.lose(world.root / "consumequeue/T")
    world.refresh()


def flipped_size_of_a_lost_queue(world: World) -> None:
    """The same for a message between others, whose place gets an entry that readers skip."""
    world.flip(world.truth.messages[50], 3)
    world.lose(world.root / "consumequeue/T")
    world.refresh()


def flipped_unread_length(world: World) -> None:
    """Running queries take the damaged message for one that is being written: they wait, and say nothing."""
    world.follow()
    world.broker_appends(numbered("T", 800, 10, queues=1))
    world.flip(world.truth.messages[-3], 87)
    world.step()


def log_begins_with_zeros(world: World) -> None:
    """A lost page at byte 0: all callers say that the commitlog is missing, and none reads it."""
    overwrite(world.log_files()[0], 0, bytes(4096))
    world.truth.lose_bytes(0, 4096, "the first page of the commitlog is zeros", Fate.DAMAGED)


def log_file_of_zeros(world: World) -> None:
    """The same where the first file has no other byte."""
    overwrite(world.log_files()[0], 0, bytes(LOG_FILE_SIZE))
    what = "the first commitlog file is zeros"
    world.truth.lose_bytes(0, LOG_FILE_SIZE, what, Fate.DAMAGED)


def messages_where_a_filler_was(place: Path) -> World:
    """`verify` takes a message for the filler of a salvage that was cut off since."""
    world = new_world(place)
    world.append(numbered("T", 800, 40, queues=1))
    world.flip_body(world.truth.messages[-20])
    world = _salvaged(world)
    _lose_last_log_file(world)
    world.append(numbered("T", 900, 40, queues=1))
    return world


def damage_without_queues(world: World) -> None:
    """`verify` counts the bytes of damaged messages that no queue shows, and not the messages."""
    world.flip_body(world.truth.messages[50])
    world.lose(world.root / "consumequeue")


# ---- deleted topics ---------------------------------------------------------------------------------------


def created_again_without_messages(world: World) -> None:
    """The messages of the deleted topic come to a running stream a second time."""
    world.follow()
    world.delete_topic("T")
    world.step()
    world.delete_topic("T", creates_again=True)
    world.truth.fates.update(dict.fromkeys(world.truth.of(Fate.DELETED), Fate.UNKNOWN))
    world.truth.differences.append("T-0 has messages and no queue file")
    world.append(numbered("V", 800, 10, queues=1))
    world.restart()
    world.step()


def last_topic_with_queues_is_deleted(world: World) -> None:
    """Without any queue file, a running stream reads the log, also what topics.json does not have."""
    world.follow()
    world.delete_topic("T")
    world.step()
    world.delete_topic("New", creates_again=True)
    world.delete_topic("V")
    world.commit_offset("G", "New", 0, 0)
    world.step()


def created_again_in_part(place: Path) -> World:
    """A topic was deleted, and written to again in two of its queues: no caller counts the third."""
    world = empty_world(place)
    world.append(numbered("T", 0, 30, queues=3))
    world.append(numbered("V", 700, 30, queues=1))
    world.commit_offset("G", "V", 0, 3)
    world.delete_topic("T")
    world.append(numbered("T", 800, 2, queues=3))
    return world


def deleted_topic_after_a_crash(world: World) -> None:
    """A broker's recovery makes queues again for the deleted messages that it scans, which readers and the
    writer did as well.

    No consumer gets these messages: opened by the store classes of 5.5.0, queue V-0 had 1 message, and opened
    by those of 4.9.7 all 30; in both, topics.json had no V, and a client of 5.5.0 that asked for V got "No
    topic route info in name server". Who asks before that broker starts gets the same answer as its client.
    """
    world.delete_topic("V")
    world.broker_writes(numbered("T", 800, 10, queues=1), queued=2, torn=False)


def created_again_after_retention(world: World) -> None:
    """Running queries say "0 messages lost" and read none of the new topic's first messages."""
    world.follow()
    world.append(numbered("W", 300, 60, queues=1))
    world.delete_topic("T")
    world.retain(3)
    world.append(numbered("T", 800, 9, queues=1))
    world.step()


def created_again_after_its_messages_were_given_up(world: World) -> None:
    """The new messages get offsets behind those that a recovery had given up, and readers return the deleted
    ones before them. A running stream leaves out the new ones, which are in the log before the old place.
    """
    world.append(numbered("W", 800, 30, queues=1))
    world.followers = [Follower(world.root)]
    world.step()
    _lose_last_log_file(world)
    world.delete_topic("V")
    world.delete_topic("W")
    world.step()
    world.append(numbered("V", 900, 9, queues=1))
    world.append(numbered("W", 950, 2, queues=1))
    world.step()


def created_again_and_lost(world: World) -> None:
    """The new messages are lost with their commitlog file: readers return the deleted ones for them, and so
    does a salvaged copy.
    """
    world.delete_topic("V")
    world.append(numbered("T", 800, 45, queues=1))
    world.append(numbered("V", 900, 30, queues=1))
    while any(each.topic == "V" for each in world.truth.of(Fate.KEPT)):
        world.lose_log_file(world.log_files()[-1])


def created_again_and_its_queue_is_lost(world: World) -> None:
    """A broker that starts files the messages of the deleted topic first: they are behind all queues."""
    world.follow()
    deleted = [each for each in world.truth.of(Fate.KEPT) if each.topic == "V"]
    world.delete_topic("V")
    world.append(numbered("V", 900, 10, queues=1))
    world.commit_offset("G", "V", 0, 1)
    world.lose(world.root / "consumequeue/V")
    world.truth.set(Fate.DELETED, lambda each: each.topic == "V")
    world.truth.fates.update(dict.fromkeys(deleted, Fate.KEPT))
    world.truth.next_offsets["V", 0] = len(deleted)
    world.refresh()
    world.step()


def first_messages_since_created_again_are_damaged(world: World) -> None:
    """The deleted messages of the same offsets take their places: in what `verify` counts, in a salvaged
    copy, and there also once the queue is lost.
    """
    world.append(numbered("W", 300, 60, queues=1))
    world.delete_topic("V")
    world.append(numbered("V", 900, 9, queues=1))
    for message in world.truth.of(Fate.KEPT)[-9:-7]:
        world.flip_body(message)
    salvaged = _salvaged(world)
    salvaged.lose(salvaged.root / "consumequeue/V/0")
    salvaged.refresh()
    world.answers.append(batch_read(salvaged.root, salvaged.truth))


def all_messages_since_created_again_are_damaged(world: World) -> None:
    """`verify` takes the entries for wrong ones, and counts no message as lost."""
    world.append(numbered("W", 300, 60, queues=1))
    world.delete_topic("V")
    world.append(numbered("V", 900, 3, queues=1))
    world.append(numbered("W", 400, 5, queues=1))
    for message in world.truth.of(Fate.KEPT)[-8:-5]:
        world.flip(message, 5)


def all_messages_since_created_again_are_cut(world: World) -> None:
    """A write gives up the damaged end of the log. The queue is empty then, and has the deleted messages
    again.
    """
    world.append(numbered("W", 300, 60, queues=1))
    world.delete_topic("V")
    world.append(numbered("V", 900, 3, queues=1))
    for message in world.truth.of(Fate.KEPT)[-3:]:
        world.flip(message, 5)
        world.flip_body(message)  # a broker hands a whole one out in spite of its magic code
    world.append(numbered("W", 400, 5, queues=1))
    world.truth.give_up()
    world.refresh()


def _salvaged(world: World) -> World:
    """A copy without the damaged messages."""
    new = World(world.place / "salvaged", world.truth.copy(), world.place)
    run = rmqlog(world.root, "recover", world.root, "--into", new.root, "--salvage", "--apply")
    assert not run.code, run.err
    new.truth.give_up()
    return new


def lost_topics_json_and_a_queue(world: World) -> None:
    """Nothing shows that the topic was there: readers leave it out and do not ask, as a write does."""
    world.commit_offset("G", "V", 0, 0)
    world.lose(*sorted((world.root / "config").glob("topics.json*")), world.root / "consumequeue/V")
    world.truth.ask_about(lambda each: each.topic == "V", "V-0 has messages and no queue file")


def torn_topics_json_and_a_queue_of_a_later_topic(world: World) -> None:
    """Nothing of the topic, which the older .bak lacks, is taken for deleted."""
    topics = world.root / "config/topics.json"
    shutil.copy(topics, topics.with_name("topics.json.bak"))
    world.append(numbered("W", 900, 20, queues=1))
    os.truncate(topics, topics.stat().st_size // 2)
    world.truth.differences.append("topics.json is torn, and its .bak lacks W")
    world.lose(world.root / "consumequeue/W")


def lost_topics_json_and_all_queues(world: World) -> None:
    """A recovery makes the queues again, and not topics.json: the next one does."""
    world.lose(*sorted((world.root / "config").glob("topics.json*")), world.root / "consumequeue")


def _lose_last_log_file(world: World) -> None:
    """It is lost, and a recovery gives up its messages."""
    path = world.log_files()[-1]
    world.lose_log_file(path)
    assert rmqlog(world.root, "recover", world.root, "--cut-after-damage", "--apply").code == 0
    world.truth.cut(int(path.name))
    world.refresh()


def lost_last_log_file_and_a_queue(world: World) -> None:
    """Nothing but the ledger shows the end of the queue: its last messages are not counted as lost."""
    world.append([*numbered("T", 800, 60, queues=1), *numbered("V", 900, 3, queues=1)])
    world.lose_log_file(world.log_files()[-1])
    world.lose(world.root / "consumequeue/T")


def half_an_entry_behind_the_end_of_a_queue(world: World) -> None:
    """A killed recovery left it, and a recovery leaves it too: `verify` asks for another one."""
    path = world.queue_files("V", 0)[-1]
    overwrite(path, 30 * ENTRY_SIZE - int(path.name), bytes(8) + path.read_bytes()[8:ENTRY_SIZE])
    world.truth.differences.append("half an entry behind V-0")


# ---- commits that are killed ------------------------------------------------------------------------------


def killed_while_it_repairs_the_index(place: Path) -> World:
    """The next write repairs it once more, and index entries lead to themselves: a broker does not find
    messages by their keys.
    """
    world = empty_world(place)
    world.append(numbered("T", 0, 110, queues=3))
    world.commit_offset("G", "T", 0, 2)
    world.broker_writes(numbered("T", 110, 28, queues=3), queued=12, torn=False)
    killed, now_ms = numbered("U", 900, 11, queues=1), world.now_ms + 1000
    states, indexes, index_states = States(), States(), 0
    with ForkServer() as forks:
        before = shutil.copytree(world.root, place / "before")
        for _, root in killed_stores(
            forks, before, place, "kill", commit_killed, killed, now_ms, part=(4, 8)
        ):  # the stretch in which the index is repaired
            index_states += indexes.is_new(root / "index")
            if not states.is_new(root):
                continue
            left = World(root, world.truth.copy(), place, now_ms=now_ms)
            end, more = left.log_end(), numbered("V", 800, 3, queues=3)
            _, result = written(root, left.truth.copy(), more, now_ms=now_ms + 1000)
            assert result is not None
            left.settle(killed, end)
            left.truth.appended(root, more, result)
            left.refresh()
            world.answers.append(verify(root, left.truth))
    assert index_states == 4
    world.write(numbered("V", 800, 3, queues=3))
    return world


def killed_while_it_creates_a_topic_again(world: World) -> None:
    """Until the commit is completed, readers return the messages of the deleted topic."""
    world.delete_topic("T")
    killed, now_ms = numbered("T", 900, 11, queues=1), world.now_ms + 1000
    with ForkServer() as forks:
        before = shutil.copytree(world.root, world.place / "before")
        for _, root in killed_stores(
            forks, before, world.place, "kill", commit_killed, killed, now_ms, every=3
        ):
            left = World(root, world.truth.copy(), world.place, now_ms=now_ms)
            left.settle(killed, left.log_end())
            left.truth.differences.append("a commit is not complete")
            world.answers.append(batch_read(root, left.truth))


def killed_beside_a_flipped_last_entry(world: World) -> None:
    """Readers complete the queue from the log, and see a part of the commit there."""
    world.flip_entry("V", 0, 29, 10, 0x10)
    killed, now_ms = numbered("T", 900, 19, queues=1), world.now_ms + 1000
    with ForkServer() as forks:
        before = shutil.copytree(world.root, world.place / "before")
        for at, root in killed_stores(
            forks, before, world.place, "torn", commit_killed, killed, now_ms, every=3
        ):
            left = World(root, world.truth.copy(), world.place, now_ms=now_ms)
            assert left.has(killed) in (0, len(killed)), f"a part of a commit that was killed at {at}"


# ---- reports ----------------------------------------------------------------------------------------------


def crashed(place: Path) -> World:
    """`info`, `verify` and `recover` give three advices."""
    return golden_world("crash-5.5.0", place)


def recover_without_verdict(place: Path) -> World:
    """The table of `recover` has no verdict."""
    world = golden_world("crash-torn-5.5.0", place)
    world.more.append(recover_report)
    return world


def no_groups(place: Path) -> World:
    """`lag --queues` of a store without groups."""
    world = empty_world(place)
    world.append(numbered("T", 0, 20, queues=1))
    return world


def _made(case: Callable[..., object]) -> Callable[[Path], World]:
    def make(place: Path) -> World:
        world = new_world(place)
        found = case(world)
        assert found is None
        return world

    return make if "world" in signature(case).parameters else case  # type: ignore[return-value] # it takes a place


CASES: dict[str, Callable[[Path], World]] = {
    name.replace("_", " "): _made(value)
    for name, value in list(vars().items())
    if isinstance(value, FunctionType) and value.__module__ == __name__ and not name.startswith("_")
}
