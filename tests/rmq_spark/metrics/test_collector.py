"""Pages of metrics: Prometheus' own parser reads them, they are bounded, and a store that fails is a
number.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.fill import Filling, fill
from rmq_spark.metrics import store_numbers
from rmq_spark.metrics.collector import Collector, Scope
from rmq_spark.metrics.exposition import MetricsPage
from rmq_spark.metrics.families import BY_NAME, LABEL_CHARS_MAX
from store_format import MessageStore
from store_format.layouts import CQ_UNIT
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged

Series = dict[tuple[str, ...], float]  # values of the labels in the order of the family -> value


def parsed(page: bytes) -> dict[str, Series]:
    """The samples of a page by family, as Prometheus' own parser reads them."""
    found: dict[str, Series] = {}
    for family in text_string_to_metric_families(page.decode()):
        ours = BY_NAME[family.name]
        assert (family.documentation, family.type) == (ours.help, ours.kind)
        for sample in family.samples:
            assert set(sample.labels) == set(ours.labels), sample
            key = tuple(sample.labels[name] for name in ours.labels)
            assert key not in found.setdefault(family.name, {}), "a series twice"
            found[family.name][key] = sample.value
    return found


def of_path(path: Path, **scope: object) -> dict[str, Series]:
    scrape = Collector(Scope(str(path), **scope)).scrape()  # type: ignore[arg-type] # fields of Scope
    assert scrape.errors == []
    return parsed(scrape.page)


def _write_offsets(path: Path, table: dict[str, dict[str, int]]) -> None:
    (path / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))


def test_the_numbers_are_those_of_the_views(golden: Golden, unchanged: Unchanged) -> None:
    path = golden("cleaned-5.5.0")
    with unchanged(path):
        found = of_path(path)
    node = ("GoldenCluster", "broker", "broker-a")
    store = MessageStore.open(str(path))
    rows = store.view("lagByTopic").to_pylist()
    names = {
        "rocketmq_consumer_lag_messages": "lagMessages",
        "rocketmq_consumer_inflight_messages": "inFlightMessages",
        "rocketmq_consumer_ready_messages": "readyMessages",
        "rmqlog_consumer_lag_bytes": "lagBytes",
        "rmqlog_consumer_lost_messages": "lostMessages",
        "rmqlog_consumer_unknown_queues": "unknownQueues",
    }
    for name, column in names.items():
        expected = {(row["group"], row["topic"]): row[column] for row in rows if row[column] is not None}
        assert {key[3:5]: value for key, value in found.get(name, {}).items()} == expected, name
    assert found["rmqlog_consumer_lost_messages"][*node, "CG_some", "Orders", "false", "false"] > 0
    assert found["rocketmq_topic_number"] == {node: len(store.configured_topics())}
    configured = store.view("groups")["configured"].to_pylist().count(True)
    assert found["rocketmq_consumer_group_number"] == {node: configured}
    assert found["rmqlog_store_state"] == {
        (*node, "clean"): 1, (*node, "live"): 0, (*node, "crashed"): 0,
    }  # fmt: skip
    age = found["rmqlog_oldest_unread_message_age_seconds"][node]
    latencies = found["rocketmq_consumer_lag_latency_milliseconds"].values()
    assert age == pytest.approx(max(latencies) / 1000, abs=1e-6)
    assert found["rmqlog_scrape_success"] == {(str(path),): 1}
    assert "rmqlog_problems" not in found


@pytest.mark.parametrize("text", ["{nothing", "", None])
def test_an_age_that_nothing_shows_is_left_out(copy_of: Golden, text: str | None) -> None:
    root = copy_of("retry-dlq-5.5.0")
    assert "rmqlog_oldest_unread_message_age_seconds" in of_path(root)
    for path in (root / "config").glob("consumerOffset.json*"):
        path.unlink()
    if text is not None:
        (root / "config/consumerOffset.json").write_text(text)
    found = of_path(root)
    assert "rmqlog_store_state" in found
    assert "rmqlog_oldest_unread_message_age_seconds" not in found


def test_what_a_broker_counts_and_what_verify_finds(golden: Golden, copy_of: Golden) -> None:
    assert sum(of_path(golden("retry-dlq-5.5.0"))["rmqlog_consumer_dead_letters"].values()) == sum(
        row["topic"].startswith("%DLQ%") for row in goldens.expected_rows("retry-dlq-5.5.0")
    )
    timed = of_path(golden("pop-5.5.0"))["rocketmq_timing_messages"]
    assert {key[3] for key in timed} == set(
        json.loads((golden("pop-5.5.0") / "config" / "timermetrics").read_text())["timingCount"]
    )
    damaged = copy_of("basic-5.5.0")
    overwrite(damaged / "commitlog" / "00000000000000262144", 39043, b"X")
    problems = of_path(damaged, verify=True)["rmqlog_problems"]
    assert {key[3]: value for key, value in problems.items()}["damage"] == 1


