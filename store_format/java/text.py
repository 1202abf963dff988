"""Text as Java's String has it: decoded from UTF-8, compared and counted in UTF-16 code units.

Malformed UTF-8 becomes U+FFFD and is never an error. Java and Python agree on every malformed byte except
encoded surrogates, which Java replaces as one character and Python byte by byte.
"""

from __future__ import annotations

import re

_ENCODED_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_REPLACEMENT = b"\xef\xbf\xbd"


def decode_utf8(raw: bytes) -> str:
    """Returns the text of `raw` as java.lang.String decodes it (JDK 9 and later).

    >>> decode_utf8(b"a\\xed\\xa0\\x80b\\xff")
    'a\\ufffdb\\ufffd'
    """
    try:
        return raw.decode()
    except UnicodeDecodeError:
        # 0xED is never a continuation byte, so each match begins where Java begins a character.
        return _ENCODED_SURROGATE.sub(_REPLACEMENT, raw).decode(errors="replace")


def utf16_key(text: str) -> bytes:
    """Returns a sort key in the order of String.compareTo: UTF-16 code units.

    Above U+FFFF the order of code points, which Python compares, is another one.
    """
    return text.encode("utf-16-be", "surrogatepass")


def utf16_length(text: str) -> int:
    """Returns String.length: the number of UTF-16 code units."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2
