"""Every golden store's user topics through Spark: read, written into a new store, and read again, the same
messages.

What no client could have sent, which only the edge store has, is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from store_format.names import RESERVED_PROPERTIES
from tests.support import goldens
from tests.support.spark.frames import read

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Golden = Callable[[str], Path]

EDGE = "edge-5.5.0"
COLUMNS = "topic,body,tags,keys,flag,properties,msgId,bornTimestampMs,bornHost"

# The edge store's rows beyond a client's limits: why they are refused -> what they are.
BEYOND = {
    "expected at most 127 characters": "length(topic) > 127",
    "expected a body of at least 1 byte, found an empty one": "length(body) = 0",
    "expected properties of at most": "size(filter(map_values(properties), value -> length(value) > "
    "30000)) > 0",
}


def _same(row: Row) -> str:
    """A message as its producer made it. Without a UNIQ_KEY its id was its place, and a client gives it
    one.
    """
    properties = {
        name: value
        for name, value in row.properties.items()
        if name not in RESERVED_PROPERTIES | {"WAIT", "UNIQ_KEY"}
    }
    unique = row.msgId if "UNIQ_KEY" in row.properties else None
    fields: list[Any] = [
        row.topic,
        bytes(row.body),
        row.tags,
        row.keys,
        row.flag,
        row.bornTimestampMs,
        row.bornHost,
        unique,
    ]
    return repr([*fields, row.properties.get("__SHARDINGKEY"), sorted(properties.items())])


def _messages(frame: DataFrame, known: set[str] | None = None) -> Counter[str]:
    """`known` are the ids that messages had before; those of others were made by the write."""
    rows = frame.collect()
    if known is not None:
        rows = [row if row.msgId in known else _without_id(row) for row in rows]
    return Counter(map(_same, rows))


def _without_id(row: Row) -> Row:
    from pyspark.sql import Row

    properties = {name: value for name, value in row.properties.items() if name != "UNIQ_KEY"}
    return Row(**row.asDict() | {"properties": properties})


def _write(frame: DataFrame, path: Path) -> None:
    writer = (
        frame.write.format("rmqlog")
        .mode("append")
        .option("mappedFileSizeCommitLog", "16m")
        .option("maxHashSlotNum", "1000")
    )
    writer.option("maxIndexNum", "4000").option("flushDiskType", "ASYNC_FLUSH").option(
        "maxMessageSize", "8m"
    ).save(str(path))


@pytest.mark.parametrize("name", goldens.NAMES)
def test_what_a_broker_stored_is_written_and_read_again(
    spark: SparkSession, golden: Golden, tmp_path: Path, name: str
) -> None:
    source = read(spark, golden(name), columns=COLUMNS)
    if name == EDGE:
        source = source.where(" AND ".join(f"NOT ({beyond})" for beyond in BEYOND.values()))
    source = source.cache()
    _write(source, tmp_path / "store")
    known = {row.msgId for row in source.collect() if "UNIQ_KEY" in row.properties}
    before = _messages(source)
    assert sum(before.values()) > 20
    assert _messages(read(spark, tmp_path / "store", columns=COLUMNS), known) == before
    source.unpersist()


@pytest.mark.parametrize("why", BEYOND)
def test_what_no_client_could_send_is_refused_by_name(
    spark: SparkSession, golden: Golden, tmp_path: Path, why: str
) -> None:
    rows = read(spark, golden(EDGE), columns=COLUMNS).where(BEYOND[why])
    topics = {row.topic for row in rows.select("topic").collect()}
    assert topics
    with pytest.raises(Exception, match=f"IllegalMessageError: topic .*{why}") as caught:
        _write(rows.coalesce(1), tmp_path / "store")
    assert any(f"topic {topic[:127]}" in str(caught.value) for topic in topics)
    assert not (tmp_path / "store").exists()
