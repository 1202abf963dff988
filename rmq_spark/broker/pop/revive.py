"""Revive: messages that nobody acknowledged in time are stored again in the group's pop retry topic.

PopReviveService does so once for each check point (spec consumption.md 11.6). Here a revive is written in
three steps, so that a kill between two of them neither loses a message nor stores one twice:

1. The in-flight log notes the number of the revive and its messages. Nobody acknowledges them from then on.
2. One commit appends the copies, and notes the number and the messages' fingerprint in the ledger.
3. The in-flight log notes that the revive is done: the messages are no longer in flight.

Whoever comes next completes a revive that was broken off: step 3 if the ledger has the commit, else the
messages are in flight as before. All three steps are done under the store's lock.

Consumers that pop revive messages themselves. The service `revive` does it for groups whose consumers were
all killed, so that the messages wait in the retry topic, as with a broker. What the last consumer handed over
when it closed is revived by the next consumer, or by a broker.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.broker.services.service import Now, PartsFailedError
from rmq_spark.produce.send_back import refused_copies, revived
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.session import WriteSession
from store_format.commitlog.log import CommitLog
from store_format.display.columns import INT, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.message.encode import StoredMessages, join_columns, stored_messages
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets_held
from store_format.metadata.read import BrokerConf, read_subscription_groups, read_topics
from store_format.names import QueueKey
from store_format.pop.log import (
    InFlightLog,
    InFlightReader,
    PopName,
    forget_deleted,
    in_flight_logs,
    queue_ranges,
)
from store_format.pop.records import BegunRevive, PointKey
from store_format.pop.state import PopQueue, PopState
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_units, units_at

_log = logging.getLogger(__name__)

_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]

BYTES_MAX = 32 << 20  # about the bytes of the messages of one revive
_WAIT_MIN_MS, _WAIT_MAX_MS = 10_000, 7_200_000  # PopReviveService.ckRewriteIntervalsInSeconds

_MESSAGES_MAX = 10_000  # of one revive

_COLUMNS = (
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic of the message; a message that came again is in the retry topic."),
    ViewColumn("queueId", INT, "The queue of the message."),
    ViewColumn("queueOffset", LONG, "Its offset."),
    ViewColumn("popTimestamp", TIME, "When a consumer got the message."),
    ViewColumn("dueTimestamp", TIME, "When its invisible time was over."),
)


# ---- what is due -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _DueCheckPoint:
    """The due messages of one check point: the bits of `all_offsets` that are set in `bits`."""

    key: PointKey
    visible_at: int
    bits: int
    all_offsets: Sequence[int]

    @property
    def count(self) -> int:
        return self.bits.bit_count()

    @property
    def positions(self) -> _Ints:
        """The positions of the messages in the check point, ascending."""
        return positions_of(self.bits)

    @property
    def offsets(self) -> _Ints:
        """The queue offsets of the messages, ascending."""
        every = self.all_offsets
        if isinstance(every, range):
            return self.positions + every.start
        offsets: _Ints = np.array(every, np.int64)[self.positions]
        return offsets


def first_due(state: PopState, now_ms: int, messages_max: int = _MESSAGES_MAX) -> list[_DueCheckPoint]:
    """The messages of one revive, by check point, the oldest first. Called under the lock of the log."""
    found: list[_DueCheckPoint] = []
    for point in state.due(now_ms):
        bits = point.whole & ~point.acked
        if point.left > messages_max:
            bits = bits_of(positions_of(bits)[:messages_max])
        found.append(_DueCheckPoint(point.key, point.visible_at, bits, point.offsets))
        messages_max -= found[-1].count
        if messages_max <= 0:
            break
    return found


def positions_of(bits: int) -> _Ints:
    """The positions of the bits that are set, ascending."""
    data = np.frombuffer(bits.to_bytes(bits.bit_length() // 8 + 1, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))


def bits_of(positions: _Ints) -> int:
    mask = np.zeros(int(positions.max(initial=-1)) + 1, np.uint8)
    mask[positions] = 1
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


@dataclass(frozen=True, slots=True)
class _DueMessages:
    """The due messages as arrays: the check point `keys[point]`, the position in it, the queue offset."""

    keys: list[PointKey]
    point: _Ints
    position: _Ints
    offset: _Ints

    @staticmethod
    def of(due: list[_DueCheckPoint]) -> _DueMessages:
        return _DueMessages(
            [each.key for each in due],
            np.repeat(np.arange(len(due)), [each.count for each in due]),
            np.concatenate([each.positions for each in due]),
            np.concatenate([each.offsets for each in due]),
        )

    def first(self, count: int) -> _DueMessages:
        return _DueMessages(self.keys, self.point[:count], self.position[:count], self.offset[:count])

    def slices(self) -> Iterator[tuple[PointKey, slice]]:
        """The rows of each check point."""
        bounds = np.searchsorted(self.point, np.arange(len(self.keys) + 1)).tolist()
        return (
            (key, slice(start, stop)) for key, (start, stop) in zip(self.keys, pairwise(bounds), strict=True)
        )

    def by_queue(self) -> dict[PopQueue, _Ints]:
        """The rows of each queue."""
        queues = list(dict.fromkeys(key[:2] for key in self.keys))
        of_point = np.array([queues.index(key[:2]) for key in self.keys], np.int64)[self.point]
        return {queue: np.flatnonzero(of_point == number) for number, queue in enumerate(queues)}

    def bits(self, chosen: _Flags) -> dict[PointKey, int]:
        """The bits of the chosen rows, by check point."""
        found = {key: bits_of(self.position[rows][chosen[rows]]) for key, rows in self.slices()}
        return {key: bits for key, bits in found.items() if bits}

    def marked(self, bits: Mapping[PointKey, int]) -> _Flags:
        """The rows whose bits are set."""
        marked = np.zeros(len(self.point), bool)
        for key, rows in self.slices():
            if key in bits:
                marked[rows] = np.isin(self.position[rows], positions_of(bits[key]))
        return marked


# ---- a revive ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReviveCounts:
    """What a revive has done, in messages.

    `copies` were stored again. `gone` no longer exist. `postponed` are in damaged queues and are tried again
    later. `again` cannot be stored again, and are delivered again from their own place.
    """

    copies: int = 0
    gone: int = 0
    postponed: int = 0
    again: int = 0

    @property
    def messages(self) -> int:
        return self.copies + self.gone + self.postponed + self.again


def revive_due(name: PopName, log: InFlightLog, session: WriteSession, now_ms: int) -> ReviveCounts:
    """Stores the messages again whose invisible time has passed: `_MESSAGES_MAX` of them, or fewer.

    A message that is damaged or that cannot be stored is delivered again from its own place from now on. A
    message whose queue is damaged is tried again later. A warning says so; neither stops the others.
    """
    finish_revive(name, log, session)
    if not log.run(lambda state: first_due(state, now_ms)):
        return ReviveCounts()
    store = session.store()
    forget_deleted(name, log, queue_ranges(name, store))
    due = log.run(lambda state: first_due(state, now_ms))
    if not due:
        return ReviveCounts()
    why_gone = _why_gone(name, store, broker_conf_of(name.opened, session.options.conf))
    rows = _DueMessages.of(due)
    to_revive = _MessagesToRevive.none(rows) if why_gone else _read(name, session, store, rows)
    rows = to_revive.rows
    postponed, again = log.run(lambda state: _pass_over(state, to_revive, now_ms))
    wanted = rows.bits(~(to_revive.is_later | to_revive.is_again))
    revive = log.run(lambda state: _begin(state, wanted, now_ms))
    if revive is None:
        return ReviveCounts(postponed=postponed, again=again)
    begun = rows.marked(revive.bits)
    copies = np.flatnonzero(begun & (to_revive.place >= 0))
    if len(copies):
        keys = [rows.keys[each] for each in rows.point[copies].tolist()]
        _append(name, log, session, to_revive.messages.take(to_revive.place[copies]), keys, revive)
    log.run(lambda state: state.end_revive(revive.number, is_done=True))
    gone = int(begun.sum()) - len(copies)
    if gone:
        _log.warning(
            "%s: group %s, topic %s: %d messages that nobody acknowledged are not delivered again: %s",
            name.opened.path, name.group, shown(name.topic), gone, why_gone or "the store no longer has them",
        )  # fmt: skip
    return ReviveCounts(len(copies), gone, postponed, again)


def finish_revive(name: PopName, log: InFlightLog, session: WriteSession) -> None:
    """Completes a revive that was broken off, or takes it back if its copies were not committed."""
    revive = log.run(lambda state: state.reviving)
    if revive is None:
        return
    turn = revive_turn(name, revive)
    entry = session.ledger().keys.get(turn.key_id)
    is_done = (
        entry is not None
        and (entry.number, entry.began) == (turn.number, turn.began)
        and entry.damage(session.store().log) is None
    )
    log.run(lambda state: state.end_revive(revive.number, is_done=is_done))


def revive_turn(name: PopName, revive: BegunRevive) -> ServiceTurn:
    """The turn of a revive. The fingerprint tells it from one of the same number of an older, removed log."""
    text = json.dumps(sorted([*key, hex(bits)] for key, bits in revive.bits.items()))
    return ServiceTurn(name.part, revive.number, int.from_bytes(sha256(text.encode()).digest()[:6]))


# ---- reading -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _MessagesToRevive:
    """The messages of the rows: `place` is that in `messages`, -1 for a message that no longer exists.

    `is_later` marks messages of damaged queues, which are tried again later. `is_again` marks messages that
    are damaged or cannot be stored: they are delivered again from their own place.
    """

    rows: _DueMessages
    messages: StoredMessages
    place: _Ints
    is_later: _Flags
    is_again: _Flags

    @staticmethod
    def none(rows: _DueMessages) -> _MessagesToRevive:
        count = len(rows.point)
        no, also_no = np.zeros((2, count), bool)
        return _MessagesToRevive(rows, stored_messages([]), np.full(count, -1), no, also_no)


def _why_gone(name: PopName, store: Store, conf: BrokerConf) -> str:
    """Why a broker drops all the messages (PopReviveService.mergeAndRevive); "" if it does not."""
    topics, groups = read_topics(store.opened), read_subscription_groups(store.opened)
    if topics is not None and name.topic not in topics:
        return "the topic was deleted (topics.json)"
    if not conf.auto_create_subscription_group and name.group not in (groups or {}):
        return "the group was deleted (subscriptionGroup.json), and autoCreateSubscriptionGroup=false"
    return ""


def _read(name: PopName, session: WriteSession, store: Store, rows: _DueMessages) -> _MessagesToRevive:
    """Reads the messages of the rows, about `BYTES_MAX` of them."""
    taken = store.snapshot(name.flags().__contains__)
    units: dict[PopQueue, tuple[_Ints, NDArray[np.void]]] = {}
    sizes = np.zeros(len(rows.point), np.int64)
    for queue, of_queue in rows.by_queue().items():
        key = name.topic_of(queue[0]), queue[1]
        if key not in taken.damaged and key in taken.queues:
            units[queue] = offsets, entries = units_at(taken.queues[key], np.unique(rows.offset[of_queue]))
            at, is_there = _looked_up(offsets, rows.offset[of_queue])
            sizes[of_queue[is_there]] = entries["size"][at[is_there]]
    count = max(1, int(np.searchsorted(np.cumsum(sizes), BYTES_MAX, side="right")))
    to_revive = _MessagesToRevive.none(rows.first(count))
    parts: list[StoredMessages] = []
    for queue, of_queue in to_revive.rows.by_queue().items():
        key = name.topic_of(queue[0]), queue[1]
        if key in taken.damaged and len(of_queue):
            to_revive.is_later[of_queue] = True
            _log.warning(
                "%s: group %s: %d messages of %s-%d cannot be stored again for now, the first is offset %d: "
                "%s",
                name.opened.path, name.group, len(of_queue), shown(key[0]), key[1],
                to_revive.rows.offset[of_queue].min(), taken.damaged[key],
            )  # fmt: skip
        elif queue in units and len(of_queue):
            _read_queue(name, session, (taken.log, key, *units[queue]), to_revive, of_queue, parts)
    joined = StoredMessages(join_columns([each.messages for each in parts])) if parts else to_revive.messages
    return replace(to_revive, messages=joined)


def _read_queue(
    name: PopName,
    session: WriteSession,
    queue: tuple[CommitLog, QueueKey, _Ints, NDArray[np.void]],
    to_revive: _MessagesToRevive,
    of_queue: _Ints,
    parts: list[StoredMessages],
) -> None:
    """Reads the messages of one queue, adds them to `parts`, and notes their places in `to_revive`."""
    log, key, offsets, units = queue
    wanted = np.isin(offsets, to_revive.rows.offset[of_queue])
    messages, offsets, damaged = read_stored_units(log, key, offsets[wanted], units[wanted])
    refused: dict[int, object] = {
        int(offset): "it is a batch, or in light queues too (INNER_NUM, INNER_MULTI_DISPATCH)"
        for offset in offsets[refused_copies(messages)]
    }
    copies = StoredMessages(revived(messages, name.group, 0).messages)
    refused |= {int(offsets[place]): error for place, error in session.refused(copies).items()}
    refused |= damaged
    if refused:
        _log.warning(
            "%s: group %s: %d messages of %s-%d cannot be stored again, and are delivered again from their "
            "own place until a consumer acknowledges them; the first is offset %d: %s",
            name.opened.path, name.group, len(refused), shown(key[0]), key[1], *min(refused.items()),
        )  # fmt: skip
    at, is_there = _looked_up(offsets, to_revive.rows.offset[of_queue])
    to_revive.place[of_queue[is_there]] = at[is_there] + sum(map(len, parts))
    to_revive.is_again[of_queue] = np.isin(to_revive.rows.offset[of_queue], list(refused))
    parts.append(messages)


def _looked_up(ascending: _Ints, wanted: _Ints) -> tuple[_Ints, _Flags]:
    """(the places of the wanted numbers among ascending ones, whether they are there)."""
    places = np.searchsorted(ascending, wanted)
    is_there = places < len(ascending)
    is_there[is_there] = ascending[places[is_there]] == wanted[is_there]
    return places, is_there


# ---- changes -----------------------------------------------------------------------------------------------


def _pass_over(state: PopState, to_revive: _MessagesToRevive, now_ms: int) -> tuple[int, int]:
    """What is not stored now: (messages tried again later, messages delivered again from their own place).

    Messages are tried again after 10 s, then twice as late, up to 2 h. PopReviveService.rePutCK does the same
    with fixed steps.
    """
    rows, postponed, again = to_revive.rows, 0, 0
    for row in np.flatnonzero(to_revive.is_later | to_revive.is_again).tolist():
        key, position = rows.keys[rows.point[row]], int(rows.position[row])
        pop_time = key[3]
        if to_revive.is_later[row]:
            wait = min(max(now_ms - pop_time, _WAIT_MIN_MS), _WAIT_MAX_MS)
            changed = state.change_invisible(key, position, pop_time, now_ms + wait - pop_time)
            postponed += changed is not None
        else:
            again += state.deliver_again(key, position, pop_time, now_ms) is not None
    return postponed, again


def _begin(state: PopState, wanted: Mapping[PointKey, int], now_ms: int) -> BegunRevive | None:
    """Notes the revive of what is still due and not acknowledged; None if nothing is left."""
    points = {key: state.check_point(key) for key in wanted}
    left = {
        key: wanted[key] & ~point.acked
        for key, point in points.items()
        if point is not None and point.visible_at <= now_ms and wanted[key] & ~point.acked
    }
    return state.begin_revive(left) if left else None


def _append(
    name: PopName,
    log: InFlightLog,
    session: WriteSession,
    messages: StoredMessages,
    keys: Sequence[PointKey],
    revive: BegunRevive,
) -> None:
    conf = broker_conf_of(name.opened, session.options.conf)
    queue_nums = None
    if conf.use_separate_retry_queue:
        topics = read_topics(name.opened)
        queue_nums = topics[name.topic].write_queue_nums if topics and name.topic in topics else None
    suspended = log.run(lambda state: {each.key for each in state.check_points() if each.suspend})
    made = revived(
        messages,
        name.group,
        np.array([pop_time for *_, pop_time in keys], np.int64),
        keeps_times=np.array([key in suspended for key in keys], bool),
        queue_nums=queue_nums,
    )
    session.append(made.messages, turn=revive_turn(name, revive), new_topics=made.new_topics)
    _begin_offsets(name, log, session, made.new_topics)


def _begin_offsets(name: PopName, log: InFlightLog, session: WriteSession, topics: Mapping[str, int]) -> None:
    """The group starts at offset 0 of a new retry topic (PopReviveService.initPopRetryOffset)."""
    flags = name.flags()
    queues = {(flags[topic], number): topic for topic, count in topics.items() for number in range(count)}
    unknown = log.run(lambda state: queues.keys() - state.queues.keys())
    if not unknown:
        return
    known = read_group_offsets(name.opened, name.group)
    new = sorted(queue for queue in unknown if (queues[queue], queue[1]) not in known)

    def begin(state: PopState) -> None:
        for queue in new:
            if queue not in state.queues:
                state.set_offset(*queue, 0)
        state.note_mirrored(dict.fromkeys(new, 0))

    if new:
        log.run(begin)
        offsets = {(queues[queue], queue[1]): 0 for queue in new}
        write_group_offsets_held(
            name.opened, name.group, offsets, timestamp=session.options.clock(), files=session.files
        )


# ---- the service -------------------------------------------------------------------------------------------


class ReviveService:
    """Looks at all in-flight logs of a store; keeps its place in them between two turns."""

    name = "revive"

    def __init__(self) -> None:
        self._readers: dict[PopName, InFlightReader] = {}

    def plan(self, store: Store, ledger: Ledger, now: Now) -> _RevivePlan:
        """A log that cannot be read is one of the plan's `errors`; the others have their turn."""
        names = [PopName(store.opened, group, topic) for group, topic in in_flight_logs(store.opened)]
        for gone in self._readers.keys() - set(names):
            self._readers.pop(gone).close()
        logs, errors = [], []
        for name in names:
            reader = self._readers.setdefault(name, InFlightReader(name.directory))
            try:
                state = reader.look()
            except StoreError as error:
                errors.append(error)
                continue
            if state is not None:
                due = first_due(state, now.ms)
                logs.append(_Log(name, due, _next_after(state, due), state.reviving is not None))
        logs.sort(key=lambda each: each.due[0].visible_at if each.due else now.ms)
        return _RevivePlan(now, logs, errors)


