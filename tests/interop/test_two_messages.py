"""Two messages with one queue offset: what the broker's store classes serve, of the queue as it was filed
and of one that they build again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.harness import RocketMQ
from tests.interop.referee import Referee, body_of
from tests.interop.versions import NEW
from tests.support.two_messages import FILE_SIZE, LIGHT, PAIRS, QUEUE_FILE_SIZE, body, make_store

CONF = {"mappedFileSizeCommitLog": str(FILE_SIZE), "mappedFileSizeConsumeQueue": str(QUEUE_FILE_SIZE)}
LMQ = {"enableLmq": "true", "enableMultiDispatch": "true"}


@pytest.mark.parametrize("version", NEW)
def test_the_first_is_served(version: str, rocketmq: Callable[[str], RocketMQ], tmp_path: Path) -> None:
    rocketmq(version)
    with Referee(version, tmp_path / "referee") as referee:
        for number, (name, (offsets, entries)) in enumerate(PAIRS.items()):
            for light in (False, True):
                root = make_store(tmp_path / f"{number}{light}", offsets, entries, light=light)
                topic = LIGHT if light else "T"
                for _ in range(2):
                    served = referee.serve(root, CONF | LMQ).messages
                    bodies = {place[2]: each.body for place, each in served.items() if place[0] == topic}
                    assert bodies == {at: body_of(body(one)) for at, one in enumerate(entries)}, name
                    shutil.rmtree(root / "consumequeue", ignore_errors=True)  # it builds all queues again


def test_each_message_with_offset_0_is_filed(rocketmq: Callable[[str], RocketMQ], tmp_path: Path) -> None:
    """At offset 1 the second one is handed out, and the message with this offset is in no queue."""
    rocketmq("5.5.0")
    root = make_store(tmp_path / "store", [0, 0, 1, 2], [0, 1, 3], light=True)
    with Referee("5.5.0", tmp_path / "referee") as referee:
        for _ in range(2):
            served = referee.serve(root, CONF | LMQ).messages
            bodies = {place[2]: each.body for place, each in served.items() if place[0] == LIGHT}
            assert bodies == {0: body_of(body(0)), 2: body_of(body(3))}
            shutil.rmtree(root / "consumequeue", ignore_errors=True)
