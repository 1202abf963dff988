"""Topics and groups without a broker: what is refused, what a deletion leaves, and kills at every write.

`tests/interop/test_administer.py` compares the files with those of mqadmin.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from store_format.commit.administer import (
    ConfigChange,
    change_group,
    change_topic,
    delete_group,
    delete_topic,
)
from store_format.commit.options import CommitOptions
from store_format.diagnose import diagnose
from store_format.errors import (
    CorruptStoreError,
    OptionError,
    StoreError,
    StoreInUseError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from store_format.metadata.group_offsets import read_group_offsets
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.failing_writer import Failure, install
from tests.support.fixtures import Golden
from tests.support.fork_server import ForkServer
from tests.support.kills import States, killed_stores
from tests.support.staged import append, make_store, numbered
from tests.support.writes import held

_NOW = 1_796_000_000_000
_FOUR = CommitOptions(new_topics={"T": 4})


def _topics(root: Path) -> set[str]:
    return set(read_topics(Opened(str(root))) or ())


def _apply(change: ConfigChange) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = change.apply(clock_ms=lambda: _NOW).to_pylist()
    return rows


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("", OptionError, "expected 1 to 127"),
        ("../x", OptionError, "expected 1 to 127"),
        ("a/b", OptionError, "expected 1 to 127"),
        ("a\n", OptionError, "expected 1 to 127"),
        ("é", OptionError, "expected 1 to 127"),
        ("x" * 128, OptionError, "expected 1 to 127"),
        ("TBW102", OptionError, "system topic"),
        ("rmq_sys_x", OptionError, "system topic"),
        ("%LMQ%x", UnsupportedFormatError, "light queue"),
    ],
)
def test_a_name_that_a_broker_refuses_is_refused(
    root: Path, name: str, error: type[StoreError], text: str
) -> None:
    with pytest.raises(error, match=text):
        change_topic(str(root), name, create=True)
    assert _topics(root) == {"rmq_sys_SYNC_BROKER_MEMBER_broker-a"}


def test_the_longest_names_are_created(root: Path) -> None:
    _apply(change_topic(str(root), "x" * 127, create=True))
    _apply(change_topic(str(root), "%RETRY%" + "x" * 120, create=True))
    _apply(change_group(str(root), "x" * 120, create=True))
    assert _topics(root) >= {"x" * 127, "%RETRY%" + "x" * 120}
    with pytest.raises(OptionError, match="expected 1 to 120"):
        change_group(str(root), "x" * 121, create=True)


def test_system_groups_and_what_is_not_there(root: Path) -> None:
    path = str(root)
    with pytest.raises(OptionError, match="system group"):
        change_group(path, "CID_RMQ_SYS_TRANS", consume=False)
    _apply(change_topic(path, "Orders", create=True))
    _apply(change_group(path, "CG_orders", create=True))
    for change in (change_topic(path, "Oders", perm=4), delete_topic(path, "Oders")):
        with pytest.raises(StoreNotFoundError, match=r"no topic Oders; did you mean Orders\?"):
            change.apply()
    for group in (change_group(path, "CG_oders", consume=False), delete_group(path, "CG_oders")):
        with pytest.raises(StoreNotFoundError, match=r"no group CG_oders; did you mean CG_orders\?"):
            group.apply()
    with pytest.raises(OptionError, match="topic Orders exists"):
        change_topic(path, "Orders", create=True).table()
    with pytest.raises(OptionError, match="group CG_orders exists"):
        change_group(path, "CG_orders", create=True).table()


def test_a_store_in_use_is_not_changed(root: Path) -> None:
    before = (root / "config/topics.json").read_bytes()
    with held(root), pytest.raises(StoreInUseError):
        change_topic(str(root), "Orders", create=True).apply()
    assert (root / "config/topics.json").read_bytes() == before


def test_a_store_without_its_topics_is_recovered_first(root: Path) -> None:
    append(root, numbered("T", 0, 4), options=_FOUR)
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).unlink(missing_ok=True)
    with pytest.raises(StoreNotFoundError, match="rmqlog recover STORE"):
        change_topic(str(root), "Orders", create=True).apply()
    assert not (root / "config/topics.json").exists()


def test_a_4_9_broker_has_no_message_types_and_no_order(copy_of: Golden) -> None:
    path = str(copy_of("basic-4.9.7"))
    with pytest.raises(OptionError, match="no message types"):
        change_topic(path, "Orders", message_type="FIFO").table()
    with pytest.raises(OptionError, match="no consumeMessageOrderly"):
        change_group(path, "CG_all", order=True).table()


# ---- changes -----------------------------------------------------------------------------------------------


def test_a_change_keeps_the_rest_and_nothing_is_written_twice(root: Path) -> None:
    path = str(root)
    _apply(change_topic(path, "Orders", create=True, message_type="FIFO"))
    rows = _apply(change_topic(path, "Orders", write_queues=4, perm=4))
    assert [(row["field"], row["before"], row["after"]) for row in rows] == [
        ("writeQueueNums", "8", "4"),
        ("perm", "6", "4"),
    ]
    written = (root / "config/topics.json").read_bytes()
    assert _apply(change_topic(path, "Orders", write_queues=4)) == []
    assert (root / "config/topics.json").read_bytes() == written
    assert change_topic(path, "Orders").stored() == {
        "readQueueNums": "8",
        "writeQueueNums": "4",
        "perm": "4",
        "order": "false",
        "message.type": "FIFO",
    }


def test_fewer_read_queues_name_what_consumers_miss(root: Path) -> None:
    append(root, numbered("T", 0, 8), options=_FOUR)
    assert change_topic(str(root), "T", read_queues=3).remarks() == [
        "consumers get no more messages of the queues 3 to 3; they stay in the store"
    ]
    assert change_topic(str(root), "T", read_queues=5).remarks() == []


# ---- deletions ---------------------------------------------------------------------------------------------


def test_a_topic_that_is_deleted_and_created_again_begins_at_0(root: Path) -> None:
    append(root, numbered("T", 0, 20), options=_FOUR)
    append(root, numbered("U", 0, 4), options=CommitOptions(new_topics={"U": 4}))
    rows = _apply(delete_topic(str(root), "T"))
    assert [(row["file"], row["before"]) for row in rows] == [
        ("config/topics.json", "4 read and 4 write queues"),
        *((f"consumequeue/T/{queue_id}", "5: offsets 0 to 4") for queue_id in range(4)),
    ]
    assert not (root / "consumequeue/T").exists()
    _apply(change_topic(str(root), "T", create=True, read_queues=4, write_queues=4))
    append(root, numbered("T", 100, 4), options=_FOUR)
    queues = MessageStore.open(str(root)).queues(lambda topic: topic == "T")
    assert [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in queues] == [
        (queue_id, 0, 1) for queue_id in range(4)
    ]
    assert list(diagnose(str(root))) == []


def test_a_5_x_topic_takes_its_offsets_and_retry_topics_of_pop_along(copy_of: Golden) -> None:
    root = copy_of("pop-5.5.0")
    metrics = root / "config/timermetrics"
    counted = '"timingCount":{"PopWork":{"count":1,"timeStamp":5},'
    plain = metrics.read_text()
    metrics.write_text(plain.replace('"timingCount":{', counted))
    _apply(delete_topic(str(root), "PopWork"))
    assert metrics.read_text() == plain
    assert {"PopWork", "%RETRY%CG_pop_PopWork"}.isdisjoint(_topics(root))
    assert sorted(path.name for path in (root / "consumequeue").iterdir() if "PopWork" in path.name) == []
    assert read_group_offsets(Opened(str(root)), "CG_pop") == {}
    assert b"PopWork" not in (root / "config/consumerOffset.json").read_bytes()


def test_a_4_9_topic_leaves_its_offsets_and_an_empty_directory(copy_of: Golden) -> None:
    root = copy_of("basic-4.9.7")
    offsets = (root / "config/consumerOffset.json").read_bytes()
    deletion = delete_topic(str(root), "Orders")
    assert "the offsets of 2 groups stay" in " ".join(deletion.remarks())
    _apply(deletion)
    assert (root / "config/consumerOffset.json").read_bytes() == offsets
    assert list((root / "consumequeue/Orders").iterdir()) == []


def test_notes_that_cannot_be_read_stop_a_deletion_before_its_first_write(root: Path) -> None:
    append(root, numbered("T", 0, 4), options=_FOUR)
    (root / ".rmqlog/given-up.json").write_text("{")
    with pytest.raises(CorruptStoreError):
        _apply(delete_topic(str(root), "T"))
    assert "T" in _topics(root)


def test_a_crashed_store_is_recovered_first_and_the_preview_says_so(copy_of: Golden) -> None:
    root = copy_of("crash-5.5.0")
    change = change_topic(str(root), "Payments", create=True)
    (said,) = change.remarks()
    assert said.endswith("was not shut down: --apply recovers it first, as every write does")
    _apply(change)
    assert "Payments" in _topics(root)
    assert change_topic(str(root), "Payments").remarks() == []


def test_links_are_not_followed(root: Path, tmp_path: Path) -> None:
    append(root, numbered("T", 0, 4), options=_FOUR)
    outside = tmp_path / "outside" / "0"
    outside.mkdir(parents=True)
    (outside / "kept").write_text("kept")
    (root / "consumequeue_ext").mkdir()
    (root / "consumequeue_ext/T").symlink_to(outside.parent)
    with pytest.raises(StoreError):
        _apply(delete_topic(str(root), "T"))
    assert (outside / "kept").read_text() == "kept"


def test_a_group_keeps_its_offsets_unless_asked(copy_of: Golden) -> None:
    root = copy_of("retry-dlq-5.5.0")
    path, opened = str(root), Opened(str(root))
    deletion = delete_group(path, "CG_fail")
    assert sum("stays" in text for text in deletion.remarks()) == 2  # %RETRY% and %DLQ%
    _apply(deletion)
    assert "CG_fail" not in (read_subscription_groups(opened) or ())
    assert read_group_offsets(opened, "CG_fail")
    _apply(delete_group(path, "CG_fail", remove_offset=True))
    assert read_group_offsets(opened, "CG_fail") == {}
    assert {"%RETRY%CG_fail", "%DLQ%CG_fail"} <= _topics(root)


# ---- kills -------------------------------------------------------------------------------------------------

_CHANGES: dict[str, tuple[str, Callable[[str], ConfigChange]]] = {
    "topic": ("basic-5.5.0", lambda root: change_topic(root, "New", create=True)),
    "queues": ("basic-4.9.7", lambda root: change_topic(root, "Orders", read_queues=9)),
    "group": ("basic-4.9.7", lambda root: change_group(root, "CG_all", consume=False)),
    "new group": ("basic-5.5.0", lambda root: change_group(root, "CG_new", create=True)),
    "delete": ("pop-5.5.0", lambda root: delete_topic(root, "PopWork")),
    "delete 4.9": ("basic-4.9.7", lambda root: delete_topic(root, "Orders")),
    "delete group": ("retry-dlq-5.5.0", lambda root: delete_group(root, "CG_fail", remove_offset=True)),
}


def _killed(root: Path, failure: Failure, name: str) -> None:
    change = _CHANGES[name][1](str(root))
    install(failure)
    change.apply(clock_ms=lambda: _NOW)


def _seen(root: Path) -> object:
    files = {path: path.read_bytes() for path in (root / "config").iterdir() if path.suffix == ".json"}
    queues = sorted(str(path.relative_to(root)) for path in (root / "consumequeue").rglob("*"))
    notes = root / ".rmqlog/given-up.json"
    return (
        {path.name: data for path, data in files.items()},
        queues,
        notes.read_bytes() if notes.exists() else b"",
    )


def _loaded(root: Path) -> object:
    """What a broker loads: the values by name, of the file or its `.bak`."""
    opened = Opened(str(root))
    topics, groups = read_topics(opened), read_subscription_groups(opened)
    assert topics is not None
    assert groups is not None
    return dict(topics), dict(groups)


@pytest.mark.parametrize("name", list(_CHANGES))
def test_a_kill_at_any_write_leaves_the_old_or_the_new_state(
    forks: ForkServer, copy_of: Golden, tmp_path: Path, name: str
) -> None:
    """And the same change completes what a killed deletion left."""
    before = copy_of(_CHANGES[name][0])
    for large in ("timerlog", "index"):
        shutil.rmtree(before / large, ignore_errors=True)
    (before / "timerwheel").unlink(missing_ok=True)
    make = _CHANGES[name][1]
    copies = tmp_path / "copies"
    copies.mkdir()
    old = _loaded(before)
    expected = Path(shutil.copytree(before, tmp_path / "expected"))
    make(str(expected)).apply(clock_ms=lambda: _NOW)
    new, wanted = _loaded(expected), _seen(expected)
    assert new != old
    states, found = States(), set[bool]()
    for at, root in killed_stores(forks, before, copies, "both", _killed, name):
        if not states.is_new(root):
            continue
        loaded = _loaded(root)
        assert loaded in (old, new), at
        found.add(loaded == new)
        with suppress(OptionError, StoreNotFoundError):  # it exists, or is gone: the change was complete
            make(str(root)).apply(clock_ms=lambda: _NOW)
        assert _seen(root) == wanted, at
    assert found == {False, True}


def test_the_store_made_here_has_what_a_write_needs(tmp_path: Path) -> None:
    """A store without a message and without groups."""
    root = make_store(tmp_path / "new")
    _apply(change_topic(str(root), "Orders", create=True, perm=2))
    _apply(change_group(str(root), "CG_orders", create=True, retry_max_times=3))
    assert change_group(str(root), "CG_orders").stored()["retryMaxTimes"] == "3"
    _apply(delete_group(str(root), "CG_orders"))
    _apply(delete_topic(str(root), "Orders"))
    assert "Orders" not in _topics(root)
