"""Kernels as object files: what their callers may pass, and how they are compiled, kept and found."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_format import kernels
from store_format.kernels import cache_directory, objects
from store_format.kernels.cache_directory import Places

ROOT = Path(__file__).resolve().parents[3]
_SCALARS = {"bool": True, "int32": 7, "int64": 7, "uint64": 7}


def _kernels() -> list[tuple[str, Any, list[str]]]:
    kept = objects.find(kernels.MODULES)
    assert kept is not None, "make kernels"
    return [
        (f"{module}.{name}", getattr(getattr(kernels, module), name), described["parameters"])
        for module, (header, _) in kept.items()
        for name, described in header["kernels"].items()
    ]


def _array(kind: str, size: int) -> np.ndarray[Any, np.dtype[Any]]:
    return np.zeros(size, kind.split()[-1][:-2])


def _wrong(kind: str) -> list[Any]:
    """What is no right argument for a parameter of this kind, with others of the right kind beside it."""
    right = _array(kind, 4)
    other = np.dtype(np.int16 if right.dtype.itemsize != 2 else np.int8)
    wrong: list[Any] = [
        None, b"", [0, 0], right.tobytes(), right.astype(other), right.reshape(2, 2), right[::2],
        right[:1].reshape(()),
    ]  # fmt: skip
    if right.dtype.itemsize > 1:
        shifted = np.zeros(right.nbytes + 1, np.uint8)[1:].view(right.dtype)
        wrong += [right.astype(right.dtype.newbyteorder()), shifted]
    if kind.startswith("writable"):
        right.flags.writeable = False
        wrong.append(right)
    return wrong


def test_every_module_with_kernels_is_listed() -> None:
    room = ROOT / "store_format" / "kernels"
    found = {path.stem for path in room.glob("*.py") if "\n@kernel(" in path.read_text()}
    assert found == {*kernels.MODULES}
    assert len(_kernels()) == 28


def test_no_kernel_takes_an_array_of_another_kind() -> None:
    tried = 0
    for name, kernel, parameters in _kernels():
        right = [_array(each, 0) if each.endswith("[]") else _SCALARS[each] for each in parameters]
        for i, kind in enumerate(parameters):
            if not kind.endswith("[]"):
                with pytest.raises((TypeError, ctypes.ArgumentError)):
                    kernel(*right[:i], "x" if kind != "bool" else _NoBool(), *right[i + 1 :])
                continue
            for wrong in _wrong(kind):
                with pytest.raises(
                    TypeError, match=f"^{name}: argument {i + 1}: expected {re.escape(kind)}, found "
                ):
                    kernel(*right[:i], wrong, *right[i + 1 :])
                tried += 1
    assert tried > 1000


class _NoBool:
    def __bool__(self) -> bool:
        raise TypeError("it must be a truth value")


def test_a_call_with_too_few_or_too_many_arguments_is_refused() -> None:
    for _, kernel, parameters in _kernels():
        right = [_array(each, 0) if each.endswith("[]") else _SCALARS[each] for each in parameters]
        for arguments in (right[:-1], [*right, 0]):
            with pytest.raises(TypeError):
                kernel(*arguments)


# ---- how kernels are compiled and kept ---------------------------------------------------------------------

_KERNEL = """
from store_format.kernels.jit import INT, OUT_INTS, kernel
from store_format.kernels.tried_part import twice

@kernel(INT, OUT_INTS, INT)
def quadruple(values, number):
    if len(values):
        values[0] = twice(number)
    return twice(twice(number))
"""
_PART = """
from store_format.kernels.jit import part

FACTOR = {factor}

@part
def twice(number):
    return number * FACTOR
"""
_RANDOM = """
import numpy as np
from store_format.kernels.jit import INT, OUT_INTS, kernel

@kernel(INT, OUT_INTS)
def chosen(values):
    return int(np.random.random() * len(values))
