"""The charts' own numbers against the messages of real brokers, counted here one by one; and what keeps a
picture small and harmless.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pytest
import vl_convert

import rmq_spark
from rmq_spark import charts
from rmq_spark.charts.data import OTHERS
from rmq_spark.charts.drawing import count_axis, highest, size_axis
from store_format import MessageStore
from store_format.display.units import size_text
from store_format.errors import OptionError
from store_format.names import is_system_topic
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.small_store import write_small_store

STORES = ("basic-5.5.0", "retry-dlq-5.5.0", "cleaned-5.5.0", "pop-5.5.0")
NOW_MS = 1_795_300_000_000


def _messages(store: MessageStore) -> Iterator[pa.RecordBatch]:
    for queue in store.queues():
        yield from queue.read(columns=charts.MESSAGE_COLUMNS)


def _drawn(chart: Any) -> list[dict[str, Any]]:  # Any: an altair chart, and the values in its JSON
    """The rows that travel inside the chart's JSON."""
    spec = json.loads(chart.to_json())
    (values,) = spec["datasets"].values()
    assert isinstance(values, list)
    return values


def _subtitle(chart: Any) -> list[str]:
    title = json.loads(chart.to_json())["title"]
    return list(title["subtitle"])


# ---- rate --------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("name", STORES)
def test_the_rate_counts_the_messages_that_the_broker_has(name: str, golden: Golden) -> None:
    expected = goldens.expected_rows(name)
    rows = _drawn(charts.rate(_messages(MessageStore.open(str(golden(name))))))
    step = rows[0]["stopMs"] - rows[0]["startMs"]
    counts: Counter[tuple[int, str]] = Counter()
    sizes: Counter[tuple[int, str]] = Counter()
    for row in expected:
        place = row["storeTimestamp"] // step * step, row["topic"]
        counts[place] += 1
        sizes[place] += row["storeSize"]
    topics = {row["topic"] for row in expected}
    by_topic = Counter(row["topic"] for row in expected)
    own = set(sorted(topics, key=lambda topic: (-by_topic[topic], topic))[:8])
    for row in rows:
        among = {row["topic"]} if row["topic"] != OTHERS else topics - own
        assert row["messages"] == sum(counts[row["startMs"], topic] for topic in among)
        assert row["bytes"] == sum(sizes[row["startMs"], topic] for topic in among)
        assert row["messagesPerSecond"] == pytest.approx(row["messages"] * 1000 / step)
        assert row["bytesPerSecond"] == pytest.approx(row["bytes"] * 1000 / step)
        assert row["stopMs"] - row["startMs"] == step
    assert sum(row["messages"] for row in rows) == len(expected)
    assert {row["topic"] for row in rows} == own | ({OTHERS} if topics - own else set())


