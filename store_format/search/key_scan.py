"""Which messages have a key: candidates of an index are checked, ranges of the commitlog are scanned.

Both apply the same test of topic, key and time, to many messages at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, UnitRun
from store_format.errors import CorruptStoreError, OptionError
from store_format.message import sysflag
from store_format.message.columns import BODY_SIZE_MAX, DecodeOptions
from store_format.message.decode import decode
from store_format.message.locate import UnitRefs, Units, inner_batches, locate
from store_format.message.properties import PropertyTable
from store_format.names import is_light_queue
from store_format.read.log_reader import without_contradicted, written_refs
from store_format.read.tolerance import Tolerance
from store_format.survey.right_entries import Contradictions


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """What a search by key looks for. Store times in ms, both inclusive, as in the broker's queryMessage."""

    key: str
    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        if not self.key:
            raise OptionError("the key is empty; give a word of KEYS or a UNIQ_KEY")
        for name, text in (("key", self.key), ("topic", self.topic or "")):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise OptionError(f"{name} {text!r} is not valid Unicode, so no message has it")
        if self.topic is not None and is_light_queue(self.topic):
            raise OptionError(
                f"{self.topic} is a light queue: its messages are stored and indexed under another topic; "
                "give that topic, or no topic"
            )


@dataclass(slots=True)
class KeySearch:
    """One search: decodes the messages that match, and counts what was read."""

    log: CommitLog
    query: KeyQuery
    broker_name: str
    names: tuple[str, ...]
    tolerance: Tolerance
    verify_crc: bool
    is_live: bool
    contradictions: Contradictions | None = None
    bytes_scanned: int = 0
    damaged_bytes: int = 0
    units_scanned: int = 0  # without those at the edges of index files
    on_scanned: Callable[[int], object] | None = None  # called with the bytes scanned so far

    # ---- from the index ------------------------------------------------------------------------------------

    def candidates(self, offsets: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """The candidates that match."""
        files = self.log.file_index(offsets)
        for index in np.unique(files).tolist():
            mine = offsets[files == index]
            if index < 0:
                path, expected = (
                    self.log.files[0].path,
                    f"commitlog files that hold {int(mine[0])}, to which the index points",
                )
                self.tolerance.damage(CorruptStoreError(path, 0, expected, "a gap in the commitlog"))
                continue
            for _, refs in self.log.refs_at(self.log.files[index], mine):
                yield from self._matching(refs)

    # ---- from the log --------------------------------------------------------------------------------------

    def scan(self, start: int, stop: int, edges: frozenset[int]) -> Iterator[pa.RecordBatch]:
        """The matching messages among those that begin in [start, stop)."""
        known = np.array(sorted(edges), np.int64)
        for step in self.log.walk(start, stop, resync=True):
            if isinstance(step, Damage):
                if not (step.at_tail and self.is_live):  # a message that is being written
                    self.damaged_bytes += step.stop - step.start
                    self.tolerance.damage(
                        CorruptStoreError(step.file.path, step.start, step.expected, step.found)
                    )
                continue
            self.bytes_scanned += step.stop - int(step.positions[0])
            if self.on_scanned is not None:
                self.on_scanned(self.bytes_scanned + self.damaged_bytes)
            self.units_scanned += len(step.positions)
            if len(known):
                self.units_scanned -= _count_in(known, step.physical_offsets)
            rows = self._rows_with_key(step)
            if len(rows):
                yield from self._matching(self._refs(step, rows))

    def _rows_with_key(self, run: UnitRun) -> NDArray[np.int64]:
        """Messages with the bytes of the key in their properties, and batches, which may be compressed.

        All messages of the run where the bytes cannot tell, and of a run that is not worth a kernel.
        """
        rows, key = np.arange(len(run.positions)), self.query.key
        # malformed bytes decode to U+FFFD
        if run.buffer is None or "\ufffd" in key or not kernels.worth(0):
            return rows
        starts, offset = run.positions - run.buffer_start, run.file.start + run.buffer_start
        word = np.frombuffer(key.encode(), np.uint8)
        count = kernels.search.rows_with(run.buffer, starts, run.sizes, offset, word, rows)
        return rows[:count]

    def _refs(self, run: UnitRun, rows: NDArray[np.int64]) -> UnitRefs:
        refs = written_refs(self.log, run) if self.is_live else self.log.refs_of(run)
        return refs.select(rows[rows < len(refs)])

    # ---- what matches --------------------------------------------------------------------------------------

    def _matching(self, refs: UnitRefs) -> Iterator[pa.RecordBatch]:
        units, bad = locate(refs, verify_crc=False)
        self.tolerance.drop(bad)
        units = units.select(self._of_topic_and_time(units))
        if not len(units):
            return
        table = PropertyTable(units.raw_properties())
        by_key: NDArray[np.bool_] = table.has_key(self.query.key).to_numpy(zero_copy_only=False)
        inner = inner_batches(units)
        # A batch matches as a whole by its own key, and its messages match by theirs.
        for rows, key in ((by_key, None), (inner & ~by_key, self.query.key)):
            if rows.any():
                yield from self._decode(self._whole(units.select(rows)), key)

    def _whole(self, units: Units) -> UnitRefs:
        """The messages that no consume queue contradicts."""
        if self.contradictions is None:
            return units.refs
        refs = without_contradicted(units.refs, units, self.contradictions, self.tolerance)
        self.damaged_bytes += int(units.refs.sizes.sum() - refs.sizes.sum())
        return refs

    def _of_topic_and_time(self, units: Units) -> NDArray[np.bool_]:
        # Rolled back units are not indexed (IndexService.buildIndex), so a scan does not show them either.
        keep: NDArray[np.bool_] = (units.sys_flag & sysflag.TRANSACTION_MASK) != sysflag.TRANSACTION_ROLLBACK
        if self.query.topic is not None:
            topics = units.stored_topics()
            keep &= pc.equal(topics, pa.scalar(self.query.topic.encode(), topics.type)).to_numpy(
                zero_copy_only=False
            )
        times = units.integers("store_timestamp").astype(np.int64)
        if self.query.begin_ms is not None:
            keep &= times >= self.query.begin_ms
        if self.query.end_ms is not None:
            keep &= times <= self.query.end_ms
        return keep

    def _decode(self, refs: UnitRefs, key: str | None) -> Iterator[pa.RecordBatch]:
        decode_options = DecodeOptions(self.names, self.verify_crc, BODY_SIZE_MAX, key=key)
        batch, bad = decode(refs, decode_options, self.broker_name)
        self.tolerance.drop(bad)
        if batch.num_rows:
            yield batch


def _count_in(few: NDArray[np.int64], ascending: NDArray[np.int64]) -> int:
    """How many of `few` are among many in ascending order."""
    places = np.minimum(np.searchsorted(ascending, few), len(ascending) - 1)
    return int((ascending[places] == few).sum())
