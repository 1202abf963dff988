"""What a broker leaves behind when clients have popped, acknowledged and changed invisible times and are
killed; and what a broker that goes on delivers.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop.harness import Client, RocketMQ
from tests.interop.pop import SETTINGS, Handle, PopClient, place
from tests.interop.programs import Line
from tests.interop.workload import now_ms, slowness

Place = tuple[str, int, int]  # topic, queue, offset

ORDERS, BILLING = "Orders", "billing"
TAGGED, TAGS = "Tagged", "tags"
STEPS, IN_ORDER = "Steps", "in_order"
COUNT = 40  # of ORDERS, over four queues
# Longer than a broker needs to stop: it revives until then.
SHORT_MS, LATER_MS = 8_000, 3_000


@dataclass
class Left:
    """What the clients knew when they were killed."""

    all: set[Place]
    popped: set[Place] = field(default_factory=set)
    acked: set[Place] = field(default_factory=set)
    filtered: set[Place] = field(default_factory=set)
    handles: dict[Place, Handle] = field(default_factory=dict)  # of what is in flight
    first_popped: dict[str, str] = field(default_factory=dict)  # UNIQ_KEY -> 1ST_POP_TIME
    keys: dict[Place, str] = field(default_factory=dict)  # UNIQ_KEY
    suspended: Place = ("", 0, 0)  # comes again with the same reconsumeTimes
    order: list[Line] = field(default_factory=list)  # of IN_ORDER, as popped
    blocked_until: dict[int, int] = field(default_factory=dict)  # the queues of STEPS

    def note(self, messages: Iterable[Line]) -> None:
        for each in messages:
            where = place(each)
            self.popped.add(where)
            self.handles[where] = Handle.of(each["handle"])
            self.keys[where] = each["properties"]["UNIQ_KEY"]

    def note_acked(self, messages: Iterable[Line]) -> None:
        for each in messages:
            self.acked.add(place(each))
            del self.handles[place(each)]

    @property
    def first_pop_time(self) -> int:
        return min(each.pop_time for each in self.handles.values())

    def in_flight(self, topic: str) -> dict[Place, int]:
        """Place -> when it becomes visible."""
        return {where: each.visible_at for where, each in self.handles.items() if where[0] == topic}

    def uniq_keys(self, topic: str) -> list[str]:
        """Of what is in flight."""
        return sorted(self.keys[where] for where in self.in_flight(topic))


@dataclass(frozen=True)
class PopRuns:
    """The store that a broker left, which nobody changes, and what its clients knew."""

    directory: Path
    left: Left

    @property
    def store(self) -> Path:
        return self.directory / "left"

    def copy(self, name: str) -> Path:
        target = self.directory / name
        shutil.rmtree(target, ignore_errors=True)
        # holes stay holes: the timer wheel is a file of 38 MB
        subprocess.run(["cp", "-a", "--sparse=always", self.store, target], check=True)
        return target


def leave_pops(java: RocketMQ, store: Path) -> Left:
    """A broker's store, the clients killed and the broker stopped in order."""
    store.mkdir()
    short = round(SHORT_MS * slowness())
    with java.broker(store, SETTINGS) as broker:
        sender = broker.client()
        left = Left(sent(sender, ORDERS, COUNT) | sent(sender, TAGGED, 12))
        sent(sender, STEPS, 12, shards=3)
        client = PopClient.start(java, broker, BILLING)
        _pop(left, client, short)
        found = client.of(TAGS).pop_all(TAGGED, short, tags="TagA || TagC")
        left.note(found)
        left.filtered = {where for where in left.all if where[0] == TAGGED} - left.popped
        _pop_in_order(left, client.of(IN_ORDER), short)
        client.die()
        sender.program.kill()
    return left


def sent(client: Client, topic: str, count: int, **options: object) -> set[Place]:
    lines = client.send(topic, count, seed=topic, **options)
    return {(topic, line["queueId"], line["queueOffset"]) for line in lines}


def _pop(left: Left, client: PopClient, short: int) -> None:
    """Two pops, a few acks of both kinds, and three changed times; half of the messages stay."""
    first, second = client.pop(ORDERS, 10, short), client.pop(ORDERS, 10, short + LATER_MS)
    left.note([*first, *second])
    client.ack(ORDERS, first[1:4])
    client.batch_ack(ORDERS, [*second[:2], second[4], first[5]])
    left.note_acked([*first[1:4], *second[:2], second[4], first[5]])
    later, sooner = (
        client.change(ORDERS, first[6], short + LATER_MS),
        client.change(ORDERS, second[6], short),
    )
    suspended = client.change(ORDERS, second[7], short, suspend=True)
    left.note([later, sooner, suspended])
    left.suspended = place(suspended)


def _pop_in_order(left: Left, client: PopClient, short: int) -> None:
    """Of three queues: the first message is acknowledged, the second one, and the time of one is changed."""
    by_queue: dict[int, list[Line]] = {}
    left.order = client.pop_all(STEPS, short, order=True)
    for each in left.order:
        by_queue.setdefault(Handle.of(each["handle"]).queue_id, []).append(each)
    one, two, three = by_queue.values()
    client.ack(STEPS, [one[0]])
    client.ack(STEPS, [two[1]])
    last = client.change(STEPS, three[2], short + LATER_MS)
    for each in (one[0], two[0], last):
        handle = Handle.of(each["handle"])
        left.blocked_until[handle.queue_id] = handle.visible_at


class ShiftedClock:
    """A clock that was at `start_ms` when it was made, and goes on from there."""

    def __init__(self, start_ms: int) -> None:
        self.behind_ms = now_ms() - start_ms

    def __call__(self) -> int:
        return now_ms() - self.behind_ms


def until_seen(
    pop: Callable[[], Sequence[Line]], count: int, seconds_max: float = 120.0
) -> list[tuple[float, Line]]:
    """(time, message) of each, until there are so many; some more when too many come at once."""
    end = time.monotonic() + seconds_max
    found: list[tuple[float, Line]] = []
    while len(found) < count:
        assert time.monotonic() < end, (
            f"{len(found)} of {count} within {seconds_max} s: {[place(each) for _, each in found]}"
        )
        found += [(time.time() * 1000, each) for each in pop()]
        time.sleep(0.2)
    return found
