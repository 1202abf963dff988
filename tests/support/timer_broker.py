"""What a broker makes of a timer's files when it starts: a model of TimerMessageStore (spec 8.3).

A broker reads slots from timercheck's read time on, and puts messages from timercheck's queue offset on into
the wheel. While it starts it puts each of them into the slot of its own time (`doEnqueue`), also if that slot
was read before: then nobody delivers the message.
"""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np

from tests.support.oracle import Message
from tests.support.staged import messages_of

TIMER_TOPIC = "rmq_sys_wheel_timer"
_PRECISION_MS = 1_000
_UNIT = struct.Struct(">iqiqiqiiq")
_SLOT = np.dtype([("time", ">i8"), ("first", ">i8"), ("last", ">i8"), ("num", ">i4"), ("magic", ">i4")])
_CHECK = struct.Struct(">7q")
_BLANK = 0xCBD43194 - (1 << 32)


def to_come(root: Path) -> Counter[str]:
    """How often a broker that starts now delivers each timer message, by UNIQ_KEY; without recalls."""
    check = root / "config" / "timercheck"
    read_ms, flushed, _, master, *_ = _CHECK.unpack(check.read_bytes()[:56]) if check.exists() else (0,) * 7
    by_place = {m.physical_offset: m for m in messages_of(root)}
    units, file_size = _log(root)
    wheel = _wheel(root)
    for position, unit in units.items():  # recoverAndRevise
        if position >= max(flushed - file_size, 0) // max(file_size, 1) * file_size:
            wheel[(unit[3] + unit[4]) // _PRECISION_MS] = position
    found: Counter[str] = Counter()
    for time, position in wheel.items():
        while time * _PRECISION_MS >= read_ms and position in units:
            found[by_place[units[position][5]].properties["UNIQ_KEY"]] += 1
            position = units[position][1]
    queue = [m for m in by_place.values() if m.topic == TIMER_TOPIC]
    last = by_place[units[max(units)][5]].queue_offset + 1 if units else master
    for message in queue[min(last, master) :]:
        if int(message.properties["TIMER_OUT_MS"]) >= read_ms:
            found[message.properties["UNIQ_KEY"]] += 1
    return found


def lost(root: Path) -> set[str]:
    """The timer messages that nobody has delivered, and that a broker which starts now never delivers."""
    messages = messages_of(root)
    waiting = {m.properties["UNIQ_KEY"] for m in messages if m.topic == TIMER_TOPIC and not _is_recall(m)}
    recalled = {m.properties["UNIQ_KEY"] for m in messages if _is_recall(m)}
    delivered = {m.properties.get("UNIQ_KEY") for m in messages if m.topic != TIMER_TOPIC}
    return waiting - delivered - recalled - to_come(root).keys()


def _is_recall(message: Message) -> bool:
    return "TIMER_DEL_UNIQKEY" in message.properties


def _log(root: Path) -> tuple[dict[int, tuple[int, ...]], int]:
    """The units of the timerlog by position, up to damage or zeros; the size of a file."""
    units: dict[int, tuple[int, ...]] = {}
    size = 0
    for path in sorted((root / "timerlog").glob("*")):
        data = path.read_bytes()
        size = len(data)
        for inside in range(0, size - _UNIT.size + 1, _UNIT.size):
            unit = _UNIT.unpack_from(data, inside)
            if unit[2] == _BLANK:
                break
            if unit[0] != _UNIT.size or unit[2] & ~0xF or unit[6] <= 0:
                return units, size
            units[int(path.name) + inside] = unit
    return units, size


def _wheel(root: Path) -> dict[int, int]:
    """The last position of each slot of the wheel, by its time in seconds."""
    path = root / "timerwheel"
    slots = np.frombuffer(path.read_bytes() if path.exists() else b"", _SLOT)
    return {int(slot["time"]): int(slot["last"]) for slot in slots[slots["time"] > 0]}
