"""Checkpoints of vectors and of every broker-written store, and files that are short, missing or noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError
from store_format.layouts import CHECKPOINT, CHECKPOINT_FILE_SIZE
from store_format.metadata.read import CHECKPOINT_SINCE, Checkpoint, read_checkpoint
from tests.support import goldens
from tests.support.fixtures import Golden

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())


def test_vector(tmp_path: Path) -> None:
    vector = VECTORS["checkpoint"]
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes.fromhex(vector["hex_first_40"]).ljust(vector["file_length"], b"\0"))
    assert vector["file_length"] == CHECKPOINT_FILE_SIZE
    assert read_checkpoint(str(path)) == Checkpoint(
        vector["physic_msg_timestamp"],
        vector["logics_msg_timestamp"],
        vector["index_msg_timestamp"],
        vector["master_flushed_offset"],
        vector["confirm_phy_offset"],
        0,  # a file of 5.4 or before, as 5.5 reads it
    )


@pytest.mark.parametrize("name", goldens.NAMES)
def test_golden(golden: Golden, name: str) -> None:
    for store, answers in goldens.brokers(name, golden(name)).values():
        expected = answers["checkpoint"]
        assert read_checkpoint(str(store / "checkpoint")) == Checkpoint(
            expected["physicMsgTimestamp"],
            expected["logicsMsgTimestamp"],
            expected["indexMsgTimestamp"],
            expected["masterFlushedOffset"],
            expected["confirmPhyOffset"],
            expected["logicsPhysicalOffset"],
        )


@given(content=st.binary(max_size=60))
def test_any_bytes_are_the_longs_they_hold(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "checkpoint"
    path.write_bytes(content)
    padded = content[:48].ljust(48, b"\0")
    longs = [int.from_bytes(padded[i : i + 8], "big", signed=True) for i in range(0, 48, 8)]
    checkpoint = read_checkpoint(str(path))
    assert checkpoint == Checkpoint(*longs)
    assert checkpoint is not None
    assert len(checkpoint.implausible) == sum(value < 0 for value in longs)


def test_missing_file_and_what_is_no_file(tmp_path: Path) -> None:
    assert read_checkpoint(str(tmp_path / "checkpoint")) is None
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "directory")
    for name in ("directory", "link"):
        with pytest.raises(CorruptStoreError) as caught:
            read_checkpoint(str(tmp_path / name))
        assert caught.value.file == str(tmp_path / name)


def test_recovery_starts_three_seconds_early() -> None:
    assert Checkpoint(10_000, 9_000).timestamp_min == 6_000
    assert Checkpoint(10_000, 0).timestamp_min == 0


def test_every_long_says_since_when() -> None:
    assert tuple(CHECKPOINT_SINCE) == CHECKPOINT.names
