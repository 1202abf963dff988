"""The types of the fixtures in tests/conftest.py that are functions, and the numbers of examples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from hypothesis import settings

Golden = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]


def examples(factor: int) -> int:
    """So many times the number of examples of the profile: 60 in a run of all tests, 200 in the proofs."""
    assert settings.default is not None
    return factor * settings.default.max_examples
