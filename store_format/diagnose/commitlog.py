"""The commitlog walked from end to end: every byte is part of a message, padding, damaged or unwritten, and
all damage is reported.

The check of the queues sees the good messages during the walk. The other checks run after it, when the lost
ranges of the log are known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import within_ranges
from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.log import CommitLog, first_byte, frame_of
from store_format.commitlog.walk import Damage, EndKind, UnitRun, Walk
from store_format.consumequeue.dispatch import find_entries
from store_format.diagnose.problems import BODY_ADVICE, Findings, LogSummary, Severity
from store_format.layouts import OFFSET_MAX
from store_format.message.locate import BadUnit, UnitRefs, locate
from store_format.message.single import UnitKind
from store_format.survey.log_end import ReadableEnd

DAMAGE_ADVICE = (
    "Messages here are lost; read around them with mode=DROPMALFORMED, or restore the file from a replica"
)
_HEAD_ADVICE = (
    "The message behind this head is whole, and readers show it. A broker that recovers this file ends the "
    "log here: restore the file from a replica"
)
_TAIL_ADVICE = "A broker that starts on this store cuts the log here (CommitLog.recoverAbnormally)"
_CUT_ADVICE = (
    "A broker that starts on this store cuts these messages off (CommitLog.recoverNormally, "
    "recoverAbnormally): export them before a broker starts, with rmqlog export --skip-damage or "
    "mode=DROPMALFORMED. A copy that was made while a broker wrote can look like this: copy it again"
)
_REMAINS_ADVICE = (
    "An earlier recovery has cut these messages: readers do not show them, and a broker overwrites them"
)


class Lost:
    """Physical ranges whose messages are lost: damage, missing files, and the cut-off end of a file."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def add(self, start: int, stop: int) -> None:
        self._ranges.append((start, stop))

    @property
    def stop(self) -> int:
        """Where the last lost range ends; 0 without lost ranges."""
        return max((stop for _, stop in self._ranges), default=0)

    def contains(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which physical offsets lie in a lost range."""
        return within_ranges(offsets, self._ranges)


@dataclass(frozen=True, slots=True)
class Targets:
    """Where entries of queues and index files may point: into the log before `end`, not into `lost`."""

    log: CommitLog
    end: int
    lost: Lost

    def readable(self, physical: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which physical offsets lie in the log and in no lost range."""
        inside: NDArray[np.bool_] = (physical >= self.log.min_offset) & (physical < self.end)
        return inside & ~self.lost.contains(physical)


def check_log(
    findings: Findings,
    log: CommitLog,
    file_size: int,
    state: StoreState,
    lost: Lost,
    visit: Callable[[UnitRun], None],
    readable: ReadableEnd | None = None,
) -> LogSummary:
    """Walks the log with CRC checks, reports its damage, and calls `visit` with every run of good messages.

    `file_size` is the length that all files should have. `readable` says how far the log of a crashed store
    can be read, and what a broker that starts would cut. Lost ranges are added to `lost`.
    """
    from store_format.message.decode import unopened  # it imports pyarrow.compute

    if not log.files:
        return LogSummary()
    walk = log.apart().walk(log.min_offset, verify_crc=True, resync=True)
    cut_bytes, torn_bytes, closed = 0, 0, 0
    padding, padding_stop = 0, -1  # a cut file lacks the rest of it
    end, cut = (OFFSET_MAX, OFFSET_MAX) if readable is None else (readable.offset, readable.cut)
    threads = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="rmqlog-bodies")
    for step in _one_ahead(walk):
        if isinstance(step, Damage):
            cut_bytes += step.stop - step.start if step.file.start + step.start >= cut else 0
            if readable is not None:  # behind its end are only messages that a recovery has cut
                step = replace(step, at_tail=step.file.start + step.start >= readable.offset)
                if step.at_tail and state is not StoreState.CRASHED:
                    continue
            _report_damage(findings, log, file_size, state, step)
            if _is_padding(log, step) or (padding_stop == step.file.start and step.file not in log.files):
                padding, padding_stop = padding + step.stop - step.start, step.file.start + step.stop
            # At the tail of a crashed store the log ends before the damage, and entries behind its end are
            # reported on their own.
            if step.at_tail and state is StoreState.CRASHED:
                torn_bytes += step.stop - step.start
            else:
                lost.add(*step.range)
        else:
            cut_bytes += int(step.sizes[step.physical_offsets >= cut].sum())
            visit(step)
            closed += _check_bodies(findings, unopened(log.refs_of(step), threads.map), end)
    threads.shutdown()
    _check_end(findings, log, file_size, state, walk, lost)
    if readable is not None:
        report_cut(findings, log, readable)
    sums = walk.sums
    is_cut = state is StoreState.CRASHED and readable is not None and cut_bytes > 0
    return LogSummary(
        files=len(log.files),
        units=sums.units,
        unit_bytes=sums.unit_bytes,
        blank_bytes=sums.blank_bytes,
        damage_bytes=sums.damage_bytes,
        torn_bytes=torn_bytes,
        padding_damage_bytes=padding,
        # The walk does not go into the files behind the log's end, which a broker creates in advance.
        unwritten_bytes=sums.unwritten_bytes + sum(file.size for file in log.files) - sums.total_bytes,
        missing_bytes=sums.missing_bytes,
        log_end=walk.end.offset if walk.end is not None else 0,
        state=state.value,
        unopened=closed,
        cut_offset=readable.cut if readable is not None and is_cut else None,
        cut_bytes=cut_bytes if is_cut else 0,
        cut_messages=readable.messages if readable is not None and is_cut else 0,
    )


