"""What a view is: a name, a sentence, the columns, and the function that makes the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.display.columns import ViewColumn, schema_of

if TYPE_CHECKING:
    from store_format.read.store import Store


@dataclass(frozen=True, slots=True)
class View:
    """One view. `batches(store, now_ms)` yields at least one batch, with exactly the schema of the columns.

    `name` is what users write, `about` the sentence under the name in the reference. `now_ms` is the moment
    to which ages count.
    """

    name: str
    about: str
    columns: tuple[ViewColumn, ...]
    batches: Callable[[Store, int], Iterator[pa.RecordBatch]]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of every batch."""
        return schema_of(self.columns)
