"""A client that pops through a broker, acknowledges and changes invisible times (PopClient.java)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.interop.harness import Broker, RocketMQ
from tests.interop.programs import Line, Program

_ANSWER_SECONDS_MAX = 60.0

# So that tests wait seconds: timers are looked at every 100 ms, and one revive queue has few threads to stop.
SETTINGS = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "6000",
    "timerWheelEnable": "true",  # check points are timer messages
    "mappedFileSizeTimerLog": str(52 * 100),
    "timerPrecisionMs": "100",
    "timerFlushIntervalMs": "1000",  # the default: brokers with these settings are killed
    "reviveInterval": "100",
    "reviveScanTime": "1000",
    "reviveQueueNum": "2",
    "flushConsumerOffsetInterval": "500",
    # else one pop in five reads the retry topic first, at random
    "popFromRetryProbability": "0",
}
# Of a broker that starts when records are due already: its timer delivers a check point, and its acks some
# milliseconds later; a revive between them stores acknowledged messages again. So the first revive waits.
AFTER_A_PAUSE = SETTINGS | {"reviveInterval": "2500"}


@dataclass(frozen=True)
class Handle:
    """The parts of a receipt handle (ExtraInfoUtil.buildExtraInfo)."""

    start: int
    pop_time: int
    invisible_ms: int
    revive_queue: int
    flag: int
    broker: str
    queue_id: int
    offset: int

    @classmethod
    def of(cls, text: str) -> Handle:
        start, time, invisible, revive, flag, broker, queue_id, offset = text.split(" ")
        return cls(
            int(start), int(time), int(invisible), int(revive), int(flag), broker, int(queue_id), int(offset)
        )

    @property
    def visible_at(self) -> int:
        return self.pop_time + self.invisible_ms

    @property
    def text(self) -> str:
        return " ".join(map(str, vars(self).values()))


class PopClient:
    """Each line of `pop` has the fields of a message and `handle`, a text."""

    def __init__(self, program: Program, group: str) -> None:
        self.program = program
        self.group = group

    @classmethod
    def start(cls, rocketmq: RocketMQ, broker: Broker, group: str) -> PopClient:
        return cls(rocketmq.program("PopClient", [broker.namesrv]), group)

    def of(self, group: str) -> PopClient:
        """The same process as a client of another group."""
        return PopClient(self.program, group)

    def __enter__(self) -> PopClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.kill()

    def die(self) -> None:
        """SIGKILL."""
        self.program.kill()

    def _ask(self, *words: object) -> list[Line]:
        self.program.say(*words)
        return self.program.lines("done", _ANSWER_SECONDS_MAX)

    def pop(self, topic: str, max_count: int, invisible_ms: int, **options: Any) -> list[Line]:
        """Options: queue, order, poll (ms), tags, sql, attempt."""
        words = [
            f"{name}={str(value).lower() if value is True else value}" for name, value in options.items()
        ]
        *messages, _status = self._ask("pop", self.group, topic, max_count, invisible_ms, *words)
        return messages

    def pop_all(self, topic: str, invisible_ms: int, **options: Any) -> list[Line]:
        """Pops until nothing comes."""
        found: list[Line] = []
        while popped := self.pop(topic, 32, invisible_ms, **options):
            found += popped
        return found

    def ack(self, topic: str, messages: Sequence[Line]) -> None:
        """One request for each."""
        for answer in self._ask("ack", self.group, topic, *(line["handle"] for line in messages)):
            assert answer["status"] == "OK", answer

    def batch_ack(self, topic: str, messages: Sequence[Line]) -> None:
        (answer,) = self._ask("batch-ack", self.group, topic, *(line["handle"] for line in messages))
        assert answer["status"] == "OK", answer

    def change(self, topic: str, message: Line, invisible_ms: int, **options: Any) -> Line:
        """The message with its new handle. Option: suspend."""
        words = ("change", self.group, topic, message["handle"], invisible_ms)
        (answer,) = self._ask(*words, *_words(options))
        assert answer["status"] == "OK", answer
        return message | {"handle": answer["handle"]}


def _words(options: Mapping[str, Any]) -> list[str]:
    return [f"{name}={str(value).lower() if value is True else value}" for name, value in options.items()]


def place(message: Line) -> tuple[str, int, int]:
    """(topic of the store, queue, offset) of a popped message."""
    handle = Handle.of(message["handle"])
    return message["topic"], handle.queue_id, handle.offset
