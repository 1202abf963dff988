"""Compiles the kernels of a module into an object file, which processes load without numba.

    python -m store_format.kernels.compile DIRECTORY LOCK MODULE=FILE …     # as `objects` runs it

The object has a C function for each kernel, its *entry*: it gets the arrays as Python objects, checks them,
and passes their data to the function that numba has made. This module and `jit` are all that knows numba's
insides: where they change, `compiled` raises `CompileError`, and readers go on with plain code.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numba import types
from numba.core.compiler_lock import global_compiler_lock

from store_format.kernels import objects

# Where the parts of an array are, in bytes: PyArrayObject_fields and PyArray_Descr of numpy's C interface,
# which numpy keeps for programs that were compiled before. `objects.try_out` notices if that has changed.
_DATA, _DIMENSIONS, _SHAPE, _DESCRIPTOR, _FLAGS = 16, 24, 32, 56, 64
_BYTE_ORDER, _NUMBER = 26, 28
_SWAPPED = {"little": ord(">"), "big": ord("<")}[sys.byteorder]
_TYPE = 8  # of each object of Python
_CONTIGUOUS, _ALIGNED, _WRITEABLE = 0x1, 0x100, 0x400
_ELEMENT_CODES = "?bBhHiIlLqQ"
_NONE = -2  # numba's status of a function that returns nothing
# what numba passes for an array of one dimension
_OF_ARRAY = ("ptr", "ptr", "i64", "i64", "ptr", "i64", "i64")


class CompileError(Exception):
    """numba has no longer the form that the entries of kernels are made for."""


def compiled(module_name: str) -> bytes:
    """Returns the kept form of the kernels of a module of this room; see `objects.load`."""
    from store_format.kernels import jit

    jit.compiles = True
    module = importlib.import_module(f"{__package__}.{module_name}")
    linked: Any = None
    described: dict[str, Any] = {}
    kernels = [each for each in jit.KERNELS if each.py_func.__module__ == module.__name__]
    for dispatcher in kernels:
        name = dispatcher.py_func.__name__
        part, described[name] = _with_entry(dispatcher, objects.symbol(module_name, name))
        if linked is None:
            linked = part
        else:
            linked.link_in(part)
    constants = {
        name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)
    }
    header = json.dumps({"kernels": described, "constants": constants}).encode()
    return objects.framed(
        header, _object_of(linked, {objects.symbol(module_name, name) for name in described})
    )


@global_compiler_lock
def _object_of(module: Any, entries: set[str]) -> bytes:
    """The object file: only the entries are visible, and nothing is undefined."""
    for value in (*module.functions, *module.global_variables):
        if not value.is_declaration and value.name not in entries:
            value.linkage = "internal"
    machine = llvm.Target.from_triple(module.triple).create_target_machine(
        *objects.processor(), opt=3, reloc="static", codemodel="large", jit=True
    )
    passes = llvm.create_new_module_pass_manager()  # numba has optimized the code
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    module.verify()
    unknown = [
        each.name
        for each in (*module.functions, *module.global_variables)
        if each.is_declaration and not each.name.startswith("llvm.") and each.name not in _LIBRARY
    ]
    if unknown:
        raise CompileError(f"expected no functions of other libraries, found {', '.join(unknown)}")
    return bytes(machine.emit_object(module))


_LIBRARY = ("memcpy", "memmove", "memset", "memcmp", "pread")  # of C: each process has them


# ---- the entry of a kernel ---------------------------------------------------------------------------------


def _with_entry(dispatcher: Any, symbol: str) -> tuple[Any, dict[str, Any]]:
    """The code of a kernel with its entry, and what its callers have to know of it."""
    (kernel,) = dispatcher.overloads.values()
    native = kernel.fndesc.llvm_func_name
    module = llvm.parse_assembly(dispatcher.inspect_llvm(next(iter(dispatcher.overloads))))
    try:
        found = [str(each.type) for each in module.get_function(native).arguments]
    except NameError:
        raise CompileError(f"expected the function {native} in numba's code") from None
    parameters = list(_flat(kernel.signature.args))
    expected = ["ptr", "ptr"]  # of the result, of an error
    for each in parameters:
        expected += _OF_ARRAY if isinstance(each, types.Array) else [_bits_of(each)]
    if ["i8" if each == "i1" else each for each in found] != expected:
        raise CompileError(f"expected a kernel with the arguments {expected}, found {found}")
    text = "\n".join(_entry(symbol, native, parameters, found))
    entry = llvm.parse_assembly(text)
    entry.triple, entry.data_layout = module.triple, module.data_layout
    module.link_in(entry)
    result = kernel.signature.return_type
    return module, {
        "parameters": [_described(each) for each in parameters],
        "result": "" if result is types.void else "bool" if result is types.boolean else "int64",
        "results": result.count if isinstance(result, types.UniTuple) else 1,
        "has_tuples": any(isinstance(each, types.UniTuple) for each in kernel.signature.args),
    }


def _flat(kinds: Any) -> Iterator[Any]:
    for each in kinds:
        if isinstance(each, types.UniTuple):
            yield from _flat(each.types)
        else:
            yield each


def _described(kind: Any) -> str:
    if not isinstance(kind, types.Array):
        return str(kind)
    return f"{'writable ' if kind.mutable else ''}{kind.dtype}[]"


def _bits_of(kind: Any) -> str:
    return "i8" if kind is types.boolean else f"i{kind.bitwidth}"


def _numbers_of(kind: Any) -> list[int]:
    """numpy's numbers of the element types that are this one: int64 is `long` and `long long` on Linux."""
    wanted = np.dtype(str(kind))
    return sorted({np.dtype(code).num for code in _ELEMENT_CODES if np.dtype(code) == wanted})


