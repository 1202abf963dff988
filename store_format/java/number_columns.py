"""Numbers as Java's Long and Double read them from a column of texts; `numbers.py` reads one text.

Arrow parses plain decimal numbers, which nearly all are. Hexadecimal floats, digits of other scripts and
numbers of many digits are parsed in Python, one distinct text at a time.

It is apart from `numbers.py`, because it imports `pyarrow.compute`, which a process that only plans reads
does not need.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.java.numbers import parse_long

_Number = TypeVar("_Number", np.int64, np.float64)

_PLAIN_INTEGER = r"^[+-]?0*[0-9]{1,18}$"  # every match fits a long

# Double.valueOf trims first, as String.trim does, and takes a type suffix.
_BLANKS = "".join(map(chr, range(0x21)))
_SUFFIXES = "fFdD"
_DECIMAL = (
    r"^[\x00-\x20]*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?|NaN|Infinity)[\x00-\x20]*$"
)
_HEXADECIMAL = (
    r"^[\x00-\x20]*[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)"
    r"[pP][+-]?[0-9]+[fFdD]?[\x00-\x20]*$"
)

_NAN_KEY = 0x7FF8000000000000  # Double.doubleToLongBits has one NaN


def read_integers(texts: pa.StringArray) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Returns (Long.valueOf of each text, whether the text is a long). Null is not."""
    plain = _true_where(pc.match_substring_regex(texts, _PLAIN_INTEGER))
    numbers = np.zeros(len(texts), np.int64)
    numbers[plain] = pc.utf8_ltrim(_texts_where(texts, plain), "+").cast(pa.int64()).to_numpy()
    return _parse_rest(texts, numbers, plain, ~plain, parse_long)


def read_doubles(texts: pa.StringArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Returns (Double.valueOf of each text, whether the text is a double). Null is not."""
    plain = _true_where(pc.match_substring_regex(texts, _DECIMAL))
    numbers = np.zeros(len(texts), np.float64)
    bare = pc.utf8_rtrim(pc.utf8_trim(_texts_where(texts, plain), _BLANKS), _SUFFIXES)
    numbers[plain] = bare.cast(pa.float64()).to_numpy()
    rest = ~plain
    if rest.any():
        rest &= _true_where(pc.match_substring_regex(texts, _HEXADECIMAL))
    return _parse_rest(texts, numbers, plain, rest, _hexadecimal)


def double_keys(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns integers in the order of Double.compareTo: -0.0 before 0.0, NaN last and equal to itself."""
    bits = np.where(np.isnan(numbers), np.int64(_NAN_KEY), numbers.view(np.int64))
    keys: NDArray[np.int64] = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
    return keys


def _true_where(found: pa.BooleanArray) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return mask


def _texts_where(texts: pa.StringArray, mask: NDArray[np.bool_]) -> pa.StringArray:
    return texts if mask.all() else texts.filter(pa.array(mask))


def _parse_rest(
    texts: pa.StringArray,
    numbers: NDArray[_Number],
    valid: NDArray[np.bool_],
    rest: NDArray[np.bool_],
    read: Callable[[str], Any],
) -> tuple[NDArray[_Number], NDArray[np.bool_]]:
    """Adds the numbers that `read` returns for the texts in `rest`; it returns None for no number."""
    places = np.flatnonzero(rest)
    if len(places):
        encoded = texts.take(pa.array(places)).dictionary_encode()
        read_ones = [read(text) for text in encoded.dictionary.to_pylist()]
        known = np.array([number is not None for number in read_ones] + [False])
        values = np.array([number or 0 for number in read_ones] + [0], numbers.dtype)
        index = pc.fill_null(encoded.indices, len(read_ones)).to_numpy()
        numbers[places], valid[places] = values[index], known[index]
    return numbers, valid


def _hexadecimal(text: str) -> float:
    """Returns the value of a text that matches Java's pattern of hexadecimal floats."""
    bare = text.strip(_BLANKS).rstrip(_SUFFIXES)  # which follow the exponent, whose digits are decimal
    try:
        return float.fromhex(bare)
    except OverflowError:
        return -math.inf if bare.startswith("-") else math.inf
