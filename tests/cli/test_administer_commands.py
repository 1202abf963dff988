"""`topic` and `group`: shown, previewed, written; wrong usage."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from rmq_spark.cli.main import main
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.support.cli_runs import Runner
from tests.support.doc_pages import blocks, read_page
from tests.support.fixtures import Golden, Unchanged
from tests.support.writes import held


def test_a_topic_is_created_changed_and_deleted(rmqlog: Runner, copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    new = ("topic", root, "Payments", "--create", "--read-queues", 4, "--write-queues", 4, "--perm", "R")
    rows = rmqlog.rows(*new)
    assert {row["field"]: row["after"] for row in rows} == {
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "4",
        "order": "false",
    }
    assert rmqlog(*new, "--apply").err == "rmqlog: topic Payments: written\n"
    assert rmqlog("topic", root, "Payments", "--message-type", "DELAY", "--apply").code == 0
    shown = {row["field"]: row["value"] for row in rmqlog.rows("topic", root, "Payments")}
    assert shown == {
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "4",
        "order": "false",
        "message.type": "DELAY",
    }
    assert rmqlog("topic", root, "Payments", "--delete", "--apply").code == 0
    assert "Payments" not in (read_topics(Opened(str(root))) or ())


def test_a_preview_changes_nothing(rmqlog: Runner, copy_of: Golden, unchanged: Unchanged) -> None:
    root = copy_of("retry-dlq-5.5.0")
    with unchanged(root):
        done = rmqlog("topic", root, "Jobs", "--delete")
        assert done.code == 0
        assert "consumequeue/Jobs/3         Jobs-3          messages  15: offsets 0 to 14" in done.out
        assert done.err.endswith("rmqlog: nothing was changed; add --apply to write it\n")
        assert rmqlog("group", root, "CG_fail", "--no-consume").code == 0
        assert rmqlog("topic", root, "Jobs").code == 0
        assert rmqlog("topic", root, "Jobs", "--perm", "RW").err == (
            "rmqlog: topic Jobs is so already; nothing was changed\n"
        )


def test_a_group_is_created_changed_and_deleted(rmqlog: Runner, copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    assert rmqlog("group", root, "CG_new", "--create", "--order", "--apply").code == 0
    more = ("--retry-max-times", 3, "--no-consume", "--broadcast")
    assert rmqlog("group", root, "CG_new", *more, "--apply").code == 0
    shown = {row["field"]: row["value"] for row in rmqlog.rows("group", root, "CG_new")}
    names = ("retryMaxTimes", "consumeEnable", "consumeBroadcastEnable", "consumeMessageOrderly")
    assert [shown[name] for name in names] == ["3", "false", "true", "true"]
    assert rmqlog("group", root, "CG_new", "--delete", "--apply").code == 0
    assert rmqlog("group", root, "CG_new").code == 1


def test_every_store_of_a_cluster_changes(rmqlog: Runner, copy_of: Golden) -> None:
    root = copy_of("cluster-5.5.0")
    assert rmqlog("topic", root, "Everywhere", "--create", "--apply").code == 0
    stores = [path.parent.parent for path in root.glob("*/config/topics.json")]
    assert len(stores) > 1
    assert all("Everywhere" in (read_topics(Opened(str(store))) or ()) for store in stores)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("topic", "Orders", "--delete", "--perm", "R"), 2, "--delete takes no other change"),
        (("topic", "Orders", "--apply"), 2, "--apply needs a change"),
        (("topic", "Orders", "--create"), 2, "topic Orders exists"),
        (("topic", "Oders"), 1, "no topic Oders; did you mean Orders?"),
        (("topic", "../Orders", "--delete"), 2, "expected 1 to 255 of the characters"),
        (("topic", "TBW102", "--delete"), 2, "system topic"),
        (("group", "CG_some", "--remove-offset"), 2, "--remove-offset needs --delete"),
        (("group", "CG_sme", "--delete"), 1, "no group CG_sme; did you mean CG_some?"),
        (("group", "TOOLS_CONSUMER", "--no-consume"), 2, "system group"),
    ],
)
def test_wrong_usage(rmqlog: Runner, golden: Golden, words: tuple[str, ...], code: int, text: str) -> None:
    verb, name, *more = words
    done = rmqlog(verb, golden("basic-5.5.0"), name, *more)
    assert done.code == code
    assert text in done.err


def test_a_store_in_use_is_refused(rmqlog: Runner, copy_of: Golden) -> None:
    root: Path = copy_of("basic-5.5.0")
    with held(root):
        assert rmqlog("topic", root, "Orders", "--perm", "R", "--apply").code == 6
        assert rmqlog("group", root, "CG_some", "--no-consume", "--apply").code == 6
        assert rmqlog("topic", root, "Orders", "--perm", "R").code == 0


def test_the_commands_of_the_page_work(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    section = read_page("services.md").partition("## Topics and groups")[2].partition("\n## ")[0]
    commands, code = list(blocks(section))
    for line in commands.text.splitlines():
        assert main(shlex.split(line.replace("/data/store", str(root)))[1:]) == 0, line
    assert "Payments" not in (read_topics(Opened(str(root))) or ())
    exec(code.text.replace("/data/store", str(root)), {})  # the page's own lines
    topics = read_topics(Opened(str(root)))
    assert topics is not None
    assert topics["Orders"].read_queue_nums == 16
    assert "Audit" not in topics
