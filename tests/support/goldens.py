"""The stores that real brokers wrote, under `tests/golden`: their names, how to unpack one, and what the
broker answered.

Tests reach the archives only through here, so the meaning of a golden file is written once.
"""

from __future__ import annotations

import gzip
import json
import pathlib
import shutil
import tarfile
from functools import lru_cache
from typing import Any

ROOT = pathlib.Path(__file__).parents[1] / "golden"

_KINDS = ("compaction", "rocksdbcq", "tiered")  # how their names begin
_ALL = sorted(path.parent.name for path in ROOT.glob("*/store.tar.gz"))
NAMES = tuple(name for name in _ALL if not name.startswith(_KINDS))
TIERED = "tiered-5.5.0"  # is read with `tiered_path`
# Stores whose queues are not plain files: tests/test_conformance.py reads all of their rows, and the tests of
# their kind ask the rest.
KINDS = tuple(name for name in _ALL if name.startswith(_KINDS) and name != TIERED)


def unpack(name: str, directory: pathlib.Path) -> pathlib.Path:
    """Unpacks the store so that `directory` (made if missing) is its root, and returns `directory`.

    In a cluster the root holds one store root per broker. Holes stay holes (tarfile seeks over them), so the
    store with default file sizes, 1 GiB and more to look at, takes about a megabyte.
    """
    with tarfile.open(ROOT / name / "store.tar.gz") as archive:
        archive.extractall(directory, filter="data")
    return directory


def expected(name: str) -> dict[str, Any]:  # Any: JSON, its fields are told in golden/README.md
    """What the broker's own classes answered about the store: offsets, probes, metadata."""
    return _object(json.loads((ROOT / name / "expected.json").read_bytes()))


def expected_rows(name: str) -> list[dict[str, Any]]:
    """One object per message of every topic and queue, in the order of the file."""
    return [row.copy() for row in _rows(name)]


@lru_cache(2)  # a module asks about one store again and again
def _rows(name: str) -> list[dict[str, Any]]:
    with gzip.open(ROOT / name / "expected.jsonl.gz", "rb") as lines:
        return [_object(json.loads(line)) for line in lines]


def config(name: str) -> dict[str, str]:
    """The broker configuration that differs from the defaults; the values are strings, as in broker.conf."""
    provenance = _object(json.loads((ROOT / name / "provenance.json").read_bytes()))
    return {str(key): str(value) for key, value in provenance["configDifferentFromDefaults"].items()}


def brokers(name: str, root: pathlib.Path) -> dict[str, tuple[pathlib.Path, dict[str, Any]]]:
    """Broker name -> (its store root, its answers); one entry named "" where the archive is a single
    store.
    """
    answers = expected(name)
    if "brokers" not in answers:
        return {"": (root, answers)}
    return {broker: (root / broker, _object(answer)) for broker, answer in answers["brokers"].items()}


def log_directories(root: pathlib.Path) -> list[pathlib.Path]:
    """The directories of the commitlog's files in a store root, also those of DLedger."""
    found = (root / "commitlog", *sorted(root.glob("dledger-*/data")))
    return [path for path in found if path.is_dir()]


def flipped(golden: pathlib.Path, copy: pathlib.Path, position: int) -> pathlib.Path:
    """A copy of a store whose first commitlog file has one bit flipped."""
    shutil.copytree(golden, copy)
    with (copy / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0] ^ 1
        file.seek(position)
        file.write(bytes([byte]))
    return copy


def _object(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value
