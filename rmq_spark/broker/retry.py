"""Failed messages without a broker: sends them back for a retry, and stores dead letters again.

When a consumer fails, it sends the message back to its broker. The broker stores a copy for the group's retry
topic, and after too many retries for its dead letter topic. `send_back` does the same in a store whose broker
is stopped.

`resend` stores dead letters again, so that consumers get them once more. RocketMQ's dashboard hands a dead
letter directly to a running consumer. Without a broker the message is stored again instead, in its original
topic or in the group's retry topic. `.rmqlog/resent.json` notes which dead letters were stored again: their
physical offsets, each with the message id, because another message may lie there after a backup was restored.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_spark.broker.services.service import Tally, tallied
from rmq_spark.consume.consumer import check_group
from rmq_spark.produce.columns import Host
from rmq_spark.produce.send_back import resend as copies_of
from rmq_spark.write.send_back import SendBackSettings, StagedBack, kept_group, stage_send_back
from store_format.bookkeeping.identity import StagedFile
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.commit.staging import StagingWriter
from store_format.commit.unsupported import StoreRefusals
from store_format.commitlog.log import CommitLog
from store_format.display.columns import BOOL, BROKER, INT, LONG, NAMES, TEXT, TIME, ViewColumn, batch_of
from store_format.errors import (
    CorruptStoreError,
    IllegalMessageError,
    OptionError,
    StoreError,
    StoreWriteError,
)
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf, read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import (
    DLQ_PREFIX,
    RESENT_FROM,
    UNIQ_KEY,
    did_you_mean,
    is_retry_topic,
    is_system_topic,
    retry_topic,
)
from store_format.opened.store import OWN_DIRECTORY
from store_format.read.store import Store
from store_format.read.stored_messages import FoundPlaces, find_physical, find_places, read_stored
from store_format.survey.gone import LostLog
from store_format.views.dead_letters import dead_letters

__all__ = ["Place", "ResendPlan", "ResendResult", "SendBackResult", "Where", "resend", "send_back"]

Place = tuple[str, int, int] | int

_RESEND_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The group that gave up the message."),
    ViewColumn("originTopic", TEXT, "The topic to which the producer sent the message."),
    ViewColumn("targetTopic", TEXT, "The topic in which the message is stored again."),
    ViewColumn("resent", BOOL, "Whether the dead letter is stored again already; `apply` leaves it out."),
    ViewColumn("msgId", TEXT, "The message id that clients show."),
    ViewColumn("tags", TEXT, "The tags."),
    ViewColumn("keys", NAMES, "The keys."),
    ViewColumn("storeTimestamp", TIME, "When the message became a dead letter."),
    ViewColumn("queueId", INT, "The queue of the dead letter topic."),
    ViewColumn("queueOffset", LONG, "The offset in that queue."),
    ViewColumn("physicalOffset", LONG, "The physical offset in the commitlog."),
)

_PHYSICAL_DIGITS = 16  # the last hex digits of an offset message id
_Row = Mapping[str, Any]  # Any: values of the view deadLetters


@dataclass(frozen=True, slots=True)
class SendBackResult:
    """The number of messages that were stored as retries (`retried`) and as dead letters (`dead_letters`).

    `committed` is False if the key was committed before; then nothing was written.
    """

    committed: bool
    retried: int = 0
    dead_letters: int = 0


def send_back(
    store: Store | str,
    group: str,
    places: Iterable[Place],
    *,
    delay_level: int | Sequence[int] = 0,
    max_reconsume_times: int | None = None,
    key: tuple[str, int] | None = None,
    now_ms: int | None = None,
    store_host: Host | None = None,
    broker_conf: str | BrokerConf | None = None,
    lock_timeout: float = 10.0,
    disk_limit: int | None = None,
) -> SendBackResult:
    """Sends failed messages of `group` back, so that the group consumes them again later. Writes all or none.

    `places` name messages of the store: (topic as stored, queue id, queue offset), or physical offsets. A
    message that is named twice is sent back once. `delay_level` is 0 for RocketMQ's own delay (level 3 +
    reconsumeTimes), a level from 1, or negative for a dead letter at once; give one value for all places, or
    one for each. After `max_reconsume_times` retries (default: retryMaxTimes of the group, 16), a message
    becomes a dead letter. -1, the default of RocketMQ's consumers, is 16, whatever the group's retryMaxTimes.
    With a `key` (id, number), a second call with this number or a lower number writes nothing. `now_ms` is
    the clock (ms since 1970), `lock_timeout` the seconds to wait for the store's lock. `store_host` is the
    (address, port) of the broker (default: the host of each message). `broker_conf` has the broker's settings
    (messageDelayLevel), as for `run_once`. `disk_limit` is the percentage of a disk above which nothing is
    written (default: diskSpaceWarningLevelRatio, 90). The service `schedule` delivers the retries when they
    are due.

    Raises OffsetOutOfRangeError for a place without a message, StoreInUseError while a broker has the store,
    OptionError for a group that keeps no retries and for a maximum below -1, IllegalMessageError for a
    message that a broker refuses, and StoreWriteError for a disk that is too full.

    Example::

        retry.send_back("/data/store", "CG_orders", [("Orders", 0, 17)], key=("fix-4711", 1))
    """
    store = Store.open(store) if isinstance(store, str) else store
    opened = store.opened
    if key is not None:
        key = ServiceTurn.user_key(key)
    StoreRefusals(opened).refuse_store()
    LostLog.refuse(opened, store.log)
    conf = broker_conf_of(opened, broker_conf)
    settings = SendBackSettings(
        group, max_reconsume_times, conf.message_delay_levels_ms, store_host=store_host
    )
    staged, files = StagedBack(), list[StagedFile]()
    if key is None or not Ledger.read(opened).has(key):  # The messages of a committed call may be deleted.
        StoreRefusals(opened).refuse_full_disk(disk_limit, conf, store.commit_log_paths)
        staged, files = _staged_copies(store, _found_messages(store, places), delay_level, settings)
    options = CommitOptions(
        new_topics=staged.new_topics,
        lock_timeout=lock_timeout,
        log_directories=store.commit_log_paths,
        conf=conf,
    )
    if now_ms is not None:
        options = replace(options, clock=lambda: now_ms)
    if not commit(opened.path, files, key=key, options=options).committed:
        return SendBackResult(False)
    return SendBackResult(True, staged.retried, staged.dead_letters)


def _found_messages(store: Store, places: Iterable[Place]) -> FoundPlaces:
    given = list(places)
    offsets = [each for each in given if isinstance(each, int)]
    queue_places = [each for each in given if not isinstance(each, int)]
    if offsets and queue_places:
        raise OptionError(
            f"places: expected (topic, queue id, queue offset) or physical offsets, found both, "
            f"{queue_places[0]} and {offsets[0]}; send them back in two calls"
        )
    return find_physical(store, offsets) if offsets else find_places(store, queue_places)


def _staged_copies(
    store: Store, found: FoundPlaces, delay_level: int | Sequence[int], settings: SendBackSettings
) -> tuple[StagedBack, list[StagedFile]]:
    if not len(found):
        return StagedBack(), []
    writer = StagingWriter(store.opened, os.urandom(8).hex())
    try:
        crc_property = Ledger.read(store.opened).ends_with_crc_property(store.log)
        staged = stage_send_back(writer, found, delay_level, settings, crc_property=crc_property)
        return staged, [writer.close()]
    except BaseException:
        writer.discard()
        raise


# ---- dead letters again ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Selects dead letters: those that meet every given condition.

    `keys`: any of these keys, or the message id. `message_ids`: the message id, or the offset message id of
    the first message. `topic`: the original topic, as a shell pattern. `tags`: any of these tags. `since_ms`
    (inclusive) and `until_ms` (exclusive): the store time in ms since 1970. `limit`: the largest number of
    messages.

    Example: `Where(keys=("A-17",), limit=100)`.
    """

    keys: tuple[str, ...] = ()
    message_ids: tuple[str, ...] = ()
    topic: str | None = None
    tags: tuple[str, ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int | None = None

    def matches(self, row: _Row) -> bool:
        """Returns whether a row of the view deadLetters meets the conditions."""
        stored = row["storeTimestamp"]
        stored_ms = None if stored is None else round(stored.timestamp() * 1000)
        return (
            (not self.keys or bool({*(row["keys"] or ()), row["msgId"]} & {*self.keys}))
            and (not self.message_ids or bool({row["msgId"], row["originMsgId"]} & {*self.message_ids}))
            and (self.topic is None or fnmatchcase(row["originTopic"] or "", self.topic))
            and (not self.tags or row["tags"] in self.tags)
            and (self.since_ms is None or (stored_ms is not None and stored_ms >= self.since_ms))
            and (self.until_ms is None or (stored_ms is not None and stored_ms < self.until_ms))
        )


@dataclass(frozen=True, slots=True)
class ResendResult:
    """How many dead letters were stored again (`resent`), and how many had been before (`already`)."""

    resent: int
    already: int


@dataclass(frozen=True, slots=True)
class ResendPlan:
    """A plan that stores dead letters again: rows of the view deadLetters, and their target topics."""

    store: Store
    group: str
    rows: tuple[_Row, ...]
    targets: tuple[str, ...]
    done: frozenset[int]  # physical offsets of dead letters that were stored again before
    left: tuple[str, ...] = ()  # the dead letters that cannot be stored again, each with the reason

    def table(self) -> pa.Table:
        """Returns one row for each dead letter, with `_RESEND_COLUMNS`."""
        rows = [
            tuple(self._cell(row, target, column) for column in _RESEND_COLUMNS)
            for row, target in zip(self.rows, self.targets, strict=True)
        ]
        return pa.Table.from_batches([batch_of(_RESEND_COLUMNS, rows)])

    def _cell(self, row: _Row, target: str, column: ViewColumn) -> object:
        if column.name == "targetTopic":
            return target
        if column.name == "resent":
            return row["physicalOffset"] in self.done
        value = row[column.name]
        return round(value.timestamp() * 1_000_000) if column.type == TIME and value is not None else value

    @property
    def due(self) -> int:
        """The number of dead letters that `apply` stores again."""
        return sum(row["physicalOffset"] not in self.done for row in self.rows)

    def with_progress(self) -> ResendPlan:
        """Returns this plan with what is stored again by now: by `apply`, or by another plan since."""
        done = _read_done(self.store, self.group, Ledger.read(self.store.opened))
        return replace(self, done=frozenset(row["physicalOffset"] for row in self.rows if done.has(row)))

    def apply(self, *, now_ms: int | None = None, lock_timeout: float = 10.0) -> ResendResult:
        """Stores the dead letters again, each only once, even if you apply this or another plan a second
        time.

        After a crash, apply a new plan: it leaves out the dead letters that were stored before the crash.
        Raises StoreInUseError while a broker has the store, and OffsetOutOfRangeError for a dead letter that
        retention has deleted. Raises StoreWriteError, with nothing stored, if the position of a dead letter
        now has another message. Raises PartsFailedError, whose `done` is the number of dead letters that were
        stored again, for an error after these.
        """
        clock = (lambda: time.time_ns() // 1_000_000) if now_ms is None else (lambda: now_ms)
        options = CommitOptions(
            lock_timeout=lock_timeout, log_directories=self.store.commit_log_paths, clock=clock
        )
        with tallied() as tally, write_session(self.store.path, options) as session:
            done = _read_done(session.store(), self.group, session.ledger())
            if done.is_behind:
                _write_done(session, self.group, done)
            waiting = [
                (row, target)
                for row, target in zip(self.rows, self.targets, strict=True)
                if not done.has(row)
            ]
            _refuse_targets(self.store, self.group, {target for _, target in waiting})
            self._append(session, waiting, done, tally)
        return ResendResult(len(waiting), len(self.rows) - len(waiting))

    def _append(
        self, session: WriteSession, waiting: Sequence[tuple[_Row, str]], done: _Done, tally: Tally
    ) -> None:
        """Commits a turn for each chunk of dead letters, and then notes the turn in the state file."""
        places = [(str(row["topic"]), int(row["queueId"]), int(row["queueOffset"])) for row, _ in waiting]
        new_topics = {}
        if any(is_retry_topic(target) for _, target in waiting):
            new_topics[retry_topic(self.group)] = kept_group(session.opened.path, self.group).retry_queue_nums
        topics: Mapping[str, TopicConfig] = read_topics(session.opened) or {}
        queue_nums = new_topics | {name: len(config.written_queue_ids) for name, config in topics.items()}
        found = find_places(session.store(), places)
        _refuse_others(found, [row for row, _ in waiting])
        for messages, first in found.read():
            chosen = [waiting[number] for number in first.tolist()]
            copies = copies_of(
                messages,
                pa.array([target for _, target in chosen]),
                np.array([queue_nums[target] for _, target in chosen], np.int64),
                origin_topics=pa.array(
                    [row["originTopic"] if is_retry_topic(target) else None for row, target in chosen],
                    pa.string(),
                ),
            )
            turn = ServiceTurn(_resend_part(self.group), done.turns + 1, done.turns)
            session.append(copies, turn=turn, new_topics=new_topics)
            tally.done += len(chosen)
            done.turns += 1
            done.ids |= {row["physicalOffset"]: row["msgId"] for row, _ in chosen}
            _write_done(session, self.group, done)


def resend(
    store: Store | str, group: str, *, where: Where | None = None, to: str | None = None
) -> ResendPlan:
    """Returns a plan that stores dead letters of `group` again. Look at its `table()`, then `apply()` it.

    Each copy is a new message with the body, keys, tags, message id and user properties of the dead letter.
    Its reconsumeTimes is 0, so it can be retried as often as before. The copy goes to its original topic,
    where every group reads it, or to the topic `to`. If `to` is the group's retry topic `%RETRY%group`, only
    this group reads the copy. The dead letters themselves stay. `where` selects some of them (default: all).

    A dead letter without an original topic, one whose topic was deleted or allows no writes, and one whose
    body no consumer could read, is in `left`, with the reason. The others are stored.

    Raises OptionError for a group without dead letters, and if the topic `to` does not exist.
    Raises IllegalMessageError if `to` does not allow writes.

    Example::

        plan = retry.resend("/data/store", "CG_orders", where=retry.Where(keys=("A-17",)))
        print(plan.table())
        plan.apply()
    """
    store = Store.open(store) if isinstance(store, str) else store
    where = where or Where()
    rows = [row for batch in dead_letters(store, 0, group=check_group(group)) for row in batch.to_pylist()]
    if not rows:
        names = filter(lambda name: name.startswith(DLQ_PREFIX), store.topics())
        groups = sorted(name.removeprefix(DLQ_PREFIX) for name in names)
        advice = did_you_mean(group, groups, "groups with dead letters")
        raise OptionError(f"{store.path}: group {group} has no dead letters; {advice}")
    chosen = [row for row in rows if where.matches(row)][: where.limit]
    if to is not None:
        _refuse_targets(store, group, {to})
    done = _read_done(store, group, Ledger.read(store.opened))
    sent = frozenset(row["physicalOffset"] for row in chosen if done.has(row))
    why = _not_sent(store, group, [row for row in chosen if row["physicalOffset"] not in sent], to)
    left = tuple(
        f"{row['topic']}-{row['queueId']}@{row['queueOffset']}: {why[place]}"
        for row in chosen
        if (place := row["physicalOffset"]) in why
    )
    kept = tuple(row for row in chosen if row["physicalOffset"] not in why)
    return ResendPlan(store, group, kept, tuple(to or str(row["originTopic"]) for row in kept), sent, left)


def _not_sent(store: Store, group: str, rows: Sequence[_Row], to: str | None) -> dict[int, str]:
    """Physical offset -> why the dead letter there cannot be stored again."""
    why: dict[int, str] = {}
    of_target: dict[str | None, str] = (
        {} if to is not None else {None: "it has no original topic (RETRY_TOPIC); name one with --to (to=)"}
    )
    for target in {row["originTopic"] for row in rows} - {None} if to is None else ():
        try:
            _refuse_targets(store, group, {target})
        except StoreError as error:
            of_target[target] = str(error)
    why |= {
        row["physicalOffset"]: of_target[row["originTopic"]]
        for row in rows
        if row["originTopic"] in of_target
    }
    places = [(str(row["topic"]), int(row["queueId"]), int(row["queueOffset"])) for row in rows]
    for messages, _ in find_places(store, places).read() if places else ():
        why |= {
            int(messages.physical_offsets[place]): f"no consumer could read its body: {unread}"
            for place, unread in messages.unopened().items()
        }
    return why


def _refuse_others(found: FoundPlaces, rows: Sequence[_Row]) -> None:
    """Raises StoreWriteError if a place has another message than the plan saw: its topic was made again."""
    planned = np.array([rows[number]["physicalOffset"] for number in found.first.tolist()], np.int64)
    changed = np.flatnonzero(found.physical_offsets != planned)
    if len(changed):
        message = int(changed[0])
        raise StoreWriteError(
            f"{found.store.path}: {found.names[int(found.first[message])]}: expected the dead letter of the "
            f"plan, at physical offset {planned[message]}, found another message, at "
            f"{found.physical_offsets[message]}; nothing was stored, make a new plan"
        )


def _refuse_targets(store: Store, group: str, targets: set[str]) -> None:
    topics: Mapping[str, TopicConfig] = read_topics(store.opened) or {}
    for target in sorted(targets):
        if target == retry_topic(group) and target not in topics:
            kept_group(store.path, group)
            continue
        if is_system_topic(target) and target != retry_topic(group):
            raise OptionError(
                f"topic {target}: expected a topic of users, or {retry_topic(group)}, found one of "
                "RocketMQ's own; name another with --to (to=)"
            )
        if target not in topics:
            raise OptionError(
                f"{store.path}: no topic is named {target!r}; create it, or name another with --to (to=); "
                f"{did_you_mean(target, sorted(topics), 'topics')}"
            )
        config = topics[target]
        if not config.writable or not len(config.written_queue_ids):
            raise IllegalMessageError(
                f"{store.path}: topic {target}: expected write permission and at least one queue, found perm "
                f"{config.perm} and {len(config.written_queue_ids)} queues"
            )


# ---- what was stored again ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Done:
    """The state of a group: its turns, and the dead letters stored again, as physical offset -> message id.

    `is_behind`: the file lacks the last turn, because a crash came after the commit.
    """

    turns: int = 0
    ids: dict[int, str] = field(default_factory=dict)
    is_behind: bool = False

    def has(self, row: _Row) -> bool:
        """Whether the dead letter was stored again."""
        msg_id: str = row["msgId"]
        return self.ids.get(row["physicalOffset"], "") == msg_id


def _resend_part(group: str) -> str:
    return f"resend/{group}"


def _path(root: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/resent.json"


def _read_done(store: Store, group: str, ledger: Ledger) -> _Done:
    """The state in the file, and a turn that a crash kept from being noted there (`Ledger.resume`)."""
    done = _read_file(store.path).get(group, _Done())
    done.ids = {offset: each for offset, each in done.ids.items() if offset >= store.log.min_offset}
    turns = ledger.resume(_resend_part(group), done.turns, store.log)
    entry = ledger.entry_of(_resend_part(group))
    if turns != done.turns and entry is not None:
        done.ids |= _resent_between(store.log, entry.start, entry.stop)
        done.turns, done.is_behind = turns, True
    return done


def _resent_between(log: CommitLog, start: int, stop: int) -> Iterator[tuple[int, str]]:
    """(physical offset, message id) of the dead letters of which the copies in this range were made."""
    for run in log.runs(start, stop):
        messages, _, _ = read_stored(log, run.physical_offsets, run.sizes)
        origins, keys = messages.properties(RESENT_FROM, UNIQ_KEY)
        for origin, key in zip(origins.to_pylist(), keys.to_pylist(), strict=True):
            if origin is not None:
                # clients show the offset message id of a message without UNIQ_KEY
                yield int(origin[-_PHYSICAL_DIGITS:], 16), key or origin


def _read_file(root: str) -> dict[str, _Done]:
    path = _path(root)
    data = files_at(path).read(path)
    if data is None:
        return {}
    try:
        return {
            str(group): _Done(int(each["turns"]), {int(at): str(id_) for at, id_ in each["messages"].items()})
            for group, each in json.loads(data)["groups"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "the dead letters that were stored again", str(error) or "something else"
        ) from error


def _write_done(session: WriteSession, group: str, done: _Done) -> None:
    states = _read_file(session.opened.path) | {group: done}
    groups = {
        name: {
            "turns": each.turns,
            "messages": {str(offset): each.ids[offset] for offset in sorted(each.ids)},
        }
        for name, each in states.items()
    }
    session.files.replace(_path(session.opened.path), json.dumps({"version": 2, "groups": groups}).encode())
