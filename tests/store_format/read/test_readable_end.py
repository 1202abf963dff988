"""After a crash: damage in the middle of the log hides nothing behind it; what an earlier recovery has cut
stays hidden.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.commit.append import commit, recover
from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError, StoreError, StoreInUseError
from store_format.message.columns import DecodeOptions
from store_format.metadata.read import Checkpoint
from store_format.opened.store import Opened
from store_format.read.tolerance import Tolerance
from store_format.survey.log_end import LogEnd, ReadableEnd
from tests.support import goldens, oracle
from tests.support.file_edits import overwrite as overwrite_file
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.staged import append, make_store, messages_of, numbered, stage

_FILE_SIZE = 1 << 14
_DAMAGED = 30  # of the golden's messages in the order of the log

Rows = list[tuple[str, int, int]]
Copy = Callable[[str], Path]


def told(name: str) -> list[dict[str, Any]]:
    """What the broker reads of the undamaged store, in the order of the log."""
    return sorted(goldens.expected_rows(name), key=lambda row: int(row["physicalOffset"]))


def rows_of(root: Path, mode: str = "FAILFAST") -> Rows:
    """(topic, queue id, queue offset) of every message that a reader sees."""
    store = MessageStore.open(str(root))
    reader = store.reader(DecodeOptions(("topic", "queueId", "queueOffset"), True), Tolerance(mode))
    batches = list(reader.read([queue.piece() for queue in store.queues()]))
    return sorted(
        (row["topic"], row["queueId"], row["queueOffset"]) for batch in batches for row in batch.to_pylist()
    )


def identities(rows: list[dict[str, Any]]) -> Rows:
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def said(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The warnings that contain the text."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def overwrite(root: Path, offset: int, data: bytes) -> None:
    """Damages the commitlog at a physical offset."""
    start = max(int(path.name) for path in (root / "commitlog").iterdir() if int(path.name) <= offset)
    overwrite_file(root / "commitlog" / oracle.file_name(start), offset - start, data)


def readable(root: Path) -> ReadableEnd:
    store = MessageStore.open(str(root))
    end = LogEnd.after_crash(store.log, Checkpoint())
    return ReadableEnd.find(Opened(str(root)), store.log, end)


# ---- damage in the middle ----------------------------------------------------------------------------------

_DAMAGES = {
    "size word": (0, b"\x7f\xff\xff\xff"),
    "magic code": (4, b"\0\0\0\0"),
    "body": (95, b"\xff\xff"),
    "zeros": (0, bytes(300)),
}


@pytest.mark.parametrize("how", _DAMAGES)
def test_only_the_damaged_message_is_missing(
    copy_of: Golden, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, rows = copy_of("crash-5.5.0"), told("crash-5.5.0")
    at, data = _DAMAGES[how]
    overwrite(root, rows[_DAMAGED]["physicalOffset"] + at, data)
    assert rows_of(root, "DROPMALFORMED") == identities(rows[:_DAMAGED] + rows[_DAMAGED + 1 :])
    (warning,) = said(caplog, "damaged in the middle")
    assert "The 819 whole messages behind the damage" in warning
    assert "A broker that starts on this store cuts the commitlog at 8996 and loses" in warning
    with pytest.raises(CorruptStoreError) as caught:
        rows_of(root)
    assert str(root / "commitlog" / oracle.file_name(0)) in str(caught.value)


def test_what_is_torn_at_the_end_stays_the_end(copy_of: Golden, caplog: pytest.LogCaptureFixture) -> None:
    root = copy_of("crash-torn-5.5.0")
    assert rows_of(root) == identities(told("crash-torn-5.5.0"))
    assert caplog.records == []


@pytest.mark.process
@pytest.mark.parametrize("lost", [(300, 100), (4096, 5000), (4096, 0), (0, 5000)])
@pytest.mark.parametrize("state", ["crashed", "no consume queues", "clean, no consume queues"])
def test_zeros_across_the_boundary_of_two_files_hide_nothing(
    broker: Broker, state: str, lost: tuple[int, int]
) -> None:
    """The file behind them begins with zeros, as one that was only made in advance."""
    while broker.end < 2 * _FILE_SIZE + 9000:
        broker.write(1)
    messages, edge = messages_of(broker.root), 2 * _FILE_SIZE
    hit = [
        m
        for m in messages
        if m.physical_offset + m.total_size > edge - lost[0] and m.physical_offset < edge + lost[1]
    ]
    assert hit
    overwrite(broker.root, edge - lost[0], bytes(lost[0]))
    overwrite(broker.root, edge, bytes(lost[1]))
    if state != "crashed":
        shutil.rmtree(broker.root / "consumequeue")
    if state.startswith("clean"):
        (broker.root / "abort").unlink()
    before = dict(_files(broker.root))
    store = MessageStore.open(str(broker.root))
    found = [
        row
        for batch in store.scan(["physicalOffset"], on_damage="DROPMALFORMED")
        for row in batch.to_pylist()
    ]
    assert len(found) == len(messages) - len(hit)
    if state == "crashed":
        assert len(rows_of(broker.root, "DROPMALFORMED")) == len(messages) - len(hit)
        with pytest.raises(CorruptStoreError):
            rows_of(broker.root)
    else:
        with pytest.raises(CorruptStoreError):
            list(store.scan(["physicalOffset"]))
    assert store.diagnose().of("damage")
    staged = stage(broker.root, numbered("T", 900, 2))
    with pytest.raises(StoreError, match=r"whole messages behind it|rebuilt from the commitlog"):
        commit(str(broker.root), [staged])
    assert dict(_files(broker.root)) == before


# ---- an earlier recovery -----------------------------------------------------------------------------------


@dataclass
class Broker:
    """A store that a broker would leave, written unit by unit. Recovery sets `end` back; like a broker's it
    clears no byte.
    """

    root: Path
    end: int
    timestamp: int
    offsets: dict[int, int]

    @staticmethod
    def crashed(root: Path, count: int = 60) -> Broker:
        make_store(root)
        append(root, numbered("T", 0, count))
        shutil.rmtree(root / ".rmqlog")
        (root / "checkpoint").write_bytes(oracle.checkpoint(0, 0))
        (root / "abort").touch()
        messages = messages_of(root)
        broker = Broker(root, 0, messages[-1].store_timestamp, {})
        broker.recover(messages, messages[-1].physical_offset + messages[-1].total_size)
        return broker

    def recover(self, messages: list[Message], end: int) -> None:
        self.end = end
        self.offsets = {}
        for message in messages:
            if message.physical_offset < end:
                self.offsets[message.queue_id] = message.queue_offset + 1
        for path in (self.root / "commitlog").iterdir():
            if int(path.name) >= end > 0:
                path.unlink()

    def write(
        self,
        count: int,
        *,
        later_ms: int = 60_000,
        queue_ids: tuple[int, ...] = (0, 1, 2, 3),
        body: bytes = b"n" * 77,
        dispatched: bool = True,
    ) -> None:
        """Messages of another length, so that their edges are no edges of the messages they are written
        over.
        """
        for number in range(count):
            queue_id = queue_ids[number % len(queue_ids)]
            offset = self.offsets.get(queue_id, 0)
            timestamp = self.timestamp + later_ms + number
            message = Message(
                b"T", body, b"TAGS\x01new\x02", queue_id, offset, self.end, store_timestamp=timestamp
            )
            room = _FILE_SIZE - self.end % _FILE_SIZE
            if message.total_size + 8 > room:
                overwrite(self.root, self.end, oracle.blank(room))
                self.end += room
                (self.root / "commitlog" / oracle.file_name(self.end)).write_bytes(bytes(_FILE_SIZE))
                message = replace(message, physical_offset=self.end)
            overwrite(self.root, self.end, oracle.encode_message(message))
            path = (
                self.root / "consumequeue" / "T" / str(queue_id) / oracle.file_name(offset * 20 // 400 * 400)
            )
            data = bytearray(path.read_bytes() if path.exists() else bytes(400))
            data[offset * 20 % 400 : offset * 20 % 400 + 20] = oracle.cq_unit(
                self.end, message.total_size, oracle.tags_code(message)
            )
            if dispatched:
                path.write_bytes(bytes(data))
            self.offsets[queue_id] = offset + 1
            self.end += message.total_size


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker.crashed(tmp_path / "store")


def torn_by_the_first_crash(broker: Broker, number: int = 20) -> list[Message]:
    """One message is torn, those behind it are whole: pages reach the disk in any order. A broker starts and
    cuts there.
    """
    messages = messages_of(broker.root)
    overwrite(broker.root, messages[number].physical_offset + 20, bytes(70))  # with the length of the body
    shutil.rmtree(broker.root / "index")  # as the recovery does
    broker.recover(messages, messages[number].physical_offset)
    return messages


@pytest.mark.parametrize("new", [1, 7, 16])
def test_what_an_earlier_recovery_cut_stays_hidden(
    broker: Broker, new: int, caplog: pytest.LogCaptureFixture
) -> None:
    torn_by_the_first_crash(broker)
    broker.write(new)
    assert len(rows_of(broker.root)) == 20 + new
    found = readable(broker.root)
    assert (found.offset, found.messages, found.damage) == (broker.end, 0, None)
    assert found.remains > 20
    assert len(said(caplog, f"{found.remains} whole messages behind damage")) == len(caplog.records) == 1
    # A writer goes on there, as a broker would.
    append(broker.root, numbered("T", 100, 5), key=("q", 0))
    assert len(rows_of(broker.root)) == 20 + new + 5


@pytest.mark.parametrize("emptied", [False, True])
def test_entries_whose_messages_are_written_over_are_hidden(broker: Broker, emptied: bool) -> None:
    """Queues that get no new message keep the entries of cut messages, and those lead into the messages
    written over them.
    """
    torn_by_the_first_crash(broker, 2 if emptied else 20)
    broker.write(9, queue_ids=(0, 1))
    assert {key: len(rows) for key, rows in by_queue(broker.root).items()} == (
        {0: 6, 1: 5} if emptied else {0: 10, 1: 9, 2: 5, 3: 5}
    )


@pytest.mark.parametrize("into", ["damage", "a new message", "another file"])
def test_a_message_of_the_log_wins_over_the_entry_of_one_that_was_cut(broker: Broker, into: str) -> None:
    """Queues 2 and 3 keep the entries of 10 cut messages each; the messages that get their offsets are not
    dispatched.
    """
    cut = torn_by_the_first_crash(broker)
    broker.write(50, queue_ids=(0, 1))
    broker.write(12, queue_ids=(2, 3), later_ms=70_000, dispatched=False)
    if into == "another file":  # the scan of the log's tail begins behind all that the entries lead to
        broker.write(9, queue_ids=(0,), later_ms=80_000, body=b"n" * 7000)
        broker.write(6, queue_ids=(2, 3), later_ms=90_000, dispatched=False)
    written = messages_of(broker.root)
    damaged: list[Message] = []
    if into == "damage":
        # what the last entries of the two queues lead to
        places = [message.physical_offset for message in cut[-2:]]
        damaged = [
            m
            for m in written
            if any(m.physical_offset <= place < m.physical_offset + m.total_size for place in places)
        ]
        for message in damaged:
            overwrite(broker.root, message.physical_offset + 95, b"\xff\xff")
    rows = rows_of(broker.root, "DROPMALFORMED")
    assert rows == sorted(("T", m.queue_id, m.queue_offset) for m in written if m not in damaged)
    if not damaged:
        assert rows_of(broker.root) == rows


def by_queue(root: Path) -> dict[int, Rows]:
    found: dict[int, Rows] = {}
    for row in rows_of(root):
        found.setdefault(row[1], []).append(row)
    return found


def test_remains_stay_hidden_when_the_clock_went_back(broker: Broker) -> None:
    """Then the queue offsets tell: the new messages have those of the messages that were cut."""
    torn_by_the_first_crash(broker)
    broker.write(30, later_ms=-1_000_000)
    assert len(rows_of(broker.root)) == 50
    assert readable(broker.root).remains > 0


@pytest.mark.parametrize("step_ms", [2, 1000])
def test_a_clock_step_behind_damage_hides_nothing(broker: Broker, step_ms: int) -> None:
    """A broker needs more than a second to die and to start again, so remains are older than that."""
    broker.write(1, later_ms=60_000)
    damaged = broker.end
    broker.write(1, later_ms=60_000)
    broker.write(12, later_ms=60_000 - step_ms)
    overwrite(broker.root, damaged + 95, b"\xff\xff")
    assert len(rows_of(broker.root, "DROPMALFORMED")) == 73
    with pytest.raises(CorruptStoreError):
        rows_of(broker.root)
    with pytest.raises(CorruptStoreError, match="whole messages behind it"):
        recover(str(broker.root))


def test_queue_offsets_of_a_deleted_topic_are_no_repeats(broker: Broker) -> None:
    """The topic is created again; messages of it behind the damage have no entries yet, and lower offsets
    than the deleted ones.
    """
    shutil.rmtree(broker.root / "consumequeue" / "T")
    for queue_id in range(4):
        (broker.root / "consumequeue" / "T" / str(queue_id)).mkdir(parents=True)
    broker.offsets = {}
    broker.write(4)
    damaged = broker.end
    broker.write(1, later_ms=70_000)
    broker.write(20, later_ms=80_000, dispatched=False)
    overwrite(broker.root, damaged + 95, b"\xff\xff")
    assert readable(broker.root).messages == 20


def test_damage_behind_an_earlier_recovery(broker: Broker) -> None:
    """Both in one log: messages behind the damage are read, those behind the true end are not."""
    torn_by_the_first_crash(broker)
    broker.write(16)
    overwrite(broker.root, messages_of(broker.root)[25].physical_offset + 95, b"\xff\xff")
    found = readable(broker.root)
    assert (found.offset, found.messages) == (broker.end, 10)
    assert found.remains > 0
    assert len(rows_of(broker.root, "DROPMALFORMED")) == 35


@pytest.mark.parametrize("undispatched", [False, True])
@pytest.mark.parametrize("how", ["body", "size word", "with the blank", "zeros with the blank"])
def test_remains_behind_a_blank_do_not_end_the_log(tmp_path: Path, how: str, undispatched: bool) -> None:
    """A recovery deletes the files behind the log's end, so what is in them was written after it."""
    broker = Broker.crashed(tmp_path / "store", 80)
    torn_by_the_first_crash(broker)
    while broker.end < 11_000:
        broker.write(4, body=b"n" * 10)
    damaged, count = broker.end, sum(broker.offsets.values())
    broker.write(1)
    blank = broker.end
    broker.write(8, later_ms=70_000, body=b"n" * 6000)
    assert broker.end > 3 * _FILE_SIZE
    if undispatched:
        for queue_id in range(4):
            left = (broker.offsets[queue_id] - 2) * 20
            for path in (broker.root / "consumequeue" / "T" / str(queue_id)).iterdir():
                keep = min(max(left - int(path.name), 0), 400)
                path.write_bytes(path.read_bytes()[:keep] + bytes(400 - keep))
    data = {"body": (95, b"\xff\xff"), "size word": (0, b"\x7f\xff\xff\xff")}.get(
        how, (60, b"\xff" * (blank + 8 - damaged - 60))
    )
    overwrite(broker.root, damaged + data[0], bytes(len(data[1])) if how.startswith("zeros") else data[1])
    assert len(rows_of(broker.root, "DROPMALFORMED")) == count + 8
    found = readable(broker.root)
    assert (found.offset, found.messages, found.remains) == (broker.end, 8, 0)
    with pytest.raises(CorruptStoreError):
        rows_of(broker.root)
    before = dict(_files(broker.root))
    with pytest.raises(CorruptStoreError, match="8 whole messages behind it"):
        recover(str(broker.root))
    assert dict(_files(broker.root)) == before
    shutil.rmtree(broker.root / "consumequeue")
    if "blank" not in how:
        scan = MessageStore.open(str(broker.root)).scan(["queueId"], on_damage="DROPMALFORMED")
        assert sum(len(batch) for batch in scan) == count + 8