def test_hostile_names_stay_labels(copy_of: Golden) -> None:
    path = copy_of("basic-5.5.0")
    names = ['a"b\\c\nd', '{x="y"} 1', "\ud800", "é" * 400, "é" * 401, ""]
    _write_offsets(path, {f"Orders@{name}": {"0": 1} for name in names})
    found = of_path(path)
    groups = {key[3] for key in found["rocketmq_consumer_lag_messages"]}
    assert {names[0], names[1], "\ufffd"} <= groups
    assert max(map(len, groups)) == LABEL_CHARS_MAX
    ((_, left_out),) = found["rmqlog_left_out_series"].items()
    assert left_out == 1  # the second one of two long names that begin alike


def test_the_series_are_bounded(copy_of: Golden) -> None:
    path = copy_of("basic-5.5.0")
    _write_offsets(path, {f"Orders@G{number}": {"0": number} for number in range(100)})
    found = of_path(path, series_max=10)
    lag = found["rocketmq_consumer_lag_messages"]
    assert len(lag) == 10
    every = of_path(path)["rocketmq_consumer_lag_messages"]
    assert min(lag.values()) >= sorted(every.values())[-11]
    assert sum(found["rmqlog_left_out_series"].values()) == 100 - 10


@pytest.fixture
def cluster(tmp_path: Path, golden: Golden) -> Path:
    shutil.copytree(golden("basic-5.5.0"), tmp_path / "cluster" / "a")
    shutil.copytree(golden("cluster-5.5.0") / "broker-b", tmp_path / "cluster" / "b")
    return tmp_path / "cluster"


def test_a_store_that_fails_is_a_number_and_the_others_go_on(cluster: Path, tmp_path: Path) -> None:
    collector = Collector(Scope(str(cluster)))
    first = parsed(collector.scrape().page)
    assert set(first["rmqlog_scrape_success"].values()) == {1}
    assert {key[2] for key in first["rocketmq_topic_number"]} == {"broker-a", "broker-b"}
    topics = cluster / "b" / "config" / "topics.json"
    topics.rename(tmp_path / "topics.json")
    topics.mkdir()
    scrape = collector.scrape()
    found = parsed(scrape.page)
    assert found["rmqlog_scrape_success"] == {(str(cluster / "a"),): 1, (str(cluster / "b"),): 0}
    assert {key[2] for key in found["rocketmq_topic_number"]} == {"broker-a"}
    assert scrape.read_count == 1
    assert "expected a regular file" in str(scrape.errors[0])
    topics.rmdir()
    (tmp_path / "topics.json").rename(topics)
    again = parsed(collector.scrape().page)
    assert again["rocketmq_consumer_lag_messages"] == first["rocketmq_consumer_lag_messages"]
    shutil.copytree(
        cluster / "a", cluster / "c"
    )  # the same broker twice: its series would be twice in a page
    twice = collector.scrape()
    assert "both belong to broker broker-a" in str(twice.errors[0])
    assert parsed(twice.page)["rmqlog_scrape_success"][str(cluster / "c"),] == 0


def test_a_store_that_is_gone_is_a_number(cluster: Path, tmp_path: Path) -> None:
    (cluster / "unmounted").mkdir()
    collector = Collector(Scope(str(cluster)))
    a, b, unmounted = ((str(cluster / name),) for name in ("a", "b", "unmounted"))
    scrape = collector.scrape()
    assert parsed(scrape.page)["rmqlog_scrape_success"] == {a: 1, b: 1, unmounted: 0}
    assert "unmounted is no store: the directory is empty" in str(scrape.errors[0])
    (cluster / "unmounted").rmdir()
    (cluster / "b").rename(tmp_path / "away")
    for _ in range(2):
        scrape = collector.scrape()
        assert parsed(scrape.page)["rmqlog_scrape_success"] == {a: 1, b: 0}
        assert [str(error) for error in scrape.errors] == [
            f"{b[0]} was a store at an earlier look, and is none now"
        ]
    (tmp_path / "away").rename(cluster / "b")
    assert parsed(collector.scrape().page)["rmqlog_scrape_success"] == {a: 1, b: 1}


def test_a_member_without_its_commitlog_fails_itself(cluster: Path) -> None:
    shutil.rmtree(cluster / "b" / "commitlog")
    for collector in (Collector(Scope(str(cluster))),):
        scrape = collector.scrape()
        found = parsed(scrape.page)["rmqlog_scrape_success"]
        assert found == {(str(cluster / "a"),): 1, (str(cluster / "b"),): 0}
        assert [error.member for error in scrape.errors] == [str(cluster / "b")]  # type: ignore[attr-defined]


def test_another_number_of_stores_is_a_number(cluster: Path) -> None:
    paths = [str(cluster), str(cluster / "a"), str(cluster / "b")]
    for expected, values in ((2, {1}), (3, {0, 1})):
        scrape = Collector(Scope(str(cluster), expected_count=expected)).scrape()
        found = parsed(scrape.page)["rmqlog_scrape_success"]
        assert found == {(path,): float(path != paths[0]) for path in paths[len(values) == 1 :]}
        assert [str(error) for error in scrape.errors] == [
            f"{cluster}: expected 3 stores (--expect-stores), found 2"
        ] * (len(values) == 2)


