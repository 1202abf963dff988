"""No kernel reads or writes outside of its arrays; and both ways of looking for that find what is planted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]

# Each runs on `buffer`, `out` and `wide`: 80 bytes to read, 80 to write, and ten numbers.
PLANTED = """
from store_format.kernels.jit import BYTES, INT, OUT_BYTES, OUT_INTS, kernel
from store_format.kernels.words import *
from store_format.kernels.words import eight
from store_format.kernels.crc32 import crc32
COMMA = eight(44)
made = kernel(INT, BYTES, OUT_BYTES, OUT_INTS, INT)

@made
def planted_load16(buffer, out, wide, at): return load16(buffer, at)
@made
def planted_load32(buffer, out, wide, at): return load32(buffer, at)
@made
def planted_load64(buffer, out, wide, at): return load64(buffer, at)
@made
def planted_word(buffer, out, wide, at): return int(word(buffer, at) & U64(1))
@made
def planted_wide(buffer, out, wide, at): return load64(wide, at)
@made
def planted_put16(buffer, out, wide, at):
    put16(out, at, 1)
    return 0
@made
def planted_put32(buffer, out, wide, at):
    put32(out, at, 1)
    return 0
@made
def planted_put64(buffer, out, wide, at):
    put64(out, at, 1)
    return 0
@made
def planted_put_word(buffer, out, wide, at):
    put_word(out, at, U64(1))
    return 0
@made
def planted_copy_from(buffer, out, wide, at):
    copy(out, 0, buffer, at, 8)
    return 0
@made
def planted_copy_to(buffer, out, wide, at):
    copy(out, at, buffer, 0, 8)
    return 0
@made
def planted_find_byte(buffer, out, wide, at): return find_byte(buffer, at, at + 3, COMMA)
@made
def planted_crc32(buffer, out, wide, at): return crc32(buffer, at, 64)
@made
def planted_index(buffer, out, wide, at): return int(buffer[at + 7])
@made
def planted_store(buffer, out, wide, at):
    out[at + 7] = 1
    return 0
"""
# Bytes that each touches; 8 bytes where none are named.
SIZES = {"load16": 2, "load32": 4, "put16": 2, "put32": 4, "crc32": 64}

RUN = """
import sys
import numpy as np
from store_format import kernels
from store_format.kernels import jit
jit.compiles = True
kernels.__path__.append(sys.argv[1])
from tests.support import guarded_kernels
guarded_kernels.guard("planted")
sizes = {sizes!r}

def run(name, at):
    buffer, out, wide = np.zeros(80, np.uint8), np.zeros(80, np.uint8), np.zeros(10, np.int64)
    buffer.flags.writeable = False
    try:
        getattr(kernels.planted, name)(buffer, out, wide, at)
        return "inside"
    except guarded_kernels.Overrun as error:
        return str(error).partition(": ")[2]

names = [name for name in vars(kernels.planted) if name.startswith("planted_")]
"""
CHECKED = """
for name in names:
    last = 80 - sizes.get(name.removeprefix("planted_"), 8)
    print(name, *(run(name, at) for at in (0, last, last + 1, -8 - 80, 1 << 62)), sep=", ")
"""
# Outside of the array, inside of the page: the page without rights is the only one to notice.
UNCHECKED = """
name = sys.argv[2]
last = 80 - sizes.get(name.removeprefix("planted_"), 8)
print(run(name, last), flush=True)
run(name, last + 1)
print("not noticed")
"""


def run(
    code: str, directory: Path, *arguments: str, checked: bool, only: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `code` on the planted kernels, or with `only` on that one."""
    head, *planted = PLANTED.split("@made\n")
    chosen = [text for text in planted if only is None or text.startswith(f"def {only}(")]
    (directory / "planted.py").write_text("@made\n".join([head, *chosen]))
    return subprocess.run(
        [sys.executable, "-c", RUN.format(sizes=SIZES) + code, str(directory), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ
        | {"RMQLOG_CHECKED_KERNELS": "01"[checked], "NUMBA_CACHE_DIR": str(directory / "kept")},
        timeout=120,
    )


@pytest.mark.process
def test_a_checked_build_catches_every_access_outside_of_an_array(tmp_path: Path) -> None:
    done = run(CHECKED, tmp_path, checked=True)
    lines = [line.split(", ") for line in done.stdout.splitlines()]
    assert len(lines) == PLANTED.count("@made"), done.stderr
    for name, first, last, *outside in lines:
        assert (name, first, last) == (name, "inside", "inside")
        is_indexed = name in ("planted_index", "planted_store")
        caught = "index is out of bounds" if is_indexed else "a kernel left its array"
        assert (name, outside) == (name, [caught] * 3)


@pytest.mark.process
@pytest.mark.parametrize("name", ["planted_load64", "planted_copy_to"])
def test_the_page_behind_an_array_catches_what_no_check_sees(tmp_path: Path, name: str) -> None:
    done = run(UNCHECKED, tmp_path, name, checked=False, only=name)
    assert (done.stdout, done.returncode) == ("inside\n", -signal.SIGSEGV), done.stderr


# The tests whose inputs are goldens, flipped bits, and stores that hypothesis makes.
TESTS = (
    "test_bad_input.py",
    "rmq_spark/plan",
    "rmq_spark/produce",
    "store_format/commit",
    "store_format/commitlog",
    "store_format/consumequeue",
    "store_format/diagnose",
    "store_format/index",
    "store_format/kernels",
    "store_format/message",
    "store_format/read",
    "store_format/search",
)


@pytest.mark.whole
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("tests", TESTS)
def test_no_kernel_leaves_its_arrays_in_the_tests(tests: str, checked: bool) -> None:
    _run_tests([f"tests/{tests}"], checked)


def test_no_kernel_leaves_its_arrays_in_the_tests_of_messages() -> None:
    _run_tests(["--quick", "tests/store_format/message", "tests/store_format/commitlog"], checked=False)


def _run_tests(arguments: list[str], checked: bool) -> None:
    chosen = ["-m", "not slow and not spark and not interop"]
    chosen += ["--deselect", "tests/store_format/kernels/test_overruns.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.guarded_kernels", *chosen, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "RMQLOG_CHECKED_KERNELS": "01"[checked]},
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "guarded: store_format.kernels." in done.stdout
