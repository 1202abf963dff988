"""Compiled kernels are kept on disk, found again, and never trusted blindly."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from store_format.kernels.cache_directory import Places

KERNEL = """
from store_format.kernels.jit import INT, kernel
from store_format.kernels.{part} import twice

@kernel(INT, INT)
def quadruple(number):
    return twice(twice(number))
"""
PART = """
from store_format.kernels.jit import part

@part
def twice(number):
    return number * {factor}
"""


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Imports a kernel whose part lies in another file, like a new process does, kept in `tmp_path`."""
    from store_format import kernels
    from store_format.kernels import cache_directory, jit

    source, kept = tmp_path / "source", tmp_path / "kept"
    source.mkdir()
    kept.mkdir()
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(source)])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = ("tried_kernel", "tried_part")

    def forget() -> None:
        importlib.invalidate_caches()
        cache_directory.source_digest.cache_clear()
        jit._warn_once.cache_clear()
        for name in names:
            sys.modules.pop(f"store_format.kernels.{name}", None)

    def imported(places: Places | None = None, factor: int = 2) -> ModuleType:
        forget()
        monkeypatch.setattr(jit, "places_of_kernels", lambda checked: places or Places((kept,), kept))
        (source / "tried_kernel.py").write_text(KERNEL.format(part="tried_part"))
        (source / "tried_part.py").write_text(PART.format(factor=factor))
        return importlib.import_module("store_format.kernels.tried_kernel")

    yield imported
    forget()


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "kept").iterdir())


def was_compiled(module: ModuleType) -> bool:
    """numba keeps what it learned while it compiled; a kernel from disk has none of it."""
    (overload,) = module.quadruple.overloads.values()
    return overload.metadata is not None


def test_a_kernel_is_compiled_once_and_then_loaded(
    imported: Callable[..., ModuleType], tmp_path: Path
) -> None:
    first = imported()
    assert was_compiled(first)
    (file,) = kept(tmp_path)
    written = file.stat().st_mtime_ns
    second = imported()
    assert not was_compiled(second)
    assert first.quadruple(5) == second.quadruple(5) == 20
    assert [path.stat().st_mtime_ns for path in kept(tmp_path)] == [written]


def test_a_change_of_a_part_in_another_file_compiles_the_kernel_again(
    imported: Callable[..., ModuleType], tmp_path: Path
) -> None:
    """numba's own cache looks at the kernel's file alone and gives 20 here."""
    assert imported().quadruple(5) == 20
    assert imported(factor=3).quadruple(5) == 45
    assert len(kept(tmp_path)) == 2
    assert not was_compiled(imported())


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty"])
def test_a_damaged_file_is_compiled_again_and_replaced(
    imported: Callable[..., ModuleType], tmp_path: Path, damage: str
) -> None:
    imported()
    (file,) = kept(tmp_path)
    whole = file.read_bytes()
    flipped = bytes([*whole[:5000], whole[5000] ^ 1, *whole[5001:]])
    file.write_bytes({"cut short": whole[:5000], "one bit": flipped, "empty": b""}[damage])
    again = imported()
    assert was_compiled(again)
    assert again.quadruple(5) == 20
    assert not was_compiled(imported())


def test_kernels_of_an_older_source_that_no_one_used_for_a_month_are_removed(
    imported: Callable[..., ModuleType], tmp_path: Path
) -> None:
    imported()
    (old,) = kept(tmp_path)
    imported(factor=3)
    assert old.exists()
    os.utime(old, (0, 0))
    imported(factor=4)
    assert not old.exists()
    assert len(kept(tmp_path)) == 2


def test_without_a_place_kernels_work_and_one_warning_tells_the_cost(
    imported: Callable[..., ModuleType], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from store_format.kernels import jit

    nowhere = Places(refused=("/shared/cache: others can write to /shared (mode 777)",))
    with caplog.at_level(logging.WARNING):
        module = imported(nowhere)
        jit._warn_once(nowhere.refused)
    assert module.quadruple(5) == 20
    assert kept(tmp_path) == []
    (record,) = caplog.records
    assert record.getMessage() == (
        "compiled kernels cannot be kept on disk: each Python process compiles them again, which takes up to "
        f"{jit._COMPILE_S} seconds of a core; set NUMBA_CACHE_DIR to a directory that only this user can "
        "write to (/shared/cache: others can write to /shared (mode 777))"
    )


def test_a_place_that_is_only_read_serves_what_an_installation_filled(
    imported: Callable[..., ModuleType], tmp_path: Path
) -> None:
    imported()
    module = imported(Places(read=(tmp_path / "kept",), refused=("read-only",)))
    assert not was_compiled(module)


def test_a_full_disk_costs_a_warning_and_no_kernel(
    imported: Callable[..., ModuleType], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    module = imported(Places((gone,), gone))
    assert module.quadruple(5) == 20
    assert [str(gone) in record.getMessage() for record in caplog.records] == [True]


def test_the_users_own_numba_functions_keep_their_settings(
    imported: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    import numba
    from numba.core import config

    before = {name: getattr(config, name) for name in dir(config) if name.isupper()}
    monkeypatch.setattr(
        config, "DISABLE_JIT", True
    )  # a user debugs the own functions; ours have no other form
    assert imported().quadruple(5) == 20
    assert config.DISABLE_JIT
    assert numba.njit(kept) is kept
    monkeypatch.undo()
    assert {name: getattr(config, name) for name in before} == before
