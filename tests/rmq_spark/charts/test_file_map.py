"""The chart of a store's files: each part has its bytes, the smallest damage is visible, and the rows are
bounded.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_spark import charts
from rmq_spark.charts.data import Drawn
from rmq_spark.charts.file_map import CELLS, LogParts, Part, read_log_parts
from store_format.display.units import size_text
from store_format.errors import StoreError
from store_format.store import MessageStore
from tests.support import goldens, oracle
from tests.support.fixtures import Golden
from tests.support.hostile_store import damage_files, write_hostile_store
from tests.support.oracle import Message
from tests.support.small_store import FILE_SIZE, SmallStore, write_small_store
from tests.support.store_files import write_files, write_queue

ALL = 1 << 40


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return write_small_store(tmp_path / "store")


def _read(root: Path, *, files_max: int = 64, read_bytes_max: int = ALL) -> LogParts:
    return read_log_parts(MessageStore.open(str(root)), files_max=files_max, read_bytes_max=read_bytes_max)


def _map(root: Path, read_bytes_max: int = ALL) -> Drawn:
    return charts.file_map_data(MessageStore.open(str(root)), read_bytes_max=read_bytes_max)


def _rows(drawn: Drawn, kind: str) -> list[dict[str, Any]]:
    return [row for row in drawn.table.to_pylist() if row["kind"] == kind]


def _parts(drawn: Drawn) -> Counter[str]:
    """How many pieces of the commitlog's bars each part has."""
    return Counter(row["part"] for row in _rows(drawn, "commitlog"))


def _numbers(drawn: Drawn) -> set[str]:
    return set(drawn.table["numbers"].to_pylist())


def _share(log: LogParts, part: Part) -> list[float]:
    return [float(np.mean(parts.cells == part)) for parts in log.files]


@pytest.mark.parametrize("name", [name for name in goldens.NAMES if "brokers" not in goldens.expected(name)])
def test_the_bytes_are_those_of_the_diagnosis(golden: Golden, name: str) -> None:
    root = golden(name)
    summary = MessageStore.open(str(root)).diagnose().summary
    log = _read(root)
    assert sum(parts.message_bytes for parts in log.files) == summary.unit_bytes
    assert sum(parts.damage_bytes for parts in log.files) == summary.damage_bytes
    assert (log.left_out, log.unread_bytes) == (0, 0)
    drawn = _map(root)
    assert (_parts(drawn)["damaged"] > 0) == ("torn" in name)
    assert not [note for note in drawn.notes if "cannot be drawn" in note]


def test_the_parts_of_a_file(store: SmallStore) -> None:
    log = _read(store.root)
    assert [parts.file.start for parts in log.files] == [0, FILE_SIZE]
    (used, _), (blank, _), (_, unwritten) = (
        _share(log, part) for part in (Part.MESSAGES, Part.BLANK, Part.UNWRITTEN)
    )
    assert used == pytest.approx(log.files[0].message_bytes / FILE_SIZE, abs=1 / CELLS)
    assert blank == pytest.approx(1 - used)  # the first file has no empty part, the second no padding
    assert unwritten == pytest.approx(1 - log.files[1].message_bytes / FILE_SIZE, abs=1 / CELLS)
    drawn = _map(store.root)
    assert _parts(drawn) == {"messages": 2, "padding at a file's end": 1, "not written yet": 1}
    first = _rows(drawn, "commitlog")[:2]
    assert (first[0]["low"], first[0]["high"], first[1]["high"]) == (0, first[1]["low"], 1)
    assert "Orders-0" in {row["name"] for row in _rows(drawn, "consume queues")}


def test_one_damaged_byte_is_seen(store: SmallStore) -> None:
    path, within, size = store.unit_place("plain")
    data = bytearray(path.read_bytes())
    data[within + 90] ^= 1  # of the body: its CRC tells
    path.write_bytes(data)
    log = _read(store.root)
    assert log.files[0].damage_bytes == size
    assert _share(log, Part.DAMAGE)[0] > 0
    drawn = _map(store.root)
    assert _parts(drawn)["damaged"] == 1
    assert any(numbers.endswith(f", {size_text(size)} damaged") for numbers in _numbers(drawn))


