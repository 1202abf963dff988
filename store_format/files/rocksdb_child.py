"""Reads one RocksDB database in a process of its own: a hostile database may end it, and nothing else.

`python -I -S rocksdb_child.py PACKAGES DIRECTORY`. PACKAGES is where rocksdict is installed, DIRECTORY a
scratch directory with the database, which is there once a line has come on stdin. The directory is removed as
soon as RocksDB has opened the files in it, or stdin has ended before: then the other process is gone. From
then on, one request is one line of JSON on stdin; the answer goes to stdout in frames, see `FRAME`. This
module imports nothing of the project, so that it starts in 30 ms.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any

# Kind, bytes of each key, bytes of each value, number of records. Then come the keys and the values. The
# kinds are b"R" records, b"F" a name as the value, b"E" the text of an error, b"." the end of an answer.
FRAME = struct.Struct(">cIII")
CHUNK = 8192  # records that are fetched at once
SECONDS_MAX = 60  # for opening the database, and for a chunk
IDLE_SECONDS_MAX = 30  # between two requests, then the process ends
_NUMBER = struct.Struct(">q")
_MEMORY_MAX = 4 << 30  # address space, of which RocksDB uses little


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # RocksDB keeps each table open
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the scratch directory is removed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process decides, and closes stdin


class _Answers:
    def __init__(self) -> None:
        self._out = sys.stdout.buffer

    def send(self, kind: bytes, keys: Iterable[bytes] = (), values: Iterable[bytes] = ()) -> None:
        """Sends records that all have keys and values of one length; keys may be left out."""
        signal.alarm(0)  # the other process may take its time
        keys, values = list(keys), list(values)
        lengths = len(keys[0]) if keys else 0, len(values[0]) if values else 0
        self._out.write(FRAME.pack(kind, *lengths, len(values)) + b"".join(keys) + b"".join(values))

    def end(self) -> None:
        self.send(b".")
        self._out.flush()

    def fail(self, error: BaseException) -> None:
        self.send(b"E", (), [str(error).encode(errors="replace")[:1000]])
        self._out.flush()


def _has_logged(directory: str) -> bool:
    """Whether a log has records, which then are in no table."""
    with os.scandir(directory) as entries:
        paths = [entry.path for entry in entries if entry.name.endswith(".log")]
    return any(os.path.getsize(path) for path in paths)


def _described(database: Any) -> Iterator[bytes]:
    """Name, bytes, first and last key of each table."""
    for table in database.live_files():
        keys = [bytes(table[name] or b"").hex() for name in ("start_key", "end_key")]
        yield json.dumps([table["name"].lstrip("/"), table["size"], *keys]).encode()


def _open(directory: str) -> tuple[Any, dict[str, Any]]:  # Any: rocksdict is imported by the caller's path
    import rocksdict

    options = rocksdict.Options(raw_mode=True)
    # The end of a log of which the broker is writing a record is no damage; another wrong byte is.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records())
    families = dict.fromkeys(rocksdict.Rdict.list_cf(directory), options)
    access = rocksdict.AccessType.read_only()
    database = rocksdict.Rdict(directory, options, column_families=families, access_type=access)
    others = {name: database.get_column_family(name) for name in families if name != "default"}
    return rocksdict, {"default": database} | others


def _records(family: Any) -> Iterator[list[tuple[bytes, bytes]]]:
    """All records in the order of their keys. An iterator ends at a block that it cannot read as it does at
    the last record, without an error, so what follows the last record is looked at.
    """
    items, last = family.items(), b""
    while chunk := list(islice(items, CHUNK)):
        last = chunk[-1][0]
        yield chunk
        signal.alarm(SECONDS_MAX)
    behind = family.iter()
    behind.seek(last + b"\0")
    behind.status()
    if behind.valid():
        raise OSError("records follow which cannot be read in order")


def _numbered(rocksdict: Any, family: Any, request: dict[str, Any]) -> Iterator[list[bytes]]:
    """The values with the numbers [start, stop) behind a prefix of their keys; zeros for one that is missing
    or has another length."""
    prefix, size = bytes.fromhex(request["prefix"]), request["value_size"]
    for low in range(request["start"], request["stop"], CHUNK):
        high = min(low + CHUNK, request["stop"])
        options = rocksdict.ReadOptions()
        options.set_iterate_upper_bound(prefix + _NUMBER.pack(high))
        first = prefix + _NUMBER.pack(low)
        values = list(family.values(from_key=first, read_opt=options))
        if len(values) != high - low or {*map(len, values)} != {size}:
            there = {
                key[len(prefix) :]: value for key, value in family.items(from_key=first, read_opt=options)
            }
            behind = family.iter()  # an iterator ends at what it cannot read, without an error
            behind.seek(prefix + max(there, default=b"") + b"\0")
            behind.status()
            found = (there.get(_NUMBER.pack(number), b"") for number in range(low, high))
            values = [value if len(value) == size else bytes(size) for value in found]
        yield values


def _first(family: Any, prefix: bytes, stop: int, least: int) -> tuple[int, bytes, bytes]:
    """The first number below `stop` whose value begins with a number of at least `least`, its value, and the
    value of the last number. `stop` and no value if there is none. Numbers without a record are passed over.
    """
    there = family.iter()
    there.seek(prefix + _NUMBER.pack(0))
    there.status()
    last = family.get(prefix + _NUMBER.pack(stop - 1)) or b""
    if (
        not there.valid()
        or not there.key().startswith(prefix)
        or not last
        or _NUMBER.unpack_from(last)[0] < least
    ):
        return stop, b"", last
    low, high = _NUMBER.unpack(there.key()[len(prefix) :])[0], stop - 1
    while low < high:
        middle = (low + high) // 2
        value = family.get(prefix + _NUMBER.pack(middle))
        if value is None or _NUMBER.unpack_from(value)[0] < least:
            low = middle + 1
        else:
            high = middle
    return low, family.get(prefix + _NUMBER.pack(low)) or b"", last


def _answer(
    answers: _Answers,
    tables: Iterable[bytes],
    rocksdict: Any,
    families: dict[str, Any],
    request: dict[str, Any],
) -> None:
    if "tables" in request:
        for described in tables:
            answers.send(b"R", (), [described])
        return
    family = families[request["family"]]
    if "firsts" in request:
        for prefix, stop, least in request["firsts"]:
            signal.alarm(SECONDS_MAX)
            number, *values = _first(family, bytes.fromhex(prefix), stop, least)
            answers.send(b"R", (), [_NUMBER.pack(number) + b"".join(values)])
    elif "prefix" in request:
        for values in _numbered(rocksdict, family, request):
            answers.send(b"R", (), values)
            signal.alarm(SECONDS_MAX)
    else:
        for chunk in _records(family):
            for _, same in groupby(chunk, lambda record: (len(record[0]), len(record[1]))):
                answers.send(b"R", *zip(*same, strict=True))


def _next_line() -> bytes:
    signal.alarm(IDLE_SECONDS_MAX)
    return sys.stdin.buffer.readline()


def main(packages: str, directory: str) -> None:
    _limit()
    sys.path.append(packages)
    answers = _Answers()
    try:
        if not sys.stdin.buffer.readline():
            return
        signal.alarm(SECONDS_MAX)
        rocksdict, families = _open(directory)
        tables = () if _has_logged(directory) else [*_described(families["default"])]
    except Exception as error:  # rocksdict raises Exception itself
        answers.fail(error)
        return
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name in families:
        answers.send(b"F", (), [name.encode()])
    answers.end()
    while line := _next_line():
        signal.alarm(SECONDS_MAX)
        try:
            _answer(answers, tables, rocksdict, families, json.loads(line))
        except Exception as error:
            answers.fail(error)
            continue
        answers.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
