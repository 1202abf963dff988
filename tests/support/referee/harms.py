"""What happens to the files of a store: each function without a leading `_` is a harm. It changes files below
a root and returns what it did, or raises NothingThereError.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FunctionType
from typing import Any

from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.referee.made import ENTRY_SIZE, BrokerStore

Harm = Callable[[Path, Random], str]

_LOG_FILE_SIZE_MIN = 512


def _log(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def _queue_files(root: Path) -> list[Path]:
    return sorted(path for path in (root / "consumequeue").glob("*/*/*") if path.is_file())


def _entries(path: Path) -> int:
    """How many entries a queue file has."""
    data = path.read_bytes()
    units = [data[at : at + ENTRY_SIZE] for at in range(0, len(data), ENTRY_SIZE)]
    return max((number + 1 for number, unit in enumerate(units) if any(unit)), default=0)


def _flip(path: Path, at: int, bit: int) -> None:
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 1 << bit]))


def _shift(path: Path, by: int) -> None:
    data = path.read_bytes()
    path.write_bytes((bytes(by) + data)[: len(data)] if by > 0 else data[-by:] + bytes(-by))


def _named(path: Path, root: Path) -> str:
    return str(path.relative_to(root))


class NothingThereError(Exception):
    """The store has nothing that the harm is for."""


def _one(paths: list[Path], random: Random) -> Path:
    """One of the files that are not empty, or of the folders."""
    if not (filled := [path for path in paths if path.stat().st_size]):
        raise NothingThereError
    return random.choice(filled)


# ---- the commitlog ----------------------------------------------------------------------------------------


def log_file_lost(root: Path, random: Random) -> str:
    path = _one(_log(root), random)
    path.unlink()
    return f"{_named(path, root)} is lost"


def first_log_file_expired(root: Path, random: Random) -> str:
    """Retention; no damage."""
    paths = _log(root)
    if len(paths) < 2:
        raise NothingThereError
    paths[0].unlink()
    return f"{_named(paths[0], root)} is expired"


def log_file_blank(root: Path, random: Random) -> str:
    path = _one(_log(root), random)
    path.write_bytes(bytes(path.stat().st_size))
    return f"{_named(path, root)} is blank"


def log_file_cut(root: Path, random: Random) -> str:
    path = _one(_log(root), random)
    os.truncate(path, random.randrange(path.stat().st_size))
    return f"{_named(path, root)} is cut"


def log_zeroed(root: Path, random: Random) -> str:
    path = _one(_log(root), random)
    start = random.randrange(path.stat().st_size)
    count = random.choice([1, 16, 200, 512, 1024])
    overwrite(path, start, bytes(min(count, path.stat().st_size - start)))
    return f"{_named(path, root)} has {count} zeros at {start}"


def log_tail_zeroed(root: Path, random: Random) -> str:
    """Power was lost before the last bytes were flushed."""
    path = _one([path for path in _log(root) if any(path.read_bytes())][-1:], random)
    end = len(path.read_bytes().rstrip(b"\0"))
    start = max(0, end - random.choice([10, 100, 300, 1000]))
    overwrite(path, start, bytes(path.stat().st_size - start))
    return f"{_named(path, root)} is zeros from {start}"


def log_file_shifted(root: Path, random: Random) -> str:
    path, by = _one(_log(root), random), random.choice([-1, 1, 20, -100])
    _shift(path, by)
    return f"{_named(path, root)} is shifted by {by}"


def log_file_foreign(root: Path, random: Random) -> str:
    """A file of another store's log."""
    path = _one([path for path in _log(root) if path.name.isdigit()], random)
    size, begin = path.stat().st_size, int(path.name)
    if size < _LOG_FILE_SIZE_MIN or begin % size:  # a file that was cut
        raise NothingThereError
    other = BrokerStore(root / "other", log_file_size=size, begin=begin)
    for _ in range(random.randint(1, 20)):
        other.put("A", 0, offset=random.choice([None, other.next_offset("A", 0) + 3]))
    other.write()
    shutil.copy(root / "other/commitlog" / path.name, path)
    shutil.rmtree(root / "other")
    return f"{_named(path, root)} is of another store"


