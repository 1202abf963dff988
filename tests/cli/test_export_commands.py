"""`export`: what is in the file is what the broker read, the file is whole or not there, and mistakes leave
nothing.
"""

from __future__ import annotations

import base64
import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from store_format.message.columns import arrow_schema
from tests.support import goldens, two_messages
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"
COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset", "body", "properties")


def _expected(topic: str) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    return _found([row for row in goldens.expected_rows(STORE) if row["topic"] == topic])


def _found(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The body and the properties of each place."""
    return {
        (row["topic"], *(int(row[name]) for name in COLUMNS[1:4])): (row["body"], row["properties"])
        for row in rows
    }


def test_parquet(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    out = tmp_path / "orders.parquet"
    done = rmqlog("export", golden(STORE), out, "--topic", "Orders", "--columns", ",".join(COLUMNS))
    assert (done.code, done.out) == (0, "")
    assert done.err == f"rmqlog: 1,326 messages, 694 KiB of the log, into {out}\n"
    table = pq.read_table(out)
    assert table.schema.remove_metadata().names == arrow_schema(COLUMNS).names
    rows = [
        {**row, "body": base64.b64encode(row["body"]).decode(), "properties": dict(row["properties"])}
        for row in table.to_pylist()
    ]
    assert _found(rows) == _expected("Orders")
    for queue in range(4):
        offsets = [row["queueOffset"] for row in rows if row["queueId"] == queue]
        assert offsets == sorted(offsets)


def test_json_lines_and_csv_in_a_file_and_on_stdout(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    arguments = ("--topic", "Orders", "--columns", ",".join(COLUMNS))
    assert rmqlog("export", golden(STORE), tmp_path / "a.jsonl", *arguments).code == 0
    lines = (tmp_path / "a.jsonl").read_text(encoding="utf-8")
    assert _found([json.loads(line) for line in lines.splitlines()]) == _expected("Orders")
    assert rmqlog("export", golden(STORE), "-", "--format", "jsonl", *arguments).out == lines
    assert rmqlog("export", golden(STORE), tmp_path / "a.csv", *arguments).code == 0
    before = csv.field_size_limit(1 << 20)  # one body has 200,000 bytes
    with (tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = [{**row, "properties": json.loads(row["properties"])} for row in csv.DictReader(file)]
    csv.field_size_limit(before)
    assert _found(rows) == _expected("Orders")


def test_filters_and_a_limit(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    assert rmqlog("export", golden(STORE), tmp_path / "a.parquet", "--tag", "TagB", "-n", 5).code == 0
    assert pq.read_table(tmp_path / "a.parquet")["tags"].to_pylist() == ["TagB"] * 5
    cluster = golden("cluster-5.5.0")
    assert rmqlog("export", cluster, tmp_path / "b.parquet", "--columns", "brokerName").code == 0
    assert set(pq.read_table(tmp_path / "b.parquet")["brokerName"].to_pylist()) == {"broker-a", "broker-b"}
    nothing = rmqlog("export", golden(STORE), tmp_path / "c.parquet", "--until", 1000)
    assert (nothing.code, (tmp_path / "c.parquet").exists()) == (1, False)
    assert nothing.err.splitlines()[-1].startswith("rmqlog: no message matches; the oldest message of")


def test_a_file_that_is_there_stays(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    out.write_text("mine")
    assert "exists; give another name, or --force" in rmqlog.fails(2, "export", golden(STORE), out)
    assert out.read_text() == "mine"
    assert rmqlog("export", golden(STORE), out, "--force", "-n", 1).code == 0
    assert json.loads(out.read_text())["topic"] == "Metrics"


@pytest.mark.parametrize(
    ("code", "arguments", "said"),
    [
        (2, ("a.txt",), "cannot tell the format"),
        (2, ("-", "--format", "parquet"), "cannot be written to stdout"),
        (2, ("a.parquet", "--columns", "bdy"), "did you mean body?"),
        (1, ("a.parquet", "--topic", "Oders"), "did you mean Orders?"),
        (5, ("nowhere/a.parquet",), "No such file or directory"),
    ],
)
def test_mistakes_leave_nothing(
    rmqlog: Runner,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in rmqlog.fails(code, "export", golden(STORE), *arguments)
    assert list(tmp_path.iterdir()) == []


def test_damage_leaves_no_file_unless_it_is_skipped(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    at = min(row["physicalOffset"] for row in goldens.expected_rows(STORE) if row["topic"] == "Orders")
    store, out = goldens.flipped(golden(STORE), tmp_path / "store", at + 90), tmp_path / "a.parquet"
    assert "expected body CRC" in rmqlog.fails(3, "export", store, out)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    done = rmqlog("export", store, out, "--skip-damage", "--topic", "Orders")
    assert done.code == 4
    assert pq.read_table(out).num_rows == 1325


def test_damage_in_the_middle_of_a_crashed_log_hides_nothing(
    rmqlog: Runner, golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = sorted(int(row["physicalOffset"]) for row in goldens.expected_rows("crash-5.5.0"))[30]
    store, out = goldens.flipped(golden("crash-5.5.0"), tmp_path / "store", at + 90), tmp_path / "a.parquet"
    assert "expected body CRC" in rmqlog.fails(3, "export", store, out, "-a")
    caplog.clear()
    done = rmqlog("export", store, out, "--skip-damage", "-a")
    assert done.code == 4
    assert pq.read_table(out).num_rows == 849
    (warning,) = [text for text in caplog.messages if "damaged in the middle" in text]
    assert "The 819 whole messages behind the damage" in warning
    assert "A broker that starts on this store cuts the commitlog at 8996" in warning


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_an_export_without_a_message_leaves_no_file(
    rmqlog: Runner, golden: Golden, tmp_path: Path, suffix: str
) -> None:
    out = tmp_path / f"x.{suffix}"
    done = rmqlog("export", golden("basic-5.5.0"), "-k", "nope", out)
    assert (done.code, f"; {out} was not written\n" in done.err, [*tmp_path.iterdir()]) == (1, True, [])
    out.write_text("before")
    assert rmqlog("export", golden("basic-5.5.0"), "-k", "nope", out, "--force").code == 1
    assert (out.read_text(), [*tmp_path.iterdir()]) == ("before", [out])


@pytest.mark.parametrize("body", ["first line\rsecond line", "a\nb", "a\r\nb", "a\0b", 'say "x", please'])
def test_a_line_break_in_a_body_ends_no_row_of_csv(
    rmqlog: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(two_messages, "body", lambda number: body.encode())
    store = two_messages.make_store(tmp_path / "store", [0], [0])
    out, asked = tmp_path / "a.csv", ("--columns", "queueOffset,body,topic", "--body-form", "text")
    assert rmqlog("export", store, out, *asked).code == 0
    rows = [["queueOffset", "body", "topic"], ["0", body, "T"]]
    with out.open(newline="", encoding="utf-8") as lines:
        assert [*csv.reader(lines)] == rows
    if "\0" not in body:  # pandas takes NUL as the end of a field
        assert pandas.read_csv(out)["body"].tolist() == [body]
    written = out.read_bytes().decode()
    assert written.endswith(",T\n")
    assert ('"' in written) == (not body.isprintable() or '"' in body)
    assert rmqlog("find", store, "-t", "T", "-o", "csv", *asked).out == written
