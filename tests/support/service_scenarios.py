"""What `tests/support/failing_service.py` kills: each service with a store to work on.

A new scenario is a new case of `tests/rmq_spark/broker/services/test_crash.py`. `rmq_spark` is imported
inside the functions: a scenario imports the services that it runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from store_format.metadata.read import BrokerConf
from store_format.metadata.timer import TimerLog, TimerWheel
from store_format.opened.store import Opened
from tests.support import timer_broker
from tests.support.halves import BORN_MS, add_halves, half_store, op_message, states
from tests.support.order_scenario import make_ordered_pop, ordered_pop_seen, run_ordered_pop
from tests.support.recover_scenarios import files_seen, make_crashed, make_lost, run_recover
from tests.support.staged import make_store, messages_of, numbered
from tests.support.waiting import BEGIN_MS, append, delayed, recall_of, timed


def _nothing(root: str) -> object:
    return None


@dataclass(frozen=True)
class Scenario:
    """What a service does on a store.

    `make` makes the store at a path that does not exist. `run` is one turn, or several with clocks of their
    own; it runs once to the end, and again after each kill, and may be interrupted anywhere. `seen` is what
    must be equal beyond messages and state files, such as the bytes of a timer wheel. `topics` selects the
    topics whose messages must be equal, system topics included; leave one out only if a broker that crashes
    may store other records there. `lost` is what a broker never delivers if it takes over after a kill, once
    a writer has completed the commit. `every`: of the changes of a run, every so many is a kill, so that a
    test takes about 3 s; with --whole all are.
    """

    make: Callable[[Path], object]
    run: Callable[[str], object]
    seen: Callable[[str], object] = _nothing
    topics: Callable[[str], bool] = lambda topic: True
    lost: Callable[[str], object] | None = None
    every: int = 13


def _make_delayed(root: Path) -> None:
    make_store(root)
    append(root, delayed("T", 1, 0, 3))
    _run_schedule(str(root), BEGIN_MS + 1_000)
    append(
        root,
        [*delayed("T", 1, 3, 40, queues=2), *delayed("%RETRY%g", 2, 43, 3), *delayed("T", 4, 46, 2)],
        BEGIN_MS + 2_000,
    )


def _run_schedule(root: str, now_ms: int) -> None:
    from rmq_spark.services import run_once

    run_once(root, ["schedule"], now_ms, apply=True)


def _run_delayed(root: str) -> None:
    for seconds in (4, 8):  # level 1, then level 2; level 4 waits
        _run_schedule(root, BEGIN_MS + seconds * 1_000)


# ---- timer -------------------------------------------------------------------------------------------------

_SECOND, _HOUR = 1_000, 3_600_000


def _make_timers(root: Path) -> None:
    """Slots of one commit, a slot of several, recalls, late messages, one that is stored again."""
    make_store(root)
    append(root, timed("T", BEGIN_MS + 2 * _SECOND, 0, 3))
    _run_timer(str(root), BEGIN_MS)
    soon = timed("T", BEGIN_MS + 4 * _SECOND, 3, 30) + timed("T", BEGIN_MS + 2 * _SECOND, 33, 4)
    far = timed("T", BEGIN_MS + 52 * _HOUR, 37, 3)
    append(root, [*soon, *far, recall_of(soon[2]), recall_of(soon[31]), recall_of(far[0])], BEGIN_MS + 1)


def _run_timer(root: str, now_ms: int) -> None:
    """A turn with small limits and timerlog files. A clock never goes back behind what it has written."""
    from rmq_spark.services import run_once, timer
    from store_format.metadata.read import BrokerConf

    written = max(m.store_timestamp for m in messages_of(Path(root)))
    conf = BrokerConf(timer_log_file_size=1024)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timer, "TURN_MESSAGES_MAX", 12)
        patch.setattr(timer, "_PART_MESSAGES_MAX", 12)
        while run_once(root, ["timer"], max(now_ms, written), broker_conf=conf, apply=True)[
            "due"
        ].to_pylist() != [0]:
            pass


def _run_timers(root: str) -> None:
    for now_ms in (
        BEGIN_MS + 3 * _SECOND,
        BEGIN_MS + 8 * _SECOND,
        BEGIN_MS + 25 * _HOUR,
        BEGIN_MS + 53 * _HOUR,
    ):
        for _ in range(5):
            _run_timer(root, now_ms)


def _make_rolled(root: Path) -> None:
    """Messages of two roll windows in the wheel, recalls, and messages that are not in the wheel yet."""
    make_store(root)
    far = timed("T", BEGIN_MS + 24 * _SECOND, 0, 3) + timed("T", BEGIN_MS + 70 * _SECOND, 3, 2)
    append(root, [*far, recall_of(far[1])])
    _run_window(str(root), BEGIN_MS)
    append(root, [*timed("T", BEGIN_MS + 12 * _SECOND, 5, 2), recall_of(far[4])], BEGIN_MS + 1)


def _run_window(root: str, now_ms: int) -> None:
    from rmq_spark.services import run_once

    written = max(m.store_timestamp for m in messages_of(Path(root)))
    conf = BrokerConf(timer_log_file_size=1024, timer_roll_window_slots=20)
    run_once(root, ["timer"], max(now_ms, written), broker_conf=conf, apply=True)


def _run_windows(root: str) -> None:
    """A turn at the end of the first window, then late ones."""
    for seconds in (11, 31, 72, 73, 90):
        _run_window(root, BEGIN_MS + seconds * _SECOND)


def _lost_timers(root: str) -> object:
    return timer_broker.lost(Path(root))


def _timer_files(root: str) -> object:
    """The units of the log, and the slots of the wheel."""
    log = TimerLog.open(f"{root}/timerlog")
    wheel = TimerWheel.open(f"{root}/timerwheel")
    units = [unit for _, units in log.scan() for unit in units.tolist()]
    return units, None if wheel is None else wheel.slots().tolist()


# ---- several services in a turn -------------------------------------------------------------------------


def _make_both(root: Path) -> None:
    _make_delayed(root)
    append(root, timed("T", BEGIN_MS + 5 * _SECOND, 100, 6), BEGIN_MS + 2 * _SECOND, sync=False)


def _run_both(root: str) -> None:
    """After ASYNC commits; a clock never goes back behind what a turn has written."""
    from rmq_spark.services import run_once

    for seconds in (4, 8):
        written = max(m.store_timestamp for m in messages_of(Path(root)))
        run_once(root, ["schedule", "timer", "flush"], max(BEGIN_MS + seconds * _SECOND, written), apply=True)


# ---- clean and flush ---------------------------------------------------------------------------------------

_CLEANED_MS = BEGIN_MS + 80 * 3_600_000


def _make_aged(root: Path) -> None:
    """Commitlog files that were written 80 hours ago, and the last two that are young."""
    import os

    make_store(root)
    append(root, delayed("T", 18, 0, 400, queues=2))
    append(root, [*delayed("U", 18, 400, 100)], BEGIN_MS + 2_000)
    for file in sorted((root / "commitlog").iterdir())[:-2]:
        os.utime(file, ns=(0, BEGIN_MS * 1_000_000))


def _run_clean(root: str) -> None:
    from rmq_spark.services import clean

    settings = BrokerConf.of({"fileReservedTime": "72"}, "test")
    clean.plan(root, _CLEANED_MS, settings, is_manual=True, disk_percent=lambda path: 10).apply()


def _files(root: str) -> object:
    folders = ("commitlog", "consumequeue", "index")
    return sorted(str(path.relative_to(root)) for each in folders for path in Path(root, each).rglob("*"))


def _make_unflushed(root: Path) -> None:
    make_store(root)
    append(root, delayed("T", 18, 0, 40, queues=2), sync=False)


def _run_flush(root: str) -> None:
    from rmq_spark.services import run_once

    run_once(root, ["flush"], BEGIN_MS + 2_000, apply=True)


def _checkpoint(root: str) -> object:
    """The flushed positions, and that no `abort` is left."""
    return Path(root, "checkpoint").read_bytes()[:48].hex(), Path(root, "abort").exists()


# ---- retry -------------------------------------------------------------------------------------------------


def _make_failed(root: Path) -> None:
    """Messages that failed for the first time, and two that failed 16 times."""
    make_store(root)
    messages = [*numbered("T", 0, 8), *(replace(each, reconsume_times=16) for each in numbered("T", 8, 2))]
    append(root, messages)


def _places(root: str) -> list[tuple[str, int, int]]:
    from store_format import MessageStore

    queues = MessageStore.open(root).queues("T".__eq__)
    return [("T", queue.queue_id, offset) for queue in queues for offset in range(queue.max_offset)]


def _run_send_back(root: str) -> None:
    from rmq_spark.services import retry

    retry.send_back(root, "g", _places(root), key=("job", 1), now_ms=BEGIN_MS + 1_000)


def _make_dead(root: Path) -> None:
    from rmq_spark.services import retry

    _make_failed(root)
    retry.send_back(str(root), "g", _places(str(root)), delay_level=-1, now_ms=BEGIN_MS + 1_000)


def _run_resend(root: str) -> None:
    from rmq_spark.services import retry

    retry.resend(root, "g", where=retry.Where(limit=3)).apply(now_ms=BEGIN_MS + 2_000)
    retry.resend(root, "g").apply(now_ms=BEGIN_MS + 3_000)


def _resent(root: str) -> object:
    path = Path(root, ".rmqlog", "resent.json")
    return json.loads(path.read_bytes()) if path.exists() else None


_ANSWERS = {"E": "commit", "F": "rollback", "G": None, "H": None, "I": "commit", "K": "commit"}


def _make_halves(root: Path) -> None:
    """J and K were checked before, and J was decided under its first copy."""
    from rmq_spark.services import transaction

    half_store(root, list("JK"), born_ms=BORN_MS - 60_000)
    transaction.check(str(root), lambda half: None, BORN_MS - 50_000).apply()
    op_message(root, [0], BORN_MS - 40_000)
    add_halves(root, list("ABCDEFGHI"))


def _run_transactions(root: str) -> None:
    """Decisions by name, then two checks; what is unknown in the first is committed in the second."""
    from rmq_spark.services import transaction

    plan = transaction.decide(root, commit=["A", "C"], rollback=["B"], now_ms=BORN_MS + 1_000)
    plan.apply()
    transaction.decide(root, rollback=["D"], now_ms=BORN_MS + 2_000).apply()
    transaction.check(root, lambda half: _ANSWERS[str(half.msg_id)], BORN_MS + 10_000).apply()
    transaction.check(root, lambda half: "commit" if half.msg_id == "G" else None, BORN_MS + 50_000).apply()
    transaction.check(root, lambda half: None, BORN_MS + 51_000).apply()  # passes what is decided


def _transaction_states(root: str) -> object:
    return states(Path(root))


# ---- orderly -----------------------------------------------------------------------------------------------


def _make_ordered(root: Path) -> None:
    """Topic T, two queues of 6 messages, and a group that has begun to read them."""
    from rmq_spark.consume.group.directory import GroupState, QueueEntry, write_state
    from store_format.files.write import FileWrites
    from tests.support.orderly_rows import queue

    make_store(root)
    append(root, numbered("T", 0, 12, queues=2))
    directory = root / ".rmqlog" / "groups" / "g"
    directory.mkdir(parents=True)
    state = GroupState(1, queues={queue(number): QueueEntry(position=0) for number in range(2)})
    write_state(str(directory), state, FileWrites(sync=False))


def _run_ordered(root: str) -> None:
    """A micro-batch of all messages; three of them fail, and become dead letters at once."""
    from rmq_spark.broker.services.orderly import OrderlyGroup
    from rmq_spark.consume.orderly import OrderlyRun
    from tests.support.orderly_rows import handled

    options = {"path": root, "group": "g", "splitBy": "wholeQueue"}
    group = OrderlyGroup(options, 0, clock_ms=lambda: BEGIN_MS + 1_000)
    stops = group.stops()
    run = OrderlyRun(stops, 0)
    rows = [(number, offset) for number in range(2) for offset in range(6)]
    handled(run, rows, (0, 1), (0, 4), (1, 5))
    group.finish(run.reports(), stops)


def _stops(root: str) -> object:
    from rmq_spark.consume.group.directory import read_state

    queues = read_state(f"{root}/.rmqlog/groups/g").queues
    return {queue: (entry.position, entry.stop) for queue, entry in queues.items()}


# ---- pop ---------------------------------------------------------------------------------------------------


def _make_popped(root: Path) -> None:
    make_store(root)
    append(root, numbered("T", 0, 24, queues=2))


def _run_pop(root: str) -> None:
    """Pops everything. Every third message is not acknowledged in time; every ninth not the second time.

    Of those, the messages at odd offsets become dead letters.

    A run after a kill acknowledges what the run before has popped, as if the handles had survived.
    """
    from store_format.pop import log

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "_COMPACT_SIZE", 400)
        patch.setattr(log, "_COMPACT_FACTOR", 1)
        _pop_revive_and_bury(root)


def _pop_revive_and_bury(root: str) -> None:
    from rmq_spark.broker.pop.share import PopGroup, ShareOptions
    from rmq_spark.services import run_once
    from store_format import MessageStore
    from store_format.metadata.values import SubscriptionGroup

    seconds = [0]
    options = ShareOptions(init_mode="MIN", clock_ms=lambda: BEGIN_MS + seconds[0] * _SECOND)
    share = PopGroup.open(MessageStore.open(root), "g", "T", options)
    share.begin([(0, 0), (0, 1)])
    _pop_all(share, 0, acknowledged=lambda offset: offset % 3 != 0)
    seconds[0] = 61
    assert share.revive().messages in (0, 8)
    share.begin([(1, 0)])
    _pop_all(share, 1, acknowledged=lambda offset: offset % 3 != 0, stop=8)
    run_once(root, ["revive"], BEGIN_MS + 122 * _SECOND, apply=True)
    seconds[0] = 122
    _pop_all(share, 1, acknowledged=lambda offset: offset % 2 == 0)
    share.bury(SubscriptionGroup("g"), share.run(_not_acknowledged))
    share.close()


def _not_acknowledged(state: Any) -> list[tuple[Any, int]]:
    return [
        (point, position)
        for point in state.check_points()
        for position, offset in enumerate(point.offsets)
        if offset in set(point.unacked())
    ]


def _pop_all(share: Any, flag: int, acknowledged: Callable[[int], bool], stop: int = 1 << 30) -> None:
    """Hands out the queues with this flag in threes up to `stop`, acknowledges, and keeps the offset file."""
    from store_format.pop.state import PopState

    queues = share.store.snapshot().queues
    ends = {
        (flag, queue_id): min(each.max_offset, stop)
        for (topic, queue_id), each in queues.items()
        if topic == share.topic_of(flag)
    }

    def pop(state: PopState) -> bool:
        for queue, end in ends.items():
            start = state.queues[queue].next_offset
            if start < end:
                offsets = range(start, min(start + 3, end))
                state.hand_out(*queue, offsets, offsets.stop, share.options.clock_ms(), 60_000)
                return True
        return False

    def acknowledge(state: PopState) -> None:
        for point in list(state.check_points()):
            if point.flag == flag:
                state.ack(point.key, [n for n, each in enumerate(point.offsets) if acknowledged(each)])

    share.run(acknowledge)
    while share.run(pop):
        share.run(acknowledge)
        share.keep()


def _popped(root: str) -> object:
    """What is in flight, and whether the last consumer has closed the log."""
    from store_format.pop.log import in_flight_directory, read_in_flight

    state = read_in_flight(in_flight_directory(Opened(root), "g", "T"))
    return None if state is None else (state.in_flight, state.is_closed, state.reviving)


# ---- pop, from a broker and back ---------------------------------------------------------------------------

_BROKER_GONE_MS = 1_795_244_400_000  # the times of some messages in flight have passed, of others not


def _make_broker_popped(root: Path) -> None:
    from store_format.bookkeeping.settings import StoreSettings
    from tests.support import goldens
    from tests.support.staged import settings_from

    goldens.unpack("pop-5.5.0", root)
    path = Path(StoreSettings.path(Opened(str(root))))  # a torn index file does not prove its sizes
    path.parent.mkdir()
    path.write_bytes(settings_from(goldens.config("pop-5.5.0")).to_json())


def _run_hand_over(root: str) -> None:
    """Takes over what a broker has in flight, pops and acknowledges some, and hands all over."""
    from rmq_spark.broker.pop.share import PopGroup, ShareOptions
    from store_format.pop.state import PopState
    from store_format.read.store import Store

    options = ShareOptions(clock_ms=lambda: _BROKER_GONE_MS + 7_000, init_mode="MIN")
    share = PopGroup.open(Store.open(root), "CG_pop", "PopWork", options)

    def work(state: PopState) -> None:
        while state.queues[0, 1].next_offset < 29:
            start = state.queues[0, 1].next_offset
            state.hand_out(0, 1, range(start, start + 3), start + 3, _BROKER_GONE_MS, 10_000)
        for point in list(state.check_points()):
            state.ack(point.key, [n for n, each in enumerate(point.offsets) if each % 3 == 0])

    share.run(work)
    share.close()


def _handed_over(root: str) -> object:
    """What the broker's records have in flight, the state of the log, and the slots of the wheel."""
    from store_format.pop.broker_in_flight import read_broker_in_flight
    from store_format.pop.log import in_flight_directory, read_in_flight
    from store_format.read.store import Store

    found = [(each.record, each.revive_queue_id) for each in read_broker_in_flight(Store.open(root))]
    state = read_in_flight(in_flight_directory(Opened(root), "CG_pop", "PopWork"))
    units = [unit for _, units in TimerLog.open(f"{root}/timerlog").scan() for unit in units.tolist()]
    return found, None if state is None else (state.in_flight, state.is_closed), units


