"""Keeps compiled kernels between processes, in place of numba's own cache.

numba's cache notices a change of the file that a kernel is written in, not of the parts that the kernel takes
from other files; it writes to directories that others can write to; machines with different processors that
share a directory overwrite each other's code; and a file that a full disk cut short ends the process. Here a
file is named by the digest of everything that decides about the machine code, and holds its own checksum.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba.core import config, serialize
from numba.core.compiler import CompileResult

from store_format.kernels.cache_directory import places_of_kernels, source_digest

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
