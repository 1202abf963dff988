"""Which stores a path leads to: none twice, and none left out silently."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.options.write_options import parse_write_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.starts import open_stores
from rmq_spark.stream.stores import StreamStores
from rmq_spark.write.target import open_target
from store_format import MessageStore
from store_format.errors import OptionError, StoreError, StoreNotFoundError
from store_format.names import is_system_topic
from tests.support.fixtures import Golden
from tests.support.small_store import write_small_store

MEMBERS = ("broker-a", "broker-b")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    for name in MEMBERS:
        write_small_store(tmp_path / "cluster" / name)
    return tmp_path / "cluster"


def opened(*paths: Path | str, **options: str) -> list[str]:
    where = {"path": str(paths[0])} if len(paths) == 1 else {"paths": json.dumps(list(map(str, paths)))}
    return [store.path for store in open_stores(parse_read_options(where | options))]


# ---- one store by two ways ---------------------------------------------------------------------------------


def test_stores_of_a_cluster_and_of_paths(cluster: Path) -> None:
    expected = [str(cluster / name) for name in MEMBERS]
    assert opened(cluster) == expected
    assert opened(*(cluster / name for name in MEMBERS)) == expected


@pytest.mark.parametrize("options", [{}, {"view": "queues"}])
def test_a_cluster_and_one_of_its_stores(cluster: Path, options: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        opened(cluster, cluster / "broker-b", **options)
    store = cluster / "broker-b"
    told = f"with the commitlog {store}/commitlog; every message would be read twice: give the store once"
    assert str(caught.value) == f"{store} (in {cluster}) and {store} are one store, {told}"


def test_a_store_by_a_link_by_a_relative_path_and_by_its_commitlog(
    cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cluster / "broker-b"
    link = cluster.parent / "link"
    link.symlink_to(store)
    monkeypatch.chdir(cluster)
    for other in (link, f"{link}/", "../link", cluster / "x" / ".." / "broker-b"):
        with pytest.raises(OptionError, match=r"every message would be read twice|each path once"):
            opened(store, other)
    borrowed = cluster.parent / "borrowed"
    borrowed.mkdir()
    (borrowed / "commitlog").symlink_to(store / "commitlog")
    with pytest.raises(
        OptionError, match=f"^{store} and {borrowed} are one store, with the commitlog {store}/commitlog; "
    ):
        opened(store, borrowed)


def test_a_cluster_with_a_link_to_a_member(cluster: Path) -> None:
    (cluster / "the-same").symlink_to(cluster / "broker-a")
    with pytest.raises(OptionError, match="are one store"):
        opened(cluster)
    with pytest.raises(OptionError, match="are one store"):
        StreamStores(parse_read_options({"path": str(cluster)}, where="stream")).look()
    with pytest.raises(OptionError, match="are one store"):
        open_target(parse_write_options({"path": str(cluster), "topic": "T"}))


# ---- a commitlog elsewhere ---------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["nothing", "broken link"])
def test_a_member_whose_commitlog_is_elsewhere_is_not_left_out(
    cluster: Path, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    member = cluster / "broker-b"
    os.rename(member / "commitlog", cluster.parent / "disk2")
    if left == "broken link":
        (member / "commitlog").symlink_to("/mnt/not-mounted")
    told = (
        f"^{member} looks like a store, but has no directory `commitlog`. If its commitlog is elsewhere, "
        f"read this store alone with "
    )
    with pytest.raises(StoreNotFoundError, match=told):
        opened(cluster)
    with pytest.raises(StoreNotFoundError, match=told):
        open_target(parse_write_options({"path": str(cluster), "topic": "T"}))
    assert opened(cluster, failOnDataLoss="false") == [str(cluster / "broker-a")]
    assert "looks like a store" in caplog.text
    if left == "nothing":
        assert opened(member, storePathCommitLog=str(cluster.parent / "disk2")) == [str(member)]


def test_other_directories_beside_stores_are_no_members(cluster: Path) -> None:
    for name in ("empty", "conf/config", "logs/index", "lost+found"):
        (cluster / name).mkdir(parents=True)
    (cluster / "README").write_text("hello")
    assert opened(cluster) == [str(cluster / name) for name in MEMBERS]


def test_a_store_without_its_commitlog_is_not_taken_for_the_cluster_of_what_is_in_it(cluster: Path) -> None:
    store = cluster / "broker-a"
    os.rename(cluster / "broker-b", store / "backup")
    os.rename(store / "commitlog", cluster.parent / "disk2")
    with pytest.raises(
        StoreNotFoundError,
        match=f"^{store} is not a store root: .*; if the commitlog is in other directories, list them",
    ):
        opened(store)


@pytest.mark.parametrize("beside", [True, False])
def test_a_directory_of_commitlog_files_that_is_not_there(cluster: Path, beside: bool) -> None:
    store = cluster / "broker-a"
    paths = [str(store / "commitlog")] * beside + ["/mnt/not-mounted"]
    with pytest.raises(
        StoreError,
        match=r"^storePathCommitLog: /mnt/not-mounted is not a directory; list all directories that hold "
        r"commitlog files",
    ):
        opened(store, storePathCommitLog=",".join(paths))


# ---- members that come later -------------------------------------------------------------------------------


def test_a_stream_says_that_a_store_came(cluster: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = StreamStores(parse_read_options({"path": str(cluster)}, where="stream"))
    stream.look()
    (cluster / "broker-c").mkdir()
    (cluster / "broker-d").mkdir()
    stream.look()
    assert caplog.messages == []
    write_small_store(cluster / "broker-c")
    (cluster / "broker-d" / "consumequeue").mkdir()
    for _ in range(3):
        stream.look()
    came, odd = caplog.messages
    assert came == f"{cluster}/broker-c was added while the query runs; the query reads it after a restart"
    assert odd.startswith(
        f"{cluster}/broker-d was added while the query runs, and cannot be read: {cluster}/broker-d looks "
        f"like a store, "
    )


@pytest.mark.parametrize("whole", [True, False])
def test_a_batch_whose_pattern_matches_no_topic_says_so(
    cluster: Path, caplog: pytest.LogCaptureFixture, whole: bool
) -> None:
    start = {} if whole else {"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"}
    for pattern, count in (("Ord*", 1), (".*", 1)):
        found = plan(parse_read_options({"path": str(cluster), "subscribePattern": pattern} | start))
        warned = [record.getMessage() for record in caplog.records if "no topic" in record.getMessage()]
        assert len(warned) == count
        assert any(split.shares for split in found.splits) == (pattern == ".*")
    pattern = "a pattern is for the whole name, as Ord.* is for Orders"
    assert warned[0].startswith(
        f"subscribePattern Ord* matches no topic; {pattern}; the topics are Batches, Orders, "
    )
    assert warned[0].endswith(". The read has no rows")


def test_an_unknown_topic_names_the_topics_of_applications(golden: Golden) -> None:
    """As `subscribePattern` does. A name that is near to a system topic is still found."""
    store = golden("delay-tx-5.5.0")
    assert any(map(is_system_topic, MessageStore.open(str(store)).topics()))
    with pytest.raises(OptionError) as caught:
        plan(parse_read_options({"path": str(store), "subscribe": "zzz"}))
    listed = str(caught.value).partition("; the topics are ")[2].split(", ")
    assert listed != [""]
    assert not any(map(is_system_topic, listed))
    with pytest.raises(OptionError, match="did you mean SCHEDULE_TOPIC_XXXX"):
        plan(parse_read_options({"path": str(store), "subscribe": "SCHEDULE_TOPIC"}))


def test_seconds_are_no_milliseconds(cluster: Path) -> None:
    with pytest.raises(OptionError, match="these are seconds; in milliseconds: 1795910400000"):
        parse_read_options({"path": str(cluster), "startingTimestamp": "1795910400"})
