"""What a report consists of: the answers, and sections with facts, remarks and rows, without any form."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from store_format.diagnose.broker_start import BrokerStart
from store_format.diagnose.problems import Diagnosis
from store_format.display.columns import ViewColumn
from store_format.read.store import Store


@dataclass(slots=True)
class Section:
    """One part of a report.

    `facts` are names and texts. `table` has the rows, of which a page shows the first `shown` with the
    columns `columns`, which `meanings` explain; `all_rows` is the command that shows all of them. A
    `warning` is shown before them.
    """

    key: str  # of the JSON document, and of links in the page
    title: str
    about: str = ""
    facts: list[tuple[str, str]] = field(default_factory=list)
    warning: str = ""
    notes: list[str] = field(default_factory=list)
    table: pa.Table | None = None
    columns: tuple[str, ...] = ()
    meanings: tuple[ViewColumn, ...] = ()  # of columns, for the page
    shown: int = 25
    total: int = 0  # rows in all, where the table has only the first ones
    drawn: pa.Table | None = None  # what a chart of the section draws
    all_rows: str = ""

    @property
    def rows(self) -> int:
        """How many rows there are, also those that the table does not have."""
        return max(self.total, 0 if self.table is None else self.table.num_rows)

    @property
    def visible(self) -> pa.Table | None:
        """The rows and columns of a page: columns without a value in any row are left out."""
        if self.table is None:
            return None
        names = self.columns or self.table.schema.names
        kept = [name for name in names if self.table[name].null_count < self.table.num_rows]
        return self.table.select(kept)


@dataclass(frozen=True, slots=True)
class Contents:
    """The answers for people in a hurry, and the sections with the numbers."""

    path: str
    broker_name: str
    taken_ms: int
    verdict: str
    command: str  # the next one; empty if nothing has to be done
    start: BrokerStart
    start_warning: str  # what a broker deletes soon after its start; empty for nothing
    optional: str  # why a recovery is not needed for a start; empty if it is
    diagnosis: Diagnosis
    sections: tuple[Section, ...]
    store: Store | None  # None: readers refuse the store

    @property
    def start_cause(self) -> str:
        """Why a broker may not start, or what to know before; empty for nothing."""
        known = (f"but {self.start_warning}" if self.start_warning else "", self.optional)
        return self.start.cause or "; ".join(each for each in known if each)
