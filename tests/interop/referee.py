"""`python -m tests.interop.referee [--version 4.9.7] [--conf broker.conf] [--config] DIR…`: what a real
broker serves of a store, or holds of its configuration, as JSON. The directories are copied first.

`Referee` is one JVM for any number of stores: DefaultMessageStore loads each copy and dispatches to the end
of the commitlog, without threads and without waiting.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from zlib import crc32

from tests.interop.programs import Program, ProgramError

QueueKey = tuple[str, int]

TABLES = ("offsets", "topics", "groups", "delays")

_ANSWER_SECONDS_MAX = 60.0
_ASKED_MAX = 500  # each store leaves most of a megabyte in the JVM
_MAGIC = (0xDAA320A7 - (1 << 32), 0xDAA320AB - (1 << 32))
# Neither the store's age nor the machine's disk is a reason to delete files.
_SETTINGS = {
    "fileReservedTime": "1000000",
    "cleanFileForciblyEnable": "false",
    "haListenPort": "0",
    "timerWheelEnable": "false",
    "enableCompaction": "false",  # else a thread for each store
    "osPageCacheBusyTimeOutMills": "60000",
}


@dataclass(frozen=True)
class Pulled:
    """What a pull at a queue offset gets, and what the record claims."""

    at: int
    physical_offset: int
    size: int
    decodes: bool
    crc: bool
    claims: bool  # this topic, queue and offset
    # Its size, magic code and physical offset are those of its place: a client does not look at them.
    is_whole: bool
    body: tuple[int, int]  # CRC and length of the body as a client gets it
    uniq_key: str
    entry: tuple[int, int]  # physical offset and tags code of the queue's entry
    own: int  # the offset in the queue that the record says, -1 if it says another queue

    @property
    def is_served(self) -> bool:
        """Whether the broker serves a message here, and not damage."""
        return self.decodes and self.crc and self.claims


@dataclass(frozen=True)
class Served:
    """A queue after load and dispatch."""

    min_offset: int
    max_offset: int
    pulled: dict[int, Pulled]  # what is got at each offset; damage too
    expired: frozenset[int] = frozenset()  # offsets whose entries lead before the commitlog's begin

    @property
    def messages(self) -> dict[int, Pulled]:
        return {at: each for at, each in self.pulled.items() if each.is_served}


@dataclass(frozen=True)
class Verdict:
    """What a broker makes of a store. Its message store does not start if `failure` says something."""

    failure: str
    log: tuple[int, int]
    queues: dict[QueueKey, Served]
    topics: dict[str, tuple[int, int]] | None = None  # readQueueNums and perm; None: no broker starts

    @property
    def messages(self) -> dict[tuple[str, int, int], Pulled]:
        """(topic, queue id, queue offset) -> every message that is served."""
        return {
            (*queue, at): each
            for queue, served in self.queues.items()
            for at, each in served.messages.items()
        }

    @property
    def client(self) -> dict[tuple[str, int, int], Pulled]:
        """Those that a client gets."""
        return {
            (*queue, at): each
            for queue, served in self.client_queues.items()
            for at, each in served.messages.items()
        }

    @property
    def client_queues(self) -> dict[QueueKey, Served]:
        """The queues that clients read: of a topic that topics.json has, below its readQueueNums."""
        return {queue: served for queue, served in self.queues.items() if self._is_read(*queue)}

    def _is_read(self, topic: str, queue_id: int) -> bool:
        if self.topics is None:
            return False
        read_queues, perm = (1, 4) if topic.startswith("%LMQ%") else self.topics.get(topic, (0, 0))
        return queue_id < read_queues and bool(perm & 4)


class Referee:
    """The JVM. `place` takes its home and the copies. Use as a context manager."""

    def __init__(self, version: str, place: Path, *, loud: bool = False) -> None:
        self.version, self.place, self.loud = version, place, loud
        self._numbers, self._asked = itertools.count(), 0
        self.program = self._started()

    def _started(self) -> Program:
        directory = self.place / f"program-{next(self._numbers)}"
        return Program(self.version, "Referee", ["loud"] if self.loud else [], directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.program.close()

    def serve(self, root: Path, conf: dict[str, str] | None = None) -> Verdict:
        """What is served of a copy of the store."""
        with self._copy(root) as copy:
            return verdict_of(self._ask("serve", copy, self._conf(root, copy, conf)))

    def start(self, root: Path, conf: dict[str, str] | None = None) -> Verdict:
        """Starts a broker's store on the directory itself; `put`, `served` and `close` are for it."""
        return verdict_of(self._ask("open", root, self._conf(root, root, conf)))

    def put(self, topic: str, queue_id: int, body: str) -> int:
        """The queue offset that the open store gave to a new message."""
        answer = self._ask("put", topic, queue_id, body)
        assert answer.get("status") == "PUT_OK", answer
        return int(answer["queueOffset"])

    def served(self) -> Verdict:
        """What the open store serves."""
        return verdict_of(self._ask("again"))

    def close(self) -> None:
        """Shuts the open store down in order."""
        self._ask("close")

    def config(self, root: Path, what: str) -> Any:
        """One of TABLES as a broker holds it; None if the broker does not start."""
        with self._copy(root, "config") as copy:
            answer = self._ask(what, copy)
        return answer["table"] if answer.get("load") else None

    def _ask(self, *words: object) -> dict[str, Any]:
        self._asked += 1
        if self._asked > _ASKED_MAX and words[0] in ("serve", "open"):  # else a store may be open
            self.program.close()
            self.program, self._asked = self._started(), 0
        try:
            self.program.say(*words)
            return self.program.line(_ANSWER_SECONDS_MAX)
        except ProgramError as error:
            stack = subprocess.run(
                ["jstack", str(self.program.pid)], capture_output=True, text=True, check=False
            )
            threads = stack.stdout + stack.stderr
            self.program.kill()
            self.program = self._started()  # for the next store
            if "DefaultMessageStore.load(" in threads.partition('"main"')[2]:
                return {"failed": "DefaultMessageStore.load() does not return"}
            main = threads.partition('"main"')[2].partition("\n\n")[0] or threads[-500:]
            raise ProgramError(f"{words}: {error}\n{main}") from error

    @contextmanager
    def _copy(self, root: Path, part: str = "") -> Iterator[Path]:
        copy = self.place / "copy"
        try:
            if (root / part).exists():
                shutil.copytree(root / part, copy / part, symlinks=True)
            yield copy
        finally:
            shutil.rmtree(copy, ignore_errors=True)

    def _conf(self, root: Path, copy: Path, conf: dict[str, str] | None) -> Path:
        """The settings in a file: those that are given, else the store's own."""
        settings = _SETTINGS | (conf if conf is not None else settings_of(root))
        if "storePathCommitLog" in settings:
            settings["storePathCommitLog"] = settings["storePathCommitLog"].replace(str(root), str(copy))
        path = self.place / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


