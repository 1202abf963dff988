"""The Java side of the referee: what it says of a store is what the broker's store classes say when they are
started with all their threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.message.compression import COMPRESSION_TYPES, compress, compression_flag
from tests.interop.harness import RocketMQ
from tests.interop.referee import Referee, body_of
from tests.interop.versions import NEW
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered


@pytest.mark.parametrize("version", NEW)
def test_a_golden_store_is_served_as_it_was(
    version: str, rocketmq: Callable[[str], RocketMQ], golden: Golden, tmp_path: Path
) -> None:
    name = f"basic-{version}"
    rocketmq(version)
    with Referee(version, tmp_path) as referee:
        verdict = referee.serve(golden(name), goldens.config(name))
    assert verdict.failure == ""
    expected = {
        (row["topic"], row["queueId"], row["queueOffset"]): (row["physicalOffset"], row["storeSize"])
        for row in goldens.expected_rows(name)
    }
    assert {place: (each.physical_offset, each.size) for place, each in verdict.messages.items()} == expected


@pytest.mark.parametrize("version", NEW)
def test_without_threads_is_as_with_them(
    version: str, rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("A", 0, 60))
    append(root, numbered("B", 0, 20))
    shutil.rmtree(root / "consumequeue/B/1")  # dispatched again only if it is behind all other queues
    (root / "consumequeue/A/2/00000000000000000000").unlink()
    rocketmq(version)
    with Referee(version, tmp_path) as referee:
        quiet = referee.serve(root)
        started = referee.start(root)
        offset = referee.put("B", 3, "one more")
        after = referee.served()
        referee.close()
    assert (quiet.log, quiet.queues) == (started.log, started.queues)
    assert len(quiet.messages) > 50
    assert after.messages.keys() - quiet.messages.keys() == {("B", 3, offset)}
    assert after.messages["B", 3, offset].body == body_of(b"one more")


def test_configuration_is_what_the_managers_hold(rocketmq: Callable[[str], RocketMQ], tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("A", 0, 4))
    config = root / "config"
    (config / "consumerOffset.json").write_text("{'offsetTable':{'A@g':{0:8}}} // by hand")
    (config / "delayOffset.json").write_text("{")
    (config / "delayOffset.json.bak").write_text('{"offsetTable":{3:7}}')
    rocketmq("5.5.0")
    with Referee("5.5.0", tmp_path) as referee:
        assert referee.config(root, "offsets") == {"A@g": {"0": 8}}
        assert referee.config(root, "delays") == {"3": 7}
        assert referee.config(root, "topics")["A"]["readQueueNums"] == 4
        (config / "topics.json").write_text("{")
        (config / "topics.json.bak").write_text("{")
        assert referee.config(root, "topics") is None


def test_large_compressed_bodies_are_what_a_client_gets(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 22, 400))
    large = Random(4).randbytes(50_000) * 4
    bodies = [body for size in (0, 1, 65_536, 65_537, len(large)) for body in (large[:size], bytes(size))]
    for kind, number in product(COMPRESSION_TYPES, range(len(bodies))):
        (message,) = numbered(kind, number, 1, queues=1)
        body, flag = compress(bodies[number], kind), compression_flag(kind)
        append(root, [replace(message, body=body, sys_flag=flag)])
    rocketmq("5.5.0")
    with Referee("5.5.0", tmp_path) as referee:
        served = referee.serve(root).messages
    for kind in COMPRESSION_TYPES:
        assert [served[kind, 0, at].body for at in range(len(bodies))] == [body_of(body) for body in bodies]
