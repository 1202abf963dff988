"""The counters of services: added up turn by turn, kept in the store, shown by the view."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.ledger import ServiceCounters, read_counters, write_counters
from store_format.files.write import FileWrites
from store_format.opened.store import Opened


def test_turns_add_up() -> None:
    first = ServiceCounters().after(3, 250, 1000, failed=False)
    assert first == ServiceCounters(1, 3, 0, 1000, 250)
    assert first.after(0, 40, 2000, failed=True) == ServiceCounters(2, 3, 1, 2000, 250)


def test_the_view_shows_what_was_written(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    store = MessageStore.create(root, broker_name="broker-a")
    assert read_counters(Opened(root)) is None
    assert store.view("services").num_rows == 0
    counters = {"timer": ServiceCounters(1, 2, 0, 5000, 7), "schedule": ServiceCounters(4, 9, 1, 6000, 80)}
    write_counters(Opened(root), counters, FileWrites(sync=True))
    assert read_counters(Opened(root)) == counters
    rows = store.view("services").drop_columns(["lastTurn"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("broker-a", "schedule", 4, 9, 1, 80),
        ("broker-a", "timer", 1, 2, 0, 7),
    ]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"services":{"clean":3}}', b'{"services":{"a":{"x":1}}}'])
def test_a_file_that_cannot_be_read_is_empty(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".rmqlog").mkdir()
    (tmp_path / ".rmqlog" / "services.json").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert read_counters(Opened(str(tmp_path))) == {}
    assert "services.json cannot be read" in caplog.text
