"""Queues compared with the entries of the log: each kind of difference once, on queues of a few units."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from store_format.bookkeeping.ledger import Ledger
from store_format.consumequeue.dispatch import ENTRY_ROW, pack_entries
from store_format.consumequeue.updates import lost_units, pre_blank_bytes
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_UNIT
from store_format.names import REVIVE_GROUP, SCHEDULE_TOPIC, QueueKey
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.survey import queues
from store_format.survey.fates import Fates, KnownEnd
from store_format.survey.queues import ComparedQueue, Difference, PlacedUnits, QueueComparison, StoredQueue
from tests.support.file_edits import overwrite
from tests.support.staged import append, numbered
from tests.support.store_files import write_files

_Units = NDArray[np.void]

PER_FILE = 8
LOG_STOP = 100_000


def rows(*offsets: int, first: int = 1000, batch_size: int = 1) -> _Units:
    """Messages of 100 bytes, one behind the other from the physical offset `first` on."""
    made = np.zeros(len(offsets), ENTRY_ROW)
    made["offset"], made["batch_size"], made["size"] = offsets, batch_size, 100
    made["physical"] = first + 100 * np.arange(len(offsets))
    made["tags"] = 7
    return made


def units(*offsets: int, first: int = 1000) -> _Units:
    return pack_entries(rows(*offsets, first=first), batch=False)


def joined(*parts: _Units) -> _Units:
    return np.concatenate(parts, dtype=CQ_UNIT)  # numpy would choose this machine's byte order


def write(root: Path, stored: _Units, *, topic: str = "T", is_batch: bool = False, start: int = 0) -> None:
    """The queue's files. Unit `start` is the first one."""
    directory = root / ("batchconsumequeue" if is_batch else "consumequeue") / topic / "0"
    size = stored.dtype.itemsize
    write_files(directory, stored.tobytes(), PER_FILE * size, start * size)


def compared(
    root: Path, *parts: _Units, topic: str = "T", is_batch: bool = False, broker_start: int = LOG_STOP
) -> ComparedQueue:
    size = PER_FILE * (46 if is_batch else 20)

    def find(key: QueueKey) -> StoredQueue:
        return StoredQueue.list_in(Opened(str(root)), key, size, is_batch=is_batch)

    comparison = QueueComparison(find, log_stop=LOG_STOP, broker_start=broker_start)
    for part in parts:
        comparison.add([(topic, 0)], part)
    return comparison.queues[topic, 0]


def found(queue: ComparedQueue) -> list[tuple[str, int, int, int]]:
    return [(each.kind, each.first, each.stop, each.entries) for each in queue.differences]


def test_equal_units_are_counted_over_files_and_parts(tmp_path: Path) -> None:
    write(tmp_path, units(*range(20)))
    queue = compared(tmp_path, rows(*range(5)), rows(*range(5, 20), first=1500))
    assert (found(queue), queue.equal, queue.places.entries, queue.places.max_offset) == ([], 20, 20, 20)


def test_messages_behind_the_last_unit_are_missing(tmp_path: Path) -> None:
    write(tmp_path, units(*range(6)))
    queue = compared(tmp_path, rows(*range(20)), broker_start=2000)
    assert queue.differences == [Difference("missing", 6, 20, 14, 10, 1600)]
    assert (queue.equal, queue.by_broker) == (6, 10)


def test_zeros_between_entries_and_a_lost_file_are_missing(tmp_path: Path) -> None:
    stored = units(*range(24))
    stored[2:4] = np.zeros(2, CQ_UNIT)
    write(tmp_path, stored)
    (tmp_path / f"consumequeue/T/0/{PER_FILE * 20:020}").unlink()
    queue = compared(tmp_path, rows(*range(24)))
    assert found(queue) == [("missing", 2, 4, 2), ("missing", 8, 16, 8)]


