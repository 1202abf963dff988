"""Configured queues without consume queue files: which of them have messages in the commitlog.

A broker creates a queue's directory with its first message, so a missing directory is normal for a queue
without messages. Only messages in the commitlog show that a consume queue was lost, and a walk over a large
log at each load would take too long. So the first and the last bytes of the log are read, and those before
the first message of a queue that may have lost its first file. The whole log is read only if something else
shows that the queue had messages: an offset that a group has committed, or messages after a crash whose first
queue offset is above 0.

`survey/fates.py` decides what became of the messages. A broker dispatches messages in commitlog order: while
it runs, messages that wait for it are looked at again, and so are those of an unknown fate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from store_format.bookkeeping.journal import CommitState, StoreState
from store_format.bookkeeping.ledger import GivenUp
from store_format.commitlog.log import CommitLog, written_stop
from store_format.consumequeue.files import QueueBounds, can_be_queue, has_rocksdb_queues, place_in_files
from store_format.consumequeue.slices import QueueRange, QueueRanges
from store_format.display.text import first_names
from store_format.errors import CorruptStoreError, OptionError, StoreError, StorePermissionError
from store_format.files.lock import StoreLock
from store_format.files.read import files_at
from store_format.layouts import CQ_UNIT, OFFSET_MAX
from store_format.metadata.group_offsets import read_committed
from store_format.metadata.read import KnownTopic, known_topics
from store_format.names import LMQ_PREFIX, REVIVE_GROUP, QueueKey, is_light_queue, is_system_topic
from store_format.opened.store import Opened
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.fates import Fate, Fates, StoredTopics, Unfiled
from store_format.survey.gone import QueueProofs
from store_format.survey.log_end import last_unit
from store_format.survey.scan import LogQueue, LogQueues
from store_format.survey.snapshot import Snapshot

_log = logging.getLogger(__name__)

_WINDOW_SIZE = 32 << 20  # bytes read at the beginning and at the end of a log
_PLACES_MAX = 16  # first messages of queues before which the log is read
_SAMPLE_SIZE = 4096
_SEEN_MAX = 64
_DISPATCH_MAX_MS = 1_000
_BY_WRITING = "{}riting to these topics with rmqlog rebuilds the files from the commitlog"
_BLANK = (
    "%s: %d consume queues end with a blank file: %s. A broker that starts may count a message there that "
    "does not exist (ConsumeQueue.truncateDirtyLogicFiles)"
)
_BY_RECOVERY = "`rmqlog recover` rebuilds the files from the commitlog"

# what this process has seen between two places of a log
_SEEN: dict[object, tuple[dict[QueueKey, LogQueue], int]] = {}


@dataclass(slots=True)
class UnfiledQueues:
    """What one open store knows about its configured queues without files; empty until the first look. The
    user's `answer` is what to do with queues of an unknown fate.
    """

    opened: Opened
    answer: Unfiled | None = None
    _lost: dict[QueueKey, LogQueue] = field(default_factory=dict)
    # queues with messages that wait for a broker or have an unknown fate
    _open: dict[QueueKey, LogQueue] = field(default_factory=dict)
    _unknown: dict[QueueKey, LogQueue] = field(default_factory=dict)  # the latter
    _deleted: dict[QueueKey, int] = field(default_factory=dict)  # with the last message that is deleted
    # queues of the log, as far as it was read, of topics that lack queue files
    _seen: dict[QueueKey, LogQueue] = field(default_factory=dict)
    _is_complete: bool = False  # the whole log was read
    _decided: set[tuple[QueueKey, int]] = field(default_factory=set)  # with `_first_entry` then
    _dispatched: int = -1  # a broker has dispatched the messages before this physical offset
    _light: tuple[QueueKey, ...] | None = None  # the light queues that messages name
    _told: set[object] = field(default_factory=set)  # what was warned of
    # the known topics, and their numbers of queues
    _topics: tuple[Mapping[str, KnownTopic] | None, dict[str, int]] = (None, {})

    def among(
        self, taken: Snapshot, select: Callable[[str], bool]
    ) -> tuple[dict[QueueKey, StoreError], OptionError | None]:
        """The queues of the selected topics that only a scan of the commitlog can read, with the reason, and
        the question about those of unknown fate.

        `taken` is the store's snapshot of these topics.
        """
        named = [*self._configured(taken, select), *self._light_queues(taken, select)]
        usable = [key for key in named if key not in taken.damaged] if taken.damaged else named
        whole, lacking = QueueRanges.of(taken.queues).numbers, _lacking_queues(taken)
        looked = [key for key in usable if (key not in whole or key in lacking) and key not in self._lost]
        firsts = {key: _first_entry(taken, key) for key in looked}
        undecided = firsts.items() - self._decided
        if undecided:
            self._look(taken, [key for key, _ in undecided])
            self._decided |= undecided | {(key, 0) for key, _ in undecided}
        if self._open:
            self._settle(taken)
        if blank := [key for key in looked if key not in self._lost and _ends_blank(taken, key)]:
            self.warn(("blank", *blank), _BLANK, self.opened.path, len(blank), _queue_names(blank))
        lost = [key for key in usable if key in self._lost and not _covers(taken, key, self._lost[key])]
        unknown = {key: self._unknown[key] for key in usable if key in self._unknown}
        return (
            {key: _lost_error(self.opened, taken, key) for key in lost},
            Fates(self.opened, taken.log).question(unknown, is_part=not self._is_complete)
            if unknown
            else None,
        )

    def deleted_in(self, taken: Snapshot) -> set[QueueKey]:
        """The queues without files that a broker's recovery would make of messages of a deleted topic."""
        return {
            key
            for key, last in self._deleted.items()
            if key in taken.queues and not _has_entries(taken, key) and _last_extra(taken.queues[key]) <= last
        }

    def look_again_for(self, keys: Collection[QueueKey] | None) -> None:
        """Says that these queues have messages, None: that any may have. If they have no files at the next
        look, files are lost.
        """
        self._decided = {
            each for each in self._decided if each[1] != -1 or (keys is not None and each[0] not in keys)
        }

    def warn(self, about: object, text: str, *values: object) -> None:
        """Warns once of each `about`."""
        if about not in self._told:
            self._told.add(about)
            _log.warning(text, *values)

    def warn_of_none(self) -> None:
        """Warns once that the store has no consume queue files at all."""
        if not has_rocksdb_queues(self.opened):
            text = "%s has no consume queue files: its queues are read by a scan of the commitlog. %s"
            self.warn("none", text, self.opened.path, _advice(StoreState.of(self.opened)))

    def warn_of_tiered(self, keys: Collection[QueueKey]) -> None:
        """Warns once of queues that a scan of the commitlog reads, without their part in tiered storage."""
        names = first_names(f"{topic}-{queue_id}" for topic, queue_id in sorted(keys))
        text = (
            "%s: messages that only tiered storage has are left out of %s: the consume queue files of these "
            "queues lack entries, and a scan of the commitlog reads them"
        )
        self.warn(("tiered", names), text, self.opened.path, names)

    def warn_of_restarted(self, found: Mapping[QueueKey, LogQueue]) -> None:
        """Warns once of queues with messages in the commitlog that no offset points to any more."""
        restarted = {
            key: queue
            for key, queue in found.items()
            if key not in self._told and any(stop > queue.max_offset for _, _, stop in queue.epochs)
        }
        self._told |= restarted.keys()
        if restarted:
            text = (
                "%s: the offsets of %d queues restart at 0 (topics deleted and created again?): %s. "
                "Their earlier messages are not read; the consume queues do not hold them either"
            )
            _log.warning(text, self.opened.path, len(restarted), _queue_names(restarted))

    def _configured(self, taken: Snapshot, select: Callable[[str], bool]) -> list[QueueKey]:
        """The queues of the selected topics that topics.json names; those in the log if it is lost."""
        return [
            (topic, queue_id)
            for topic, number in self._queue_numbers(taken).items()
            if select(topic)
            for queue_id in range(number)
        ]

    def _light_queues(self, taken: Snapshot, select: Callable[[str], bool]) -> list[QueueKey]:
        """The selected light queues that messages name: topics.json names none.

        They are looked for if all are selected, or if nothing else that is known is, for example one by name.
        """
        is_chosen = select(LMQ_PREFIX) or not (taken.queues or self._configured(taken, select))
        if self._light is None and is_chosen and StoredTopics(self.opened).has_light_queues:
            with suppress(StorePermissionError):  # a read of messages raises it; views do not need the file
                found, _ = _queues_in_windows(self.opened, taken, frozenset([LMQ_PREFIX]), _WINDOW_SIZE)
                self._light = tuple(
                    key
                    for key, queue in found.items()
                    if can_be_queue(*key) and not _is_misspelt(self.opened, taken.log, queue)
                )
        return [key for key in self._light or () if select(key[0])]

    def _queue_numbers(self, taken: Snapshot) -> dict[str, int]:
        topics: Mapping[str, KnownTopic] | None = {}
        with suppress(StoreError, OSError):  # a read that needs the file raises the error
            topics = known_topics(self.opened)
        if topics is not None and topics is self._topics[0]:
            return self._topics[1]
        if topics is None:
            numbers: dict[str, int] = {}
            for topic, queue_id in sorted(_queues_in_windows(self.opened, taken, None, _WINDOW_SIZE)[0]):
                numbers[topic] = queue_id + 1
        else:
            numbers = {topic: len(each.queue_ids) for topic, each in topics.items()}
            numbers |= StoredTopics(self.opened).missing(topics)
        numbers = {
            topic: number
            for topic, number in numbers.items()
            if can_be_queue(topic, 0) and not is_light_queue(topic)  # `_light_queues`
        }
        self._topics = (topics, {topic: number for topic, number in numbers.items() if number})
        return self._topics[1]

    def _look(self, taken: Snapshot, undecided: list[QueueKey]) -> None:
        """Looks for the undecided queues in the log."""
        topics = {*self._queue_numbers(taken), *(topic for topic, _ in self._light or ())}
        firsts = sorted(filter(None, {_first_message(taken, key) for key in undecided}))[:_PLACES_MAX]
        found, self._is_complete = _queues_in_windows(
            self.opened, taken, frozenset(topics), _WINDOW_SIZE, firsts
        )
        self._seen |= found
        seen, unfiled = self._seen, {key for key in undecided if not _has_entries(taken, key)}
        if not self._is_complete and (
            any(_had_messages(taken, key) for key in unfiled) or _consumed_queues(self.opened) & unfiled
        ):
            seen |= _queues_in_windows(self.opened, taken, frozenset(topic for topic, _ in unfiled), None)[0]
        elif not self._is_complete:
            missed = [key for key in undecided if key not in seen and not is_system_topic(key[0])]
            missed = [key for key in missed if not _has_files_now(self.opened, key)]
            text = (
                "%s: %d configured queues have no consume queue files: %s. Only the first and the last %d "
                "MiB of the commitlog were checked; they hold no message of these queues. `rmqlog verify` "
                "checks the whole commitlog"
            )
            if missed:
                _log.warning(text, self.opened.path, len(missed), _queue_names(missed), _WINDOW_SIZE >> 20)
        self._open |= {key: seen[key] for key in undecided if key in seen}

    def _settle(self, taken: Snapshot) -> None:
        """Decides what became of the messages of the open queues."""
        if any(queue.epochs[-1][0] >= self._dispatched for queue in self._open.values()):
            # found first: messages dispatched before that have their files now
            self._dispatched = _dispatched(self.opened, taken)
        short = {
            key: queue
            for key, queue in self._open.items()
            if _lacks_entries(taken, key) and not _covers(taken, key, queue)
        }
        if short:  # The log was read after the snapshot: a commit in between is not missing.
            topics = {topic for topic, _ in short}
            now = Snapshot.take(self.opened, taken.log.relisted(), taken.state, topics.__contains__)
            short = {key: queue for key, queue in short.items() if not _covers(now, key, queue)}
        filed = {
            key
            for key, queue in self._open.items()
            if _covers(taken, key, queue) or _has_files_now(self.opened, key)
        }
        self._open = {key: queue for key, queue in self._open.items() if key not in filed}
        self.look_again_for(filed)  # their files may be lost again
        empty = {key: queue for key, queue in short.items() if not _has_entries(taken, key)}
        fates = Fates(self.opened, taken.log).decide({**self._open, **empty}, self._seen, self._dispatched)
        fate = {key: each.fate for key, each in fates.items()}
        self._deleted |= {key: self._seen[key].last for key in fate if fate[key] is Fate.DELETED}
        short = {key: queue for key, queue in short.items() if fate.get(key) is not Fate.DELETED}
        if short:
            # A topic may have been deleted before, and the log have lost what came behind.
            proofs = QueueProofs(self.opened, taken.log)
            begun = proofs.begun_again(taken.log, proofs.queues(lambda _: None, scan=True))
            short = {key: queue for key, queue in short.items() if queue.last >= begun.get(key, 0)}
        if self.answer is not None:
            answer = Fate.LOST if self.answer == "read" else Fate.DELETED
            fate |= {key: answer for key, each in fate.items() if each is Fate.UNKNOWN}
        lost, waiting, self._unknown = (
            {key: queue for key, queue in self._open.items() if fate[key] is each}
            for each in (Fate.LOST, Fate.WAITING, Fate.UNKNOWN)
        )
        self._open = waiting | self._unknown
        self._lost |= lost | short
        self._warn(taken, lost, short, waiting)

    def _warn(
        self,
        taken: Snapshot,
        lost: dict[QueueKey, LogQueue],
        short: dict[QueueKey, LogQueue],
        waiting: dict[QueueKey, LogQueue],
    ) -> None:
        """Warns of queues that are lost now, and once of those that wait for a broker for too long."""
        if short:
            text = (
                "%s: the consume queue files of %d queues lack entries of messages in the commitlog: %s. "
                "These queues are read by a scan of the commitlog"
            )
            _log.warning(text, self.opened.path, len(short), _queue_names(short))
        text = "%s: %s messages in the commitlog and no consume queue files: %s. %s"
        if waiting and _is_overdue(taken.log, waiting.values()):
            why = "The running broker has not dispatched these messages yet; they are read once it has"
            self.warn("waiting", text, self.opened.path, _have(waiting), _queue_names(waiting), why)
        if lost:
            rebuilt = (
                _BY_RECOVERY if all(is_light_queue(topic) for topic, _ in lost) else _advice(taken.state)
            )
            how = f"These queues are read by a scan of the commitlog. {rebuilt}"
            _log.warning(text, self.opened.path, _have(lost), _queue_names(lost), how)