@pytest.mark.parametrize("crashed", [True, False])
def test_diagnose_counts_what_a_broker_would_cut(broker: Broker, crashed: bool) -> None:
    if not crashed:
        (broker.root / "abort").unlink()
    overwrite(broker.root, messages_of(broker.root)[20].physical_offset + 95, b"\xff\xff")
    diagnosis = MessageStore.open(str(broker.root)).diagnose()
    assert [problem.advice[:35] for problem in diagnosis.of("damage")] == [
        "Messages here are lost; read around"
    ]
    cut = [problem for problem in diagnosis.of("warning") if "whole messages up to" in problem.found]
    assert len(cut) == 1
    assert cut[0].found.startswith("39 whole messages up to ")
    assert cut[0].advice.startswith("A broker that starts on this store cuts these messages off")
    # the entries of those messages are right
    assert not any("behind it" in problem.found for problem in diagnosis)


def test_a_store_on_which_a_recovered_broker_wrote_nothing_is_read_whole(broker: Broker) -> None:
    torn_by_the_first_crash(broker)
    assert len(rows_of(broker.root, "DROPMALFORMED")) == 59
    assert readable(broker.root).messages == 39


# ---- writers -----------------------------------------------------------------------------------------------


def _files(root: Path) -> Iterator[tuple[str, bytes]]:
    for folder in ("commitlog", "consumequeue", "index"):
        yield from (
            (str(path), path.read_bytes()) for path in sorted((root / folder).rglob("*")) if path.is_file()
        )


