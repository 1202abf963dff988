"""Writes the timer's files: units into the timerlog, slots into the wheel, timercheck and timermetrics (spec
8.3, 6.11).

The order matters: a broker rebuilds slots from the log, and begins to read where timercheck says.
timermetrics counts how many messages of each topic wait in the timer (TimerMetrics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from store_format.files.paths import offset_file_name
from store_format.files.write import FileWrites
from store_format.java.fastjson import loads
from store_format.layouts import (
    MAGIC_BLANK,
    TIMER_CHECK,
    TIMER_LOG_BLANK,
    TIMER_LOG_UNIT,
    TIMER_WHEEL_SLOT,
    pack,
)
from store_format.metadata.read import config_path, loaded_bytes
from store_format.metadata.timer import WHEEL_SLOTS, TimerCheck, TimerState, slot_records, units_per_file
from store_format.metadata.values import bean_errors_of, dumps, integer, members, next_version
from store_format.opened.store import Opened

_UNIT = TIMER_LOG_UNIT.itemsize
_SLOT = TIMER_WHEEL_SLOT.itemsize
_CHECK_SIZE = 4096  # DefaultMappedFile.OS_PAGE_SIZE

_NAME = "timermetrics"


def write_timer_log(state: TimerState, files: FileWrites) -> None:
    """Appends the new units (TimerLog.append), and cuts what is damaged behind the last whole unit."""
    if state.is_damaged:
        _cut_timer_log(state, files)
    if not len(state.new_units):
        return
    directory = files.make_directories(state.opened.path, "timerlog")
    size, room = state.file_size, units_per_file(state.file_size)
    numbers = state.new_positions // size
    is_new_name = False
    for number in range(int(numbers[0]), int(numbers[-1]) + 1):
        here = numbers == number
        first = int(state.new_positions[here][0]) % size
        if first == 0 and number * size >= size:
            _end_file(state, number - 1, files)
        file, is_created = files.open_full(f"{directory}/{offset_file_name(number * size)}", size)
        is_new_name |= is_created
        with file:
            file.write(first, state.new_units[here].tobytes())
            files.sync(file)
        assert first + int(here.sum()) * _UNIT <= room * _UNIT
    if is_new_name:
        files.sync_directory(directory)


def _end_file(state: TimerState, number: int, files: FileWrites) -> None:
    """Writes the blank after the last unit of a full file, if the file is still there."""
    size = state.file_size
    position = units_per_file(size) * _UNIT
    if number * size < (state.log.files[0].start if state.log.files else 0):
        return
    blank = pack(TIMER_LOG_BLANK, {"size": size - position, "reserved": 0, "magic": MAGIC_BLANK})
    file, _ = files.open_full(f"{state.opened.path}/timerlog/{offset_file_name(number * size)}", size)
    with file:
        file.write(position, blank.tobytes())
        files.sync(file)


def _cut_timer_log(state: TimerState, files: FileWrites) -> None:
    """Removes what is behind the end of the log (MappedFileQueue.truncateDirtyFiles)."""
    end = int(state.new_positions[0]) if len(state.new_positions) else state.end
    for each in state.log.files:
        if each.start >= end and each.start > 0:
            files.remove(each.path)
        elif each.stop > end:
            with files.open(each.path) as file:
                file.zero(max(end - each.start, 0), each.size)
                files.sync(file)


def write_timer_wheel(state: TimerState, files: FileWrites) -> None:
    """Writes the changed slots; a wheel that is missing is created with empty slots, as by a broker.

    If the slots come from a snapshot (timerWheelSnapshotFlush) or from the log, the whole wheel is written.
    The snapshots stay: a broker that uses them reads the timerlog again from their position on.
    """
    if not state.slots and not state.rewrites_wheel:
        return
    indices = sorted(state.slots)
    records = slot_records([state.slots[index] for index in indices])
    file, is_new = files.open_full(f"{state.opened.path}/timerwheel", WHEEL_SLOTS * _SLOT)
    with file:
        if state.rewrites_wheel:
            empty = np.zeros(WHEEL_SLOTS, TIMER_WHEEL_SLOT)
            whole = empty if state.wheel is None else state.wheel.copy()
            whole[indices] = records
            file.write(0, whole.tobytes())
        else:
            for rows in np.split(np.arange(len(indices)), np.flatnonzero(np.diff(indices) != 1) + 1):
                file.write(indices[rows[0]] * _SLOT, records[rows[0] : rows[-1] + 1].tobytes())
        files.sync(file)
    if is_new:
        files.sync_directory(state.opened.path)


def next_timer_check(
    check: TimerCheck, *, read_time: int, queue_offset: int, log_end: int, now_ms: int
) -> TimerCheck:
    """The checkpoint after a turn (TimerMessageStore.prepareTimerCheckPoint).

    The data version advances if the read time or the queue offset has changed.
    """
    changed = replace(
        check,
        last_read_time=read_time,
        last_timer_log_flush_pos=log_end,
        last_timer_queue_offset=queue_offset,
        master_timer_queue_offset=queue_offset,
    )
    if (read_time, queue_offset) == (check.last_read_time, check.master_timer_queue_offset):
        return changed
    return replace(changed, timestamp=now_ms, counter=check.counter + 1)


def timer_check_bytes(check: TimerCheck) -> bytes:
    """The 4096 bytes of config/timercheck."""
    values = {name: getattr(check, name) for name in TIMER_CHECK.names or ()}
    return pack(TIMER_CHECK, values).tobytes().ljust(_CHECK_SIZE, b"\0")


def write_timer_check(opened: Opened, check: TimerCheck, files: FileWrites, aside: str | None = None) -> None:
    """Replaces config/timercheck at once: a broker that found half of it would deliver a week again.

    `aside` is the path of the new file before it takes its place.
    """
    files.make_directories(opened.path, "config")
    files.replace(config_path(opened, "timercheck"), timer_check_bytes(check), aside)


# ---- timermetrics ------------------------------------------------------------------------------------------


def merge_timer_metrics(
    data: bytes | None, changes: Mapping[str, int], *, timestamp: int, file: str = f"config/{_NAME}"
) -> bytes | None:
    """The file with these changes of the counts by topic; None without a change.

    `data` is the present file, None or empty without one; `timestamp` is the clock in ms. Raises
    CorruptStoreError for a file of another kind.

    >>> merge_timer_metrics(None, {"T": 2}, timestamp=5)
    b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"timingCount":{"T":{"count":2,"timeStamp":5}}}'
    """
    if not any(changes.values()):
        return None
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        counts = dict(members(raw.get("timingCount"), "timingCount"))
        for topic, change in changes.items():
            before = members(counts.get(topic), f"timingCount.{topic}")
            count = integer(before.get("count", 0), f"timingCount.{topic}.count")
            counts[topic] = {**before, "count": count + change, "timeStamp": timestamp}
        version = members(raw.get("dataVersion") or {"counter": 0, "stateVersion": 0}, "dataVersion")
        newer = next_version(version, timestamp)
    return dumps({"dataVersion": newer} | raw | {"dataVersion": newer, "timingCount": counts}, pretty=False)


def write_timer_metrics(
    opened: Opened, changes: Mapping[str, int], *, timestamp: int, files: FileWrites
) -> bool:
    """Adds to the counts by topic; False without a change.

    The caller holds the store's lock. The file is replaced at once, so that a crash never leaves a store
    without it. If a crash of a broker left a damaged file, its `.bak` counts. Raises CorruptStoreError if
    that cannot be decoded either.
    """
    path = config_path(opened, _NAME)
    place, data = loaded_bytes(path)
    text = merge_timer_metrics(data, changes, timestamp=timestamp, file=place)
    if text is None:
        return False
    files.make_directories(opened.path, "config")
    files.replace(path, text)
    return True
