"""Loads the compiled kernels that a process has kept as object files, and calls them, without numba.

To load kernels with numba costs a process 0.4 s of CPU and 110 MB, without it 0.06 s and 53 MB.
A file is named by the digest of everything that decides about its machine code, and holds its own checksum.
Only `compile` makes one.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from store_format.kernels.cache_directory import places_of_kernels, source_digest, sources_of

_LOG = logging.getLogger(__name__)
_CHECKSUM_BYTES = 32
_HEADER_BYTES = 4  # the length of the header
_NAME_DIGITS = 32
_UNUSED_S = 30 * 24 * 3600
_TRY_S = 60
_SCALARS: Mapping[str, Any] = {
    "bool": ctypes.c_bool, "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
}  # fmt: skip
_Results = ctypes.c_int64 * 4
_PROCESSOR_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")


class KernelError(Exception):
    """A kernel left its arrays, or was given what it does not take."""


@cache
def processor() -> tuple[str, str]:
    """(the name of the processor, its features) for which kernels are compiled, as numba chooses them.

    NUMBA_CPU_NAME and NUMBA_CPU_FEATURES lower them, for kernels that other machines load, too.
    """
    import llvmlite.binding as llvm

    chosen, features = map(os.environ.get, _PROCESSOR_VARIABLES)
    name = chosen or llvm.get_host_cpu_name()
    if features is None:
        features = "" if name.lower() == "generic" else llvm.get_host_cpu_features().flatten()
    return name, features


def symbol(module: str, kernel: str) -> str:
    """The name of a kernel's entry in its object file."""
    return f"rmqlog_{module}_{kernel}"


@cache
def file_name(module: str) -> str:
    """The name of the file that keeps the kernels of a module of this room, for this process."""
    return f"{module}-{source_digest(module)}-{_form()}.kernel"


@cache
def _form() -> str:
    """The digest of what decides about the machine code of all kernels."""
    compiler = source_digest("compile")
    versions = (version("numba"), version("llvmlite"), np.__version__)
    decides = (sys.version, sys.platform, versions, processor(), compiler)
    return hashlib.sha256(repr(decides).encode()).hexdigest()[:_NAME_DIGITS]


def framed(header: bytes, code: bytes) -> bytes:
    """A kept file: checksum, length of the header, header, object."""
    payload = len(header).to_bytes(_HEADER_BYTES, "little") + header + code
    return hashlib.sha256(payload).digest() + payload


def _unframed(content: bytes) -> tuple[Any, bytes] | None:
    """(header, object) of a kept file; None for one that is not whole."""
    payload = content[_CHECKSUM_BYTES:]
    if hashlib.sha256(payload).digest() != content[:_CHECKSUM_BYTES]:
        return None
    stop = _HEADER_BYTES + int.from_bytes(payload[:_HEADER_BYTES], "little")
    return json.loads(payload[_HEADER_BYTES:stop]), payload[stop:]


# ---- how kernels are loaded and called ---------------------------------------------------------------------


def find(modules: Sequence[str]) -> dict[str, tuple[Any, bytes]] | None:
    """The kept kernels of all these modules; None if those of one are missing or damaged."""
    found = dict[str, tuple[Any, bytes]]()
    for module in reversed(modules):  # the last one is compiled last
        name = file_name(module)
        kept = next(filter(None, (_read(place / name) for place in places_of_kernels().read)), None)
        if kept is None:
            return None
        found[module] = kept
    return found


def _read(path: Path) -> tuple[Any, bytes] | None:
    try:
        return _unframed(path.read_bytes())
    except OSError:
        return None