def _is_misspelt(opened: Opened, log: CommitLog, queue: LogQueue) -> bool:
    """Whether a flipped bit gave a light queue its name: a similar one has an entry for its message."""
    physical, offset, _ = queue.epochs[0]
    known = Contradictions(opened, log)
    return bool(known.of_topic((queue.topic, queue.queue_id), np.array([offset]), np.array([physical])))


def _is_overdue(log: CommitLog, queues: Iterable[LogQueue]) -> bool:
    """Whether the log has much later messages than the first of these.

    A broker dispatches within milliseconds.
    """
    last = last_unit(log)
    return last is not None and any(
        log.store_timestamp_at(queue.epochs[-1][0]) < last.timestamp - _DISPATCH_MAX_MS for queue in queues
    )


def _lost_error(opened: Opened, taken: Snapshot, key: QueueKey) -> StoreError:
    directory = f"{opened.path}/consumequeue/{key[0]}/{key[1]}"
    if _lacks_entries(taken, key):
        there = taken.queues[key]
        found = f"entries for offsets {there.min_offset} to {there.max_offset}"
        return CorruptStoreError(
            directory, 0, "entries for all messages of the queue in the commitlog", found
        )
    return CorruptStoreError(directory, 0, "consume queue files", "none, but messages in the commitlog")