def older_behind_damage(broker: Broker, *, is_shown: bool) -> tuple[int, int]:
    """Nobody has recovered the store: the clock was set back by a minute behind the message that is
    damaged. Neither the head of that message nor an entry shows that it was there, or with `is_shown` both.
    """
    broker.write(2, later_ms=120_000)
    damaged = broker.end
    broker.write(1, later_ms=130_000, dispatched=is_shown)
    first = broker.end
    broker.write(7, later_ms=60_000)
    overwrite(broker.root, damaged + (95 if is_shown else 0), b"\xff\xff" * (1 if is_shown else 40))
    return first, broker.end


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("lost", ["the body", "the head", "the entries"])
def test_a_clock_that_was_set_back_behind_damage_hides_nothing(
    broker: Broker, tmp_path: Path, crashed: bool, lost: str
) -> None:
    """The head of the damaged message, or its entry, shows that no broker has written over it."""
    first, stop = older_behind_damage(broker, is_shown=True)
    if lost == "the head":
        overwrite(broker.root, first - 178, bytes(100))
    if lost == "the entries":
        shutil.rmtree(broker.root / "consumequeue" / "T" / "2")
    if not crashed:
        (broker.root / "abort").unlink()
    assert (readable(broker.root).offset, readable(broker.root).messages) == (stop, 7)
    salvaged = tmp_path / "salvaged"
    plan = MessageStore.open(str(broker.root)).recover(into=str(salvaged), salvage=True)
    assert "drop" not in plan.table()["action"].to_pylist()
    plan.apply()
    assert len(rows_of(salvaged)) == 69
    with pytest.raises(CorruptStoreError, match="7 whole messages behind it"):
        append(broker.root, numbered("T", 100, 5))


