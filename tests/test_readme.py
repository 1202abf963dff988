"""The READMEs: short, and what they tell people to type is run as it stands.

`/tmp/shop` is the demo store, with a fixed end. tests/test_installation.py runs the first block, too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import rmq_spark
from tests.support import goldens
from tests.support.doc_pages import Block, Session, anchors, blocks, is_as_shown
from tests.support.fixtures import Golden, SparkSession
from tests.support.pictures import END

ROOT = Path(__file__).resolve().parent.parent
READMES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md")}
ENGLISH = READMES["README.md"]
STORE = "basic-5.5.0"

_DEFINITION = re.compile(r"^\[([^\]]+)\]: (\S+)\n", re.MULTILINE)
_INSTALL = """\
python3 -m venv .venv
. .venv/bin/activate
pip install '.[all]'
python -m rmq_spark.demo /tmp/shop
"""


def _commands(text: str) -> list[str]:
    """What the tables tell to type: first that of the four readers, then that of questions."""
    return re.findall(r"^\| [^`]+ \| `([^`]+)` \|$", text, re.MULTILINE)


def test_a_readme_has_at_most_8_kb() -> None:
    assert len(_DEFINITION.sub("", ENGLISH).encode()) <= 8192


def test_no_line_of_code_is_cut_by_a_browser() -> None:
    assert (
        max(
            len(line)
            for block in re.findall(r"^```.*?^```", ENGLISH, re.M | re.S)
            for line in block.splitlines()
        )
        <= 96
    )


def test_the_first_screen_says_what_for_whom_and_what_to_type() -> None:
    screen = ENGLISH.split("\n## ")[0]
    assert len(_commands(screen)) == 4
    assert re.search(r"^!\[[^\]]{30,}\]\[lag.svg\]$", screen, re.MULTILINE)  # a picture with its text
    assert ENGLISH.split("\n## ")[1].startswith("Install\n")


def test_the_first_screen_has_the_sentences_of_make() -> None:
    """What `make` says of the three targets that a newcomer types, with the minutes."""
    screen = " ".join(ENGLISH.split("\n## ")[0].replace("`", "").split())
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test", "test-all"):
        (sentence,) = re.findall(rf'^\t@echo "make {target} +(.+)"$', makefile, re.MULTILINE)
        assert re.search(r"; \d+ minutes$", sentence)
        assert f"make {target} ({sentence})" in screen
    assert (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()[-1] == "make test-all"


def test_questions_and_reports_have_the_addresses_of_the_package() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert all(f"<{urls[name]}>" in security for name in ("Security", "Issues"))
    assert [dict(_DEFINITION.findall(text))["issues"] for text in READMES.values()] == [urls["Issues"]] * 2


@pytest.mark.parametrize("name", READMES)
def test_links_lead_somewhere(name: str) -> None:
    text = READMES[name]
    definitions = dict(_DEFINITION.findall(text))
    assert set(re.findall(r"\]\[([^\]]+)\]", text)) == definitions.keys()
    links = [*re.findall(r"\]\(([^)]+)\)", text), *definitions.values()]
    assert links
    for link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = ROOT / (path or name)
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), link


@pytest.mark.process
@pytest.mark.slow
def test_all_that_the_readme_tells_to_type_runs(
    spark: SparkSession, golden: Golden, demo_shop: Path, tmp_path: Path
) -> None:
    shutil.copytree(demo_shop, tmp_path / "shop")
    session = Session(tmp_path, golden, lambda: spark, root="/tmp/")
    first, *others = blocks(ENGLISH)
    assert first.text.startswith(_INSTALL)
    session.run(Block(first.line, "sh", _with_clock(first.text.removeprefix(_INSTALL)), None))

    lag, trace, frame, table, *questions = _commands(ENGLISH)
    assert "CG_report" in session.run(Block(0, "sh", _with_clock(lag), None))
    assert "A-107201" in session.run(Block(0, "sh", trace, None))
    known = {"spark": spark, "rmq_spark": rmq_spark}
    shop = f"{tmp_path}/shop"
    assert eval(frame.replace("/tmp/shop", shop), known).where("topic = 'Orders'").count() == 22_400
    assert eval(table.replace("/tmp/shop", shop), known).num_rows == 22_400

    for command in questions:
        assert session.run(Block(0, "sh", command, None))
    for block in others:
        printed = session.run(block)
        if block.output is not None:
            assert is_as_shown(block.output, printed), f"README.md:{block.line} prints\n{printed}"
    spark.catalog.dropTempView("orders")


def _with_clock(command: str) -> str:
    """Ages in the demo store count to its end."""
    return command.replace("rmqlog lag /tmp/shop", f"rmqlog lag /tmp/shop --now {END}")


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
