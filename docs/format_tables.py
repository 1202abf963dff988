"""Writes the layout tables of FORMAT.md from `layouts.py`: `python -m docs.format_tables`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from store_format import layouts

FORMAT_FILE = Path(layouts.__file__).with_name("FORMAT.md")

_TABLE = re.compile(r"<!-- layout (\w+) -->\n.*?<!-- end -->", re.DOTALL)
_TYPES = {"i": "int", "u": "uint"}


def render() -> dict[str, str]:
    """Returns layout name -> Markdown table with one row for each field."""
    return {name: _markdown_table(layout) for name, layout in layouts.LAYOUTS.items()}


def _markdown_table(layout: np.dtype[np.void]) -> str:
    lines = ["| offset | bytes | type | field | meaning |", "|---:|---:|---|---|---|"]
    meanings: Mapping[str, str] = layout.metadata or {}
    for field, (kind, offset, *_) in (layout.fields or {}).items():
        text = f"{_TYPES[kind.kind]}{kind.itemsize * 8}" if kind.kind in _TYPES else "bytes"
        meaning = meanings[field].replace("|", "\\|")
        lines.append(
            f"| {offset} | {kind.itemsize} | {text} | `{field}` | {meaning} |".replace("|  |", "| |")
        )
    return "\n".join(lines)


def fill(text: str) -> str:
    """Returns `text` with the current table between each pair of markers.

    Raises ValueError unless every layout has exactly one pair of markers in the text.
    """
    tables = render()
    names = sorted(match[1] for match in _TABLE.finditer(text))
    if names != sorted(tables):
        raise ValueError(f"FORMAT.md has markers for {names}, layouts.py has {sorted(tables)}")
    return _TABLE.sub(lambda match: f"<!-- layout {match[1]} -->\n{tables[match[1]]}\n<!-- end -->", text)


def main() -> None:
    """Writes the current tables into FORMAT.md."""
    FORMAT_FILE.write_text(fill(FORMAT_FILE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
