"""Texts in buffers by kernels, against Python's own bytes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import PADDING

_TEXTS = st.lists(st.none() | st.text(alphabet="ab \0é名", max_size=90).map(str.encode), max_size=9)


def ranges(texts: list[bytes | None]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(buffer, starts, lengths) of the texts, the last at the end of the buffer; None has the length -1."""
    lengths = np.array([-1 if text is None else len(text) for text in texts], np.int64)
    kept = np.maximum(lengths, 0)
    buffer = np.frombuffer(b"".join(text or b"" for text in texts), np.uint8)
    return buffer, np.cumsum(kept) - kept, lengths


def bits(valid: NDArray[Any], count: int) -> list[bool]:
    return [bool(bit) for bit in np.unpackbits(valid, bitorder="little")[:count]]


@given(_TEXTS)
@example([b"x" * 65, None, b"y" * 64])
def test_texts_are_gathered_with_their_nulls(texts: list[bytes | None]) -> None:
    buffer, starts, lengths = ranges(texts)
    offsets, data = np.zeros(len(texts) + 1, np.int32), np.zeros(len(buffer) + PADDING, np.uint8)
    valid = np.zeros(len(texts) // 8 + 1, np.uint8)
    nulls = kernels.strings.gather(buffer, starts, lengths, offsets, data, valid)
    assert nulls == texts.count(None)
    assert bits(valid, len(texts)) == [text is not None for text in texts]
    pieces = [data[start:stop].tobytes() for start, stop in pairwise(offsets.tolist())]
    assert pieces == [text or b"" for text in texts]


@given(_TEXTS, st.text(alphabet="ab \0é名", max_size=12).map(str.encode))
@example([b"a b", b"b", None, b"ab", b""], b"b")
def test_texts_and_words_equal_to_a_key(texts: list[bytes | None], key: bytes) -> None:
    buffer, starts, lengths = ranges(texts)
    wanted = np.frombuffer(key, np.uint8)
    whole, words = np.zeros(len(texts), bool), np.zeros(len(texts), bool)
    kernels.strings.match(buffer, starts, lengths, wanted, False, whole)
    assert whole.tolist() == [text == key for text in texts]
    if key and b" " not in key:
        kernels.strings.match(buffer, starts, lengths, wanted, True, words)
        assert words.tolist() == [text is not None and key in text.split(b" ") for text in texts]


def test_ranges_outside_of_the_buffer_are_empty() -> None:
    buffer, offsets, data = np.full(16, 65, np.uint8), np.zeros(5, np.int32), np.zeros(16 + PADDING, np.uint8)
    starts = np.array([-1, 10, 2**62, 3], np.int64)
    lengths = np.array([4, 7, 1, 2], np.int64)
    kernels.strings.gather(buffer, starts, lengths, offsets, data, np.zeros(1, np.uint8))
    assert offsets.tolist() == [0, 0, 0, 0, 2]
