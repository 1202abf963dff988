"""UTF-8 as Java's String constructor reads it: what is malformed becomes U+FFFD, never an error.

Java and Python agree on all of it but encoded surrogates, which Java replaces as one unit and Python byte by
byte.
"""

from __future__ import annotations

import re

__all__ = ["decode_utf8"]

_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = b"\xef\xbf\xbd"


def decode_utf8(raw: bytes) -> str:
    """Text of `raw` by the rules of java.lang.String (JDK 9 and later).

    >>> decode_utf8(b"a\\xed\\xa0\\x80b\\xff")
    'a\\ufffdb\\ufffd'
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # 0xED is never a continuation byte, so each match begins where Java begins a character.
        return _ENCODED_SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")
