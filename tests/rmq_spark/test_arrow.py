"""Arrow's stream interface: messages out of a store, for other libraries, and tables into one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest

import rmq_spark
from rmq_spark.store import LogStore
from store_format import CommitOptions, MessageColumns, MessageStore
from store_format.errors import CorruptStoreError, IllegalMessageError, OptionError
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered

ORDERS = {"topic": "Orders"}
TABLE = pa.table({"keys": ["A-1", "A-2"], "body": ["one", "two"], "queueId": pa.array([1, 0], pa.uint8())})


def _open(root: Path) -> LogStore:
    opened = rmq_spark.open(root)
    assert isinstance(opened, LogStore)
    return opened


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return _open(make_store(tmp_path / "store"))


def _bodies(store: LogStore, topic: str = "Orders") -> list[bytes]:
    bodies: list[bytes] = store.messages(topic).to_table()["body"].to_pylist()
    return sorted(bodies)


# ---- out of a store ----------------------------------------------------------------------------------------


def test_libraries_read_messages_as_a_stream(golden: Golden) -> None:
    messages = _open(golden("basic-5.5.0")).messages("Orders")
    table = messages.to_table()
    assert pa.table(messages) == table
    assert pa.RecordBatchReader.from_stream(messages).read_all() == table
    assert pa.schema(messages) == table.schema
    assert polars.DataFrame(messages).height == table.num_rows
    found = duckdb.query("SELECT count(*), sum(octet_length(body)) FROM messages")
    assert found is not None
    assert found.fetchall() == [(table.num_rows, sum(map(len, table["body"].to_pylist())))]


def test_a_cluster_is_one_stream(golden: Golden) -> None:
    messages = rmq_spark.open(golden("cluster-5.5.0")).messages()
    assert polars.DataFrame(messages).height == messages.to_table().num_rows > 0


def test_a_stream_reads_no_further_than_it_is_asked(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 1000))
    files = sorted((root / "commitlog").iterdir())
    reader = pa.RecordBatchReader.from_stream(_open(root).messages("T"))
    assert reader.read_next_batch().num_rows
    damaged = bytearray(files[-2].read_bytes())
    damaged[200:220] = bytes(20)
    files[-2].write_bytes(damaged)
    with pytest.raises(CorruptStoreError) as error:
        _open(root).messages("T").to_table()
    with pytest.raises(pa.ArrowInvalid) as found:
        list(reader)
    assert str(error.value).split(";")[0] in str(found.value)


# ---- into a store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "table",
    [
        TABLE,
        TABLE.to_batches()[0],
        polars.DataFrame(TABLE),
        TABLE.to_pandas(),
        TABLE.cast(pa.schema([("keys", pa.dictionary(pa.int8(), pa.string())), *list(TABLE.schema)[1:]])),
    ],
    ids=["table", "batch", "polars", "pandas", "dictionary"],
)
def test_a_table_of_any_library(store: LogStore, table: Any) -> None:
    result = store.append(table, options=ORDERS)
    assert result.queues == {("Orders", 0): (0, 1), ("Orders", 1): (0, 1)}
    rows = store.messages("Orders", columns=["queueId", "keys", "body", "msgId"]).to_table().to_pylist()
    assert [(row["queueId"], row["keys"], row["body"]) for row in rows] == [
        (1, ["A-1"], b"one"),
        (0, ["A-2"], b"two"),
    ]
    assert len({row["msgId"] for row in rows}) == 2  # a producer's ids


def test_a_query_of_duckdb(store: LogStore) -> None:
    store.append(
        duckdb.sql("SELECT 'Orders' topic, 'abc'::blob body, ['k', 'l'] keys, map{'a': 'b'} properties")
    )
    (row,) = store.messages("Orders").to_table().to_pylist()
    assert (row["body"], row["keys"], dict(row["properties"])["a"]) == (b"abc", ["k", "l"], "b")


def test_a_search_of_duckdb_finds_bodies_that_are_not_utf8(store: LogStore) -> None:
    page = (Path(__file__).parents[2] / "docs/python.md").read_text(encoding="utf-8")
    advice = "decode(body, 'replace')"
    assert f"`{advice}` is its text in DuckDB 2.0" in page
    store.append(pa.table({"topic": ["Orders"] * 2, "body": [b"\xff paid", "订单 paid".encode()]}))
    messages = store.messages("Orders")  # noqa: F841  DuckDB reads the local variable
    found = duckdb.sql(f"SELECT {advice} text FROM messages WHERE contains(text, 'paid') ORDER BY 1")
    assert found is not None
    assert found.fetchall() == [("? paid",), ("订单 paid",)]


def test_messages_of_another_store(store: LogStore, tmp_path: Path) -> None:
    other = make_store(tmp_path / "other")
    append(other, numbered("T", 0, 30_000, queues=4))
    store.append(_open(other).messages("T"))
    assert _bodies(store, "T") == _bodies(_open(other), "T")


def test_a_key_is_written_once(store: LogStore) -> None:
    assert store.append(TABLE, options=ORDERS, key=("import", 1)).committed
    assert not store.append(TABLE, options=ORDERS, key=("import", 1)).committed
    as_spark = ORDERS | {"txnAppId": "import", "txnVersion": 1, "messageIndexEnable": False}
    assert not store.append(TABLE, options=as_spark).committed
    with pytest.raises(OptionError, match="expected key, or txnAppId and txnVersion, found both"):
        store.append(TABLE, options=as_spark, key=("import", 2))
    assert _bodies(store) == [b"one", b"two"]


def test_half_messages_are_new_messages(store: LogStore) -> None:
    store.append(TABLE, options=ORDERS | {"transaction": "half", "producerGroup": "PG"})
    assert store.view("transactions").num_rows == 2


def test_a_commitlog_elsewhere(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 10))
    (root / "commitlog").rename(tmp_path / "log")
    store = rmq_spark.open(root, commit_log_paths=[str(tmp_path / "log")])
    assert isinstance(store, LogStore)
    with pytest.raises(OptionError, match="expected the commitlog in "):
        store.append(TABLE, options=ORDERS)
    assert not (root / "commitlog").exists()


def test_columns_are_stored_as_they_are(store: LogStore) -> None:
    columns = MessageColumns(
        topic="Orders", body=pa.array([b"one"]), properties=pa.array([b""], pa.large_binary())
    )
    store.append(columns, options=CommitOptions(new_topics={"Orders": 2}))
    assert _bodies(store) == [b"one"]
    with pytest.raises(OptionError, match="expected CommitOptions for MessageColumns, found a mapping"):
        store.append(columns, options=ORDERS)


@pytest.mark.parametrize(
    ("table", "given", "error"),
    [
        ([1], {}, "append: expected MessageColumns, an Arrow table, or an object with __arrow_c_stream__, "),
        (TABLE, {}, "topic: expected the option topic or a column topic, found neither"),
        (TABLE, {"options": {"topik": "T"}}, "unknown option 'topik'; did you mean topic?"),
        (TABLE, {"options": {"sendback": "g"}}, "append: expected a table of new messages, found the option"),
        (TABLE, {"options": ORDERS, "store_timestamps": 5}, "append: expected neither store_timestamps nor "),
        (TABLE, {"options": CommitOptions()}, "append: expected neither store_timestamps nor CommitOptions "),
        (
            pa.table({"value": ["a"]}),
            {"options": ORDERS},
            "columns: unknown column 'value'; did you mean body",
        ),
        (
            pa.table({"body": ["a"], "queueId": pa.array([1], pa.uint64())}),
            {"options": ORDERS},
            "column queueId: expected int or bigint, found uint64",
        ),
        (
            pa.table({"body": ["a"], "bornTimestamp": [datetime(2026, 1, 1)]}),
            {"options": ORDERS},
            "column bornTimestamp: expected timestamp or bigint, found timestamp_ntz; cast it to timestamp",
        ),
        (pa.table({"body": ["a", None]}), {"options": ORDERS}, "topic Orders, row 1: expected a body of at "),
    ],
)
def test_what_is_refused_is_not_written(
    store: LogStore, table: Any, given: dict[str, Any], error: str
) -> None:
    with pytest.raises((OptionError, IllegalMessageError)) as found:
        store.append(table, **given)
    assert str(found.value).startswith(error)
    assert store.topics() == []
    assert not any((Path(store.path) / ".rmqlog" / "staging").glob("*/*"))


def test_a_store_without_spark_options_takes_no_table(store: LogStore) -> None:
    with pytest.raises(OptionError, match="expected MessageColumns, found Table; "):
        MessageStore.open(store.path).append(TABLE)


@pytest.mark.parametrize(
    "key",
    [
        ("d", "2026-11-30"),
        ("d", None),
        ("d", 1.5),
        ("d", True),
        ("d", -1),
        ("d", 2**63),
        ("d", 1, 2),
        ("d",),
        ("rmqlog/services", 1),
        (7, 1),
        "ab",
        5,
    ],
)
def test_a_key_that_the_ledger_could_not_keep_is_refused_before_anything_is_written(
    store: LogStore, tmp_path: Path, key: Any
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OptionError, match=r"key: expected \(id, number\), found"):
        store.append(TABLE, options=ORDERS, key=key)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_numbers_of_numpy_are_numbers_of_a_key(store: LogStore) -> None:
    for number, committed in ((np.int64(9), True), (10, True), (np.int64(9), False)):
        key = ("d", number)
        assert store.append(TABLE, options=ORDERS, key=key).committed == committed  # type: ignore[arg-type]
