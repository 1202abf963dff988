"""Which Spark does what, as docs/compatibility.md says it. The matrix compares each Spark with it."""

from __future__ import annotations

ADMISSION = (4, 2)  # `latestOffset` gets the start of the micro-batch: limits, groups and pop in streams
REPLACES_REGISTERED = (4, 1)  # `register` may replace a format that Spark has found by itself

_SINCE = {
    "stream_limits": (ADMISSION, "ignored"),
    "group_stream": (ADMISSION, "refused"),
    "pop_stream": (ADMISSION, "refused"),
    "by_value_installed": (REPLACES_REGISTERED, "refused"),
}


def expected_outcome(cell: str, version: tuple[int, int]) -> str:
    """The outcome of a cell on a Spark: "works", "ignored" or "refused"."""
    since, before = _SINCE.get(cell, ((0, 0), ""))
    return before if version < since else "works"
