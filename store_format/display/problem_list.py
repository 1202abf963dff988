"""The problems of a store as HTML, one below the other: where, what was expected, what was found, what to do.

Not a table: its last column, the advice, would lie outside a notebook's page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from store_format.display.page import PageSpace, fact, facts, note, text

_PROBLEMS_MAX = 50
_SENTENCES = ("expected", "found", "advice")
_SENTENCE_CHARACTERS = 1000
_COLOURS = {"damage": "#e03131", "warning": "#c2680a"}  # readable on white and on black


def problem_list(
    rows: Iterable[Mapping[str, Any]],  # Any: values of PROBLEM_COLUMNS
    space: PageSpace,
    root: str,
    total: int | None = None,
    *,
    limit: int = _PROBLEMS_MAX,
) -> list[str]:
    """The parts of a page. Files below the store's directory `root` are named without that directory."""
    parts: list[str] = []
    for number, row in enumerate(rows):
        piece = _problem(row, root.rstrip("/") + "/" if root else "")
        if number == limit or not space.takes(piece):
            of_all = "problems; more follow" if total is None else f"of {total:,} problems"
            parts.append(note(f"the first {number:,} {of_all}"))
            break
        parts.append(piece)
    return parts


def _problem(row: Mapping[str, Any], prefix: str) -> str:
    severity = str(row["severity"])
    place = f"{str(row['file']).removeprefix(prefix)} at byte {row['position']}"
    sentences = ((name, str(row[name]).replace(prefix, "")) for name in _SENTENCES)
    lines = [fact(name, text(value, _SENTENCE_CHARACTERS)) for name, value in sentences if value]
    colour = _COLOURS.get(severity, "#808080")
    word = f'<span style="color:{colour}">{severity}</span>'
    head = f'<div class="q">{word} {text(place, _SENTENCE_CHARACTERS)}</div>'
    return f'<div class="p" style="border-left-color:{colour}">{head}{facts(lines)}</div>'
