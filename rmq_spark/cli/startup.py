"""How a process of `rmqlog` begins and ends: settings that shorten a run of a few tenths of a second.

Measured as CPU time of `rmqlog get` on the golden store basic-5.5.0, of 0.32 s in all: with pandas, where it
is installed, 0.12 s more; with Python's default garbage collection 0.02 s; with an orderly end of the
interpreter 0.03 s; with threads for numpy's linear algebra, which no command uses, 0.11 s.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from typing import NoReturn

_GARBAGE_THRESHOLD = 200_000  # objects; the imports alone make 150,000, and none of them is garbage


class _RefusePandas:
    """An import hook that reports pandas as not installed.

    pyarrow imports pandas when it makes its first scalar or array, to recognise pandas' types, and has no
    setting against this. No command passes pandas objects to pyarrow.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("rmqlog does not use pandas", name=name)
        return None


def begin() -> None:
    """Call this before numpy and pyarrow are imported, only in a process that runs nothing but `rmqlog`."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_GARBAGE_THRESHOLD)
    sys.meta_path.insert(0, _RefusePandas)


def leave(code: int) -> NoReturn:
    """Flushes the output and ends the process at once: nothing else has to be cleaned up."""
    logging.shutdown()
    with suppress(OSError):  # the reader of the output is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
