"""Keeps the messages behind damage: in a copy of the log, the damaged bytes become fillers.

A broker ends the log at the first bytes that are no message. So the damaged bytes of a copy are overwritten
by messages of their exact length, of the transaction type rollback: recovery accepts them, and neither a
queue nor the index gets an entry of them (DefaultMessageStore's dispatchers). Damage up to a file's end, and
a missing file, become a BLANK. All other messages keep their physical and queue offsets, so that offsets of
groups, half messages and timers stay right.

A broker hands out a record by its queue entry, and compares neither size nor magic code nor physical offset.
A damaged record that is whole apart from these three, and that claims the place of its entry, gets them right
in the copy. A message whose queue entry contradicts its queue id or queue offset gets those of the entry.

A file of a copy gets its full length, because a broker needs it. Zeros behind the bytes of a short file could
complete its last message, whose properties no checksum covers. So what follows the last whole message of a
short file becomes a BLANK, also without `salvage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from store_format.arrays.ranges import merged_ranges
from store_format.bookkeeping.ledger import FILLER_TOPIC, Ledger
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, UnitRun
from store_format.commitlog.write import BLANK_SIZE_MIN, LogFiles
from store_format.consumequeue.files import QueueBounds
from store_format.errors import StoreInUseError, UnsupportedFormatError
from store_format.files.write import FileWrites
from store_format.message import sysflag
from store_format.message.encode import EncodedUnits, MessageColumns, assign, encode
from store_format.message.locate import locate
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.gone import QueueProofs
from store_format.survey.log_end import LogEnd, ReadableEnd

_FILLER_MAX = 1 << 20  # a broker holds a message in memory when it recovers


# ---- the holes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes [start, stop) of the log, in one file, that are no message of the log. `timestamp` (ms) is the
    store time of the message before; a BLANK has none. `record` is the message that they become if an entry
    shows it.
    """

    start: int
    stop: int
    timestamp: int
    record: UnitRun | None = None


def find_holes(
    log: CommitLog,
    end: int,
    readable: ReadableEnd,
    contradictions: Contradictions,
    queues: Iterable[QueueBounds],
) -> list[Hole]:
    """The damage between the log's first message and its last readable one, `readable.offset`.

    Messages that are among the `contradictions` are damage. Behind `end`, where a broker ends the log,
    messages that an earlier recovery has cut are holes, too. Entries of the `queues` show damaged records.
    """
    places: list[tuple[int, int]] = []
    for step in log.walk(log.min_offset, min(end, readable.offset), verify_crc=True, resync=True):
        if isinstance(step, Damage):
            places.append(step.range)
            continue
        refs = log.refs_of(step)
        sizes = dict(zip(refs.physical_offsets.tolist(), refs.sizes.tolist(), strict=True))
        damaged = contradictions.of_log(locate(refs, verify_crc=False)[0])
        places += [(physical, physical + sizes[physical]) for physical in damaged]
    places += [*readable.damaged, *readable.old]
    if max(len(readable.damaged), len(places)) >= readable.DAMAGED_MAX:
        raise UnsupportedFormatError(
            f"the commitlog has {len(places)} damaged places or more; expected fewer than "
            f"{readable.DAMAGED_MAX}. Export the messages into a new store instead (rmqlog export "
            "--skip-damage)"
        )
    merged = merged_ranges(
        (start, min(stop, readable.offset)) for start, stop in places if start < readable.offset
    )
    proofs = QueueProofs(contradictions.opened, log)
    last = proofs.last_records(queues, readable.offset)
    records = last | proofs.shown_records(queues, merged, contradictions.own)
    merged += [(start, start + int(run.sizes[0])) for start, run in last.items()]
    edges = {edge for start, run in records.items() for edge in (start, start + int(run.sizes[0]))}
    return [
        Hole(low, high, _time_before(log, low), records.get(low))
        for start, stop in merged
        for first, behind in pairwise(sorted({start, stop, *(edge for edge in edges if start < edge < stop)}))
        for low, high in _by_file(log, first, behind)
    ]


