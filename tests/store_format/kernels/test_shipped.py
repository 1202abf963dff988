"""Kernels work, and are kept, in each form in which code reaches a worker: files, zip, text of the query."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.store_format.kernels.test_overruns import ROOT

pytestmark = [pytest.mark.process, pytest.mark.slow]

KERNEL = """
from store_format.kernels.jit import BYTES, INT, kernel
from store_format.kernels.words import load64

@kernel(INT, BYTES)
def first(data):
    return load64(data, 0)
"""
USE = """
import numpy as np
from store_format import kernels
from store_format.kernels import objects
kernels.MODULES = ("shipped",)
is_kept = objects.find(kernels.MODULES) is not None
kernels.load()
data = np.array([0, 0, 0, 0, 0, 0, 1, 2], np.uint8)
print(kernels.shipped.first(data), "__file__" in vars(kernels))
print("loaded" if is_kept else "compiled")
"""
_REFUSED = """
try:
    kernels.load()
except objects.KernelError as error:
    print(error)
    raise SystemExit
"""
INSTALL = """
import pickle
with open("install", "rb") as file:
    pickle.load(file)()
"""


def use(code: str, home: Path, path: str = "") -> list[str]:
    """What a process prints whose caches lie in `home`; `-P -S`: without this checkout."""
    libraries = os.pathsep.join(entry for entry in sys.path if "site-packages" in entry)
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-c", code],
        cwd=home,
        env={"HOME": str(home), "PYTHONPATH": os.pathsep.join(filter(None, (path, libraries)))},
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def sources() -> dict[str, tuple[str, bool]]:
    from rmq_spark.spark import by_value

    return {**by_value._sources(), "store_format.kernels.shipped": (KERNEL, False)}


def kept(home: Path) -> list[str]:
    found = [path.name for path in (home / ".cache/rmqlog/kernels").iterdir()]
    return [name.partition("-")[0] for name in found if not name.endswith(".lock")]


def test_kernels_from_a_zip_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    """As `addPyFile` and `--py-files` ship them."""
    with zipfile.ZipFile(tmp_path / "shipped.zip", "w") as archive:
        for path in (ROOT / "store_format").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT))
        archive.writestr("store_format/kernels/shipped.py", KERNEL)
    runs = [use(USE, tmp_path, str(tmp_path / "shipped.zip")) for _ in range(2)]
    assert runs == [["258", "True", "compiled"], ["258", "True", "loaded"]]
    assert kept(tmp_path) == ["shipped"]


def test_kernels_that_travel_with_a_query_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    """As `register(spark, by_value=True)` ships them: there are no files."""
    import lzma

    from pyspark import cloudpickle

    from rmq_spark.spark import by_value

    install = by_value._make_install(lzma.compress(by_value.joined(sources()).encode()))
    (tmp_path / "install").write_bytes(cloudpickle.dumps(install))  # type: ignore[no-untyped-call]
    use_sent = INSTALL + USE
    runs = [use(use_sent, tmp_path) for _ in range(2)]
    assert runs == [["258", "False", "compiled"], ["258", "False", "loaded"]]
    assert kept(tmp_path) == ["shipped"]


def test_an_archive_without_source_has_no_kernels(tmp_path: Path) -> None:
    """Nothing else says whether a kernel that was kept is still the kernel of this code."""
    import py_compile

    package = tmp_path / "shipped"
    for path in (ROOT / "store_format").rglob("*.py"):
        (package / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        if path.parent.name in ("store_format", "kernels"):
            py_compile.compile(str(path), str(package / path.relative_to(ROOT)) + "c", doraise=True)
    (tmp_path / "shipped.py").write_text(KERNEL)
    py_compile.compile(str(tmp_path / "shipped.py"), str(package / "store_format/kernels/shipped.pyc"))
    (package / "store_format/__init__.pyc").unlink()
    (package / "store_format/__init__.py").write_text("")
    said = use(USE.replace("kernels.load()", _REFUSED), tmp_path, str(package))
    assert " ".join(said) == "the code has no source to compile"
