"""How often a plan reads topics.json."""

from __future__ import annotations

import cProfile
import json
import os
import time
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from store_format.metadata.read import read_topics
from tests.support.small_store import write_small_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with an old topics.json, which has a topic without messages."""
    root = write_small_store(tmp_path / "store").root
    path = root / "config" / "topics.json"
    path.write_text(json.dumps({"topicConfigTable": {"Orders": {}, "Parent": {}, "New": {}}}))
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    return root


def _times_read(options: dict[str, str]) -> int:
    read = parse_read_options(options)
    profile = cProfile.Profile()
    splits = profile.runcall(plan, read).splits
    assert splits
    code = read_topics.__code__
    return sum(each.callcount for each in profile.getstats() if each.code is code)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "Orders,New"},
        {"subscribe": "Orders", "startingOffsets": '{"Orders": {"5": 0}}'},
        {"group": "g", "subscribe": "Orders"},
        {"columns": "topic", "startingTimestamp": "1700000001005"},
    ],
    ids=lambda options: "-".join(options) or "all",
)
def test_a_plan_reads_topics_json_once(root: Path, options: dict[str, str]) -> None:
    assert _times_read({"path": str(root)} | options) == 1


def test_the_next_plan_reads_the_file_only_if_it_changed(root: Path) -> None:
    path = root / "config" / "topics.json"
    assert _times_read({"path": str(root)}) == 1
    assert _times_read({"path": str(root)}) == 0
    path.write_text(path.read_text().replace("New", "Old"))
    os.utime(path, (1_700_000_000, 1_700_000_000))
    assert _times_read({"path": str(root)}) == 1
