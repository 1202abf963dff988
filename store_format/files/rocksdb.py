"""Opens a RocksDB database of a store for reading, without a change in the store.

The library rocksdict creates a file in the directory of a database, even for reading, and fails on a file
system that is mounted read-only. So the database is opened in a scratch directory of symbolic links, or of
copies if the store lies on object storage. It is opened in a process of its own (`rocksdb_child.py`), because
a library in C++ may end its process on hostile bytes.

A running broker may delete tables while they are opened. Then everything begins again with CURRENT; the last
time with copies of the tables.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, TypeVar

from store_format.display.text import shown
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.files import rocksdb_child
from store_format.files.rocksdb_tables import DatabaseTables

_CURRENT = re.compile(rb"MANIFEST-[0-9]{1,20}\n", re.ASCII)
_MANIFEST = re.compile(r"MANIFEST-[0-9]{1,20}\Z", re.ASCII)
_DATA = re.compile(r"[0-9]{1,20}\.(sst|log|blob)\Z", re.ASCII)
_NAMED = re.compile(r"[0-9]{6,20}\.(?:sst|log|blob)|MANIFEST-[0-9]{1,20}|CURRENT", re.ASCII)
_TRIES = 3  # the last one with copies
_KEPT_MAX = 4
_TABLES_MAX = 64  # open files; the library reads a database with more tables, which has over 4 GB
_FRAME_MAX = 256 << 20  # bytes
_PREFIX = "rmqlog-rocksdb-"
_ABANDONED_S = 60
_AHEAD = 4  # times as many numbers as are wanted are read at once
_AHEAD_MAX = 32 << 20  # bytes
_PIPE_SIZE = 1 << 20  # bytes: fewer turns of the two processes
_NOTHING = memoryview(b"")
_MISSING = "No such file or directory"
_Answer = TypeVar("_Answer")


class DatabaseFiles(Protocol):
    """What a database needs of the files of the place where it lies, see `Files`."""

    def names(self, directory: str) -> frozenset[str]: ...

    def read(self, path: str) -> bytes | None: ...

    def look_again(self, path: str) -> None: ...

    def stat_identity(self, path: str) -> tuple[int, int, int] | None: ...

    def make_readable_at(self, path: str, target: str, *, copy: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Records:
    """Records whose keys have one length, and whose values have one length, joined in order."""

    key_size: int
    value_size: int
    count: int
    keys: bytes
    values: bytes

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for i in range(self.count):
            yield (
                self.keys[i * self.key_size : (i + 1) * self.key_size],
                self.values[i * self.value_size : (i + 1) * self.value_size],
            )


class _Ahead(NamedTuple):
    """Values of the numbers [start, stop), which were read when `step` of them were wanted."""

    start: int
    stop: int
    step: int
    values: memoryview


class RocksDatabase:
    """A RocksDB database in `directory`, open for reading at one moment; a context manager.

    `families` are the names of its column families. Every method raises CorruptStoreError with the file that
    RocksDB names, or with the directory, for bytes that cannot be read.
    """

    def __init__(self, directory: str, process: subprocess.Popen[bytes]) -> None:
        self.directory, self._process = directory, process
        self._table_files = dict[str, int]()
        self.families: frozenset[str] = frozenset()
        self._tables: DatabaseTables | None = None
        self._ahead = dict[tuple[str, bytes], _Ahead]()  # by family and prefix
        self.close = weakref.finalize(self, _end, process, self._table_files, os.getpid())

    @classmethod
    def open(cls, files: DatabaseFiles, directory: str) -> RocksDatabase:
        """Opens the database. Raises UnsupportedFormatError without rocksdict."""
        packages = _packages(directory)
        for attempt in range(_TRIES):
            try:
                return cls._opened(files, directory, packages, copy=attempt == _TRIES - 1)
            except CorruptStoreError as error:
                if _MISSING not in error.found or attempt == _TRIES - 1:
                    raise
                files.look_again(directory)
        raise AssertionError

    @classmethod
    def _opened(cls, files: DatabaseFiles, directory: str, packages: str, *, copy: bool) -> RocksDatabase:
        with _scratch_directory() as scratch:
            # First of all, so that it removes the directory if this process is ended.
            command = [sys.executable, "-I", "-S", rocksdb_child.__file__, packages, scratch]
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, pipesize=_PIPE_SIZE
            )
            database = cls(directory, process)
            try:
                _fill(files, directory, scratch, copy=copy)
                database._open_tables(scratch)
                database._send(b"\n")
                named = [frame.values.decode() for frame in database._answer(scratch)]
            except BaseException:
                database.close()
                raise
        database.families = frozenset(named)
        return database

    def records(self, family: str) -> Iterator[Records]:
        """The records of a column family in the order of their keys; none of a family that is missing."""
        if family in self.families:
            yield from self.ask(family=family)

    def numbered(self, family: str, prefix: bytes, numbers: range, size: int, *, last: int) -> memoryview:
        """The values of the keys that are `prefix` and one of the `numbers`, 8 bytes each, joined; zeros for
        a missing key, and for a value of another size than `size`.

        Where a call goes on behind the one before, more is read, up to `last`, and kept: see `kept`.
        """
        start, stop, place = numbers.start, numbers.stop, (family, prefix)
        before = self._ahead.pop(place, _Ahead(0, 0, 0, _NOTHING))
        goes_on = before.start < start == before.stop and before.step <= len(numbers)
        more = min(_AHEAD * len(numbers), 2 * (before.stop - before.start)) if goes_on else 0
        high = max(stop, min(start + more, last))
        values = self._numbered(family, prefix, start, high, size)
        if stop < last:
            if sum(len(each.values) for each in self._ahead.values()) > _AHEAD_MAX:
                self._ahead.clear()
            self._ahead[place] = _Ahead(start, high, len(numbers), values if stop < high else _NOTHING)
        return values[: len(numbers) * size]

    def kept(self, family: str, prefix: bytes, numbers: range, size: int) -> memoryview | None:
        """What `numbered` gives, if it has been read ahead; else None."""
        ahead = self._ahead.get((family, prefix))
        if ahead is None or not ahead.start <= numbers.start < numbers.stop <= ahead.stop or not ahead.values:
            return None
        return ahead.values[(numbers.start - ahead.start) * size : (numbers.stop - ahead.start) * size]

    def _numbered(self, family: str, prefix: bytes, start: int, stop: int, size: int) -> memoryview:
        if self._tables is None:
            described = [records.values for records in self.ask(tables=True)]
            are_open = {json.loads(each)[0] for each in described} <= self._table_files.keys()
            self._tables = DatabaseTables(described if are_open else [], self._read_ranges)
        values = self._tables.numbered(family, prefix, start, stop, size)
        if values is None:
            asked = self.ask(family=family, prefix=prefix.hex(), start=start, stop=stop, value_size=size)
            values = memoryview(b"".join(records.values for records in asked))
        return values

    def _read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        return [os.pread(self._table_files[name], size, position) for name, position, size in ranges]

    def _open_tables(self, scratch: str) -> None:
        """Opens the files of the tables, which can then be read even if a broker deletes them meanwhile."""
        names = [name for name in os.listdir(scratch) if name.endswith(".sst")]
        for name in names if len(names) <= _TABLES_MAX else ():
            with suppress(FileNotFoundError):
                self._table_files[name] = os.open(f"{scratch}/{name}", os.O_RDONLY | os.O_CLOEXEC)

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, as it does after a while without a request."""
        return self._process.poll() is not None

    def ask(self, **request: object) -> Iterator[Records]:
        """The records that the process answers, see `rocksdb_child`."""
        self._send(json.dumps(request).encode() + b"\n")
        yield from self._answer()

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer says why
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def _answer(self, scratch: str = "") -> Iterator[Records]:
        frame = rocksdb_child.FRAME
        while True:
            kind, key_size, value_size, count = frame.unpack(self._read(frame.size))
            if (key_size + value_size) * count > _FRAME_MAX:
                found = f"{(key_size + value_size) * count} bytes"
                raise self._damage(f"at most {_FRAME_MAX} bytes of records at once", found)
            keys, values = self._read(key_size * count), self._read(value_size * count)
            if kind == b".":
                return
            if kind == b"E":
                text = values.decode(errors="replace").strip().replace(scratch or "\0", self.directory)
                raise self._damage("a RocksDB database that can be read", shown(text))
            yield Records(key_size, value_size, count, keys, values)

    def _read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            code = self._process.wait()
            why = "its process ended" if code >= 0 else f"its process was ended by signal {-code}"
            raise self._damage("a RocksDB database that can be read", f"bytes at which {why}")
        return data

    def _damage(self, expected: str, found: str) -> CorruptStoreError:
        named = _NAMED.search(found)
        file = f"{self.directory}/{named[0]}" if named else self.directory
        return CorruptStoreError(file, 0, expected, found)

    def __enter__(self) -> RocksDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(process: subprocess.Popen[bytes], tables: dict[str, int], owner: int) -> None:
    """Ends the process, if this is the one that has started it, and closes the files of the tables. An answer
    that was not read is lost.
    """
    while tables:
        os.close(tables.popitem()[1])
    if os.getpid() != owner:
        process.returncode = 0  # of a fork: not its child
        return
    if process.poll() is None:
        process.kill()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):
            assert pipe is not None
            pipe.close()
    process.wait()


