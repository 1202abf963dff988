"""One wrong entry at the end of a queue, or where a bisection looks, hides no other message."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from store_format.consumequeue.units import FiledQueue
from store_format.read.store import Queue, Store
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.goldens import expected_rows, unpack
from tests.support.oracle import Message
from tests.support.store_files import write_file, write_files, write_queue

_LOG_FILE = 32 << 10  # 255 messages of 128 bytes
_COUNT, _START_MS = 2_000, 1_700_000_000_000
_SHAPES = (_COUNT + 100, 50)  # entries of a queue file
_GONE = 2  # log files that retention has deleted


def _message(offset: int) -> Message:
    """All messages have one size: a flipped bit of a place leads to the place of another one."""
    physical = offset // 255 * _LOG_FILE + offset % 255 * 128
    return Message(b"T", b"b" * 36, b"", 0, offset, physical, store_timestamp=_START_MS + offset)


_MESSAGES = [_message(offset) for offset in range(_COUNT)]
_FIRST = 255 * _GONE  # the first message in the log


def _unit(offset: int, flipped: int = 0) -> bytes:
    return oracle.cq_unit(_MESSAGES[offset].physical_offset ^ flipped, 128, 0)


@pytest.fixture(scope="module", params=_SHAPES, ids=("one file", "many files"))
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean store whose log begins with file 2, and whose queue has all its entries."""
    made = tmp_path_factory.mktemp("ends")
    data = b"".join(map(oracle.encode_message, _MESSAGES))
    for first in range(_FIRST, _COUNT, 255):
        held = data[first * 128 : (first + 255) * 128]
        held += oracle.blank(128) if len(held) == 255 * 128 else b""
        write_files(made / "commitlog", held, _LOG_FILE, first // 255 * _LOG_FILE)
    write_queue(made, _MESSAGES, request.param)
    write_file(made / "config" / "topics.json", b'{"topicConfigTable":{"T":{"readQueueNums":1}}}')
    return made


def _write(root: Path, offset: int, unit: bytes) -> None:
    files = sorted((root / "consumequeue" / "T" / "0").iterdir())
    size = files[0].stat().st_size
    overwrite(files[offset * 20 // size], offset * 20 % size, unit)


def _queue(root: Path) -> Queue:
    return Store.open(str(root)).queue("T", 0)


def _offsets(root: Path) -> list[int]:
    return _queue(root).to_table(columns=["queueOffset"])["queueOffset"].to_pylist()


_PROBES = [1_000, 999, 1_255, 1_500, _FIRST, _FIRST + 1, _FIRST + 49, _COUNT - 2, _COUNT - 1]


@pytest.mark.parametrize("offset", _PROBES)
def test_an_entry_that_leads_before_the_log_hides_no_message(
    root: Path, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    physical, begin = _MESSAGES[offset].physical_offset, _GONE * _LOG_FILE
    for flip in [1 << bit for bit in range(7, 20) if physical ^ (1 << bit) < begin] or [physical ^ 128]:
        _write(root, offset, _unit(offset, flip))
        try:
            assert _offsets(root) == list(range(_FIRST, _COUNT)), flip
        finally:
            _write(root, offset, _unit(offset))
    found = [" 1 entries of the consume queue", "lack the entries", "lack entries of messages"]
    assert any(each in caplog.text for each in found)


@pytest.mark.parametrize("offset", [0, 100, 255, 400, _FIRST - 2, _FIRST - 1])
def test_an_expired_entry_that_leads_into_the_log_brings_no_damage(root: Path, offset: int) -> None:
    _write(root, offset, _unit(offset, 1 << 40))
    try:
        assert _offsets(root) == list(range(_FIRST, _COUNT))
    finally:
        _write(root, offset, _unit(offset))


def test_shifted_entries_hide_no_message(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each entry from offset 500 on is that of the message before: the first message has no entry."""
    files = sorted((root / "consumequeue" / "T" / "0").iterdir())
    before = [file.read_bytes() for file in files]
    for offset in range(_FIRST - 5, _FIRST + 30):
        _write(root, offset, _unit(offset - 1))
    try:
        assert _offsets(root) == list(range(_FIRST, _COUNT))
        assert "30 entries of consume queues lead to other messages" in caplog.text or len(files) > 1
    finally:
        for file, data in zip(files, before, strict=True):
            file.write_bytes(data)


@pytest.mark.parametrize("bit", [10, 14, 18, 40])
def test_a_search_by_time_passes_an_entry_of_another_message(root: Path, bit: int) -> None:
    """The broker's bisection would take the time of the message to which the wrong entry leads."""
    wrong = (_FIRST + _COUNT - 1) // 2
    for offset in (wrong, wrong + 25):
        _write(root, offset, _unit(offset, 1 << bit))
    try:
        for expected in (_FIRST + 3, wrong - 1, wrong + 2, 1_800):
            for boundary in ("LOWER", "UPPER"):
                found = _queue(root).offset_at(_START_MS + expected, boundary, on_damage="DROPMALFORMED")
                assert found == expected, boundary
    finally:
        for offset in (wrong, wrong + 25):
            _write(root, offset, _unit(offset))


@pytest.mark.parametrize("offset", [_COUNT - 2, _COUNT - 5, 1_950])
def test_an_invalid_entry_near_the_end_hides_no_message_while_a_broker_runs(root: Path, offset: int) -> None:
    _write(root, offset, _unit(offset, -1 << 63))
    try:
        bounds = FiledQueue("T", 0, str(root / "consumequeue/T/0"), "simple").bounds(_GONE * _LOG_FILE)
        assert bounds is not None
        assert (bounds.min_offset, bounds.max_offset) == (_FIRST, _COUNT)
    finally:
        _write(root, offset, _unit(offset))


@pytest.mark.parametrize("wrong", [100, 299, 300, 598])
def test_a_wrong_place_in_a_batch_unit_hides_no_unit(tmp_path: Path, wrong: int) -> None:
    places = [1_000 * number for number in range(600)]
    places[wrong] = 5
    units = [oracle.batch_cq_unit(place, 100, 0, 1, 2 * i, 2) for i, place in enumerate(places)]
    write_files(tmp_path, b"".join(units), 46 * 1_000)
    bounds = FiledQueue("T", 0, str(tmp_path), "batch").bounds(100_000)
    assert bounds is not None
    # no other unit says where the first message is, if that of the first one is wrong
    assert (bounds.min_offset, bounds.max_offset) == (202 if wrong == 100 else 200, 1_200)


def test_flips_beside_the_first_entries_of_a_broker_s_store(tmp_path: Path) -> None:
    """Each bit that leads the first entries of cleaned-5.5.0 before the log, and one behind it."""
    logging.getLogger("store_format").setLevel(logging.ERROR)
    root = unpack("cleaned-5.5.0", tmp_path)
    rows = [row for row in expected_rows("cleaned-5.5.0") if row["topic"] == "Metrics"]
    firsts: dict[int, int] = {}
    for row in rows:
        firsts[row["queueId"]] = min(firsts.get(row["queueId"], row["queueOffset"]), row["queueOffset"])
    wanted = sorted((row["queueId"], row["queueOffset"]) for row in rows)
    begin = int(min(path.name for path in (root / "commitlog").iterdir()))
    tried = 0
    try:
        for row in rows:
            if row["queueOffset"] != firsts[row["queueId"]] or row["queueId"] > 3:
                continue
            at = row["queueOffset"] * 20
            path = root / "consumequeue" / "Metrics" / str(row["queueId"]) / oracle.file_name(at // 400 * 400)
            data, physical = path.read_bytes(), row["physicalOffset"]
            for bit in [bit for bit in range(20) if physical ^ (1 << bit) < begin] + [40]:
                unit = (physical ^ (1 << bit)).to_bytes(8)
                path.write_bytes(data[: at % 400] + unit + data[at % 400 + 8 :])
                queues = Store.open(str(root)).queues("Metrics".__eq__)
                got = [
                    (queue.queue_id, offset)
                    for queue in queues
                    for offset in queue.to_table(columns=["queueOffset"])["queueOffset"].to_pylist()
                ]
                assert got == wanted, (row["queueId"], bit)
                tried += 1
            path.write_bytes(data)
    finally:
        logging.getLogger("store_format").setLevel(logging.NOTSET)
    assert tried > 8
