"""The writers of Spark, driven by hand."""

from __future__ import annotations

from pathlib import Path

from rmq_spark.spark.writers import RmqLogStreamWriter, StagedMessage
from rmq_spark.write.stage_and_commit import stage_rows
from tests.support.writes import bodies, numbered_rows, target_of


def test_a_replayed_stream_batch_is_not_written_again(tmp_path: Path) -> None:
    """The driver died between the commit and Spark's own commit log: the next run commits the batch anew."""
    for _ in range(2):
        target = target_of(tmp_path / "store")
        message = StagedMessage(target, stage_rows(target, [numbered_rows(0, 5)]), "query-1")
        RmqLogStreamWriter(target).commit([message], 7)
    assert bodies(tmp_path / "store") == dict.fromkeys(range(5), 1)
    assert not any((tmp_path / "store/.rmqlog/staging").iterdir())
