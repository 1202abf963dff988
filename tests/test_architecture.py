"""The rules of the house that a machine can hold: which room imports which, who opens files, what is public,
what has a docstring.

All of it is read from the syntax trees, so a rule also holds for imports inside functions, for annotations
(`if TYPE_CHECKING`) and for code that no test runs.
"""

from __future__ import annotations

import ast
import importlib
import re
import shutil
import subprocess
import sys
import types
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("store_format", "rmq_spark")

# A room imports itself and the rooms before it. A module of the top level is a room of its own; "" is the
# package's __init__.
ROOMS = [
    *(
        f"store_format.{room}"
        for room in (
            *("display", "errors", "names", "layouts", "kernels", "arrays", "java", "files", "opened"),
            *("message", "metadata", "commitlog", "consumequeue", "index", "bookkeeping", "survey", "read"),
            *("search", "follow", "pop", "commit", "diagnose", "views", "notebook", "store", ""),
        )
    ),
    *(
        f"rmq_spark.{room}"
        for room in (
            *(
                "consume",
                "produce",
                "options",
                "plan",
                "stream",
                "write",
                "broker",
                "client",
                "seen_names",
                "python_search",
                "store",
                "charts",
            ),
            *(
                "charts",
                "report",
                "show",
                "spark",
                "",
                "pop",
                "consumer",
                "services",
                "demo",
                "metrics",
                "cli",
            ),
        )
    ),
    "pyspark_rmqlog.",  # what Spark imports to register the data source
]

# Third-party modules that one room alone imports.
ONE_ROOM = {
    "pyspark": "rmq_spark.spark",
    "py4j": "rmq_spark.spark",
    "click": "rmq_spark.cli",
    "numba": "store_format.kernels",
    "llvmlite": "store_format.kernels",
    "prometheus_client": "rmq_spark.metrics",
}

# Modules that open, map or list files: the room of store files, what an export writes, and those that compile
# and keep kernels.
FILE_ROOM = "store_format/files/"
ALSO_FILES = {
    "rmq_spark/cli/output_file.py",
    "store_format/kernels/cache_directory.py",
    "store_format/kernels/compile.py",
    "store_format/kernels/objects.py",
    "store_format/views/diff_parts.py",  # its own temporary files
}

DOOR = "rmq_spark.broker"

# The modules whose names are public; everything else may move at any time.
PUBLIC = {
    "store_format/__init__.py",
    "store_format/errors.py",
    "store_format/layouts.py",
    "rmq_spark/__init__.py",
    "rmq_spark/charts/__init__.py",
    "rmq_spark/consume/__init__.py",
    "rmq_spark/consumer.py",
    "rmq_spark/demo/__init__.py",
    "rmq_spark/pop.py",
    "rmq_spark/report/__init__.py",
    "rmq_spark/services.py",
    "rmq_spark/broker/retry.py",
    "rmq_spark/broker/services/timer.py",
    "rmq_spark/show.py",
    "pyspark_rmqlog.py",
}


def _modules(root: Path = ROOT) -> list[str]:
    paths = [path for package in PACKAGES for path in (root / package).rglob("*.py")]
    found = sorted(path.relative_to(root).as_posix() for path in paths)
    return [*found, "pyspark_rmqlog.py"] if root == ROOT else found


MODULES = _modules()


def _tree(module: str) -> ast.Module:
    return _parsed((ROOT / module).read_text(encoding="utf-8"))


@cache  # also for the copies of the tests with a planted import, which differ in one file
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@cache
def _nodes(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


@cache
def _nodes_at_run_time(tree: ast.Module) -> list[ast.AST]:
    return list(_runtime_nodes(tree))


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """Two million objects, which each later garbage collection of the process would look at."""
    yield
    for each in (_parsed, _nodes, _nodes_at_run_time):
        each.cache_clear()


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below, except those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child):
            for other in child.orelse:
                yield other
                yield from _runtime_nodes(other)
            continue
        yield child
        yield from _runtime_nodes(child)


