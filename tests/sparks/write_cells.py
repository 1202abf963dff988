"""Cells that write: batches, keyed batches, and streams."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame

from store_format import MessageStore
from tests.sparks.cells import STORE, TIMEOUT_S, TOPIC, Case, Seen, cell, refusal, works

_CONTENT = ["topic", "body", "tags", "keys", "flag", "msgId", "bornTimestampMs", "bornHost", "properties"]


def _content(case: Case, path: Path) -> list[object]:
    rows = case.read(path, columns=",".join(_CONTENT)).collect()
    return sorted((row.asDict() for row in rows), key=repr)


@cell("write")
def write(case: Case) -> Seen:
    target = case.base / "written"
    columns = ",".join(_CONTENT)
    frame = case.read(case.golden(STORE), subscribe=TOPIC, columns=columns)
    frame.write.format("rmqlog").mode("append").save(str(target))
    source = sorted((row.asDict() for row in frame.collect()), key=repr)
    written = _content(case, target)
    assert written == source
    again = refusal(lambda: frame.write.format("rmqlog").mode("overwrite").save(str(target)))
    assert again.startswith("a store can only be appended to")
    return works(rows=len(written))


@cell("keyed write: `keys`, `shardingKey`, once for each `txnAppId` and `txnVersion`")
def keyed_write(case: Case) -> Seen:
    target = case.base / "keyed"
    frame = case.spark.range(200).selectExpr(
        "'T' AS topic",
        "cast(id AS string) AS body",
        "array(concat('k', id), 'all') AS keys",
        "concat('s', id % 7) AS shardingKey",
    )
    for version in (1, 1, 2):
        options = {"messageQueueSelector": "hash", "txnAppId": "daily", "txnVersion": str(version)}
        frame.write.format("rmqlog").mode("append").options(**options).save(str(target))
    rows = case.read(target, columns="body,keys,properties,queueId").collect()
    assert sorted(int(row.body) for row in rows) == sorted([*range(200), *range(200)])
    assert all(row["keys"] == [f"k{int(row.body)}", "all"] for row in rows)
    queues: dict[str, set[int]] = {}
    for row in rows:
        queues.setdefault(row.properties["__SHARDINGKEY"], set()).add(row.queueId)
    assert len(queues) == 7
    assert all(len(of_key) == 1 for of_key in queues.values())
    one = case.read(target, subscribe="T", key="k42").count()
    assert one == 2
    return works(rows=len(rows), queues={key: min(of_key) for key, of_key in queues.items()}, found=one)


@cell("stream write, a repeated batch once", brief=True)
def stream_write(case: Case) -> Seen:
    source, target = case.base / "rows", case.base / "streamed"
    texts = ("cast(id AS string) AS body", "concat('t', id % 3) AS tags", "array(concat('k', id)) AS keys")
    more = ("map('a', cast(id AS string)) AS properties", "id AS bornTimestamp", "'T' AS topic")
    frame = case.spark.range(0, 100, 1, 2).selectExpr(*texts, *more)
    frame.write.parquet(str(source))

    def run() -> None:
        rows: DataFrame = case.spark.readStream.schema(frame.schema).parquet(str(source))
        writer = rows.writeStream.format("rmqlog").trigger(availableNow=True)
        checkpoint = str(case.base / "checkpoints" / "stream-write")
        query = writer.option("checkpointLocation", checkpoint).start(str(target))
        try:
            assert query.awaitTermination(TIMEOUT_S), "the query did not end"
        finally:
            query.stop()

    run()
    # Spark had not noted that the batch was done: it repeats the batch, and the store has it already.
    commit = case.base / "checkpoints" / "stream-write" / "commits" / "0"
    commit.unlink()
    commit.with_name(".0.crc").unlink(missing_ok=True)
    run()
    columns = "body,tags,keys,properties,bornTimestampMs"
    rows = case.read(target, columns=columns).collect()
    assert sorted((int(row.body), row.tags, row["keys"], row.bornTimestampMs) for row in rows) == [
        (number, f"t{number % 3}", [f"k{number}"], number) for number in range(100)
    ]
    assert {row.properties["a"] for row in rows} == {str(number) for number in range(100)}
    assert sum(queue.max_offset for queue in MessageStore.open(str(target)).queues()) == 100
    return works(rows=len(rows))