def test_a_salvage_names_the_remains_that_it_leaves_out(broker: Broker, tmp_path: Path) -> None:
    start, _ = older_behind_damage(broker, is_shown=False)
    plan = MessageStore.open(str(broker.root)).recover(into=str(tmp_path / "new"), salvage=True)
    (row,) = [row for row in plan.table().to_pylist() if row["action"] == "drop"]
    assert (row["position"], row["entries"]) == (start, 7)
    assert "(T-0: 2, T-1: 2, T-2: 2, T-3: 1)" in row["reason"]
    plan.apply()
    assert len(rows_of(tmp_path / "new")) == 62


def test_a_torn_message_behind_an_earlier_recovery_hides_the_remains(broker: Broker) -> None:
    """Its head is in its place, but it does not lead to what is whole behind it."""
    torn_by_the_first_crash(broker)
    broker.write(16)
    torn = broker.end
    broker.write(1)
    overwrite(broker.root, torn + 95, b"\xff\xff")
    found = readable(broker.root)
    assert (found.offset, found.messages) == (torn, 0)
    assert found.remains > 0


@pytest.mark.parametrize("crashed", [True, False])
def test_a_writer_names_the_remains_that_it_clears(
    broker: Broker, crashed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    start, stop = older_behind_damage(broker, is_shown=False)
    if not crashed:
        (broker.root / "abort").unlink()
    append(broker.root, numbered("T", 100, 5))
    (warning,) = said(caplog, "are cleared")
    assert f"7 whole messages from {start} to {stop} behind this end (T-" in warning


@pytest.mark.parametrize("recovered", [True, False])
def test_a_recovery_is_named_only_where_one_is_known(
    broker: Broker, recovered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    if recovered:  # shorter messages, which get queue offsets of cut ones that are still whole
        torn_by_the_first_crash(broker)
        broker.write(24, body=b"n" * 10)
    else:
        older_behind_damage(broker, is_shown=False)
    rows_of(broker.root, "DROPMALFORMED")
    (warning,) = said(caplog, "whole messages behind damage (")
    assert ("An earlier recovery has cut them" in warning) == recovered


@pytest.mark.parametrize("crashed", [True, False])
def test_the_advice_to_give_messages_up_works(root: Path, crashed: bool) -> None:
    """Queues and index end where the log does then; the index ends in front of the checkpoint's time, as that
    of a flushed store.
    """
    append(root, numbered("T", 0, 24) + numbered("U", 0, 24))
    (root / ".rmqlog" / "ledger.json").unlink()
    if crashed:
        (root / "abort").touch()
    overwrite(root, messages_of(root)[11].physical_offset + 95, b"\xff\xff")
    with pytest.raises(CorruptStoreError, match="rmqlog recover STORE --cut-after-damage --apply"):
        append(root, numbered("T", 100, 4))
    MessageStore.open(str(root)).recover(cut_after_damage=True).apply()
    assert len(rows_of(root)) == 11
    assert MessageStore.open(str(root)).diagnose().of("damage") == []
    append(root, numbered("U", 100, 20))
    assert len(rows_of(root)) == 31
    assert MessageStore.open(str(root)).diagnose().of("damage") == []


def test_a_log_that_grows_meanwhile_is_not_cut(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live broker whose lock cannot be seen looks like one that crashed."""
    relisted = CommitLog.relisted

    def look_again(log: CommitLog) -> CommitLog:
        broker.write(1)
        return relisted(log)

    monkeypatch.setattr(CommitLog, "relisted", look_again)
    with pytest.raises(StoreInUseError, match="another process writes to the store"):
        recover(str(broker.root))
    monkeypatch.undo()
    assert len(rows_of(broker.root)) == 61
