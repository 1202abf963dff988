"""The types of the fixtures in tests/conftest.py that are functions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

Golden = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]
