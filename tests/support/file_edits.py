"""Changes to the files of a store, as disks and people make them."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
