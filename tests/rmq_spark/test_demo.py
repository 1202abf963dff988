"""The demo store has what documentation and notebooks show: groups, a burst, retries, dead letters, waiting
messages; and it is a sound store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rmq_spark import demo
from rmq_spark.demo.__main__ import main
from rmq_spark.demo.broker import messages_until
from store_format import MessageStore
from store_format.errors import OptionError
from tests.support.terminals import program_screen, screen, without_progress

pytestmark = pytest.mark.slow

END_MS = 1_795_392_000_000  # 2026-11-23T00:00Z
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    path = str(tmp_path_factory.mktemp("demo") / "shop")
    main([path, "--end", "2026-11-23T00:00", "--orders", "1600"])
    return MessageStore.open(path)


def test_a_store_that_ends_now_has_the_same_messages_at_every_time_of_day() -> None:
    """What a reader of the README sees is what the README shows."""
    noon_ms = END_MS - 12 * HOUR_MS
    expected = [
        each._replace(time_ms=each.time_ms - noon_ms, body=b"") for each in messages_until(noon_ms, 99)
    ]
    for end_ms in (END_MS, END_MS + 12_345_678):
        found = [
            each._replace(time_ms=each.time_ms - end_ms, body=b"") for each in messages_until(end_ms, 99, 12)
        ]
        assert found == expected


@pytest.mark.process
def test_it_is_sound_and_clean(shop: MessageStore) -> None:
    diagnosis = shop.diagnose()
    assert diagnosis.of("damage", "warning") == []
    assert (str(shop.state), shop.broker_name, diagnosis.summary.damage_bytes) == ("clean", "broker-a", 0)


@pytest.mark.process
def test_it_covers_three_days_with_a_burst(shop: MessageStore) -> None:
    columns = ["storeTimestampMs", "tags", "body"]
    rows = [
        row for id_ in range(4) for row in shop.queue("Orders", id_).to_table(columns=columns).to_pylist()
    ]
    times = [row["storeTimestampMs"] for row in rows]
    assert END_MS - 72 * HOUR_MS <= min(times) < END_MS - 66 * HOUR_MS
    assert END_MS - 2 * HOUR_MS < max(times) < END_MS
    created = Counter(
        (END_MS - row["storeTimestampMs"]) // HOUR_MS for row in rows if row["tags"] == "created"
    )
    assert sum(created.values()) == 1600
    assert created.most_common(1)[0][0] == 29  # the burst begins 30 hours before the end
    body = json.loads(rows[0]["body"])
    assert body.keys() >= {"orderId", "event", "customer", "items", "amount"}


@pytest.mark.process
def test_groups_lag_and_lose(shop: MessageStore) -> None:
    lag: Counter[str] = Counter()
    for row in shop.view("lag", now_ms=END_MS).to_pylist():
        lag[row["group"]] += row["lagMessages"] or 0
    assert lag["CG_billing"] == lag["CG_mail"] == lag["CG_reminder"] == 0
    assert 0 < lag["CG_search"] < lag["CG_report"]


@pytest.mark.process
def test_lag_fits_a_terminal_of_80_columns(shop: MessageStore) -> None:
    now = ("--now", str(END_MS))
    code, seen = screen(80, "lag", shop.path, *now, NO_COLOR="1")
    assert code == 0
    assert "left out" not in seen
    assert "%RETRY%CG_mail" in seen
    table = [line for line in seen.splitlines() if not line.startswith(("rmqlog: ", " "))]
    assert max(map(len, table)) <= 80


@pytest.mark.process
def test_the_retry_storm_ends_in_dead_letters(shop: MessageStore) -> None:
    dead = shop.view("deadLetters").to_pylist()
    assert dead
    assert {(row["group"], row["originTopic"], row["reconsumeTimes"]) for row in dead} == {
        ("CG_mail", "Orders", 6)
    }
    assert shop.queue("%RETRY%CG_mail", 0).max_offset > 2 * len(dead)
    what = shop.trace(dead[0]["msgId"])["what"].to_pylist()
    assert [each for each in what if each.startswith("retry")] == [
        f"retry {number}" for number in range(1, 6)
    ]
    assert "dead letter" in what


@pytest.mark.process
def test_a_retry_is_delivered_when_its_delay_level_says(shop: MessageStore) -> None:
    dead = shop.view("deadLetters").to_pylist()
    for each in dead:
        events = shop.trace(each["msgId"]).to_pylist()
        times = [event["time"] for event in events if event["what"].startswith(("waits for retry", "retry "))]
        delays = [(after - before).total_seconds() for before, after in pairwise(times)]
        assert delays == [10, 0, 30, 0, 60, 0, 120, 0, 180]  # levels 3 to 7; each retry fails at once
    rows = [
        row
        for queue in shop.queues()
        for row in queue.to_table(columns=["physicalOffset", "storeTimestampMs"]).to_pylist()
    ]
    times = [row["storeTimestampMs"] for row in sorted(rows, key=lambda row: row["physicalOffset"])]
    assert times == sorted(times)


@pytest.mark.process
def test_messages_wait(shop: MessageStore) -> None:
    delayed = shop.view("delayed", now_ms=END_MS).to_pylist()
    assert delayed
    assert {(row["topic"], row["state"], row["delayLevel"]) for row in delayed} == {
        ("Reminders", "waiting", 17)
    }
    assert shop.queue("Reminders", 0).max_offset > len(delayed)
    pending = shop.view("transactions", now_ms=END_MS).to_pylist()
    assert [(row["state"], row["topic"], row["producerGroup"]) for row in pending] == [
        ("pending", "Orders", "PG_orders")
    ] * 3


def test_it_does_not_overwrite(shop: MessageStore) -> None:
    with pytest.raises(OptionError, match="a store exists there"):
        demo.create(shop.path, end_ms=END_MS)


@pytest.mark.process
def test_a_terminal_sees_the_progress(tmp_path: Path) -> None:
    arguments = ("rmq_spark.demo", str(tmp_path / "shop"), "--end", "2026-11-23T00:00", "--orders", "20")
    code, seen = program_screen(80, [sys.executable, "-m", *arguments])
    assert code == 0
    assert seen.startswith("\r\x1b[Kdemo: 0 % of three days\r\x1b[Kdemo: 1 % of three days")
    assert without_progress(seen).startswith(f"{tmp_path / 'shop'}: ")


@pytest.mark.process
def test_it_is_the_same_each_time_and_without_a_path_gone_when_the_process_ends(
    shop: MessageStore, tmp_path: Path
) -> None:
    keys = ["msgId", "storeTimestampMs", "body"]
    code = (
        f"from rmq_spark import demo; store = demo.create(end_ms={END_MS}, orders=1600); "
        f"print(store.path, store.queue('Payments', 1).to_table(columns={keys}).to_pylist())"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    path, rows = done.stdout.split(maxsplit=1)
    assert path.startswith(f"{tmp_path}/rmqlog-demo-")
    assert rows == f"{shop.queue('Payments', 1).to_table(columns=keys).to_pylist()}\n"
    assert not list(tmp_path.glob("rmqlog-demo-*"))
