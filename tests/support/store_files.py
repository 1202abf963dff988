"""Files of a store from bytes, and from messages of the oracle: nothing of the product writes them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.support import oracle
from tests.support.oracle import Message
from tests.support.rows import placed


def write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_files(directory: Path, data: bytes, size: int, first: int = 0) -> Path:
    """The data in files of this size, at least one, and zeros behind it; `first` is the name of the first."""
    for at in range(0, max(len(data), 1), size):
        write_file(directory / oracle.file_name(first + at), data[at : at + size].ljust(size, b"\0"))
    return directory


def write_log(root: Path, messages: Iterable[Message], size: int = 1 << 16) -> list[Message]:
    """A commitlog of one file; returns the messages as they are stored, one behind the other."""
    data, stored = placed(messages, 0)
    write_files(root / "commitlog", data, size)
    return stored


def write_queue(root: Path, messages: Iterable[Message], entries: int, queue: str = "T/0") -> None:
    """The consume queue of these messages, in files of so many entries."""
    units = [oracle.cq_unit(m.physical_offset, m.total_size, oracle.tags_code(m)) for m in messages]
    write_files(root / "consumequeue" / queue, b"".join(units), 20 * entries)