SCENARIOS: dict[str, Scenario] = {
    "hand over": Scenario(_make_broker_popped, _run_hand_over, _handed_over, every=20),
    "pop": Scenario(_make_popped, _run_pop, _popped, every=67),
    "pop in order": Scenario(make_ordered_pop, run_ordered_pop, ordered_pop_seen, every=67),
    "orderly": Scenario(_make_ordered, _run_ordered, _stops, every=23),
    "recover a clean store": Scenario(make_lost, run_recover, files_seen, every=29),
    "recover after a crash": Scenario(make_crashed, run_recover, files_seen, every=19),
    "clean": Scenario(_make_aged, _run_clean, _files, every=7),
    "flush": Scenario(_make_unflushed, _run_flush, _checkpoint, every=4),
    "sendBack": Scenario(_make_failed, _run_send_back, every=17),
    "resend": Scenario(_make_dead, _run_resend, _resent, every=29),
    "schedule": Scenario(_make_delayed, _run_delayed, every=29),
    "transaction": Scenario(_make_halves, _run_transactions, _transaction_states, every=55),
    "schedule, timer, flush": Scenario(_make_both, _run_both, every=47),
    "timer": Scenario(_make_timers, _run_timers, _timer_files, lost=_lost_timers, every=142),
    "timer, longer than a window": Scenario(
        _make_rolled, _run_windows, _timer_files, lost=_lost_timers, every=58
    ),
}