def next_log_file(root: Path, random: Random) -> str:
    """AllocateMappedFileService makes the next file ahead; no damage."""
    path = _one(_log(root)[-1:], random)
    size = path.stat().st_size
    path.with_name(oracle.file_name(int(path.name) + size)).write_bytes(bytes(size))
    return "the next log file is there"


def log_junk(root: Path, random: Random) -> str:
    name = random.choice(
        ["1", "readme.txt", "00000000000000000007", "99999999999999999999", "18446744073709551615",
         "9223372036854775808", "00000000000000000000.bak", ".DS_Store", "tmp"]
    )  # fmt: skip
    (root / "commitlog" / name).write_bytes(random.choice([b"", b"x", bytes(100)]))
    return f"commitlog/{name} is there"


def record_flipped(root: Path, random: Random) -> str:
    """One bit of a record: of its head, or anywhere."""
    path, at = _record(root, random)
    at += random.choice([random.randrange(88), random.randrange(20, 36), random.randrange(88, 120)])
    if at >= path.stat().st_size:
        raise NothingThereError
    bit = random.randrange(8)
    _flip(path, at, bit)
    return f"bit {bit} of byte {at} of {_named(path, root)} is wrong"


def claim_flipped(root: Path, random: Random) -> str:
    """A low bit of queueId or queueOffset: the record claims its neighbour's place."""
    path, at = _record(root, random)
    field, bit = random.choice([15, 27, 27, 27]), random.randrange(3)
    _flip(path, at + field, bit)
    return f"bit {bit} of byte {field} of the record at {at} of {_named(path, root)} is wrong"


def _record(root: Path, random: Random) -> tuple[Path, int]:
    """A file of the log, and where one of its records begins."""
    paths = [path for path in _log(root) if path.name.isdigit() and any(path.read_bytes())]
    path = _one(paths or _log(root), random)
    data, starts, at = path.read_bytes(), [0], 0
    while at + 8 < len(data):
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        if size < 91 or data[at + 4 : at + 8] == b"\xcb\xd4\x31\x94":
            break
        starts.append(at)
        at += size
    return path, random.choice([*starts, starts[-1]])


# ---- consume queues ---------------------------------------------------------------------------------------


