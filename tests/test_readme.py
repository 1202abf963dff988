"""What the README tells people to type is run as it stands, and says the same in both languages.

`/data/store` becomes a golden store; the answers are the broker's own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from store_format import MessageStore
from tests.support import goldens
from tests.support.spark.frames import copy_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
STORE = "basic-5.5.0"


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def _outline(text: str) -> list[str]:
    """What a translation keeps: heading levels, markers, list items, code blocks."""
    return [match[1] for match in re.finditer(r"^(#+ |<!-- /?\w+ -->|- |```\w*)", text, re.MULTILINE)]


def _expected_orders() -> list[dict[str, object]]:
    return [row for row in goldens.expected_rows(STORE) if row["topic"] == "Orders"]


def _tags(row: dict[str, object]) -> str | None:
    properties = row["properties"]
    assert isinstance(properties, dict)
    return properties.get("TAGS")


def test_both_languages_have_the_same_outline_and_code() -> None:
    assert _outline(ENGLISH) == _outline(CHINESE)
    for language in ("sql", "python"):
        assert _blocks(ENGLISH, language) == _blocks(CHINESE, language) != []


def test_both_languages_name_the_same_things() -> None:
    # Code spans are not translated; how often one is named is the translator's own.
    english, chinese = (
        set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)))
        for text in (ENGLISH, CHINESE)
    )
    assert english == chinese


@pytest.mark.parametrize("text", [ENGLISH, CHINESE], ids=["README.md", "README.zh-CN.md"])
def test_links_lead_somewhere(text: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_sql_runs(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    (script,) = _blocks(ENGLISH, "sql")
    create, select, rest = script.replace("/data/store", str(golden(STORE))).split(";")
    assert rest.strip() == ""
    spark.sql(create)
    rows = spark.sql(select).collect()
    spark.catalog.dropTempView("orders")
    assert {row.tags: row.messages for row in rows} == Counter(map(_tags, _expected_orders()))


def test_the_dataframe_and_the_write_run(
    spark: SparkSession, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    script, _, streaming, grouped, writing = _blocks(ENGLISH, "python")
    names: dict[str, object] = {}
    with redirect_stdout(StringIO()) as output:
        exec(script.replace("/data/store", str(golden(STORE))), names)
    assert names["spark"] is spark
    assert "|TagA|" in output.getvalue()
    assert names["orders"].count() == len(_expected_orders())  # type: ignore[attr-defined]  # a DataFrame
    for path in ("orders-checkpoint", "orders", "store"):
        streaming = streaming.replace(
            f"/data/{path}", str(golden(STORE) if path == "store" else tmp_path / path)
        )
    exec(streaming, names)
    assert spark.read.parquet(str(tmp_path / "orders")).count() == len(_expected_orders())
    own = copy_of(golden, STORE, tmp_path)  # a group's offsets are kept in the store
    for path in ("audit-checkpoint", "audit", "store"):
        grouped = grouped.replace(f"/data/{path}", str(own if path == "store" else tmp_path / path))
    exec(grouped, names)
    assert spark.read.parquet(str(tmp_path / "audit")).count() == len(_expected_orders())
    exec(writing.replace("/data/archive", str(tmp_path / "archive")), names)
    written = [
        row
        for queue in MessageStore.open(str(tmp_path / "archive")).queues()
        for batch in queue.read()
        for row in batch.to_pylist()
    ]
    assert {row["topic"] for row in written} == {"Archive"}
    assert Counter((row["tags"], row["body"]) for row in written) == Counter(
        (_tags(row), b64decode(str(row["body"]))) for row in _expected_orders()
    )


def test_the_plain_python_runs(golden: Callable[[str], Path]) -> None:
    _, script, *_ = _blocks(ENGLISH, "python")
    with redirect_stdout(StringIO()) as output:
        exec(script.replace("/data/store", str(golden(STORE))), {})
    lines = output.getvalue().splitlines()
    assert sum(int(line.split()[0]) for line in lines) == sum(
        row["queueId"] == 0 for row in _expected_orders()
    )
    assert all("queueOffset" in line for line in lines)


@pytest.mark.slow
@pytest.mark.spark
def test_the_demo_shows_the_store_and_nothing_else(tmp_path: Path) -> None:
    environment = dict(
        os.environ,
        SPARK_CONF_DIR=str(ROOT / "conf"),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
    )
    command = [sys.executable, str(ROOT / "examples" / "demo.py")]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    counts = Counter(
        (row["topic"], row["queueId"])
        for row in goldens.expected_rows(STORE)
        if row["topic"] in ("Audit", "Metrics", "Orders")
    )
    assert len(counts) == 13
    for (topic, queue), count in counts.items():
        assert re.search(rf"\| *{topic}\| *{queue}\| *{count}\|", done.stdout), (
            f"{topic} {queue}: {count} not in\n{done.stdout}"
        )
    orders = [count for (topic, _), count in counts.items() if topic == "Orders"]
    assert f"{sum(orders)} messages, by 2 micro-batches" in done.stdout
    assert re.search(rf"\| *OrdersCopy\| *{sum(orders)}\| *{sum(orders)}\|", done.stdout), done.stdout
    # The JVM's own remark about a module that Spark asks for; and Spark's about pandas, which nothing of ours
    # uses.
    noise = [
        line for line in done.stderr.splitlines() if "incubator modules" not in line and "pandas" not in line
    ]
    assert noise == []
