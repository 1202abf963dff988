"""Numbers as Java's Long reads them from one text; `number_columns.py` reads columns."""

from __future__ import annotations

import re
import unicodedata

_PERHAPS_INTEGER = re.compile(r"[+-]?\d+")  # Character.digit takes the digits of every script
_LONG_DIGITS = 19


def parse_long(text: str | None) -> int | None:
    """Returns Long.parseLong of `text`; None for null and for a text that is no long.

    Java takes leading zeros, a sign, and the digits of every script in the basic plane.

    >>> parse_long("+0042"), parse_long("4 2"), parse_long("9223372036854775808")
    (42, None, None)
    """
    if text is None or _PERHAPS_INTEGER.fullmatch(text) is None or max(text) > "\uffff":
        return None
    digits = "".join(str(unicodedata.decimal(digit)) for digit in text.lstrip("+-")).lstrip("0")
    if len(digits) > _LONG_DIGITS:
        return None
    number = int(digits or "0") * (-1 if text[0] == "-" else 1)
    return number if -(2**63) <= number < 2**63 else None
