"""Topics and groups that are created, changed and deleted without a broker.

The files are those that mqadmin's own commands leave behind, and a real broker shows the change.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_format.commit.administer import change_group, change_topic, delete_group, delete_topic
from store_format.java.fastjson import loads
from tests.interop.harness import Broker, RocketMQ
from tests.support import goldens
from tests.support.fixtures import Golden

# version -> the golden store, a topic and a group to delete
_STORES = {"5.5.0": ("pop-5.5.0", "PopWork", "CG_pop"), "4.9.7": ("basic-4.9.7", "Orders", "CG_some")}
_FILES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json")


def _by_mqadmin(broker: Broker, java: RocketMQ, topic: str, group: str, is_new: bool) -> None:
    admin = java.program("Admin", [broker.namesrv])

    def run(command: str, *words: object) -> None:
        admin.say("mqadmin", command, *words)
        admin.lines("done", 60.0)

    here, ordered = ("-b", broker.address), ("-o", "true") if is_new else ()
    try:
        # updateTopic replaces what is not given by its defaults, so it names all
        run("updateTopic", *here, "-t", "New", *(("-a", "+message.type=FIFO") if is_new else ()))
        run("updateTopic", *here, "-t", "New", "-r", 4, "-w", 2, "-p", 4)
        run("updateSubGroup", *here, "-g", "CG_new", "-r", 5, *ordered)
        run("updateSubGroup", *here, "-g", "CG_new", "-r", 5, "-s", "false", "-d", "true", *ordered)
        run("deleteTopic", "-c", "GoldenCluster", "-t", topic)
        run("deleteSubGroup", *here, "-g", group, "-r", "true")
    finally:
        admin.close()


def _by_rmqlog(store: Path, topic: str, group: str, is_new: bool) -> None:
    root = str(store)
    change_topic(root, "New", create=True, message_type="FIFO" if is_new else None).apply()
    change_topic(root, "New", read_queues=4, write_queues=2, perm=4).apply()
    change_group(root, "CG_new", create=True, retry_max_times=5, order=is_new or None).apply()
    change_group(root, "CG_new", consume=False, broadcast=True).apply()
    delete_topic(root, topic).apply()
    delete_group(root, group, remove_offset=True).apply()


def _texts(store: Path) -> dict[str, list[str]]:
    """The lines of each file in any order, since a broker's maps have none; without the data version."""
    found = {}
    for name in _FILES:
        text = (store / "config" / name).read_text()
        head, _, rest = text.partition('"dataVersion":{')
        found[name] = sorted(line.rstrip(",") for line in (head + rest.partition("}")[2]).splitlines())
    return found


def _tables(store: Path) -> dict[str, Any]:
    """What the files say, without the data versions."""
    found = {}
    for name in _FILES:
        path = store / "config" / name
        found[name] = json.loads(json.dumps(loads(path.read_bytes(), str(path))))
        found[name].pop("dataVersion", None)
    return found


def _queues(store: Path) -> set[str]:
    return {str(path.relative_to(store)) for path in (store / "consumequeue").rglob("*")}


def _counter(store: Path) -> int:
    return int(json.loads((store / "config" / "topics.json").read_text())["dataVersion"]["counter"])


@pytest.mark.parametrize("version", list(_STORES))
def test_the_files_are_those_of_mqadmin_and_a_broker_shows_the_change(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, version: str
) -> None:
    name, topic, group = _STORES[version]
    java, config, is_new = rocketmq(version), goldens.config(name), version == "5.5.0"
    theirs, ours = copy_of(name), copy_of(name)
    before = _counter(ours)
    _by_rmqlog(ours, topic, group, is_new)
    with java.broker(theirs, config) as broker:
        _by_mqadmin(broker, java, topic, group, is_new)
    assert _tables(ours) == _tables(theirs)
    # The 4.9 broker adds its retry topics' queue directories when it starts.
    gone = {each for each in _queues(ours) ^ _queues(theirs) if "%RETRY%CG_tags2" not in each}
    assert gone == set()
    assert _counter(ours) == _counter(theirs) > before
    assert _texts(ours) == _texts(theirs)
    with java.broker(ours, config) as broker:
        admin = java.program("Admin", [broker.namesrv])
        try:
            admin.say("topics")
            topics = {line["topic"] for line in admin.lines("done", 60.0)}
            admin.say("topic-config", broker.address, "New")
            shown = admin.lines("done", 60.0)
            admin.say("groups", broker.address)
            groups = {line["group"]: line for line in admin.lines("done", 60.0)}
        finally:
            admin.close()
    assert "New" in topics
    assert topic not in topics
    assert shown == [{"readQueueNums": 4, "writeQueueNums": 2, "perm": 4, "order": False}]
    assert group not in groups
    assert (groups["CG_new"]["retryMaxTimes"], groups["CG_new"]["consumeEnable"]) == (5, False)
    assert _tables(ours) == _tables(theirs)
