"""The rules of the house that a machine can hold: who may import whom, who may open files, what is public,
what is said.

Everything is read from the syntax trees, so a rule also holds for imports inside functions and for code no
test runs.
"""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The only modules that may import pyspark when they run; others may for the type checker alone.
SPARK_ROOM = "rmq_spark/spark/"

# These speak of Spark's types: they may import pyspark.sql.types, and only inside functions, so that
# importing them stays free of it.
TYPE_ROOMS = {"rmq_spark/plan/projection.py"}

# The only modules that open, map or list files: those of a store (write_files.py is the half that changes
# them), and the project's own pages with generated tables.
FILE_ROOMS = {
    "store_format/files/read.py",
    "store_format/files/write.py",
    "rmq_spark/reference.py",
    "store_format/format_tables.py",
}
FILE_ROOMS |= {"rmq_spark/cli/output_file.py"}  # what an export writes

PACKAGES = ("store_format", "rmq_spark")


def _modules() -> list[str]:
    paths = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [*sorted(str(path.relative_to(ROOT)) for path in paths), "pyspark_rmqlog.py"]


MODULES = _modules()


def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module).read_text(encoding="utf-8"), module)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, except what stands under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from _runtime_nodes(other)
            continue
        yield child
        yield from _runtime_nodes(child)


def _imports(nodes: Iterator[ast.AST]) -> set[str]:
    """Dotted names of the imported modules."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            names.update(
                [f"{module}.{alias.name}" for alias in node.names] if module == "pyspark.sql" else [module]
            )
    return names


def _top(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_the_modules_are_found() -> None:
    assert "store_format/layouts.py" in MODULES
    assert "rmq_spark/__init__.py" in MODULES


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("store_format/")])
def test_store_format_needs_only_numpy_pyarrow_and_the_standard_library(module: str) -> None:
    imported = _top(_imports(ast.walk(_tree(module))))  # for types neither
    allowed = {"numpy", "pyarrow", "store_format"} | set(sys.stdlib_module_names)
    assert imported <= allowed, f"{module} imports {sorted(imported - allowed)}"


@pytest.mark.parametrize(
    "module",
    [module for module in MODULES if module.startswith("rmq_spark/") and not module.startswith(SPARK_ROOM)],
)
def test_pyspark_is_imported_only_where_spark_calls_us(module: str) -> None:
    imported = {
        name for name in _imports(_runtime_nodes(_tree(module))) if name.split(".")[0] in ("pyspark", "py4j")
    }
    at_the_top = {
        name for name in _imports(iter(_tree(module).body)) if name.split(".")[0] in ("pyspark", "py4j")
    }
    allowed = {"pyspark.sql.types"} if module in TYPE_ROOMS else set()
    assert imported <= allowed, f"{module} imports {sorted(imported)} when it runs; only {SPARK_ROOM} may"
    assert at_the_top == set(), f"{module} imports pyspark when it is imported"


def test_importing_the_packages_does_not_import_pyspark() -> None:
    code = "import sys, rmq_spark, store_format; print(*(m for m in ('pyspark', 'py4j', 'pandas') if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize("missing", ["pyspark", "rmq_spark", "rmq_spark.spark.data_source"])
def test_the_automatic_registration_survives_a_broken_installation(missing: str) -> None:
    # None in sys.modules makes every import of that name an ImportError: what a missing package does.
    code = f"import sys; sys.modules[{missing!r}] = None; import pyspark_rmqlog; print(hasattr(pyspark_rmqlog, 'DefaultSource'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_the_automatic_registration_offers_the_data_source() -> None:
    import pyspark_rmqlog
    from rmq_spark.spark.data_source import RmqLogDataSource

    assert pyspark_rmqlog.DefaultSource is RmqLogDataSource
    assert RmqLogDataSource.name() == "rmqlog"


# ---- files -------------------------------------------------------------------------------------------------

_FILE_MODULES = {"fileinput", "glob", "mmap", "shutil", "tempfile"}
_FILE_FUNCTIONS = {
    "open",
    "io.open",
    "np.fromfile",
    "np.load",
    "np.memmap",
    "numpy.fromfile",
    "numpy.memmap",
    "pa.memory_map",
    "pa.OSFile",
}
_FILE_FUNCTIONS |= {
    f"os.{name}"
    for name in (
        "fdopen",
        "fwalk",
        "listdir",
        "mkdir",
        "open",
        "remove",
        "rename",
        "replace",
        "scandir",
        "walk",
    )
}
_PATH_METHODS = {"glob", "iterdir", "read_bytes", "read_text", "rglob", "write_bytes", "write_text"}


def _opens_files(tree: ast.Module) -> Iterator[str]:
    for name in sorted(_imports(_runtime_nodes(tree)) & _FILE_MODULES):
        yield f"imports {name}"
    for node in _runtime_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "io", "pathlib"):
            taken = {alias.name for alias in node.names} & {
                "Path",
                "PosixPath",
                "fdopen",
                "listdir",
                "open",
                "scandir",
                "walk",
            }
            yield from (f"line {node.lineno}: imports {node.module}.{name}" for name in sorted(taken))
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            method = (
                node.func.attr if isinstance(node.func, ast.Attribute) and name != "files.read_bytes" else ""
            )
            if name in _FILE_FUNCTIONS or method in _PATH_METHODS:
                yield f"line {node.lineno}: calls {name}"


@pytest.mark.parametrize("module", [module for module in MODULES if module not in FILE_ROOMS])
def test_files_are_opened_in_one_room(module: str) -> None:
    assert list(_opens_files(_tree(module))) == [], f"{module} opens files; only {sorted(FILE_ROOMS)} may"


@pytest.mark.parametrize(
    "code",
    [
        "open(path)",
        "import mmap",
        "from os import scandir",
        "os.open(path, 0)",
        "from pathlib import Path",
        "root.iterdir()",
        "np.memmap(path)",
    ],
)
def test_opening_a_file_is_noticed(code: str) -> None:
    assert list(_opens_files(ast.parse(code)))


# ---- what is public, and what is said ----------------------------------------------------------------------


def _import(module: str) -> types.ModuleType:
    return importlib.import_module(module.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))


def _public_definitions(tree: ast.Module) -> set[str]:
    """Names that a module defines itself at its top level and that do not begin with an underscore."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("module", [module for module in MODULES if not module.endswith("__main__.py")])
