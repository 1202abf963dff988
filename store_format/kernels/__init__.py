"""Compiled loops over byte buffers: offsets and lengths in, arrays out. No store, no Arrow, and of files
only `reads`, which gets an open one.

Callers import the room and no module of it, and ask before each batch whether the loops are there:

    from store_format import kernels
    if kernels.ready(len(starts)):
        kernels.crc32.crc32_into(data, starts, lengths, crcs)

Each loop has a plain form at its caller, with equal results. One process of an installation compiles the
loops, and keeps them as object files that the others load (`objects`). Nobody waits for that.
"""

from __future__ import annotations

import importlib
import logging
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from store_format.kernels.cache_directory import CHECKED, sources_of

if TYPE_CHECKING:
    from store_format.kernels import compile as compile
    from store_format.kernels import crc32 as crc32
    from store_format.kernels import digests as digests
    from store_format.kernels import dispatch as dispatch
    from store_format.kernels import encode as encode
    from store_format.kernels import hashes as hashes
    from store_format.kernels import index_entries as index_entries
    from store_format.kernels import patch as patch
    from store_format.kernels import properties as properties
    from store_format.kernels import queue_entries as queue_entries
    from store_format.kernels import reads as reads
    from store_format.kernels import search as search
    from store_format.kernels import strings as strings
    from store_format.kernels import table_blocks as table_blocks
    from store_format.kernels import units as units
    from store_format.kernels import walk as walk

_log = logging.getLogger(__name__)

MODULES = (
    *("crc32", "digests", "dispatch", "encode", "hashes", "index_entries", "patch", "properties"),
    *("queue_entries", "reads", "search", "strings", "table_blocks", "units", "walk"),
)
# A message counts each time that it is walked, checked or read, which takes plain code 5 to 15 us.
_LOAD_ROWS = 12_000  # in some 60 ms, the time that loading takes
_COMPILE_ROWS = 300_000  # 100,000 messages

_rows = 0
_loaded: dict[str, SimpleNamespace] = {}
_lock = threading.Lock()
_is_refused = False  # loaded kernels failed, or nobody can compile them


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in MODULES:
        raise AttributeError(f"no kernels of the name {name}")
    if CHECKED:  # numba's own way: it raises IndexError where a kernel leaves its arrays
        return importlib.import_module(f"{__name__}.{name}")
    return loaded(name)


def loaded(name: str) -> SimpleNamespace:
    """The kernels of a module. Raises as `load` does."""
    if name not in _loaded:
        load()
    return _loaded[name]


def ready(rows: int = 0) -> bool:
    """Whether the kernels can be called now. If not, the caller does `rows` messages with its plain code.

    A process that handles a few messages never loads them. They are looked for at each batch until they are
    there, and the first process that has read 100,000 messages without them has them compiled, in a process
    of its own.
    """
    global _rows
    if _loaded or CHECKED:
        return True
    _rows += rows
    return _rows >= _LOAD_ROWS and not _is_refused and _look()


def _look() -> bool:
    from store_format.kernels import objects

    global _is_refused
    with _lock:
        if _loaded:
            return True
        try:
            kept = objects.find(MODULES)
            if kept is not None:
                _loaded.update(objects.load(kept))
            elif _rows >= _COMPILE_ROWS:
                objects.start_compiling(MODULES)
        except Exception as error:  # plain code reads everything, too
            _is_refused = True
            _log.warning("the compiled loops are not used, and reading takes ten times as long: %s", error)
    return bool(_loaded)


def source_modules() -> frozenset[str]:
    """The names of the modules whose source decides about the compiled kernels."""
    return frozenset(sources_of("compile", *MODULES) or ())


def load() -> None:
    """Loads all kernels; compiles and keeps them first if no process has (docs/deploy.md).

    Raises KernelError if they cannot be compiled, or kept.
    """
    from store_format.kernels import objects

    if CHECKED:
        for name in MODULES:
            importlib.import_module(f"{__name__}.{name}")
        return
    with _lock:
        if not _loaded:
            kept = objects.find(MODULES)
            if kept is None:
                objects.compile_now(MODULES)
                kept = objects.find(MODULES)
            if kept is None:
                raise objects.KernelError("the compiled kernels that were kept just now cannot be read")
            _loaded.update(objects.load(kept))