"""


@dataclass
class Tried:
    """A module of kernels beside those of the project, and the directory where it is kept."""

    source: Path
    kept: Path

    def write(self, kernel: str = _KERNEL, factor: int = 2) -> None:
        (self.source / "tried_kernel.py").write_text(kernel)
        (self.source / "tried_part.py").write_text(_PART.format(factor=factor))
        for each in (objects.file_name, cache_directory.source_digest, cache_directory._source):
            each.cache_clear()

    def quadruple(self, number: int) -> int:
        """By the kept kernel, which is compiled where it is missing."""
        objects.compile_now(("tried_kernel",))
        kept = objects.find(("tried_kernel",))
        assert kept is not None
        return int(objects.load(kept)["tried_kernel"].quadruple(np.zeros(1, np.int64), number))

    def files(self) -> list[Path]:
        return sorted(self.kept.glob("*.kernel"))


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tried]:
    made = Tried(tmp_path / "source", tmp_path / "kept")
    made.source.mkdir()
    made.kept.mkdir()
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(made.source)])
    monkeypatch.setattr(objects, "places_of_kernels", lambda: Places((made.kept,), made.kept))
    made.write()
    yield made
    for each in (objects.file_name, cache_directory.source_digest, cache_directory._source):
        each.cache_clear()


@pytest.mark.slow
def test_kernels_are_compiled_once_and_a_changed_part_compiles_them_again(tried: Tried) -> None:
    assert tried.quadruple(5) == 20
    (first,) = tried.files()
    written = first.stat().st_mtime_ns
    assert tried.quadruple(5) == 20
    assert first.stat().st_mtime_ns == written
    os.utime(first, (0, 0))  # nobody has used it for a month
    tried.write(factor=3)
    assert tried.quadruple(5) == 45
    (second,) = tried.files()
    assert second != first
    whole = second.read_bytes()
    for damaged in (whole[:500], bytes([*whole[:500], whole[500] ^ 1, *whole[501:]]), b""):
        second.write_bytes(damaged)
        assert objects.find(("tried_kernel",)) is None
    assert tried.quadruple(5) == 45
    assert second.read_bytes() == whole


@pytest.mark.slow
def test_the_compiler_imports_nothing_of_the_working_directory(
    tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which may be a store of somebody else, with files that have the names of modules."""
    store = tmp_path / "store"
    store.mkdir()
    for name in ("json", "runpy", "tempfile", "numba", "llvmlite", "store_format"):
        (store / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})")
    monkeypatch.chdir(store)
    assert tried.quadruple(5) == 20
    assert not (tmp_path / "executed").exists()


@pytest.mark.slow
def test_a_function_of_another_library_is_refused_and_the_reason_is_kept(
    tried: Tried, caplog: pytest.LogCaptureFixture
) -> None:
    """An object with an unknown function would end the process that loads it."""
    tried.write(_RANDOM)
    with pytest.raises(objects.KernelError, match="expected no functions of other libraries, found"):
        objects.compile_now(("tried_kernel",))
    with pytest.raises(objects.KernelError, match="to compile them failed: CompileError: exp"):
        objects.start_compiling(("tried_kernel",))
    assert tried.files() == []
    assert caplog.records == []


def test_without_a_place_one_line_says_so_and_plain_code_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = Places(refused=("/shared/cache: others can write to /shared (mode 777)",))
    monkeypatch.setattr(objects, "places_of_kernels", lambda: nowhere)
    for name, value in (("_loaded", {}), ("_rows", 0), ("_is_refused", False)):
        monkeypatch.setattr(kernels, name, value)
    assert [kernels.ready(200_000) for _ in range(3)] == [False] * 3
    (line,) = caplog.messages
    assert line == (
        "the compiled loops are not used, and reading takes ten times as long: they cannot be kept on disk; "
        "set NUMBA_CACHE_DIR to a directory that only this user can write to (/shared/cache: others can write "  # noqa: E501
        "to /shared (mode 777))"
    )


@pytest.mark.process
def test_a_file_is_for_one_processor() -> None:
    code = (
        "from store_format.kernels import objects; print(objects.file_name('walk'), objects.processor()[1])"
    )
    names = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | more
        ).stdout.split()
        for more in ({}, {}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_FEATURES": "-avx"})
    ]
    assert names[0] == names[1]
    assert len({name[0] for name in names}) == 3
    assert len(names[2]) == 1  # a generic processor has no features


@pytest.mark.process
def test_loading_them_leaves_numba_alone() -> None:
    code = "from store_format import kernels; import sys; kernels.load(); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
