"""What the services cost: a turn without a due message, and how late delayed messages are delivered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.rounds import Figure
from rmq_spark.broker import chosen_services
from rmq_spark.broker.services.turn import TurnReport, now_of, take_turn
from rmq_spark.services import Services
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.create_store import StoreDirectory
from store_format.commit.options import CommitOptions
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.read import read_delay_offsets
from store_format.names import DELAY, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, UNIQ_KEY
from store_format.opened.store import Opened

_BATCH = 100_000  # messages of a commit
_LEVELS = (14, 15, 16, 17, 18)  # 10 minutes and more: nothing is due while the turns are measured
_LATENESS_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Turns:
    """A turn in which nothing is due: so many messages wait, milliseconds of a turn."""

    pending: int
    services: str
    milliseconds: Figure
    milliseconds_max: float


@dataclass(frozen=True, slots=True)
class Lateness:
    """From the delivery time until the copy can be read, in ms, for messages that came in `commits`."""

    messages: int
    commits: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def measure_turns(directory: Path, pending: int, rounds: int) -> list[Turns]:
    """Turns of `schedule` alone, and of all services that need not be named."""
    root = str(directory / "pending")
    _create(root)
    for first in range(0, pending, _BATCH):
        _park(root, first, min(_BATCH, pending - first), _LEVELS)
    found = []
    for only in (["schedule"], None):
        services = chosen_services(only)
        seconds = []
        for _ in range(4 * rounds):
            began = time.perf_counter()
            take_turn(root, services, now_of(root, None, None))
            seconds.append(time.perf_counter() - began)
        times = [1000 * each for each in seconds[1:]]  # the first one imports, and creates the counters
        name = ", ".join(each.name for each in services)
        found.append(Turns(pending, name, Figure.of(times), max(times)))
    return found


def measure_lateness(directory: Path, messages: int, commits: int) -> Lateness:
    """The loop beside a writer: messages of level 1 (1 s), in so many commits during about a second."""
    root = str(directory / f"late-{commits}")
    _create(root)
    ends: list[tuple[float, int]] = []  # (when a turn ended, in ms; how far level 1 was delivered)

    def note(reports: list[TurnReport]) -> None:
        ends.append((time.time() * 1000, (read_delay_offsets(Opened(root)) or {}).get(1, 0)))

    with Services(root, only=["schedule"], on_turn=note, apply=True):
        for i in range(commits):
            began = time.monotonic()
            _park(root, i * (messages // commits), messages // commits, (1,))
            time.sleep(max(0.0, 1 / commits - (time.monotonic() - began)))
        stop = time.monotonic() + _LATENESS_WAIT_SECONDS
        while time.monotonic() < stop and (not ends or ends[-1][1] < messages // commits * commits):
            time.sleep(0.02)
    late = _lateness(root, ends)
    p50, p99 = np.percentile(late, [50, 99]).tolist()
    return Lateness(len(late), commits, p50, p99, float(late.max()))


def _lateness(root: str, ends: list[tuple[float, int]]) -> NDArray[np.float64]:
    queue = MessageStore.open(root).queue(SCHEDULE_TOPIC, 0)
    _, units = queue.piece().read()
    due = units["tags_code"].astype(np.int64)
    late = np.full(len(due), np.inf)
    before = 0
    for ended, offset in ends:
        late[before:offset] = ended - due[before:offset]
        before = max(before, offset)
    return late


def _create(root: str) -> None:
    StoreDirectory(root).create(StoreSettings("broker-a"), timestamp=time.time_ns() // 1_000_000)


def _park(root: str, first: int, count: int, levels: tuple[int, ...]) -> None:
    """Appends `count` messages, each with the next of the levels."""
    number = np.arange(first, first + count)
    level = np.array(levels)[number % len(levels)]
    properties = encode_property_columns(
        count,
        {
            UNIQ_KEY: pa.array(np.char.mod("%032d", number)),
            DELAY: pa.array(level.astype(str)),
            REAL_TOPIC: "Orders",
            REAL_QID: pa.array((number % 4).astype(str)),
        },
    )
    columns = MessageColumns(
        topic=SCHEDULE_TOPIC,
        body=pa.array([bytes(100)] * count, pa.binary()),
        properties=properties,
        queue_id=level - 1,
        born_timestamp=time.time_ns() // 1_000_000,
    )
    options = CommitOptions(new_topics={SCHEDULE_TOPIC: 18, "Orders": 4}, lock_timeout=60.0)
    MessageStore.open(root).append(columns, options=options)
