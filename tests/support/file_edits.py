"""Changes to the files of a store, as disks and people make them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Writes over bytes of a file; all others stay."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@contextmanager
def edited_json(path: Path) -> Iterator[Any]:
    """`with edited_json(path) as document:` writes what the block makes of the document."""
    document = json.loads(path.read_text(encoding="utf-8"))
    yield document
    path.write_text(json.dumps(document), encoding="utf-8")


def flip(path: Path, position: int, mask: int = 1) -> None:
    """Flips bits of one byte."""
    overwrite(path, position, bytes([path.read_bytes()[position] ^ mask]))


_HARMS: dict[str, Callable[..., object]] = {
    "remove": lambda path: shutil.rmtree(path) if path.is_dir() else path.unlink(),
    "cut": lambda path, size: os.truncate(path, int(size)),
    "write": lambda path, position, data: overwrite(path, int(position), bytes.fromhex(data)),
    "zero": lambda path, position, count: overwrite(path, int(position), bytes(int(count))),
    "flip": lambda path, position, mask="1": flip(path, int(position), int(mask)),
    "text": lambda path, text: path.write_text(text),
    "create": lambda path, size: path.write_bytes(b"x" * int(size)),
    "mkdir": lambda path: path.mkdir(),
    "link": lambda path: path.symlink_to("/nowhere"),
    "blank": lambda path, size: (
        path.parent.mkdir(parents=True, exist_ok=True),
        path.write_bytes(bytes(int(size))),
    ),
    "shift": lambda path, count: path.write_bytes(bytes(int(count)) + path.read_bytes()[: -int(count)]),
    "drop": lambda path, count: path.write_bytes(path.read_bytes()[int(count) :] + bytes(int(count))),
    "copy": lambda path, name: shutil.copy(path, path.parent / name),
    "move": lambda path, name: path.rename(path.parent / name),
    "replace": lambda path, old, new: path.write_text(path.read_text().replace(old, new)),
}


def harm(root: Path, text: str) -> None:
    """Does what `cut commitlog/00000000000000000000 100; remove index` says to the files of a store."""
    for each in text.split("; "):
        what, path, *more = each.split(" ")
        _HARMS[what](root / path, *more)