def _imports(nodes: Iterable[ast.AST]) -> set[str]:
    """Dotted names of the imported modules."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def _top(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_the_modules_are_found() -> None:
    assert "store_format/layouts.py" in MODULES
    assert "rmq_spark/__init__.py" in MODULES


# ---- rooms -------------------------------------------------------------------------------------------------


def _dotted(module: str) -> str:
    return module.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


def _room(module: str) -> str:
    """The room of a dotted module: `store_format.read.store` -> `store_format.read`."""
    package, _, rest = module.partition(".")
    return f"{package}.{rest.split('.')[0]}"


def _import_nodes(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in _nodes(_parsed(text)) if isinstance(node, ast.Import | ast.ImportFrom)]


def _graph(root: Path) -> dict[str, set[str]]:
    """Dotted module -> the modules of both packages that it imports, wherever it does."""
    modules = {_dotted(module): module for module in _modules(root)}
    graph: dict[str, set[str]] = {}
    for name, module in modules.items():
        package = name.split(".") if module.endswith("__init__.py") else name.split(".")[:-1]
        found: set[str] = set()
        for node in _import_nodes((root / module).read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            else:
                above = package[: len(package) + 1 - node.level] if node.level else []
                base = ".".join([*above, *([node.module] if node.module else [])])
                found.update(
                    f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base
                    for alias in node.names
                )
        graph[name] = (found & modules.keys()) - {name}
    return graph


def _against_the_order(graph: dict[str, set[str]]) -> list[str]:
    """Each import of a later room, and each module whose room has no place in the order."""
    place = {room: number for number, room in enumerate(ROOMS)}
    homeless = sorted(f"{module}: no such room in ROOMS" for module in graph if _room(module) not in place)
    return homeless or sorted(
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if place[_room(other)] > place[_room(module)]
    )


def _cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules that import each other, directly or not: none is left when every module can be
    taken away after those it imports.
    """
    left = {module: set(others) for module, others in graph.items()}
    while free := {module for module, others in left.items() if not others & left.keys()}:
        left = {module: others for module, others in left.items() if module not in free}
    reached: dict[str, set[str]] = {}
    for module in left:
        seen, ahead = set(), list(left[module])
        while ahead:
            other = ahead.pop()
            if other in left and other not in seen:
                seen.add(other)
                ahead += left[other]
        reached[module] = seen
    groups = {
        frozenset(m for m in seen if module in reached[m])
        for module, seen in reached.items()
        if module in seen
    }
    return sorted(sorted(group) for group in groups)


def test_a_room_imports_itself_and_earlier_rooms() -> None:
    assert _against_the_order(_graph(ROOT)) == []


def test_no_modules_import_each_other() -> None:
    assert _cycles(_graph(ROOT)) == []


def test_the_work_of_a_broker_has_one_door() -> None:
    """Other rooms import what they need from `rmq_spark.broker`, which says where it is."""
    found = {
        module: names
        for module in MODULES
        if not module.startswith("rmq_spark/broker/")
        and (names := {name for name in _imports(_nodes(_tree(module))) if name.startswith(f"{DOOR}.")})
    }
    assert found == {}
    door = importlib.import_module(DOOR)
    assert [name for name in (*door._HOMES, *door._MODULES) if not hasattr(door, name)] == []


_PLANTS = {
    "at the top": "import {0}\n",
    "in a function": "def planted() -> None:\n    from {0} import nothing\n",
    "for the type checker": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {0}\n",
}


@pytest.mark.process
@pytest.mark.parametrize("plant", _PLANTS.values(), ids=_PLANTS)
def test_a_planted_import_is_found(tmp_path: Path, plant: str) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "store_format/files/lock.py").open("a") as file:
        file.write(plant.format("store_format.views.lag"))
    graph = _graph(tmp_path)
    assert _against_the_order(graph) == ["store_format.files.lock imports store_format.views.lag"]
    (cycle,) = _cycles(graph)
    assert {"store_format.files.lock", "store_format.views.lag"} <= set(cycle)


def test_a_relative_import_and_a_new_room_are_found(tmp_path: Path) -> None:
    (tmp_path / "store_format/attic").mkdir(parents=True)
    (tmp_path / "store_format/attic/box.py").write_text("from ..errors import StoreError\n")
    (tmp_path / "store_format/errors.py").write_text("from . import attic\nfrom .attic import box\n")
    graph = _graph(tmp_path)
    assert graph["store_format.errors"] == {"store_format.attic.box"}
    assert _cycles(graph) == [["store_format.attic.box", "store_format.errors"]]
    assert _against_the_order(graph) == ["store_format.attic.box: no such room in ROOMS"]


