"""What a process of `rmqlog` leaves out of its libraries' start and of its own end: time that would be waited
for at each call.

Measured on two busy cores, of 0.34 s: pandas 0.3 s more where it is installed, docstrings 0.02 s, tearing the
interpreter down 0.03 s.
"""

from __future__ import annotations

import logging
import os
import sys
import types
from contextlib import suppress
from importlib.machinery import ModuleSpec
from typing import NoReturn

__all__ = ["leave", "skip_what_is_not_needed"]


class _WithoutPandas:
    """Pyarrow imports pandas, if it is there, when it first makes an array, only to know its types."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("rmqlog does without pandas", name=name)
        return None


class _NoDocstring(dict[str, list[object]]):
    """Stands for numpydoc's parser, by which pyarrow.compute makes help texts of its functions when it is
    imported.
    """

    def __init__(self, text: str) -> None:
        super().__init__(Parameters=[])


def skip_what_is_not_needed() -> None:
    """Before numpy and pyarrow are imported, and only in a process of our own."""
    sys.meta_path.insert(0, _WithoutPandas)
    docscrape = types.ModuleType("pyarrow.vendored.docscrape")
    docscrape.NumpyDocString = _NoDocstring  # type: ignore[attr-defined] # a module made here
    sys.modules.setdefault(docscrape.__name__, docscrape)


def leave(code: int) -> NoReturn:
    """Ends the process when all is written; there is nothing else to be put away."""
    logging.shutdown()
    with suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
