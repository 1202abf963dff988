"""A state machine: everything that can happen to a store, in any order, and all callers are asked.

Queue entries are not lost while messages are damaged: what a broker makes of both, the oracle does not know.
The cases "flipped size in a lost queue" and "flipped first size of a lost queue" do that.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from tests.support.failing_writer import Failure, install
from tests.support.file_edits import overwrite
from tests.support.fork_server import ForkServer
from tests.support.oracle import Message
from tests.support.referee import askers
from tests.support.referee.answers import Answer, rmqlog
from tests.support.referee.events import Event, between, chosen, event, one_of, some_events, some_of
from tests.support.referee.followers import Follower
from tests.support.referee.rules import disagreements
from tests.support.referee.truth import Fate, QueueKey, Stored
from tests.support.referee.world import (
    BODY_AT,
    ENTRY_SIZE,
    UNPROTECTED,
    World,
    commit_killed,
    empty_world,
)
from tests.support.staged import numbered

TOPICS = {"A": 3, "B": 1, "C": 2}  # the number of queues of each

Asker = Callable[[World], list[Answer]]
ASKERS: dict[str, Asker] = {
    "read": lambda world: [askers.batch_read(world.root, world.truth)],
    "read on": lambda world: [askers.batch_read(world.root, world.truth, skips=True)],
    "scan": lambda world: [askers.log_scan(world.root, world.truth)],
    "export": lambda world: [askers.export(world.root, world.truth)],
    "export on": lambda world: [askers.export(world.root, world.truth, skips=True)],
    "find": lambda world: [
        askers.find(world.root, world.truth, key) for key in askers.some_keys(world.truth, 3)
    ],
    "verify": lambda world: [askers.verify(world.root, world.truth)],
    "info": lambda world: [askers.info(world.root, world.truth)],
    "ls": lambda world: [askers.ls(world.root, world.truth)],
    "lag": lambda world: [askers.lag(world.root, world.truth)],
    "write": lambda world: askers.write(world.root, world.truth, world.place, (), world.settings),
    "recover": lambda world: askers.recover(world.root, world.truth, world.place, world.settings),
    "salvage": lambda world: askers.salvage(world.root, world.truth, world.place, world.settings),
    "advice": lambda world: askers.advice(world.root, world.truth, world.place, world.settings),
}
# of a refusal: whole messages, or damaged ones that a broker serves, would be cut off
_CUT = re.compile("whole messages behind it|messages that a broker hands out all the same")
some_askers = some_of(sorted(ASKERS), 3)
somewhere = between(0, 1 << 16)

# The last bytes of the fields of a message that lengths, positions and the checksum of the body protect:
# size, magic code, body CRC, physical offset, length of the body, body. The queue's entry alone protects the
# queue id, the queue offset and the topic, and scans and recoveries do not ask it (docs/read.md).
_PROTECTED = (3, 7, 11, 35, 87, BODY_AT)


def _killed(root: Path, what: str, at: int, messages: list[Message], now_ms: int) -> None:
    commit_killed(root, Failure(what, at), messages, now_ms)


def _recovery_killed(root: Path, what: str, at: int) -> int:
    install(Failure(what, at))
    return rmqlog(root, "recover", root, "--apply").code


def _in_part(found: int, messages: list[Message], when: str) -> list[str]:
    if found in (0, len(messages)):
        return []
    return [f"a batch read has {found} of {len(messages)} messages of a commit {when}"]


class Machine:
    """One life of a store below `place`. Without `asks`, no answer is judged."""

    def __init__(self, place: Path, forks: ForkServer, *, asks: bool = True) -> None:
        self.place, self.forks, self.asks = place, forks, asks
        self.number = 0  # of messages
        self.judged = 0  # how often callers were asked
        self.events: list[str] = []
        self.world = empty_world(place)

    def run(self, random: Random, steps: int) -> None:
        """So many events; then everybody is asked."""
        try:
            self.begin()
            events = some_events(Machine, random)
            for _ in range(steps):
                self.look()
                self.step(chosen(self, events, random), random)
            self.ask(set(ASKERS))
            self.follow()
        finally:
            for each in self.world.followers:
                each.close()

    def step(self, event: Event, random: Random) -> None:
        given = event.draw(random)
        words = ", ".join(f"{name}={sorted(v) if isinstance(v, set) else v!r}" for name, v in given.items())
        self.events.append(f"{event.method.__name__}({words})")
        event.method(self, **given)

    def begin(self) -> None:
        self.judge([self.world.write(self.messages("A", 30) + self.messages("B", 20))])
        self.world.commit_offset("G", "A", 0, 2)
        self.world.commit_offset("G", "B", 0, 2)
        self.follow_anew()

    # ---- what is asked ------------------------------------------------------------------------------------

    def judge(self, answers: list[Answer]) -> None:
        self.judged += 1
        self.expect(disagreements(answers) if self.asks else [])

    def expect(self, found: list[str]) -> None:
        """Fails for each of the sentences."""
        assert not found, "\n".join(found)

    def ask(self, names: set[str]) -> None:
        world = self.world
        world.refresh()
        self.expect(askers.wrong_notes(world.root, world.truth))
        if self.asks:
            self.judge([answer for name in sorted(names) for answer in ASKERS[name](world)])

    def go_on(self, then: str, asked: set[str]) -> None:
        """What comes after damage to the queues: nothing, a recovery, a write, or a broker that starts.

        Where only a comparison of the whole log shows that entries are lost, `verify` says so, and a recovery
        comes first.
        """
        if then == "broker":
            self.world.broker_opens()
        if self.world.without_evidence():
            self.ask(asked & {"verify", "recover", "salvage", "scan", "find", "advice"})
            then = "recover"
        if then == "recover":
            self.recover()
        elif then == "write":
            self.write(self.messages("B", 3))
        self.ask(asked)

    def follow(self) -> None:
        """The running queries read on."""
        self.world.refresh()
        if self.asks:
            self.judge([each.step(self.world.truth.copy()) for each in self.world.followers])

    def follow_anew(self) -> None:
        """Queries that begin now."""
        for each in self.world.followers:
            each.close()
        self.world.followers = [
            Follower(self.world.root),
            Follower(self.world.root, offsets=Path(tempfile.mkdtemp(dir=self.place))),
        ]
        self.follow()

    def look(self) -> None:
        """Notes whether nothing is wrong with the consume queues, and no crash is to be completed."""
        self.world.refresh()
        truth = self.world.truth
        self.is_whole = not truth.is_crashed and not askers.wrong_entries(self.world.root, truth)
        self.is_sound = self.is_whole and not truth.differences

    # ---- writes -------------------------------------------------------------------------------------------

    def messages(self, topic: str, count: int) -> list[Message]:
        self.number += count
        return numbered(topic, self.number - count, count, queues=TOPICS[topic])

    def write(self, messages: list[Message], *, sync: bool = True) -> None:
        """A write; after a recovery if the store needs one."""
        answer = self.world.write(messages, sync=sync)
        self.judge([answer])
        if answer.refusal and self.recover():
            answer = self.world.write(messages, sync=sync)
            self.judge([answer])
            self.expect([f"a write after recover refuses: {answer.refusal}"] if answer.refusal else [])

    def recover(self, *options: str) -> bool:
        """Recovers the store in place; False if it must not, because messages would be cut off."""
        world = self.world
        run = rmqlog(world.root, "recover", world.root, "--apply", *options)
        may_refuse = bool(world.truth.lost) and _CUT.search(run.err)
        self.expect([f"recover --apply refuses: {run.err}"] if run.code and not may_refuse else [])
        if not run.code:
            world.wrong.clear()
        world.refresh()
        return not run.code

    @event(
        topic=one_of(*sorted(TOPICS)),
        count=between(1, 70),
        sync=one_of(True, False),
        asked=some_askers,
    )
    def append(self, topic: str, count: int, sync: bool, asked: set[str]) -> None:
        self.write(self.messages(topic, count), sync=sync)
        self.ask(asked)

    @event(
        when=lambda self: self.is_sound,
        topic=one_of(*sorted(TOPICS)),
        count=between(1, 70),
        asked=some_askers,
    )
    def broker_appends(self, topic: str, count: int, asked: set[str]) -> None:
        answer = self.world.broker_appends(self.messages(topic, count))
        self.expect([f"a write to a sound store refuses: {answer.refusal}"] if answer.refusal else [])
        self.judge([answer])
        self.ask(asked)

    @event(
        topic=one_of(*sorted(TOPICS)),
        count=between(1, 30),
        at=between(1, 60),
        what=one_of("kill", "torn"),
        then=one_of("recover", "write"),
        asked=some_askers,
    )
    def kill_a_commit(self, topic: str, count: int, at: int, what: str, then: str, asked: set[str]) -> None:
        """Readers see all of its messages or none; what completes the commit decides."""
        world = self.world
        killed, end = self.messages(topic, count), world.log_end()
        world.now_ms += 1000
        ended = self.forks.run(_killed, world.root, what, at, killed, world.now_ms)
        if ended.error:  # the store was refused before a change was made
            self.expect([] if "\nstore_format.errors." in ended.error else [ended.error])
            return
        self.expect(_in_part(world.has(killed), killed, "after the kill"))
        if then == "write":
            more = self.messages(topic, 2)
            answer, result = askers.written(
                world.root, world.truth.copy(), more, settings=world.settings, now_ms=world.now_ms + 1000
            )
            if world.truth.lost and _CUT.search(answer.refusal):
                return  # the killed commit would have refused too
            self.expect([f"a write after a kill refuses: {answer.refusal}"] if answer.refusal else [])
        else:
            self.recover()
        self.expect(_in_part(world.settle(killed, end), killed, f"after {then}"))
        if then == "write":
            assert result is not None
            world.truth.appended(world.root, more, result)
        self.ask(asked)

    @event(
        when=lambda self: self.is_whole and not self.world.truth.lost,
        topic=one_of(*sorted(TOPICS)),
        count=between(1, 30),
        queued=between(0, 30),
        unwritten=between(0, 10),
        torn=one_of(True, False),
        asked=some_askers,
    )
    def broker_crashes(
        self, topic: str, count: int, queued: int, unwritten: int, torn: bool, asked: set[str]
    ) -> None:
        truth = self.world.truth
        if topic not in self.topics():
            return
        self.world.broker_writes(
            self.messages(topic, count), queued=queued, torn=torn, unwritten=min(unwritten, count)
        )
        if truth.of(Fate.GIVEN_UP) or truth.vanished:
            self.follow_anew()  # offsets that the queries have read may have other messages (docs/faq.md)
        self.ask(asked)

    # ---- damage -------------------------------------------------------------------------------------------

    def has_topics(self) -> bool:
        return (self.world.root / "config/topics.json").exists()

    def topics(self) -> set[str]:
        return {each.topic for each in self.world.truth.of(Fate.KEPT)}

    def queues(self) -> list[QueueKey]:
        return sorted({each.queue for each in self.world.truth.of(Fate.KEPT)})

    def expired(self) -> set[QueueKey]:
        """The queues of which all messages are expired."""
        truth = self.world.truth
        return {each.queue for each in truth.of(Fate.EXPIRED)} & truth.next_offsets.keys() - {*self.queues()}

    def unfiled(self) -> list[QueueKey]:
        """Queues with messages and without a directory."""
        directory = self.world.root / "consumequeue"
        return [queue for queue in self.queues() if not (directory / queue[0] / str(queue[1])).exists()]

    def show_that_it_was_read(self, queue: QueueKey) -> None:
        """Commits an offset, which shows that the topic of a lost queue was not deleted."""
        kept = self.kept_in(queue)
        read = max(1, kept[0].queue_offset) if kept else self.world.truth.next_offset(queue)
        self.world.commit_offset("G", *queue, read)

    def kept_in(self, queue: QueueKey) -> list[Stored]:
        return [each for each in self.world.truth.of(Fate.KEPT) if each.queue == queue]

    def cannot_lose_entries(self) -> bool:
        """Whether entries must not be lost now, because of what happened before."""
        truth = self.world.truth
        # without topics.json, the directories show which queues there were (docs/write.md)
        return bool(truth.lost or not self.has_topics())

    def brings_back(self, queue: QueueKey, start: int) -> bool:
        """Whether without the entries from `start` on nothing shows that the topic was deleted and created
        again: a broker then files the deleted messages, whose queue offsets come first in the log.
        """
        is_again = any(each.topic == queue[0] for each in self.world.truth.of(Fate.DELETED))
        return is_again and start <= self.kept_in(queue)[0].queue_offset

    @event(
        when=lambda self: self.is_whole and self.queues(),
        where=somewhere,
        size=between(1, 30),
        then=one_of("nothing", "recover", "write", "broker"),
        asked=some_askers,
    )
    def zero_entries(self, where: int, size: int, then: str, asked: set[str]) -> None:
        """A part of a queue is zeros."""
        queue = self.queues()[where % len(self.queues())]
        kept = self.kept_in(queue)
        start = kept[where % len(kept)].queue_offset
        stop = min(start + size, kept[-1].queue_offset + 1)
        if self.cannot_lose_entries() or self.brings_back(queue, start):
            return
        self.world.zero_entries(*queue, start, stop)
        self.go_on(then, asked)

    @event(
        when=lambda self: self.is_whole and self.queues(),
        where=somewhere,
        then=one_of("nothing", "recover", "write", "broker"),
        asked=some_askers,
    )
    def lose_queue_file(self, where: int, then: str, asked: set[str]) -> None:
        queue = self.queues()[where % len(self.queues())]
        files = self.world.queue_files(*queue)
        path = files[where % len(files)]
        if self.cannot_lose_entries() or self.brings_back(queue, int(path.name) // ENTRY_SIZE):
            return
        self.show_that_it_was_read(queue)
        self.world.lose(path)
        self.go_on(then, asked)

    @event(
        when=lambda self: self.is_whole and self.queues(),
        where=somewhere,
        what=one_of("a queue", "all queues"),
        asked=some_askers,
    )
    def lose_queues(self, where: int, what: str, asked: set[str]) -> None:
        """The directory of a queue, or of all."""
        world = self.world
        if world.truth.of(Fate.DELETED) or self.cannot_lose_entries():
            return
        if what == "all queues":
            for queue in sorted(self.expired()):
                self.show_that_it_was_read(queue)  # nothing else knows how many messages it had
            world.lose(world.root / "consumequeue")
        else:
            there = {*self.queues(), *self.expired()}
            directory = world.root / "consumequeue"
            queues = [queue for queue in sorted(there) if (directory / queue[0] / str(queue[1])).exists()]
            if not queues:
                return
            queue = queues[where % len(queues)]
            self.show_that_it_was_read(queue)
            world.lose(world.root / "consumequeue" / queue[0] / str(queue[1]))
        self.ask(asked)

    @event(
        when=lambda self: self.is_sound,
        what=one_of("topics.json", "checkpoint", "index"),
        then=one_of("nothing", "recover", "write"),
        asked=some_askers,
    )
    def lose_a_file(self, what: str, then: str, asked: set[str]) -> None:
        """One that messages do not need. Without topics.json, nothing shows that a topic was deleted."""
        if what == "topics.json" and self.world.truth.of(Fate.DELETED):
            return
        self.world.lose_file(what)
        self.go_on(then, asked)

    @event(
        when=lambda self: self.is_whole and self.queues(),
        where=somewhere,
        field=one_of(*_PROTECTED),
        bit=between(0, 7),
        asked=some_askers,
    )
    def flip_a_bit(self, where: int, field: int, bit: int, asked: set[str]) -> None:
        """A bit of a message, which lengths, positions or the checksum of its body protect."""
        kept = self.world.truth.of(Fate.KEPT)
        self.world.flip(kept[where % len(kept)], field, bit)
        self.ask(asked)

    @event(
        when=lambda self: self.queues(),
        where=somewhere,
        at=one_of(*sorted(UNPROTECTED)),
        bit=between(0, 7),
        asked=some_askers,
    )
    def flip_an_unprotected_bit(self, where: int, at: int, bit: int, asked: set[str]) -> None:
        """Nobody notices it, and nobody loses the message for it."""
        at += 2 if at in (52, 53, 68, 69) else 0  # not of a port above 65535: no client decodes the message
        known = self.world.ledger()["last"]["last_offset"]  # the ledger has its checksum
        kept = [each for each in self.world.truth.of(Fate.KEPT) if each.physical_offset != known]
        self.world.flip(kept[where % len(kept)], at, bit)
        self.ask(asked)

    @event(
        when=lambda self: self.is_whole and self.queues(),
        where=somewhere,
        at=between(0, 11),
        bit=between(0, 7),
        then=one_of("nothing", "recover", "write"),
        asked=some_askers,
    )
    def flip_an_entry(self, where: int, at: int, bit: int, then: str, asked: set[str]) -> None:
        """A bit of a consume queue entry: of the physical offset, or of the size."""
        if self.cannot_lose_entries():
            return
        kept = self.world.truth.of(Fate.KEPT)
        if not kept:
            return
        self.world.flip_entry(*kept[where % len(kept)].place, at, 1 << bit)
        self.go_on(then, asked)

    @event(when=lambda self: self.is_sound, where=somewhere, bit=between(0, 7), asked=some_askers)
    def flip_in_the_index(self, where: int, bit: int, asked: set[str]) -> None:
        """A bit of an index entry. No checksum protects it: `verify` compares it with the message."""
        world = self.world
        begin = int(world.log_files()[0].name)
        files = {path: path.read_bytes() for path in sorted((world.root / "index").glob("*"))}
        files = {path: data for path, data in files.items() if int.from_bytes(data[24:32]) >= begin}
        if not files:  # nobody looks into a file whose messages are all expired
            return
        path, data = list(files.items())[where % len(files)]
        used = int.from_bytes(data[36:40], "big") - 1
        if used < 1:
            return
        at = 40 + 4 * world.settings.max_hash_slot_num + ENTRY_SIZE * (1 + where % used) + where % 12
        overwrite(path, at, bytes([data[at] ^ 1 << bit]))
        world.wrong.append("the index has a wrong entry")
        self.ask(asked & {"read", "verify", "recover", "info", "advice"})
        self.recover()
        self.ask({"verify", *asked})

    @event(
        when=lambda self: self.is_sound and len(self.world.log_files()) > 1,
        then=one_of("restore", "give up"),
        asked=some_askers,
    )
    def lose_last_log_file(self, then: str, asked: set[str]) -> None:
        """It is put back from a backup, or its messages are given up."""
        world = self.world
        path, fates, messages = world.log_files()[-1], world.truth.fates.copy(), world.truth.messages
        lost = {m.topic for m in world.truth.of(Fate.KEPT) if m.physical_offset >= int(path.name)}
        if not lost or lost & {each.topic for each in world.truth.of(Fate.DELETED)}:
            return  # an emptied queue does not show that its topic was created again
        backup = shutil.copy(path, self.place / "backup")
        world.lose_log_file(path)
        self.ask(asked)
        if then == "restore":
            os.replace(backup, path)
            world.truth.fates, world.truth.messages = fates, messages
            world.refresh()
        else:
            self.recover("--cut-after-damage")
            world.truth.cut(int(path.name))
            self.follow_anew()  # they have read messages that are lost (docs/faq.md)
        self.ask(asked)

    # ---- what is done about it ----------------------------------------------------------------------------

    @event(asked=some_askers)
    def recover_it(self, asked: set[str]) -> None:
        self.recover()
        self.ask(asked)

    @event(
        when=lambda self: not self.is_whole and not self.world.truth.lost,
        at=between(1, 40),
        what=one_of("kill", "torn"),
        asked=some_askers,
    )
    def kill_a_recovery(self, at: int, what: str, asked: set[str]) -> None:
        ended = self.forks.run(_recovery_killed, self.world.root, what, at)
        self.expect([f"a recovery ends with {ended}"] if ended.error or ended.value else [])
        self.ask(asked)

    @event(
        when=lambda self: self.world.truth.lost,
        asked=some_askers,
    )
    def salvage(self, asked: set[str]) -> None:
        """The life goes on in a recovered copy; the queries begin anew."""
        world = self.world
        new = Path(tempfile.mkdtemp(dir=self.place)) / "store"
        run = rmqlog(world.root, "recover", world.root, "--into", new, "--salvage", "--apply")
        self.expect([f"recover --salvage ends with {run.code}: {run.err}"] if run.code else [])
        shutil.rmtree(world.root)
        world.root = new
        askers.restore(new, world.truth)
        world.truth.give_up()
        self.follow_anew()
        self.ask(asked)

    @event(asked=some_askers)
    def flush(self, asked: set[str]) -> None:
        """What it completes, or refuses, a write completes or refuses too."""
        self.judge([askers.flushed(self.world.root, self.world.truth)])
        self.ask(asked)

    # ---- what a broker does -------------------------------------------------------------------------------

    @event(asked=some_askers)
    def broker_opens(self, asked: set[str]) -> None:
        """Not with a queue that lost its files and has a place that was given up: a broker writes the entries
        one behind the other, at the places of other messages.
        """
        self.world.refresh()
        offsets = [[each.queue_offset for each in self.kept_in(queue)] for queue in self.unfiled()]
        has_gap = any(mine[-1] - mine[0] >= len(mine) for mine in offsets)
        if not self.world.truth.is_crashed and not self.world.truth.lost and not has_gap:
            self.go_on("broker", asked)

    @event(
        when=lambda self: self.is_whole and self.has_topics(),
        topic=one_of(*sorted(TOPICS)),
        looks=one_of(True, False),
        asked=some_askers,
    )
    def delete_topic(self, topic: str, looks: bool, asked: set[str]) -> None:
        """With `looks`, running queries see that it is gone before it is created again."""
        # no rule says whether these are lost; and notes do not say of which topic of a name they are
        damaged = {each.topic for each in self.world.truth.of(Fate.DAMAGED, Fate.LOST, Fate.GIVEN_UP)}
        damaged |= {topic for topic, _, _ in askers.given_up_places(self.world.root)}
        if topic not in self.topics() or len(self.topics()) < 2 or topic in damaged:
            return
        self.world.delete_topic(topic)
        if looks:
            self.follow()
        self.ask(asked)

    @event(
        when=lambda self: self.is_whole and self.has_topics(),
        topic=one_of(*sorted(TOPICS)),
        asked=some_askers,
    )
    def create_without_messages(self, topic: str, asked: set[str]) -> None:
        """A topic that was deleted is there again for a while, and nothing was written to it."""
        truth = self.world.truth
        old = [each for each in truth.of(Fate.DELETED) if each.topic == topic]
        if topic in self.topics() or not old:
            return
        self.world.delete_topic(topic, creates_again=True)
        truth.fates.update(dict.fromkeys(old, Fate.UNKNOWN))
        self.ask(asked)
        self.world.delete_topic(topic)
        truth.fates.update(dict.fromkeys(old, Fate.DELETED))

    @event(
        when=lambda self: self.is_whole and len(self.world.log_files()) > 2,
        count=between(1, 2),
        by=one_of("hand", "rmqlog"),
        asked=some_askers,
    )
    def retain(self, count: int, by: str, asked: set[str]) -> None:
        """The first commitlog files are deleted; `rmqlog clean` deletes queue files, too."""
        world = self.world
        count = min(count, len(world.log_files()) - 2)
        if by == "hand":
            world.retain(count)
        else:
            now_s = world.now_ms // 1000
            for number, path in enumerate(world.log_files()):
                os.utime(path, (0, 0) if number < count else (now_s, now_s))
            words = ("--file-reserved-time", "1", "--now", f"{(now_s + 60) * 1000}", "--apply")
            run = rmqlog(world.root, "clean", world.root, *words)
            self.expect([f"clean ends with {run.code}: {run.err}"] if run.code else [])
            world.forget_expired()
        self.ask(asked)

    @event(restarts=one_of(True, False))
    def queries_read_on(self, restarts: bool) -> None:
        if restarts:
            self.world.restart()
        self.follow()


def live(
    place: Path,
    forks: ForkServer,
    number: int,
    *,
    lives: Iterable[int],
    steps: int,
    asks: bool = True,
    ended: Callable[[World], None] = lambda world: None,
) -> str:
    """Some lives of so many steps below `place`; another `number` has other lives. Returns a digest of all
    events and of what the stores hold at the end. `ended` gets the world of each life at its end.
    """
    found = hashlib.sha256()
    for life in lives:
        machine = Machine(Path(tempfile.mkdtemp(dir=place)), forks, asks=asks)
        try:
            machine.run(Random(f"{number}/{life}"), steps)
            ended(machine.world)
        except BaseException as error:
            error.add_note("\n".join([f"life {life} of {number}:", *machine.events]))
            raise
        finally:
            shutil.rmtree(machine.place)
        assert machine.judged > steps // 3 or not asks
        found.update(repr([*machine.events, *sorted(machine.world.truth.rows)]).encode())
    return found.hexdigest()
