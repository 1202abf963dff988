"""The dashboard and the alert rules in conf/: each query names metrics that `rmqlog metrics` exports, and
their labels; the rules answer the questions of docs/monitor.md.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.metrics.families import BY_NAME

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "conf" / "prometheus-rules.yml"
DASHBOARD = json.loads((ROOT / "conf" / "grafana-dashboard.json").read_text(encoding="utf-8"))

_EXPRESSION = re.compile(r"^ +expr: (?:>-\n((?: {10}.*\n)+)|(.*)\n)", re.MULTILINE)
_METRIC = re.compile(r"\b((?:rocketmq|rmqlog|node_textfile)_\w+)(?:\{([^}]*)\})?")
# The node exporter's textfile collector exports this metric.
_LABELS = {name: family.labels for name, family in BY_NAME.items()} | {
    "node_textfile_mtime_seconds": ("file",)
}


def rule_queries() -> list[str]:
    found = _EXPRESSION.findall(RULES.read_text(encoding="utf-8"))
    return [" ".join((block or line).split()) for block, line in found]


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]


def wrong_names(query: str) -> list[str]:
    """The names of metrics and labels in a query that rmqlog does not export."""
    wrong = []
    for name, labels in _METRIC.findall(query):
        if name not in _LABELS:
            wrong.append(name)
        else:
            used = re.findall(r"(\w+) *[=!]~?", labels)
            wrong += [f"{name}{{{label}}}" for label in used if label not in _LABELS[name]]
    return wrong


def test_each_query_names_what_is_exported() -> None:
    queries = [*rule_queries(), *dashboard_queries()]
    assert len(queries) > 30
    assert all(_METRIC.search(query) for query in queries)
    assert {query: wrong for query in queries if (wrong := wrong_names(query))} == {}


def test_a_wrong_name_is_noticed() -> None:
    assert wrong_names('rmqlog_lag{topic="T"} > 1') == ["rmqlog_lag"]
    assert wrong_names('rmqlog_disk_used_ratio{topic="T"}') == ["rmqlog_disk_used_ratio{topic}"]


def test_the_rules_are_complete() -> None:
    text = RULES.read_text(encoding="utf-8")
    alerts = re.findall(r"^ +- alert: (\w+)$", text, re.MULTILINE)
    assert len(alerts) == len(set(alerts)) == len(rule_queries())
    assert len(re.findall(r"^ +labels: \{severity: (?:critical|warning)\}$", text, re.MULTILINE)) == len(
        alerts
    )
    labels = {label for names in _LABELS.values() for label in names}
    assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels
    page = (ROOT / "docs" / "monitor.md").read_text(encoding="utf-8")
    table = page.split("## What to alert on")[1].split("\n## ")[0]
    assert set(re.findall(r"`(Rmqlog\w+)`", table)) == set(alerts)


def test_a_rule_watches_the_age_of_each_file_that_cron_writes() -> None:
    page = (ROOT / "docs" / "monitor.md").read_text(encoding="utf-8")
    written = re.findall(r"--textfile (\S+\.prom)$", page, re.MULTILINE)
    (query,) = (query for query in rule_queries() if "node_textfile_mtime_seconds" in query)
    watched = re.findall(r'file=~"([^"]+)"', query)
    assert len(written) == len(watched) == 2
    for path in written:  # newer node exporters export the whole path, older ones the name
        for file in (path, Path(path).name):
            assert len([each for each in watched if re.fullmatch(each, file)]) == 1, file


def test_the_dashboard_is_one() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
    variables = {each["name"] for each in DASHBOARD["templating"]["list"]}
    used = {name for query in dashboard_queries() for name in re.findall(r"\$(\w+)", query)}
    assert used <= variables


def test_promtool_accepts_the_rules() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run(
        ["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
