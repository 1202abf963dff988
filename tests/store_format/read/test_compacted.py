"""Compacted topics, as a broker's consumer gets them: from `compaction/`, and behind that from the log."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError, FileReplacedError, StoreError
from store_format.layouts import BATCH_CQ_UNIT
from tests.support import goldens
from tests.support.file_edits import edited_json, flip, overwrite
from tests.support.fixtures import Golden
from tests.support.object_server import ObjectServer
from tests.support.reads import Place, read, told_places
from tests.support.staged import append, make_store, numbered

NAME = "compaction-5.5.0"
UNIT = BATCH_CQ_UNIT.itemsize
DAMAGES = 150  # 2,000 were tried once


@pytest.fixture
def root(golden: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden(NAME), tmp_path / "store"))


def _told(*topics: str) -> list[Place]:
    return told_places(row for row in goldens.expected_rows(NAME) if row["topic"] in topics)


def _places(root: Path, *topics: str, compacted: bool = True) -> list[Place]:
    store = MessageStore.open(str(root), compacted=compacted)
    return sorted(
        (queue.topic, queue.queue_id, offset)
        for queue in store.queues(topics.__contains__)
        for offset in queue.to_table(columns=["queueOffset"])["queueOffset"].to_pylist()
    )


def _files(root: Path, folder: str = "*") -> list[Path]:
    return sorted(path for path in (root / "compaction").glob(f"{folder}/*/*/*") if path.is_file())


def _entries(root: Path, topic: str, queue_id: int) -> tuple[Path, int]:
    """The last file of entries, and the number of its entries."""
    path = max((root / "compaction/compactionCq" / topic / str(queue_id)).iterdir())
    data = path.read_bytes()
    return path, next(i for i in range(len(data) // UNIT) if not any(data[i * UNIT :][:UNIT]))


# ---- which messages ----------------------------------------------------------------------------------------


def test_the_log_has_more_than_a_consumer_gets(root: Path) -> None:
    assert _places(root, "Prices", "Stock") == _told("Prices", "Stock")
    of_log = _places(root, "Prices", "Stock", compacted=False)
    assert len(of_log) == 412 > len(_told("Prices", "Stock")) == 110
    assert read(root, subscribe="Prices,Stock", compacted=False).places() == of_log
    assert read(root, subscribe="Prices,Stock").places() == _told("Prices", "Stock")


def test_messages_that_were_not_copied_yet_come_from_the_log(root: Path) -> None:
    path, count = _entries(root, "Prices", 0)
    overwrite(path, (count - 3) * UNIT, bytes(3 * UNIT))
    assert _places(root, "Prices") == _told("Prices")
    assert read(root, subscribe="Prices").places() == _told("Prices")
    offsets = {offset for _, queue_id, offset in _told("Prices") if queue_id == 0}
    table = (
        MessageStore.open(str(root)).queue("Prices", 0).to_table(columns=["queueOffset", "physicalOffset"])
    )
    last = dict(zip(*(table[name].to_pylist() for name in table.schema.names), strict=True))
    of_log = MessageStore.open(str(root), compacted=False).queue("Prices", 0)
    assert last.keys() == offsets
    assert last[118] == of_log.to_table(118, columns=["physicalOffset"])["physicalOffset"][0].as_py()


def test_a_message_without_keys_is_never_served(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    messages = numbered("Prices", 0, 8, queues=1)
    append(root, [each if i % 3 else replace(each, properties_bytes=b"") for i, each in enumerate(messages)])
    with edited_json(root / "config/topics.json") as value:
        value["topicConfigTable"]["Prices"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    (root / "compaction/compactionCq/Prices/0").mkdir(parents=True)
    table = MessageStore.open(str(root), compacted=False).queue("Prices", 0).to_table(columns=["keys"])
    keyed = [i for i, keys in enumerate(table["keys"].to_pylist()) if keys]
    assert [offset for _, _, offset in _places(root, "Prices")] == keyed
    assert keyed == [1, 2, 4, 5, 7]


def test_what_a_taken_back_policy_has_left_is_ignored(root: Path) -> None:
    with edited_json(root / "config/topics.json") as value:
        del value["topicConfigTable"]["Prices"]["attributes"]
    assert _places(root, "Prices") == _places(root, "Prices", compacted=False)


def test_what_a_round_leaves_or_makes_is_ignored(root: Path) -> None:
    for path in _files(root):
        for folder in ("compacting", "replicating"):
            (path.parent / folder).mkdir(exist_ok=True)
            (path.parent / folder / path.name).write_bytes(b"\1" * 92)
        path.with_name(f"{int(path.name) + 1:020d}.delete").write_bytes(b"\1" * 92)
    assert _places(root, "Prices", "Stock") == _told("Prices", "Stock")


def test_kept_messages_outlive_retention(root: Path) -> None:
    """A pull before the first message is served from it; the search by time answers as the broker's does."""
    store = MessageStore.open(str(root))
    times = dict.fromkeys(["Prices", "Stock"], 0)
    begins = {topic: store.queue(topic, 0).offset_at(times[topic]) for topic in times}
    assert begins == {"Prices": 0, "Stock": 0}
    rows = store.queue("Stock", 0).to_table(columns=["storeTimestampMs"])["storeTimestampMs"].to_pylist()
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    store = MessageStore.open(str(root))
    assert (
        store.queue("Stock", 0).offset_at(0)
        == MessageStore.open(str(root), compacted=False).queue("Stock", 0).min_offset
        > 100
    )
    assert _places(root, "Prices", "Stock") == _told("Prices", "Stock")
    since = read(root, subscribe="Stock", startingTimestamp=rows[10], endingTimestamp=rows[20])
    assert [row["storeTimestamp"].timestamp() * 1000 for row in since.rows()] == rows[10:20]
    assert store.find(topic="Stock", since=rows[10], until=rows[20]).table.num_rows == 10
    with edited_json(root / "config/consumerOffset.json") as value:
        value["offsetTable"]["Stock@CG"] = {"0": 3}
    (lag,) = [row for row in store.view("lag", now_ms=0).to_pylist() if row["group"] == "CG"]
    assert (lag["lostMessages"], lag["minOffset"], lag["maxOffset"]) == (0, 72, 202)


