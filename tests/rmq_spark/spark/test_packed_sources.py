"""What `register(by_value=True)` sends with each query: the modules that tasks need, and no more."""

from __future__ import annotations

import ast
import lzma

import store_format
from rmq_spark import broker
from rmq_spark.spark.by_value import _shortened, _sources, packed_sources

SIZE_MAX = 420_000  # docs/deploy.md and docs/howto-cluster.md say so


def _unpacked() -> dict[str, tuple[str, bool]]:
    parts = lzma.decompress(packed_sources()).decode().split("\0")
    modules = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {name: (text, bool(mark)) for name, text, mark in modules}


def test_it_is_small() -> None:
    assert len(packed_sources()) <= SIZE_MAX


def test_it_has_what_tasks_import_and_no_more() -> None:
    sources = _unpacked()
    needed = {"rmq_spark", "rmq_spark.spark.data_source", "rmq_spark.stream.group_positions"}
    needed |= {"store_format.kernels.walk", "store_format.views.problems", "store_format.diagnose"}
    assert needed <= sources.keys()
    unneeded = ("rmq_spark.cli", "rmq_spark.charts", "store_format.notebook", "store_format.commit.recover")
    assert [name for name in sources if name.startswith(unneeded)] == []
    assert sources["rmq_spark"][1]
    for name, (text, _) in sources.items():
        compile(text, name, "exec")


def test_fewer_blanks_make_the_same_program() -> None:
    for text, _ in _sources().values():
        tree = ast.parse(text)
        shorter = _shortened(tree)  # which changes the tree
        assert ast.dump(ast.parse(shorter)) == ast.dump(ast.parse(ast.unparse(tree)))


def test_types_of_fields_are_kept_and_those_of_variables_are_not() -> None:
    a_class = "@dataclass\nclass A:\n    y: int = 2\n    def f(self):\n        z: int = 3\n        w: int\n"
    expected = "x = 1\n\n@dataclass\nclass A:\n y: int = 2\n\n def f(self):\n  z = 3\n  w: int"
    assert _shortened(ast.parse(f"x: int = 1\n{a_class}")) == expected


def test_it_has_what_the_doors_import_when_it_is_used() -> None:
    """A door imports modules by their names. It has import statements for mypy alone, which show them."""
    sources = _unpacked()
    used = {
        each.name
        for text, _ in sources.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module == "rmq_spark.broker"
        for each in node.names
    }
    homes = {f"rmq_spark.broker.{broker._HOMES[name]}" for name in used - {*broker._MODULES}}
    homes |= {f"rmq_spark.broker.services.{name}" for name in used & {*broker._MODULES}}
    assert {"PopPositions", "collect_names", "commit_decisions"} <= used
    assert homes | {*store_format._MODULES.values()} <= sources.keys()