def queue_file_lost(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    path.unlink()
    return f"{_named(path, root)} is lost"


def queue_lost(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    shutil.rmtree(path.parent)
    return f"{_named(path.parent, root)} is lost"


def queues_lost(root: Path, random: Random) -> str:
    shutil.rmtree(root / "consumequeue", ignore_errors=True)
    return "consumequeue is lost"


def topic_queues_lost(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    shutil.rmtree(path.parents[1])
    return f"{_named(path.parents[1], root)} is lost"


def queue_file_blank(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    path.write_bytes(bytes(path.stat().st_size))
    return f"{_named(path, root)} is blank"


def last_queue_file_blank(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    path = max(path.parent.iterdir())
    path.write_bytes(bytes(path.stat().st_size))
    return f"{_named(path, root)}, the last one, is blank"


def queue_file_cut(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    size = random.randrange(path.stat().st_size)
    os.truncate(path, size - size % random.choice([1, ENTRY_SIZE]))
    return f"{_named(path, root)} is cut"


def next_queue_file(root: Path, random: Random) -> str:
    """The next file of a queue, blank: a broker has made it and was killed."""
    path = _one(_queue_files(root), random)
    path = max(path.parent.iterdir())
    size = path.stat().st_size
    path.with_name(oracle.file_name(int(path.name) + size)).write_bytes(bytes(size))
    return f"the file behind {_named(path, root)} is there"


def entries_zeroed(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    if not _entries(path):
        raise NothingThereError
    start, count = random.randrange(_entries(path)), random.randint(1, 3)
    overwrite(
        path, start * ENTRY_SIZE, bytes(min(count * ENTRY_SIZE, path.stat().st_size - start * ENTRY_SIZE))
    )
    return f"{_named(path, root)} has {count} zero entries from {start}"


def entries_not_flushed(root: Path, random: Random) -> str:
    """The last entries of a queue are zeros, after a power loss."""
    path = _one(_queue_files(root), random)
    path = max(path.parent.iterdir())
    start = max(0, _entries(path) - random.randint(1, 5))
    overwrite(path, start * ENTRY_SIZE, bytes(path.stat().st_size - start * ENTRY_SIZE))
    return f"{_named(path, root)} is zeros from entry {start}"


def entry_flipped(root: Path, random: Random) -> str:
    """One bit of an entry, at the places where a bisection looks too."""
    path = _one(_queue_files(root), random)
    if not (count := _entries(path)):
        raise NothingThereError
    at = random.choice([0, count - 1, count // 2, random.randrange(count)])
    byte, bit = random.choice([random.randrange(12), random.randrange(8), 7, 11]), random.randrange(8)
    _flip(path, at * ENTRY_SIZE + byte, bit)
    return f"bit {bit} of byte {byte} of entry {at} of {_named(path, root)} is wrong"


def live_entry_flipped(root: Path, random: Random) -> str:
    """Retention has deleted the first files of the log, and one bit of a live entry makes it lead there."""
    logs = [path for path in _log(root) if path.name.isdigit()]
    if len(logs) < 2:
        raise NothingThereError
    count = random.randint(1, len(logs) - 1)
    for path in logs[:count]:
        path.unlink()
    begin = int(logs[count].name)
    found = []
    for path in _queue_files(root):
        data = path.read_bytes()
        for at in range(0, len(data), ENTRY_SIZE):
            place = int.from_bytes(data[at : at + 8])
            found += [(path, at, bit) for bit in range(40) if place >= begin > place ^ 1 << bit]
    if not found:
        raise NothingThereError
    path, at, bit = random.choice(found)
    _flip(path, at + 7 - bit // 8, bit % 8)
    return f"the log begins at {begin}, and entry {at // ENTRY_SIZE} of {_named(path, root)} leads before it"


def entry_of_another(root: Path, random: Random) -> str:
    """An entry has the bytes of another one."""
    paths = [path for path in _queue_files(root) if _entries(path)]
    if not paths:
        raise NothingThereError
    (path, other), at = random.choices(paths, k=2), 0
    at, there = random.randrange(_entries(path)), random.randrange(_entries(other))
    overwrite(path, at * ENTRY_SIZE, other.read_bytes()[there * ENTRY_SIZE :][:ENTRY_SIZE])
    return f"entry {at} of {_named(path, root)} is entry {there} of {_named(other, root)}"


def queue_file_shifted(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    by = random.choice([ENTRY_SIZE, -ENTRY_SIZE, 1, -4])
    _shift(path, by)
    return f"{_named(path, root)} is shifted by {by}"


def queue_file_foreign(root: Path, random: Random) -> str:
    """A file of another queue."""
    paths = _queue_files(root)
    if len(paths) < 2:
        raise NothingThereError
    path, other = random.sample(paths, 2)
    shutil.copy(other, path)
    return f"{_named(path, root)} is a copy of {_named(other, root)}"


def queues_exchanged(root: Path, random: Random) -> str:
    paths = sorted((root / "consumequeue").glob("*/*"))
    if len(paths) < 2:
        raise NothingThereError
    one, other = random.sample(paths, 2)
    one.rename(root / "one")
    other.rename(one)
    (root / "one").rename(other)
    return f"{_named(one, root)} and {_named(other, root)} are exchanged"


def queue_junk(root: Path, random: Random) -> str:
    path = _one(_queue_files(root), random)
    place = random.choice([path.parent, path.parents[1], path.parents[2]])
    name = random.choice(["x", ".DS_Store", "00000000000000000003", "7", "99999999999999999999", "-1"])
    if (place / name).exists():
        raise NothingThereError
    if random.random() < 0.5:
        (place / name).write_bytes(b"junk")
    else:
        (place / name).mkdir()
    return f"{_named(place / name, root)} is there"


# ---- the rest ---------------------------------------------------------------------------------------------


def ext_lost(root: Path, random: Random) -> str:
    if not (root / "consumequeue_ext").exists():
        raise NothingThereError
    shutil.rmtree(root / "consumequeue_ext")
    return "consumequeue_ext is lost"


def ext_cut(root: Path, random: Random) -> str:
    path = _one(sorted((root / "consumequeue_ext").glob("*/*/*")), random)
    data = path.read_bytes()
    cut = random.randrange(len(data.rstrip(b"\0")) or 1)
    path.write_bytes(data[:cut].ljust(len(data), b"\0"))
    return f"{_named(path, root)} is zeros from {cut}"


def index_lost(root: Path, random: Random) -> str:
    shutil.rmtree(root / "index", ignore_errors=True)
    return "index is lost"


def index_blank(root: Path, random: Random) -> str:
    for path in (root / "index").glob("*"):
        path.write_bytes(bytes(path.stat().st_size))
    return "index is blank"


def index_flipped(root: Path, random: Random) -> str:
    path = _one(sorted((root / "index").glob("*")), random)
    at = random.choice([random.randrange(40), random.randrange(path.stat().st_size)])
    _flip(path, at, random.randrange(8))
    return f"byte {at} of {_named(path, root)} is wrong"


def checkpoint_lost(root: Path, random: Random) -> str:
    (root / "checkpoint").unlink(missing_ok=True)
    return "checkpoint is lost"


def checkpoint_zero(root: Path, random: Random) -> str:
    (root / "checkpoint").write_bytes(bytes(4096))
    return "checkpoint is zeros"


def topics_lost(root: Path, random: Random) -> str:
    (root / "config/topics.json").unlink(missing_ok=True)
    return "topics.json is lost"


def _topics(root: Path) -> tuple[Path, dict[str, Any]]:
    """topics.json, which has to be whole, and what is in it."""
    path = root / "config/topics.json"
    try:
        return path, json.loads(path.read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        raise NothingThereError from None


def topics_cut(root: Path, random: Random) -> str:
    path, table = _topics(root)
    data = path.read_bytes()
    how = random.choice(["no .bak", "an older .bak", "a broken .bak"])
    if how == "an older .bak":
        table["topicConfigTable"].pop(random.choice([*table["topicConfigTable"], ""]), None)
        path.with_name("topics.json.bak").write_text(json.dumps(table))
    elif how == "a broken .bak":
        path.with_name("topics.json.bak").write_bytes(data[: len(data) // 2])
    path.write_bytes(data[: random.randrange(len(data))])
    return f"topics.json is cut, with {how}"


def topics_older(root: Path, random: Random) -> str:
    """config/ of before: a topic is not in it yet."""
    path, table = _topics(root)
    name = random.choice([*table["topicConfigTable"], ""])
    table["topicConfigTable"].pop(name, None)
    path.write_text(json.dumps(table))
    return f"topics.json lacks {name}"


def fewer_read_queues(root: Path, random: Random) -> str:
    path, table = _topics(root)
    for topic in table["topicConfigTable"].values():
        topic["readQueueNums"] = 1
    path.write_text(json.dumps(table))
    return "readQueueNums is 1"


def _harms() -> dict[str, Harm]:
    return {
        name: value
        for name, value in globals().items()
        if isinstance(value, FunctionType) and value.__module__ == __name__ and name[0] != "_"
    }


HARMS = _harms()
# After these a store is still as a broker and its retention leave it.
HARMLESS = {"first_log_file_expired", "next_log_file", "fewer_read_queues"}
