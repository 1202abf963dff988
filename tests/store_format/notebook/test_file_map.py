"""The picture of a store's files: each part has its bytes, damage is seen however small it is, and many files
have an end.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from store_format.notebook.file_map import file_map
from store_format.notebook.log_parts import CELLS, LogParts, Part, read_log_parts
from store_format.store import MessageStore
from tests.support import goldens, oracle
from tests.support.html_check import Page, read_page
from tests.support.oracle import Message
from tests.support.small_store import FILE_SIZE, write_small_store

Golden = Callable[[str], Path]

BLUE, YELLOW, RED = "#3b82c4", "#d6a72c", "#dc2626"
ALL = 1 << 40


def _read(root: Path, *, files_max: int = 64, read_bytes_max: int = ALL) -> LogParts:
    return read_log_parts(MessageStore.open(str(root)), files_max=files_max, read_bytes_max=read_bytes_max)


def _map(root: Path, read_bytes_max: int = ALL) -> Page:
    return read_page(file_map(MessageStore.open(str(root)), read_bytes_max=read_bytes_max).source)


def _share(log: LogParts, part: Part) -> list[float]:
    return [float(np.mean(parts.cells == part)) for parts in log.files]


@pytest.mark.parametrize("name", [name for name in goldens.NAMES if "cluster" not in name])
def test_the_bytes_are_those_of_the_diagnosis(golden: Golden, name: str) -> None:
    root = golden(name)
    summary = MessageStore.open(str(root)).diagnose().summary
    log = _read(root)
    assert sum(parts.message_bytes for parts in log.files) == summary.unit_bytes
    assert sum(parts.damage_bytes for parts in log.files) == summary.damage_bytes
    assert (log.left_out, log.unread_bytes) == (0, 0)


def test_the_parts_of_a_file(tmp_path: Path) -> None:
    store = write_small_store(tmp_path / "store")
    log = _read(store.root)
    assert [parts.file.start for parts in log.files] == [0, FILE_SIZE]
    (used, _), (blank, _), (_, unwritten) = (
        _share(log, part) for part in (Part.MESSAGES, Part.BLANK, Part.UNWRITTEN)
    )
    assert used == pytest.approx(log.files[0].message_bytes / FILE_SIZE, abs=1 / CELLS)
    assert blank == pytest.approx(1 - used)  # the first file has no empty part, the second no padding
    assert unwritten == pytest.approx(1 - log.files[1].message_bytes / FILE_SIZE, abs=1 / CELLS)
    page = _map(store.root)
    assert (page.fills[BLUE] > 3, page.fills[YELLOW]) == (True, 2)  # one is the legend's
    assert page.fills[RED] == 1
    assert "Orders-0" in page.text


def test_one_damaged_byte_is_seen(tmp_path: Path) -> None:
    store = write_small_store(tmp_path / "store")
    path, within, size = store.unit_place("plain")
    data = bytearray(path.read_bytes())
    data[within + 90] ^= 1  # of the body: its CRC tells
    path.write_bytes(data)
    log = _read(store.root)
    assert log.files[0].damage_bytes == size
    assert _share(log, Part.DAMAGE)[0] > 0
    page = _map(store.root)
    assert page.fills[RED] == 2
    assert f"{size:,} damaged" in page.text


def test_a_missing_file_is_drawn(golden: Golden, tmp_path: Path) -> None:
    root = Path(shutil.copytree(golden("basic-5.5.0"), tmp_path / "store"))
    (root / "commitlog" / "00000000000000262144").unlink()
    assert [parts.is_missing for parts in _read(root).files] == [False, True, False, False]
    page = _map(root)
    assert "missing: 262,144 bytes" in page.text
    assert page.fills[RED] == 2


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    store = write_small_store(tmp_path / "store")
    path = store.root / "commitlog" / oracle.file_name(FILE_SIZE)
    path.write_bytes(path.read_bytes()[: FILE_SIZE // 4])
    log = _read(store.root)
    assert [len(parts.cells) for parts in log.files] == [CELLS, CELLS // 4]


def test_files_that_are_not_read(tmp_path: Path) -> None:
    store = write_small_store(tmp_path / "store")
    log = _read(store.root, read_bytes_max=FILE_SIZE)
    assert _share(log, Part.UNREAD) == [1.0, 0.0]
    assert log.unread_bytes == FILE_SIZE
    text = _map(store.root, FILE_SIZE).text
    assert f"{FILE_SIZE:,} bytes, not read" in text
    assert f"of the oldest {FILE_SIZE:,} bytes of the commitlog nothing was read" in text


def test_at_least_the_newest_file_is_read(tmp_path: Path) -> None:
    assert _share(_read(write_small_store(tmp_path / "store").root, read_bytes_max=1), Part.UNREAD) == [
        1.0,
        0.0,
    ]


def _write_many(root: Path, count: int, size: int) -> None:
    """Files of one message each; a queue for each of the first hundred."""
    for i in range(count):
        message = Message(b"T", b"x", b"", i, 0, i * size)
        data = oracle.encode_message(message)
        path = root / "commitlog" / oracle.file_name(i * size)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data + oracle.blank(size - len(data)).ljust(size - len(data), b"\0"))
        if i < 100:
            queue = root / "consumequeue" / "T" / str(i) / oracle.file_name(0)
            queue.parent.mkdir(parents=True)
            queue.write_bytes(oracle.cq_unit(i * size, len(data), 0).ljust(200, b"\0"))


def test_more_files_than_are_drawn(tmp_path: Path) -> None:
    count, size = 800, 256
    _write_many(tmp_path / "store", count, size)
    page = _map(tmp_path / "store")
    assert f"{count - 64:,} older commitlog files are not drawn" in page.text
    assert "with damage" not in page.text
    assert "consume queues: the 32 with the most entries of 100" in page.text
    assert page.fills[RED] == 1
    for i in range(20):
        path = tmp_path / "store" / "commitlog" / oracle.file_name(i * size)
        path.write_bytes(b"bad" + path.read_bytes()[3:])
    log = _read(tmp_path / "store")
    assert [parts.file.start // size for parts in log.files] == [*range(16), *range(count - 64, count)]
    assert (log.left_out, log.damaged_left_out) == (count - 80, 4)
    page = _map(tmp_path / "store")
    assert f"{count - 80:,} older commitlog files are not drawn, 4 of them with damage" in page.text
    assert page.fills[RED] == 17


def test_a_picture_of_alternating_parts_has_an_end(tmp_path: Path) -> None:
    root = tmp_path / "store"
    units, place = b"", 0
    for i in range(600):  # every other message is damaged
        data = oracle.encode_message(Message(b"T", b"x", b"", 0, i, place))
        units += data if i % 2 else b"\xff" * len(data)
        place += len(data)
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / oracle.file_name(0)).write_bytes(units.ljust(1 << 16, b"\0"))
    log = _read(root)
    assert log.files[0].damage_bytes == place // 2
    assert len(file_map(MessageStore.open(str(root))).source) < 30_000


def test_an_empty_store(tmp_path: Path) -> None:
    MessageStore.create(str(tmp_path / "new"))
    text = _map(tmp_path / "new").text
    assert text.startswith("new: files")
    assert text.endswith("there are no consume queuesthere are no index files")
