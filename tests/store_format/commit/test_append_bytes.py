"""What a commit writes, against stores that real brokers wrote: the same messages give the same bytes, in
every file.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import make_store, messages_of, settings_from, stage

_CLEAN = [
    "basic-5.5.0",
    "edge-5.5.0",
    "propcrc-5.5.0",
    "delay-tx-5.5.0",
    "retry-dlq-5.5.0",
    "defaults-5.5.0",
    "basic-4.9.7",
]


def _files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.parametrize("commits", [1, 7])
@pytest.mark.parametrize("name", _CLEAN)
def test_a_store_of_the_same_messages_has_the_same_bytes(
    golden: Golden, tmp_path: Path, name: str, commits: int
) -> None:
    theirs = golden(name)
    messages = messages_of(theirs)
    ours = make_store(tmp_path / "store", settings_from(goldens.config(name)))
    bounds = np.linspace(0, len(messages), commits + 1).astype(int).tolist()
    topics = {
        topic: config.write_queue_nums for topic, config in (read_topics(Opened(str(theirs))) or {}).items()
    }
    options = CommitOptions(sync=False, new_topics=topics)
    for number, (start, stop) in enumerate(pairwise(bounds)):
        part = messages[start:stop]
        staged = stage(
            ours, part, crc_property=name.startswith("propcrc"), tag_keys=not name.endswith("4.9.7"), part=97
        )
        times = np.array([m.store_timestamp for m in part], np.int64)
        result = commit(str(ours), [staged], key=("q", number), store_timestamps=times, options=options)
        assert result.reports == ()
    _same_log(theirs / "commitlog", ours / "commitlog")
    _same_queues(theirs / "consumequeue", ours / "consumequeue")
    assert list(_files(ours / "index").values()) == list(_files(theirs / "index").values())


def _same_log(theirs: Path, ours: Path) -> None:
    for path in sorted(theirs.iterdir()):
        mine = ours / path.name
        if not mine.exists():
            with path.open("rb") as preallocated:
                assert not any(iter(lambda: preallocated.read(1 << 20).strip(b"\0"), b""))
            continue
        assert mine.stat().st_size == path.stat().st_size
        ends = _blank_end(path)
        with path.open("rb") as expected, mine.open("rb") as found:
            stop = path.stat().st_size if ends is None else ends
            while stop > 0:
                length = min(stop, 1 << 22)
                assert found.read(length) == expected.read(length)
                stop -= length
    assert {path.name for path in ours.iterdir()} <= {path.name for path in theirs.iterdir()}


def _blank_end(path: Path) -> int | None:
    """Behind the 8 bytes of the file's BLANK; None without one."""
    if path.stat().st_size > 1 << 20:
        return None  # the store with default sizes has not filled its file
    data = path.read_bytes()
    position = 0
    while position < len(data):
        size, magic = (
            int.from_bytes(data[position : position + 4], "big"),
            data[position + 4 : position + 8].hex(),
        )
        if magic == "cbd43194":
            return position + 8
        if not size:
            return None
        position += size
    return None


def _same_queues(theirs: Path, ours: Path) -> None:
    found, expected = (
        _files(ours),
        {name: data for name, data in _files(theirs).items() if not name.startswith("%LMQ%")},
    )
    # made ahead, or never written to
    spare = {name for name in expected.keys() - found.keys() if not any(expected[name])}
    assert found.keys() == expected.keys() - spare
    for name, data in found.items():
        assert data == expected[name], name