def test_public_names_are_listed(module: str) -> None:
    names = getattr(_import(module), "__all__", [])  # that it is sorted is ruff's RUF022
    assert len(names) == len(set(names))
    missing = [name for name in names if not hasattr(_import(module), name)]
    assert missing == [], f"{module}: __all__ names what is not there"
    unlisted = _public_definitions(_tree(module)) - set(names)
    assert unlisted == set(), f"{module}: public by name and not in __all__"


def _documented() -> list[str]:
    more = [
        path
        for room in ("tests", "benchmarks", "examples")
        for path in (ROOT / room).rglob("*.py")
        if path.name != "__init__.py"
    ]
    return MODULES + sorted(str(path.relative_to(ROOT)) for path in more)


@pytest.mark.parametrize("module", _documented())
def test_every_room_says_what_lives_in_it(module: str) -> None:
    docstring = ast.get_docstring(_tree(module)) or ""
    assert len(docstring.split()) >= 5, f"{module} has no docstring that says what lives there"


_TEXT_SUFFIXES = {
    "",
    ".cfg",
    ".conf",
    ".html",
    ".ipynb",
    ".json",
    ".md",
    ".properties",
    ".py",
    ".sh",
    ".toml",
    ".txt",
    ".yaml",
    ".yml",
}
_HOME = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp/w)/\w")


def _texts() -> list[Path]:
    """The files of the repository that people read; an unpacked source distribution has no list of them."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in done.stdout.split("\0") if name]
    return [
        path
        for path in paths
        if path.suffix in _TEXT_SUFFIXES and "golden" not in path.parts and path.is_file()
    ]


def test_nothing_names_a_directory_of_somebodys_machine() -> None:
    found = []
    for path in _texts():
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [
            f"{path.relative_to(ROOT)}:{number}" for number, line in enumerate(lines, 1) if _HOME.search(line)
        ]
    assert found == []