def load(kept: Mapping[str, tuple[Any, bytes]]) -> dict[str, SimpleNamespace]:
    """Each module's kernels and constants. The engine lives as long as this process."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for _, code in kept.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    loaded = {}
    for module, (header, _) in kept.items():
        names = dict[str, Any](header["constants"])
        for name, described in header["kernels"].items():
            place = engine.get_function_address(symbol(module, name))
            names[name] = _kernel(f"{module}.{name}", place, described)
        loaded[module] = SimpleNamespace(**names)
    return loaded


_engines: list[Any] = []  # functions of an engine that is gone end the process


def _kernel(name: str, place: int, described: Mapping[str, Any]) -> Callable[..., Any]:
    """A kernel as a function of Python. Other threads run while it works."""
    parameters: list[str] = described["parameters"]
    kinds = [_SCALARS.get(each, ctypes.py_object) for each in parameters]
    entry = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, *kinds)(place)
    count, result, has_tuples = described["results"], described["result"], described["has_tuples"]
    array = np.ndarray

    def call(*arguments: Any) -> Any:
        if has_tuples:
            arguments = tuple(
                part for each in arguments for part in (each if isinstance(each, tuple) else (each,))
            )
        if len(arguments) != len(kinds):  # ctypes takes more
            raise TypeError(f"{name}: expected {len(kinds)} arguments, found {len(arguments)}")
        results = _Results()
        wrong = entry(array, results, *arguments)
        if wrong:
            raise _error(name, wrong, parameters, arguments)
        if not result:
            return None
        return bool(results[0]) if result == "bool" else results[0] if count == 1 else tuple(results[:count])

    call.__name__ = call.__qualname__ = name
    return call


def _error(name: str, wrong: int, parameters: Sequence[str], arguments: Sequence[Any]) -> Exception:
    if wrong < 0:
        return KernelError(f"{name}: the kernel failed")
    given = arguments[wrong - 1]
    found = type(given).__name__
    if isinstance(given, np.ndarray):
        flags = given.flags
        found = (
            f"{'writable ' if flags.writeable else 'read-only '}{given.dtype}[] with {given.ndim} dimensions"
            f"{'' if flags.c_contiguous else ', not contiguous'}{'' if flags.aligned else ', not aligned'}"
        )
    return TypeError(f"{name}: argument {wrong}: expected {parameters[wrong - 1]}, found {found}")


# ---- how they are compiled ---------------------------------------------------------------------------------

_RUN = """
import json, os, runpy, sys, tempfile
with tempfile.TemporaryDirectory() as directory:
    for name, source in json.load(sys.stdin).items():
        path = os.path.join(directory, *name.split("."))
        os.makedirs(path if source is None else os.path.dirname(path), exist_ok=True)
        with open(os.path.join(path, "__init__.py") if source is None else path + ".py", "w") as file:
            file.write(source or "")
    sys.path.insert(0, directory)
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    runpy.run_module("store_format.kernels.compile", run_name="__main__")
"""


def start_compiling(modules: Sequence[str]) -> None:
    """Compiles what is missing in another process, unless one does so already.

    Raises KernelError if nothing can be kept, or the last process failed less than a day ago.
    """
    place = _place_to_write()
    if any(each.poll() is not None for each in _compilers):  # and without a reason, or somebody removed files
        raise KernelError("the process that compiled them has ended, and they are not there")
    with suppress(BlockingIOError), _only_one(place / _lock_name(modules)) as lock:
        failed = os.fstat(lock).st_mtime > time.time() - _AGAIN_S and os.read(lock, REASON_BYTES).decode()
        if failed:
            raise KernelError(f"to compile them failed: {failed}")
        _LOG.warning("compiling the loops that read messages: once for this installation, some 20 s of CPU")
        _compilers.append(_compiler(place, modules, lock))


def compile_now(modules: Sequence[str]) -> None:
    """Compiles what is missing and waits for it, also for another process. Raises KernelError."""
    place = _place_to_write()
    with _only_one(place / _lock_name(modules), waits=True) as lock:
        if find(modules) is not None:
            return
        if code := _compiler(place, modules, lock).wait():
            reason = os.pread(lock, REASON_BYTES, 0).decode()
            raise KernelError(reason or f"the process that compiles them ended with code {code}")


_AGAIN_S = 24 * 3600
REASON_BYTES = 2000
_compilers: list[subprocess.Popen[bytes]] = []  # of this process, which are not waited for


def _lock_name(modules: Sequence[str]) -> str:
    return hashlib.sha256(repr([*map(file_name, modules)]).encode()).hexdigest()[:_NAME_DIGITS] + ".lock"


def _place_to_write() -> Path:
    places = places_of_kernels()
    if places.write is None:
        raise KernelError(
            "they cannot be kept on disk; set NUMBA_CACHE_DIR to a directory that only this user can write "
            f"to ({'; '.join(places.refused)})"
        )
    return places.write


@contextmanager
def _only_one(path: Path, *, waits: bool = False) -> Iterator[int]:
    """Locks the file. A process that inherits the handle keeps the lock. Raises BlockingIOError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield handle
    finally:
        os.close(handle)