def settings_of(root: Path) -> dict[str, str]:
    """broker.conf of the store directory, else `.rmqlog/broker.conf`, else none."""
    for path in (root / "broker.conf", root / ".rmqlog/broker.conf"):
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if "=" in line and line[0] != "#"]
            return {key.strip(): value.strip() for key, value in (line.split("=", 1) for line in lines)}
    return {}


def verdict_of(answer: dict[str, Any]) -> Verdict:
    failure = str(answer.get("failed", ""))
    if answer.get("load") is False:
        failure = "DefaultMessageStore.load() answers false"
    if answer.get("behind"):
        failure = f"{answer['behind']} bytes of the commitlog are never dispatched: a broker does not start"
    log = tuple(answer.get("log", (0, 0)))
    queues = {
        (queue["topic"], queue["queueId"]): _served(queue, log[0]) for queue in answer.get("queues", ())
    }
    topics = answer.get("topics")
    return Verdict(
        failure,
        (log[0], log[1]),
        {} if failure else queues,
        None if topics is None else {name: (table[0], table[1]) for name, table in topics.items()},
    )


def _served(queue: dict[str, Any], log_begin: int) -> Served:
    messages = queue["messages"]
    return Served(
        queue["min"],
        queue["max"],
        {each["at"]: _pulled(queue["topic"], queue["queueId"], each) for each in messages if "size" in each},
        frozenset(each["at"] for each in messages if each["entry"] and each["entry"][0] < log_begin),
    )


