"""How many partitions a plan has, whatever the options ask for."""

from __future__ import annotations

import logging

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan import splits as splits_room
from rmq_spark.plan.batch import plan
from tests.support.fixtures import Golden


@pytest.mark.timeout(20)
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_there_is_an_end_to_the_partitions(
    golden: Golden,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    split_by: str,
) -> None:
    options = {"path": str(golden("basic-5.5.0")), "subscribe": "Orders", "splitBy": split_by}
    queues = 4
    every = plan(parse_read_options(options | {"minPartitions": str(2**31 - 1)}), cores=1).splits
    messages = sum(
        piece.stop - piece.start for split in every for share in split.shares for piece in share.slices
    )
    assert messages == 1326
    assert len(every) <= messages
    assert caplog.messages == []
    monkeypatch.setattr(splits_room, "_SPLITS_MAX", 3)
    with caplog.at_level(logging.WARNING):
        few = plan(parse_read_options(options | {"maxBytesPerPartition": "64k"}), cores=1).splits
    assert len(few) <= 3 + queues
    (told,) = caplog.messages
    assert told.startswith("maxBytesPerPartition 65536 would make ")
    assert told.endswith(" bytes per partition")
    assert (
        sum(piece.stop - piece.start for split in few for share in split.shares for piece in share.slices)
        == messages
    )
