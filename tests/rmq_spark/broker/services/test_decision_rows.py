"""Rows that decide half messages, without Spark: tasks collect names, the driver decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.broker.services.decision_rows import check_name_columns, collect_names, commit_decisions
from rmq_spark.options.write_options import parse_write_options
from rmq_spark.write.stage_and_commit import begin_write
from rmq_spark.write.target import open_target
from store_format.bookkeeping.ledger import Ledger
from store_format.errors import (
    IllegalMessageError,
    OptionError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from store_format.opened.store import Opened
from tests.support.halves import half_store, states, visible


def decide(
    path: Path, rows: list[dict[str, Any]], *, key: tuple[str, int] | None = None, **options: str
) -> int:
    """Two tasks, each with half of the rows."""
    kind = {"transaction": "commit"} | options
    target = begin_write(open_target(parse_write_options({"path": str(path), **kind})))
    schema = pa.schema([("msgId", pa.string()), ("brokerName", pa.string()), ("halfQueueOffset", pa.int32())])
    half = (len(rows) + 1) // 2
    tables = [
        collect_names(target, [pa.RecordBatch.from_pylist(part, schema)], partition=number)
        for number, part in enumerate((rows[:half], rows[half:]))
    ]
    return commit_decisions(target, tables, key)


def named(*ids: str, **more: Any) -> list[dict[str, Any]]:
    return [{"msgId": each, **more} for each in ids]


def test_rows_are_decided_once_for_each_key(tmp_path: Path) -> None:
    path = half_store(tmp_path / "store", ["A", "B", "C", "D"])
    assert decide(path, named("A", "B", "A"), key=("job", 1)) == 2
    assert decide(path, named("C"), key=("job", 1)) == 0  # the same batch again, as the key says
    assert visible(path) == ["A", "B"]
    assert decide(path, named("A"), key=("job", 2)) == 0  # decided already: nothing is written
    assert Ledger.read(Opened(str(path))).has(("job", 2))
    assert decide(path, [{"halfQueueOffset": 3}], transaction="rollback") == 1
    assert states(path) == {"A": "committed", "B": "committed", "C": "pending", "D": "rolled back"}
    assert not list((path / ".rmqlog" / "staging").iterdir())


@pytest.mark.parametrize(
    ("rows", "options", "match"),
    [
        (named("A", "X"), {}, r"row 0 of partition 1 \(msgId 'X'\): expected a half message"),
        (named("B", "B"), {}, r"row 0 of .*msgId 'B'.*pending half message to commit.*rolled back"),
        (named(None), {}, "row 0 of partition 0: expected the msgId of a half message, found null"),  # type: ignore[arg-type]
        (named("A", brokerName="b"), {}, "expected a half message of 'store', found 'b'"),
        (named("A"), {"producerGroup": "PG"}, "producerGroup PG, found one of PG_orders"),
    ],
)
def test_rows_that_decide_nothing_are_named_and_nothing_is_written(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, str], match: str
) -> None:
    path = half_store(tmp_path / "store", ["A", "B"])
    decide(path, named("B"), transaction="rollback")
    with pytest.raises((OptionError, IllegalMessageError), match=match):
        decide(path, rows, key=("job", 1), **options)
    assert visible(path) == []
    assert not Ledger.read(Opened(str(path))).has(("job", 1))


def test_a_cluster_is_decided_store_by_store(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    for broker, ids in (("broker-a", ["A", "SAME"]), ("broker-b", ["B", "SAME"])):
        half_store(cluster / broker, ids)
    with pytest.raises(OptionError, match="one broker, found one in broker-a and one in broker-b"):
        decide(cluster, named("A", "B", "SAME"))
    rows = [*named("A", "B"), *named("SAME", brokerName="broker-b")]
    decide(cluster / "broker-a", named("A"), key=("job", 7))  # a crash came before broker-b
    assert decide(cluster, rows, key=("job", 7)) == 2
    assert (visible(cluster / "broker-a"), visible(cluster / "broker-b")) == (["A"], ["B", "SAME"])
    assert states(cluster / "broker-a")["SAME"] == "pending"


def test_columns_and_stores_that_cannot_be_decided_are_refused(tmp_path: Path) -> None:
    def check(path: Path, *columns: tuple[str, str]) -> None:
        options = parse_write_options({"path": str(path), "transaction": "commit"})
        check_name_columns(columns, open_target(options))

    path = half_store(tmp_path / "store", ["A"])
    check(path, ("MSGID", "string"), ("anything", "map<string,int>"))
    with pytest.raises(OptionError, match="expected the column msgId or halfQueueOffset, found neither"):
        check(path, ("id", "string"))
    with pytest.raises(OptionError, match="column halfQueueOffset: expected bigint, found string"):
        check(path, ("halfQueueOffset", "string"))
    with pytest.raises(OptionError, match="expected the column msgId once, found it twice"):
        check(path, ("msgId", "string"), ("msgid", "string"))
    with pytest.raises(StoreNotFoundError, match="expected the store of the half messages"):
        check(tmp_path / "none", ("msgId", "string"))
    (path / ".rmqlog" / "broker.conf").write_text("transRocksDBEnable=true\n")
    for options in ({"transaction": "commit"}, {"transaction": "half", "producerGroup": "PG"}):
        with pytest.raises(UnsupportedFormatError, match="transRocksDBEnable"):
            open_target(parse_write_options({"path": str(path), **options}))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"transaction": "half"}, "transaction=half is given without producerGroup"),
        ({"producerGroup": "PG"}, "producerGroup is given without transaction"),
        ({"transaction": "commit", "topic": "T"}, "transaction=commit and topic are given together"),
        ({"transaction": "commit", "sendBack": "CG"}, "sendBack and transaction are given together"),
        ({"transaction": "prepare"}, "transaction"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, str], match: str) -> None:
    with pytest.raises(OptionError, match=match):
        parse_write_options({"path": "/data/store", **options})