def test_the_steps_of_time_have_no_gap(golden: Golden) -> None:
    rows = _drawn(charts.rate(_messages(MessageStore.open(str(golden("basic-5.5.0"))))))
    starts = sorted({row["startMs"] for row in rows})
    assert np.diff(starts).tolist() == [200] * (len(starts) - 1)
    times = [row["storeTimestamp"] for row in goldens.expected_rows("basic-5.5.0")]
    assert (starts[0], starts[-1]) == (min(times) // 200 * 200, max(times) // 200 * 200)
    assert len(rows) == len(starts) * len({row["topic"] for row in rows})


def _made(
    times: list[int], topics: list[str] | None = None, queues: list[int] | None = None, sizes: int = 100
) -> pa.RecordBatch:
    count = len(times)
    return pa.record_batch(
        {
            "topic": pa.array(topics or ["T"] * count, pa.string()),
            "queueId": pa.array(queues or [0] * count, pa.int32()),
            "bornTimestampMs": pa.array([time - 5 for time in times], pa.int64()),
            "storeTimestampMs": pa.array(times, pa.int64()),
            "storeSize": pa.array([sizes] * count, pa.int32()),
        }
    )


def test_a_step_grows_with_the_time_that_is_seen_and_counts_stay_exact() -> None:
    rng = np.random.default_rng(7)
    batches = [_made(sorted(rng.integers(0, 10**exponent, 500).tolist())) for exponent in range(2, 13)]
    drawn = charts.rate_data(batches)
    assert drawn.table["messages"].to_numpy().sum() == 500 * 11
    assert drawn.table.num_rows <= 120
    times = np.concatenate([batch["storeTimestampMs"].to_numpy() for batch in batches])
    starts = drawn.table["startMs"].to_numpy()
    assert (
        np.histogram(times, [*starts, starts[-1] + drawn.step_ms])[0].tolist()
        == drawn.table["messages"].to_pylist()
    )


def test_a_step_is_no_longer_than_needed() -> None:
    assert charts.rate_data([_made([0, 119])]).step_ms == 1
    assert charts.rate_data([_made([0, 120])]).step_ms == 2
    assert charts.rate_data([_made([-1, 0])]).table["startMs"].to_pylist() == [-1, 0]
    assert charts.rate_data([_made([0, 118 * 86_400_000])]).step_ms == 86_400_000
    assert charts.rate_data([_made([-62135596800000, 253402300799999])]).table.num_rows <= 120


def test_topics_beyond_the_colours_are_put_together_and_said() -> None:
    topics = [f"T{i:02}" for i in range(12) for _ in range(12 - i)]
    chart = charts.rate([_made([1] * len(topics), topics)])
    rows = {row["topic"]: row["messages"] for row in _drawn(chart)}
    assert rows == {**{f"T{i:02}": 12 - i for i in range(8)}, OTHERS: 4 + 3 + 2 + 1}
    assert _subtitle(chart) == ["steps of 1 ms", "4 topics with fewer messages are put together"]


def test_times_that_no_calendar_has_are_counted_in_a_note() -> None:
    batch = _made([10, 2**63 - 1, -(2**62)])
    assert charts.rate_data([batch]).notes == (
        "2 messages with a store time outside the years 1 to 9999 are not shown",
    )
    assert charts.rate_data([batch]).table["messages"].to_pylist() == [1]
    assert (
        charts.latency_data([batch]).notes[1]
        == "2 messages with a time outside the years 1 to 9999 are not shown"
    )


@pytest.mark.parametrize(
    ("span_ms", "step_ms"),
    [(1, 1), (900, 200), (24_000, 5000), (7_200_000, 1_800_000), (40 * 86_400_000, 7 * 86_400_000)],
)
def test_the_time_axis_has_a_few_round_ticks(span_ms: int, step_ms: int) -> None:
    begin = 1_795_243_951_867
    spec = json.loads(charts.rate([_made([begin, begin + span_ms - 1])]).to_json())
    ticks = spec["vconcat"][0]["encoding"]["x"]["axis"]["values"]
    assert set(np.diff(ticks)) <= {step_ms}
    assert 1 <= len(ticks) <= 9
    assert all(tick % step_ms == 0 for tick in ticks)


# ---- heat map ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_the_heat_map_counts_each_queue(name: str, golden: Golden) -> None:
    expected = goldens.expected_rows(name)
    rows = _drawn(charts.heat_map(_messages(MessageStore.open(str(golden(name))))))
    step = rows[0]["stopMs"] - rows[0]["startMs"]
    counts = Counter(
        (row["storeTimestamp"] // step * step, f"{row['topic']}-{row['queueId']}") for row in expected
    )
    assert {(row["startMs"], row["queue"]): row["messages"] for row in rows} == counts
    assert sum(row["bytes"] for row in rows) == sum(row["storeSize"] for row in expected)
    assert len({row["startMs"] for row in rows}) <= 80


def test_two_brokers_have_rows_of_their_own(golden: Golden) -> None:
    brokers = goldens.brokers("cluster-5.5.0", golden("cluster-5.5.0"))
    batches = [batch for root, _ in brokers.values() for batch in _messages(MessageStore.open(str(root)))]
    drawn = charts.heat_data(batches).table.to_pylist()
    expected = Counter(
        f"{row['brokerName']} {row['topic']}-{row['queueId']}"
        for row in goldens.expected_rows("cluster-5.5.0")
    )
    found: Counter[str] = Counter()
    for row in drawn:
        found[row["queue"]] += row["messages"]
    largest = sorted(expected.values(), reverse=True)[:40]
    assert sorted(found.values(), reverse=True) == largest
    assert all(expected[queue] == count for queue, count in found.items())


def test_the_queues_with_most_messages_are_shown_and_the_rest_is_said() -> None:
    queues = [queue for queue in range(60) for _ in range(queue + 1)]
    chart = charts.heat_map([_made([5] * len(queues), queues=queues)])
    assert {row["queue"] for row in _drawn(chart)} == {f"T-{queue}" for queue in range(20, 60)}
    assert _subtitle(chart) == [
        "steps of 1 ms",
        f"20 queues with fewer messages, {sum(range(1, 21))} in all, are not shown",
    ]


# ---- latency -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_delays_are_counted_between_their_bounds(name: str, golden: Golden) -> None:
    expected = goldens.expected_rows(name)
    rows = _drawn(charts.latency(_messages(MessageStore.open(str(golden(name))))))
    delays = [row["storeTimestamp"] - row["bornTimestamp"] for row in expected]
    by_bucket = {(row["fromMs"], row["toMs"]): 0 for row in rows}
    for row in rows:
        by_bucket[row["fromMs"], row["toMs"]] += row["messages"]
    for (low, high), count in by_bucket.items():
        assert count == sum(low <= delay <= high for delay in delays), (low, high)
    assert sum(by_bucket.values()) == len(expected)
    edges = sorted(by_bucket)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(edges))


def test_delays_below_zero_have_a_bucket_and_the_text_tells_half_and_most() -> None:
    born = pa.array([100 - delay for delay in [-3, 0, 1, 2, 3, 4, 1000, 5000]], pa.int64())
    batch = pa.record_batch(
        {"topic": ["T"] * 8, "bornTimestampMs": born, "storeTimestampMs": pa.array([100] * 8, pa.int64())}
    )
    drawn = charts.latency_data([batch])
    counts = {row["delay"]: row["messages"] for row in drawn.table.to_pylist() if row["messages"]}
    assert counts == {
        "below 0": 1, "0ms": 1, "1ms": 1, "2ms – 3ms": 2, "4ms – 7ms": 1, "512ms – 1.0s": 1,
        "4.0s – 8.1s": 1,
    }  # fmt: skip
    assert drawn.notes == ("half of 8 messages within 3ms, 99 % within 8.1s",)


# ---- lag ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic-5.5.0", "cleaned-5.5.0"])
def test_the_lag_is_that_of_the_brokers_offsets(name: str, golden: Golden) -> None:
    expected = goldens.expected(name)
    limits = {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"])
        for queue in expected["queues"]
    }
    rows = _drawn(charts.lag(MessageStore.open(str(golden(name))).view("lag", now_ms=NOW_MS)))
    found = {
        (row["group"], row["queue"]): (row["readable"], row["lost"])
        for row in rows
        if row["state"] != "no offset"
    }
    wanted = {}
    for pair, offsets in expected["consumerOffset"]["offsetTable"].items():
        topic, group = pair.split("@")
        for queue_id, offset in offsets.items():
            low, high = limits[topic, int(queue_id)]
            lost = min(max(low - offset, 0), max(high - offset, 0))
            wanted[group, f"{topic}-{queue_id}"] = (high - offset - lost, lost)
    assert found == wanted
    assert any(lost for _, lost in found.values()) == (name == "cleaned-5.5.0")


def test_what_is_unknown_is_said_and_no_bar() -> None:
    rows = [("CG", "A", 0, None, None), ("CG", "B", 1, 0, 0), ("CG", "C", 2, -7, 0), ("CG", "D", 3, 9, 4)]
    drawn = charts.lag_data(_lag_table(rows)).table.to_pylist()
    assert [(row["queue"], row["readable"], row["lost"], row["state"]) for row in drawn] == [
        ("A-0", 0, 0, "no offset"),
        ("B-1", 0, 0, "nothing left"),
        ("C-2", 0, 0, "offset behind the queue's end"),
        ("D-3", 5, 4, ""),
    ]


def test_the_longest_lags_are_shown_and_the_rest_is_said() -> None:
    chart = charts.lag(_lag_table([("CG", "T", i, i, 0) for i in range(50)] + [("CG", "U", 0, None, None)]))
    assert [row["queue"] for row in _drawn(chart)] == [f"T-{i}" for i in range(10, 50)]
    assert _subtitle(chart) == [f"11 more queues, {sum(range(10))} messages behind in all, are not shown"]


def _lag_table(rows: list[tuple[str, str, int, int | None, int | None]]) -> pa.Table:
    from store_format.display.columns import batch_of
    from store_format.views.lag import LAG_COLUMNS

    names = ("group", "topic", "queueId", "lagMessages", "lostMessages")
    values = [dict(zip(names, row, strict=True)) for row in rows]
    return pa.Table.from_batches(
        [batch_of(LAG_COLUMNS, [[row.get(column.name) for column in LAG_COLUMNS] for row in values])]
    )


# ---- all of them -------------------------------------------------------------------------------------------

CHARTS = (charts.rate, charts.heat_map, charts.latency)


@pytest.mark.parametrize("chart", CHARTS)
def test_an_empty_store_has_an_empty_picture(chart: Callable[..., Any]) -> None:
    assert _drawn(chart([])) == []
    assert _drawn(chart(_made([]))) == []
    assert _drawn(charts.lag(_lag_table([]))) == []


@pytest.mark.parametrize("chart", CHARTS)
def test_table_batch_and_batches_give_the_same_picture(chart: Callable[..., Any], tmp_path: Path) -> None:
    write_small_store(tmp_path)
    batches = list(MessageStore.open(str(tmp_path)).scan(columns=charts.MESSAGE_COLUMNS))
    table = pa.Table.from_batches(batches)
    one = table.combine_chunks().to_batches()[0]
    pieces = [one.slice(i, 1) for i in range(one.num_rows)]
    assert _drawn(chart(batches)) == _drawn(chart(table)) == _drawn(chart(one)) == _drawn(chart(iter(pieces)))


@pytest.mark.process
@pytest.mark.parametrize("chart", CHARTS)
def test_timestamps_do_as_well_as_ms(chart: Callable[..., Any], golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    columns = ("topic", "queueId", "bornTimestamp", "storeTimestamp", "storeSize")
    assert _drawn(chart(store.scan(columns=columns))) == _drawn(
        chart(store.scan(columns=charts.MESSAGE_COLUMNS))
    )


def test_a_frame_of_another_library_is_drawn_like_the_messages(golden: Golden) -> None:
    store = rmq_spark.open(str(golden("basic-5.5.0")))
    messages = store.messages(columns=charts.MESSAGE_COLUMNS)
    expected = _drawn(charts.rate(messages))
    assert _drawn(charts.rate(messages.to_pandas())) == _drawn(charts.rate(polars.DataFrame(messages)))
    assert _drawn(charts.rate(messages.to_pandas())) == expected
    lag = store.view("lag", now_ms=NOW_MS)
    assert _drawn(charts.lag(lag.to_pandas())) == _drawn(charts.lag(lag))
    for chart, rest in ((charts.rate, "a store, a queue, messages, or a table"), (charts.lag, "a store, or")):
        with pytest.raises(TypeError, match=f"expected {rest}.*, found list"):
            chart([{"topic": "T"}])


def test_messages_without_the_columns_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        charts.rate([_made([1]).select(["topic"])])
    assert str(caught.value).startswith(
        "the messages lack storeSize, storeTimestampMs; read them with the columns brokerName,topic,queueId"
    )
    with pytest.raises(
        OptionError, match="expected a table like the view lag, found one without brokerName, group, "
    ):
        charts.lag(pa.table({"topic": ["T"]}))


HOSTILE = "</script><script>alert(1)</script>\x1b[2J\u202e" + "x" * 5000


@pytest.mark.parametrize("chart", CHARTS)
def test_a_hostile_name_cannot_leave_its_page(chart: Callable[..., Any]) -> None:
    page = chart([_made([1, 2], [HOSTILE, "a"])]).to_html()
    assert "<script>alert" not in page
    assert "</script>\\u" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "x" * 100 not in page
    assert "\\\\u003c/script>" in page  # the name is there, spelled out


def test_hostile_groups_and_brokers_too() -> None:
    page = charts.lag(_lag_table([(HOSTILE, HOSTILE, 1, 5, 0)])).to_html()
    assert "<script>alert" not in page
    assert "\x1b" not in page


def _run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=goldens.ROOT.parent.parent, capture_output=True, text=True, check=False
    )


def test_without_altair_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from rmq_spark import charts\n"
        "try: charts.rate([])\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = _run(code)
    assert done.stdout.startswith("UnsupportedFormatError charts need altair, which is not installed"), (
        done.stderr
    )
    assert "pip install 'altair>=5.4'" in done.stdout


@pytest.mark.process
def test_importing_the_charts_imports_no_altair() -> None:
    code = "import sys; from rmq_spark import charts; charts.rate_data([]); print('altair' in sys.modules)"
    done = _run(code)
    assert done.stdout == "False\n", done.stderr


# ---- a store in place of messages --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draw",
    [
        *(charts.rate, charts.heat_map, charts.latency, charts.lag, charts.disk_use, charts.delayed),
        *(charts.dead_letters, charts.file_map, charts.overview),
    ],
)
def test_a_path_is_refused_with_what_opens_it(draw: Callable[..., Any], golden: Golden) -> None:
    root = str(golden("basic-5.5.0"))
    for path in (root, Path(root)):
        with pytest.raises(OptionError) as caught:
            draw(path)
        assert (
            str(caught.value) == f"expected a store, found the path {root!r}; write rmq_spark.open({root!r})"
        )