def test_a_start_before_the_first_message_is_no_loss(root: Path) -> None:
    starts = json.dumps({"Stock": {"0": 3}})
    assert read(root, subscribe="Stock", startingOffsets=starts).places() == _told("Stock")


def test_views_count_what_is_served(root: Path) -> None:
    rows = {row["topic"]: row for row in MessageStore.open(str(root)).view("topics").to_pylist()}
    assert {topic: rows[topic]["messages"] for topic in ("Plain", "Prices", "Stock")} == {
        "Plain": 188, "Prices": 59, "Stock": 51,
    }  # fmt: skip
    assert rows["Prices"]["cleanupPolicy"] == "COMPACTION"


def test_every_kept_message_is_found_by_its_key_and_its_id(root: Path) -> None:
    told, store = [row for row in goldens.expected_rows(NAME) if row["topic"] == "Stock"], MessageStore.open
    for row in told[::9]:
        key = row["properties"]["KEYS"]
        found = store(str(root)).find(key=key, topic="Stock").table
        assert found["queueOffset"].to_pylist() == [
            each["queueOffset"] for each in told if each["properties"]["KEYS"] == key
        ]
        assert read(root, subscribe="Stock", key=key).places() == told_places(
            each for each in told if each["properties"]["KEYS"] == key
        )
        by_id = store(str(root)).find(message_id=row["msgId"], topic="Stock").table
        assert row["queueOffset"] in by_id["queueOffset"].to_pylist()


def test_a_mark_ends_the_entries_of_a_full_log_file(root: Path) -> None:
    """The one of SparseConsumeQueue.putEndPositionInfo. A round's own files have none."""
    path = min(_files(root, "compactionCq"))
    count = sum(any(path.read_bytes()[at : at + UNIT]) for at in range(0, path.stat().st_size, UNIT))
    mark = (-1).to_bytes(8, signed=True) + bytes(30) + (-1).to_bytes(4, signed=True) + bytes(4)
    assert path != max(path.parent.iterdir())
    assert (count + 1) * UNIT < path.stat().st_size
    overwrite(path, count * UNIT, mark)
    assert _places(root, "Prices") == _told("Prices")
    overwrite(path, (count + 1) * UNIT, mark)
    with pytest.raises(CorruptStoreError, match=f"{path.name} at byte {(count + 1) * UNIT}"):
        _places(root, "Prices")


# ---- streams -----------------------------------------------------------------------------------------------


def test_a_stream_reads_the_log_and_says_so_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = StreamStores(parse_read_options({"path": str(root), "subscribe": "Prices"}, where="stream"))
    for _ in range(2):
        stream.look(anew=True)
    assert [queue.min_offset for queue in stream.queues.values()] == [0, 0]
    (record,) = caplog.records
    assert "compacted topics (cleanup.policy=COMPACTION): Prices: " in record.getMessage()


# ---- rounds of the broker ----------------------------------------------------------------------------------


def test_a_file_that_a_round_has_replaced_is_noticed(root: Path) -> None:
    planned = read(root, subscribe="Prices")
    assert planned.splits
    queue = MessageStore.open(str(root)).queue("Prices", 0)
    for path in _files(root):
        made = shutil.copy(path, path.with_name("new"))
        path.rename(path.with_name(f"{path.name}.delete"))
        Path(made).rename(path)
    with pytest.raises(FileReplacedError, match="another file took this name"):
        planned.rows()
    with pytest.raises(FileReplacedError):
        queue.to_table()
    assert read(root, subscribe="Prices").places() == _told("Prices")


