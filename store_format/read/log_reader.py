"""Reading without consume queues: the commitlog itself names the queues.

RocksDB keeps the consume queues, or they are deleted or damaged. `survey/scan.py` finds the queues and their
offsets; `LogReader` returns the rows of a physical range. If a queue offset repeats,
`consumequeue/dispatch.py` says which message counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import as_bytes
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.consumequeue.dispatch import FoundEntries, find_entries, has_queue_offset
from store_format.consumequeue.files import QUEUE_OFFSET_MAX
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError
from store_format.java.text import decode_utf8
from store_format.message.columns import DecodeOptions
from store_format.message.locate import BadUnit, UnitRefs, Units, locate
from store_format.message.single import head_offset
from store_format.names import QueueKey
from store_format.read.queue_reader import Entries, QueueReader
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.scan import LogQueue

_log = logging.getLogger(__name__)

_UNIT_CHUNK = 1 << 14

_Ints = NDArray[np.int64]


def scan_units(
    log: CommitLog,
    decode_options: DecodeOptions,
    broker_name: str,
    tolerance: Tolerance,
    stop: int | None = None,
    *,
    is_live: bool = False,
    contradictions: Contradictions | None = None,
) -> Iterator[pa.RecordBatch]:
    """Every message record of the commitlog in order, in any queue or none. `is_live` as for `LogScan`.

    A message that is among `contradictions` is damaged.
    """
    from store_format.message.decode import decode_parts  # planning imports this module, too

    for refs in _units(log, stop, is_live):
        if isinstance(refs, Damage):
            tolerance.damage(CorruptStoreError(refs.file.path, refs.start, refs.expected, refs.found))
            continue
        if contradictions is not None:
            refs = without_damaged(refs, locate(refs, verify_crc=False)[0], contradictions, tolerance)
        for _, batch, bad in decode_parts(refs, decode_options, broker_name):
            tolerance.drop(bad)
            if batch.num_rows:
                yield batch


def without_damaged(
    refs: UnitRefs, units: Units, contradictions: Contradictions, tolerance: Tolerance
) -> UnitRefs:
    """The `refs` of `units` that no consume queue contradicts; the others are damaged."""
    damaged = contradictions.of_units(units)
    if not damaged:
        return refs
    tolerance.drop([BadUnit(0, error) for error in damaged.values()])
    return refs.select(np.flatnonzero(~np.isin(refs.physical_offsets, list(damaged))))


def _units(
    log: CommitLog, stop: int | None, is_live: bool, start: int | None = None
) -> Iterator[UnitRefs | Damage]:
    """The commitlog from its start or from `start`: runs of messages, and the damage between them."""
    for step in log.walk(log.min_offset if start is None else start, stop, resync=True):
        if isinstance(step, Damage):
            if not (is_live and step.at_tail):
                yield step
            continue
        yield from _parts(log.written_refs(step) if is_live else log.refs_of(step))


def _parts(refs: UnitRefs) -> Iterator[UnitRefs]:
    """The units, few at a time."""
    for start in range(0, len(refs), _UNIT_CHUNK):
        yield refs.select(slice(start, start + _UNIT_CHUNK))


def _without_place(units: Units, select: Callable[[str], bool]) -> list[BadUnit]:
    """Messages of selected topics with a queue offset that no queue can have; they belong nowhere."""
    offsets = units.integers("queue_offset").astype(np.int64)
    bad = []
    for i in np.flatnonzero(~has_queue_offset(offsets)).tolist():
        topic = decode_utf8(
            as_bytes(
                units.refs.buffer,
                int(units.parts.topic_start[i]),
                int(units.parts.topic_start[i] + units.parts.topic_length[i]),
            )
        )
        if select(topic):
            error = CorruptStoreError(
                units.refs.path,
                units.refs.place(i) + head_offset("queue_offset"),
                f"a queueOffset from 0 to {QUEUE_OFFSET_MAX}",
                str(int(offsets[i])),
            )
            bad.append(BadUnit(i, error))
    return bad


@dataclass(slots=True)
class LogReader:
    """Reads selected queues from a physical range of the commitlog, for stores without consume queues.

    `slices` are the offsets of the queues to read. `queues`, from the survey, decide which of repeated
    offsets count.
    """

    reader: QueueReader
    slices: Sequence[QueueSlice]
    queues: dict[QueueKey, LogQueue]

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The rows of messages that begin in [start, stop), in commitlog order.

        `start` is one of the survey's cuts.
        """
        pieces = {(piece.topic, piece.queue_id): i for i, piece in enumerate(self.slices)}
        topics = {topic for topic, _ in pieces}
        start = self._without_deleted(start, stop)
        for step in self.reader.log.walk(start, stop, resync=True) if start < stop else ():
            if isinstance(step, Damage):
                self.reader.tolerance.damage(
                    CorruptStoreError(step.file.path, step.start, step.expected, step.found)
                )
                continue
            for refs in _parts(self.reader.log.refs_of(step)):
                units, _ = locate(refs, verify_crc=False)
                self.reader.tolerance.drop(_without_place(units, topics.__contains__))
                yield from self._rows(find_entries(units, topics.__contains__), pieces)

    def _without_deleted(self, start: int, stop: int) -> int:
        """Where to begin, if retention has deleted the first files of the range since planning."""
        minimum = self.reader.log.min_offset
        if start >= minimum:
            return start
        what = (
            f"the commitlog from {start} to {min(minimum, stop)} was deleted (retention) after planning; "
            f"the log now begins at {minimum}"
        )
        if self.reader.tolerance.fail_on_data_loss:
            raise OffsetOutOfRangeError(
                f"{what}. Plan the read again, or set failOnDataLoss=false to continue without these messages"
            )
        _log.warning("messages lost, in unknown number because their bytes are deleted: %s", what)
        return minimum

    def _rows(self, found: FoundEntries, pieces: dict[QueueKey, int]) -> Iterator[pa.RecordBatch]:
        piece_of_key = np.array([pieces.get(key, -1) for key in found.keys], np.int32)
        if not len(found.key):
            return
        piece = piece_of_key[found.key]
        starts, stops = np.array([p.start for p in self.slices]), np.array([p.stop for p in self.slices])
        keep = (piece >= 0) & (found.offset < stops[piece]) & (found.offset + found.count > starts[piece])
        for key, queue in self.queues.items():
            if queue.claims.left:
                mine = np.flatnonzero(piece == pieces[key])
                keep[mine] &= queue.counts(found.physical[mine], found.offset[mine])
        rows = np.flatnonzero(keep)
        entries = Entries(piece[rows], found.offset[rows], found.physical[rows], found.size[rows], None)
        if len(rows):
            yield from self.reader.read_entries(self.slices, entries)
