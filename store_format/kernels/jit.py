"""How kernels are compiled by numba: with explicit signatures and without the GIL.

`compile` makes object files of them for other processes. Only bounds-checked kernels run as numba loads them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from numba import types
from numba.core import typeinfer
from numba.core.registry import CPUDispatcher

from store_format.kernels.cache_directory import CHECKED

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
OUT_WORDS = types.Array(types.uint64, 1, "C")
BOOL, INT32, INT, WORD, NOTHING = types.boolean, types.int32, types.int64, types.uint64, types.void


KERNELS: list[Any] = []  # all that were compiled in this process
compiles = CHECKED  # else an import of the modules compiles nothing: other processes call what is kept


def kernel(result: types.Type, *parameters: types.Type) -> Callable[[_Function], _Function]:
    """Compiles a function for exactly these types; the other threads of Python run meanwhile.

    All arrays are contiguous. A kernel raises nothing and checks each length before it uses it. Kernels and
    parts allocate nothing: without numba's runtime, arrays are not counted at each call of a part, which
    takes longer than the work of a small part. The caller gives all memory.
    """

    def compiled(function: _Function) -> _Function:
        if not compiles:
            return _kept(function)
        dispatcher = _dispatcher(function)
        with typeinfer.register_dispatcher(dispatcher):  # a kernel may call itself
            dispatcher.compile(result(*parameters))
        dispatcher.disable_compile()
        KERNELS.append(dispatcher)
        return dispatcher

    return compiled


def _kept(function: _Function) -> _Function:
    """The kernel of this name that is kept, for whoever has imported its module."""

    @wraps(function)
    def call(*arguments: Any) -> Any:
        room = sys.modules[__package__]  # which imports this module
        module = room.loaded(function.__module__.rpartition(".")[2])
        return getattr(module, function.__name__)(*arguments)

    return call


def part(function: _Function) -> _Function:
    """Compiles a function as a part of the kernels that call it, for the types with which they call it."""
    return _dispatcher(function, forceinline=True)


def _dispatcher(function: _Function, **more: bool) -> Any:
    """What `numba.njit` makes, also in a program that has set NUMBA_DISABLE_JIT for functions of its own."""
    options = {"nopython": True, "nogil": True, "boundscheck": CHECKED, "_nrt": False} | more
    return CPUDispatcher(py_func=function, targetoptions=options)