def test_store_format_needs_only_numpy_pyarrow_and_the_standard_library() -> None:
    """One module alone knows the client of object storage, one that of HDFS, and one RocksDB: extras."""
    allowed = {"llvmlite", "numpy", "numba", "pyarrow", "store_format"} | set(sys.stdlib_module_names)
    found = {
        module: names
        for module in MODULES
        if module.startswith("store_format/")
        and (names := _top(_imports(_nodes(_tree(module)))) - allowed)  # for the type checker neither
    }
    assert found == {
        "store_format/files/source.py": {"obstore"},
        "store_format/files/hdfs.py": {"hdfs_native"},
        "store_format/files/rocksdb_child.py": {"rocksdict"},
    }


@pytest.mark.process
def test_pyspark_click_and_numba_have_one_room_each() -> None:
    """Others import them for the type checker alone."""
    found = []
    for module in MODULES:
        for name in sorted(_top(_imports(_nodes_at_run_time(_tree(module)))) & ONE_ROOM.keys()):
            if _room(_dotted(module)) != ONE_ROOM[name]:
                found.append(f"{module} imports {name}; only {ONE_ROOM[name]} may")
    assert found == []


def test_one_module_knows_the_versions_of_spark() -> None:
    """`rmq_spark.spark.compat` has the names that not every supported Spark has."""
    newer = {
        "pyspark.sql.streaming.datasource",
        "pyspark.sql.datasource.DataSourceStreamArrowWriter",
        "pyspark.version",
        "pyspark.version.__version__",
        "pyspark.__version__",
    }
    knowing = {
        module
        for module in _modules()
        if any(
            f"{node.module}.{name.name}" in newer or node.module in newer
            for node in _nodes(_tree(module))
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        )
    }
    assert knowing == {"rmq_spark/spark/compat.py"}


def test_importing_the_packages_does_not_import_pyspark() -> None:
    code = "import sys, rmq_spark, store_format; print(*({'pyspark', 'py4j', 'pandas'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize("missing", ["pyspark", "rmq_spark", "rmq_spark.spark.data_source"])
def test_the_automatic_registration_survives_a_broken_installation(missing: str) -> None:
    # None in sys.modules makes every import of that name an ImportError: what a missing package does.
    code = (
        f"import sys; sys.modules[{missing!r}] = None; import pyspark_rmqlog; "
        f"print(hasattr(pyspark_rmqlog, 'DefaultSource'))"
    )
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
    *("open", "io.open", "np.fromfile", "np.load", "np.memmap", "numpy.fromfile", "numpy.memmap"),
    *("pa.memory_map", "pa.OSFile", "os.fdopen", "os.fwalk", "os.listdir", "os.mkdir", "os.open"),
    *("os.remove", "os.rename", "os.replace", "os.scandir", "os.walk"),
}
_FILE_NAMES = {"Path", "PosixPath", "fdopen", "listdir", "open", "scandir", "walk"}
# Where a path of a store leads is asked through files/paths.py: a store need not be on a local disk.
_OS_PATH_ROOMS = ("store_format/", "rmq_spark/options/", "rmq_spark/plan/", "rmq_spark/stream/")
_PATH_METHODS = {"glob", "iterdir", "read_bytes", "read_text", "rglob", "write_bytes", "write_text"}
_FILE_CALLS = {name.rpartition(".")[2] for name in _FILE_FUNCTIONS} | _PATH_METHODS


