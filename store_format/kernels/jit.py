"""How kernels are compiled: with explicit signatures, without the GIL, and kept on disk.

Compiled kernels are kept between processes in place of numba's own cache. That one notices a change of the
file that a kernel is written in, not of the parts that the kernel takes from other files; it writes to
directories that others can write to; machines with different processors that share a directory overwrite
each other's code; and a file that a full disk cut short ends the process. Here a file is named by the digest
of everything that decides about the machine code, and holds its own checksum.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import types
from numba.core import config, serialize, typeinfer
from numba.core.compiler import CompileResult
from numba.core.registry import CPUDispatcher

from store_format.kernels.cache_directory import CHECKED, places_of_kernels, source_digest

_Function = Callable[..., Any]  # mypy does not follow numba: parameters of kernels have no types

# The types of parameters. What is only read may be a read-only array, such as the bytes of an Arrow array.
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
BOOLS = types.Array(types.boolean, 1, "C", readonly=True)
INTS32 = types.Array(types.int32, 1, "C", readonly=True)
INTS = types.Array(types.int64, 1, "C", readonly=True)
WORDS = types.Array(types.uint64, 1, "C", readonly=True)
OUT_BYTES = types.Array(types.uint8, 1, "C")
OUT_BOOLS = types.Array(types.boolean, 1, "C")
OUT_INTS32 = types.Array(types.int32, 1, "C")
OUT_INTS = types.Array(types.int64, 1, "C")
BOOL, INT32, INT, WORD, NOTHING = types.boolean, types.int32, types.int64, types.uint64, types.void


def kernel(result: types.Type, *parameters: types.Type) -> Callable[[_Function], _Function]:
    """Compiles a function for exactly these types; the other threads of Python run meanwhile.

    All arrays are contiguous. A kernel raises nothing and checks each length before it uses it. Kernels and
    parts allocate nothing: without numba's runtime, arrays are not counted at each call of a part, which
    takes longer than the work of a small part. The caller gives all memory.
    """

    def compiled(function: _Function) -> _Function:
        dispatcher = _dispatcher(function)
        dispatcher._cache = KernelCache(function, CHECKED)
        with typeinfer.register_dispatcher(dispatcher):  # a kernel may call itself
            dispatcher.compile(result(*parameters))
        dispatcher.disable_compile()
        return dispatcher

    return compiled


def part(function: _Function) -> _Function:
    """Compiles a function as a part of the kernels that call it, for the types with which they call it."""
    return _dispatcher(function)


def _dispatcher(function: _Function) -> Any:
    """What `numba.njit` makes, also in a program that has set NUMBA_DISABLE_JIT for functions of its own."""
    options = {"nopython": True, "nogil": True, "boundscheck": CHECKED, "_nrt": False}
    return CPUDispatcher(py_func=function, targetoptions=options)


# ---- how compiled kernels are kept -------------------------------------------------------------------------


_LOG = logging.getLogger(__name__)
_CHECKSUM_BYTES = 32
_NAME_DIGITS = 32
_UNUSED_S = 30 * 24 * 3600
_COMPILE_S = 20  # all kernels


class KernelCache:
    """The cache of one kernel, with the methods that numba's dispatcher calls on a cache."""

    def __init__(self, function: Any, checked: bool) -> None:
        self._function = function
        self._checked = checked

    @property
    def cache_path(self) -> str:
        return str(places_of_kernels(self._checked).write)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Returns the compiled kernel; None if there is none, or none that is whole."""
        target.refresh()
        name = self._file_name(signature, target.codegen())
        for directory in places_of_kernels(self._checked).read:
            try:
                content = (directory / name).read_bytes()
                payload = content[_CHECKSUM_BYTES:]
                if hashlib.sha256(payload).digest() == content[:_CHECKSUM_BYTES]:
                    return CompileResult._rebuild(target, *pickle.loads(payload))
            except OSError:
                continue
            except Exception as error:
                _LOG.debug("compiled kernel %s not loaded from %s: %r", name, directory, error)
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Writes the compiled kernel; says once for each process what it costs if that is not possible."""
        if compiled.library.has_dynamic_globals:  # an address of this process is compiled in
            return
        places = places_of_kernels(self._checked)
        if places.write is None:
            _warn_once(places.refused)
            return
        payload = serialize.dumps(compiled._reduce())
        try:
            _write(places.write / self._file_name(signature, compiled.codegen), payload)
        except OSError as error:
            _warn_once((*places.refused, f"{places.write}: {error.strerror}"))

    def _file_name(self, signature: Any, codegen: Any) -> str:
        function = self._function
        decides = (
            (sys.version, numba.__version__, llvmlite.__version__, np.__version__),
            (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT, self._checked),
            codegen.magic_tuple(),
            (function.__qualname__, str(signature)),
        )
        digest = hashlib.sha256(repr(decides).encode()).hexdigest()
        kernel = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        return f"{kernel}-{source_digest(function.__module__)}-{digest[:_NAME_DIGITS]}.kernel"


def _write(path: Path, payload: bytes) -> None:
    """Writes a file that appears whole or not at all, and removes unused files of older source."""
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=".new", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(hashlib.sha256(payload).digest() + payload)
            os.fchmod(file.fileno(), 0o644)  # beside the source, root's kernels serve all users
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    kernel = path.name.partition("-")[0]
    for old in path.parent.glob(f"{kernel}-*.kernel"):
        with suppress(OSError):  # another process was faster
            if old.stat().st_mtime < time.time() - _UNUSED_S:
                old.unlink()


@cache
def _warn_once(refused: tuple[str, ...]) -> None:
    _LOG.warning(
        "compiled kernels cannot be kept on disk: each Python process compiles them again, which takes up to "
        "%d seconds of a core; set NUMBA_CACHE_DIR to a directory that only this user can write to (%s)",
        _COMPILE_S,
        "; ".join(refused),
    )
