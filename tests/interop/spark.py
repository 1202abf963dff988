"""What Spark writes for RocketMQ to read, and what it reads of a store: rows of every kind, and the same as a
client's lines.

Expected lines are made from the given rows alone, with nothing of what the writer decides.
"""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.interop.programs import Line
from tests.interop.rows import COLUMNS, by_place, line_of
from tests.support import oracle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]  # Any: values of a column

# So small that the commitlog, the consume queues and the index roll over.
SMALL_FILES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}

_SCHEMA = (
    "topic string, body binary, tags string, keys array<string>, flag int, properties map<string,string>, "
    "queueId int, shardingKey string, bornTimestamp timestamp, bornHost string, delayTimeLevel int, "
    "deliverTimestamp timestamp"
)
_BORN = datetime(2024, 2, 29, 23, 59, 59, 123000, tzinfo=UTC)
_TAGS = ("TagA", "TagB", None, "标签 mit Leerzeichen", "TagA")
_KEYS: tuple[list[str] | None, ...] = (["{}"], ["{}", "grp-{shard}"], None, ["{}", "Schlüssel-{}"], [])
_HOSTS = (("192.168.0.9", 4711), ("2001:db8::1", 65535), None)
# the writer's choice, and how a message for later got where it is
_TRACES = ("UNIQ_KEY", "DELAY", "REAL_", "TIMER_")


def rows(seed: str, topics: Sequence[str], count: int, **same: Any) -> list[Row]:
    """`count` rows, their topics in turn; `same` are columns with one value for all. Every combination of
    present and absent comes.
    """
    return [_row(seed, i, topics[i % len(topics)]) | same for i in range(count)]


def _row(seed: str, i: int, topic: str) -> Row:
    shard = i // 7 % 5
    keys = _KEYS[i // 3 % len(_KEYS)]
    host = _HOSTS[i // 2 % len(_HOSTS)]
    return {
        "topic": topic,
        "body": _body(seed, i),
        "tags": _TAGS[i // 5 % len(_TAGS)],
        "keys": None if keys is None else [key.format(f"key-{seed}-{i}", shard=shard) for key in keys],
        "flag": (-1) ** i * i,
        "properties": None if i % 11 == 0 else {"备注": f"n {i} 🚀", "seed": seed, "a=b": "\t;\x01 "},
        "shardingKey": f"shard-{shard}" if i % 4 else None,
        "bornTimestamp": _BORN + timedelta(milliseconds=i) if i % 6 else None,
        "bornHost": None if host is None else oracle.java_host(host),
    }


def _body(seed: str, i: int) -> bytes:
    text = f"消息 {seed}-{i} 🚀".encode()
    if i % 10 == 9:
        return text * 600  # above compressMsgBodyOverHowmuch
    if i % 10 == 4:
        return text + random.Random(i).randbytes(5000)  # above it too, and compression makes it larger
    return text + (bytes(range(256)) if i % 10 == 6 else b"")


def frame(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """In one partition, so that the rows are written in their order."""
    names = [column.split(" ")[0] for column in _SCHEMA.split(", ")]
    return spark.createDataFrame([tuple(row.get(name) for name in names) for row in rows], _SCHEMA).coalesce(
        1
    )


def write(spark: SparkSession, store: Path, rows: Iterable[Row], **options: str) -> None:
    """The usual append."""
    frame(spark, rows).write.format("rmqlog").mode("append").options(**options).save(str(store))


def write_stream(
    spark: SparkSession, store: Path, batches: Iterable[Iterable[Row]], directory: Path, **options: str
) -> None:
    """Each of the batches a micro-batch of one query, whose source and checkpoint are in `directory`: a
    second call goes on with it.
    """
    for batch in batches:
        frame(spark, batch).write.mode("append").parquet(str(directory / "source"))
        stream_into(spark, store, directory, **options)


def stream_into(spark: SparkSession, store: Path, directory: Path, **options: str) -> None:
    """What is new in the source, a file each micro-batch."""
    reader = (
        spark.readStream.schema(_SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(directory / "source"))
    )
    writer = reader.writeStream.format("rmqlog").options(
        checkpointLocation=str(directory / "checkpoint"), path=str(store), **options
    )
    writer.trigger(availableNow=True).start().awaitTermination()


# ---- what a client must get --------------------------------------------------------------------------------


def wanted(rows: Iterable[Row]) -> Counter[str]:
    """The messages of these rows as text, as many as there are of each."""
    return Counter(_text(_wanted_line(row)) for row in rows)


def _wanted_line(row: Row) -> Line:
    properties = dict(row["properties"] or {}) | {"WAIT": "true"}
    named = {"TAGS": row["tags"], "KEYS": " ".join(row["keys"] or []), "__SHARDINGKEY": row["shardingKey"]}
    properties |= {name: value for name, value in named.items() if value}
    line = {
        "topic": row["topic"],
        "flag": row["flag"],
        "body": b64encode(row["body"]).decode(),
        "properties": properties,
    }
    line |= {
        "bornTimestamp": None
        if row["bornTimestamp"] is None
        else round(row["bornTimestamp"].timestamp() * 1000)
    }
    return line | {"bornHost": row["bornHost"], "reconsumeTimes": 0, "preparedTransactionOffset": 0}


def as_written(lines: Iterable[Line], rows: Sequence[Row]) -> Counter[str]:
    """Lines in the form of `wanted`: a time or host that no row gave is the writer's choice. Topic and flag
    tell rows apart.
    """
    given = {(row["topic"], row["flag"]): row for row in rows}
    return Counter(_text(_written_line(line, given[line["topic"], line["flag"]])) for line in lines)


def _written_line(line: Line, row: Row) -> Line:
    properties = {name: value for name, value in line["properties"].items() if not name.startswith(_TRACES)}
    kept = {
        name: line[name] for name in ("topic", "flag", "body", "reconsumeTimes", "preparedTransactionOffset")
    }
    chosen = {name: None if row[name] is None else line[name] for name in ("bornTimestamp", "bornHost")}
    return kept | {"properties": properties} | chosen


def _text(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False, sort_keys=True)


# ---- what Spark reads --------------------------------------------------------------------------------------


def collected(spark: SparkSession, store: Path, **options: str) -> list[Line]:
    """Every row of every topic as Spark gives them, with the fields of expected.jsonl.gz."""
    reader = spark.read.format("rmqlog").options(
        columns=",".join(COLUMNS), includeSystemTopics="true", **options
    )
    return [line_of(row.asDict()) for row in reader.load(str(store)).collect()]


def spark_lines(spark: SparkSession, store: Path) -> list[Line]:
    """The same by place, after a look at the order: the rows of a queue come one after the other, none
    missing, none twice.
    """
    lines = collected(spark, store)
    places: dict[tuple[str, int], list[int]] = {}
    for line in lines:
        places.setdefault((line["topic"], line["queueId"]), []).append(line["queueOffset"])
    for queue, offsets in places.items():
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), queue
    return by_place(lines)
