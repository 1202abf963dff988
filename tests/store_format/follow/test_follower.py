"""A followed store shows at each look what a batch read would see then; a look where nothing happened reads
next to nothing.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fill import Filling, fill, message_columns
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.settings import StoreSettings
from store_format.commitlog.log import CommitLog
from store_format.errors import StoreError
from store_format.files.files import Files
from store_format.follow import follower as follower_room
from store_format.follow.follower import StoreFollower
from store_format.follow.log_tail import near_end, place_before
from store_format.layouts import CQ_UNIT
from store_format.read.choice import MessageChoice
from store_format.read.store import Queue, find_queues
from tests.support import goldens, oracle
from tests.support.failing_writer import write
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.fork_server import ForkServer
from tests.support.kills import States, count_changes, kill_at
from tests.support.staged import append, deleted_topic, make_store, messages_of, numbered
from tests.support.writes import held
from tests.test_live_store import writer

Ends = dict[tuple[str, int], tuple[int, int]]


def followed(root: Path, choice: MessageChoice = MessageChoice(), **more: Callable[[], int]) -> StoreFollower:  # noqa: B008 # frozen
    follower = StoreFollower(MessageStore.open(str(root)), choice, **more)
    follower.look()
    return follower


def ends(follower: StoreFollower) -> Ends:
    return {key: (queue.min_offset, queue.max_offset) for key, queue in follower.queues.items()}


def in_batch(root: Path, choice: MessageChoice = MessageChoice()) -> Ends:  # noqa: B008 # frozen
    there = find_queues(MessageStore.open(str(root)), choice)
    return {
        (queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset)
        for queue in (*there.queues, *there.scanned)
    }


def state(root: Path) -> str:
    return MessageStore.open(str(root)).state


def no_further(one: Ends, other: Ends) -> bool:
    return all(key in other and stop <= other[key][1] for key, (_, stop) in one.items())


# ---- the same as a batch -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice", [MessageChoice(), MessageChoice(names=("Other",))], ids=["all", "a quiet topic"]
)
def test_beside_a_broker_each_look_lies_between_two_batches(tmp_path: Path, choice: MessageChoice) -> None:
    root = tmp_path / "store"
    with writer(root, 300) as done:
        follower, totals = followed(root, choice), set()
        while not done():
            before = in_batch(root, choice)
            follower.look()
            seen = ends(follower)
            assert no_further(before, seen)
            assert no_further(seen, in_batch(root, choice))
            totals.add(sum(stop for _, stop in seen.values()))
        follower.look()
        assert state(root) == "live"
        assert ends(follower) == in_batch(root, choice)
    assert len(totals) > 10
    follower.look()
    assert state(root) == "crashed"
    assert ends(follower) == in_batch(root, choice)
    assert {stop for _, stop in ends(follower).values()} == {75}


@pytest.mark.slow
def test_beside_a_broker_looks_follow_the_log_alone(tmp_path: Path) -> None:
    """Looking at all queues anew would cost a second where there are 10,000."""
    root = tmp_path / "store"
    with writer(root, 300) as done:
        follower, anew = followed(root), []
        follower._look_anew = lambda *signs: bool(anew.append(signs))  # type: ignore[method-assign, func-returns-value] # counts
        while not done():
            follower.look()
        follower.look()
        assert {stop for _, stop in ends(follower).values()} == {75}
    assert anew == []


_COMMITS = """
import sys
from pathlib import Path
from tests.support.file_edits import overwrite
from tests.support.staged import append, numbered
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    append(Path(sys.argv[1]), numbered("T", 40 * number, 40))
"""


@contextmanager
def committing(root: Path, commits: int) -> Iterator[Callable[[], bool]]:
    """Another process that commits 40 messages at a time."""
    command = [sys.executable, "-c", _COMMITS, str(root), str(commits)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield lambda: process.poll() is not None
        assert process.wait(60) == 0


@pytest.mark.process
def test_commits_are_seen_whole(root: Path) -> None:
    append(root, numbered("T", 0, 40))
    totals = []
    with committing(root, 30) as done:
        follower = followed(root)
        while not done():
            before = in_batch(root)
            follower.look()
            seen = ends(follower)
            assert no_further(before, seen)
            assert no_further(seen, in_batch(root))
            time.sleep(0.005)  # who opens the lock all the while keeps a writer from it
            totals.append(sum(stop for _, stop in seen.values()))
    follower.look()
    totals.append(sum(stop for _, stop in ends(follower).values()))
    assert totals == sorted(totals)
    assert {total % 40 for total in totals} == {0}
    assert totals[-1] == 40 * 31
    assert len(set(totals)) > 3


@pytest.mark.process
@pytest.mark.slow
def test_a_commit_that_was_broken_off(tmp_path: Path, forks: ForkServer, whole: bool) -> None:
    """Killed at each of its changes: before it is published nothing of it counts, and the next writer
    completes it. Without --whole, at every fifth change.

    It fills several files of the log. Who begins to follow while it lies there half done sees the rest of it,
    too.
    """
    before = make_store(tmp_path / "before")
    append(before, numbered("T", 0, 40), key=("q", 0))
    changes = count_changes(forks, shutil.copytree(before, tmp_path / "whole"), write, 40, 150)
    states = States()
    for at in range(1, changes + 1, 1 if whole else 5):
        root = shutil.copytree(before, tmp_path / str(at))
        follower = followed(root)
        kill_at(forks, root, "kill", at, write, 40, 150)
        if not states.is_new(root):
            shutil.rmtree(root)
            continue
        for _ in range(3):
            follower.look()
            assert ends(follower) == in_batch(root)
            assert sum(stop for _, stop in ends(follower).values()) in (40, 190)
        late = followed(root)
        assert ends(late) == in_batch(root)
        append(root, numbered("T", 190, 10), key=("q", 2))
        for each in (follower, late):
            each.look()
            assert ends(each) == in_batch(root)
            assert sum(stop for _, stop in ends(each).values()) in (50, 200)


@pytest.mark.parametrize("name", [name for name in goldens.NAMES if "brokers" not in goldens.expected(name)])
def test_stores_of_every_kind(golden: Golden, unchanged: Callable[[Path], object], name: str) -> None:
    root, choice = golden(name), MessageChoice(include_system_topics=True)
    with unchanged(root):  # type: ignore[attr-defined] # the fixture's type is a context manager
        follower = followed(root, choice)
        assert ends(follower) == in_batch(root, choice)
        assert not follower.look()
        assert not follower.look(anew=True)


def test_a_queue_that_grows_begins_where_its_messages_begin(tmp_path: Path) -> None:
    """Its oldest entries are zeros, and retention has deleted the messages of most of them."""
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 200, queues=1))
    (root / "commitlog" / f"{0:020d}").unlink()
    for file in (root / "consumequeue" / "T" / "0").iterdir():
        for entry in range(int(file.name) // 20, int(file.name) // 20 + 20):
            if 3 <= entry < 93:
                overwrite(file, entry % 20 * 20, bytes(20))
    follower = followed(root)
    begin = ends(follower)["T", 0][0]
    bounds = follower.queues["T", 0].range.bounds
    assert bounds is not None
    assert begin > bounds.min_offset
    append(root, numbered("T", 200, 1, queues=1))
    assert follower.look()
    assert ends(follower) == in_batch(root) == {("T", 0): (begin, 201)}


# ---- what changes a store ----------------------------------------------------------------------------------


def test_what_a_look_changed_is_told(root: Path) -> None:
    append(root, numbered("T", 0, 8))
    follower = followed(root)
    assert not follower.look()
    append(root, numbered("T", 8, 1))
    append(root, numbered("U", 0, 1))
    assert follower.look()
    assert {key: queue and queue.max_offset for key, queue in follower.changed.items()} == {
        ("T", 0): 3,
        ("U", 0): 1,
    }
    committed = {"offsetTable": {"U@G": {"0": 1}}, "dataVersion": {"counter": 1}}
    (root / "config" / "consumerOffset.json").write_text(json.dumps(committed))  # so U was not created again
    shutil.rmtree(root / "consumequeue" / "U")
    assert follower.look()
    scanned = follower.queues["U", 0]
    # lost, and in the commitlog
    assert (scanned.scanned is not None, scanned.min_offset, scanned.max_offset) == (True, 0, 1)
    deleted_topic(root, "U")
    assert follower.look(anew=True)
    assert follower.changed == {("U", 0): None}
    assert not follower.look()


@pytest.mark.process
def test_retention_that_deletes_the_file_of_the_last_look(root: Path) -> None:
    """The log begins behind the end of the last look: the next look has all queues, and later looks
    follow.
    """
    append(root, numbered("T", 0, 40))
    follower = followed(root)
    for number in range(40, 400, 40):
        append(root, numbered("T", number, 40))
    for path in sorted((root / "commitlog").iterdir())[:3]:
        path.unlink()
    assert follower.look()
    assert ends(follower) == in_batch(root)
    append(root, numbered("T", 400, 4))
    assert follower.look()
    assert {queue.max_offset for queue in follower.queues.values()} == {101}


@pytest.mark.process
def test_damage_in_the_log_does_not_hide_what_is_committed_behind_it(root: Path) -> None:
    append(root, numbered("T", 0, 20))
    unit = messages_of(root)[10]
    overwrite(root / "commitlog" / oracle.file_name(0), unit.physical_offset + 4, b"\xff" * 60)
    follower = followed(root)
    for number in range(20, 30):
        append(root, numbered("T", number, 1))
        assert follower.look()
        assert ends(follower) == in_batch(root)


def test_a_unit_that_is_being_written_and_a_queue_that_is_behind(root: Path) -> None:
    append(root, numbered("T", 0, 4))
    last = messages_of(root)[-1]
    end = last.physical_offset + last.total_size
    unit = replace(
        numbered("T", 4, 1)[0],
        queue_id=0,
        queue_offset=1,
        physical_offset=end,
        store_timestamp=1_700_000_200_000,
    )
    data = oracle.encode_message(unit)
    entry = oracle.cq_unit(end, len(data), oracle.tags_code(unit))
    log, queue = f"commitlog/{oracle.file_name(0)}", f"consumequeue/T/0/{oracle.file_name(0)}"
    with held(root):
        follower = followed(root)
        overwrite(root / log, end, data[:120])
        assert not follower.look()
        assert not follower.look()
        overwrite(root / log, end, data)
        assert not follower.look()  # the log has it, the queue does not
        overwrite(root / queue, 20, entry[:12])
        assert not follower.look()
        assert ends(follower) == in_batch(root)
        overwrite(root / queue, 20, entry)
        assert follower.look()
        assert ends(follower)["T", 0] == (0, 2)
        assert not follower.look()


def test_old_bytes_behind_the_end_are_looked_at_ever_more_seldom(root: Path) -> None:
    """A broker that recovered leaves them there: truncation moves positions and clears nothing."""
    append(root, numbered("T", 0, 4))
    last = messages_of(root)[-1]
    end = last.physical_offset + last.total_size
    now = [time.time_ns() + 10**9]
    with held(root):
        unit = oracle.encode_message(replace(last, physical_offset=end))
        overwrite(root / "commitlog" / oracle.file_name(0), end, unit[:150])
        follower = followed(root, clock_ns=lambda: now[0])
        reads, follow = [], follower._follow

        def counted(*told: Any) -> bool:  # Any: the arguments, passed on
            reads.append(now[0])
            return follow(*told)

        follower._follow = counted  # type: ignore[method-assign, assignment]
        for _ in range(600):
            now[0] += 100_000_000
            assert not follower.look()
        assert len(reads) < 40


@pytest.mark.process
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.integers(0, 700), st.integers(1, 255)), max_size=6),
    cut=st.integers(1, 700),
    live=st.booleans(),
)
def test_whatever_is_appended_ends_in_queues_or_a_store_error(
    tmp_path: Path, flips: list[tuple[int, int]], cut: int, live: bool
) -> None:
    root = tmp_path / "store"
    shutil.rmtree(root, ignore_errors=True)
    append(make_store(root), numbered("T", 0, 4))
    last = messages_of(root)[-1]
    end = last.physical_offset + last.total_size
    data, entries, position = b"", b"", end
    for offset in (1, 2, 3):
        unit = replace(numbered("T", offset, 1)[0], queue_id=0, queue_offset=offset, physical_offset=position)
        data += oracle.encode_message(unit)
        entries += oracle.cq_unit(position, unit.total_size, oracle.tags_code(unit))
        position += unit.total_size
    mangled = bytearray(data + entries)
    for at, bits in flips:
        mangled[at % len(mangled)] ^= bits
    follower = followed(root)
    if live:
        follower._read_signs = _as_live(follower._read_signs)  # type: ignore[method-assign]
    overwrite(root / "commitlog" / oracle.file_name(0), end, bytes(mangled[: len(data)][:cut]))
    overwrite(root / "consumequeue" / "T" / "0" / oracle.file_name(0), 20, bytes(mangled[len(data) :]))
    with suppress(StoreError):
        follower.look()
        follower.look(anew=True)
    assert all(queue.max_offset <= 20 for queue in follower.queues.values())  # the length of a queue file


def _as_live(read_signs: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: replace(read_signs(), state=StoreState.LIVE)


# ---- what it costs -----------------------------------------------------------------------------------------


def touched(root: Path) -> tuple[Counter[str], Counter[str]]:
    """What the interpreter was told to open or list, below the store: by a first look, and by some where
    nothing has happened since.
    """
    options = parse_read_options({"path": str(root), "startingOffsets": "earliest"}, where=STREAM)
    paths: list[str] = []
    watches = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if watches and event in ("open", "os.listdir", "os.scandir"):
            paths.append(str(arguments[0]).removeprefix(str(root)))

    sys.addaudithook(hook)
    positions = StreamPositions(StreamStores(options))
    end = positions.latest(positions.initial())
    first = Counter(paths)
    paths.clear()
    for _ in range(10):
        assert positions.latest(end) is end
    watches = False
    return first, Counter(paths)


def test_a_first_look_walks_the_end_of_the_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 20, 400, 50, 2000))
    append(root, numbered("T", 0, 1000))
    last = messages_of(root)[-1]
    walked: list[tuple[int, int]] = []
    monkeypatch.setattr(follower_room, "_MARGIN_SIZE", 4096)

    def noted(log: CommitLog, start: int, stop: int | None, margin_size: int) -> tuple[int, int]:
        walked.append((start, near_end(log, start, stop, margin_size)[1]))
        return near_end(log, start, stop, margin_size)

    monkeypatch.setattr(follower_room, "near_end", noted)
    follower = followed(root)
    [(start, end)] = walked
    assert end == last.physical_offset + last.total_size
    assert 4096 <= end - start < 8192
    append(root, numbered("T", 1000, 4))
    assert follower.look()
    assert ends(follower) == in_batch(root) == {("T", queue): (0, 251) for queue in range(4)}


def test_a_first_look_does_not_trust_an_entry_that_leads_to_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 20, 6000, 50, 2000))
    append(root, numbered("T", 0, 1000))
    for path in (root / "consumequeue" / "T").glob("*/*"):
        units = np.frombuffer(bytearray(path.read_bytes()), CQ_UNIT)
        units["physical_offset"][1:249] += 1  # into the middle of each; the first and the last stay right
        path.write_bytes(units.tobytes())
    walked: list[int] = []
    monkeypatch.setattr(follower_room, "_MARGIN_SIZE", 4096)

    def noted(log: CommitLog, start: int, stop: int | None, margin_size: int) -> tuple[int, int]:
        walked.append(start)
        return near_end(log, start, stop, margin_size)

    monkeypatch.setattr(follower_room, "near_end", noted)
    assert ends(followed(root)) == in_batch(root)
    assert walked == [0]


@pytest.mark.process
def test_an_idle_look_opens_no_queue(tmp_path: Path) -> None:
    """Its cost does not grow with the queues; `python -m benchmarks --only streaming` says what it is."""
    for topics in (2, 40):
        fill(
            tmp_path / str(topics),
            Filling(messages=1000, body_size=100, topics=topics, commit_log_file_size=1 << 20),
        )
    time.sleep(0.06)  # directories count once they are older than a tick of the clock
    (first_few, few), (first_many, many) = (touched(tmp_path / str(topics)) for topics in (2, 40))
    assert len(first_many) > len(first_few) > 16
    assert few == many
    assert not [path for path in many if path.startswith("/consumequeue/")]


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, StoreFollower]:
    """A store of 320 queues that each got a message since the last look."""
    root, filling = tmp_path / "store", Filling(messages=640, body_size=100, topics=40)
    fill(root, filling)
    follower = followed(root)
    MessageStore.open(str(root)).append(message_columns(filling, 0, 320)[0])
    return root, follower


def test_a_look_at_many_new_messages_opens_a_sample_of_the_queues(
    grown: tuple[Path, StoreFollower], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker writes entries in the order of the log: 10,000 files need not be opened."""
    (root, follower), opened, read_range = grown, list[str](), Files.read_range

    def noted(files: Files, path: str, position: int, length: int, size: int) -> bytes:
        opened.append(path)
        return read_range(files, path, position, length, size)

    monkeypatch.setattr(Files, "read_range", noted)
    assert follower.look()
    assert ends(follower) == in_batch(root)
    assert set(ends(follower).values()) == {(0, 3)}
    assert 60 < len(opened) < 90
    queue = follower.queues["Orders00000", 0]
    assert place_before(queue, 3) == place_before(Queue(queue.store, queue.range, None), 3)


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param(range(39, 40), id="the last"),
        pytest.param(range(0, 40, 8), id="some"),
        pytest.param(range(40), id="all", marks=pytest.mark.whole),  # each reads the new part of the log
    ],
)
def test_many_new_messages_without_entries_are_not_trusted(
    grown: tuple[Path, StoreFollower], topics: range
) -> None:
    root, follower = grown
    for topic in topics:
        for file in root.glob(f"consumequeue/Orders{topic:05d}/*/*"):
            overwrite(file, 2 * CQ_UNIT.itemsize, bytes(CQ_UNIT.itemsize))
    follower.look()
    assert ends(follower) == in_batch(root)


def test_a_topic_is_created_again_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queues were listed without the topic, and the log behind them has its new messages."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 20))
    follower = followed(root)
    deleted_topic(root, "T")

    def found_before(*arguments: Any, **more: Any) -> Any:
        there = find_queues(*arguments, **more)
        monkeypatch.undo()
        append(root, numbered("T", 100, 8))
        return there

    monkeypatch.setattr(follower_room, "find_queues", found_before)
    assert follower.look()
    assert set(ends(follower).values()) == {(0, 2)}
    assert [(each.stop, each.begin) for each in follower.replaced.values()] == [(5, 0)] * 4
