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
from tests.support.referee import law
from tests.support.referee.law import Case
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


def test_a_right_entry_behind_zeros_is_overwritten(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """The queue ends at the zeros (ConsumeQueue.recover). The broker dispatches from behind the begin of
    message 1, files message 2 in place of the zeros, skips message 3, and files message 4, whose offset is
    the next one, over the right entry of message 2.
    """
    rocketmq("5.5.0")
    root = make_store(tmp_path / "store", [0, 1, 2, 1, 2], [0, 1, 2])
    file = root / f"consumequeue/T/0/{0:020}"
    entries = file.read_bytes()
    file.write_bytes(entries[:20] + bytes(20) + entries[40:])
    copy = shutil.copytree(root, tmp_path / "copy")
    with Referee("5.5.0", tmp_path / "referee") as referee:
        verdict = referee.start(copy, CONF)
        referee.close()
        after = (copy / file.relative_to(root)).read_bytes()
        served = {place[2]: each.body for place, each in verdict.messages.items()}
        assert served == {0: body_of(body(0)), 2: body_of(body(4))}
        assert verdict.queues["T", 0].pulled[1].body == body_of(body(2))
        assert after[:40] == entries[:20] + entries[40:60]
        assert after[40:60] > entries[40:60]
        assert law.breaches(Case(root, "zeros", CONF, is_damaged=True), referee.serve(root, CONF))[1] == []