def _is_padding(log: CommitLog, damage: Damage) -> bool:
    """Whether damaged bytes begin with the magic code of a BLANK, or are the head in front of a message: no
    message was there.
    """
    if damage.file not in log.files:
        return False
    return _is_head(damage) or frame_of(damage.file).is_blank(log.view(damage.file), damage.start)


def _is_head(damage: Damage) -> bool:
    """Whether only the head of a DLedger entry is damaged: a whole message follows."""
    return not damage.at_tail and damage.stop - damage.start == damage.file.head_size > 0


def _one_ahead(walk: Walk) -> Iterator[UnitRun | Damage]:
    """The steps of a walk. A thread takes the next step while the caller looks at this one."""
    with ThreadPoolExecutor(1, thread_name_prefix="rmqlog-walk") as pool:
        following = pool.submit(next, walk, None)
        while (step := following.result()) is not None:
            following = pool.submit(next, walk, None)
            yield step


def _report_damage(
    findings: Findings, log: CommitLog, file_size: int, state: StoreState, damage: Damage
) -> None:
    """Reports damage: as a missing file, as the torn end of a crashed or live store, or as lost messages."""
    if damage.file.size < file_size and damage.stop == damage.file.size:
        return  # the file was cut, and its length is reported already
    if damage.file not in log.files:
        findings.add(
            "damage",
            damage.file.path,
            0,
            damage.expected,
            damage.found,
            "Restore the missing file, or its messages are lost",
        )
        return
    severity: Severity = "damage"
    if damage.at_tail and state is not StoreState.CLEAN:
        severity = "info" if state is StoreState.LIVE else "warning"
    # The walk gives the first byte of the message; this finds the byte that is wrong.
    file = damage.file
    check = frame_of(file).check(
        log.view(file),
        damage.start,
        file.size - damage.start,
        physical_offset=file.start + damage.start,
        verify_crc=True,
    )
    position = damage.start + (
        check.at if check.kind is UnitKind.TORN and check.expected == damage.expected else 0
    )
    found = f"{damage.found}; {damage.stop - damage.start} bytes from {damage.start} on are no message"
    findings.add(
        severity,
        file.path,
        position,
        damage.expected,
        found,
        _HEAD_ADVICE if _is_head(damage) else DAMAGE_ADVICE if severity == "damage" else _TAIL_ADVICE,
    )


def report_cut(findings: Findings, log: CommitLog, readable: ReadableEnd) -> None:
    """Reports the messages behind the place where a broker's recovery ends the log."""
    if readable.damage is not None:
        found = f"{readable.messages} whole messages up to {readable.offset}"
        expected = f"no message behind {readable.cut}, where a broker's recovery ends the log"
        findings.add("warning", readable.damage.file, readable.damage.position, expected, found, _CUT_ADVICE)
    file = log.file_at(readable.offset)
    if readable.remains and file is not None:
        found = f"{readable.remains} that are older than those before the end, or repeat their queue offsets"
        expected = f"no message behind the log's end, {readable.offset}"
        findings.add("warning", file.path, readable.offset - file.start, expected, found, _REMAINS_ADVICE)


def report_torn(findings: Findings, log: CommitLog, end: int) -> None:
    """Reports the part of a message behind the log's end that an earlier recovery has cut."""
    file = log.file_at(end)
    if file is not None:
        expected, found = f"zeros behind the log's end, {end}", "a part of a message"
        findings.add("info", file.path, end - file.start, expected, found, _REMAINS_ADVICE)


def _check_bodies(findings: Findings, found: Iterable[tuple[UnitRefs, BadUnit]], end: int) -> int:
    """Reports the messages before the physical offset `end` that no client decodes. Returns their number."""
    count = 0
    for refs, unit in found:
        if refs.physical_offsets[unit.index] < end:
            entries = find_entries(locate(refs.select(np.array([unit.index])), verify_crc=False)[0])
            names = [
                f"{topic}-{queue_id} offset {entries.offset[entries.key == number][0]}"
                for number, (topic, queue_id) in enumerate(entries.keys)
            ]
            what = f"{unit.error.found}, in the message {' and '.join(names) or 'of no queue'}"
            findings.add(
                "damage", unit.error.file, unit.error.position, unit.error.expected, what, BODY_ADVICE
            )
            count += int(entries.count[0]) if names else 1
    return count


def _check_end(
    findings: Findings, log: CommitLog, file_size: int, state: StoreState, walk: Walk, lost: Lost
) -> None:
    """Reports a cut last file, and bytes in files behind the log's end, which should hold zeros."""
    end, last = walk.end, log.files[-1]
    assert end is not None  # the walk is exhausted
    if last.size < file_size and end.offset >= last.start:
        lost.add(last.stop, last.start + file_size)
    if end.kind is EndKind.TORN and end.position == last.size == file_size and end.path == last.path:
        severity: Severity = "damage" if state is StoreState.CLEAN else "info"
        findings.add(
            severity,
            end.path,
            end.position,
            end.expected,
            end.found,
            "The file was cut off: restore it",
            kind="cut",
        )
    for file in log.files:
        if file.start > end.offset:
            byte = first_byte(file, log.cache)
            if byte is not None:
                advice = "A broker overwrites it; if the start of the file was zeroed, restore the file"
                findings.add(
                    "warning",
                    file.path,
                    byte,
                    f"zeros, because the log ends before, at {end.offset}",
                    "other bytes",
                    advice,
                )
