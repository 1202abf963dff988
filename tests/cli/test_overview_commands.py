"""`info`, `ls` and `du`: what they say of golden stores is what the broker said."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.views.registry import VIEWS
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.writes import held

STORE = "basic-5.5.0"


def test_info_tells_the_whole(rmqlog: Runner, golden: Golden) -> None:
    expected = goldens.expected(STORE)
    (row,) = rmqlog.rows("info", golden(STORE))
    assert (row["brokerName"], row["state"]) == ("broker-a", "clean")
    assert row["messages"] == sum(queue["maxOffset"] - queue["minOffset"] for queue in expected["queues"])
    assert row["minPhysicalOffset"] == expected["commitLog"]["minOffset"]
    lines = rmqlog.table("info", golden(STORE))
    assert lines[0] == ["brokerName", "broker-a"]
    assert [line[0] for line in lines[: lines.index([])]] == list(row)


@pytest.mark.parametrize("view", [view.name for view in VIEWS])
def test_info_gives_any_view_with_its_columns(rmqlog: Runner, golden: Golden, view: str) -> None:
    rows = rmqlog.rows("info", golden("delay-tx-5.5.0"), "--view", view, "--now", 1_900_000_000_000)
    expected = MessageStore.open(str(golden("delay-tx-5.5.0"))).view(view, now_ms=1_900_000_000_000)
    assert len(rows) == expected.num_rows
    assert all(list(row) == expected.schema.names for row in rows)


def test_info_refuses_a_view_that_is_none(rmqlog: Runner, golden: Golden) -> None:
    assert "did you mean files?" in rmqlog.fails(2, "info", golden(STORE), "--view", "fils")


def test_ls_lists_topics_without_those_of_rocketmq(rmqlog: Runner, golden: Golden) -> None:
    rows = rmqlog.rows("ls", golden(STORE))
    view = {row["topic"]: row for row in MessageStore.open(str(golden(STORE))).view("topics").to_pylist()}
    assert {"Audit", "Metrics", "Orders"} <= {row["topic"] for row in rows}
    assert not [row for row in rows if row["topic"].startswith(("%", "SCHEDULE", "rmq_sys_"))]
    assert all(row["messages"] == view[row["topic"]]["messages"] for row in rows)
    every = rmqlog.rows("ls", golden(STORE), "--all")
    assert {row["topic"] for row in every} == set(view)
    heading, *lines = rmqlog.table("ls", golden(STORE))
    assert heading[:3] == ["brokerName", "topic", "perm"]
    assert [line[1] for line in lines] == [row["topic"] for row in rows]


def test_ls_lists_queues_as_the_broker_has_them(rmqlog: Runner, golden: Golden) -> None:
    rows = rmqlog.rows("ls", golden(STORE), "-l", "--topic", "Order*", "--queue", 1, "--queue", 3)
    limits = {(row["topic"], row["queueId"]): (row["minOffset"], row["maxOffset"]) for row in rows}
    assert limits == {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"])
        for queue in goldens.expected(STORE)["queues"]
        if queue["topic"] == "Orders" and queue["queueId"] in (1, 3)
    }


def test_ls_fails_with_what_is_there(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    assert "does not exist" in rmqlog.fails(1, "ls", tmp_path / "nowhere")
    assert "is not a store root" in rmqlog.fails(1, "ls", tmp_path)
    assert "Did you mean" in rmqlog.fails(2, "ls", golden(STORE), "--colums", "topic")


def test_du_adds_up_to_the_written_log(rmqlog: Runner, golden: Golden, unchanged: Unchanged) -> None:
    with unchanged(golden(STORE)):
        by_topic = rmqlog.rows("du", golden(STORE))
    written = goldens.expected(STORE)["commitLog"]["maxOffset"]
    assert sum(row["bytes"] for row in by_topic) == written
    assert [row["bytes"] for row in by_topic] == sorted((row["bytes"] for row in by_topic), reverse=True)
    for by in ("day", "both"):
        assert sum(row["bytes"] for row in rmqlog.rows("du", golden(STORE), "--by", by)) == written


def test_du_lists_files(rmqlog: Runner, golden: Golden) -> None:
    rows = rmqlog.rows("du", golden(STORE), "--files")
    assert {"commitlog", "consumequeue", "index"} <= {row["kind"] for row in rows}
    assert rmqlog.table("du", golden(STORE), "--files", "-n", 1)[0][:2] == ["kind", "file"]


def test_info_does_not_count_messages_in_damaged_bytes_as_readable(
    rmqlog: Runner, copy_of: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy that a broker wrote meanwhile: consume queues have entries for what the commitlog lacks."""
    copy = copy_of("crash-5.5.0")
    overwrite(copy / "commitlog/00000000000000262144", 23_399, bytes(8192))
    done = rmqlog("info", copy)
    assert "verdict: crashed: 850 messages, less those in 10,976 damaged bytes; a broker start" in done.out
    assert "A copy that was made while a broker wrote can look like this: copy it again" in caplog.text


def test_info_of_a_store_in_use(rmqlog: Runner, copy_of: Golden) -> None:
    store = copy_of(STORE)
    with held(store) as broker:
        *_, verdict, following = rmqlog("info", store).out.splitlines()
    assert verdict == f"verdict: in use by process {broker}: 2,010 messages (offsets, not checked)"
    assert following == f"next:    rmqlog lag {store}"