def test_a_file_that_a_round_has_removed_is_noticed(root: Path) -> None:
    planned = read(root, subscribe="Stock")
    assert planned.splits
    for path in _files(root, "compactionLog"):
        path.unlink()
    with pytest.raises(FileReplacedError):
        planned.rows()


def test_files_that_a_round_moves_are_looked_at_again(root: Path) -> None:
    """First it moves the log files out of `compacting`, then the files of entries."""
    path = min(_files(root, "compactionCq"))
    unmoved = path.parent / "compacting" / path.name
    unmoved.parent.mkdir(exist_ok=True)
    path.rename(unmoved)
    with pytest.raises(CorruptStoreError, match=f"compacting/{path.name}.* whose log file a round"):
        _places(root, "Prices")
    (root / "abort").touch()  # a broker is at work, or was killed
    round_goes_on = threading.Timer(0.05, unmoved.rename, [path])
    round_goes_on.start()
    assert _places(root, "Prices") == _told("Prices")
    round_goes_on.join()


# ---- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harm", "where"),
    [
        (lambda path: overwrite(path, 28, (10**6).to_bytes(8)), "compactionCq/Stock/0/"),
        (lambda path: overwrite(path, 2 * UNIT, bytes(UNIT)), "compactionCq/Stock/0/"),
        (lambda path: overwrite(path, 0, (2**40).to_bytes(8)), "compactionCq/Stock/0/"),
        (lambda path: os.truncate(path, 5 * UNIT), "compactionCq/Stock/0/"),
    ],
)
def test_entries_that_do_not_fit_are_refused(root: Path, harm: Callable[[Path], object], where: str) -> None:
    path = min((root / "compaction/compactionCq/Stock/0").iterdir())
    harm(path)
    with pytest.raises(CorruptStoreError) as caught:
        _places(root, "Stock")
    assert where in caught.value.file
    with pytest.raises(CorruptStoreError):
        read(root, subscribe="Stock").rows()
    assert _places(root, "Prices") == _told("Prices")  # other queues are read
    assert {row["topic"] for row in MessageStore.open(str(root)).view("topics").to_pylist()} >= {"Stock"}
    found = [problem for problem in diagnose(str(root)) if problem.severity == "damage"]
    assert [where in problem.file for problem in found] == [True]


def test_verify_reads_the_messages(root: Path) -> None:
    assert [problem.severity for problem in diagnose(str(root))] == ["info"]
    path = root / f"compaction/compactionLog/Prices/1/{0:020d}"
    flip(path, 88)  # the first byte of a body
    (problem,) = [problem for problem in diagnose(str(root)) if problem.severity == "damage"]
    assert problem.file == str(path)


def damaged(path: Path, chance: random.Random) -> Path:
    """Flips a bit, writes bytes, or cuts a file."""
    size = path.stat().st_size
    match chance.randrange(3):
        case 0:
            flip(path, chance.randrange(min(size, 4000)), 1 << chance.randrange(8))
        case 1:
            overwrite(path, chance.randrange(min(size, 4000)), chance.randbytes(chance.randrange(1, 40)))
        case _:
            os.truncate(path, chance.randrange(size))
    return path


def test_hostile_files_give_an_error_or_the_right_rows(golden: Golden, tmp_path: Path) -> None:
    chance, whole, rows = random.Random(23), golden(NAME), 0
    columns = ["topic", "queueId", "queueOffset", "body"]  # no checksum covers properties

    def bodies(root: Path) -> dict[Place, object]:
        found = {}
        for queue in MessageStore.open(str(root)).queues("Stock".__eq__):
            for row in queue.to_table(columns=columns).to_pylist():
                found[row["topic"], row["queueId"], row["queueOffset"]] = row
        return found

    told, root = bodies(whole), tmp_path / "store"
    shutil.copytree(whole, root, ignore=shutil.ignore_patterns("rocksdbstore", "timerwheel"))
    files = [path for path in _files(root) if "Stock" in path.parts]
    for _ in range(DAMAGES):
        path = damaged(chance.choice(files), chance)
        try:
            found = bodies(root)
        except StoreError as error:
            assert str(root) in str(error)  # noqa: PT017 # or the right rows
        else:
            assert found == told
            rows += 1
        shutil.copy(whole / path.relative_to(root), path)
    assert 0 < rows < DAMAGES


# ---- object storage ----------------------------------------------------------------------------------------


def test_object_storage_gives_the_same(golden: Golden, server: ObjectServer) -> None:
    root = Path(shutil.copytree(golden(NAME), server.bucket / NAME))
    url = server.url_of(root)
    columns = "topic,queueId,queueOffset,body,physicalOffset,tagsCode"
    found, told = (
        sorted(read(path, columns=columns).rows(), key=lambda row: [*row.values()][:3])
        for path in (url, root)
    )
    assert found == told
    assert len(found) == 298
