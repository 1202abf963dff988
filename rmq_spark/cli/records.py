"""Rows as records: one line per column, one line per entry of a map."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence, Set

from rmq_spark.cli.cells import cell
from rmq_spark.cli.column_look import BOLD, colour_of, painted
from rmq_spark.cli.look import TableLook
from store_format.display.rows import Row
from store_format.display.text import body_text, shown
from store_format.display.units import size_text, unit_of

_BODY_CHARACTERS = 2000
_PROPERTIES_MAX = 200


def write_record(look: TableLook, row: Row, names: Sequence[str], times: Set[str]) -> None:
    """Writes one row as a record. `times` are the columns with times."""
    longest = max(map(len, names))
    for name in names:
        colour = colour_of(name, row[name]) if look.colour else ""
        value = row[name]
        if name in times and isinstance(value, str):
            value = look.zone.full(value)
        for label, text in _record_lines(name, value):
            label = painted(f"{label:<{longest}}", BOLD if look.colour else "")
            sys.stdout.write(f"{label}  {painted(text, colour)}\n")


def _record_lines(name: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        entries = [f"{shown(key)} = {cell(text)}" for key, text in list(value.items())[:_PROPERTIES_MAX]]
        if len(value) > _PROPERTIES_MAX:
            entries.append(f"… ({len(value)} in all)")
        return [(name if not i else "", line) for i, line in enumerate(entries or ["-"])]
    if isinstance(value, bytes):
        return [(name, body_text(value, _BODY_CHARACTERS))]
    unit = unit_of(name) if isinstance(value, int) and not isinstance(value, bool) else None
    if unit is None:
        return [(name, cell(value))]
    assert isinstance(value, int)
    exact = f" ({value:,} bytes)" if unit is size_text and value >= 1024 else ""
    return [(name, unit(value) + exact)]
