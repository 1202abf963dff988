"""The work of one task: opens the stores of its split, and reads the slices as the options say."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.garbage import modules_frozen
from rmq_spark.plan.output_fields import OutputFields
from rmq_spark.plan.splits import Split, StoreSplit
from rmq_spark.plan.starts import reach_stores
from store_format.consumequeue.slices import QueueSlice
from store_format.files.paths import is_remote
from store_format.files.read import FileCache, all_answered, with_objects
from store_format.message.columns import DecodeOptions
from store_format.read.choice import MessageChoice
from store_format.read.log_reader import LogReader
from store_format.read.queue_reader import QueueReader
from store_format.read.store import Store
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from rmq_spark.consume.sql92 import CountingFilter

_log = logging.getLogger(__name__)

# Files stay open from task to task, because Spark reuses its Python workers.
_FILES = FileCache(capacity=64)


@dataclass(frozen=True, slots=True)
class Scan:
    """A read: the fields it returns and its options. Plain values, pickled to every task."""

    fields: OutputFields
    options: ReadOptions

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """The batches of one split, with the Arrow schema of the fields."""
        schema = self.fields.to_arrow_schema()
        tolerance = Tolerance(self.options.mode, self.options.fail_on_data_loss)
        where = self._condition()
        with modules_frozen(), all_answered():
            for share in split.shares:
                rows = self._read_share(share, tolerance, where)
                if share.objects:
                    places = filter(is_remote, dict.fromkeys((share.store_path, *share.commit_log_paths)))
                    rows = with_objects(places, share.objects, share.others, rows)
                for batch in rows:
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if tolerance.dropped or tolerance.lost:
            _log.warning(
                "this task left out %d malformed and %d lost messages", tolerance.dropped, tolerance.lost
            )
        if where is not None and where.errors:
            _log.warning(
                "%d evaluations of subExpression failed; these messages are left out, as by a broker",
                where.errors,
            )

    def _read_share(
        self, share: StoreSplit, tolerance: Tolerance, where: CountingFilter | None
    ) -> Iterator[pa.RecordBatch]:
        reach_stores(self.options)
        _FILES.forget_deleted()
        store = Store.open(
            share.store_path,
            broker_name=share.broker_name,
            commit_log_paths=share.commit_log_paths,
            files=_FILES,
        )
        choice, retry = self.options.choice, self.options.choice.retry_topic
        every = [*share.slices]  # made here: `WholeSlices` has columns
        for is_retry in (False, True):
            slices = [piece for piece in every if (piece.topic == retry) == is_retry]
            if not slices:
                continue
            # Brokers do not filter retried messages again: the subscription of a retry topic is "*".
            subscribed = replace(choice, tags=None) if is_retry else choice
            condition = None if is_retry else where
            reader = self._reader(store, self.fields.sources, subscribed, condition, tolerance)
            yield from reader.read(slices) if share.scan is None else _scanned(reader, slices, share)

    def _condition(self) -> CountingFilter | None:
        if self.options.choice.where is None:
            return None
        from rmq_spark.consume.sql92 import CountingFilter, Sql92Filter  # most reads have no condition

        assert isinstance(self.options.choice.where, Sql92Filter)
        return CountingFilter(self.options.choice.where)

    def _reader(
        self,
        store: Store,
        columns: tuple[str, ...],
        choice: MessageChoice,
        where: CountingFilter | None,
        tolerance: Tolerance,
    ) -> QueueReader:
        group = self.options.pop or self.options.group
        decode_options = DecodeOptions(
            columns,
            self.options.verify_crc,
            self.options.max_message_size,
            choice.tags,
            choice.key,
            choice.message_id,
            where,
            None if group is None else group.group,
        )
        return store.reader(decode_options, tolerance, choice.tags_codes)

    def matching_offsets(self, store: Store, piece: QueueSlice) -> Sequence[int]:
        """The queue offsets in a slice whose messages meet `subExpression`, ascending; a range if all do.

        Damaged messages count as `mode` says: an error, or no match.
        """
        if self.options.choice.tags is None and self.options.choice.where is None:
            return range(piece.start, piece.stop)
        return [row[0] for row in self._rows(store, piece, ("queueOffset",))]

    def reconsume_times(self, store: Store, piece: QueueSlice) -> dict[int, int]:
        """How often each message of a slice that meets `subExpression` was delivered again, by its offset."""
        return {row[0]: row[1] for row in self._rows(store, piece, ("queueOffset", "reconsumeTimes"))}

    def _rows(self, store: Store, piece: QueueSlice, columns: tuple[str, ...]) -> list[tuple[int, ...]]:
        options = self.options
        tolerance = Tolerance(options.mode, options.fail_on_data_loss)
        reader = self._reader(store, columns, options.choice, self._condition(), tolerance)
        return sorted(
            row
            for batch in reader.read([piece])
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
            if row[0] is not None
        )


def _scanned(
    reader: QueueReader, slices: Sequence[QueueSlice], share: StoreSplit
) -> Iterator[pa.RecordBatch]:
    assert share.scan is not None
    topics = {piece.topic for piece in slices}
    repeated = {(queue.topic, queue.queue_id): queue for queue in share.repeated if queue.topic in topics}
    return LogReader(reader, slices, repeated).read(*share.scan)
