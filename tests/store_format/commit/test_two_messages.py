"""Two messages with one queue offset, as brokers have stored them: every answer is the broker's, and nothing
exchanges an entry.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.message import sysflag
from store_format.message.single import head_offset
from tests.support import oracle
from tests.support.reads import flip
from tests.support.referee.made import made
from tests.support.two_messages import LIGHT, PAIRS, QUEUE_FILE_SIZE, body, make_store
from tests.support.writes import SMALL, numbered_rows, write


def bodies(root: Path, topic: str) -> list[tuple[int, bytes]]:
    table = (
        MessageStore.open(str(root), unfiled_queues="read")
        .queue(topic, 0)
        .to_table(columns=["queueOffset", "body"])
    )
    return list(zip(*(table.column(name).to_pylist() for name in ("queueOffset", "body")), strict=True))


def queue_bytes(root: Path, topic: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / "consumequeue" / topic / "0").iterdir()))


@pytest.mark.parametrize("light", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_the_queue_stays_as_the_broker_filed_it(tmp_path: Path, name: str, light: bool) -> None:
    offsets, entries = PAIRS[name]
    root = make_store(tmp_path / "store", offsets, entries, light=light)
    topic = LIGHT if light else "T"
    served = [(offset, body(number)) for offset, number in enumerate(entries)]
    assert bodies(root, topic) == served
    problems, left = diagnose(str(root)), len(offsets) - len(entries)
    where = "not in a light queue that they name" if light else "in no queue"
    assert not problems.of("damage")
    assert (
        f"{left} message{'s are' if left > 1 else ' is'} {where}: the broker filed another"
        in problems.verdict
    )
    assert problems.verdict.startswith("sound")
    assert "none lost" not in problems.verdict
    assert problems.summary.readable == len(offsets) if light else len(entries)
    before = queue_bytes(root, topic)
    recover(str(root)).apply()
    assert queue_bytes(root, topic) == before
    copy = Path(shutil.copytree(root, tmp_path / "lost"))
    shutil.rmtree(copy / "consumequeue" / topic)
    (copy / "consumequeue" / "O" / "0").mkdir(parents=True)  # shows the size of the files
    (copy / "consumequeue" / "O" / "0" / f"{0:020}").write_bytes(bytes(QUEUE_FILE_SIZE))
    assert bodies(copy, topic) == served
    recover(str(copy), topics=[topic], rebuild_index=False).apply()
    assert queue_bytes(copy, topic)[: 20 * len(entries)] == before[: 20 * len(entries)]
    write(root, numbered_rows(100, 101), key=None, **SMALL)
    after = queue_bytes(root, topic)
    assert after[: 20 * len(entries)] == before[: 20 * len(entries)]


@pytest.mark.parametrize("light", [False, True])
def test_an_entry_that_leads_to_a_record_with_a_wrong_physical_offset_stays(
    tmp_path: Path, light: bool
) -> None:
    """A broker hands out the record, whose physical offset it does not compare, and not the second one."""
    root, topic = (
        make_store(tmp_path / "store", [0, 1, 1, 2], [0, 1, 3], light=light),
        LIGHT if light else "T",
    )
    before = queue_bytes(root, topic)
    flip(root, int.from_bytes(before[20:28]) + head_offset("physical_offset"))
    recover(str(root)).apply()
    assert queue_bytes(root, topic) == before


def test_a_broker_that_starts_files_only_the_second(tmp_path: Path) -> None:
    """The last three messages have no entry. A 5.5 broker leaves out the first of them, which begins where
    the last message with an entry ends (CommitLog.recoverNormally), so that it serves the second at its
    offset.
    """
    root = make_store(tmp_path / "store", [0, 1, 2, 3, 4, 4, 5], [0, 1, 2, 3])
    (root / "checkpoint").write_bytes(oracle.checkpoint(1_790_000_000_006, 1_790_000_000_006))
    served = [(offset, body(number)) for offset, number in enumerate([0, 1, 2, 3, 5, 6])]
    assert bodies(root, "T") == served
    problems = diagnose(str(root))
    assert not problems.of("damage")
    assert problems.summary.readable == 6
    written = Path(shutil.copytree(root, tmp_path / "written"))
    write(written, numbered_rows(100, 101), key=None, **SMALL)
    assert bodies(written, "T")[:6] == served
    recover(str(root)).apply()
    assert bodies(root, "T") == served


@pytest.mark.parametrize(("offset", "sys_flag"), [(0, 0), (5, sysflag.TRANSACTION_PREPARED)])
def test_messages_without_entries_before_one_that_needs_none(
    tmp_path: Path, offset: int, sys_flag: int
) -> None:
    """The last message of the log has no entry, and shows nothing of those before it."""
    store = made(tmp_path / "store", "A A A? A?")
    store.put("A", offset=offset, files=False, sys_flag=sys_flag)
    found = MessageStore.open(str(store.write())).queue("A", 0).to_table(columns=["physicalOffset"])
    assert found["physicalOffset"].to_pylist() == [each.physical_offset for each in store.messages[:4]]


@pytest.mark.parametrize("last", ["A@6?", "A@6"])
def test_entries_of_messages_that_claim_another_place_stop_no_read(tmp_path: Path, last: str) -> None:
    """A broker filed the second message with offset 0 as the next one, and the last one with a smaller offset
    than it claims.
    """
    root = made(tmp_path / "store", f"A*3 A@0 A@1 {last}", queue_entries=4).write()
    recovered = Path(shutil.copytree(root, tmp_path / "recovered"))
    recover(str(recovered)).apply()
    write(root, numbered_rows(0, 1, "New"))
    for changed in (root, recovered):
        assert [offset for offset, _ in bodies(changed, "A")] == [0, 1, 2, 6]
        assert not diagnose(str(changed)).of("damage")


def test_a_write_to_another_queue_hides_no_messages_without_entries(tmp_path: Path) -> None:
    """Its message is behind the last one of the log, which alone showed that entries are missing."""
    root = made(tmp_path / "store", "A A A? A? A@0?").write()
    served = bodies(root, "A")
    write(root, numbered_rows(0, 1, "New"))
    assert bodies(root, "A") == served
    assert len(served) == 4


def test_a_write_to_their_queue_completes_another_one(tmp_path: Path) -> None:
    """Two messages at the end of the log need no entry, and show that entries before them are missing. A
    write puts messages behind them.
    """
    root = made(tmp_path / "store", "B B? A*3 A@1? A@2?").write()
    served = bodies(root, "B")
    write(root, numbered_rows(0, 1, "A"))
    assert bodies(root, "B") == served
    assert len(served) == 2