def _entry(symbol: str, native: str, parameters: list[Any], passed: list[str]) -> Iterator[str]:
    """The text of the entry: (type of arrays, place of the result, arguments) -> 0, the number of the first
    argument that is wrong, or -1 if the kernel failed.
    """
    declared = [
        f"ptr %a{number}" if isinstance(each, types.Array) else f"{_bits_of(each)} %a{number}"
        for number, each in enumerate(parameters)
    ]
    yield f"declare i32 @{native}({', '.join(passed)})"
    yield f"define i32 @{symbol}(ptr %type, ptr %result, {', '.join(declared)}) {{"
    yield "  %error = alloca ptr"
    arguments = ["ptr %result", "ptr %error"]
    for number, each in enumerate(parameters):
        name = f"%a{number}"
        if isinstance(each, types.Array):
            yield from _checked(name, number, each)
            size = np.dtype(str(each.dtype)).itemsize
            values = ("null", "null", f"{name}.size", size, f"{name}.data", f"{name}.size", size)
            arguments += [f"{kind} {value}" for kind, value in zip(_OF_ARRAY, values, strict=True)]
        elif passed[len(arguments)] == "i1":
            yield f"  {name}.bit = icmp ne i8 {name}, 0"
            arguments.append(f"i1 {name}.bit")
        else:
            arguments.append(f"{passed[len(arguments)]} {name}")
    yield f"  %status = call i32 @{native}({', '.join(arguments)})"
    yield "  %done = icmp eq i32 %status, 0"
    yield f"  %nothing = icmp eq i32 %status, {_NONE}"
    yield "  %right = or i1 %done, %nothing"
    yield "  %answer = select i1 %right, i32 0, i32 -1"
    yield "  ret i32 %answer"
    yield "}"


def _checked(name: str, number: int, kind: Any) -> Iterator[str]:
    """Checks an array, and reads its size and where its data begin."""

    def field(what: str, of: str, place: int, llvm_type: str) -> Iterator[str]:
        yield f"  {name}.{what}.at = getelementptr i8, ptr {of}, i64 {place}"
        yield f"  {name}.{what} = load {llvm_type}, ptr {name}.{what}.at"

    # no other part of an object that is no array may be read
    yield from field("type", name, _TYPE, "ptr")
    yield f"  {name}.is_array = icmp eq ptr {name}.type, %type"
    yield f"  br i1 {name}.is_array, label %array{number}, label %wrong{number}"
    yield f"wrong{number}:"
    yield f"  ret i32 {number + 1}"
    yield f"array{number}:"
    yield from field("dimensions", name, _DIMENSIONS, "i32")
    yield from field("flags", name, _FLAGS, "i32")
    yield from field("descriptor", name, _DESCRIPTOR, "ptr")
    yield from field("number", f"{name}.descriptor", _NUMBER, "i32")
    yield from field("order", f"{name}.descriptor", _BYTE_ORDER, "i8")
    flags = _CONTIGUOUS | _ALIGNED | (_WRITEABLE if kind.mutable else 0)
    yield f"  {name}.wanted = and i32 {name}.flags, {flags}"
    yield f"  {name}.is_usable = icmp eq i32 {name}.wanted, {flags}"
    yield f"  {name}.is_flat = icmp eq i32 {name}.dimensions, 1"
    yield f"  {name}.is_native = icmp ne i8 {name}.order, {_SWAPPED}"
    yield f"  {name}.is_right.1 = and i1 {name}.is_usable, {name}.is_flat"
    yield f"  {name}.is_right.0 = and i1 {name}.is_right.1, {name}.is_native"
    yield f"  {name}.is_alike.0 = icmp eq i32 {name}.number, -1"
    numbers = _numbers_of(kind.dtype)
    for i, each in enumerate(numbers):
        yield f"  {name}.is_number.{i} = icmp eq i32 {name}.number, {each}"
        yield f"  {name}.is_alike.{i + 1} = or i1 {name}.is_alike.{i}, {name}.is_number.{i}"
    yield f"  {name}.is_right = and i1 {name}.is_right.0, {name}.is_alike.{len(numbers)}"
    yield f"  br i1 {name}.is_right, label %right{number}, label %wrong{number}"
    yield f"right{number}:"
    yield from field("data", name, _DATA, "ptr")
    yield from field("shape", name, _SHAPE, "ptr")
    yield f"  {name}.size = load i64, ptr {name}.shape"


def main(directory: str, lock: str, *files: str) -> None:
    """Compiles modules and keeps each as a file of the directory, once a process of its own has loaded it.

    The file of the lock gets the reason if that fails.
    """
    os.nice(_NICE)
    handle = int(lock)
    os.ftruncate(handle, 0)
    try:
        objects.keep(Path(directory), {file: compiled(name) for name, _, file in map(_parts, files)})
    except BaseException as error:
        os.pwrite(handle, f"{type(error).__name__}: {error}".encode()[: objects.REASON_BYTES], 0)
        raise


def _parts(text: str) -> tuple[str, str, str]:
    return text.partition("=")


_NICE = 10


if __name__ == "__main__":
    main(*sys.argv[1:])
