"""SQL92 filters: every case that RocketMQ's own filter module decided, errors with their place, and what hostile text comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.consume.sql92 import parse_sql92
from store_format.errors import OptionError

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "sql92_vectors.json").read_text())
OUTCOMES = ("false", "true", "null", "eval_error")


def outcome(expression: str, properties: dict[str, str]) -> str:
    """As the vectors name it."""
    try:
        parsed = parse_sql92(expression)
    except OptionError:
        return "parse_error"
    return OUTCOMES[parsed.outcomes(1, lambda name: pa.array([properties.get(name)], pa.string()))[0]]


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["expr"])
def test_vectors(case: dict[str, Any]) -> None:
    assert outcome(case["expr"], VECTORS["properties"]) == case["result"]
    if case["result"] != "parse_error":
        maps = pa.array([list(VECTORS["properties"].items())], pa.map_(pa.string(), pa.string()))
        assert parse_sql92(case["expr"]).mask_of_maps(maps).to_pylist() == [case["delivered"]]


def test_there_are_so_many_vectors() -> None:
    assert len(VECTORS["cases"]) == 223