def end_of_salvaged(log: CommitLog, end: LogEnd, readable: ReadableEnd, holes: Sequence[Hole]) -> LogEnd:
    """Where the log ends with its holes filled. `end` is where a broker ends it now."""
    stop = max([readable.offset, *(hole.stop for hole in holes)])
    if stop <= end.offset:
        return end
    file = log.file_at(stop - 1)
    last = end.last_unit_offset
    for run in log.runs(file.start, stop) if file is not None else ():
        last = run.file.start + int(run.positions[-1])
    last = max([last, *(hole.start for hole in holes if hole.record)])
    walk = log.walk(stop, verify_crc=True)
    if next(walk, None) is not None:
        raise StoreInUseError(f"the commitlog grew behind {stop} while it was read; repeat")
    assert walk.end is not None  # the walk is exhausted
    return replace(end, offset=walk.end.offset, last_unit_offset=last, end=walk.end)


def short_tails(log: CommitLog, stop: int) -> list[Hole]:
    """What follows the last whole message of each file that is too short, up to the file's full length.

    Not of the file in which the log ends, at `stop`: everything behind the log's end is cleared.
    """
    found = []
    for file in log.files:
        full = file.start + log.file_size
        if file.size < log.file_size and full <= stop:
            start = file.stop
            for step in log.walk(file.start, file.stop, resync=True):
                if isinstance(step, Damage) and step.stop == file.size:
                    start = file.start + step.start
            found.append(Hole(start, full, 0))
    return found


def _by_file(log: CommitLog, start: int, stop: int) -> list[tuple[int, int]]:
    size, found = log.file_size, []
    while start < stop:
        end = min(stop, (start // size + 1) * size)
        found.append((start, end))
        start = end
    return found


def _time_before(log: CommitLog, offset: int) -> int:
    """The store time of the last message that begins before the offset in its file, else of the next one."""
    file = log.file_at(offset)
    if file is None:
        return 0
    last = -1
    for run in log.runs(file.start, offset):
        last = log.store_timestamp_at(run.file.start + int(run.positions[-1]))
    following = next(log.runs(offset), None) if last < 0 else None
    if following is not None:
        last = log.store_timestamp_at(following.file.start + int(following.positions[0]))
    return max(last, 0)


# ---- what fills them ---------------------------------------------------------------------------------------


def check_holes(log: CommitLog, ledger: Ledger, holes: Iterable[Hole]) -> None:
    """Raises UnsupportedFormatError for a hole that is too small for a message: a broker would stop there."""
    smallest = _filler(0, ledger.ends_with_crc_property(log)).offsets[-1]
    for hole in holes:
        is_end = hole.stop % log.file_size == 0
        if not hole.record and hole.stop - hole.start < (BLANK_SIZE_MIN if is_end else smallest):
            raise UnsupportedFormatError(
                f"physical offset {hole.start}: expected at least {smallest} damaged bytes, which a message "
                f"can replace, found {hole.stop - hole.start}. Export the messages into a new store instead "
                "(rmqlog export --skip-damage)"
            )


def fill_holes(
    log: CommitLog, directory: str, ledger: Ledger, holes: Iterable[Hole], files: FileWrites
) -> None:
    """Overwrites the holes in the commitlog of the copy, whose files are in `directory`.

    A second call writes the same bytes.
    """
    log_files = LogFiles(log, [directory], log.file_size, files)
    has_crc = ledger.ends_with_crc_property(log)
    for hole in holes:
        if hole.record:
            log_files.write(hole.start, hole.record.buffer)
            continue
        if hole.stop % log.file_size == 0:
            log_files.write_blank(hole.start)
            continue
        smallest = int(_filler(0, has_crc).offsets[-1])
        start = hole.start
        while start < hole.stop:
            left = hole.stop - start
            size = left if left <= _FILLER_MAX + smallest else _FILLER_MAX
            units = _filler(size - smallest, has_crc)
            assign(
                units,
                physical_offset=np.array([start]),
                queue_offset=np.array([0]),
                store_timestamp=np.array([hole.timestamp]),
            )
            log_files.write(start, units.data)
            start += size
    log_files.close()


def _filler(body_size: int, has_crc: bool) -> EncodedUnits:
    """A message of the type rollback with a body of so many zeros."""
    messages = MessageColumns(
        topic=FILLER_TOPIC,
        body=pa.array([bytes(body_size)], pa.large_binary()),
        properties=pa.array([b""], pa.large_binary()),
        sys_flag=sysflag.TRANSACTION_ROLLBACK,
    )
    return encode(messages, crc_property=has_crc)
