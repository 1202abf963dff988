"""What notebooks call: each kind of rows it takes, and that hostile ones stay text."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import polars
import pyarrow as pa
import pytest

import rmq_spark
from rmq_spark import show
from store_format import MessageStore
from store_format.display.text import shown
from tests.support.fixtures import Golden
from tests.support.hostile_store import HOSTILE_ID, HOSTILE_TOPIC, write_hostile_store
from tests.support.html_check import read_page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    return MessageStore.open(str(write_hostile_store(tmp_path_factory.mktemp("hostile") / "store")))


def test_a_table_of_arrow_or_of_a_batch(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    batch = next(iter(store.queue("Audit", 0).read()))
    by_batch = show.table(batch, limit=4, title="Audit")
    assert by_batch.source == show.table(pa.Table.from_batches([batch]), limit=4, title="Audit").source
    page = read_page(by_batch.source)
    assert page.text.startswith("Auditrows")
    assert f"the first 4 of {batch.num_rows} rows" in page.text
    assert page.rows == 5


def test_a_table_of_a_frame_and_of_messages(golden: Golden) -> None:
    messages = rmq_spark.open(str(golden("basic-5.5.0"))).messages("Audit", columns=["topic", "queueOffset"])
    for rows in (messages, messages.to_pandas(), polars.DataFrame(messages)):
        assert read_page(show.table(rows, limit=4).source).rows == 5
    assert "the first 4 rows of more" in read_page(show.table(messages, limit=4).source).text


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError) as caught:
        show.table([1, 2])
    assert str(caught.value) == "expected an Arrow table, a record batch or a DataFrame, found list"


def test_hostile_rows(hostile: MessageStore) -> None:
    batch = next(iter(hostile.queues()[0].read()))
    for page in (show.table(batch), show.message(batch), show.message(batch.to_pylist()[0])):
        assert shown(HOSTILE_TOPIC) in read_page(page.source).text
    assert shown(HOSTILE_ID) in read_page(show.trace(hostile, HOSTILE_ID).source).text
    assert shown(HOSTILE_TOPIC) in read_page(show.view(hostile, "queues").source).text


def test_a_message_is_the_same_whatever_it_comes_in(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    batch = next(iter(store.queue("Orders", 0).read(0, 1)))
    by_batch = show.message(batch)
    assert show.message(batch.to_pylist()[0]).source == by_batch.source
    text = read_page(by_batch.source).text
    assert text.startswith("Orders-0 at 0message")
    assert "bornTimestamp2026-" in text


def test_times_of_any_zone_are_utc() -> None:
    east = timezone(timedelta(hours=8))
    row = {
        "a": datetime(2024, 5, 1, 8, tzinfo=east),
        "b": datetime(2024, 5, 1, 0, tzinfo=UTC),
        "c": date(2024, 5, 1),
        "d": bytearray(b"x"),
    }
    local = datetime(2024, 5, 1, 0, tzinfo=UTC).astimezone().replace(tzinfo=None)  # as Spark collects it
    text = read_page(show.message(row | {"e": local}).source).text
    assert "a2024-05-01T00:00:00.000Zb2024-05-01T00:00:00.000Zc2024-05-01dxe2024-05-01T00:00:00.000Z" in text


def test_a_view(golden: Golden) -> None:
    store = MessageStore.open(str(golden("delay-tx-5.5.0")))
    text = read_page(show.view(store, "transactions", limit=1, now_ms=1_800_000_000_000).source).text
    assert "Transactions with a half message, and how each ended." in text
    assert "the first 1 rows of more" in text
