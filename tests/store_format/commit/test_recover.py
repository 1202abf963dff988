"""Recovery of stores that real brokers wrote: what they lost comes back byte for byte."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from store_format import kernels
from store_format.bookkeeping.ledger import GivenUp, Ledger
from store_format.commit.log_comparison import RecoverOptions
from store_format.commit.recover import RecoverPlan, recover
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.updates import pre_blank_bytes
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError, OptionError, StoreInUseError, UnsupportedFormatError
from store_format.files.lock import StoreLock
from store_format.files.read import FileCache
from store_format.index.file import open_index_files
from store_format.layouts import CQ_UNIT
from store_format.message.encode import MessageColumns
from store_format.opened.store import Opened
from store_format.store import MessageStore
from store_format.survey.scan import LogScan
from tests.store_format.read.test_readable_end import overwrite
from tests.support import goldens
from tests.support.fixtures import Golden, Unchanged
from tests.support.referee.cases import expired_queue
from tests.support.referee.world import SETTINGS, empty_world, new_world
from tests.support.staged import append, make_store, numbered, settings_from
from tests.support.stored_rows import rows_in

FOLDERS = ("consumequeue", "batchconsumequeue", "index")
CLEAN = (
    "basic-4.9.7", "basic-5.5.0", "batchcq-5.5.0", "delay-tx-5.5.0", "edge-5.5.0", "pop-5.5.0",
    "propcrc-5.5.0", "retry-dlq-5.5.0",
)  # fmt: skip


def _options(name: str) -> RecoverOptions:
    config = goldens.config(name)
    batch = int(config.get("mapperFileSizeBatchConsumeQueue", 13_800_000))
    return RecoverOptions(settings=settings_from(config, "broker"), batch_queue_file_size=batch)


def _plan(name: str, root: Path, **changes: object) -> RecoverPlan:
    return RecoverPlan(Opened(str(root)), replace(_options(name), **changes), "broker")  # type: ignore[arg-type] # fields


def _queues(root: Path) -> dict[str, bytes]:
    paths = [path for folder in FOLDERS[:2] for path in sorted((root / folder).rglob("*"))]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths if path.is_file()}


def _index(root: Path) -> list[tuple[bytes, bytes]]:
    """The units and slots of each index file: all but names and header times."""
    files = open_index_files(str(root / "index"))
    return [(file.units().tobytes(), file.slots().tobytes()) for file in files]


def _changes(plan: RecoverPlan) -> list[tuple[str, str | None, int | None, str]]:
    rows = plan.table().to_pylist()
    return [
        (row["part"], row["topic"], row["queueId"], row["action"]) for row in rows if row["action"] != "end"
    ]


@pytest.fixture
def copied(golden: Golden, tmp_path: Path) -> Golden:
    def copy(name: str) -> Path:
        ignored = shutil.ignore_patterns("timerwheel")  # 38 MB, which a copy writes
        return Path(shutil.copytree(golden(name), tmp_path / name, ignore=ignored))

    return copy


@pytest.mark.parametrize("name", CLEAN)
def test_all_queues_and_the_index_come_back_byte_for_byte(copied: Golden, golden: Golden, name: str) -> None:
    assert _changes(_plan(name, golden(name))) == []
    root = copied(name)
    for folder in FOLDERS:
        shutil.rmtree(root / folder, ignore_errors=True)
    plan = _plan(name, root)
    assert {row["action"] for row in plan.table().to_pylist()} == {"end", "create", "rebuild"}
    assert not (root / "consumequeue").exists()  # the table is a preview
    plan.apply()
    assert _queues(root) == _queues(golden(name))
    assert _index(root) == _index(golden(name))
    assert _changes(_plan(name, root)) == []


def test_a_lost_index_file_comes_back_with_those_behind_it(copied: Golden, golden: Golden) -> None:
    root = copied("basic-5.5.0")
    sorted((root / "index").iterdir())[4].unlink()
    kept = sorted((root / "index").iterdir())[:4]
    before = [path.stat().st_mtime_ns for path in kept]
    plan = recover(str(root), rebuild_queues=False)
    assert _changes(plan) == [("index", None, None, "rebuild")]
    plan.apply()
    assert _index(root) == _index(golden("basic-5.5.0"))
    assert [path.stat().st_mtime_ns for path in kept] == before


@pytest.mark.parametrize("name", ["crash-5.5.0", "crash-torn-5.5.0"])
def test_a_crash_is_recovered_with_lost_queues(copied: Golden, golden: Golden, name: str) -> None:
    whole, root = copied(name), golden(name)
    _plan(name, whole).apply()
    lost = Path(shutil.copytree(root, whole.with_name("lost")))
    for folder in FOLDERS:
        shutil.rmtree(lost / folder, ignore_errors=True)
    _plan(name, lost).apply()
    assert not (lost / "abort").exists()
    assert _queues(lost) == _queues(whole)
    assert _index(lost) == _index(whole)
    ends = {
        (queue.topic, queue.queue_id): queue.max_offset for queue in MessageStore.open(str(lost)).queues()
    }
    answers = goldens.expected(name)["queues"]
    assert {key: ends.get(key, 0) for key in ends} == {
        (each["topic"], each["queueId"]): each["maxOffset"] for each in answers if each["maxOffset"]
    }
    assert _changes(_plan(name, lost)) == []


def test_only_the_chosen_topics_are_rebuilt(copied: Golden, golden: Golden) -> None:
    root = copied("basic-5.5.0")
    for topic in ("Orders", "Metrics"):
        shutil.rmtree(root / "consumequeue" / topic)
    recover(str(root), topics=["Orders"], rebuild_index=False).apply()
    assert (root / "consumequeue/Orders").exists()
    assert not (root / "consumequeue/Metrics").exists()


def test_a_topic_that_may_be_deleted_is_left_until_it_is_named(copied: Golden) -> None:
    root = copied("edge-5.5.0")  # without consumer offsets
    topic = "EdgeProps"
    shutil.rmtree(root / "consumequeue" / topic)
    table = recover(str(root)).table().to_pylist()
    left = [row for row in table if row["topic"] == topic]
    assert {row["action"] for row in left} == {"left"}
    assert "does not show whether the queue was lost" in left[0]["reason"]
    recover(str(root), topics=[topic]).apply()
    assert (root / "consumequeue" / topic).exists()


def test_a_named_topic_is_served_after_one_recovery(copied: Golden) -> None:
    """Its queues have no files, and the .bak in the place of topics.json is older than the topic."""
    root = copied("basic-5.5.0")
    topics = json.loads((root / "config/topics.json").read_text())
    del topics["topicConfigTable"]["Orders"]
    (root / "config/topics.json.bak").write_text(json.dumps(topics))
    (root / "config/topics.json").write_text("{")
    shutil.rmtree(root / "consumequeue/Orders")
    recover(str(root), topics=["Orders"]).apply()
    made = json.loads((root / "config/topics.json").read_text())["topicConfigTable"]
    assert made["Orders"]["readQueueNums"] == 4
    assert made.keys() == {*topics["topicConfigTable"], "Orders"}
    assert diagnose(str(root)).verdict.startswith("sound: 2,010 messages readable, none lost; nothing")


def test_a_changed_store_and_a_store_in_use_are_refused(copied: Golden) -> None:
    root = copied("basic-5.5.0")
    plan = recover(str(root))
    plan.table()
    shutil.rmtree(root / "consumequeue/Orders")
    with pytest.raises(StoreInUseError, match="the store changed since the recovery was planned"):
        plan.apply()
    with StoreLock(str(root)), pytest.raises(StoreInUseError):
        recover(str(root)).apply()


def test_rocksdb_queues_are_refused_with_advice(golden: Golden) -> None:
    with pytest.raises(UnsupportedFormatError, match="commitLogRecoverMaxNum"):
        recover(str(golden("rocksdb-5.5.0")))


def test_threads_find_the_entries_of_one_thread(golden: Golden) -> None:
    scan, log = LogScan(), CommitLog.open([str(golden("edge-5.5.0") / "commitlog")], FileCache())
    kernels.load()  # the plain code has unusual entries in another order
    alone = list(scan.parts(log, 0, log.stop, threads=0))
    together = list(scan.parts(log, 0, log.stop, threads=2))
    assert sum(part.units for part in alone) == goldens.expected("edge-5.5.0")["allCommitLogMessages"]
    for one, other in zip(alone, together, strict=True):
        assert (one.runs, one.stop, one.queues) == (other.runs, other.stop, other.queues)
        assert one.rows.tobytes() == other.rows.tobytes()
        assert one.index is not None
        assert other.index is not None
        assert one.index.key_hashes.tobytes() == other.index.key_hashes.tobytes()


# ---- into a new directory ----------------------------------------------------------------------------------


def _rows(root: Path) -> dict[tuple[str, int, int], int]:
    """Physical offset by topic, queue and queue offset."""
    rows = rows_in(root, "topic", "queueId", "queueOffset", "physicalOffset")
    return {(row["topic"], row["queueId"], row["queueOffset"]): row["physicalOffset"] for row in rows}


@pytest.mark.parametrize("name", ["crash-5.5.0", "propcrc-5.5.0"])
def test_a_copy_keeps_the_messages_behind_damage_with_their_offsets(
    copied: Golden, unchanged: Unchanged, tmp_path: Path, name: str
) -> None:
    root, new = copied(name), tmp_path / "new"
    before = _rows(root)
    lost = sorted(before.values())[len(before) // 3]
    overwrite(root, lost + 40, b"\xff" * 120)
    with unchanged(root):
        with pytest.raises(CorruptStoreError, match="whole messages behind it"):
            recover(str(root), into=str(new)).apply()
        rows = recover(str(root), into=str(new), salvage=True).table().to_pylist()
        (salvaged,) = (row for row in rows if row["action"] == "salvage")
        assert (salvaged["position"], salvaged["entries"]) == (lost, 1)
        assert {row["part"] for row in rows if row["action"] == "copy"} >= {
            "commitlog",
            "config",
            "checkpoint",
        }
        recover(str(root), into=str(new), salvage=True).apply()
    after = _rows(new)
    assert {key: value for key, value in before.items() if key in after} == after
    assert set(before.values()) - set(after.values()) >= {lost}
    assert len(before) - len(after) <= 2  # the damaged messages
    assert [each for each in diagnose(str(new)) if each.severity == "damage"] == []
    assert _changes(_plan(name, new)) == []


def test_a_copy_takes_what_a_broker_needs(golden: Golden, unchanged: Unchanged, tmp_path: Path) -> None:
    source, new = golden("delay-tx-5.5.0"), tmp_path / "new"
    with unchanged(source):
        recover(str(source), into=str(new)).apply()
    assert _queues(new) == _queues(source)
    assert _index(new) == _index(source)
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and name.parts[0] in ("commitlog", "config", "timerlog", "timerwheel"):
            assert (new / name).read_bytes() == path.read_bytes(), name
    assert (new / "timerwheel").stat().st_blocks * 512 < (new / "timerwheel").stat().st_size // 20  # holes
    assert not (new / ".rmqlog/recover-into.json").exists()
    with pytest.raises(OptionError, match="expected a new or empty directory"):
        recover(str(source), into=str(new))


def _break_off(*_: object) -> None:
    """As Ctrl-C does: an error would remove the copy."""
    raise KeyboardInterrupt


def test_a_copy_that_was_broken_off_at_its_very_end_is_made_again(
    copied: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recovery had written another `abort` than the one that was copied."""
    root, new = copied("crash-5.5.0"), tmp_path / "new"

    with monkeypatch.context() as patch:
        patch.setattr("store_format.commit.recover.open_store", _break_off)
        with pytest.raises(KeyboardInterrupt):
            recover(str(root), into=str(new)).apply()
    assert (new / "abort").stat().st_size != (root / "abort").stat().st_size
    recover(str(root), into=str(new)).apply()
    assert _rows(new) == _rows(root)
    assert not (new / "abort").exists()