def _last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`; "" of what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _opens_files(tree: ast.Module) -> Iterator[str]:
    for name in sorted(_imports(_nodes_at_run_time(tree)) & _FILE_MODULES):
        yield f"imports {name}"
    for node in _nodes_at_run_time(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "io", "pathlib"):
            taken = {alias.name for alias in node.names} & _FILE_NAMES
            yield from (f"line {node.lineno}: imports {node.module}.{name}" for name in sorted(taken))
        if isinstance(node, ast.Call) and _last_name(node.func) in _FILE_CALLS:
            name = ast.unparse(node.func)
            is_method = isinstance(node.func, ast.Attribute) and name != "formatter.write_text"  # click's
            method = _last_name(node.func) if is_method else ""
            if name in _FILE_FUNCTIONS or method in _PATH_METHODS:
                yield f"line {node.lineno}: calls {name}"


@pytest.mark.process
def test_files_are_opened_in_one_room() -> None:
    found = {
        module: calls
        for module in MODULES
        if not module.startswith(FILE_ROOM) and module not in ALSO_FILES
        if (calls := list(_opens_files(_tree(module))))
    }
    assert found == {}, f"only {FILE_ROOM} opens files"


@pytest.mark.process
def test_paths_of_stores_are_asked_in_one_room() -> None:
    found = {
        module
        for module in MODULES
        if module.startswith(_OS_PATH_ROOMS)
        and not module.startswith((FILE_ROOM, "store_format/kernels/"))
        and module not in ALSO_FILES
        if "os.path"
        in {
            ast.unparse(node)
            for node in _nodes(_tree(module))
            if isinstance(node, ast.Attribute) and node.attr == "path"
        }
        or "os.path" in _imports(_nodes_at_run_time(_tree(module)))
    }
    assert found == set(), f"only {FILE_ROOM} asks os.path"


def _parameters(tree: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Each function, with its parameters that are texts."""
    for node in _nodes(tree):
        if isinstance(node, ast.FunctionDef):
            each = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            texts = (part.arg for part in each if part.annotation and ast.unparse(part.annotation) == "str")
            yield node.name, set(texts)


@pytest.mark.process
def test_functions_take_an_opened_store() -> None:
    """In place of its path, but for those that open a store or make one, and what these call first."""
    found = [
        f"{module}: {name}"
        for module in MODULES
        if module.startswith("store_format/") and not module.startswith(FILE_ROOM)
        for name, parameters in _parameters(_tree(module))
        if "root" in parameters
    ]
    assert 10 < len(found) <= 22, found


# Rooms, and how many of their names other rooms import: the fewer, the more of a room can change by itself.
_DOORS = {
    "store_format.bookkeeping": 26,
    "store_format.commit": 32,  # eight of them change topics and groups
    "store_format.files": 43,
    "store_format.survey": 18,
}


@pytest.mark.process
def test_few_names_of_a_room_are_used_outside() -> None:
    found: dict[str, set[str]] = {room: set() for room in _DOORS}
    for module in MODULES:
        for node in _import_nodes((ROOT / module).read_text(encoding="utf-8")):
            names = (
                [] if isinstance(node, ast.Import) else [f"{node.module}.{each.name}" for each in node.names]
            )
            room = _room(names[0]) if names else ""
            if room in found and room != _room(_dotted(module)):
                found[room].update(names)
    assert [room for room, names in found.items() if len(names) > _DOORS[room]] == [], found


# What asks which files a store has: RocksDB, DLedger, compacted topics, tiered storage, static topics.
_KIND_QUESTIONS = {
    "CompactedTopics", "OtherFiles", "TieredDirectory", "TieredMetadata", "database_identities",
    "dledger_logs", "has_compacted_files", "has_rocksdb_queues", "logical_ranges", "own_directories",
    "read_queue_mappings", "stored_config", "take_database", "unread_ledgers", "with_heads", "with_tiered",
}  # fmt: skip
# Where a store is opened; verify; recover and the refusals to write; and the classes of the kinds themselves.
_KIND_ROOMS = (
    "store_format/opened/", "store_format/read/", "store_format/metadata/", "store_format/commitlog/",
    "store_format/consumequeue/tiered.py", "store_format/diagnose/", "store_format/commit/",
    "rmq_spark/cli/commands/verify.py",
)  # fmt: skip
# Elsewhere, in how many places: queues without files, and queues that lead to another log, say nothing of
# losses; lag and retention do not know what another place serves. The numbers may only fall.
_KINDS_ELSEWHERE = {
    "rmq_spark/broker/services/clean.py": 1,
    "rmq_spark/metrics/lag_memory.py": 1,
    "store_format/follow/follower.py": 1,
    "store_format/search/look_up.py": 2,
    "store_format/survey/fates.py": 1,
    "store_format/survey/gone.py": 3,
    "store_format/survey/snapshot.py": 1,
    "store_format/survey/unfiled_queues.py": 1,
    "store_format/views/files.py": 1,
    "store_format/views/lag.py": 3,
}


@pytest.mark.process
def test_the_kind_of_a_store_is_asked_in_few_places() -> None:
    found: dict[str, int] = {}
    for module in MODULES:
        names = [_last_name(node) for node in _nodes(_tree(module)) if isinstance(node, ast.expr)]
        count = sum(name in _KIND_QUESTIONS for name in names)
        if count and not module.startswith(_KIND_ROOMS):
            found[module] = count
    more = {module: count for module, count in found.items() if count > _KINDS_ELSEWHERE.get(module, 0)}
    assert found
    assert more == {}, "the kind of a store is chosen when it is opened"


@pytest.mark.process
def test_where_a_path_leads_is_asked_in_few_places() -> None:
    """To a disk, or to object storage: `Files` is chosen once."""
    calls = [
        module
        for module in MODULES
        if module.startswith("store_format/")
        for node in _nodes(_tree(module))
        if isinstance(node, ast.Call) and _last_name(node.func) == "is_remote"
    ]
    assert 5 < len(calls) <= 10, calls


@pytest.mark.parametrize(
    "code",
    [
        *("open(path)", "import mmap", "from os import scandir", "os.open(path, 0)"),
        *("from pathlib import Path", "root.iterdir()", "np.memmap(path)"),
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


def test_public_names_are_listed() -> None:
    """In the modules that draw the line of the public API, and there alone."""
    found = []
    for module in sorted(PUBLIC):
        names = getattr(_import(module), "__all__", [])  # that they are sorted is ruff's RUF022
        found += [f"{module}: {name} twice" for name in set(names) if names.count(name) > 1]
        found += [f"{module}: {name} is not there" for name in names if not hasattr(_import(module), name)]
        found += [
            f"{module}: {name} is not listed" for name in _public_definitions(_tree(module)) - set(names)
        ]
    internal = [module for module in MODULES if module not in PUBLIC]
    found += [f"{module} is internal and has __all__" for module in internal if _has_all(_tree(module))]
    assert found == []


def _has_all(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__all__" for node in _nodes(tree))


def _docstring(module: str) -> str:
    """The text with which the module begins; "" if it begins with anything else."""
    found = re.match(r'r?"""(.*?)"""', (ROOT / module).read_text(encoding="utf-8"), re.DOTALL)
    return found[1] if found else ""


@pytest.mark.process
def test_every_room_says_what_lives_in_it() -> None:
    paths = [path for room in ("tests", "benchmarks", "examples") for path in (ROOT / room).rglob("*.py")]
    more = [str(path.relative_to(ROOT)) for path in paths if path.name != "__init__.py"]
    docstrings = {module: _docstring(module) for module in [*MODULES, *sorted(more)]}
    found = [module for module, docstring in docstrings.items() if len(docstring.split()) < 5]
    assert found == [], "modules without a docstring that says what they hold"


def _classes_of_one_name(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """The class names that these modules define twice, each with its modules. A leading underscore does not
    make another name.
    """
    homes: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in _nodes(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name.lstrip("_"), []).append(module)
    return {name: modules for name, modules in homes.items() if len(modules) > 1}


@pytest.mark.process
def test_a_class_name_has_one_meaning() -> None:
    """A reader who searches for a class finds one, and its name says what the class holds."""
    assert _classes_of_one_name({module: _tree(module) for module in MODULES}) == {}


def test_a_second_class_of_a_name_is_found() -> None:
    texts = {"a.py": "class Entry: ...", "b.py": "def f():\n    class _Entry: ...", "c.py": "Entry = 1"}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    assert _classes_of_one_name(trees) == {"Entry": ["a.py", "b.py"]}


_TEXT_SUFFIXES = {
    *("", ".cfg", ".conf", ".html", ".ipynb", ".json", ".md"),
    *(".properties", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml"),
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


def test_no_file_is_long() -> None:
    """A file holds one idea, from top to bottom; one of more than 800 lines holds two."""
    lengths = {module: len((ROOT / module).read_text(encoding="utf-8").splitlines()) for module in MODULES}
    assert {module: lines for module, lines in lengths.items() if lines > 800} == {}
