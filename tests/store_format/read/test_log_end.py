"""Where the log ends for readers, asked without a queue: the same as a snapshot of all queues says."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.log import CommitLog
from store_format.files.read import FileCache
from store_format.opened.store import Opened
from store_format.survey.snapshot import Snapshot
from tests.store_format.read.test_readable_end import Broker
from tests.store_format.read.test_written_end import recovered
from tests.support.fixtures import Golden


def both(root: Path, state: StoreState) -> tuple[int | None, int | None]:
    def log() -> CommitLog:
        return CommitLog.open((str(root / "commitlog"),), FileCache())

    taken = Snapshot.take(Opened(str(root)), log(), state, lambda topic: True)
    return Snapshot.find_log_end(Opened(str(root)), log(), state), taken.log_end


@pytest.mark.parametrize("state", StoreState)
@pytest.mark.parametrize("name", ["basic-5.5.0", "crash-5.5.0"])
def test_stores_of_brokers(golden: Golden, name: str, state: StoreState) -> None:
    end, of_all = both(golden(name), state)
    assert end == of_all
    assert (end is None) is (state is not StoreState.CRASHED)


@pytest.mark.parametrize("state", StoreState)
def test_remains_of_an_earlier_recovery(tmp_path: Path, state: StoreState) -> None:
    broker = Broker.crashed(tmp_path / "store")
    recovered(broker)
    broker.write(16)
    end, of_all = both(broker.root, state)
    assert end == of_all
    assert end is not None