def _queue_names(keys: Iterable[QueueKey]) -> str:
    return first_names(f"{topic}-{queue_id}" for topic, queue_id in sorted(keys))


def _have(keys: Collection[QueueKey]) -> str:
    return "1 queue has" if len(keys) == 1 else f"{len(keys)} queues have"


def _advice(state: StoreState) -> str:
    return _BY_WRITING.format("Once the broker has stopped, w" if state is StoreState.LIVE else "W")


# ---- what a snapshot has -----------------------------------------------------------------------------------


def _first_entry(taken: Snapshot, key: QueueKey) -> int:
    """The queue byte of the first entry, if one before it may be lost; else 0. -1 without files."""
    bounds = taken.queues[key].bounds if key in taken.queues else None
    if bounds is None:
        return -1
    return bounds.first_entry if bounds.may_lack_first_entries else 0


def _first_message(taken: Snapshot, key: QueueKey) -> int:
    """The physical offset of the first message of a queue that may have lost its first entries; else 0."""
    bounds = taken.queues[key].bounds if key in taken.queues else None
    return 0 if bounds is None or not bounds.may_lack_first_entries else bounds.first_physical_offset


def _has_entries(taken: Snapshot, key: QueueKey) -> bool:
    bounds = taken.queues[key].bounds if key in taken.queues else None
    return bounds is not None and bounds.has_entries


