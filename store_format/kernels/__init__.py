"""Compiled loops over byte buffers: offsets and lengths in, arrays out. No files, no store, no Arrow.

The only room that imports numba, which takes a third of a second. A module here is imported, and numba with
it, at its first use as an attribute:

    from store_format import kernels
    kernels.crc32.crc32_into(data, starts, lengths, crcs)

So callers import the room, never a module of it.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
import sys
from typing import TYPE_CHECKING

from store_format.kernels.cache_directory import are_kept

if TYPE_CHECKING:
    from types import ModuleType

    from store_format.kernels import crc32 as crc32
    from store_format.kernels import dispatch as dispatch
    from store_format.kernels import encode as encode
    from store_format.kernels import hashes as hashes
    from store_format.kernels import index_entries as index_entries
    from store_format.kernels import patch as patch
    from store_format.kernels import properties as properties
    from store_format.kernels import queue_entries as queue_entries
    from store_format.kernels import search as search
    from store_format.kernels import strings as strings
    from store_format.kernels import walk as walk

_log = logging.getLogger(__name__)

_WORTH_ROWS = 8192  # checked or read one by one in about 100 ms
_WORTH_BATCH = 2048  # so large a batch is rarely the last
_WORTH_COMPILING = 100_000  # read by plain code in 1.5 s; to compile all kernels takes 10 to 16 s
_CHECKS_OF_A_READ = 3  # plain code takes 5 us to check a message and 15 us to read its columns

_rows = 0.0


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"no kernels of the name {name}") from error


def worth(rows: int, *, only_checked: bool = False) -> bool:
    """Returns whether `rows` more messages are worth the kernels, which take a third of a second to load.

    With `only_checked` the messages are walked or checked and not read, which costs a third.

    True once numba is loaded in this process, for a large batch, and once the rows of all calls add up to
    some thousands: a command that opens a store of 2,000 messages, which are walked, checked and read, needs
    no numba. Fewer messages take the plain code that handles one message, with equal results. If no process
    has compiled the kernels yet, ten times as many do, and one line of the log says what happens then.
    """
    global _rows
    if "numba" in sys.modules:
        return True
    cost = rows / _CHECKS_OF_A_READ if only_checked else rows
    _rows += cost
    if _rows < _WORTH_ROWS and cost < _WORTH_BATCH:
        return False
    if are_kept():
        return True
    if _rows < _WORTH_COMPILING:
        return False
    _log.warning("compiling the loops that read messages: once for this installation, some 15 s of CPU")
    return True


def load() -> None:
    """Loads all kernels, and compiles and keeps those that no process has compiled yet (docs/deploy.md)."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
