"""Runs kernels on arrays that end at memory which no one may touch.

`pytest -p tests.support.guarded_kernels PATHS` runs tests so: each array that a test gives to a kernel is
copied to the end of a page, behind which lies a page without any right; a kernel that reads or writes one
byte more ends the process. What the kernel wrote is copied back. With RMQLOG_CHECKED_KERNELS=1 the kernels
also check each load, store and copy, which shows an access before the array, or far behind it.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

_COPIED_BYTES_MAX = 64 << 20  # of a larger array, a mapped file, the original is used
_NO_RIGHTS = 0  # PROT_NONE

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

calls: dict[str, int] = {}  # how often each kernel ran on guarded arrays


class Overrun(BaseException):
    """A kernel left an array. Not an Exception: no caller of a kernel may take it for damage of a store."""


class _Memory:
    """Pages followed by one without rights, used again and again."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pages = mmap.mmap(-1, size + mmap.PAGESIZE)
        self._bytes = np.frombuffer(self._pages, np.uint8)
        if _mprotect(self._bytes.ctypes.data + size, mmap.PAGESIZE, _NO_RIGHTS) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def copy(self, array: Any) -> Any:
        """Returns a copy of `array` that ends where the page without rights begins."""
        place = self._bytes[self.size - array.nbytes : self.size].view(array.dtype)
        place[:] = array
        place.flags.writeable = array.flags.writeable
        return place


_free: dict[int, list[_Memory]] = {}
_lock = threading.Lock()


def guarded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, called with copies of its arrays at the end of a page."""

    def call(*arguments: Any) -> Any:
        calls[name] = calls.get(name, 0) + 1
        taken: list[_Memory] = []
        copies: list[Any] = []
        for i, argument in enumerate(arguments):
            same = next((k for k in range(i) if argument is arguments[k]), None)
            copies.append(copies[same] if same is not None else _copy(argument, taken))
        try:
            result = kernel(*copies)
        except IndexError as error:
            raise Overrun(f"{name}: {error}") from error
        for original, copy in zip(arguments, copies, strict=True):
            if copy is not original and copy.flags.writeable:
                original[:] = copy
        with _lock:
            for memory in taken:
                _free.setdefault(memory.size, []).append(memory)
        return result

    return call


def _copy(argument: Any, taken: list[_Memory]) -> Any:
    if not isinstance(argument, np.ndarray) or argument.ndim != 1 or argument.nbytes > _COPIED_BYTES_MAX:
        return argument
    if not argument.flags.c_contiguous:  # a kernel refuses the array
        return argument
    size = -(-argument.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE or mmap.PAGESIZE
    with _lock:
        free = _free.get(size)
        memory = free.pop() if free else _Memory(size)
    taken.append(memory)
    return memory.copy(argument)


def guard(*names: str) -> None:
    """Guards the kernels of these modules of the room, which numba loads, or of all, for callers outside of
    the room. A module that takes parts from another module still finds them there.
    """
    from store_format import kernels

    if not names:
        kernels.load()
    for name in names or kernels.MODULES:
        full = f"{kernels.__name__}.{name}"
        members = vars(importlib.import_module(full) if names else getattr(kernels, name))
        is_kernel = {key: _is_kernel(value) for key, value in members.items()}
        made = {key: guarded(f"{full}.{key}", members[key]) for key, is_one in is_kernel.items() if is_one}
        setattr(kernels, name, SimpleNamespace(**{**members, **made}))


def _is_kernel(value: Any) -> bool:
    """A compiled function of numba's, or one of an object file."""
    kind = type(value).__name__
    return kind == "function" if kind != "CPUDispatcher" else bool(value.overloads)


def pytest_configure(config: pytest.Config) -> None:
    guard()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for name, number in sorted(calls.items()):
        terminalreporter.write_line(f"guarded: {name} {number}")
