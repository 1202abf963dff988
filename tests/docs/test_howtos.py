"""Every block of every page of `docs/` runs as it stands, and prints what the page shows."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.files import tree
from store_format.index.file import key_hash
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
from tests.support.fixtures import Golden, SparkSession
from tests.support.large_index import entries_in_one_slot, middle_key, write_large_index
from tests.support.object_server import ObjectServer
from tests.support.stored_rows import rows_in

PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
# its test gives write.md its DataFrame, test_mirror_page.py runs a writer beside the commands
OURS = [name for name in PAGES if name not in ("write.md", "howto-mirror.md")]
ON_A_CLUSTER = "howto-cluster.md"  # tests/spark/test_cluster.py starts one
# The blocks of a Chinese page are those of its English page: test_chinese.py compares them.
RUN = [
    name for name in OURS if name != ON_A_CLUSTER and ".zh-CN." not in name and any(blocks(read_page(name)))
]
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


# ---- docs/write.md -----------------------------------------------------------------------------------------


PAGE = (Path(__file__).resolve().parent.parent.parent / "docs" / "write.md").read_text(encoding="utf-8")
WRITE, THREADS, TABLE, APPEND = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(SQL,) = re.findall(r"^```sql\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_dataframe_is_written(spark: SparkSession, tmp_path: Path) -> None:
    orders = spark.createDataFrame(
        [(n, "north", f"customer-{n % 3}") for n in range(30)], "id int, region string, customer string"
    )
    exec(WRITE.replace("/data/store", str(tmp_path / "store")), {"orders": orders})
    rows = rows_in(tmp_path / "store")
    assert sorted(int(row["keys"][0]) for row in rows) == list(range(30))
    assert {row["tags"] for row in rows} == {"north"}
    queue_of = {(dict(row["properties"])["__SHARDINGKEY"], row["queueId"]) for row in rows}
    assert len(queue_of) == 3  # each customer has one queue
    exec(THREADS.replace("/data/store", str(tmp_path / "threads")), {"orders": orders, "spark": spark})
    ends = {
        (queue.topic, queue.max_offset > 0)
        for queue in MessageStore.open(str(tmp_path / "threads")).queues()
        if queue.max_offset
    }
    assert ends == {("Orders", True), ("Audit", True)}


def test_the_sql_writes(spark: SparkSession, tmp_path: Path) -> None:
    for statement in filter(
        None, map(str.strip, SQL.replace("/data/new-store", str(tmp_path / "store")).split(";"))
    ):
        spark.sql(statement)
    spark.catalog.dropTempView("new_orders")
    rows = rows_in(tmp_path / "store")
    assert sorted((row["topic"], row["keys"][0], row["tags"], row["body"]) for row in rows) == [
        ("Orders", "order-1", "paid", b"one"),
        ("Orders", "order-2", "sent", b"two"),
    ]


def test_the_table_is_appended(tmp_path: Path) -> None:
    with redirect_stdout(StringIO()) as output:
        exec(TABLE.replace("/data/new-orders", str(tmp_path / "store")), {})
    assert output.getvalue() == "True 2\n"
    rows = [(row["body"], row["tags"], row["keys"]) for row in rows_in(tmp_path / "store")]
    assert sorted(rows) == [(b"one", "paid", ["order-1"]), (b"two", None, ["order-2"])]


def test_the_append_runs(tmp_path: Path) -> None:
    with redirect_stdout(StringIO()) as output:
        exec(APPEND.replace("/data/new-store", str(tmp_path / "store")), {})
    assert output.getvalue() == "True {('Orders', 1): (0, 2)}\n"
    rows = [
        row
        for batch in MessageStore.open(str(tmp_path / "store")).queue("Orders", 1).read(0, 2)
        for row in batch.to_pylist()
    ]
    assert [(row["body"], row["tags"], row["keys"]) for row in rows] == [
        (b"one", "A", ["order-1"]),
        (b"two", "B", None),
    ]


# ---- the numbers of requests in docs/deploy.md -------------------------------------------------------------


_ROW = re.compile(r"^\| ([^|]*`(?:lag|find)`[^|]*) \| (\d+) \| ([a-z0-9, ]+) \|$", re.MULTILINE)
_SHOWN = {row[1]: (int(row[2]), row[3]) for row in _ROW.finditer(read_page("deploy.md"))}


def _lag(path: str) -> None:
    assert MessageStore.open(path).view("lag").num_rows


def _find_by_id(path: str) -> None:
    (row, *_) = [row for row in goldens.expected_rows("basic-5.5.0") if row["topic"] == "Orders"]
    assert MessageStore.open(path).find(message_id=row["msgId"]).how == "offset"


def _find_by_key(path: str) -> None:
    found = MessageStore.open(path).find(key=middle_key(), topic="Orders")
    assert (found.how, found.table.num_rows > 0) == ("index", True)


_ASKED = {
    "`lag` of 16 queues in 30 files": _lag,
    "`find` by offset message id": _find_by_id,
    "`find` by key and topic, in a full index file of 420 MB with five entries in the slot": _find_by_key,
}


def test_every_row_is_asked() -> None:
    assert _SHOWN.keys() == _ASKED.keys()


@pytest.mark.parametrize("asked", _ASKED)
def test_requests_are_as_shown(
    server: ObjectServer, basic: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_AGE_MIN_S", 600.0)  # a busy machine would list it again
    if "420 MB" in asked:
        shutil.rmtree(basic / "index")
        (basic / "index").mkdir()
        entries = entries_in_one_slot(key_hash(f"Orders#{middle_key()}"))
        write_large_index(basic / "index/20261121065231934", entries)
    _ASKED[asked](server.url_of(basic))
    kinds = Counter(
        request.key.split("/")[1] if request.kind == "get" else "list" for request in server.requests
    )
    text = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    assert _SHOWN[asked] == (len(server.requests), text)


# ---- temporary SQL views -----------------------------------------------------------------------------------


_ROOT = Path(__file__).parents[2]
_VIEW = re.compile(r"CREATE TEMPORARY VIEW \w+\s+USING rmqlog\s+OPTIONS\s*\(([^)]*)\)")
_PAGES = sorted(
    page
    for page in (*_ROOT.glob("*.md"), *_ROOT.glob("docs/*.md"))
    if any("view '" not in options for options in _VIEW.findall(page.read_text(encoding="utf-8")))
)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_a_page_with_a_view_says_that_it_is_a_snapshot(page: Path) -> None:
    assert "#what-spark-does)" in page.read_text(encoding="utf-8") or "[snapshots]: " in page.read_text(
        encoding="utf-8"
    )


def test_there_are_pages() -> None:
    assert {"README.md", "README.zh-CN.md", "read.md", "filters.md"} <= {page.name for page in _PAGES}