def _lacking_queues(taken: Snapshot) -> set[QueueKey]:
    """The queues of which the snapshot shows a sign that they lack files or entries. For other ones, the log
    is not read.
    """
    queues, is_live = QueueRanges.of(taken.queues), taken.state is StoreState.LIVE
    stops = queues.columns["max_offset"] * CQ_UNIT.itemsize
    ends = queues.columns["first_file"] + queues.columns["file_size"]
    # a short queue lacks none if it ends before its file, the first one, ends
    may_lack = (stops >= ends) | (queues.columns["first_file"] > 0)
    may_lack[list(queues.others)] = True
    asked = [(queues.keys_in_order[i], queues.queue(i).bounds) for i in np.flatnonzero(may_lack).tolist()]
    return {key for key, bounds in asked if bounds is None or (not is_live and _may_lack(bounds))}


def _lacks_entries(taken: Snapshot, key: QueueKey) -> bool:
    """Whether files of a queue may be lost or zeroed.

    Its files have no entry; or it may have lost its first ones; or it ends with a full file, as if the next
    file were lost. While a broker runs this shows nothing: the missing entries may not be dispatched yet.
    """
    queue = taken.queues.get(key)
    bounds = None if queue is None else queue.bounds
    return bounds is not None and taken.state is not StoreState.LIVE and _may_lack(bounds)


