"""Which columns of a message a command gives: those asked for, those a table has room for, or all that a
program may want.
"""

from __future__ import annotations

from rmq_spark.cli.output import Output
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS
from store_format.names import did_you_mean

__all__ = ["ALL_COLUMNS", "TABLE_COLUMNS", "message_columns"]

# The body comes last: what is left of the line is its.
TABLE_COLUMNS = (
    "storeTimestamp",
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "tags",
    "keys",
    "msgId",
    "body",
)

# Without the body as it is compressed, and the reason why a row is none.
ALL_COLUMNS = (
    *DEFAULT_COLUMNS,
    *(name for name in COLUMNS if name not in DEFAULT_COLUMNS and name not in ("rawBody", "_corrupt_record")),
)


def message_columns(output: Output) -> tuple[str, ...]:
    """The columns to read and give, in order."""
    if output.form == "raw":
        return ("body",)
    if output.columns:
        return tuple(dict.fromkeys(map(_column, output.columns)))
    return TABLE_COLUMNS if output.form == "table" else ALL_COLUMNS


def _column(name: str) -> str:
    by_lower = {column.lower(): column for column in COLUMNS}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    hint = did_you_mean(name, COLUMNS, "columns", listed_max=len(COLUMNS))
    raise OptionError(f"--columns: messages have no column {name!r}; {hint}")