def _next_after(state: PopState, due: list[_DueCheckPoint]) -> int | None:
    """When the next check point is visible that is not revived as a whole by then."""
    if not due:
        return state.next_visible
    revived = {each.key: each.count for each in due}
    return min(
        (
            each.visible_at
            for each in state.check_points()
            if not each.again and revived.get(each.key) != each.left
        ),
        default=None,
    )


@dataclass(frozen=True, slots=True)
class _Log:
    """One in-flight log: what is due of it, and when more is. `is_broken`: a revive was broken off."""

    name: PopName
    due: list[_DueCheckPoint]
    next_due: int | None
    is_broken: bool


@dataclass(frozen=True, slots=True)
class _RevivePlan:
    """What is due in each log, the oldest first; a turn ends after `_MESSAGES_MAX` messages."""

    now: Now
    logs: list[_Log]
    errors: list[StoreError]

    @property
    def due(self) -> int:
        return sum(due.count for each in self.logs for due in each.due)

    @property
    def changes(self) -> bool:
        return bool(self.errors) or any(each.due or each.is_broken for each in self.logs)

    @property
    def next_due(self) -> int | None:
        return _next_due(self.logs)

    @property
    def late_ms(self) -> int | None:
        oldest = min((each.due[0].visible_at for each in self.logs if each.due), default=None)
        return None if oldest is None else self.now.ms - oldest

    def table(self) -> pa.Table:
        """One row for each due message."""
        rows = [
            (
                log.name.group, log.name.topic_of(due.key[0]), due.key[1], offset,
                time_us(due.key[3]), time_us(due.visible_at),
            )
            for log in self.logs
            for due in log.due
            for offset in due.offsets.tolist()
        ]  # fmt: skip
        return pa.Table.from_batches([batch_of(_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        """Stores the due messages again, a commit for each log, and returns how many were stored.

        Raises PartsFailedError after all logs have had their turn.
        """
        done, seen, errors, going = 0, 0, list(self.errors), list[_Log]()
        for each in self.logs:
            if not (each.due or each.is_broken) or seen >= _MESSAGES_MAX:
                going.append(each)
                continue
            log = InFlightLog(each.name.directory, sync=session.options.sync)
            try:
                found = revive_due(each.name, log, session, self.now.ms)
                done += found.copies
                seen += found.messages
                going.append(each)
            except StoreError as error:
                errors.append(error)
            finally:
                log.close()
        if errors:
            raise PartsFailedError(done, _next_due(going), errors)
        return done


def _next_due(logs: Iterable[_Log]) -> int | None:
    return min((each.next_due for each in logs if each.next_due is not None), default=None)
