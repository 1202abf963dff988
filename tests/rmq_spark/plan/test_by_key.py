"""Reads of one key or id: the index narrows what tasks look at, and the rows are those of a read of
everything.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.plan.batch import narrowed
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.errors import CorruptStoreError
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.reads import PLACE, Place, copy_of, flip, read, told, told_places


def _read(root: Path, **options: str) -> tuple[list[Place], int]:
    """The places of the rows, and how many queue offsets the tasks look at."""
    frame = read(root, columns=PLACE, includeSystemTopics=True, **options)
    pieces = [piece for split in frame.splits for share in split.shares for piece in share.slices]
    return frame.places(), sum(piece.stop - piece.start for piece in pieces)


def _told(name: str, keep: Callable[[dict[str, Any]], bool]) -> list[Place]:
    return told_places(told(name, lambda row: not row["topic"].startswith("%LMQ%") and keep(row)))


def _has_key(key: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: (
        key == row["properties"].get("UNIQ_KEY") or key in row["properties"].get("KEYS", "").split(" ")
    )


def _is(row: dict[str, Any], unique: str | None = None, msg_id: str | None = None) -> bool:
    return row["properties"].get("UNIQ_KEY") == unique if unique is not None else row["msgId"] == msg_id


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["basic-5.5.0", "basic-4.9.7", "cleaned-5.5.0", "crash-5.5.0", "batchcq-5.5.0", "rocksdb-5.5.0"]
)
def test_keys_and_ids(golden: Golden, name: str) -> None:
    root, rows = golden(name), [row for row in goldens.expected_rows(name) if "UNIQ_KEY" in row["properties"]]
    for row in rows[:: len(rows) // 6]:
        unique, words = row["properties"]["UNIQ_KEY"], row["properties"].get("KEYS", "").split()
        for key in [unique, *words[:1]]:
            found, _ = _read(root, key=key)
            assert found == _told(name, _has_key(key))
            assert _read(root, key=key, subscribe=row["topic"])[0] == [
                place for place in found if place[0] == row["topic"]
            ]
        found, looked_at = _read(root, messageId=unique)
        assert found == _told(name, partial(_is, unique=unique))
        assert looked_at == len(found) or name == "rocksdb-5.5.0"
        if row["msgId"]:
            assert _read(root, messageId=row["msgId"])[0] == _told(name, partial(_is, msg_id=row["msgId"]))


def test_a_narrowed_read_looks_at_the_messages_alone(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    (row, *_) = told("basic-5.5.0", lambda row: row["topic"] == "Orders" and "KEYS" in row["properties"])
    key = row["properties"]["KEYS"].split()[0]
    found, looked_at = _read(root, key=key)
    assert looked_at == len(found) > 0
    assert _read(root, key=key, mode="PERMISSIVE")[1] > looked_at
    assert _read(root, key="nobody's") == ([], 0)
    first = f'{{"Orders":{{"{row["queueId"]}":{row["queueOffset"] + 1}}}}}'
    assert (row["topic"], row["queueId"], row["queueOffset"]) in found
    later, _ = _read(root, key=key, subscribe="Orders", startingOffsets=first)
    assert (row["topic"], row["queueId"], row["queueOffset"]) not in later


def test_light_queues_are_looked_at(golden: Golden) -> None:
    row = next(row for row in goldens.expected_rows("edge-5.5.0") if row["topic"].startswith("%LMQ%"))
    found, looked_at = _read(golden("edge-5.5.0"), subscribe=row["topic"], messageId=row["msgId"])
    assert (row["topic"], row["queueId"], row["queueOffset"]) in found
    assert looked_at > len(found) or looked_at == 1


def test_damage_elsewhere_is_no_matter_and_damage_here_is(golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, "basic-5.5.0", tmp_path)
    rows = told("basic-5.5.0", lambda row: row["topic"] == "Audit" and row["body"])
    victim, other = rows[5], rows[-5]
    flip(root, victim["physicalOffset"] + 90)
    unique = [row["properties"]["UNIQ_KEY"] for row in (victim, other)]
    assert _read(root, messageId=unique[1])[0] == [("Audit", other["queueId"], other["queueOffset"])]
    with pytest.raises(CorruptStoreError):
        _read(root, messageId=unique[0])
    assert _read(root, messageId=unique[0], mode="DROPMALFORMED")[0] == []


@pytest.mark.parametrize(
    ("offsets", "parts"),
    [
        ([], []),
        ([5], [(5, 6)]),
        ([7, 5, 6, 5], [(5, 8)]),
        ([1, 3, 4, 9, 10, 99], [(3, 5), (9, 10)]),
    ],
)
def test_narrowed(offsets: list[int], parts: list[tuple[int, int]]) -> None:
    piece = QueueSlice(QueueRange("t", 0, 0, 99, None), 3, 10)
    assert [(part.start, part.stop) for part in narrowed(piece, offsets)] == parts
