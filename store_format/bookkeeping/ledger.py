"""What `.rmqlog` keeps of what was done to a store: batches that were committed (`ledger.json`), and batches
that were written without this store (`left-out`); messages that a recovery has given up (`given-up.json`);
and what the services have done (`services.json`).

With the ledger a repeated commit does nothing, the next writer knows where the log ended, and batches that
were cut or overwritten later are noticed. It keeps one entry for each key of a stream or a service, and for
the newest keys of batch jobs: each job may have a new key, and every commit writes the whole file.

Spark repeats a batch after a crash with the same messages, in other partitions and with other ids and times.
So batches are compared by what does not change: the number of their messages, and the sum of their bodies.

A broker may hold the store when a batch is written without it. So the note about that is a file of its own,
and is written without the store's lock. The store's next commit removes the notes of batches that its ledger
knows.

A recovery removes the evidence of lost messages: the queue entries behind the log's end, and in a salvaged
copy the damaged bytes. Later checks report what is noted here, and find no message missing.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from numbers import Integral
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple
from zlib import crc32

from store_format.bookkeeping.identity import (
    ClusterMember,
    StagedFile,
    is_lost,
    members_from,
    note_bytes,
    parsed_json,
    read_note,
    refuse_types,
    write_note,
)
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import CorruptStoreError, OptionError, StoreError
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.layouts import OFFSET_MAX
from store_format.names import QueueKey
from store_format.opened.store import OWN_DIRECTORY, Opened

QUEUES_MAX = 1000  # whose ends are kept: those that were written to last
JOB_KEYS_MAX = 500  # keys of batch jobs that are kept: those of the newest commits
_SERVICE_PREFIX = "rmqlog/"  # of the keys of this project's services
_Damage = Callable[["LedgerEntry", CommitLog], str | None]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One committed batch of `units` messages in the physical range [start, stop).

    `last_crc` is the CRC32 of all bytes of its last message. `suspect`: another process had the store open
    during the commit, so that all messages are checked later, not only the last one. `messages` and `bodies`
    (the sum of StagedFile.bodies) are those of the whole batch, in all stores of a cluster. `kept`: the key
    is never forgotten. `began` is the progress from which a service's turn went on to `number`; None for
    other batches. `members` are the stores that got messages of a batch over a cluster.
    """

    number: int
    journal: str
    start: int
    stop: int
    last_offset: int
    last_size: int
    last_crc: int
    units: int = 0
    suspect: bool = False
    messages: int = 0
    bodies: int = 0
    kept: bool = False
    began: int | None = None
    members: tuple[ClusterMember, ...] = ()
    given_up: bool = False  # its last message was lost, and a recovery has said so
    # (topic, queue id, first queue offset, stop); empty for an old batch
    queues: tuple[tuple[str, int, int, int], ...] = ()

    def damage(self, log: CommitLog) -> str | None:
        """What happened to the batch since the commit; None if it is intact or was deleted by retention."""
        if self.last_offset < log.min_offset or not self.last_size:
            return None
        try:
            data = log.read(self.last_offset, self.last_size)
        except StoreError as error:
            return f"was cut: {error}"
        if crc32(data) != self.last_crc:
            return "was cut or overwritten: its last message has other bytes"
        return self._damage_within(log) if self.suspect and self.start >= log.min_offset else None

    def _damage_within(self, log: CommitLog) -> str | None:
        """How a broker overwrote the batch's first messages but not its last; None if it did not."""
        found = 0
        for run in log.walk(self.start, self.stop, verify_crc=True):
            assert not isinstance(run, Damage)  # only a walk with `resync` has damage
            found += len(run.physical_offsets)
        return (
            None
            if found == self.units
            else f"was overwritten: {found} messages found where {self.units} were written"
        )

    def is_gone(self, log: CommitLog) -> bool:
        """Whether the log has no message of a batch any more: it was cut where the batch began, or before.

        The part of a batch over a cluster that another store has is not known here.
        """
        if self.members or self.start < log.min_offset or self.damage(log) is None:
            return False
        return next(log.runs(self.start, verify_crc=True), None) is None


