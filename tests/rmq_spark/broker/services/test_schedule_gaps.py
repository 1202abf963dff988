"""Delay levels whose queue has gaps, and levels that messageDelayLevel lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_spark.services import recover, run_once
from store_format.errors import CorruptStoreError, OptionError
from store_format.metadata.read import BrokerConf, read_delay_offsets
from store_format.opened.store import Opened
from tests.support.waiting import BEGIN_MS, append, bodies, delayed


def test_a_level_goes_on_behind_a_message_that_a_salvage_gave_up(root: Path, tmp_path: Path) -> None:
    """The level stopped at the damaged message, and the copy has a blank entry in its place."""
    append(root, [*delayed("T", 1, 0, 10), *delayed("T", 2, 10, 2)], sync=True)
    log = root / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    at = data.index(b"message 3 of T")
    with log.open("r+b") as file:
        file.seek(at)
        file.write(b"X" * 9)
    with pytest.raises(CorruptStoreError):
        run_once(str(root), ["schedule"], BEGIN_MS + 100_000, apply=True)
    assert read_delay_offsets(Opened(str(root))) == {1: 3, 2: 2}
    copy = tmp_path / "copy"
    recover(str(root), into=str(copy), salvage=True).apply()
    for seconds in (200, 201):
        run_once(str(copy), ["schedule"], BEGIN_MS + seconds * 1000, apply=True)
    expected = [f"message {i} of T".encode() for i in range(12) if i != 3]
    assert sorted(bodies(copy, "T").elements()) == sorted(expected)
    assert read_delay_offsets(Opened(str(copy))) == {1: 10, 2: 2}


def test_messages_of_a_level_that_the_setting_lacks_are_an_error(root: Path) -> None:
    """A broker leaves them in their queue for ever; the other levels are delivered."""
    append(root, [*delayed("T", 1, 0, 2), *delayed("T", 3, 2, 3)], sync=True)
    conf = BrokerConf(message_delay_levels_ms=(1000, 2000))
    with pytest.raises(OptionError, match="has 2 levels, and 3 messages wait at level 3"):
        run_once(str(root), ["schedule"], BEGIN_MS + 100_000, broker_conf=conf, apply=True)
    assert sum(bodies(root, "T").values()) == 2
    run_once(str(root), ["schedule"], BEGIN_MS + 100_000, apply=True)
    assert sum(bodies(root, "T").values()) == 5
