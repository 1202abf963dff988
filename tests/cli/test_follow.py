"""`tail -f` beside a process that writes: every message once, in the order of each queue, and none of it
twice at the seam.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.cli.follow import Tail
from store_format import MessageStore
from store_format.read.choice import MessageChoice
from store_format.read.tolerance import Tolerance
from tests.support.cli_runs import command, environment
from tests.support.live_writer import QUEUES
from tests.support.staged import append, deleted_topic, make_store, numbered
from tests.test_live_store import writer

MESSAGES = 400
_COLUMNS = ("topic", "queueId", "queueOffset")
_Row = tuple[object, ...]


class _Looks:
    """A tail of one store, look by look: between two looks a test changes the store."""

    def __init__(self, root: Path, filters: MessageChoice = MessageChoice()) -> None:  # noqa: B008 # frozen
        self.tail = Tail([MessageStore.open(str(root))], filters, _COLUMNS, Tolerance())
        self.first = _rows(self.tail.last(1000))

    def look(self) -> list[_Row]:
        """The rows of one look, sorted."""
        looks = iter([None])

        def pause() -> None:
            if next(looks, True):
                raise EOFError

        found: list[pa.RecordBatch] = []
        with suppress(EOFError):
            found.extend(self.tail.news(pause))
        return _rows(found)


def _rows(batches: list[pa.RecordBatch]) -> list[_Row]:
    return sorted(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def _queues(start: int, stop: int, topic: str = "T") -> list[_Row]:
    """Rows of the four queues of a topic that have these offsets."""
    return [(topic, queue, offset) for queue in range(4) for offset in range(start, stop)]


def test_a_writer_that_goes_on(root: Path) -> None:
    append(root, numbered("T", 0, 8))
    looks = _Looks(root)
    assert looks.first == _queues(0, 2)
    assert looks.look() == []
    append(root, numbered("T", 8, 4))
    append(root, numbered("New", 0, 4))
    assert looks.look() == [*_queues(0, 1, "New"), *_queues(2, 3)]
    assert looks.look() == []
    append(root, numbered("T", 12, 4))
    assert looks.look() == _queues(3, 4)


def test_the_filters_choose_what_is_followed(root: Path) -> None:
    append(root, numbered("T", 0, 8))
    looks = _Looks(root, MessageChoice(glob="T", queue_ids=(1,), tags=frozenset(("T0",))))
    assert looks.first == []
    append(root, numbered("T", 9, 1) + numbered("Other", 0, 4))  # queue 1, tag T0
    assert looks.look() == [("T", 1, 2)]


def test_replaced_files_are_followed_from_the_position_that_was_reached(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Files put back from a copy have other messages at offsets that were shown already."""
    append(root, numbered("T", 0, 20))
    other = make_store(tmp_path / "other")
    append(other, numbered("T", 500, 28))
    looks = _Looks(root)
    for folder in ("commitlog", "consumequeue"):
        shutil.rmtree(root / folder)
    shutil.copytree(other, root, dirs_exist_ok=True)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        assert looks.look() == _queues(5, 7)
    assert len(caplog.records) == 5  # one for each queue, and the sum
    assert "files were replaced" in caplog.text
    append(root, numbered("T", 600, 4))
    assert looks.look() == _queues(7, 8)


def test_a_cleaned_log_is_followed_from_its_new_beginning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Retention deleted messages that were never shown: the count is reported."""
    append(root, numbered("T", 0, 40))
    looks = _Looks(root)
    for number in range(40, 400, 40):
        append(root, numbered("T", number, 40))
    for path in sorted((root / "commitlog").iterdir())[:3]:
        path.unlink()
    lows = [MessageStore.open(str(root)).queue("T", queue).min_offset for queue in range(4)]
    assert min(lows) > 10
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        assert looks.look() == [("T", queue, at) for queue in range(4) for at in range(lows[queue], 100)]
    counts = [int(record.message.split()[0]) for record in caplog.records if "retention" in record.message]
    assert counts == [low - 10 for low in lows]


@pytest.mark.parametrize("is_seen", [False, True], ids=["between two looks", "a look without it"])
def test_a_topic_that_is_created_again_is_followed_from_its_beginning(root: Path, is_seen: bool) -> None:
    append(root, numbered("T", 0, 20) + numbered("Other", 0, 4))
    looks = _Looks(root)
    deleted_topic(root, "T")
    if is_seen:
        assert looks.look() == []
    append(root, numbered("T", 100, 8))
    assert looks.look() == _queues(0, 2)


@pytest.mark.process
def test_everything_that_is_written_comes_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with writer(root, MESSAGES) as done:
        while not (root / "commitlog").is_dir() or not any((root / "consumequeue").rglob("0*")):
            time.sleep(0.01)
        tail = Tail([MessageStore.open(str(root))], MessageChoice(), _COLUMNS, Tolerance())
        batches = tail.last(5)
        looks_after_the_end = 0

        def pause() -> None:
            nonlocal looks_after_the_end
            looks_after_the_end += done()
            if looks_after_the_end > 2:
                raise EOFError
            time.sleep(0.02)

        with suppress(EOFError):
            batches.extend(tail.news(pause))
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert len(set(rows)) == len(rows)
    for topic, queue in QUEUES:
        offsets = [row[2] for row in rows if row[:2] == (topic, queue)]
        assert offsets == list(range(offsets[0], MESSAGES // len(QUEUES)))


@pytest.mark.process
def test_a_real_tail_follows_until_ctrl_c(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with writer(root, 2000) as _:
        chosen = ("--topic", "Live", "-o", "jsonl", "--columns", "queueId,queueOffset")
        arguments = ("tail", "-f", root, "--interval", "0.05", *chosen)
        with subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            seen = [json.loads(process.stdout.readline()) for _ in range(60)]
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert process.wait(120) == 130
    assert said == b"rmqlog: interrupted\n"
    assert len({tuple(row.values()) for row in seen}) == 60


@pytest.mark.process
def test_a_table_shows_rows_as_they_come(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with (
        writer(root, 1000) as _,
        subprocess.Popen(
            command("tail", "-f", root, "--interval", "0.05", "-n", "3"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process,
    ):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(30)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert lines[0].startswith(b"storeTimestamp")
    assert all(b"Live" in line or b"Other" in line for line in lines[1:])