class KeptDatabases:
    """The databases of one place that are asked again and again, each in one process until it is idle."""

    def __init__(self, files: DatabaseFiles) -> None:
        self._files = files
        self._begin()

    def _begin(self) -> None:
        self._lock, self._owner = threading.Lock(), os.getpid()
        self._open = OrderedDict[str, tuple[object, RocksDatabase]]()

    def ask(self, directory: str, **request: object) -> list[Records]:
        """All that a process with the database as it is now answers. Raises as `RocksDatabase`."""
        return self._with(directory, lambda database: list(database.ask(**request)))

    def numbered(
        self, directory: str, family: str, prefix: bytes, numbers: range, size: int, *, last: int
    ) -> memoryview:
        """`RocksDatabase.numbered` of the database as it is now, or was when a call before read ahead. Raises
        as `RocksDatabase`.
        """
        _, known = self._open.get(directory, (None, None))
        kept = known.kept(family, prefix, numbers, size) if known is not None else None
        if kept is not None:
            return kept
        return self._with(
            directory, lambda database: database.numbered(family, prefix, numbers, size, last=last)
        )

    def _with(self, directory: str, answer: Callable[[RocksDatabase], _Answer]) -> _Answer:
        if self._owner != os.getpid():
            self._begin()  # a fork has none of the processes
        with self._lock:
            for _ in range(_TRIES):
                database = self._current(directory)
                try:
                    return answer(database)
                except CorruptStoreError:
                    if not database.has_ended:
                        raise
                    del self._open[directory]
            return answer(self._current(directory))

    def forget(self) -> None:
        """Ends all processes."""
        with self._lock:
            self._open.clear()

    def _current(self, directory: str) -> RocksDatabase:
        names = self._files.names(directory)
        identity = (
            names,
            tuple(map(self._files.stat_identity, [f"{directory}/{name}" for name in sorted(names)])),
        )
        known = self._open.pop(directory, None)
        if known is None or known[0] != identity or known[1].has_ended:
            known = identity, RocksDatabase.open(self._files, directory)
        self._open[directory] = known
        if len(self._open) > _KEPT_MAX:
            self._open.popitem(last=False)
        return known[1]


