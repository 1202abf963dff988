"""How tables and records look: width, colour, time zone. `output.Output` adds what the other formats need."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.cli.zones import UTC_ZONE, Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLook:
    """The look of a table.

    `terminal_columns` is the width of the terminal, else None; with `wide` the table is not fitted to it.
    With `chosen` the user named the columns: all are shown, with their full names. With `several_stores` each
    row names its broker. `zone` is for times.
    """

    colour: bool = False
    terminal_columns: int | None = None
    wide: bool = False
    chosen: bool = False
    several_stores: bool = False
    zone: Zone = UTC_ZONE
