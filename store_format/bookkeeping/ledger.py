"""The batches that were committed, in `.rmqlog/ledger.json`: the highest number and the place of each key.

With the ledger a repeated commit does nothing, the next writer knows where the log ended, and batches that
were cut or overwritten later are noticed. It keeps one entry for each key of a stream or a service, and for
the newest keys of batch jobs: each job may have a new key, and every commit writes the whole file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any
from zlib import crc32

from store_format.bookkeeping.identity import ClusterMember, members_from
from store_format.bookkeeping.staged_file import OWN_DIRECTORY, refuse_types
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import CorruptStoreError, OptionError, StoreError
from store_format.files.read import read_bytes, stat_identity
from store_format.files.write import FileWrites
from store_format.names import QueueKey

QUEUES_MAX = 1000  # whose ends are kept: those that were written to last
JOB_KEYS_MAX = 500  # keys of batch jobs that are kept: those of the newest commits
SERVICE_PREFIX = "rmqlog/"  # of the keys of this project's services
_UNKNOWN = -1
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One committed batch of `units` messages in the physical range [start, stop).

    `last_crc` is the CRC32 of all bytes of its last message. `suspect`: another process had the store open
    during the commit, so that all messages are checked later, not only the last one. `messages` and `bodies`
    (the sum of StagedFile.bodies) are those of the whole batch, in all stores of a cluster; -1 in a ledger of
    an older release. `kept`: the key is never forgotten. `began` is the progress from which a service's turn
    went on to `number`; None for other batches. `members` are the stores that got messages of a batch over a
    cluster.
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
    messages: int = _UNKNOWN
    bodies: int = _UNKNOWN
    kept: bool = False
    began: int | None = None
    members: tuple[ClusterMember, ...] = ()
    given_up: bool = False  # its last message was lost, and a recovery has said so

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
            if isinstance(run, Damage):
                return (
                    f"was overwritten: {run.file.path} at byte {run.start}: expected {run.expected}, "
                    f"found {run.found}"
                )
            found += len(run.physical_offsets)
        return (
            None
            if found == self.units
            else f"was overwritten: {found} messages found where {self.units} were written"
        )


def refuse_service_key(key_id: str) -> str:
    """Returns the id of a key that a user gives. Raises OptionError for an id of this project's services."""
    if key_id.startswith(SERVICE_PREFIX):
        raise OptionError(
            f"key: expected an id that does not begin with {SERVICE_PREFIX!r}, found {key_id[:100]!r}; the "
            "services of this project have such ids"
        )
    return key_id


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
        return SERVICE_PREFIX + self.part if self.batch is None else self.batch


@dataclass(frozen=True, slots=True)
class Ledger:
    """`keys` by the id of a key; `last` is the last committed batch, with or without a key.

    `ends` has the offset behind the last message of each queue of that batch, and of the batches right before
    it; empty in a ledger of an older release. `begun` names commits over a cluster that this store completed,
    and the members that may not know yet that they must complete theirs.
    """

    keys: Mapping[str, LedgerEntry] = field(default_factory=dict)
    last: LedgerEntry | None = None
    begun: Mapping[str, tuple[ClusterMember, ...]] = field(default_factory=dict)
    ends: Mapping[QueueKey, int] = field(default_factory=dict)

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
        self, key_id: str | None, entry: LedgerEntry, ends: Mapping[QueueKey, int] | None = None
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
        return replace(self if key_id is None else self.with_key(key_id, entry), last=entry, ends=newest)

    def with_key(self, key_id: str, entry: LedgerEntry) -> Ledger:
        """The ledger with this entry as the newest key. The oldest keys of batch jobs are forgotten."""
        keys = {key: each for key, each in self.keys.items() if key != key_id} | {key_id: entry}
        jobs = [key for key, each in keys.items() if not each.kept and not key.startswith(SERVICE_PREFIX)]
        for key in jobs[:-JOB_KEYS_MAX]:
            del keys[key]
        return replace(self, keys=keys)

    def resume(self, part: str, progress: int, log: CommitLog) -> int:
        """Where a service goes on whose state file says `progress`.

        The end of the last committed turn counts if the turn began at `progress` and its batch is whole in
        the log: a crash came between the commit and the state file. Otherwise the state file counts, because
        a broker or a person may have changed it.
        """
        entry = self.keys.get(SERVICE_PREFIX + part)
        if entry is None or entry.began != progress or entry.damage(log) is not None:
            return progress
        return entry.number

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

    def reports(self, log: CommitLog) -> list[str]:
        """A sentence for each batch that was cut or overwritten."""
        return list(filter(None, (_batch_report(key, entry, log) for key, entry in self._entries())))

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


def _batch_report(key: str, entry: LedgerEntry, log: CommitLog) -> str | None:
    damage = None if entry.given_up else entry.damage(log)
    return (
        None
        if damage is None
        else f"batch {entry.number} of {key}, commitlog {entry.start} to {entry.stop}, {damage}"
    )


