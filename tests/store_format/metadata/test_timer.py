"""Timer units, blanks, slots and chains: the two broker-written stores with timers, torn and hostile logs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError, StoreError, TruncatedRecordError
from store_format.files.write import FileWrites
from store_format.layouts import TIMER_WHEEL_SLOT
from store_format.metadata.read import BrokerConf, read_timer_metrics
from store_format.metadata.timer import (
    WHEEL_SLOTS,
    TimerCheck,
    TimerLog,
    TimerWheel,
    slot_index,
    wheel_precision_ms,
    with_wheel_precision,
)
from store_format.metadata.timer_metrics import merge_timer_metrics, write_timer_metrics
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.oracle import java_hash

VECTOR = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())["timer"]
FILE_SIZE = 1024  # as in the vector: 19 units and a blank of 36 bytes
BLANK = bytes.fromhex(VECTOR["timerlog_blank"]["hex"]).ljust(36, b"\0")


def _unit(prev: int, magic: int = 1, size: int = 52, number: int = 0) -> bytes:
    return struct.pack(">iqiqiqiiq", size, prev, magic, 1_700_000_000_000, 4000, 100 * number, 100, 7, 0)


def _log(directory: Path, contents: list[bytes], file_size: int = FILE_SIZE) -> TimerLog:
    directory.mkdir(exist_ok=True)
    for i, content in enumerate(contents):
        (directory / f"{i * file_size:020d}").write_bytes(content.ljust(file_size, b"\0"))
    return TimerLog.open(str(directory))


def _positions(log: TimerLog, start: int = 0) -> list[int]:
    return [position + 52 * i for position, units in log.scan(start) for i in range(len(units))]


# ---- vectors -----------------------------------------------------------------------------------------------


def test_wheel_slot_vector(tmp_path: Path) -> None:
    vector = VECTOR["wheel_slot"]
    assert slot_index(vector["slot_time_ms"], vector["precision_ms"]) == vector["slot_index"]
    path = tmp_path / "timerwheel"
    with open(path, "wb") as file:
        file.seek(32 * vector["slot_index"])
        file.write(bytes.fromhex(vector["hex"]))
        file.truncate(VECTOR["wheel_file_size"])
    assert VECTOR["wheel_file_size"] == WHEEL_SLOTS * TIMER_WHEEL_SLOT.itemsize
    wheel = TimerWheel.open(str(path), vector["precision_ms"])
    assert wheel is not None
    slot = wheel.slot(vector["slot_time_ms"] + 999)
    assert slot is not None
    assert [int(slot[name]) for name in ("first_pos", "last_pos", "num", "magic")] == [0, 104, 3, 0]
    assert wheel.slot(vector["slot_time_ms"] + 1000) is None
    assert wheel.slot(vector["slot_time_ms"] + 1000 * WHEEL_SLOTS) is None  # the same place, another round
    assert wheel.slots().tolist() == [slot.item()]


# ---- golden ------------------------------------------------------------------------------------------------


def _slot_time(out_ms: int, unit: np.void) -> int:
    """Spec 8.3, roll: what is due in two days or more fires earlier and is put again."""
    window, written = 2 * 86_400_000, int(unit["write_timestamp"])
    excess = out_ms - written - window
    assert unit["magic"] == (1 if excess < 0 else 3)
    return out_ms if excess < 0 else written + (window // 2 if excess < window // 3 else window)


@pytest.mark.parametrize("name", ["delay-tx-5.5.0", "pop-5.5.0"])
def test_every_unit_is_a_message_of_the_timer_topic(golden: Golden, name: str) -> None:
    """One unit per message, in order, each in the chain of the slot that TIMER_OUT_MS gives, and every slot's
    count right.
    """
    store = golden(name)
    rows = sorted(
        (row for row in goldens.expected_rows(name) if row["topic"] == "rmq_sys_wheel_timer"),
        key=lambda row: row["queueOffset"],
    )
    log = TimerLog.open(str(store / "timerlog"))
    ((start, units),) = log.scan()
    assert start == 0
    assert units["physical_offset"].tolist() == [row["physicalOffset"] for row in rows]
    assert units["message_size"].tolist() == [row["storeSize"] for row in rows]
    assert units["topic_hash"].tolist() == [java_hash(row["properties"]["REAL_TOPIC"]) for row in rows]

    wheel = TimerWheel.newest(Opened(str(store)))
    assert wheel is not None
    chained: dict[int, int] = {}  # physical offset -> slot time
    for slot in wheel.slots():
        chain = list(log.chain(int(slot["last_pos"])))
        assert len(chain) == slot["num"]
        assert chain[-1][0] == slot["first_pos"]
        assert wheel.slot(int(slot["slot_time"]) * 1000) == slot
        chained |= {int(unit["physical_offset"]): int(slot["slot_time"]) * 1000 for _, unit in chain}
    # The broker has already taken a precision step off TIMER_OUT_MS when it stores it.
    due = {
        row["physicalOffset"]: _slot_time(int(row["properties"]["TIMER_OUT_MS"]), unit)
        for row, unit in zip(rows, units, strict=True)
    }
    assert chained == due

    check = TimerCheck.read(Opened(str(store)))
    assert check is not None
    assert (check.last_timer_log_flush_pos, check.last_timer_queue_offset) == (52 * len(rows), len(rows))


# ---- ends of files and of the log --------------------------------------------------------------------------


def test_blank_leads_into_the_next_file(tmp_path: Path) -> None:
    full = b"".join(_unit(-1, number=i) for i in range(19)) + BLANK
    log = _log(tmp_path / "timerlog", [full, _unit(0) + _unit(52)])
    assert _positions(log) == [52 * i for i in range(19)] + [1024, 1076]
    assert _positions(log, 52 * 18) == [52 * 18, 1024, 1076]
    assert _positions(log, 52 * 18 + 1) == [1024, 1076]
    assert _positions(log, 1076) == [1076]
    assert _positions(log, 5000) == []


def test_unwritten_space_ends_the_log(tmp_path: Path) -> None:
    """Whatever an older log has left in the next file."""
    log = _log(tmp_path / "timerlog", [_unit(-1) + _unit(0), _unit(52)])
    assert _positions(log) == [0, 52]


def test_full_file_whose_blank_is_not_written_yet_ends_the_log(tmp_path: Path) -> None:
    log = _log(tmp_path / "timerlog", [b"".join(_unit(-1) for _ in range(19))])
    assert len(_positions(log)) == 19


@pytest.mark.parametrize(
    ("tail", "found"),
    [
        (_unit(0, magic=0x10), "size 52 and magic 0x00000010"),
        (_unit(0, size=51), "size 51"),
        (b"\xff" * 52, "size -1 and magic 0xFFFFFFFF"),
        # a blank that lies about what is left
        (struct.pack(">iqI", 36, 0, 0xCBD43194), "size 36 and magic 0xCBD43194"),
    ],
)
def test_torn_unit_is_named(tmp_path: Path, tail: bytes, found: str) -> None:
    log = _log(tmp_path / "timerlog", [_unit(-1) + tail])
    seen: list[Any] = []
    with pytest.raises(CorruptStoreError) as caught:
        seen.extend(log.scan())
    assert [(position, len(units)) for position, units in seen] == [(0, 1)]
    assert caught.value.position == 52
    assert caught.value.file.endswith("00000000000000000000")
    assert found in caught.value.found


def test_file_cut_short_in_a_unit(tmp_path: Path) -> None:
    log = _log(tmp_path / "timerlog", [_unit(-1) + _unit(0)])
    path = Path(log.files[0].path)
    path.write_bytes(path.read_bytes()[:80])
    with pytest.raises(TruncatedRecordError) as caught:
        _positions(TimerLog.open(str(path.parent)))
    assert (caught.value.position, caught.value.found) == (52, "28 bytes")
    with pytest.raises(TruncatedRecordError) as caught:
        _positions(log)  # listed at full size, cut since
    assert caught.value.position == 52


@given(st.data())
def test_any_damage_ends_in_units_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    contents = [
        bytearray(b"".join(_unit(52 * i - 52) for i in range(19)) + BLANK),
        bytearray(_unit(0) + _unit(1024)),
    ]
    for _ in range(data.draw(st.integers(0, 5))):
        content = data.draw(st.sampled_from(contents))
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    log = _log(tmp_path_factory.mktemp("timer") / "timerlog", [bytes(content) for content in contents])
    refused: list[StoreError] = []
    positions: list[int] = []
    last = data.draw(st.integers(-2, 3000))
    for walk in ((position for position, _ in log.chain(last)), (position for position, _ in log.scan())):
        try:
            positions.extend(walk)
        except StoreError as error:
            refused.append(error)
    assert len(positions) <= 42
    assert all("timerlog" in str(error) and "at byte" in str(error) for error in refused)


# ---- chains ------------------------------------------------------------------------------------------------


def test_chain_ends_at_minus_one_and_at_the_oldest_file(tmp_path: Path) -> None:
    full = b"".join(_unit(52 * i - 52 if i else -1) for i in range(19)) + BLANK
    log = _log(tmp_path / "timerlog", [full, _unit(52 * 18) + _unit(1024)])
    assert [position for position, _ in log.chain(1076)] == [1076, 1024] + [52 * i for i in range(18, -1, -1)]
    assert list(log.chain(-1)) == []
    # the first file is expired
    assert [position for position, _ in TimerLog(log.files[1:]).chain(1076)] == [1076, 1024]


@pytest.mark.parametrize("prev", [52, 104, 2**62])
def test_chain_that_does_not_fall_is_refused(tmp_path: Path, prev: int) -> None:
    log = _log(tmp_path / "timerlog", [_unit(-1) + _unit(prev) + _unit(52)])
    walked: list[int] = []
    with pytest.raises(CorruptStoreError) as caught:
        walked.extend(position for position, _ in log.chain(104))
    assert (caught.value.position, caught.value.found) == (56, str(prev))


@pytest.mark.parametrize("position", [1, 51, 988, 1000, 1024, 2**62, 156])
def test_positions_where_no_unit_begins(tmp_path: Path, position: int) -> None:
    log = _log(tmp_path / "timerlog", [_unit(-1) * 2])
    with pytest.raises(CorruptStoreError):
        log.unit_at(position)


# ---- wheel and check ---------------------------------------------------------------------------------------


def test_wheel_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "timerwheel"
    path.write_bytes(bytes(64))
    with pytest.raises(CorruptStoreError) as caught:
        TimerWheel.open(str(path))
    assert caught.value.found == "64 bytes"
    path.write_bytes(b"")
    assert TimerWheel.open(str(path)) is None


def test_newest_snapshot_is_the_wheel(tmp_path: Path) -> None:
    opened = Opened(str(tmp_path))
    assert TimerWheel.newest(opened) is None
    for newest, *others in (
        ("timerwheel",),
        ("timerwheel.1040", "timerwheel.900", "timerwheel.2000.tmp", "timerwheel.bak"),
    ):
        for name in (newest, *others):
            with (tmp_path / name).open("wb") as file:
                file.truncate(WHEEL_SLOTS * TIMER_WHEEL_SLOT.itemsize)
        wheel = TimerWheel.newest(opened)
        assert wheel is not None
        assert wheel.path == str(tmp_path / newest)


@pytest.mark.parametrize("size", [0, 3, 8, 56, 4096])
def test_timer_check_of_any_size(tmp_path: Path, size: int) -> None:
    longs = [1_700_000_000_000, 52, 1, 1, 0, 1_700_000_000_001, -5]
    content = struct.pack(">7q", *longs).ljust(4096, b"\0")[:size]
    path = tmp_path / "config/timercheck"
    path.parent.mkdir()
    path.write_bytes(content)
    expected = TimerCheck(*struct.unpack(">7q", content.ljust(56, b"\0")[:56]))
    assert TimerCheck.read(Opened(str(tmp_path))) == expected


# ---- timermetrics ------------------------------------------------------------------------------------------


def test_the_form_is_that_of_a_broker(golden: Golden) -> None:
    data = (golden("delay-tx-5.5.0") / "config" / "timermetrics").read_bytes()
    merged = merge_timer_metrics(data, {"Timer": -3}, timestamp=9)
    assert merged is not None
    assert merged == data.replace(b"1795244069070", b"9").replace(b'"count":30', b'"count":27').replace(
        b'"counter":110', b'"counter":111'
    )


def test_nothing_changes_without_a_change(tmp_path: Path) -> None:
    assert not write_timer_metrics(Opened(str(tmp_path)), {"T": 0}, timestamp=9, files=FileWrites(sync=False))
    assert read_timer_metrics(Opened(str(tmp_path))) is None


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timermetrics"
    path.parent.mkdir()
    path.write_bytes(b'{"timingCount":{"T":{"count":"many"}}}')
    files = FileWrites(sync=False)
    with pytest.raises(CorruptStoreError, match=r"timingCount\.T\.count"):
        write_timer_metrics(Opened(str(tmp_path)), {"T": 1}, timestamp=9, files=files)
    path.with_name("timermetrics.bak").write_bytes(b'{"timingCount":{"T":{"count":4}}}')
    assert write_timer_metrics(Opened(str(tmp_path)), {"T": 1}, timestamp=9, files=files)
    found = read_timer_metrics(Opened(str(tmp_path)))
    assert found is not None
    assert (found["T"].count, found["T"].time_stamp) == (5, 9)


# ---- the precision of a wheel, read from wheels that were written with several -----------------------------


@pytest.mark.parametrize("precision", [100, 250, 1000])
def test_the_wheel_tells_its_precision(tmp_path: Path, precision: int) -> None:
    from rmq_spark.services import run_once
    from tests.support.staged import make_store
    from tests.support.waiting import BEGIN_MS, append, timed

    root = str(make_store(tmp_path / "s"))
    append(Path(root), timed("T", BEGIN_MS + 7_000, 0, 3))
    assert wheel_precision_ms(Opened(root)) is None
    run_once(root, ["timer"], BEGIN_MS, broker_conf=BrokerConf(timer_precision_ms=precision), apply=True)
    assert wheel_precision_ms(Opened(root)) == precision
    assert with_wheel_precision(Opened(root), BrokerConf()).timer_precision_ms == precision
    given = BrokerConf.of({"timerPrecisionMs": "500"}, "broker.conf")
    assert with_wheel_precision(Opened(root), given).timer_precision_ms == 500


def test_a_broker_s_wheel_has_a_precision_of_a_second(tmp_path: Path) -> None:
    root = goldens.unpack("pop-5.5.0", tmp_path)
    assert wheel_precision_ms(Opened(str(root))) == 1000
    (root / "timerwheel").write_bytes(b"\1")
    assert wheel_precision_ms(Opened(str(root))) is None