@pytest.mark.parametrize("name", ["physical_offset", "size", "tags_code"])
def test_an_entry_of_another_message_is_wrong(tmp_path: Path, name: str) -> None:
    stored = units(*range(6))
    stored[name][3] += 1
    write(tmp_path, stored)
    queue = compared(tmp_path, rows(*range(6)))
    assert queue.differences == [Difference("wrong", 3, 4, 1, 0, 1300)]
    assert queue.equal == 5


def test_an_address_in_the_ext_file_and_a_delivery_time_are_right(tmp_path: Path) -> None:
    stored = units(*range(3))
    stored["tags_code"] = CQ_EXT_ADDRESS_MAX - 5
    write(tmp_path, stored)
    assert found(compared(tmp_path, rows(*range(3)))) == []
    stored["tags_code"] = 1_700_000_000_000
    write(tmp_path, stored, topic=SCHEDULE_TOPIC)
    assert found(compared(tmp_path, rows(*range(3)), topic=SCHEDULE_TOPIC)) == []


def test_offsets_without_a_message_are_unfilled_without_lost_units(tmp_path: Path) -> None:
    write(tmp_path, joined(units(0, 1), np.zeros(3, CQ_UNIT), units(5, 6, first=1200)))
    part = rows(0, 1, 5, 6)
    assert found(compared(tmp_path, part)) == [("unfilled", 2, 5, 0)]
    filled = lost_units("T", 3, units(5, first=1200))
    write(tmp_path, joined(units(0, 1), filled, units(5, 6, first=1200)))
    queue = compared(tmp_path, part)
    assert (found(queue), queue.seen.claims.gaps, queue.places.entries) == ([], [(2, 5)], 4)


def test_units_before_the_first_message_of_the_log(tmp_path: Path) -> None:
    """They are of expired messages, or pre-blank; zeros are neither."""
    blank = np.frombuffer(pre_blank_bytes(2), CQ_UNIT)
    for before in (units(8, 9, first=500), blank):
        write(tmp_path, joined(before, units(10, 11)), start=8)
        assert found(compared(tmp_path, rows(10, 11))) == []
    write(tmp_path, joined(np.zeros(2, CQ_UNIT), units(10, 11)), start=8)
    assert found(compared(tmp_path, rows(10, 11))) == [("unfilled", 8, 10, 0)]


def test_an_entry_behind_the_logs_end_does_not_take_the_place_of_a_lost_message(tmp_path: Path) -> None:
    stored = units(*range(4))
    stored["physical_offset"][2] = LOG_STOP
    write(tmp_path, stored)
    part = rows(0, 1, 3)
    part["physical"][2] = 1300
    assert found(compared(tmp_path, part)) == [("unfilled", 2, 3, 0)]


def test_the_first_of_two_messages_with_one_queue_offset_counts(tmp_path: Path) -> None:
    parts = rows(0, 1, 2, 3), rows(1, 2, first=5000)
    stored = units(*range(4))
    write(tmp_path, stored)
    queue = compared(tmp_path, *parts)
    assert (found(queue), queue.seen.claims.repeated, queue.equal) == ([], 2, 4)
    stored[1:3] = units(1, 2, first=5000)
    write(tmp_path, stored)  # without a log nothing shows that these entries lead to such messages, too
    assert found(compared(tmp_path, *parts)) == [("wrong", 1, 3, 2)]


def test_a_queue_that_begins_again_loses_what_it_had(tmp_path: Path) -> None:
    write(tmp_path, units(0, 1, first=5000))
    queue = compared(tmp_path, rows(*range(6)), rows(0, 1, 2, first=5000), broker_start=5100)
    assert queue.differences == [Difference("missing", 2, 3, 1, 1, 5200)]
    assert (queue.equal, queue.begin, queue.by_broker, queue.places.entries) == (2, 5000, 2, 3)


