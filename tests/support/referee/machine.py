"""A state machine: everything that can happen to a store, in any order, and all callers are asked.

What contradicts today (`known.KNOWN`) is left out by name: without its entry there, the machine does it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.support.failing_writer import Failure
from tests.support.fork_server import ForkServer
from tests.support.oracle import Message
from tests.support.referee import askers
from tests.support.referee.answers import Answer, rmqlog
from tests.support.referee.followers import Follower
from tests.support.referee.known import KNOWN
from tests.support.referee.rules import disagreements
from tests.support.referee.truth import Fate, QueueKey, Stored
from tests.support.referee.world import World, commit_killed, empty_world
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
    "advice": lambda world: askers.advice(world.root, world.truth, world.place, world.settings),
}
some_askers = st.sets(st.sampled_from(sorted(ASKERS)), max_size=3)


def is_off(case: str) -> bool:
    """Whether the machine leaves out what this case does, because it contradicts today."""
    return case in KNOWN


def _killed(root: Path, what: str, at: int, messages: list[Message], now_ms: int) -> None:
    commit_killed(root, Failure(what, at), messages, now_ms)


def _in_part(found: int, messages: list[Message], when: str) -> list[str]:
    if found in (0, len(messages)):
        return []
    return [f"a batch read has {found} of {len(messages)} messages of a commit {when}"]


class Machine(RuleBasedStateMachine):
    """One life of a store."""

    base: ClassVar[Path]
    forks: ClassVar[ForkServer]
    judged: ClassVar[int] = 0  # how often callers were asked

    @initialize()
    def begin(self) -> None:
        self.number, self.has_failed = 0, False
        self.place = Path(tempfile.mkdtemp(dir=self.base))
        self.world = empty_world(self.place)
        self.judge([self.world.write(self.messages("A", 30) + self.messages("B", 20))])
        self.world.commit_offset("G", "A", 0, 2)
        self.world.commit_offset("G", "B", 0, 2)
        self.world.followers = [
            Follower(self.world.root),
            Follower(self.world.root, offsets=self.place / "g"),
        ]
        self.follow()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            if not self.has_failed:
                self.ask(set(ASKERS))
                self.follow()
        finally:
            for each in self.world.followers:
                each.close()
            shutil.rmtree(self.place)

    # ---- what is asked ------------------------------------------------------------------------------------

    def judge(self, answers: list[Answer]) -> None:
        type(self).judged += 1
        self.expect(disagreements(answers))

    def expect(self, found: list[str]) -> None:
        """Fails for each of the sentences."""
        self.has_failed = bool(found)
        assert not found, "\n".join(found)

    def ask(self, names: set[str]) -> None:
        world = self.world
        world.refresh()
        if world.truth.lost and is_off("flipped body"):
            names = names - {"recover", "advice"}
        if world.truth.is_crashed and is_off("advice about a crashed store"):
            names = names - {"info"}
        self.judge([answer for name in sorted(names) for answer in ASKERS[name](world)])

    def go_on(self, case: str, then: str, asked: set[str]) -> None:
        """Recovers the store if the rule says so, or if it is known that the next write is wrong."""
        if then == "recover" or is_off(case):
            self.recover()
        self.ask(asked)

    def follow(self) -> None:
        """The running queries read on."""
        self.world.refresh()
        if self.unfiled() and is_off("lost queue beside a running query"):
            self.world.restart()
        self.judge([each.step(self.world.truth.copy()) for each in self.world.followers])

    # ---- writes -------------------------------------------------------------------------------------------

    def messages(self, topic: str, count: int) -> list[Message]:
        if is_off("created again in part"):
            count = max(count, TOPICS[topic])  # some for each queue
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

    def recover(self) -> bool:
        """Recovers the store in place; False if it must not, because whole messages are behind damage."""
        world = self.world
        run = rmqlog(world.root, "recover", world.root, "--apply")
        may_refuse = bool(world.truth.lost) and "whole messages behind it" in run.err
        self.expect([f"recover --apply refuses: {run.err}"] if run.code and not may_refuse else [])
        world.refresh()
        return not run.code

    @rule(
        topic=st.sampled_from(sorted(TOPICS)),
        count=st.integers(1, 70),
        sync=st.booleans(),
        asked=some_askers,
    )
    def append(self, topic: str, count: int, sync: bool, asked: set[str]) -> None:
        self.write(self.messages(topic, count), sync=sync)
        self.ask(asked)

    @rule(
        topic=st.sampled_from(sorted(TOPICS)),
        count=st.integers(1, 30),
        at=st.integers(1, 60),
        what=st.sampled_from(["kill", "torn"]),
        then=st.sampled_from(["recover", "write"]),
        asked=some_askers,
    )
    def kill_a_commit(self, topic: str, count: int, at: int, what: str, then: str, asked: set[str]) -> None:
        """Readers see all of its messages or none; what completes the commit decides."""
        world = self.world
        world.refresh()
        if world.truth.is_crashed and is_off("killed while it repairs the index"):
            self.recover()
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
            self.expect([f"a write after a kill refuses: {answer.refusal}"] if answer.refusal else [])
        else:
            self.recover()
        self.expect(_in_part(world.settle(killed, end), killed, f"after {then}"))
        if then == "write":
            assert result is not None
            world.truth.appended(world.root, more, result)
        self.ask(asked)

    @precondition(lambda self: self.is_whole())
    @rule(
        topic=st.sampled_from(sorted(TOPICS)),
        count=st.integers(1, 30),
        queued=st.integers(0, 30),
        torn=st.booleans(),
        asked=some_askers,
    )
    def broker_crashes(self, topic: str, count: int, queued: int, torn: bool, asked: set[str]) -> None:
        truth = self.world.truth
        is_deleted = truth.of(Fate.DELETED) and is_off("deleted topic after a crash")
        if topic not in self.topics() or truth.lost or is_deleted:
            return
        self.world.broker_writes(self.messages(topic, count), queued=queued, torn=torn)
        self.ask(asked)

    # ---- damage -------------------------------------------------------------------------------------------

    def is_whole(self) -> bool:
        """Whether nothing is wrong with the consume queues, and no crash is to be completed."""
        self.world.refresh()
        return not askers.wrong_entries(self.world.root, self.world.truth) and not self.world.truth.is_crashed

    def topics(self) -> set[str]:
        return {each.topic for each in self.world.truth.of(Fate.KEPT)}

    def queues(self) -> list[QueueKey]:
        return sorted({each.queue for each in self.world.truth.of(Fate.KEPT)})

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
        """Whether entries that are lost now contradict today, because of what happened before."""
        truth = self.world.truth
        retained = truth.of(Fate.EXPIRED) and (
            is_off("zeros in a queue after retention") or is_off("lost directory of an expired queue")
        )
        damaged = truth.lost and is_off("damage without queues")
        is_last = len(list((self.world.root / "consumequeue").glob("*/*/*"))) == 1
        deleted = truth.of(Fate.DELETED) and is_last and is_off("last topic with queues is deleted")
        return bool(retained or damaged or deleted)

    @precondition(lambda self: self.is_whole() and self.queues())
    @rule(
        where=st.integers(0, 1 << 16),
        size=st.integers(1, 30),
        then=st.sampled_from(["nothing", "recover"]),
        asked=some_askers,
    )
    def zero_entries(self, where: int, size: int, then: str, asked: set[str]) -> None:
        """A part of a queue is zeros. Unless it is recovered first, the next write comes upon it."""
        queue = self.queues()[where % len(self.queues())]
        kept = self.kept_in(queue)
        start = kept[where % len(kept)].queue_offset
        stop = min(start + size, kept[-1].queue_offset + 1)
        if self.cannot_lose_entries():
            return
        case = "lost tail of a queue" if stop > kept[-1].queue_offset else "zeros in the middle of a queue"
        self.world.zero_entries(*queue, start, stop)
        self.go_on(case, then, asked)

    @precondition(lambda self: self.is_whole() and self.queues())
    @rule(
        where=st.integers(0, 1 << 16),
        then=st.sampled_from(["nothing", "recover"]),
        asked=some_askers,
    )
    def lose_queue_file(self, where: int, then: str, asked: set[str]) -> None:
        queue = self.queues()[where % len(self.queues())]
        files = self.world.queue_files(*queue)
        path = files[where % len(files)]
        if self.cannot_lose_entries():
            return
        self.show_that_it_was_read(queue)
        self.world.lose(path)
        self.go_on("lost first queue file", then, asked)

    @precondition(lambda self: self.is_whole() and self.queues())
    @rule(
        where=st.integers(0, 1 << 16),
        what=st.sampled_from(["a queue", "all queues"]),
        asked=some_askers,
    )
    def lose_queues(self, where: int, what: str, asked: set[str]) -> None:
        """The directory of a queue, or of all."""
        world = self.world
        if world.truth.of(Fate.DELETED) or self.cannot_lose_entries():
            return
        if what == "all queues":
            world.lose(world.root / "consumequeue")
        else:
            expired = {each.queue for each in world.truth.of(Fate.EXPIRED)} & world.truth.next_offsets.keys()
            queues = [queue for queue in sorted({*self.queues(), *expired}) if queue not in self.unfiled()]
            if not queues:
                return
            queue = queues[where % len(queues)]
            self.show_that_it_was_read(queue)
            world.lose(world.root / "consumequeue" / queue[0] / str(queue[1]))
        self.ask(asked)

    @precondition(lambda self: self.is_whole() and self.queues())
    @rule(where=st.integers(0, 1 << 16), asked=some_askers)
    def flip_a_bit(self, where: int, asked: set[str]) -> None:
        """A bit of a body, which a checksum protects."""
        kept = self.world.truth.of(Fate.KEPT)
        if is_off("flipped last body"):
            kept = kept[:-1]
        self.world.flip_body(kept[where % len(kept)])
        self.ask(asked)

    # ---- what a broker does -------------------------------------------------------------------------------

    @precondition(lambda self: self.is_whole())
    @rule(topic=st.sampled_from(sorted(TOPICS)), looks=st.booleans(), asked=some_askers)
    def delete_topic(self, topic: str, looks: bool, asked: set[str]) -> None:
        """With `looks`, running queries see that it is gone before it is created again."""
        damaged = {each.topic for each in self.world.truth.lost}  # no rule says whether these are lost
        if topic not in self.topics() or len(self.topics()) < 2 or topic in damaged:
            return
        self.world.delete_topic(topic)
        retained = self.world.truth.of(Fate.EXPIRED) and is_off("created again after retention")
        if looks or retained:
            self.follow()
        self.ask(asked)

    @precondition(lambda self: not is_off("created again without messages") and self.is_whole())
    @rule(topic=st.sampled_from(sorted(TOPICS)), asked=some_askers)
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

    @precondition(lambda self: self.is_whole() and len(self.world.log_files()) > 2)
    @rule(count=st.integers(1, 2), asked=some_askers)
    def retain(self, count: int, asked: set[str]) -> None:
        if is_off("created again after retention"):
            self.follow()
        self.world.retain(min(count, len(self.world.log_files()) - 2))
        self.ask(asked)

    @rule(restarts=st.booleans())
    def queries_read_on(self, restarts: bool) -> None:
        if restarts:
            self.world.restart()
        self.follow()