def _packages(directory: str) -> str:
    """Where rocksdict is installed."""
    spec = importlib.util.find_spec("rocksdict")
    if spec is None or spec.origin is None:
        raise UnsupportedFormatError(
            f"{directory} is a RocksDB database, which is read with the package rocksdict, which is missing; "
            "run `pip install rocksdict`, the extra `rocksdb`"
        )
    return str(Path(spec.origin).parent.parent)


# ---- the scratch directory ---------------------------------------------------------------------------------


@contextmanager
def _scratch_directory() -> Iterator[str]:
    """A directory that is removed in the end. A lock on it shows other processes that it is in use: of a
    process that was killed before it could start another, the lock is free.
    """
    _remove_abandoned(tempfile.gettempdir())
    directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(directory: str) -> None:
    """Removes this user's scratch directories that no process has locked. Links are not followed."""
    with os.scandir(directory) as entries:
        found = [entry for entry in entries if entry.name.startswith(_PREFIX)]
    for entry in found:
        with suppress(OSError):
            status = entry.stat(follow_symlinks=False)
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _ABANDONED_S:
                continue
            lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path)
            finally:
                os.close(lock)


def _fill(files: DatabaseFiles, directory: str, scratch: str, *, copy: bool) -> None:
    """Makes the database appear in the scratch directory. Files that are deleted meanwhile are left out."""
    current = files.read(f"{directory}/CURRENT") or b""
    if _CURRENT.fullmatch(current) is None:
        found = f"{len(current)} bytes" if len(current) > 64 else repr(current)
        raise CorruptStoreError(f"{directory}/CURRENT", 0, "the name of a MANIFEST", found)
    Path(scratch, "CURRENT").write_bytes(current)
    Path(scratch, "LOCK").touch()
    names = files.names(directory)
    manifest = current.decode().strip()
    # The manifest last: of what it names then, only files that are newer than the listing can be missing.
    for name in [*sorted(filter(_DATA.match, names)), *sorted(filter(_MANIFEST.match, names & {manifest}))]:
        with suppress(FileNotFoundError):
            files.make_readable_at(f"{directory}/{name}", f"{scratch}/{name}", copy=copy)
    if copy:
        for name in sorted(filter(_DATA.match, files.names(directory) - names)):
            with suppress(FileNotFoundError):
                files.make_readable_at(f"{directory}/{name}", f"{scratch}/{name}", copy=copy)
