"""Every view, once: its name, what it shows, its columns, and what makes its rows. Documents, CLI and Spark
are made from the rows.

A view is computed when it is asked for, from the files as they are then; ages count to a clock that is an
argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.diagnose.problems import PROBLEM_COLUMNS
from store_format.display.columns import ViewColumn, schema_of
from store_format.errors import OptionError
from store_format.names import did_you_mean
from store_format.views.broker_state import CHECKPOINT_COLUMNS, INDEX_COLUMNS, checkpoint, index, problems
from store_format.views.dead_letters import DEAD_LETTER_COLUMNS, dead_letters
from store_format.views.delayed import DELAYED_COLUMNS, delayed
from store_format.views.files import FILE_COLUMNS, files
from store_format.views.groups import GROUP_COLUMNS, groups
from store_format.views.lag import LAG_COLUMNS, lag_table
from store_format.views.queues import QUEUE_COLUMNS, TOPIC_COLUMNS, queues, topics
from store_format.views.retention import RETENTION_COLUMNS, retention
from store_format.views.transactions import TRANSACTION_COLUMNS, transactions
from store_format.views.usage import USAGE_COLUMNS, usage

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["VIEWS", "View", "view_batches", "view_named", "view_table"]


@dataclass(frozen=True, slots=True)
class View:
    """One row of the table. `batches(store, now_ms)` gives at least one batch, of exactly the schema."""

    name: str
    about: str
    columns: tuple[ViewColumn, ...]
    batches: Callable[[Store, int], Iterator[pa.RecordBatch]]

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.columns)


def _lag(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    yield from lag_table(store, now_ms=now_ms).to_batches()


VIEWS: tuple[View, ...] = (
    View("topics", "What is configured and what lies on disk of each topic.", TOPIC_COLUMNS, topics),
    View("queues", "Each queue: its offsets, messages, bytes and times.", QUEUE_COLUMNS, queues),
    View("groups", "Each consumer group: its settings and how far behind it is.", GROUP_COLUMNS, groups),
    View(
        "lag",
        "Each group on each of its queues: how far behind in messages, bytes and time.",
        LAG_COLUMNS,
        _lag,
    ),
    View(
        "retention",
        "Groups that have lost messages to retention or will lose some, and when.",
        RETENTION_COLUMNS,
        retention,
    ),
    View("usage", "Bytes of the commitlog by topic and day.", USAGE_COLUMNS, usage),
    View("files", "The store's files: what they hold and how full they are.", FILE_COLUMNS, files),
    View("index", "The entries of the index files.", INDEX_COLUMNS, index),
    View("checkpoint", "How far the broker had flushed.", CHECKPOINT_COLUMNS, checkpoint),
    View(
        "delayed",
        "Messages that wait for their time, at a delay level or in the timer.",
        DELAYED_COLUMNS,
        delayed,
    ),
    View(
        "transactions",
        "Half messages, one row a transaction, and how each ended.",
        TRANSACTION_COLUMNS,
        transactions,
    ),
    View("deadLetters", "Messages that a group has given up.", DEAD_LETTER_COLUMNS, dead_letters),
    View("problems", "What `diagnose` finds wrong.", PROBLEM_COLUMNS, problems),
)

_BY_NAME = {view.name: view for view in VIEWS}


def view_named(name: str) -> View:
    """Raises OptionError, with the nearest name, for one that is none."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise OptionError(f"there is no view {name!r}; {did_you_mean(name, _BY_NAME, 'views')}")


def view_batches(store: Store, name: str, *, now_ms: int | None = None) -> Iterator[pa.RecordBatch]:
    """A view in batches: memory is that of one batch and of what lists the queues."""
    view = view_named(name)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    yield from view.batches(store, now)


def view_table(store: Store, name: str, *, now_ms: int | None = None) -> pa.Table:
    """A view as a whole. `now_ms` is what ages count to, by default the clock."""
    return pa.Table.from_batches(view_batches(store, name, now_ms=now_ms), view_named(name).schema)
