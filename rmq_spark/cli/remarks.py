"""Remarks: lines on stderr that a person reads beside the data on stdout."""

from __future__ import annotations

import sys


def remark(text: str) -> None:
    """Prints one line. Names from a store must have passed `display.text.shown`."""
    print(f"rmqlog: {text}", file=sys.stderr)
