"""`dump`: every byte of a record once, and each field says what the broker decoded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"


def test_a_dump_is_all_bytes_of_the_record(rmqlog: Runner, golden: Golden) -> None:
    orders = [row for row in goldens.expected_rows(STORE) if row["topic"] == "Orders"]
    row = min(orders, key=lambda row: row["physicalOffset"])
    log = (golden(STORE) / "commitlog" / "00000000000000000000").read_bytes()
    record = log[row["physicalOffset"] : row["physicalOffset"] + row["storeSize"]]
    done = rmqlog("dump", golden(STORE), row["physicalOffset"], "--full")
    assert done.code == 0
    head, *lines = done.out.splitlines()
    assert head.startswith(f"physical offset {row['physicalOffset']}: byte ")
    hexes = [re.match(r" *(\d+)  ((?:[0-9a-f]{2} ?)+) *\|", line) for line in lines]
    assert b"".join(bytes.fromhex(match[2]) for match in hexes if match) == record
    assert f"queue_offset = {row['queueOffset']}  (index in the queue)" in done.out
    for name, value in row["properties"].items():
        assert f"property = {name} = {value}" in done.out


@pytest.mark.parametrize(
    "id_of",
    [
        lambda row: row["msgId"],
        lambda row: row["properties"]["UNIQ_KEY"],
        lambda row: row["physicalOffset"],
        lambda row: f"{row['topic']}/{row['queueId']}@{row['queueOffset']}",
    ],
)
def test_a_place_is_an_offset_or_an_id(
    rmqlog: Runner, golden: Golden, id_of: Callable[[dict], object]
) -> None:
    row = goldens.expected_rows(STORE)[-1]
    document = json.loads(rmqlog("dump", golden(STORE), id_of(row), "-o", "json").out)[-1]
    values = {field["name"]: field["value"] for field in document["fields"]}
    assert document["physicalOffset"] == row["physicalOffset"]
    found = (values["topic"], int(values["queue_id"]), int(values["total_size"]))
    assert found == (row["topic"], row["queueId"], row["storeSize"])
    assert sum(field["size"] for field in document["fields"]) == row["storeSize"]
    lines = rmqlog("dump", golden(STORE), id_of(row), "-o", "jsonl").out.splitlines()
    assert list(map(json.loads, lines))[-len(document["fields"]) :] == document["fields"]


def test_an_offset_inside_of_a_record_names_the_record(rmqlog: Runner, golden: Golden) -> None:
    row = json.loads(rmqlog("find", golden(STORE), "-n", "1", "--queue", 0, "-o", "jsonl").out)
    start, size = row["physicalOffset"], row["storeSize"]
    for inside in (start + 1, start + size - 1):
        assert f"inside of the record that begins at {start}\n" in rmqlog("dump", golden(STORE), inside).out
    said = rmqlog.fails(1, "dump", golden(STORE), 1 << 40)
    after = rmqlog("dump", golden(STORE), int(said.rsplit(" ", 1)[1]) - 4).out  # not written yet
    assert "no message record" in after
    assert "inside of the record" not in after