def test_a_path_that_leads_nowhere(tmp_path: Path, golden: Golden) -> None:
    collector = Collector(Scope(str(tmp_path / "store")))
    assert parsed(collector.scrape().page) == {"rmqlog_scrape_success": {(str(tmp_path / "store"),): 0}}
    shutil.copytree(golden("basic-5.5.0"), tmp_path / "store")
    assert "rocketmq_topic_number" in parsed(collector.scrape().page)


def test_a_file_that_can_be_read_again(copy_of: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copy_of("basic-5.5.0")
    queues = path / "consumequeue" / "Audit"
    queues.rename(path / "away")
    queues.symlink_to("/nowhere")
    collector = Collector(Scope(str(path)))
    (unreadable,) = parsed(collector.scrape().page)["rmqlog_unreadable_files"].values()
    assert unreadable == 1
    queues.unlink()
    (path / "away").rename(queues)
    monkeypatch.setattr(store_numbers, "_UNREADABLE_SECONDS", 0.0)
    (unreadable,) = parsed(collector.scrape().page)["rmqlog_unreadable_files"].values()
    assert unreadable == 0


def test_series_that_have_gone_are_forgotten() -> None:
    page = MetricsPage()
    samples = {"rmqlog_scrape_success": [((f"store-{number}",), 1.0) for number in range(100)]}
    assert len(parsed(page.write(samples))["rmqlog_scrape_success"]) == 100
    page.write({"rmqlog_scrape_success": samples["rmqlog_scrape_success"][:1]})
    assert len(page._heads) == 1


# ---- the cost of a scrape ----------------------------------------------------------------------------------

_TURNS, _CHANGED = 3, 100  # queues that get a message in a turn: 1 %
_FILLING = Filling(messages=20_000 + _TURNS * _CHANGED, body_size=50, topics=1_250, queues_per_topic=8)
_CPU_SECONDS_MAX = 0.2


class _ManyQueues:
    """10,000 queues of 1,250 topics with a group each, whose last messages come later: their bytes in the
    commitlog and in the consume queues are zeros until then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        fill(path, _FILLING)
        (self._log,) = (path / "commitlog").iterdir()
        self._later: list[list[tuple[Path, int, bytes]]] = []
        places = [(topic, queue) for topic in _FILLING.topic_names for queue in range(8)]
        for turn in range(_TURNS):
            parts = []
            for topic, queue in places[turn * _CHANGED :][:_CHANGED]:
                (file,) = (path / "consumequeue" / topic / str(queue)).iterdir()
                parts.append(self._cut(file, 2 * CQ_UNIT.itemsize, CQ_UNIT.itemsize))
                unit = np.frombuffer(parts[-1][2], CQ_UNIT)[0]
                parts.append(self._cut(self._log, int(unit["physical_offset"]), int(unit["size"])))
            self._later.append(parts)
        self.commit({})

    @staticmethod
    def _cut(file: Path, position: int, size: int) -> tuple[Path, int, bytes]:
        with file.open("r+b") as open_file:
            open_file.seek(position)
            data = open_file.read(size)
        overwrite(file, position, bytes(size))
        return file, position, data

    def send(self) -> list[str]:
        """The messages of the next turn come; returns their topics."""
        parts = self._later.pop(0)
        for file, position, data in parts:
            overwrite(file, position, data)
        return sorted({file.parent.parent.name for file, *_ in parts if file != self._log})

    def commit(self, offsets: dict[str, int]) -> None:
        """The group of each topic has this offset in each of its queues, by default 1."""
        table = {
            f"{topic}@CG_{number % 100}": {str(queue): offsets.get(topic, 1) for queue in range(8)}
            for number, topic in enumerate(_FILLING.topic_names)
        }
        _write_offsets(self.path, table)


@pytest.mark.slow
def test_a_scrape_of_many_queues_costs_what_has_changed(tmp_path: Path) -> None:
    """1 % of 10,000 queues have a new message, and 1 % of the groups a new offset."""
    store = _ManyQueues(tmp_path / "store")
    collector = Collector(Scope(str(store.path)))
    collector.scrape()
    spent, offsets = [], dict[str, int]()
    for turn in range(_TURNS):
        topics = {*store.send(), *_FILLING.topic_names[turn::100]}
        offsets |= dict.fromkeys(topics, 2)
        store.commit(offsets)
        begun = time.process_time()
        page = collector.scrape().page
        spent.append(time.process_time() - begun)
    lag = parsed(page)["rocketmq_consumer_lag_messages"]
    assert sum(lag.values()) == 10_000 + _TURNS * _CHANGED - 8 * len(offsets)
    assert min(spent) < _CPU_SECONDS_MAX, spent
