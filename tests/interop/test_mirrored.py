"""The commands of docs/howto-mirror.md beside a real broker: copies are prefixes, and the last has all."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import StoreState
from store_format.store import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, ours
from tests.interop.versions import OLD
from tests.support.doc_pages import Session, blocks, read_page
from tests.support.fixtures import Golden

_TOPIC = "Live"
# Small files: the log and the queues roll over during a round.
_CONFIG = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
_SENT = 1500
_PAUSE_MS = 4
_SECONDS_MAX = 90


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
@pytest.mark.parametrize("version", OLD)
def test_copies_of_a_running_broker(
    rocketmq: Callable[[str], RocketMQ], golden: Golden, tmp_path: Path, version: str
) -> None:
    store, mirror, java = tmp_path / "store", tmp_path / "mirror", rocketmq(version)
    round_of, *_ = blocks(read_page("howto-mirror.md"))
    session = Session(tmp_path, golden, lambda: None)  # type: ignore[arg-type, return-value]  # no Spark
    copies: list[list[Line]] = [[]]
    with java.broker(store, _CONFIG) as broker:
        client = broker.client()
        client.begin("send", _TOPIC, _SENT, "seed=1", f"pause={_PAUSE_MS}")
        client.acknowledged(100)
        end = time.monotonic() + _SECONDS_MAX
        while len(copies[-1]) < _SENT:
            assert time.monotonic() < end, [len(copy) for copy in copies]
            session.run(round_of)
            assert MessageStore.open(str(mirror)).state is StoreState.CRASHED
            copies.append(ours(mirror, [_TOPIC]))
        client.finish()
        final = client.messages([_TOPIC])
    whole = _queues(final)
    for rows in copies:
        for key, lines in _queues(rows).items():
            assert lines == whole[key][: len(lines)]
    sizes = [len(rows) for rows in copies]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 5, "no round was beside the broker"
    # A broker starts on the copy, and serves the same messages.
    with java.broker(mirror, _CONFIG) as broker:
        assert as_client(broker.client().messages([_TOPIC])) == as_client(final)


def _queues(rows: list[Line]) -> dict[int, list[Line]]:
    queues: dict[int, list[Line]] = defaultdict(list)
    for line in as_client(rows):
        queues[line["queueId"]].append(line)
    return queues
