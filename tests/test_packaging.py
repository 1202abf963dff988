"""What an installation brings: the metadata against what the code and the docs import."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.doc_pages import blocks

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OURS = {"rmq_spark", "store_format", "pyspark_rmqlog"}
PAGES = [
    *sorted(ROOT.glob("README*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "notebooks" / "README.md",
]


# The packages of the docs whose module has another name.
_IMPORTED_AS = {"protobuf": "google", "grpcio-tools": "grpc_tools"}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ]", requirement)[0] for requirement in requirements}


def _imported(source: str) -> set[str]:
    """Top-level packages that the source imports, of Python's own none."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
    return {name.split(".")[0] for name in found} - set(sys.stdlib_module_names) - OURS


def test_a_plain_installation_has_all_that_the_command_imports() -> None:
    """`pip install .` puts `rmqlog` on the path, so that what it imports may not be in an extra."""
    imported = {
        name
        for path in (ROOT / "rmq_spark" / "cli").glob("*.py")
        for name in _imported(path.read_text(encoding="utf-8"))
    }
    assert "click" in imported
    # `doctor` imports pyspark to see whether it is there
    assert imported - {"pyspark"} <= _names(PROJECT["dependencies"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_docs_use_what_an_installation_brings(page: Path) -> None:
    """pandas is in the extra `notebook` alone: a page that uses it names this extra, or `all`. A page names
    what else it uses in `pip install …`.
    """
    text = page.read_text(encoding="utf-8")
    extras = PROJECT["optional-dependencies"]
    brought = _names(
        PROJECT["dependencies"]
        + [each for name, each_of in extras.items() if name != "dev" for each in each_of]
    )
    named = {name for names in re.findall(r"`pip install ([\w -]+)`", text) for name in names.split()}
    brought |= {_IMPORTED_AS.get(name, name) for name in named}
    assert "pandas" in _names(extras["notebook"])
    for block in blocks(text):
        if block.language == "python":
            assert _imported(block.text) <= brought, block.line
            uses_pandas = re.search(r"\bto_?pandas\b|pandas_udf|mapInPandas", block.text, re.IGNORECASE)
            assert not uses_pandas or re.search(r"\.\[(notebook|all)\]", text), block.line
    for extra in (name for names in re.findall(r"\.\[([\w,]+)\]", text) for name in names.split(",")):
        assert extra in extras


def test_the_extra_all_has_every_extra_of_users() -> None:
    extras = PROJECT["optional-dependencies"]
    (itself,) = extras["all"]
    assert itself == f"{PROJECT['name']}[{','.join(sorted(extras.keys() - {'all', 'dev'}))}]"


def test_advice_about_packages_needs_no_index_with_this_project() -> None:
    """`rmqlog` is on no index yet: a hint to install it, or an extra of it, would lead nowhere."""
    for package in ("rmq_spark", "store_format"):
        for path in (ROOT / package).rglob("*.py"):
            assert "pip install 'rmqlog" not in path.read_text(encoding="utf-8"), path


def test_the_classifiers_the_workflow_and_make_name_the_same_pythons() -> None:
    of_metadata = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    (matrix,) = re.findall(r"python: \[(.+)\]", workflow)
    assert re.findall(r'"(3\.\d+)"', matrix) == of_metadata
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert (
        re.findall(r"python(3\.\d+)", makefile.split("for python in ")[1].split(";")[0]) == of_metadata[::-1]
    )