def _may_lack(bounds: QueueBounds) -> bool:
    stop = bounds.unit_stop * bounds.unit_size
    ends_full = stop == bounds.last_file + bounds.file_size
    return ends_full or stop <= bounds.first_file or bounds.may_lack_first_entries


def _ends_blank(taken: Snapshot, key: QueueKey) -> bool:
    """Whether a blank file follows the last file of a queue, which is full, or is all that the queue has."""
    queue = taken.queues.get(key)
    if queue is None or (bounds := queue.bounds) is None:
        return False
    stop = bounds.unit_stop * bounds.unit_size
    ends_file = stop == bounds.last_file + bounds.file_size or stop == bounds.first_file
    is_filled = queue.max_offset > bounds.unit_stop  # from the log
    path = place_in_files(bounds.directory, bounds.file_size, stop)[0]
    return ends_file and not is_filled and files_at(bounds.directory).exists(path)


def _last_extra(queue: QueueRange) -> int:
    """The physical offset of the last message whose entry was made from the log; -1 without one."""
    units = queue.extra_units
    return int(units["physical_offset"][-1]) if len(units) else -1


def _covers(taken: Snapshot, key: QueueKey, queue: LogQueue) -> bool:
    """Whether the snapshot has the queue from its first message in the log on.

    Without a broker also up to the last message.
    """
    there = taken.queues.get(key)
    if there is None or there.max_offset == there.min_offset:
        return False
    if (there.min_offset if there.bounds is None else there.bounds.first_offset) > queue.min_offset:
        return False
    newest = -1 if there.bounds is None else there.bounds.last_physical_offset
    return taken.state is StoreState.LIVE or there.max_offset >= queue.epochs[-1][2] or newest >= queue.last


def _dispatched(opened: Opened, taken: Snapshot) -> int:
    """The physical offset before which a broker has dispatched all messages.

    That is the newest message in a consume queue. No limit without a broker. A writer of this project that
    holds the lock does not dispatch earlier messages.
    """
    if (
        taken.state is not StoreState.LIVE
        or StoreLock.own_holder(f"{opened.path}/lock") is not None
        or StoreState.of(opened) is not StoreState.LIVE
    ):
        return OFFSET_MAX
    queues = Snapshot.take(
        opened, taken.log.relisted(), taken.state, lambda topic: True, lambda error: None
    ).queues.values()
    ends = (
        queue.bounds
        for queue in queues
        if queue.bounds is not None and queue.bounds.max_offset == queue.max_offset > queue.min_offset
    )
    return max((bounds.last_physical_offset for bounds in ends), default=-1)


def _had_messages(taken: Snapshot, key: QueueKey) -> bool:
    """Whether earlier messages came before those that a crash left without an entry."""
    queue = taken.queues.get(key)
    return queue is not None and queue.min_offset > 0


def _has_files_now(opened: Opened, key: QueueKey) -> bool:
    """Whether the queue has files now: a broker may have created them since the snapshot.

    Files that may not be read count.
    """
    try:
        return any(
            bool(opened.files.store_files(f"{opened.path}/{folder}/{key[0]}/{key[1]}"))
            for folder in ("consumequeue", "batchconsumequeue")
        )
    except StorePermissionError:
        return True


