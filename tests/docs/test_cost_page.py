"""docs/cost.md: each value that follows is its formula with the page's own figures, and those of the figures
that are in the code are right.
"""

from __future__ import annotations

import re

from store_format.files import blocks
from store_format.index.file import DEFAULT_GEOMETRY
from tests.support.doc_pages import read_page

_PAGE = read_page("cost.md")
_GIVEN = re.compile(r"^\| `(\w+)` \| ([\d.,]+) \| ", re.MULTILINE)
_RESULT = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| ([\d.,]+) \| ", re.MULTILINE)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


_NAMES = {name: _number(value) for name, value in _GIVEN.findall(_PAGE)}


def test_each_value_is_its_formula() -> None:
    names, results = dict(_NAMES), _RESULT.findall(_PAGE)
    assert len(results) > 10
    for name, formula, shown in results:
        names[name] = eval(formula, {"__builtins__": {}}, dict(names))
        assert f"{names[name]:.2g}" == f"{_number(shown):.2g}", (name, names[name])


def test_the_requests_are_those_of_the_table() -> None:
    asked = dict(re.findall(r"^\| ([\w ,]+?) \| ([\d.]+) \| [\d.]+ \|$", _PAGE, re.MULTILINE))
    one, cut = (float(asked[f"plan {tasks}, up to 2,000 queues"]) for tasks in ("1 task", "24 tasks"))
    assert _NAMES["end_gets"] == round(one - 1, 1)
    assert _NAMES["cut_requests"] == round((cut - one) / 23, 2)
    assert _NAMES["task_requests"] == float(asked["one task of 12"])


def test_the_price_of_a_read_counts_each_request() -> None:
    (price,) = re.findall(r"^read   = (.*?)^store", _PAGE, re.MULTILINE | re.DOTALL)
    results = {name for name, _, _ in _RESULT.findall(_PAGE)}
    names = set(re.findall(r"\b[a-z]\w+\b", re.sub(r"\(0 within.*?\)", "", price))) - {"max"}
    assert names <= _NAMES.keys() | results
    assert {"gets", "broker_plan_requests", "queue_gets", "lists"} <= names


def test_the_figures_of_the_code() -> None:
    assert _NAMES["piece"] == blocks.RANGE_MAX
    assert f"{DEFAULT_GEOMETRY.index_num:_}" in _PAGE
    assert round(DEFAULT_GEOMETRY.file_size / 1e6) == 420
    assert "| `find` by key and topic, in a full index file" in read_page("deploy.md")
    (of_index,) = re.findall(r"`find` by key and topic.* index (\d+), ", read_page("deploy.md"))
    assert _NAMES["index_requests"] == int(of_index) + 2