_NAMES = tuple(field.name for field in fields(LedgerEntry))
_values_of = attrgetter(*_NAMES)


def ledger_path(root: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/ledger.json"


def read_ledger(root: str) -> Ledger:
    """The ledger; an empty one without a file. Raises CorruptStoreError for a file that is not a ledger.

    The ledger of a commit with ASYNC_FLUSH may be lost with the power. Then that of the last flush counts.
    """
    path = ledger_path(root)
    data, before = read_bytes(path), None
    if is_lost(data):
        before = read_bytes(_backup_path(root))
    return _parsed(data, path) if before is None else _parsed(before, _backup_path(root))


def is_lost(data: bytes | None) -> bool:
    """Whether these are the bytes of a JSON file that was renamed into its place, and never reached the disk.

    Such a file has no byte, or bytes of zeros, which no JSON text has.
    """
    return data is not None and (not data or b"\0" in data)


def _parsed(data: bytes | None, path: str) -> Ledger:
    if data is None:
        return Ledger()
    try:
        value = json.loads(data)
        keys = {str(key): _ledger_entry(entry, str(key)) for key, entry in value["keys"].items()}
        # of a release that did not keep keys in the order of their commits
        if any("kept" not in entry for entry in value["keys"].values()):
            keys = dict(sorted(keys.items(), key=lambda each: each[1].start))
        begun = {str(journal): members_from(members) for journal, members in value.get("begun", {}).items()}
        last = None if value["last"] is None else _ledger_entry(value["last"])
        ends = {
            (str(topic), int(queue_id)): int(end)
            for topic, table in value.get("ends", {}).items()
            for queue_id, end in table.items()
        }
        return Ledger(keys, last, begun, ends)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "a ledger of this project", str(error) or "something else"
        ) from error


def _ledger_entry(value: Mapping[str, Any], key_id: str = "") -> LedgerEntry:  # Any: JSON
    entry = LedgerEntry(
        int(value["number"]),
        str(value["journal"]),
        int(value["start"]),
        int(value["stop"]),
        int(value["last_offset"]),
        int(value["last_size"]),
        int(value["last_crc"]),
        int(value.get("units", 0)),
        bool(value.get("suspect", False)),
        int(value.get("messages", _UNKNOWN)),
        int(value.get("bodies", _UNKNOWN)),
        bool(value["kept"]) if "kept" in value else _may_be_query(key_id),
        None if value.get("began") is None else int(value["began"]),
        members_from(value.get("members", [])),
        bool(value.get("given_up", False)),
    )
    refuse_types(entry)
    return entry


def _may_be_query(key_id: str) -> bool:
    """Whether a key of an older ledger is kept: that of a stream (Spark makes UUIDs) or of a service."""
    return _UUID.fullmatch(key_id) is not None or key_id.startswith(SERVICE_PREFIX)


def write_ledger(root: str, ledger: Ledger, files: FileWrites) -> None:
    """Replaces the ledger. Without a wait for the disk, the one that is there is kept for a
    power loss, until `drop_backup`."""
    path, backup = ledger_path(root), _backup_path(root)
    if not files.is_sync and stat_identity(backup) is None:
        FileWrites(sync=True).replace(backup, read_bytes(path) or json.dumps(_as_value(Ledger())).encode())
    files.replace(path, json.dumps(_as_value(ledger)).encode())
    if files.is_sync:
        drop_backup(root, files)


def drop_backup(root: str, files: FileWrites) -> None:
    """Removes what is kept of the ledger of the last flush, once the ledger itself is on the disk.

    If the ledger was lost, the kept one takes its place first.
    """
    if stat_identity(_backup_path(root)) is not None:
        if is_lost(read_bytes(ledger_path(root))):
            files.replace(ledger_path(root), json.dumps(_as_value(read_ledger(root))).encode())
        files.remove(_backup_path(root))
        files.sync_directory(f"{root}/{OWN_DIRECTORY}")


def _backup_path(root: str) -> str:
    return f"{ledger_path(root)}.bak"


def _as_value(ledger: Ledger) -> dict[str, Any]:  # Any: JSON
    value: dict[str, Any] = {  # Any: JSON
        "version": 1,
        "last": None if ledger.last is None else _as_json(ledger.last),
        "keys": {key: _as_json(entry) for key, entry in ledger.keys.items()},
    }
    if ledger.begun:
        value["begun"] = dict(ledger.begun)
    ends: dict[str, dict[int, int]] = {}
    for (topic, queue_id), end in ledger.ends.items():
        ends.setdefault(topic, {})[queue_id] = end
    if ends:
        value["ends"] = ends
    return value


def _as_json(entry: LedgerEntry) -> dict[str, Any]:  # Any: JSON
    return dict(zip(_NAMES, _values_of(entry), strict=True))