def test_a_missing_file_is_drawn(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    (root / "commitlog" / "00000000000000262144").unlink()
    assert [parts.is_missing for parts in _read(root).files] == [False, True, False, False]
    drawn = _map(root)
    assert "missing: 256 KiB" in _numbers(drawn)
    assert _parts(drawn)["damaged"] == 1


def test_a_file_that_was_cut(store: SmallStore) -> None:
    path = store.root / "commitlog" / oracle.file_name(FILE_SIZE)
    path.write_bytes(path.read_bytes()[: FILE_SIZE // 4])
    log = _read(store.root)
    assert [len(parts.cells) for parts in log.files] == [CELLS, CELLS // 4]


def test_files_that_are_not_read(store: SmallStore) -> None:
    log = _read(store.root, read_bytes_max=FILE_SIZE)
    assert _share(log, Part.UNREAD) == [1.0, 0.0]
    assert log.unread_bytes == FILE_SIZE
    drawn = _map(store.root, FILE_SIZE)
    assert f"{size_text(FILE_SIZE)}, not read" in _numbers(drawn)
    assert drawn.notes[0] == (
        f"the oldest {size_text(FILE_SIZE)} of the commitlog were not read; read_bytes_max= reads more"
    )


def test_at_least_the_newest_file_is_read(store: SmallStore) -> None:
    assert _share(_read(store.root, read_bytes_max=1), Part.UNREAD) == [1.0, 0.0]


def _write_many(root: Path, count: int, size: int) -> None:
    """Files of one message each; queue files for the first hundred. The log shows the other queues."""
    for i in range(count):
        message = Message(b"T", b"x", b"", i, 0, i * size)
        data = oracle.encode_message(message)
        write_files(root / "commitlog", data + oracle.blank(size - len(data)), size, i * size)
        if i < 100:
            write_queue(root, [message], 10, f"T/{i}")


@pytest.mark.process
def test_more_files_than_are_drawn(tmp_path: Path) -> None:
    count, size = 800, 256
    _write_many(tmp_path / "store", count, size)
    drawn = _map(tmp_path / "store")
    assert f"{count - 64:,} older commitlog files are not drawn" in drawn.notes
    assert "consume queues: the 32 with the most entries of 800" in drawn.notes
    assert _parts(drawn)["damaged"] == 0
    for i in range(20):
        path = tmp_path / "store" / "commitlog" / oracle.file_name(i * size)
        path.write_bytes(b"bad" + path.read_bytes()[3:])
    log = _read(tmp_path / "store")
    assert [parts.file.start // size for parts in log.files] == [*range(16), *range(count - 64, count)]
    assert (log.left_out, log.damaged_left_out) == (count - 80, 4)
    drawn = _map(tmp_path / "store")
    assert f"{count - 80:,} older commitlog files are not drawn, 4 of them with damage" in drawn.notes
    assert _parts(drawn)["damaged"] == 16


def test_a_picture_of_alternating_parts_has_an_end(tmp_path: Path) -> None:
    root = tmp_path / "store"
    units, place = b"", 0
    for i in range(600):  # every other message is damaged
        data = oracle.encode_message(Message(b"T", b"x", b"", 0, i, place))
        units += data if i % 2 else b"\xff" * len(data)
        place += len(data)
    write_files(root / "commitlog", units, 1 << 16)
    log = _read(root)
    assert log.files[0].damage_bytes == place // 2
    assert len(_rows(_map(root), "commitlog")) <= CELLS


def test_an_empty_store(tmp_path: Path) -> None:
    MessageStore.create(str(tmp_path / "new"))
    drawn = _map(tmp_path / "new")
    assert drawn.table.num_rows == 0
    assert drawn.notes == ("there are no consume queues", "there are no index files")
    assert charts.file_map(MessageStore.open(str(tmp_path / "new"))).to_dict()["title"]["subtitle"] == list(
        drawn.notes
    )


def test_the_chart_draws_the_rows(golden: Golden) -> None:
    store = MessageStore.open(str(golden("delay-tx-5.5.0")))
    (values,) = charts.file_map(store).to_dict()["datasets"].values()
    assert values == charts.file_map_data(store).table.to_pylist()
    assert {"RMQ_SYS_TRANS_HALF_TOPIC-0"} <= {row["name"] for row in values}
    assert "234 KiB" in {row["numbers"] for row in values}


def test_hostile_names_cannot_leave_the_page(tmp_path: Path) -> None:
    store = MessageStore.open(str(write_hostile_store(tmp_path / "store\x1b[2J<i>")))
    page = charts.file_map(store).to_html()
    assert "<svg onload" not in page
    assert "<i>" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "\\\\u003csvg onload" in page  # the topic's name, spelled out


@pytest.mark.process
def test_damaged_bytes_never_raise(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    chance = random.Random(7)
    files = sorted(path for path in root.rglob("*") if path.is_file() and 0 < path.stat().st_size < 1 << 20)
    drawn = 0
    for _ in range(5):
        damage_files(files, chance)
        try:
            store = MessageStore.open(str(root))
        except StoreError:
            continue
        assert charts.file_map(store).to_dict()["title"]
        drawn += 1
    assert drawn


def test_a_queue_with_damaged_files_is_drawn_in_red(store: SmallStore) -> None:
    before = {row["name"] for row in _rows(_map(store.root), "consume queues")}
    assert "Orders-0" in before
    files = sorted((store.root / "consumequeue" / "Orders" / "0").iterdir())
    files[0].write_bytes(files[0].read_bytes()[:13])
    length = sum(file.stat().st_size for file in files)
    drawn = _map(store.root)
    assert {row["name"] for row in _rows(drawn, "consume queues")} == before
    first = _rows(drawn, "consume queues")[0]
    assert (first["name"], first["part"], first["low"], first["high"]) == ("Orders-0", "damaged", 0.0, 1.0)
    assert first["numbers"] == f"{size_text(length)}, damaged"
