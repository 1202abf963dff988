"""A broker that has recovered a store goes on before what it has cut: a running one, and one that was
stopped, read as it serves them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.errors import CorruptStoreError
from store_format.files.lock import StoreLock
from store_format.metadata.read import read_checkpoint
from tests.store_format.read.test_readable_end import (
    Broker,
    Rows,
    overwrite,
    rows_of,
    said,
    torn_by_the_first_crash,
)
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.staged import append, messages_of, numbered
from tests.support.stored_rows import rows_in

_START = 1_700_000_130_000  # between what was written before the crash and after it
_CUT = 20


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, bool], None]:
    """Whether a broker runs on the store: it holds the lock, and its `abort` is there."""
    running: set[str] = set()
    monkeypatch.setattr(StoreLock, "holder", lambda path: 4711 if path in running else None)

    def turn(root: Path, is_up: bool) -> None:
        (running.add if is_up else running.discard)(f"{root}/lock")
        if is_up:
            (root / "abort").write_bytes(b"4711")
        else:
            (root / "abort").unlink(missing_ok=True)

    return turn


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker.crashed(tmp_path / "store")


def start(root: Path, at: int = _START) -> None:
    os.utime(root / "lock", ns=(at * 1_000_000, at * 1_000_000))


def recovered(broker: Broker) -> list[Message]:
    """A broker has started on the store, whose message 20 is torn, and cut it there. All messages, those that
    it cut too.
    """
    messages = torn_by_the_first_crash(broker, _CUT)
    start(broker.root)
    return messages


def served(broker: Broker) -> Rows:
    return sorted(
        ("T", queue_id, offset) for queue_id, stop in broker.offsets.items() for offset in range(stop)
    )


def without_queues(root: Path, how: str) -> None:
    shutil.rmtree(root / "consumequeue")
    if how == "RocksDB":
        (root / "consumequeue_rocksdb").mkdir()
        (root / "consumequeue_rocksdb" / "CURRENT").touch()


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("new", [1, 7, 16, 60])
def test_what_a_recovery_cut_stays_hidden(
    broker: Broker,
    live: Callable[[Path, bool], None],
    is_live: bool,
    new: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recovered(broker)
    broker.write(new)
    live(broker.root, is_live)
    assert rows_of(broker.root) == served(broker)
    assert MessageStore.open(str(broker.root)).state is (StoreState.LIVE if is_live else StoreState.CLEAN)
    assert len(said(caplog, "A broker's recovery has cut")) <= 1


@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("how", ["RocksDB", "lost", "one lost"])
def test_scans_end_where_the_broker_s_log_ends(
    broker: Broker, live: Callable[[Path, bool], None], is_live: bool, how: str
) -> None:
    cut = recovered(broker)[-1]
    broker.write(7)
    live(broker.root, is_live)
    if how == "one lost":
        shutil.rmtree(broker.root / "consumequeue" / "T" / "0")
    else:
        without_queues(broker.root, how)
    opened = MessageStore.open(str(broker.root))
    found = rows_in(opened, "topic", "queueId", "queueOffset")
    assert sorted(tuple(row.values()) for row in found) == served(broker)
    assert sum(batch.num_rows for batch in opened.scan(["queueOffset"])) == _CUT + 7
    assert opened.find(key="k59", use_index=False).table.num_rows == 0
    assert opened.find(message_id=cut.offset_msg_id).table.num_rows == 0


def test_queues_that_got_no_message_do_not_lead_to_others(
    broker: Broker, live: Callable[[Path, bool], None]
) -> None:
    """Even when the log has grown over all that was cut."""
    recovered(broker)
    broker.write(80, queue_ids=(0, 1))
    for is_live in (True, False):
        live(broker.root, is_live)
        assert rows_of(broker.root) == served(broker)


@pytest.mark.parametrize("is_live", [True, False])
def test_queues_that_are_ahead_of_the_log(
    broker: Broker, live: Callable[[Path, bool], None], is_live: bool
) -> None:
    """A power loss: pages of the log are lost, those of consume queues are not."""
    messages = messages_of(broker.root)
    cut = messages[_CUT]
    overwrite(broker.root, cut.physical_offset, bytes(1 << 12))
    overwrite(
        broker.root, cut.physical_offset + (1 << 12), bytes(broker.end - cut.physical_offset - (1 << 12))
    )
    shutil.rmtree(broker.root / "index")
    broker.recover(messages, cut.physical_offset)
    start(broker.root)
    last = messages[_CUT - 1]
    (broker.root / "checkpoint").write_bytes(oracle.checkpoint(last.store_timestamp, last.store_timestamp))
    live(broker.root, is_live)
    assert rows_of(broker.root) == served(broker)
    if is_live:
        broker.write(3)
        assert rows_of(broker.root) == served(broker)


def test_a_new_message_that_ends_where_a_cut_one_begins(
    broker: Broker, live: Callable[[Path, bool], None]
) -> None:
    """The store time tells while the broker runs. One that is stopped and started takes in what follows."""
    messages = recovered(broker)
    cut = messages[_CUT]
    new = replace(cut, store_timestamp=_START + 1)
    overwrite(broker.root, cut.physical_offset, oracle.encode_message(new))
    broker.offsets[cut.queue_id] += 1
    broker.end = messages[_CUT + 1].physical_offset
    live(broker.root, True)
    opened = MessageStore.open(str(broker.root))
    for count in (0, 3, 40):
        broker.write(count)
        assert rows_of(broker.root) == served(broker)
        assert sorted((queue.topic, queue.queue_id, queue.max_offset) for queue in opened.queues()) == [
            ("T", queue_id, stop) for queue_id, stop in sorted(broker.offsets.items())
        ]
        assert sum(batch.num_rows for batch in opened.scan(["queueOffset"])) == len(served(broker))


def test_an_idle_broker_says_where_its_recovery_ended(
    broker: Broker, live: Callable[[Path, bool], None]
) -> None:
    recovered(broker)
    last = messages_of(broker.root)[_CUT - 1]
    live(broker.root, True)
    with pytest.raises(CorruptStoreError):  # nothing tells when the message became damaged: nothing is hidden
        rows_of(broker.root)
    path = broker.root / "checkpoint"
    path.write_bytes(
        path.read_bytes()[:32] + last.physical_offset.to_bytes(8, "big") + path.read_bytes()[40:]
    )
    checkpoint = read_checkpoint(str(path))
    assert checkpoint is not None
    assert checkpoint.confirm_phy_offset == last.physical_offset
    assert rows_of(broker.root) == served(broker)


@pytest.mark.parametrize("is_live", [True, False])
def test_damage_in_the_middle_hides_nothing(
    broker: Broker, live: Callable[[Path, bool], None], is_live: bool
) -> None:
    recovered(broker)
    broker.write(60)
    overwrite(broker.root, messages_of(broker.root)[30].physical_offset + 95, b"\xff\xff")
    live(broker.root, is_live)
    with pytest.raises(CorruptStoreError):
        rows_of(broker.root)
    assert len(rows_of(broker.root, "DROPMALFORMED")) == _CUT + 59


def test_a_checkpoint_that_knows_nothing_does_not_name_the_first_message(
    broker: Broker, live: Callable[[Path, bool], None]
) -> None:
    """The second message is damaged, and confirmPhyOffset is 0, as is the place of the first one."""
    overwrite(broker.root, messages_of(broker.root)[1].physical_offset + 95, b"\xff\xff")
    start(broker.root)
    shutil.rmtree(broker.root / "index", ignore_errors=True)
    (broker.root / "checkpoint").unlink(missing_ok=True)
    live(broker.root, True)
    with pytest.raises(CorruptStoreError):
        rows_of(broker.root)
    assert len(rows_of(broker.root, "DROPMALFORMED")) == 59


@pytest.mark.parametrize("new", [7, 60])
def test_an_append_goes_on_where_the_broker_s_queues_end(
    broker: Broker, live: Callable[[Path, bool], None], new: int
) -> None:
    recovered(broker)
    broker.write(new, queue_ids=(0, 1))
    live(broker.root, False)
    before = served(broker)
    append(broker.root, numbered("T", 100, 8), key=("q", 0))
    for queue_id in range(4):
        broker.offsets[queue_id] += 2
    assert rows_of(broker.root) == served(broker) != before


@pytest.mark.parametrize("is_live", [True, False])
def test_diagnose_calls_what_was_cut_no_damage(
    broker: Broker, live: Callable[[Path, bool], None], is_live: bool
) -> None:
    recovered(broker)
    broker.write(7)
    live(broker.root, is_live)
    diagnosis = MessageStore.open(str(broker.root)).diagnose()
    assert [problem for problem in diagnosis.of("damage") if "checkpoint" not in problem.file] == []
    if not is_live:  # diagnose asks for the lock itself
        assert any(
            "An earlier recovery has cut these messages" in problem.advice
            for problem in diagnosis.of("warning")
        )
