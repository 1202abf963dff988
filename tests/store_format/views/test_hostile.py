"""Views and traces over damaged stores: any bytes end in a table or in a StoreError, never in another
exception, and never hang.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from store_format.errors import StoreError
from store_format.store import MessageStore
from store_format.views.registry import VIEWS
from tests.support.fixtures import Golden

NOW = 1_800_000_000_000


def _look(root: Path) -> int:
    """How many of all questions are answered; the others are StoreErrors."""
    answered = 0
    try:
        store = MessageStore.open(str(root))
    except StoreError:
        return 0
    for view in VIEWS:
        try:
            table = store.view(view.name, now_ms=NOW)
        except StoreError:
            continue
        assert table.schema == view.schema
        answered += 1
    for message_id in ("7F00000134E45FFD2B27687A941400AC", "7F000001000078BF0000000000003427"):
        try:
            store.trace(message_id)
        except StoreError:
            continue
        answered += 1
    return answered


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed < 2 else pytest.mark.whole) for seed in range(6)]
)
def test_flipped_bytes_of_every_file(copy_of: Golden, seed: int) -> None:
    root = copy_of("delay-tx-5.5.0")
    chance = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file() and 0 < path.stat().st_size < 1 << 20)
    assert _look(root) == len(VIEWS) + 2
    for _ in range(4):
        for path in chance.sample(files, 6):
            data = bytearray(path.read_bytes())
            for _ in range(chance.randrange(1, 40)):
                at = chance.randrange(min(len(data), chance.choice((64, 4096, 1 << 20))))
                data[at] = chance.randrange(256)
            path.write_bytes(data[: chance.choice((len(data), len(data), len(data) // 2))])
        _look(root)


_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
CONFIGS = {
    "a number beyond a long": '{"offsetTable":{"Tx@g":{"0":99999999999999999999}}}',
    "text for a number": '{"offsetTable":{"Tx@g":{"0":"x"}}}',
    "a list for a table": '{"offsetTable":[1,2]}',
    "the ends of the longs": json.dumps(
        {"offsetTable": {"Tx@g": {"0": _HIGHEST}}, "pullOffsetTable": {"Tx@g": {"0": _LOWEST}}}
    ),
    "many queues": json.dumps({"offsetTable": {"Tx@g": dict.fromkeys(range(5000), 1)}}),
    "nothing": "",
    "deep": "[" * 100_000,
}


@pytest.mark.process
@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_hostile_offsets(copy_of: Golden, text: str) -> None:
    root = copy_of("delay-tx-5.5.0")
    files = ("consumerOffset.json", "delayOffset.json")
    for name in (*files, *(f"{file}.bak" for file in files)):
        (root / "config" / name).write_text(text)
    assert _look(root) >= 5  # what does not need the offsets


TOPICS = {
    "a billion queues": '{"topicConfigTable":{"Tx":{"readQueueNums":2147483647,"writeQueueNums":2147483647,'
    '"perm":6}}}',
    "more than a billion": '{"topicConfigTable":{"Tx":{"readQueueNums":9223372036854775807,"perm":-1}}}',
    "names of all kinds": '{"topicConfigTable":{"../../etc":{},"<script>":{},"\\ud800":{},"\\u202e":{},'
    '"":{},"a\\u0000b":{}}}',
}


@pytest.mark.process
@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", TOPICS.values(), ids=TOPICS.keys())
def test_hostile_topics(copy_of: Golden, text: str) -> None:
    root = copy_of("delay-tx-5.5.0")
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text(text)
    assert _look(root) == len(VIEWS) + 2
    rows = MessageStore.open(str(root)).view("topics").to_pylist()
    assert len(rows) > 3
