"""A stream's reader as Spark 4.0 and 4.1 call it: `latestOffset` without a start, and after a restart first
an empty micro-batch at the newest offset of the checkpoint. Every Spark can run these calls.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from rmq_spark.spark import compat
from rmq_spark.spark.data_source import RmqLogDataSource
from rmq_spark.spark.stream_reader import RmqLogStreamReader
from store_format.errors import OffsetOutOfRangeError, OptionError
from tests.support.staged import append, deleted_topic, numbered

_Json = dict[str, Any]


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


@pytest.fixture
def older_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """What compat.py knows about Spark 4.0 and 4.1."""
    monkeypatch.setattr(compat, "HAS_ADMISSION", False)
    monkeypatch.setattr(compat, "__version__", "4.0.5")


class Query:
    """A query by Spark's calls. `restart` is another process with the same checkpoint."""

    def __init__(self, root: Path, **options: str) -> None:
        self.options = {"path": str(root), "startingoffsets": "earliest", **options}
        self.ends: list[_Json] = []
        self.reader = self._reader()

    def _reader(self) -> RmqLogStreamReader:
        source = RmqLogDataSource(CaseInsensitiveDict(self.options))
        reader = source.streamReader(source.schema())
        assert isinstance(reader, RmqLogStreamReader)
        return reader

    def restart(self, **options: str) -> None:
        self.options |= options
        self.reader = self._reader()
        newest = self.ends[-1]
        assert self.rows(newest, newest) == 0  # Spark's AcceptsLatestSeenOffset

    def step(self) -> int:
        """The number of messages of the next micro-batch; 0 if Spark would see no new offset."""
        newest = json.loads(json.dumps(self.reader.latestOffset()))
        if self.ends and newest == self.ends[-1]:
            return 0
        start = self.ends[-1] if self.ends else self.reader.initialOffset()
        self.ends.append(newest)
        return self.rows(start, newest)

    def rows(self, start: _Json, end: _Json) -> int:
        parts = self.reader.partitions(start, end)
        return sum(batch.num_rows for part in parts for batch in self.reader.read(part))


def test_without_a_start_each_message_comes_once(root: Path) -> None:
    query = Query(root)
    assert [query.step(), query.step()] == [20, 0]
    append(root, numbered("T", 20, 6))
    append(root, numbered("New", 0, 3))
    assert [query.step(), query.step()] == [9, 0]


def test_a_restart_goes_on_at_the_checkpoint(root: Path) -> None:
    query = Query(root)
    query.step()
    append(root, numbered("T", 20, 6))
    append(root, numbered("New", 0, 3))
    query.restart(startingoffsets="latest")
    assert [query.step(), query.step()] == [9, 0]


def test_a_repeated_micro_batch_has_the_same_messages(root: Path) -> None:
    query = Query(root)
    query.step()
    append(root, numbered("T", 20, 6))
    query.step()
    append(root, numbered("T", 26, 2))
    query.restart()
    assert query.rows(*query.ends) == 6
    assert [query.step(), query.step()] == [2, 0]


def test_a_stream_may_start_at_the_end(root: Path) -> None:
    query = Query(root, startingoffsets="latest")
    assert query.step() == 0
    append(root, numbered("T", 20, 3))
    assert query.step() == 3


def test_a_deleted_topic_is_a_loss_after_a_restart(root: Path) -> None:
    append(root, numbered("Gone", 0, 4))
    query = Query(root)
    assert query.step() == 24
    deleted_topic(root, "Gone")
    query.restart()
    with pytest.raises(OffsetOutOfRangeError, match="no longer has the queue"):
        query.step()
    query.restart(failondataloss="false")
    append(root, numbered("T", 20, 2))
    assert [query.step(), query.step()] == [2, 0]


@pytest.mark.usefixtures("older_spark")
def test_limits_are_ignored_with_one_warning(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(root, maxoffsetspertrigger="3", minoffsetspertrigger="2", maxtriggerdelay="1h")
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        assert query.step() == 20
        append(root, numbered("T", 20, 1))
        assert query.step() == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        "maxOffsetsPerTrigger, minOffsetsPerTrigger needs Spark 4.2 or newer, found Spark 4.0.5: it is "
        "ignored, and each micro-batch reads all messages that there are"
    )


@pytest.mark.usefixtures("older_spark")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"group": "G", "maxoffsetspertrigger": "3"}, "group in a stream"),
        ({"group": "G", "leasetime": "30s"}, "group in a stream"),
        ({"group": "G", "consumemode": "pop"}, "consumeMode=pop"),
    ],
)
def test_a_stream_of_a_group_is_refused_at_load(root: Path, options: dict[str, str], named: str) -> None:
    source = RmqLogDataSource(CaseInsensitiveDict({"path": str(root), "subscribe": "T", **options}))
    with pytest.raises(OptionError) as caught:
        source.schema()
    assert str(caught.value).startswith(f"{named} needs Spark 4.2 or newer, found Spark 4.0.5; ")


@pytest.mark.usefixtures("older_spark")
def test_a_group_alone_may_be_a_batch_so_the_stream_is_refused_at_its_start(root: Path) -> None:
    source = RmqLogDataSource(CaseInsensitiveDict({"path": str(root), "subscribe": "T", "group": "G"}))
    schema = source.schema()
    assert source.reader(schema).partitions()
    with pytest.raises(OptionError, match=r"group in a stream needs Spark 4\.2 or newer"):
        source.streamReader(schema).initialOffset()


@pytest.mark.skipif(not compat.HAS_ADMISSION, reason="Spark 4.2 and newer keep limits")
def test_this_spark_keeps_limits(root: Path) -> None:
    query = Query(root, maxoffsetspertrigger="3")
    assert query.step() == 3
