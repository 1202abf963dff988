"""A broker's own exporter, and ours on the store that the broker leaves: names, labels and numbers."""

from __future__ import annotations

import os
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from rmq_spark.metrics.collector import Collector, Scope
from rmq_spark.metrics.families import BY_NAME
from tests.interop.harness import RocketMQ
from tests.support import goldens
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"
# A broker has numbers of a group only while a consumer of the group is connected. The first group may not
# consume, so that its lag stays; the second one has consumed everything.
BEHIND, DONE = ("CG_tags", "Orders"), ("CG_all", "Audit")
_SCOPE = "otel_scope_name"  # a label of the exporter of a broker, which ours leaves out
# Ages grow between the broker's clock and that of the test.
_GROWING = {
    "rocketmq_consumer_lag_latency_milliseconds": 5_000.0,
    "rocketmq_storage_message_reserve_time_milliseconds": 5_000.0,
}
# What both have of this store.
_ALWAYS = {
    "rocketmq_topic_number",
    "rocketmq_consumer_group_number",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_storage_message_reserve_time_milliseconds",
}
_SIZE = "rocketmq_storage_size_bytes"  # other programs change it
_SIZE_STEP_MAX = 16 << 20
_SECONDS_MAX = 40.0
_CONFIG = {
    "metricsExporterType": "PROM",
    "metricsPromExporterHost": "127.0.0.1",
}

Families = dict[str, Metric]


def _parsed(page: str) -> Families:
    return {family.name: family for family in text_string_to_metric_families(page)}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def _of_broker(port: int) -> Families:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return _parsed(answer.read().decode())


def _series(families: Families, name: str) -> dict[frozenset[tuple[str, str]], float]:
    samples = families[name].samples if name in families else []
    return {
        frozenset((label, text) for label, text in sample.labels.items() if label != _SCOPE): sample.value
        for sample in samples
    }


def _when_connected(port: int) -> tuple[Families, int]:
    """The broker's page once it has numbers of both groups, and when."""
    wanted = {group for group, _ in (BEHIND, DONE)}
    end = time.monotonic() + _SECONDS_MAX
    while True:
        at_ms, page = time.time_ns() // 1_000_000, _of_broker(port)
        lag = page.get("rocketmq_consumer_lag_messages")
        if lag is not None and wanted <= {sample.labels["consumer_group"] for sample in lag.samples}:
            return page, at_ms
        assert time.monotonic() < end, sorted(page)
        time.sleep(0.5)


def _used(path: Path) -> int:
    """Used bytes of the file system."""
    status = os.statvfs(path)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _is_between(value: float, before: int, after: int) -> bool:
    return min(before, after) - _SIZE_STEP_MAX <= value <= max(before, after) + _SIZE_STEP_MAX


def _disallow(path: Path, group: str) -> None:
    """The group keeps its consumers, and gets no message."""
    file = path / "config" / "subscriptionGroup.json"
    before, block = file.read_text().split(f'"{group}":{{', 1)
    file.write_text(
        before + f'"{group}":{{' + block.replace('"consumeEnable":true', '"consumeEnable":false', 1)
    )


def test_the_numbers_of_a_broker_and_ours(rocketmq: Callable[[str], RocketMQ], copy_of: Golden) -> None:
    path = copy_of(STORE)
    _disallow(path, BEHIND[0])
    port = _free_port()
    config = goldens.config(STORE) | _CONFIG | {"metricsPromExporterPort": str(port)}
    with rocketmq("5.5.0").broker(path, config) as broker:
        client = broker.client()
        for group, topic in (BEHIND, DONE):
            client.ask("consumer-start", group, topic, "false", 16)
        _when_connected(port)
        before = _used(path)
        theirs, at_ms = _when_connected(port)
        assert _is_between(theirs[_SIZE].samples[0].value, before, _used(path))
    before = _used(path)
    scrape = Collector(Scope(str(path)), lambda: at_ms * 1_000_000).scrape()
    assert scrape.errors == []
    ours = _parsed(scrape.page.decode())
    assert _is_between(ours[_SIZE].samples[0].value, before, _used(path))
    assert _series(ours, _SIZE).keys() == _series(theirs, _SIZE).keys()
    compared: set[str] = set()
    for name, family in BY_NAME.items():
        if not family.constant:
            assert name not in theirs
            continue
        mine = _series(ours, name)
        for labels, value in _series(theirs, name).items():
            assert {label for label, _ in labels} == set(family.labels), name
            if labels in mine and name != _SIZE:
                compared.add(name)
                near = _GROWING.get(name, 0)
                assert abs(mine[labels] - value) <= near, (name, labels, mine[labels], value)
    assert compared >= _ALWAYS
    lag = {
        (dict(labels)["consumer_group"], dict(labels)["topic"]): value
        for labels, value in _series(theirs, "rocketmq_consumer_lag_messages").items()
    }
    assert (lag[BEHIND], lag[DONE]) == (1137, 0)
