"""docs/compatibility.md: what it calls proven is in the tests, and its least versions are the project's."""

from __future__ import annotations

import json
import re
import tomllib

from rmq_spark.cli.commands.doctor import NEEDED
from tests.support.config_shapes import rows_of_old_releases
from tests.support.doc_pages import ROOT, read_page

PAGE = read_page("compatibility.md")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _rows(heading: str) -> dict[str, list[str]]:
    """First cell -> the other cells, of all tables below a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0]: row[1:] for row in rows}


def test_each_proven_version_of_rocketmq_has_a_store_that_its_broker_wrote() -> None:
    wrote = {
        json.loads(path.read_text(encoding="utf-8"))["rocketmq"]
        for path in (ROOT / "tests" / "golden").glob("*/provenance.json")
    }
    proven = {
        version
        for version, cells in _rows("Brokers").items()
        if re.fullmatch(r"\d+\.\d+\.\d+", version) and all(cell.startswith("proven") for cell in cells)
    }
    assert proven == wrote


def test_the_least_versions_are_those_of_the_project() -> None:
    rows = _rows("Spark and Python")
    assert f">={rows['Python'][0]}" == PROJECT["requires-python"]
    for name, version in NEEDED.items():
        (row,) = (cells for title, cells in rows.items() if title.lower() == name)
        assert row[0] == ".".join(map(str, version))
    extras = " ".join(PROJECT["optional-dependencies"]["notebook"])
    assert f"altair>={rows['altair (charts)'][0]}" in extras


def test_what_4_9_7_reads_otherwise_in_configuration_files() -> None:
    section = PAGE.partition("### Configuration files that were edited\n")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows_of_old_releases()


def test_public_names_are_those_of_the_contributors_page() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (public,) = re.findall(r"`__all__` marks the public API only: (.*?)\. ", contributing)
    for name in re.findall(r"`([\w.]+)`", public):
        assert f"`{name}`" in PAGE
