"""Memory before a case that writes: what was written before is not the case's to wait for, and its pages are
memory that a virtual machine has already been given.

Pages that a guest touches for the first time cost ten times as much as writing them.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.fill import Filling

_BLOCK_BYTES = 4 << 20
_UNIT_BYTES = 512  # a message without its body, with its entries in queue and index


def settle(directory: Path, filling: Filling) -> None:
    """Writes and removes as many bytes as it takes to stage and commit all messages, then syncs the disk."""
    size = 2 * filling.messages * (filling.body_size + _UNIT_BYTES)
    with open(directory / "scratch", "wb") as scratch:
        for _ in range(size // _BLOCK_BYTES + 1):
            scratch.write(bytes(_BLOCK_BYTES))
    os.sync()
    os.remove(directory / "scratch")
