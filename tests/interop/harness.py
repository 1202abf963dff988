"""A real broker on a store directory, its client, and its store classes: what a test asks, and what RocketMQ
answers.

Everything listens on 127.0.0.1 and lives no longer than the `with` around it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop.programs import Line, Program

_START_SECONDS_MAX = 90.0
_STOP_SECONDS_MAX = 90.0
_ANSWER_SECONDS_MAX = 60.0

_CONFIG = {
    "brokerName": "broker-a",
    "brokerClusterName": "GoldenCluster",
    # The store's age and the machine's disk are no reason to delete files.
    "fileReservedTime": "1000000",
    "cleanFileForciblyEnable": "false",
    # A machine that is busy with other tests is no reason to refuse a message.
    "osPageCacheBusyTimeOutMills": "60000",
    "waitTimeMillsInSendQueue": "60000",
    # 5.x: a stop waits for these threads, by default eight of them, to wake up.
    "reviveInterval": "100",
    "reviveQueueNum": "1",
    # 5.5: until the first of these intervals, by default 10 seconds, has passed, a thread never pauses.
    "transactionMetricFlushInterval": "50",
    # 5.x: each flush compares the 38 MB of the timer wheel byte by byte. A stop in order flushes too.
    "timerFlushIntervalMs": "10000",
}
# A store that has either of these has timer messages.
_TIMER_FILES = ("timerlog", "consumequeue/rmq_sys_wheel_timer")


@dataclass(frozen=True)
class RocketMQ:
    """One version of it, and a directory for what its programs leave behind."""

    version: str
    directory: Path
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def broker(self, store: Path, config: Mapping[str, str] | None = None) -> Broker:
        """A broker for `with`; `config` as in broker.conf, over what a `.rmqlog/broker.conf` in the store
        says.

        It has a timer if the store has timer messages, or `config` says timerWheelEnable=true: to look at all
        slots of a new wheel takes most of a second of a core.
        """
        return Broker(self, store, config or {})

    def open_store(
        self, store: Path, config: Mapping[str, str] | None = None, *, start: bool = False
    ) -> Opened:
        """DefaultMessageStore on that directory: `load()`, which recovers; with `start` also `start()` and
        `shutdown()`.
        """
        (opened,) = self.open_stores([store], config, start=start)
        return opened

    def open_stores(
        self, stores: Sequence[Path], config: Mapping[str, str] | None = None, *, start: bool = False
    ) -> list[Opened]:
        """The same of several stores, one after the other in one JVM."""
        # a started store listens for a slave: several tests run at once
        told = {"haListenPort": "0"} | dict(config or {})
        arguments = [word for store in stores for word in (str(store), self.config_file(store, told))]
        program = self.program("StoreOpen", ["start" if start else "load", *arguments])
        try:
            lines = program.lines("done", _ANSWER_SECONDS_MAX + len(stores))
        finally:
            program.close()
        found = [Opened([], (0, 0), [])]
        for line in lines:
            if "queue" in line:
                found[-1].queues.append(line["queue"])
            elif "commitLog" in line:  # the last line of a store
                ends = line["commitLog"]
                found[-1] = replace(found[-1], commit_log=(ends["minOffset"], ends["maxOffset"]))
                found.append(Opened([], (0, 0), []))
            elif "physicalOffset" in line:
                found[-1].messages.append(line)
        assert len(found) == len(stores) + 1
        return found[:-1]

    def clean(self, stores: Mapping[Path, Mapping[str, str]], rounds: int) -> dict[Path, list[Line]]:
        """The stores' own cleaning, so many times on each; then the ends of the queues of each store.

        `stores` has the settings of each, as in broker.conf.
        """
        arguments = [str(rounds)]
        for store, config in stores.items():
            arguments += [str(store), self.config_file(store, {"haListenPort": "0"} | dict(config))]
        program = self.program("StoreClean", arguments)
        try:
            lines = program.lines("done", _ANSWER_SECONDS_MAX)
        finally:
            program.close()
        return {store: [line for line in lines if line["store"] == str(store)] for store in stores}

    def program(self, main: str, arguments: list[str]) -> Program:
        return Program(
            self.version, main, arguments, self.directory / f"{main}-{self.version}-{next(self._numbers)}"
        )

    def config_file(self, store: Path, config: Mapping[str, str]) -> str:
        own = store / ".rmqlog" / "broker.conf"
        told = (
            dict(line.split("=", 1) for line in own.read_text().splitlines() if "=" in line)
            if own.exists()
            else {}
        )
        timer = {"timerWheelEnable": str(any((store / name).exists() for name in _TIMER_FILES)).lower()}
        path = self.directory / f"broker-{next(self._numbers)}.conf"
        lines = (_CONFIG | timer | told | dict(config)).items()
        path.write_text("".join(f"{key}={value}\n" for key, value in lines))
        return str(path)


@dataclass(frozen=True)
class Opened:
    """What the store classes found: queues and messages with the fields of expected.json and
    expected.jsonl.gz.
    """

    queues: list[Line]
    commit_log: tuple[int, int]  # min and max offset
    messages: list[Line]


class Broker:
    """A name server and a broker in one process. Leaving the `with` stops it in order, or kills it when a
    test failed.
    """

    def __init__(self, rocketmq: RocketMQ, store: Path, config: Mapping[str, str]) -> None:
        self._rocketmq = rocketmq
        self._store = store
        self._config = rocketmq.config_file(store, config)
        self._program: Program | None = None
        self._clients: list[Client] = []
        self.namesrv = self.address = ""

    def __enter__(self) -> Self:
        try:
            self.load()
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def load(self) -> None:
        """Up to where the store is loaded and recovered, and its lock file open; only `start` takes the
        lock.
        """
        self._program = self._rocketmq.program("BrokerMain", [str(self._store), self._config])
        self._program.lines("loaded", _START_SECONDS_MAX)

    def start(self) -> None:
        assert self._program is not None
        self._program.say("start")
        ready = self._program.line(_START_SECONDS_MAX)
        self.namesrv, self.address = ready["namesrv"], ready["broker"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        else:
            self.kill()

    @property
    def pid(self) -> int:
        assert self._program is not None
        return self._program.pid

    def client(self) -> Client:
        """A new client process; it ends with the broker. Two of them can be at work at once."""
        self._clients.append(Client(self._rocketmq.program("Client", [self.namesrv])))
        return self._clients[-1]

    def check(self) -> None:
        """Asks the producers about half messages, as a broker does every transactionCheckInterval."""
        self._ask("check")

    def clean(self) -> None:
        """Deletes expired files, as a broker does every cleanResourceInterval."""
        self._ask("clean")

    def upload(self) -> None:
        """Begins to upload messages to tiered storage, as a broker does every 20 seconds."""
        self._ask("upload")

    def _ask(self, command: str) -> None:
        assert self._program is not None
        self._program.say(command)
        self._program.lines("done", _ANSWER_SECONDS_MAX)

    def stop(self) -> None:
        """BrokerController.shutdown(): everything flushed, `abort` gone."""
        assert self._program is not None
        try:
            self._kill_clients()
            if self._program.running:
                self._program.say("stop")
                self._program.lines("stopped", _STOP_SECONDS_MAX)
        finally:
            self._program.kill()

    def kill(self) -> None:
        """SIGKILL, then the clients: what the broker did not write by itself is not written."""
        if self._program is not None:
            self._program.kill()
        self._kill_clients()

    def _kill_clients(self) -> None:
        """An orderly end takes them seconds."""
        for client in self._clients:
            client.program.kill()


class Client:
    """RocketMQ's client. Messages are lines with the fields of expected.jsonl.gz; `brokerName`, `tagsCode`,
    `rawBody` it does not tell.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    def ask(self, *words: object, seconds_max: float = _ANSWER_SECONDS_MAX) -> list[Line]:
        """The answer to one command, see Client.java. Raises ProgramError when it is an error."""
        self.program.say(*words)
        return self.program.lines("done", seconds_max)

    def begin(self, *words: object) -> None:
        """A command whose answer is fetched later, with `acknowledged` or `finish`."""
        self.program.say(*words)

    def acknowledged(self, count: int) -> list[Line]:
        """The next lines of the answer to a `begin`."""
        return [self.program.line(_ANSWER_SECONDS_MAX) for _ in range(count)]

    def finish(self) -> list[Line]:
        """The rest of it."""
        return self.program.lines("done", _ANSWER_SECONDS_MAX)

    def topics(self) -> list[str]:
        return [line["topic"] for line in self.ask("topics")]

    def ends(self, topics: Sequence[str] = ()) -> dict[tuple[str, int], tuple[int, int]]:
        """(topic, queue) -> its min and max offset; of all topics when none is named."""
        return {
            (line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"])
            for line in self.ask("min-max", *topics)
        }

    def messages(self, topics: Sequence[str] = ()) -> list[Line]:
        """Every message of every queue from min to max by pulling; of all topics, system topics too, when
        none is named.
        """
        return self.ask("consume-all", *topics)

    def matching(self, topic: str, condition: str) -> list[Line]:
        """What the broker delivers for an SQL92 condition, with enablePropertyFilter=true."""
        return self.ask("consume-where", topic, condition)

    def by_key(
        self, topic: str, key: str, *, max_count: int = 64, begin: int = 0, end: int = (1 << 63) - 1
    ) -> list[Line]:
        return self.ask("query-key", topic, key, max_count, begin, end)

    def by_unique_key(self, topic: str, unique_key: str) -> list[Line]:
        """As the client asks for a message id: from the time in the id on."""
        return self.ask("query-id", topic, unique_key)

    def by_physical_offset(self, topic: str, physical_offset: int) -> Line:
        (line,) = self.ask("view-message", topic, physical_offset)
        return line

    def offset_at(self, topic: str, queue_id: int, timestamp_ms: int, boundary: str) -> int:
        """`boundary`: LOWER or UPPER, or - with 4.9, which has none."""
        (line,) = self.ask("search-offset", topic, queue_id, timestamp_ms, boundary)
        return int(line["offset"])

    def send(self, topic: str, count: int, **options: object) -> list[Line]:
        """What the broker acknowledged. Options: seed, shards (hash by sharding key), delay (level), pause
        (ms between two).
        """
        return self.ask("send", topic, count, *(f"{name}={value}" for name, value in options.items()))

    def group_offsets(self, group: str, *topics: str) -> dict[tuple[str, int], int]:
        """(topic, queue) -> the next offset the group will read, -1 where there is none."""
        return {
            (line["topic"], line["queueId"]): line["offset"]
            for line in self.ask("consumer-offsets", group, *topics)
        }

    def push_consume(
        self, group: str, topic: str, places: Iterable[tuple[int, int]], *, seconds_max: int = 60
    ) -> list[Line]:
        """What a push consumer of that group gets, each message once; its offsets are committed then.

        It ends when the messages at all `places`, the queues and offsets in them, have come, and then none
        for 2 s; after `seconds_max` with what has come.
        """
        return self.ask(
            "push-consume",
            group,
            topic,
            seconds_max,
            *(f"{queue_id}:{offset}" for queue_id, offset in places),
            seconds_max=seconds_max + _ANSWER_SECONDS_MAX,
        )