@dataclass(frozen=True, slots=True)
class ServiceTurn:
    """The key of a batch that a service commits: its progress goes from `began` to `number`.

    `part` names the service and what has a progress of its own, such as `schedule/3` for delay level 3.
    `key_id` is the key in the ledger: the service's own, or that of the caller's batch.
    """

    part: str
    number: int
    began: int
    batch: str | None = None  # the id of the caller's key; `number` is then the number of the batch

    @property
    def key_id(self) -> str:
        return _SERVICE_PREFIX + self.part if self.batch is None else self.batch

    @staticmethod
    def user_key(key: object) -> tuple[str, int]:
        """A user's key as (text, int). Raises OptionError for other values, and for the id of a service."""
        match key:
            case (str(name), given) if not isinstance(given, bool) and isinstance(given, Integral):
                number = int(given)
                if not name.startswith(_SERVICE_PREFIX) and 0 <= number <= OFFSET_MAX:
                    return name, number
        raise OptionError(
            f"key: expected (id, number), found {repr(key)[:100]}: a text that does not begin with "
            f"{_SERVICE_PREFIX!r}, and a whole number from 0 to {OFFSET_MAX} that is higher for each later "
            "batch of this id, such as 20261130"
        )


@dataclass(frozen=True, slots=True)
class Ledger:
    """`keys` by the id of a key; `last` is the last committed batch, with or without a key.

    `ends` has the offset behind the last message of each queue of that batch, and of the batches right before
    it: of all that were written behind the physical offset `ends_from`. `begun` names commits over a cluster
    that this store completed, and the members that may not know yet that they must complete theirs. `created`
    has the newest topics that commits created: the number of queues, and the counter of the topics.json that
    has the topic since.
    """

    keys: Mapping[str, LedgerEntry] = field(default_factory=dict)
    last: LedgerEntry | None = None
    begun: Mapping[str, tuple[ClusterMember, ...]] = field(default_factory=dict)
    ends: Mapping[QueueKey, int] = field(default_factory=dict)
    ends_from: int = OFFSET_MAX
    created: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @staticmethod
    def path(opened: Opened) -> str:
        return opened.own("ledger.json")

    @staticmethod
    def read(opened: Opened) -> Ledger:
        """The ledger; an empty one without a file. Raises CorruptStoreError for a file that is no ledger.

        That of a commit with ASYNC_FLUSH may be lost with the power. Then that of the last flush counts.
        """
        path = Ledger.path(opened)
        data = files_at(path).read(path)
        if is_lost(data) and (kept := opened.files.read(_backup_path(opened))) is not None:
            data, path = kept, _backup_path(opened)
        return Ledger() if data is None else parsed_json(data, path, "a ledger of this project", _ledger)

    @staticmethod
    def is_lost(opened: Opened) -> bool:
        """Whether the file was renamed into its place, and never reached the disk."""
        return is_lost(opened.files.read(Ledger.path(opened)))

    def write(self, opened: Opened, files: FileWrites) -> None:
        """Replaces the ledger. Without a wait for the disk, the one that is there is kept for a power loss,
        until `drop_backup`.
        """
        path, backup = Ledger.path(opened), _backup_path(opened)
        if not files.is_sync and files_at(backup).stat_identity(backup) is None:
            FileWrites(sync=True).replace(
                backup, files_at(path).read(path) or note_bytes(_as_value(Ledger()))
            )
        write_note(path, _as_value(self), files)
        if files.is_sync:
            Ledger.drop_backup(opened, files)

    @staticmethod
    def drop_backup(opened: Opened, files: FileWrites) -> None:
        """Removes what is kept of the ledger of the last flush, once the ledger itself is on the disk.

        If the ledger was lost, the kept one takes its place first.
        """
        if opened.files.stat_identity(_backup_path(opened)) is not None:
            if Ledger.is_lost(opened):
                write_note(Ledger.path(opened), _as_value(Ledger.read(opened)), files)
            files.remove(_backup_path(opened))
            files.sync_directory(f"{opened.path}/{OWN_DIRECTORY}")

    @property
    def members(self) -> set[ClusterMember]:
        """The stores that any batch of the ledger has messages in."""
        batches = [*self.keys.values(), *(() if self.last is None else (self.last,))]
        return {member for batch in batches for member in batch.members}

    def without_members(self, ids: Collection[str]) -> Ledger:
        """The ledger that does not name these stores."""

        def forget(entry: LedgerEntry) -> LedgerEntry:
            return replace(entry, members=tuple(each for each in entry.members if each.id not in ids))

        keys = {key: forget(entry) for key, entry in self.keys.items()}
        return replace(self, keys=keys, last=None if self.last is None else forget(self.last))

    def has(self, key: tuple[str, int]) -> bool:
        """Whether the key's number, or a higher one, is committed."""
        entry = self.keys.get(key[0])
        return entry is not None and entry.number >= key[1]

    def with_entry(
        self,
        key_id: str | None,
        entry: LedgerEntry,
        ends: Mapping[QueueKey, int] | None = None,
        created: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> Ledger:
        """The ledger after the commit of this batch.

        The ends of earlier batches are forgotten if anything was written between them and this one.
        """
        goes_on = self.last is not None and self.last.stop == entry.start
        known = dict(self.ends) if goes_on else {}
        for queue, end in (ends or {}).items():
            known.pop(queue, None)
            known[queue] = end
        newest = dict(list(known.items())[-max(QUEUES_MAX, len(ends or ())) :])
        ends_from = self.ends_from if goes_on and len(newest) == len(known) else entry.start
        older = {topic: each for topic, each in self.created.items() if topic not in created}
        topics = dict(list({**older, **created}.items())[-max(QUEUES_MAX, len(created)) :])
        changed = self if key_id is None else self.with_key(key_id, entry)
        return replace(changed, last=entry, ends=newest, ends_from=ends_from, created=topics)

    def with_key(self, key_id: str, entry: LedgerEntry) -> Ledger:
        """The ledger with this entry as the newest key. The oldest keys of batch jobs are forgotten, and the
        queues of older batches.
        """
        keys = {key: each for key, each in self.keys.items() if key != key_id} | {key_id: entry}
        jobs = [key for key, each in keys.items() if not each.kept and not key.startswith(_SERVICE_PREFIX)]
        for key in jobs[:-JOB_KEYS_MAX]:
            del keys[key]
        room = QUEUES_MAX
        for key in [*keys][-2::-1]:
            room -= len(keys[key].queues)
            if room < 0 and keys[key].queues:
                keys[key] = replace(keys[key], queues=())
        return replace(self, keys=keys)

    def resume(self, part: str, progress: int, log: CommitLog) -> int:
        """Where a service goes on whose state file says `progress`.

        The end of the last committed turn counts if the turn began at `progress` and its batch is whole in
        the log: a crash came between the commit and the state file. Otherwise the state file counts, because
        a broker or a person may have changed it.
        """
        entry = self.entry_of(part)
        if entry is None or entry.began != progress or entry.damage(log) is not None:
            return progress
        return entry.number

    def entry_of(self, part: str) -> LedgerEntry | None:
        """The last committed turn of a service."""
        return self.keys.get(_SERVICE_PREFIX + part)

    def ends_with_crc_property(self, log: CommitLog) -> bool:
        """Whether the last unit of the log ends in the CRC property; False for a log without units.

        It shows whether a broker appends the property to each message (enabledAppendPropCRC, spec 2.7). A
        broker with forceVerifyPropCRC=true truncates the log at the first message without the property, so a
        writer does what the last message of the log does. Reads only lengths and heads, from the last commit
        of the ledger on, or of the last file with a unit.
        """
        starts = [file.start for file in reversed(log.files)]
        if self.last is not None and self.last.last_size and log.file_at(self.last.last_offset) is not None:
            starts.insert(0, self.last.last_offset)
        ends = (_end_of_units(log, start) for start in starts)
        end = next((each for each in ends if each is not None), None)
        return end is not None and log.has_crc_property_before(end)

    def with_suspect(self, journal: str) -> Ledger:
        """The ledger with the batch of this journal marked as suspect."""
        last = self.last
        if last is not None and last.journal == journal:
            last = replace(last, suspect=True)
        keys = {
            key: replace(entry, suspect=True) if entry.journal == journal else entry
            for key, entry in self.keys.items()
        }
        return replace(self, keys=keys, last=last)

    def with_given_up(self, is_lost: Callable[[int], bool]) -> Ledger:
        """The ledger that gives up the batches whose last message, by its physical offset, is lost."""

        def give_up(entry: LedgerEntry) -> LedgerEntry:
            return replace(entry, given_up=True) if is_lost(entry.last_offset) and entry.last_size else entry

        keys = {key: give_up(entry) for key, entry in self.keys.items()}
        return replace(self, keys=keys, last=None if self.last is None else give_up(self.last))

    def reports(self, log: CommitLog, damage: _Damage | None = None) -> list[str]:
        """A sentence for each batch that was cut or overwritten; `damage` says what happened to it."""
        return list(filter(None, (_batch_report(key, entry, log, damage) for key, entry in self._entries())))

    def new_reports(self, log: CommitLog) -> list[str]:
        """A sentence for each batch that was cut or overwritten since the last commit.

        `reports` checks every batch; this checks the newest first and stops at an intact batch: a log is cut
        or overwritten from some place up to its end, so the batches before an intact batch are intact as
        well. Suspect batches are always checked.
        """
        found, is_intact = [], False
        for key, entry in sorted(self._entries(), key=lambda each: each[1].stop, reverse=True):
            if is_intact and not entry.suspect:
                continue
            report = _batch_report(key, entry, log)
            if report is not None:
                found.append(report)
            elif entry.last_size:
                is_intact = True
        return found[::-1]

    def _entries(self) -> Collection[tuple[str, LedgerEntry]]:
        """Each batch once, with its name for a report."""
        entries = {entry.journal: (key, entry) for key, entry in self.keys.items()}
        if self.last is not None:
            entries.setdefault(self.last.journal, ("the last batch", self.last))
        return entries.values()


def _end_of_units(log: CommitLog, start: int) -> int | None:
    """The physical offset behind the last unit from `start` on, where a unit begins; None without a unit."""
    found = None
    for run in log.walk(start):
        assert not isinstance(run, Damage)  # Only a walk with `resync` has damage.
        found = run.file.start + run.stop
    return found


def _batch_report(
    key: str, entry: LedgerEntry, log: CommitLog, damage_of: _Damage | None = None
) -> str | None:
    damage = None if entry.given_up else (damage_of or LedgerEntry.damage)(entry, log)
    return (
        None
        if damage is None
        else f"batch {entry.number} of {key}, commitlog {entry.start} to {entry.stop}, {damage}"
    )


_NAMES = tuple(field.name for field in fields(LedgerEntry))
_values_of = attrgetter(*_NAMES)
_log = logging.getLogger(__name__)


def _ledger(value: Any) -> Ledger:  # Any: JSON
    keys = {str(key): _ledger_entry(entry) for key, entry in value["keys"].items()}
    begun = {str(journal): members_from(members) for journal, members in value["begun"].items()}
    last = None if value["last"] is None else _ledger_entry(value["last"])
    ends = {
        (str(topic), int(queue_id)): int(end)
        for topic, table in value["ends"].items()
        for queue_id, end in table.items()
    }
    created = {
        str(topic): (int(number), int(counter)) for topic, (number, counter) in value["created"].items()
    }
    return Ledger(keys, last, begun, ends, int(value["ends_from"]), created)


def _ledger_entry(value: Mapping[str, Any]) -> LedgerEntry:  # Any: JSON
    entry = LedgerEntry(
        int(value["number"]),
        str(value["journal"]),
        int(value["start"]),
        int(value["stop"]),
        int(value["last_offset"]),
        int(value["last_size"]),
        int(value["last_crc"]),
        int(value["units"]),
        bool(value["suspect"]),
        int(value["messages"]),
        int(value["bodies"]),
        bool(value["kept"]),
        None if value["began"] is None else int(value["began"]),
        members_from(value["members"]),
        bool(value["given_up"]),
        tuple(
            (str(topic), int(queue_id), int(first), int(stop))
            for topic, queue_id, first, stop in value["queues"]
        ),
    )
    refuse_types(entry)
    return entry


def _backup_path(opened: Opened) -> str:
    return opened.own("ledger.json.bak")


def _as_value(ledger: Ledger) -> dict[str, Any]:  # Any: JSON
    ends: dict[str, dict[int, int]] = {}
    for (topic, queue_id), end in ledger.ends.items():
        ends.setdefault(topic, {})[queue_id] = end
    return {
        "last": None if ledger.last is None else _as_json(ledger.last),
        "keys": {key: _as_json(entry) for key, entry in ledger.keys.items()},
        "begun": dict(ledger.begun),
        "ends": ends,
        "ends_from": ledger.ends_from,
        "created": dict(ledger.created),
    }


def _as_json(entry: LedgerEntry) -> dict[str, Any]:  # Any: JSON
    return dict(zip(_NAMES, _values_of(entry), strict=True))


# ---- messages that a recovery has given up -----------------------------------------------------------------


FILLER_TOPIC = "rmq_sys_rmqlog_filler"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """`messages` are (topic, queue id, first queue offset, stop); of other lost messages nothing is known.

    `fillers` are the physical offsets [start, stop) of damaged bytes that a salvage has filled, with messages
    of FILLER_TOPIC. The log may have been cut there since.

    `begins` are (topic, queue id, physical offset) of queues whose first messages were given up: earlier
    messages are of a topic that was deleted before.

    `is_least`: more messages may have been given up, of queues of which nothing showed the end.

    `deleted` are (topic, physical offset) of topics that this project has deleted: their messages up to this
    offset belong to the deleted topic, also if a topic of this name is created again.

    `torn` are (physical offset, store timestamp in ms, count) of messages of which a crash left a part, where
    the log was cut. The count is 1 if only this part shows the message, and 0 for one of `messages`.
    """

    NAME: ClassVar = "given-up.json"  # in `.rmqlog`

    messages: tuple[tuple[str, int, int, int], ...] = ()
    fillers: tuple[tuple[int, int], ...] = ()
    begins: tuple[tuple[str, int, int], ...] = ()
    is_least: bool = False
    deleted: tuple[tuple[str, int], ...] = ()
    torn: tuple[tuple[int, int, int], ...] = ()

    @staticmethod
    def read(opened: Opened) -> GivenUp:
        """The notes of all recoveries. Raises CorruptStoreError for a file that is not such a note."""
        return read_note(opened.own(GivenUp.NAME), "the notes of a recovery", _given_up) or GivenUp()

    @staticmethod
    def known(opened: Opened) -> GivenUp:
        """As `read`, but empty if the notes cannot be read, which `verify` reports."""
        with suppress(StoreError, OSError):
            return GivenUp.read(opened)
        return GivenUp()

    def add_to(self, opened: Opened, files: FileWrites) -> None:
        """Adds these to the notes of the store. A second call changes nothing."""
        before = GivenUp.read(opened)
        before._replace_by(before.with_more(self), opened, files)

    @staticmethod
    def forget_topics(
        opened: Opened, topics: Collection[str], files: FileWrites, deleted: tuple[tuple[str, int], ...] = ()
    ) -> None:
        """Removes the notes about topics that were deleted: a topic that is created again begins at 0.

        `deleted` is noted instead, as the member of this name.
        """
        before = GivenUp.read(opened)
        left = tuple(each for each in before.messages if each[0] not in topics)
        begins = tuple(each for each in before.begins if each[0] not in topics)
        now = replace(before, messages=left, begins=begins).with_more(GivenUp(deleted=deleted))
        before._replace_by(now, opened, files)

    def _replace_by(self, now: GivenUp, opened: Opened, files: FileWrites) -> None:
        if now != self:
            write_note(opened.own(GivenUp.NAME), asdict(now), files)

    @property
    def count(self) -> int:
        return sum(stop - first for _, _, first, stop in self.messages) + sum(each[2] for each in self.torn)

    def __str__(self) -> str:
        """What was given up; empty for nothing."""
        if self.count:
            return f"{'at least ' * self.is_least}{self.count:,} message{'s' * (self.count != 1)}"
        if self.is_least:
            return "an unknown number of messages"
        size = sum(stop - start for start, stop in self.fillers)
        return f"what was in {size:,} damaged bytes" if size else ""

    @property
    def ranges(self) -> dict[QueueKey, list[tuple[int, int]]]:
        """The queue offsets [first, stop) of each queue."""
        found: dict[QueueKey, list[tuple[int, int]]] = {}
        for topic, queue_id, first, stop in self.messages:
            found.setdefault((topic, queue_id), []).append((first, stop))
        return found

    @property
    def queue_begins(self) -> dict[QueueKey, int]:
        """The physical offsets at which queues begin whose first messages were given up."""
        return {(topic, queue_id): physical for topic, queue_id, physical in self.begins}

    def within(self, queues: Mapping[QueueKey, tuple[int, int]]) -> GivenUp:
        """The messages whose queue offsets lie in [first, stop) of these queues."""
        found = []
        for topic, queue_id, first, stop in self.messages:
            low, high = queues.get((topic, queue_id), (0, 0))
            if max(first, low) < min(stop, high):
                found.append((topic, queue_id, max(first, low), min(stop, high)))
        return GivenUp(tuple(found))

    def with_more(self, more: GivenUp) -> GivenUp:
        """Both, and what is in both once: a recovery that was broken off notes the rest again."""
        messages = [((topic, id_), first, stop) for topic, id_, first, stop in self.messages + more.messages]
        fillers = [(("", 0), start, stop) for start, stop in self.fillers + more.fillers]
        begins = {each[:2]: each[2] for each in sorted(self.begins + more.begins)}
        # the entry of a torn message is cut before its head
        torn = {each[:2]: each[2] for each in sorted(self.torn + more.torn, reverse=True)}
        return GivenUp(
            tuple((*queue, first, stop) for queue, first, stop in _joined(messages)),
            tuple((start, stop) for _, start, stop in _joined(fillers)),
            tuple((*queue, physical) for queue, physical in begins.items()),
            self.is_least or more.is_least,
            tuple(dict(sorted(self.deleted + more.deleted)).items()),
            tuple(sorted((*each, count) for each, count in torn.items())),
        )


def _joined(ranges: Iterable[tuple[QueueKey, int, int]]) -> list[tuple[QueueKey, int, int]]:
    """The ranges, sorted, with those of a queue that overlap or touch as one."""
    found: list[tuple[QueueKey, int, int]] = []
    for queue, start, stop in sorted(ranges):
        if found and found[-1][0] == queue and start <= found[-1][2]:
            found[-1] = queue, found[-1][1], max(stop, found[-1][2])
        else:
            found.append((queue, start, stop))
    return found


def _given_up(value: Any) -> GivenUp:  # Any: JSON
    return GivenUp(
        tuple((str(topic), int(id_), int(low), int(high)) for topic, id_, low, high in value["messages"]),
        tuple((int(start), int(stop)) for start, stop in value["fillers"]),
        tuple((str(topic), int(id_), int(physical)) for topic, id_, physical in value["begins"]),
        bool(value.get("is_least", False)),
        tuple((str(topic), int(physical)) for topic, physical in value.get("deleted", ())),
        tuple((int(physical), int(timestamp), int(n)) for physical, timestamp, n in value.get("torn", ())),
    )


# ---- what the services have done ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServiceCounters:
    """The counters of one service. `turns` are those that did something; times are in ms."""

    turns: int = 0
    done: int = 0  # messages written; clean: files deleted
    failures: int = 0  # turns that ended with an error
    last_turn: int = 0
    late_ms_max: int = 0

    def after(self, done: int, late_ms: int, now_ms: int, *, failed: bool) -> ServiceCounters:
        """The counters after one more turn, at `now_ms`."""
        return ServiceCounters(
            self.turns + 1,
            self.done + done,
            self.failures + failed,
            now_ms,
            max(self.late_ms_max, late_ms),
        )

    @staticmethod
    def read_all(opened: Opened) -> dict[str, ServiceCounters] | None:
        """The counters by service; None before the first turn that did something.

        A file that cannot be read counts as empty.
        """
        try:
            return read_note(opened.own("services.json"), "the counters of the services", _counters)
        except CorruptStoreError as error:
            _log.warning("%s cannot be read; the counters begin at 0", error.file)
            return {}

    @staticmethod
    def write_all(opened: Opened, counters: Mapping[str, ServiceCounters], files: FileWrites) -> None:
        services = {name: asdict(each) for name, each in counters.items()}
        write_note(opened.own("services.json"), {"services": services}, files)


def _counters(value: Any) -> dict[str, ServiceCounters]:  # Any: JSON
    return {
        str(name): ServiceCounters(**{key: int(value) for key, value in each.items()})
        for name, each in value["services"].items()
    }


# ---- batches that were written without a store -------------------------------------------------------------


_SUFFIX, _KEPT_SUFFIX = ".json", ".kept.json"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A batch that may be committed in the `members`, and not in the store with this note."""

    NAME: ClassVar = "left-out"  # in `.rmqlog`

    key: tuple[str, int]
    members: tuple[ClusterMember, ...]

    def add_to(self, opened: Opened, files: FileWrites, *, is_kept: bool) -> None:
        """Writes the note, and removes older notes of the same key.

        Of the keys of batch jobs (not `is_kept`), the notes of the newest stay, as in the ledger.
        """
        directory = files.make_directories(opened.path, OWN_DIRECTORY, LeftOut.NAME)
        key_id, number = self.key
        prefix = f"{hashlib.sha256(key_id.encode()).hexdigest()[:16]}-"
        self._write(f"{directory}/{prefix}{number}{_KEPT_SUFFIX if is_kept else _SUFFIX}", files)
        names = files_at(directory).names(directory)
        for other in names:
            if other.startswith(prefix) and other.endswith(_SUFFIX) and _number(other) < number:
                files.remove(f"{directory}/{other}")
        jobs = [each for each in names if each.endswith(_SUFFIX) and not each.endswith(_KEPT_SUFFIX)]
        if len(jobs) > JOB_KEYS_MAX:
            for path in sorted((f"{directory}/{each}" for each in jobs), key=_changed_at)[:-JOB_KEYS_MAX]:
                files.remove(path)

    def _write(self, path: str, files: FileWrites) -> None:
        write_note(path, {"key": self.key, "members": self.members}, files)

    @staticmethod
    def all_members(opened: Opened) -> set[ClusterMember]:
        """The stores that the notes name. Raises CorruptStoreError for a file that is not a note."""
        return {member for note in _notes(opened).values() for member in note.members}

    @staticmethod
    def settle(opened: Opened, files: FileWrites) -> None:
        """Removes the notes of batches that the store's ledger has."""
        notes = _notes(opened)
        if notes:
            ledger = Ledger.read(opened)
            _remove(opened, [path for path, note in notes.items() if ledger.has(note.key)], files)

    @staticmethod
    def forget_members(opened: Opened, ids: Collection[str], files: FileWrites) -> None:
        """Removes these stores from the notes, and the notes that name no other store."""
        empty = []
        for path, note in _notes(opened).items():
            members = tuple(each for each in note.members if each.id not in ids)
            if not members:
                empty.append(path)
            elif members != note.members:
                replace(note, members=members)._write(path, files)
        _remove(opened, empty, files)


def _remove(opened: Opened, paths: list[str], files: FileWrites) -> None:
    for path in paths:
        files.remove(path)
    if paths:
        files.remove_directory(opened.own(LeftOut.NAME))


def _notes(opened: Opened) -> dict[str, LeftOut]:
    """The notes by path."""
    directory = opened.own(LeftOut.NAME)
    names = sorted(files_at(directory).names(directory, missing_ok=True))
    paths = [f"{directory}/{name}" for name in names if name.endswith(_SUFFIX)]
    notes = {path: read_note(path, "a note of this project", _note) for path in paths}
    return {path: note for path, note in notes.items() if note is not None}


def _note(value: Any) -> LeftOut:  # Any: JSON
    key_id, number = value["key"]
    return LeftOut((str(key_id), int(number)), members_from(value["members"]))


def _changed_at(path: str) -> int:
    identity = files_at(path).stat_identity(path)
    return 0 if identity is None else identity[2]


def _number(name: str) -> int:
    digits = name.partition("-")[2].partition(".")[0]
    return int(digits) if digits.isdecimal() else -1


# ---- batches whose key is committed already ----------------------------------------------------------------


class CommittedBatch(NamedTuple):
    """The highest committed batch of a key: its number, and what it has in all stores of a cluster."""

    number: int
    messages: int
    bodies: int

    def note_repeat(
        self,
        where: str,
        key: tuple[str, int],
        staged: Iterable[StagedFile],
        *,
        is_stream: bool,
        damage: str | None = None,
    ) -> str:
        """Logs that the messages of a repeated batch are not written, and returns that report.

        Raises OptionError for another batch with the number of the committed one: another number of messages,
        or, for a job, other bodies. A stream may repeat a batch whose rows come from uuid() or a clock, so
        its other bodies are only reported. `damage` says that messages of the committed batch are lost since:
        an error for a job, which is to write them.
        """
        messages, bodies = StagedFile.totals(staged)
        others, same_number = self.bodies != bodies, self.number == key[1]
        head = f"{where}: batch {key[1]} of {key[0]}"
        if messages and same_number and (self.messages != messages or (others and not is_stream)):
            found = "other bodies" if self.messages == messages else f"{self.messages} messages"
            advice = (
                "A checkpoint that was restored from a backup numbers its batches again: start the query "
                "with a new checkpoint, from the first row that is missing in the store"
                if is_stream
                else "Give each batch its own txnVersion, higher than the last"
            )
            raise OptionError(
                f"{head} has {messages} messages and is committed already, with {found}. Nothing was "
                f"written. {advice}"
            )
        report = f"{head} is not written, {messages} message{'s' * (messages != 1)}: "
        if same_number:
            report += "it is committed already" + ", with as many messages and other bodies" * others
        else:
            report += (
                f"batch {self.number} of {key[0]} is committed already. Batch numbers go back after a "
                "checkpoint was restored from a backup, or with a lower txnVersion; if these messages are "
                "new, they are not in the store"
            )
        if damage is not None:
            report += (
                f". But messages of batch {self.number} are lost: it {damage}. Write the lost messages under "
                "another key, or the whole batch again with txnLostBatch=again (CommitOptions.lost_batch): "
                "the store then has its other messages twice"
            )
            if messages and same_number and not is_stream:
                raise OptionError(report)
        (_log.warning if messages else _log.info)("%s", report)
        return report
