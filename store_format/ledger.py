"""What was committed, in `.rmqlog/ledger.json`: by key the highest number, and where each of these batches stands in the log.

It makes a repeated commit do nothing, tells the next writer where the log ended, and lets a batch be noticed that was cut or
overwritten since. It holds one entry a key, so it does not grow with time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from zlib import crc32

from store_format.commit_log import CommitLog
from store_format.errors import CorruptStoreError, StoreError
from store_format.files import read_bytes
from store_format.staging import OWN_DIRECTORY
from store_format.walk import Damage
from store_format.write_files import FileWrites

__all__ = ["Ledger", "LedgerEntry", "ledger_path", "read_ledger", "write_ledger"]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One committed batch of `units` messages: physical range [start, stop), and its last unit with the CRC32 of all its bytes.

    `suspect`: somebody else had the store open while it was committed, so that all of it is looked at later, not its last unit alone.
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
        """A broker that began to write at the batch's start has put units of its own there; the rest of ours stands behind them."""
        found = 0
        for run in log.walk(self.start, self.stop, verify_crc=True):
            if isinstance(run, Damage):
                return f"was overwritten: {run.file.path} at byte {run.start}: expected {run.expected}, found {run.found}"
            found += len(run.physical_offsets)
        return None if found == self.units else f"was overwritten: {found} messages stand where {self.units} were written"


@dataclass(frozen=True, slots=True)
class Ledger:
    """`keys` by the id of a key; `last` is the batch that was committed last, with a key or without.

    `begun` names commits over a cluster that this store completed, and the members that may not know that they are to complete theirs.
    """

    keys: Mapping[str, LedgerEntry] = field(default_factory=dict)
    last: LedgerEntry | None = None
    begun: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, key: tuple[str, int]) -> bool:
        """Whether the key's number, or a higher one, is committed."""
        entry = self.keys.get(key[0])
        return entry is not None and entry.number >= key[1]

    def with_entry(self, key_id: str | None, entry: LedgerEntry) -> Ledger:
        keys = self.keys if key_id is None else {**self.keys, key_id: entry}
        return replace(self, keys=keys, last=entry)

    def with_suspect(self, journal: str) -> Ledger:
        """The same with the batch of this journal marked."""
        last = self.last
        if last is not None and last.journal == journal:
            last = replace(last, suspect=True)
        keys = {key: replace(entry, suspect=True) if entry.journal == journal else entry for key, entry in self.keys.items()}
        return replace(self, keys=keys, last=last)

    def reports(self, log: CommitLog) -> list[str]:
        """A sentence for each batch that was cut or overwritten."""
        found = []
        entries = {entry.journal: (key, entry) for key, entry in self.keys.items()}
        if self.last is not None:
            entries.setdefault(self.last.journal, ("the last batch", self.last))
        for key, entry in entries.values():
            damage = entry.damage(log)
            if damage is not None:
                found.append(f"batch {entry.number} of {key}, commitlog {entry.start} to {entry.stop}, {damage}")
        return found


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
        keys = {str(key): _entry(entry) for key, entry in value["keys"].items()}
        begun = {str(journal): tuple(map(str, members)) for journal, members in value.get("begun", {}).items()}
        return Ledger(keys, None if value["last"] is None else _entry(value["last"]), begun)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(path, 0, "a ledger of this project", str(error) or "something else") from error


def _entry(value: Mapping[str, Any]) -> LedgerEntry:  # Any: JSON
    numbers = {name: int(value[name]) for name in ("number", "start", "stop", "last_offset", "last_size", "last_crc")}
    units, suspect = int(value.get("units", 0)), bool(value.get("suspect", False))
    return LedgerEntry(journal=str(value["journal"]), units=units, suspect=suspect, **numbers)


def write_ledger(root: str, ledger: Ledger, files: FileWrites) -> None:
    value: dict[str, Any] = {  # Any: JSON
        "version": 1,
        "last": None if ledger.last is None else asdict(ledger.last),
        "keys": {key: asdict(entry) for key, entry in ledger.keys.items()},
    }
    if ledger.begun:
        value["begun"] = dict(ledger.begun)
    files.replace(ledger_path(root), json.dumps(value).encode())
