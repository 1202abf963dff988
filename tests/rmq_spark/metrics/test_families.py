"""Names, labels and units of the metrics: those of RocketMQ's own classes where a broker has the metric."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from rmq_spark.metrics.families import BY_NAME, CONSUMER, FAMILIES, STORAGE

VERSION = "5.5.0"
_JARS = Path.home() / ".m2" / "repository" / "org" / "apache" / "rocketmq"
_CLASSES = {
    "BrokerMetricsConstant": ("rocketmq-broker", "org.apache.rocketmq.broker.metrics"),
    "DefaultStoreMetricsConstant": ("rocketmq-store", "org.apache.rocketmq.store.metrics"),
}
_CONSTANT = re.compile(r'String (\w+) = "(.*)";')


@cache
def constants() -> dict[str, str]:
    """Class.FIELD -> text, of the jars of RocketMQ; skips without them."""
    found: dict[str, str] = {}
    for name, (artifact, package) in _CLASSES.items():
        jar = _JARS / artifact / VERSION / f"{artifact}-{VERSION}.jar"
        if not jar.exists() or shutil.which("javap") is None:
            pytest.skip(f"needs javap and {jar.name}, which the tests with a broker fetch")
        command = ["javap", "-constants", "-cp", str(jar), f"{package}.{name}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found |= {f"{name}.{field}": text for field, text in _CONSTANT.findall(done.stdout)}
    assert len(found) > 60
    return found


@pytest.mark.process
def test_the_names_are_those_of_the_jars() -> None:
    """The exporter of a broker adds the unit to the constant, if the constant does not end in it."""
    of_jars = constants()
    ours = {family.constant: family for family in FAMILIES if family.constant}
    assert len(ours) >= 10
    for constant, family in ours.items():
        assert of_jars[constant] + family.unit == family.name
    assert not {family.name for family in FAMILIES if not family.constant} & set(of_jars.values())


@pytest.mark.process
def test_the_labels_are_those_of_the_jars() -> None:
    labels = {text for constant, text in constants().items() if ".LABEL_" in constant}
    for family in FAMILIES:
        if family.constant:
            assert set(family.labels) <= labels, family.name
    assert constants()["BrokerMetricsConstant.NODE_TYPE_BROKER"] == "broker"
    assert constants()["DefaultStoreMetricsConstant.DEFAULT_STORAGE_TYPE"] == "local"
    assert constants()["DefaultStoreMetricsConstant.DEFAULT_STORAGE_MEDIUM"] == "disk"


def test_a_broker_s_name_has_a_constant_and_ours_says_whose_it_is() -> None:
    assert len(BY_NAME) == len(FAMILIES)
    for family in FAMILIES:
        assert family.name.startswith("rocketmq_" if family.constant else "rmqlog_")
        assert family.help.endswith(".")
        assert family.source
        assert re.fullmatch("[a-z_]+", family.name)
    assert set(CONSUMER) > {"consumer_group", "topic"}
    assert set(STORAGE) > {"storage_type", "storage_medium"}