def test_units_of_batches_are_found_by_their_base_offset(tmp_path: Path) -> None:
    part = rows(0, 5, 10, 15, batch_size=5)
    stored = pack_entries(part, batch=True)
    stored["size"][1] = 99
    stored[3:] = 0
    write(tmp_path, stored, is_batch=True)
    queue = compared(tmp_path, part, is_batch=True)
    assert found(queue) == [("wrong", 5, 10, 1), ("missing", 15, 20, 1)]
    assert (queue.equal, queue.places.stop, queue.places.max_offset) == (2, 4, 20)


def test_a_queue_without_files_or_with_other_files_has_no_differences(tmp_path: Path) -> None:
    queue = compared(tmp_path, rows(0, 1), broker_start=1100)
    assert (queue.differences, queue.equal, queue.by_broker, queue.is_comparable) == ([], 0, 1, False)
    write(tmp_path, units(0, 1))
    (tmp_path / "consumequeue/T/0" / "0".zfill(20)).write_bytes(bytes(30))
    queue = compared(tmp_path, rows(0, 1))
    assert (queue.differences, queue.is_comparable) == ([], False)
    assert queue.stored.misfit == "expected files of 160 bytes, found other sizes or names"


def test_files_that_are_deleted_meanwhile_are_an_error(tmp_path: Path) -> None:
    write(tmp_path, units(0, 1))
    stored = StoredQueue.list_in(Opened(str(tmp_path)), ("T", 0), PER_FILE * 20, is_batch=False)
    (tmp_path / "consumequeue/T/0" / "0".zfill(20)).unlink()
    comparison = QueueComparison(lambda _: stored, log_stop=LOG_STOP)
    comparison.add([("T", 0)], rows(0, 1))
    assert "no longer exists" in str(comparison.queues["T", 0].error)


def test_offsets_too_far_apart_are_a_problem_and_impossible_ones_are_counted(tmp_path: Path) -> None:
    queue = compared(tmp_path, rows(0, 1 << 20))
    assert queue.places.problem is not None
    assert "offset 1048576 at physical offset 1100" in queue.places.problem[1]
    comparison = QueueComparison(lambda _: None)
    comparison.add([("..", 0), ("T", -1), ("T", 0)], rows(0))
    assert (comparison.misplaced, comparison.queues) == (1, {})
    queue = compared(tmp_path, rows(1 << 60))
    assert (queue.places.misplaced, queue.places.entries) == (1, 0)


def test_an_offset_too_far_away_before_a_queue_begins_again_is_no_problem(tmp_path: Path) -> None:
    """No recovery changes anything for a message of a deleted topic."""
    write(tmp_path, units(0, 1, first=5000))
    queue = compared(tmp_path, rows(0, 1, 1 << 20), rows(0, 1, first=5000))
    assert (queue.places.problem, queue.places.misplaced, found(queue)) == (None, 1, [])


def test_places_are_given_out_after_they_were_compared(tmp_path: Path) -> None:
    """In order, None where the queue begins again."""
    seen: list[tuple[int, int, bool, int] | None] = []

    def on_placed(queue: ComparedQueue, placed: PlacedUnits | None) -> None:
        if placed is None:
            seen.append(None)
        else:
            seen.append((placed.start, len(placed.units), placed.has_messages, len(queue.differences)))

    write(tmp_path, units(0, 1))
    comparison = QueueComparison(
        lambda key: StoredQueue.list_in(Opened(str(tmp_path)), key, PER_FILE * 20, is_batch=False),
        on_placed=on_placed,
    )
    comparison.add([("T", 0)], np.concatenate([rows(0, 1, 3), rows(0, 1, first=5000)]))
    assert seen == [(0, 2, True, 0), (2, 1, False, 1), (3, 1, True, 2), None, (0, 2, True, 1)]