def _consumed_queues(opened: Opened) -> set[QueueKey]:
    """Queues of which a group has consumed messages, perhaps before their topic was deleted."""
    try:
        offsets = read_committed(opened).offsets
    except (StoreError, OSError):
        return set()
    return {
        (topic, queue_id)
        for (group, topic), table in offsets.items()
        if group != REVIVE_GROUP
        for queue_id, offset in table.items()
        if offset > 0
    }


# ---- what the log has --------------------------------------------------------------------------------------


def _queues_in_windows(
    opened: Opened,
    taken: Snapshot,
    topics: frozenset[str] | None,
    window: int | None,
    firsts: Sequence[int] = (),
) -> tuple[dict[QueueKey, LogQueue], bool]:
    """The queues of the topics as the log shows them, and whether the whole log was read.

    `topics` with LMQ_PREFIX are all light queues, and None all topics. `window` is the number of bytes read
    at each end, and before each of the ascending physical offsets `firsts`; None reads the whole log.
    """

    def look(base: int | None) -> tuple[dict[QueueKey, LogQueue], bool]:
        return _queues_in(opened, taken, topics, window, taken.log_end if base is None else base, firsts)

    return CommitState.read(opened).settle(opened, look)


def _queues_in(
    opened: Opened,
    taken: Snapshot,
    topics: frozenset[str] | None,
    window: int | None,
    stop: int | None,
    firsts: Sequence[int],
) -> tuple[dict[QueueKey, LogQueue], bool]:
    log = CommitLog.open(taken.log.directories, taken.log.cache)
    is_live, begins = taken.state is StoreState.LIVE, GivenUp.known(opened).queue_begins
    high = log.stop if stop is None else stop
    if window is None:
        return LogQueues.of(log, _chooser(topics), stop=high, is_live=is_live, begins=begins).queues, True
    limit, unit = min(high, log.min_offset + window), last_unit(log)
    newest, is_joined = min(written_stop(log) if unit is None else unit.stop, high), True
    queues, end = _seen_once(log, topics, log.min_offset, limit, begins, is_live=is_live, written=newest)
    if _reaches_end(log, end, limit, high):
        return queues, True
    ends = [(first, OFFSET_MAX) for first in firsts if end < first < newest - window]
    for place, written in [*ends, (newest, newest)]:
        start, limit = max(end, place - window), min(high, place + window * (place == newest))
        later, last = _seen_once(log, topics, start, limit, begins, is_live=is_live, written=written)
        for key, queue in later.items():
            queues.setdefault(key, LogQueue(*key)).join(queue)
        is_joined &= start == end
        end = last
    return queues, is_joined and _reaches_end(log, end, limit, high)


def _chooser(topics: frozenset[str] | None) -> Callable[[str], bool]:
    if topics is None:
        return lambda topic: True
    return is_light_queue if LMQ_PREFIX in topics else topics.__contains__


def _seen_once(
    log: CommitLog,
    topics: frozenset[str] | None,
    start: int,
    stop: int,
    begins: Mapping[QueueKey, int],
    *,
    is_live: bool,
    written: int,
) -> tuple[dict[QueueKey, LogQueue], int]:
    """The queues of the topics between two physical offsets, and the end of the last message.

    A process walks them once: the same files with the same bytes at both ends of what is `written` between
    the offsets have the same messages.
    """
    places = (start, max(start, min(stop, written) - _SAMPLE_SIZE))
    files = [file.identity for file in log.files if file.start < stop and file.stop > start]
    samples = [
        log.view(file).read(at - file.start, _SAMPLE_SIZE) for at in places if (file := log.file_at(at))
    ]
    key = (*files, *places, stop, is_live, topics, *begins.items(), *samples)
    if key not in _SEEN:
        found = LogQueues.of(log, _chooser(topics), start=start, stop=stop, is_live=is_live, begins=begins)
        if len(_SEEN) >= _SEEN_MAX:
            _SEEN.pop(next(iter(_SEEN)))
        _SEEN[key] = found.queues, found.cuts[-1]
    queues, end = _SEEN[key]
    return {key: queue.copy() for key, queue in queues.items()}, end


def _reaches_end(log: CommitLog, end: int, limit: int, high: int) -> bool:
    """Whether a walk has seen all of a log.

    The walk went up to `limit`, its last message ends at `end`; the log ends at `high` or before.
    """
    file = log.file_at(end)
    return limit >= high or (file is not None and not any(log.view(file).read(end - file.start, 8)))
