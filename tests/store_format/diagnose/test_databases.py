"""The RocksDB databases of a store: a broker does not start on one that cannot be opened."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from store_format.diagnose import diagnose
from store_format.diagnose.broker_start import MayStart, broker_start
from store_format.diagnose.problems import NextStep, verdict
from tests.support.file_edits import harm
from tests.support.fixtures import Golden, Unchanged

STORE = "rocksdb-5.5.0"


@pytest.mark.parametrize(
    ("harms", "may", "step", "sentence"),
    [
        (
            "",
            MayStart.YES,
            NextStep.NOTHING,
            "sound: 208 messages readable, none lost; nothing has to be done",
        ),
        (
            "cut consumequeue/MANIFEST-000005 0",
            MayStart.NO,
            NextStep.MOVE,
            "damaged in 1 place: 208 messages",
        ),
        ("cut config/topics/MANIFEST-000005 0", MayStart.NO, NextStep.NOTHING, "damaged in 1 place: 208"),
        ("remove consumequeue", MayStart.UNKNOWN, NextStep.NOTHING, "sound, with 1 warning: 208 messages"),
    ],
)
def test_a_database_that_a_broker_cannot_open_is_damage(
    copy_of: Golden, unchanged: Unchanged, harms: str, may: MayStart, step: NextStep, sentence: str
) -> None:
    """As a broker of 5.5.0 did with each of these stores."""
    root = copy_of(STORE)
    if harms:
        harm(root, harms)
    with unchanged(root):
        found = diagnose(str(root))
    text, next_step = verdict(found)
    assert text.startswith(sentence)
    assert ("; a broker refuses to start on this store" in text) is (may is MayStart.NO)
    assert (broker_start(found).may, next_step) == (may, step)


def test_without_the_package_nothing_is_said_of_the_databases(
    golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    root: Path = golden(STORE)
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    found = diagnose(str(root))
    text, _ = verdict(found)
    assert text.endswith("; the RocksDB databases are not checked: install the extra rocksdb")
    start = broker_start(found)
    assert start.may is MayStart.UNKNOWN
    assert "rocksdict, which is missing" in start.cause
