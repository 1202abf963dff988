"""Streams over stores whose files change as no broker changes them, as copies that are refreshed in place."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.errors import OffsetOutOfRangeError
from store_format.follow import follower as follower_module
from tests.rmq_spark.stream.test_positions import Place, Stream, expected
from tests.support.staged import append, deleted_topic, make_store, messages_of, numbered


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Topic T, four queues of 2 messages; a file of its log holds about 70 messages."""
    root = make_store(tmp_path / "source")
    append(root, numbered("T", 0, 8))
    return root


def mirror(
    source: Path,
    target: Path,
    folders: tuple[str, ...] = ("commitlog", "consumequeue", "config"),
    *,
    log_stop: int = 1 << 60,
) -> None:
    """What `rsync --inplace` does: existing files get other bytes, and stay the same files. Of the log only
    what is before `log_stop`.
    """
    for path in sorted(path for folder in folders for path in (source / folder).rglob("*") if path.is_file()):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if path.parent.name == "commitlog":
            data = data[: max(log_stop - int(path.name), 0)].ljust(len(data), b"\0")
        with copy.open("r+b" if copy.exists() else "wb") as file:
            file.write(data)


@pytest.fixture
def crashed(source: Path, tmp_path: Path) -> Path:
    """Its copy as a reader sees it that cannot see the broker's lock: `abort` is there, and nobody holds the
    lock.
    """
    root = tmp_path / "crashed"
    mirror(source, root)
    (root / "abort").write_text("")
    shutil.copyfile(source / "checkpoint", root / "checkpoint")
    assert MessageStore.open(str(root)).state == "crashed"
    return root


def batch(root: Path, **options: Any) -> list[Place]:
    return Stream(root, **options).step() or []


# ---- a lock that cannot be seen ----------------------------------------------------------------------------


