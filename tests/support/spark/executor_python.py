"""The Pythons of a cluster's executors: what a node, an image or an archive would have, and nothing of the
checkout that is not installed there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

# What the code imports in a task; typing-extensions is what obstore needs before Python 3.13.
_LIBRARIES = ("llvmlite", "numba", "numpy", "obstore", "pyarrow", "typing-extensions")
_PACKAGES = ("rmq_spark", "store_format")
_NOT_COPIED = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "config-*"
)


def copied_python(directory: Path) -> Path:
    """Copies the Python of the tests, without packages, to a place where every user can run it.

    A program that is not where it was built finds its shared library by LD_LIBRARY_PATH.
    """
    standard = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(standard, directory / "lib" / standard.name, ignore=_NOT_COPIED)
    library = Path(sysconfig.get_config_var("LIBDIR")) / sysconfig.get_config_var("INSTSONAME")
    if library.suffix != ".a" and library.exists():
        shutil.copy(library, directory / "lib")
    program = directory / "bin" / standard.name
    program.parent.mkdir()
    shutil.copy(os.path.realpath(sys.executable), program)
    return program


def made_environment(python: Path, directory: Path, *, installed: bool, copied: bool = False) -> Path:
    """Fills a new environment with the libraries, and with this project if it is `installed` there.

    Returns its Python. The libraries are links, or `copied` for an archive: 450 MB.
    """
    library_path = {"LD_LIBRARY_PATH": str(python.parents[1] / "lib")}
    command = [str(python), "-m", "venv", "--without-pip", str(directory)]
    subprocess.run(command, check=True, env=os.environ | library_path)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in _LIBRARIES:
        for top in {file.parts[0] for file in metadata.files(name) or []} - {"..", "__pycache__"}:
            source = Path(str(metadata.distribution(name).locate_file(top)))
            if not copied:
                (site / top).symlink_to(source)
            elif source.is_dir():
                shutil.copytree(source, site / top)
            else:
                shutil.copy(source, site)
    for name in _PACKAGES if installed else ():
        shutil.copytree(ROOT / name, site / name, ignore=shutil.ignore_patterns("*.kernel", "checked"))
    return directory / "bin" / "python"


def packed_source(archive: Path) -> Path:
    """A zip of the packages for `--py-files`."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for name in _PACKAGES:
            for path in sorted((ROOT / name).rglob("*")):
                if path.suffix in (".py", ".txt"):
                    file.write(path, path.relative_to(ROOT))
    return archive
