"""What was committed, in `.rmqlog/ledger.json`: by key the highest number, and where each of these batches
stands in the log.

It makes a repeated commit do nothing, tells the next writer where the log ended, and lets a batch be noticed
that was cut or overwritten since. It holds one entry for each key of a stream or a service, and for the
newest keys of batch jobs: job after job may have a key of its own, and each commit writes the whole file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any
from zlib import crc32

from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites

JOB_KEYS_MAX = 500  # keys of batch jobs that are remembered: those of the last commits
SERVICE_PREFIX = "rmqlog/"  # of the keys of this project's services
_UNKNOWN = -1
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One committed batch of `units` messages: physical range [start, stop), and its last unit with the CRC32
    of all its bytes.

    `suspect`: somebody else had the store open while it was committed, so that all of it is looked at later,
    not its last unit alone. `messages` and `bodies`, the sum of StagedFile.bodies, are of the whole batch, in
    all stores of a cluster; -1 in a ledger of an older release. `kept`: its key is never forgotten.
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

    def damage(self, log: CommitLog) -> str | None:
        """What happened to the batch since it was committed; None when it stands, or was cleaned away by age."""
        if self.last_offset < log.min_offset or not self.last_size:
            return None
        try:
            data = log.read(self.last_offset, self.last_size)
        except StoreError as error:
            return f"was cut: {error}"
        if crc32(data) != self.last_crc:
            return "was cut or overwritten: its last unit has other bytes"
        return self._damage_within(log) if self.suspect and self.start >= log.min_offset else None

    def _damage_within(self, log: CommitLog) -> str | None:
        """A broker that began to write at the batch's start has put units of its own there; the rest of ours
        stands behind them.
        """
        found = 0
        for run in log.walk(self.start, self.stop, verify_crc=True):
            if isinstance(run, Damage):
                return f"was overwritten: {run.file.path} at byte {run.start}: expected {run.expected}, found {run.found}"
            found += len(run.physical_offsets)
        return (
            None
            if found == self.units
            else f"was overwritten: {found} messages stand where {self.units} were written"
        )


@dataclass(frozen=True, slots=True)
class Ledger:
    """`keys` by the id of a key; `last` is the batch that was committed last, with a key or without.

    `begun` names commits over a cluster that this store completed, and the members that may not know that
    they are to complete theirs.
    """

    keys: Mapping[str, LedgerEntry] = field(default_factory=dict)
    last: LedgerEntry | None = None
    begun: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, key: tuple[str, int]) -> bool:
        """Whether the key's number, or a higher one, is committed."""
        entry = self.keys.get(key[0])
        return entry is not None and entry.number >= key[1]

    def with_entry(self, key_id: str | None, entry: LedgerEntry) -> Ledger:
        """After the batch of this entry, which is the last one."""
        return replace(self if key_id is None else self.with_key(key_id, entry), last=entry)

    def with_key(self, key_id: str, entry: LedgerEntry) -> Ledger:
        """Keys stand in the order of their last commits; of those of batch jobs the oldest are forgotten."""
        keys = {key: each for key, each in self.keys.items() if key != key_id} | {key_id: entry}
        jobs = [key for key, each in keys.items() if not each.kept and not key.startswith(SERVICE_PREFIX)]
        for key in jobs[:-JOB_KEYS_MAX]:
            del keys[key]
        return replace(self, keys=keys)

    def with_suspect(self, journal: str) -> Ledger:
        """The same with the batch of this journal marked."""
        last = self.last
        if last is not None and last.journal == journal:
            last = replace(last, suspect=True)
        keys = {
            key: replace(entry, suspect=True) if entry.journal == journal else entry
            for key, entry in self.keys.items()
        }
        return replace(self, keys=keys, last=last)

    def reports(self, log: CommitLog) -> list[str]:
        """A sentence for each batch that was cut or overwritten."""
        return list(filter(None, (_report(key, entry, log) for key, entry in self._entries())))

    def new_reports(self, log: CommitLog) -> list[str]:
        """The same for what happened since the last commit, without a look at every batch.

        A log is cut and overwritten from some place to its end. So where the last batch stands all do, and
        else those that end behind the first one from the end that does not. Suspect ones are looked at in any
        case.
        """
        found, stands = [], False
        for key, entry in sorted(self._entries(), key=lambda each: each[1].stop, reverse=True):
            if stands and not entry.suspect:
                continue
            report = _report(key, entry, log)
            if report is not None:
                found.append(report)
            elif entry.last_size:
                stands = True
        return found[::-1]

    def _entries(self) -> Collection[tuple[str, LedgerEntry]]:
        """Each batch once, with what it is called."""
        entries = {entry.journal: (key, entry) for key, entry in self.keys.items()}
        if self.last is not None:
            entries.setdefault(self.last.journal, ("the last batch", self.last))
        return entries.values()


def _report(key: str, entry: LedgerEntry, log: CommitLog) -> str | None:
    damage = entry.damage(log)
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
    """The ledger; an empty one where there is none. Raises CorruptStoreError for a file that is none."""
    path = ledger_path(root)
    data = read_bytes(path)
    if data is None:
        return Ledger()
    try:
        value = json.loads(data)
        keys = {str(key): _entry(entry, str(key)) for key, entry in value["keys"].items()}
        # of before keys stood in the order of their commits
        if any("kept" not in entry for entry in value["keys"].values()):
            keys = dict(sorted(keys.items(), key=lambda each: each[1].start))
        begun = {
            str(journal): tuple(map(str, members)) for journal, members in value.get("begun", {}).items()
        }
        return Ledger(keys, None if value["last"] is None else _entry(value["last"]), begun)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "a ledger of this project", str(error) or "something else"
        ) from error


def _entry(value: Mapping[str, Any], key_id: str = "") -> LedgerEntry:  # Any: JSON
    return LedgerEntry(
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
    )


def _may_be_query(key_id: str) -> bool:
    """Whether the key of a ledger that does not say so is a stream's: Spark makes UUIDs of them. A service's
    is none of a job either.
    """
    return _UUID.fullmatch(key_id) is not None or key_id.startswith(SERVICE_PREFIX)


def write_ledger(root: str, ledger: Ledger, files: FileWrites) -> None:
    value: dict[str, Any] = {  # Any: JSON
        "version": 1,
        "last": None if ledger.last is None else _members(ledger.last),
        "keys": {key: _members(entry) for key, entry in ledger.keys.items()},
    }
    if ledger.begun:
        value["begun"] = dict(ledger.begun)
    files.replace(ledger_path(root), json.dumps(value).encode())


def _members(entry: LedgerEntry) -> dict[str, Any]:  # Any: JSON
    return dict(zip(_NAMES, _values_of(entry), strict=True))
