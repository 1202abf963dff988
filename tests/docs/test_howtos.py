"""Every block of every page of `docs/` runs as it stands, and prints what the page shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import goldens
from tests.support.doc_pages import (
    ROOT,
    Block,
    Session,
    anchors,
    blocks,
    example_stores,
    is_as_shown,
    read_page,
)
from tests.support.fixtures import Golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
# test_write_page.py gives that page its DataFrame, test_mirror_page.py runs a writer beside the commands
OURS = [name for name in PAGES if name not in ("write.md", "howto-mirror.md")]
ON_A_CLUSTER = "howto-cluster.md"  # tests/spark/test_cluster.py starts one
RUN = [name for name in OURS if name != ON_A_CLUSTER and any(blocks(read_page(name)))]
_STARTS_SPARK = re.compile(r"^```(sql|python)$|^spark-submit ", re.MULTILINE)
NEEDS_SPARK = [name for name in RUN if _STARTS_SPARK.search(read_page(name))]
# Starts Spark three times: CI runs its other pages, the proofs run all.
IN_PROOFS = "deploy.md"


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[
                *([pytest.mark.spark, pytest.mark.slow] if name in NEEDS_SPARK else []),
                *([pytest.mark.whole] if name == IN_PROOFS else []),
            ],
        )
        for name in RUN
    ],
)
def test_the_page_runs(
    name: str, golden: Golden, lazy_spark: Callable[[], SparkSession], tmp_path: Path
) -> None:
    session = Session(tmp_path, golden, lazy_spark)
    for block in blocks(read_page(name)):
        printed = session.run(block)
        if block.output is not None:
            assert is_as_shown(block.output, printed), (
                f"docs/{name}:{block.line} prints\n{printed}\nand not\n{block.output}"
            )


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    for link, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", read_page(name)):
        target = (ROOT / "docs" / (link or name)).resolve()
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{link}#{anchor}"


def test_the_index_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w.-]+\.md)", read_page("README.md")))
    assert linked == set(PAGES) - {"README.md"}


def test_every_code_block_says_what_it_is() -> None:
    """A block without a language would be run by nobody."""
    for name in OURS:
        fences = re.findall(r"^```(.*)$", read_page(name), re.MULTILINE)
        assert set(fences[0::2]) <= {"sh", "python", "sql", "text"}, name
        assert set(fences[1::2]) <= {""}, name


def test_the_example_stores_are_there() -> None:
    stores = example_stores()
    assert "/data/store" in stores
    assert set(stores.values()) <= set(goldens.NAMES)


def test_blocks_and_their_output_are_told_apart() -> None:
    page = (
        "a\n\n```sh\none\n```\n\n```text\nout\n```\n\n```python\ntwo\n```\n\nprose\n\n```text\nnot of "
        "two\n```\n"
    )
    assert list(blocks(page)) == [Block(3, "sh", "one\n", "out\n"), Block(11, "python", "two\n", None)]


def test_what_counts_as_shown() -> None:
    assert is_as_shown("a  b\n1  2\n", "a   b  \n1   2\n")
    assert is_as_shown("a\n…\nd", "a\nb\nc\nd\n")
    assert is_as_shown("…\na\n…", "a")
    assert not is_as_shown("a\n…\nd", "a\nb\nc\n")
    assert not is_as_shown("a  b", "a b")
    assert not is_as_shown("a", "a\nb")