def test_a_store_that_looks_crashed_and_grows_is_followed(
    source: Path, crashed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = Stream(crashed)
    seen = stream.step() or []
    assert len(seen) == 8
    for first, stop in ((8, 28), (28, 68), (68, 128), (128, 188)):
        assert stream.step() is None
        append(source, numbered("T", first, stop - first))
        mirror(source, crashed)
        seen += stream.step() or []
        assert sorted(seen) == batch(crashed)
    assert sorted(seen) == expected("T", *[(0, 47)] * 4)
    (said,) = caplog.messages
    assert "grows although it looks crashed" in said


@pytest.mark.parametrize("order", [("commitlog", "consumequeue"), ("consumequeue", "commitlog")])
def test_whichever_of_log_and_queues_comes_first(source: Path, crashed: Path, order: tuple[str, str]) -> None:
    stream = Stream(crashed)
    seen = stream.step() or []
    for first in (8, 88):
        append(source, numbered("T", first, 80))
        for folder in order:
            mirror(source, crashed, (folder,))
            seen += stream.step() or []
    assert sorted(seen) == expected("T", *[(0, 42)] * 4)


@pytest.mark.parametrize("has_queues", [True, False])
@pytest.mark.parametrize("has_abort", [True, False])
def test_a_torn_tail_that_becomes_whole_is_read_once(
    source: Path, crashed: Path, has_queues: bool, has_abort: bool
) -> None:
    if not has_abort:
        (crashed / "abort").unlink()
    if not has_queues:
        shutil.rmtree(crashed / "consumequeue")
    stream = Stream(crashed)
    seen = stream.step() or []
    append(source, numbered("T", 8, 2, body_size=400))
    first, second = messages_of(source)[-2:]
    mirror(
        source, crashed, ("commitlog", "consumequeue")[: 1 + has_queues], log_stop=first.physical_offset + 200
    )
    assert stream.step() is None
    mirror(source, crashed, ("commitlog",), log_stop=first.physical_offset + 300)
    assert stream.step() is None
    mirror(source, crashed, ("commitlog",), log_stop=second.physical_offset + 300)
    seen += stream.step() or []
    assert len(seen) == 9
    mirror(source, crashed, ("commitlog",))
    seen += stream.step() or []
    assert sorted(seen) == expected("T", (0, 3), (0, 3), (0, 2), (0, 2))
    assert stream.step() is None


def test_old_bytes_behind_a_crash_do_not_make_it_look_at_everything_each_time(
    source: Path, crashed: Path
) -> None:
    append(source, numbered("T", 8, 1, body_size=400))
    mirror(source, crashed, log_stop=messages_of(source)[-1].physical_offset + 200)
    time.sleep(0.06)  # directories count once they are older than a tick of the clock
    stream = Stream(crashed)
    stream.step()
    (follower,) = stream.stores.followers
    looked: list[Any] = []
    follower._look_anew = lambda *given: bool(looked.append(given))  # type: ignore[method-assign, func-returns-value] # counts
    assert [stream.step() for _ in range(20)] == [None] * 20
    assert looked == []


# ---- files put back in place -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["rewritten", "replaced"])
@pytest.mark.parametrize("stop", [512, 530])  # noticed at once, and only when the store has grown
@pytest.mark.parametrize("fails", [True, False])
def test_files_put_back_in_place_are_a_loss(
    tmp_path: Path, how: str, stop: int, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """20 messages read; the files become those of a store of others, of equal sizes."""
    root, other = make_store(tmp_path / "store"), make_store(tmp_path / "other")
    append(root, numbered("T", 0, 20))
    append(other, numbered("T", 500, stop - 500))
    stream = Stream(root, failOnDataLoss=fails)
    assert len(stream.step() or []) == 20
    if how == "replaced":
        for path in [*root.glob("commitlog/*"), *root.glob("consumequeue/*/*/*")]:
            path.unlink()
    mirror(other, root)
    if fails:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            stream.step()
        assert str(caught.value).startswith(
            "T-0 of broker-a: the next offset is 5 and the queue holds 0 to 3: its offsets went back by 2"
            if stop == 512
            else "T-0 of broker-a: the next offset is 5 and the queue holds 0 to 8, but other messages than "
            "at the last look: the store's files were replaced, or a broker overwrote them after a crash; "
            "the messages 0 to 5 are not read (and 3 more queues; in all, 20 messages of 4 queues are lost); "
            "start with a new checkpoint, or set failOnDataLoss=false to continue at offset 5"
        )
        return
    assert stream.step() == (expected("T", (5, 8), (5, 8), (5, 7), (5, 7)) if stop == 530 else [])
    if stop == 530:
        *parts, whole = caplog.messages
        assert sum(int(message.split()[0]) for message in parts) == 20
        assert whole == "in all, 20 messages of 4 queues are lost"
    assert stream.step() is None


def test_an_older_copy_of_the_same_store_that_grew_otherwise(root: Path, tmp_path: Path) -> None:
    """Queues whose messages are all in the part that is the same go on."""
    append(root, numbered("Quiet", 0, 4))
    older = Path(shutil.copytree(root, tmp_path / "older"))
    stream = Stream(root, failOnDataLoss=False)
    assert len(stream.step() or []) == 4
    append(root, numbered("T", 0, 8))
    assert len(stream.step() or []) == 8
    append(older, numbered("T", 100, 12) + numbered("Quiet", 4, 1))
    mirror(older, root)
    assert stream.step() == sorted([("Quiet", 0, 1), *expected("T", *[(2, 3)] * 4)])


# ---- a topic deleted and created again ---------------------------------------------------------------------


def test_a_topic_created_again_is_kept_in_mind_until_a_batch_is_made(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(root, numbered("Other", 0, 1) + numbered("T", 0, 20, queues=1))
    stream = Stream(root, subscribe="T", failOnDataLoss=False, minOffsetsPerTrigger=20, maxTriggerDelay="1h")
    assert stream.step() == expected("T", (0, 20))
    deleted_topic(root, "T")
    for first in (0, 8):
        append(root, numbered("T", 100 + first, 8, queues=1))
        assert stream.step() is None
    append(root, numbered("T", 116, 8, queues=1))
    assert stream.step() == expected("T", (0, 24))
    assert ["created again" in message for message in caplog.messages] == [True]


def test_a_new_stream_begins_where_the_topic_ends_that_was_created_last(tmp_path: Path) -> None:
    """Where RocksDB keeps the queues, the commitlog is scanned, which still has the messages of the deleted
    one, and those had higher offsets.
    """
    source, root = make_store(tmp_path / "store"), tmp_path / "scanned"
    (root / "consumequeue_rocksdb").mkdir(parents=True)
    (root / "consumequeue_rocksdb/CURRENT").touch()
    append(source, numbered("Other", 0, 1) + numbered("T", 0, 20, queues=1))
    deleted_topic(source, "T")
    append(source, numbered("T", 100, 8, queues=1))
    mirror(source, root, ("commitlog", "config"))
    stream = Stream(root, subscribe="T")
    assert stream.step() == expected("T", (0, 8)) == batch(root, subscribe="T")
    append(source, numbered("T", 108, 24, queues=1))
    mirror(source, root, ("commitlog", "config"))
    assert stream.step() == expected("T", (8, 32))


# ---- a broker whose consume queues are behind its log ------------------------------------------------------


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Copies of one store that has 5 messages of T-0, then 6 of T-1, of which 0, 1, 3 and 6 are dispatched;
    `live` is the first of them.
    """
    monkeypatch.setattr(
        "store_format.files.lock.StoreLock.holder", lambda path: 4711 if "/live" in path else None
    )
    root = make_store(tmp_path / "source")
    append(root, numbered("T", 0, 5, queues=1))
    made = []
    for first, count in ((0, 0), (0, 1), (1, 2), (3, 3)):
        if count:
            append(root, [replace(message, queue_id=1) for message in numbered("T", 10 + first, count)])
        made.append(Path(shutil.copytree(root, tmp_path / f"stage{first + count}")))
    for stage in made:
        mirror(root, stage, ("commitlog",))
    shutil.copytree(made[0], tmp_path / "live")
    return made


@pytest.mark.parametrize("fails", [True, False])
def test_messages_that_a_broker_has_not_dispatched_yet_wait(
    stages: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: bool
) -> None:
    live = tmp_path / "live"
    stream = Stream(live, failOnDataLoss=fails)
    assert stream.step() == expected("T", (0, 5))
    assert batch(live) == expected("T", (0, 5))
    seen = []
    for stage in stages:
        mirror(stage, live, ("consumequeue",))
        seen += stream.step() or []
        assert sorted(expected("T", (0, 5)) + seen) == batch(live)
    assert seen == [("T", 1, offset) for offset in range(6)]
    assert caplog.messages == []


@pytest.mark.parametrize("state", ["live", "crashed"])
def test_queues_that_a_broker_makes_again_give_each_message_once(
    stages: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    state: str,
) -> None:
    """A stream that has scanned the commitlog waits where the queues are still shorter than that."""
    monkeypatch.setattr(follower_module, "_CATCHING_UP_NS", 0)
    root = (tmp_path / "live").rename(tmp_path / state)
    if state == "crashed":
        (root / "abort").touch()
    shutil.rmtree(root / "consumequeue")
    stream = Stream(root)
    assert stream.step() == expected("T", (0, 5), (0, 6))
    for stage in stages:
        mirror(stage, root, ("consumequeue",))
        assert stream.step() is None
    append(tmp_path / "source", numbered("T", 20, 3, queues=2))
    mirror(tmp_path / "source", root, ("commitlog", "consumequeue"))
    assert stream.step() == expected("T", (5, 7), (6, 7))
    assert stream.step() is None
    assert "lost:" not in caplog.text