def _pulled(topic: str, queue_id: int, each: dict[str, Any]) -> Pulled:
    return Pulled(
        each["at"],
        each["physicalOffset"],
        each["size"],
        each["decodes"],
        each.get("crc", False),
        each["decodes"] and _claims(topic, queue_id, each),
        each["storedSize"] == each["size"]
        and each["magic"] in _MAGIC
        and (not each["entry"] or each["entry"][0] == each["physicalOffset"]),
        (each.get("body", 0), each.get("bodyLength", 0)),
        each.get("UNIQ_KEY", ""),
        (entry[0], entry[1]) if (entry := each["entry"]) else (each["physicalOffset"], 0),
        each["queueOffset"] if (each.get("topic"), each.get("queueId")) == (topic, queue_id) else -1,
    )


def _claims(topic: str, queue_id: int, each: dict[str, Any]) -> bool:
    """Whether the record says that it is the message of this topic, queue and offset. A client counts the
    messages of a batch from queueOffset on, and the broker from INNER_BASE.
    """
    at = each["at"]
    if (each["topic"], each["queueId"]) == (topic, queue_id):
        is_one = int(each.get("INNER_BASE", each["queueOffset"])) == each["queueOffset"]
        return bool(
            is_one and each["queueOffset"] <= at < each["queueOffset"] + int(each.get("INNER_NUM", "1"))
        )
    names = each.get("INNER_MULTI_DISPATCH", "").split(",")
    offsets = each.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
    return (topic, str(at)) in zip(names, offsets, strict=False)


def body_of(body: bytes) -> tuple[int, int]:
    """A body as `Pulled.body` has it."""
    return crc32(body) & 0x7FFFFFFF, len(body)


def _shown(verdict: Verdict) -> dict[str, Any]:
    """For people: one text for each offset."""
    queues = {}
    for (topic, queue_id), served in sorted(verdict.queues.items()):
        lines = [
            f"{at} {each.uniq_key} physicalOffset {each.physical_offset} size {each.size}"
            + (
                ""
                if each.is_served
                else f" DAMAGE decodes={each.decodes} crc={each.crc} claims={each.claims}"
            )
            for at, each in served.pulled.items()
        ]
        queues[f"{topic}-{queue_id}"] = {"min": served.min_offset, "max": served.max_offset, "at": lines}
    return {"failure": verdict.failure, "log": verdict.log, "queues": queues}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.referee", description=__doc__)
    parser.add_argument("--version", default="5.5.0", choices=("5.5.0", "4.9.7"))
    parser.add_argument("--conf", type=Path, help="a broker.conf instead of the store's own")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="one setting")
    parser.add_argument("--config", action="store_true", help="the files of config/ instead of the messages")
    parser.add_argument("--log", action="store_true", help="what the store classes log, on standard error")
    parser.add_argument("directories", nargs="+", type=Path)
    options = parser.parse_args(words)
    shared = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with (
        tempfile.TemporaryDirectory(dir=shared) as place,
        Referee(options.version, Path(place), loud=options.log) as referee,
    ):
        for root in options.directories:
            root = root.absolute()
            if options.config:
                said = {
                    what: referee.config(root, what) for what in ("offsets", "topics", "groups", "delays")
                }
            else:
                conf = settings_of(root)
                if options.conf:
                    lines = [line for line in options.conf.read_text().splitlines() if "=" in line]
                    conf = dict(line.split("=", 1) for line in lines)
                conf |= dict(each.split("=", 1) for each in options.set)
                said = _shown(referee.serve(root, conf))
            print(json.dumps(said, indent=1, ensure_ascii=True))
        if options.log:
            print((Path(place) / "program-0/log").read_text(), file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