def test_a_copy_with_an_expired_queue_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's empty file was in its place when the recovery was broken off."""
    world = expired_queue(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("store_format.commit.recover.open_store", _break_off)
        with pytest.raises(KeyboardInterrupt):
            recover(str(world.root), into=str(tmp_path / "new")).apply()
    recover(str(world.root), into=str(tmp_path / "new")).apply()
    assert _rows(tmp_path / "new") == _rows(world.root)
    queue = MessageStore.open(str(tmp_path / "new")).queue("Old", 0)
    assert (queue.min_offset, queue.max_offset) == (60, 60)


def test_an_expired_queue_that_ends_with_a_file_has_this_file(tmp_path: Path) -> None:
    """A broker would count the first zeros of a blank file as an entry, and serve offset 21 next."""
    world, count = empty_world(tmp_path), SETTINGS.mapped_file_size_consume_queue // CQ_UNIT.itemsize
    world.append(numbered("Old", 0, count, queues=1))
    world.append(numbered("Big", 1000, 200, queues=1))
    world.commit_offset("G", "Old", 0, count)
    world.retain(3)
    recover(str(world.root), into=str(tmp_path / "new")).apply()
    files = {path.name: path.read_bytes() for path in (tmp_path / "new/consumequeue/Old/0").iterdir()}
    assert files == {f"{0:020d}": pre_blank_bytes(count)}
    queue = MessageStore.open(str(tmp_path / "new")).queue("Old", 0)
    assert (queue.min_offset, queue.max_offset) == (count, count)


def test_a_copy_takes_the_ledger_of_the_last_flush(tmp_path: Path) -> None:
    """A power loss took the ledger of a later commit with ASYNC_FLUSH."""
    world = new_world(tmp_path)
    world.append(numbered("T", 800, 10, queues=1), sync=False)
    (world.root / ".rmqlog/ledger.json").write_bytes(b"")
    before = Ledger.read(Opened(str(world.root)))
    recover(str(world.root), into=str(tmp_path / "new")).apply()
    assert Ledger.read(Opened(str(tmp_path / "new"))).last == before.last
    assert _rows(tmp_path / "new") == _rows(world.root)


@pytest.mark.parametrize("loses", ["entries", "directory"])
def test_messages_that_only_their_neighbours_show_are_given_up(tmp_path: Path, loses: str) -> None:
    """A recovery fills the places of messages whose entries are lost, and the commitlog file, too."""
    world = new_world(tmp_path)
    world.lose_log_file(world.log_files()[1])
    lost = sorted(each.queue_offset for each in world.truth.lost)
    if loses == "entries":
        world.zero_entries("T", 0, lost[0] - 3, lost[0] + 17)
        unnamed = ("T", 0, lost[0], lost[0] + 17)
    else:
        world.lose(world.root / "consumequeue/T")
        unnamed = ("T", 0, lost[0], lost[-1] + 1)
    root = str(world.root)
    assert diagnose(root).summary.lost_entries == len(lost)
    recover(root).apply()
    assert GivenUp.read(Opened(root)).messages == (unnamed,)
    assert diagnose(root).summary.lost_entries == len(lost) - (unnamed[3] - unnamed[2])


def test_a_copy_follows_a_linked_directory_and_refuses_other_links(copied: Golden, tmp_path: Path) -> None:
    root, new, elsewhere = copied("basic-5.5.0"), tmp_path / "new", tmp_path / "elsewhere"
    (root / "config").rename(elsewhere)
    (root / "config").symlink_to(elsewhere)
    recover(str(root), into=str(new)).apply()
    assert not (new / "config").is_symlink()
    copies = {path.name: path.read_bytes() for path in (new / "config").iterdir()}
    assert copies == {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    assert "topics.json" in copies
    shutil.rmtree(root / "compaction", ignore_errors=True)
    for name, target in (("compaction", tmp_path / "missing"), ("timerwheel", elsewhere / "topics.json")):
        (root / name).symlink_to(target)
        with pytest.raises(CorruptStoreError, match=f"{name} at byte 0: .* found a symbolic link"):
            recover(str(root), into=str(tmp_path / "other")).table()
        (root / name).unlink()


@pytest.mark.parametrize("by", ["recover", "copy", "append"])
def test_a_light_queue_whose_name_no_directory_can_have(tmp_path: Path, by: str) -> None:
    """A client chose a name of 305 bytes, and the broker crashed: the other queues come back."""
    root, new = make_store(tmp_path / "store"), tmp_path / "new"
    name = b"%LMQ%" + b"x" * 300
    properties = b"INNER_MULTI_DISPATCH\x01" + name + b"\x02INNER_MULTI_QUEUE_OFFSET\x010\x02"
    message = MessageColumns(
        topic="T",
        body=pa.array([b"a"], pa.binary()),
        properties=pa.array([properties], pa.binary()),
        queue_id=np.zeros(1, np.int64),
    )
    MessageStore.open(str(root)).append(message)
    for path in (root / ".rmqlog").iterdir():
        if path.is_file() and path.name != "store.json":
            path.unlink()
    queue = root / "consumequeue/T/0/00000000000000000000"
    before = queue.read_bytes()
    queue.write_bytes(bytes(len(before)))
    (root / "abort").touch()
    if by == "append":
        append(root, numbered("T", 0, 1))
        assert queue.read_bytes()[:20] == before[:20]
        return
    plan = recover(str(root), into=str(new) if by == "copy" else None)
    left = [row["entries"] for row in plan.table().to_pylist() if row["action"] == "left"]
    assert left == [1]
    plan.apply()
    recovered = new if by == "copy" else root
    assert (recovered / queue.relative_to(root)).read_bytes() == before
    assert [path.name for path in (recovered / "consumequeue").iterdir()] == ["T"]


def test_options_that_do_not_fit_are_refused(copied: Golden, tmp_path: Path) -> None:
    root = copied("batchcq-5.5.0")
    with pytest.raises(OptionError, match="into=DIRECTORY"):
        recover(str(root), salvage=True)
    with pytest.raises(OptionError, match="outside of the store"):
        recover(str(root), into=str(root / "new"))
    with pytest.raises(OptionError, match="a copy has none yet"):
        recover(str(root), into=str(tmp_path / "new"), topics=["Simple"])