def test_a_chart_takes_a_store_or_a_queue(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    users = [queue for queue in store.queues() if not is_system_topic(queue.topic)]
    batches = [batch for queue in users for batch in queue.read(columns=charts.MESSAGE_COLUMNS)]
    for draw in (charts.rate, charts.heat_map, charts.latency):
        assert _drawn(draw(store)) == _drawn(draw(batches))
    orders = [batch for queue in users if queue.topic == "Orders" for batch in queue.read()]
    assert orders
    drawn = _drawn(charts.rate(store, topic="Orders"))
    assert drawn == _drawn(charts.rate(store, "Orders"))
    assert {row["topic"] for row in drawn} == {"Orders"}
    assert sum(row["messages"] for row in drawn) == sum(batch.num_rows for batch in orders)
    queue = users[0]
    drawn = _drawn(charts.heat_map(queue))
    assert {row["queue"] for row in drawn} == {f"{queue.topic}-{queue.queue_id}"}
    assert sum(row["messages"] for row in drawn) == queue.max_offset - queue.min_offset
    with pytest.raises(OptionError, match="topic='Orders' goes with a store or a cluster"):
        charts.rate(queue, topic="Orders")


def test_a_chart_of_lag_takes_a_store_and_a_group(golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    table = store.view("lag", now_ms=NOW_MS)
    group = table["group"][0].as_py()
    assert _without_ages(charts.lag(store)) == _without_ages(charts.lag(table))
    rows = _drawn(charts.lag(store, group=group))
    assert {row["group"] for row in rows} == {group}
    topic = next(row["topic"] for row in table.to_pylist() if row["group"] == group)
    assert len(_drawn(charts.lag(store, group=group, topic=topic))) == sum(
        row["group"] == group and row["topic"] == topic for row in table.to_pylist()
    )


def _without_ages(chart: Any) -> list[dict[str, Any]]:  # Any: an altair chart
    return [{name: value for name, value in row.items() if name != "lagMs"} for row in _drawn(chart)]


def test_a_chart_takes_a_cluster(golden: Golden) -> None:
    cluster = rmq_spark.open(str(golden("cluster-5.5.0")))
    names = {store.broker_name for store in cluster.stores}
    assert len(names) > 1
    labels = {row["queue"].split()[0] for row in _drawn(charts.heat_map(cluster))}
    assert labels == names
    assert charts.disk_use_data(cluster).table.num_rows > 0


def test_disk_use_adds_up_to_the_view(golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    usage = store.view("usage")
    rows = charts.disk_use_data(store).table.to_pylist()
    assert sum(row["bytes"] for row in rows) == sum(usage["bytes"].to_pylist())
    few = charts.disk_use_data(store, topics_max=2)
    assert {row["topic"] for row in few.table.to_pylist()} >= {OTHERS}
    assert sum(row["bytes"] for row in few.table.to_pylist()) == sum(usage["bytes"].to_pylist())
    assert any("put together" in note for note in few.notes)
    datasets = json.loads(charts.disk_use(store).to_json())["datasets"]
    bars, numbers = sorted(datasets.values(), key=lambda rows: "topic" not in rows[0])
    assert bars == rows
    sums = Counter[str]()
    for row in rows:
        sums[row["day"]] += row["bytes"]
    assert {row["day"]: row["text"] for row in numbers} == {day: size_text(sums[day]) for day in sums}


def test_dead_letters_and_delayed_messages_over_time(golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    dead = Counter(store.view("deadLetters")["group"].to_pylist())
    assert dead
    rows = _drawn(charts.dead_letters(store))
    drawn: Counter[str] = Counter()
    for row in rows:
        drawn[row["topic"]] += row["messages"]
        assert row["messages"] > 0
    assert drawn == dead
    waiting = [row for row in store.view("delayed", now_ms=NOW_MS).to_pylist() if row["dueTimestamp"]]
    delayed = charts.delayed_data(store, now_ms=NOW_MS).table
    assert sum(delayed["messages"].to_pylist()) == len(waiting)


def test_the_overview_draws_what_there_is(golden: Golden) -> None:
    def titles(name: str) -> list[str]:
        spec = json.loads(charts.overview(rmq_spark.open(str(golden(name))), now_ms=NOW_MS).to_json())
        return [part["title"]["text"] for part in spec["vconcat"]]

    assert titles("retry-dlq-5.5.0")[0] == "Messages and bytes over time"
    assert "Dead letters over time" in titles("retry-dlq-5.5.0")
    assert "Dead letters over time" not in titles("basic-5.5.0")
    assert "Commitlog size by day and topic" in titles("basic-5.5.0")


def test_the_overview_of_a_given_time_is_the_same_each_time(golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    behind = charts.overview(store, now_ms=NOW_MS).to_dict()["datasets"]
    assert behind == charts.overview(store, now_ms=NOW_MS).to_dict()["datasets"]
    ages = {row["lagMs"] for rows in behind.values() for row in rows if "lagMs" in row}
    assert ages <= set(store.view("lag", now_ms=NOW_MS)["lagMs"].to_pylist())


# ---- axes --------------------------------------------------------------------------------------------------


KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("high", "values"),
    [
        (0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (150, [0, 50, 100, 150, 200, 250]),
        (4.3 * MIB, [0, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB]),
        (1000 * KIB, [each * KIB for each in (0, 200, 400, 600, 800, 1000)]),
    ],
)
def test_ticks_of_sizes_are_round_in_their_unit(high: float, values: list[float]) -> None:
    assert size_axis(high).to_dict()["values"] == pytest.approx(values)


def test_small_counts_are_written_in_full() -> None:
    assert count_axis(5_500).to_dict()["format"] == ",~f"  # 5,500, not 5.5k
    assert count_axis(2_000_000).to_dict()["format"] == "~s"


def test_the_highest_stack() -> None:
    table = pa.table({"day": ["a", "a", "b"], "bytes": [1, 2, 2]})
    assert highest(table, "bytes", "day") == 3
    assert highest(table.slice(0, 0), "bytes", "day") == 0


def test_a_picture_has_sizes_and_no_red_topic() -> None:
    batch = pa.table(
        {
            "topic": [f"T{i}" for i in range(8)] * 2,
            "storeTimestampMs": [1_700_000_000_000] * 8 + [1_700_000_001_000] * 8,
            "storeSize": [3 * MIB] * 16,
        }
    )
    drawn = vl_convert.vegalite_to_svg(charts.rate(batch).to_dict())
    texts = re.findall(r">([^<>]+)</text>", drawn)
    assert {"200", "800", "0.5 GiB", "2 GiB"} <= set(texts)
    assert "#e45756" not in drawn