def test_memory_is_bounded_where_every_second_unit_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "_DIFFERENCES_MAX", 4)
    stored = units(*range(24))
    stored["size"][::2] += 1
    write(tmp_path, stored)
    queue = compared(tmp_path, rows(*range(24)))
    assert len(queue.differences) <= 5
    assert sum(each.entries for each in queue.differences) == 12
    assert (queue.differences[0].first, queue.differences[-1].stop) == (0, 23)


def test_messages_of_an_earlier_life_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, units(0, 1, 2, first=5000))
    queue = compared(tmp_path, rows(*range(6)), rows(0, 1, 2, first=5000))
    assert queue.right_within(0, 3) == 3


def test_a_wrong_entry_makes_the_queue_be_read_again(tmp_path: Path) -> None:
    stored = units(*range(4))
    stored["size"][3] += 1
    write(tmp_path, stored)
    queue = compared(tmp_path, rows(*range(4)))
    assert (queue.right_within(0, 3), queue.right_within(0, 4)) == (3, None)
    assert queue.right_within(0, 5) is None  # no message has the offset 4


# ---- what other files know about the end of a consume queue ------------------------------------------------


@pytest.fixture
def root(root: Path) -> Path:
    """Topics T, with 5 messages, and V, to which a second commit added the 3rd message of 3."""
    append(root, numbered("T", 0, 5, queues=1) + numbered("V", 0, 2, queues=1))
    append(root, numbered("V", 2, 1, queues=1))
    return root


def _ends(found: dict[tuple[str, int], KnownEnd]) -> dict[tuple[str, int], int]:
    return {key: end.offset for key, end in found.items()}


def test_the_ledger_knows_the_ends_of_the_last_commits(root: Path) -> None:
    log = Store.open(str(root)).log
    assert Fates(Opened(str(root)), log).last_commit_ends() == {("T", 0): 5, ("V", 0): 3}
    assert "ledger.json ends V-0 at offset 3" in Fates(Opened(str(root)), log).known_ends()["V", 0].evidence
    Path(Ledger.path(Opened(str(root)))).write_text("{}")
    assert Fates(Opened(str(root)), log).last_commit_ends() == {}


def test_a_broker_may_have_written_to_queues_of_earlier_commits(root: Path) -> None:
    ledger = Ledger.read(Opened(str(root)))
    assert ledger.last is not None
    next_to_it, later = (replace(ledger.last, start=ledger.last.stop + size) for size in (0, 100))
    assert ledger.with_entry(None, next_to_it, {("V", 0): 4}).ends == {("T", 0): 5, ("V", 0): 4}
    assert ledger.with_entry(None, later, {("V", 0): 5}).ends == {("V", 0): 5}


def test_a_commit_that_was_cut_shows_nothing(root: Path) -> None:
    last = json.loads(Path(Ledger.path(Opened(str(root)))).read_text())["last"]
    overwrite(root / "commitlog/00000000000000000000", last["last_offset"], bytes(last["last_size"]))
    assert Fates(Opened(str(root)), Store.open(str(root)).log).last_commit_ends() == {}


def test_groups_have_committed_in_topics_that_are_not_deleted(root: Path) -> None:
    table = {"T@g": {"0": 4}, "T@h": {"0": 7, "1": 0}, "V@g": {"0": 1}, "Deleted@g": {"0": 9}}
    table[f"T@{REVIVE_GROUP}"] = {"0": 99}
    path = root / "config/consumerOffset.json"
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    path.write_text(json.dumps({"offsetTable": table}))
    fates = Fates(Opened(str(root)), Store.open(str(root)).log)
    assert fates.committed_ends() == {}  # of a 4.9 broker, which keeps those of deleted topics
    path.write_text(json.dumps({"offsetTable": table, "dataVersion": version}))
    assert _ends(fates.committed_ends()) == {("T", 0): 7, ("V", 0): 1}
    assert "group h has committed offset 7 of T-0" in fates.committed_ends()["T", 0].evidence
    assert _ends(fates.known_ends()) == {("T", 0): 7, ("V", 0): 3}
