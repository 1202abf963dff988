"""What a view is: a name, a sentence, the columns, and the function that makes the rows.

`read_queues` reads the messages of chosen queues for a view, with or without consume queues. A damaged
message is left out and counted in a warning; the view `problems` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from store_format.bookkeeping.settings import broker_conf_of
from store_format.display.columns import ViewColumn, schema_of
from store_format.message.columns import DecodeOptions
from store_format.metadata.read import BrokerConf
from store_format.names import QueueKey
from store_format.read.choice import MessageChoice
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class View:
    """One view. `batches(store, now_ms)` yields at least one batch, with exactly the schema of the columns.

    A view that depends on the settings of the store's broker has `with_conf(store, now_ms, conf)` instead,
    and one that compares the messages of stores has `of_two(stores, other_stores, choice)`.

    `name` is what users write, `about` the sentence under the name in the reference. `now_ms` is the moment
    to which ages count.
    """

    name: str
    about: str
    columns: tuple[ViewColumn, ...]
    batches: Callable[[Store, int], Iterator[pa.RecordBatch]] | None = None
    with_conf: Callable[[Store, int, BrokerConf], Iterator[pa.RecordBatch]] | None = None
    of_two: Callable[[Sequence[Store], Sequence[Store], MessageChoice], Iterator[pa.RecordBatch]] | None = (
        None
    )

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every batch."""
        return schema_of(self.columns)

    def rows(
        self, store: Store, now_ms: int, broker_conf: str | BrokerConf | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The batches of the view. `broker_conf` is the path of a broker.conf, or its settings.

        Without it the settings are those in the store's `.rmqlog/broker.conf`. Raises StoreNotFoundError
        for a path without a file, and OptionError for a bad setting.
        """
        if self.with_conf is not None:
            return self.with_conf(store, now_ms, broker_conf_of(store.opened, broker_conf))
        assert self.batches is not None, "a view has one of the two functions"
        return self.batches(store, now_ms)


# ---- messages of queues ------------------------------------------------------------------------------------


def read_queues(
    queues: Sequence[Queue],
    columns: Sequence[str],
    starts: Mapping[QueueKey, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of the queues, each queue in order, from its offset in `starts` if it has one.

    Names in `columns` that are no columns are properties.
    """
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    starts = starts or {}
    pieces = [(queue, queue.piece(starts.get(queue.key))) for queue in queues]
    yield from read_pieces(pieces, DecodeOptions(tuple(columns), verify_crc=False), tolerance)