def _compiler(place: Path, modules: Sequence[str], lock: int) -> subprocess.Popen[bytes]:
    """A process that compiles what is missing. It gets the source: this one may have no files of it.

    It imports nothing from the working directory (`-P`), which may be a store.
    """
    missing = [module for module in modules if find([module]) is None]
    found = sources_of("compile", *modules)
    if found is None:
        raise KernelError("the code has no source to compile")
    sources = {"store_format": None, __package__: None, **found}
    files = (f"{module}={file_name(module)}" for module in missing)
    # settings of numba are for the user's own functions
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("NUMBA_") or name in _PROCESSOR_VARIABLES
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _RUN, str(place), str(lock), *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(lock,),
        start_new_session=True,
        env=environment | {"PYTHONPATH": os.pathsep.join(filter(os.path.isabs, sys.path))},
    )
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(json.dumps(sources).encode())
    return process


def keep(place: Path, files: Mapping[str, bytes]) -> None:
    """Writes kept files, each whole or not at all, once a process of its own has loaded all of them.

    An unknown function would end that process. Raises KernelError if they do not load.
    """
    with tempfile.TemporaryDirectory(prefix=".", suffix=".new", dir=place) as directory:
        for name, content in files.items():
            path = Path(directory) / name
            path.write_bytes(content)
            path.chmod(0o644)  # beside the source, root's kernels serve all users
        tried = [sys.executable, "-P", "-m", __name__, *(os.path.join(directory, name) for name in files)]
        done = subprocess.run(tried, capture_output=True, text=True, timeout=_TRY_S)
        if done.returncode:
            raise KernelError(f"they do not load ({done.returncode}): {done.stderr.strip()[-500:]}")
        for name in files:
            os.replace(os.path.join(directory, name), place / name)
    for old in place.glob("*.kernel"):
        with suppress(OSError):  # another process was faster
            if old.stat().st_mtime < time.time() - _UNUSED_S:
                old.unlink()


def try_out(*paths: str) -> None:
    """Loads files and calls each kernel with arrays that are empty, and with what is no array."""
    kept = {}
    for path in map(Path, paths):
        found = _read(path)
        if found is None:
            raise KernelError(f"{path} is not whole")
        kept[path.name.partition("-")[0]] = found
    for module, loaded in load(kept).items():
        for name, described in kept[module][0]["kernels"].items():
            _try_out(getattr(loaded, name), described["parameters"])


def _try_out(kernel: Callable[..., Any], parameters: Sequence[str]) -> None:
    arguments = [np.empty(0, each.split()[-1][:-2]) if each.endswith("[]") else 0 for each in parameters]
    kernel(*arguments)
    array = next(number for number, each in enumerate(parameters) if each.endswith("[]"))
    try:
        kernel(*arguments[:array], b"", *arguments[array + 1 :])
    except TypeError:
        return
    raise KernelError(f"{kernel.__name__} takes what is no array")


if __name__ == "__main__":
    try_out(*sys.argv[1:])
