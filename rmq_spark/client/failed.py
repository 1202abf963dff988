"""Messages that a consumer's listener could not handle: a broker's copies of them, each stored once.

A consumer sends a failed message back, and dies before it has recorded how far it came. The next owner of the
queue hands the message out again, and it fails again. `.rmqlog/sent-back.json` names the copies behind the
recorded positions, so that none is stored twice: a copy is known by the id of its first message and its
reconsumeTimes. The turn in the ledger covers a crash between the commit and this file (`Ledger.resume`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_spark.produce.send_back import SentBack, give_up, send_back
from rmq_spark.produce.unique_ids import own_address
from rmq_spark.write.send_back import kept_group
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import CorruptStoreError
from store_format.files.read import files_at
from store_format.message.encode import StoredMessages
from store_format.message.properties import PropertyTable
from store_format.names import ORIGIN_MESSAGE_ID, QueueKey
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.read.stored_messages import find_places, read_stored

_log = logging.getLogger(__name__)

_VERSION = 1
_NO_QUEUE = 1 << 63


@dataclass(frozen=True, slots=True)
class Failed:
    """A failed message: its stored topic, queue and offset.

    `level` is delayLevelWhenNextConsume: 0 for the level that follows from reconsumeTimes, -1 for a dead
    letter. `orderly_times`: an orderly consumer gives the message up after so many failures.
    """

    topic: str
    queue_id: int
    offset: int
    level: int = 0
    orderly_times: int | None = None


def store_failed(
    root: str,
    group: str,
    failed: Sequence[Failed],
    recorded: Mapping[QueueKey, int],
    *,
    max_reconsume_times: int,
    clock_ms: Callable[[], int],
) -> SentBackCounts:
    """Stores the copies of these messages of one store: retries and dead letters.

    `recorded` are the group's recorded positions: no copy of a message before them can be made again.
    Messages that retention has deleted are left out, with a warning.

    Raises StoreInUseError while a broker or another writer has the store; then nothing was stored.
    """
    counts = SentBackCounts()
    with write_session(root, CommitOptions(clock=clock_ms)) as session:
        store = session.store()
        sent = _Sent.read(store, group, session.ledger())
        sent.forget_before(recorded)
        there = _existing(store, failed)
        found = find_places(store, [(each.topic, each.queue_id, each.offset) for each in there])
        for messages, first in found.read():
            chosen = [there[number] for number in first.tolist()]
            made = _copies(session, messages, group, chosen, max_reconsume_times)
            keys = _keys(made.messages.properties, made.messages.reconsume_times)
            new = np.array([key not in sent.places for key in keys])
            if not new.any():
                continue
            if not new.all():
                chosen = [each for each, is_new in zip(chosen, new.tolist(), strict=True) if is_new]
                made = _copies(session, messages.take(new), group, chosen, max_reconsume_times)
            turn = ServiceTurn(sent.part, sent.turns + 1, sent.turns)
            session.append(made.messages, turn=turn, new_topics=made.new_topics)
            sent.turns += 1
            for key, each in zip(np.array(keys, object)[new].tolist(), chosen, strict=True):
                sent.places[key] = (each.topic, each.queue_id, each.offset)
            sent.write(session)
            counts.retried += made.retried
            counts.dead_letters += made.dead_letters
    return counts


@dataclass(slots=True)
class SentBackCounts:
    """How many copies were stored."""

    retried: int = 0
    dead_letters: int = 0


def _existing(store: Store, failed: Sequence[Failed]) -> list[Failed]:
    topics = {each.topic for each in failed}
    begins = {queue.key: queue.min_offset for queue in store.queues(topics.__contains__)}
    there = [each for each in failed if each.offset >= begins.get((each.topic, each.queue_id), _NO_QUEUE)]
    if len(there) < len(failed):
        gone = len(failed) - len(there)
        _log.warning("%s: %d failed messages no longer exist and are not sent back", store.path, gone)
    return there


def _copies(
    session: WriteSession,
    messages: StoredMessages,
    group: str,
    failed: Sequence[Failed],
    max_reconsume_times: int,
) -> SentBack:
    if failed[0].orderly_times is not None:
        return give_up(
            messages,
            group,
            reconsume_times=np.array([each.orderly_times for each in failed], np.int64),
            max_reconsume_times=max_reconsume_times,
            now_ms=session.options.clock(),
            born_host=(own_address(), 0),
        )
    return send_back(
        messages,
        kept_group(session.opened.path, group),
        delay_levels=np.array([each.level for each in failed], np.int64),
        max_reconsume_times=max_reconsume_times,
        level_max=len(broker_conf_of(session.opened).message_delay_levels_ms),
    )


# ---- what was sent back ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Sent:
    """The copies of a group that may be made again: key -> stored topic, queue and offset of the message."""

    group: str
    turns: int = 0
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)

    @property
    def part(self) -> str:
        return f"failed/{self.group}"

    @staticmethod
    def read(store: Store, group: str, ledger: Ledger) -> _Sent:
        """The state in the file, and the turn that a crash kept from being noted there."""
        value = _read_file(store.opened).get(group)
        sent = _Sent(group)
        if value is not None:
            sent.turns = value["turns"]
            sent.places = {key: (topic, n, at) for key, (topic, n, at) in value["places"].items()}
        turns = ledger.resume(sent.part, sent.turns, store.log)
        entry = ledger.entry_of(sent.part)
        if turns != sent.turns and entry is not None:
            sent.places |= dict.fromkeys(_stored_keys(store.log, entry.start, entry.stop), ("", 0, 0))
            sent.turns = turns
        return sent

    def forget_before(self, recorded: Mapping[QueueKey, int]) -> None:
        """Forgets copies of messages that no member hands out again. Those found in the log have no place."""
        self.places = {
            key: place for key, place in self.places.items() if place[2] >= recorded.get(place[:2], 0)
        }

    def write(self, session: WriteSession) -> None:
        groups = _read_file(session.opened) | {self.group: {"turns": self.turns, "places": self.places}}
        data = json.dumps({"version": _VERSION, "groups": groups}, separators=(",", ":"))
        session.files.replace(_path(session.opened), data.encode())


def _path(opened: Opened) -> str:
    return opened.own("sent-back.json")


def _read_file(opened: Opened) -> dict[str, Any]:  # Any: JSON
    path = _path(opened)
    data = files_at(path).read(path)
    if data is None:
        return {}
    try:
        value = json.loads(data)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        for each in value["groups"].values():
            if not _is_long(each["turns"]) or not all(map(_is_place, each["places"].values())):
                raise ValueError("turns or places of other types")
        groups: dict[str, Any] = value["groups"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(path, 0, "the copies of failed messages (JSON)", str(error)[:100]) from error
    return groups


def _is_long(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _NO_QUEUE


def _is_place(value: object) -> bool:
    match value:
        case [str(), queue_id, offset]:
            return _is_long(queue_id) and _is_long(offset)
    return False


def _stored_keys(log: CommitLog, start: int, stop: int) -> Iterator[str]:
    for run in log.walk(start, stop):
        if not isinstance(run, Damage):
            messages, _, _ = read_stored(log, run.physical_offsets, run.sizes)
            yield from _keys(messages.messages.properties, messages.messages.reconsume_times)


def _keys(properties: Any, reconsume_times: Any) -> list[str]:  # Any: columns of messages
    """The id of the first message and reconsumeTimes of each copy."""
    origins = PropertyTable(properties.cast(pa.binary())).values(ORIGIN_MESSAGE_ID)
    times = np.broadcast_to(np.asarray(reconsume_times, np.int64), len(origins)).tolist()
    return [f"{origin} {number}" for origin, number in zip(origins.to_pylist(), times, strict=True)]
