"""A form of the data source that carries the source text of `rmq_spark` and `store_format` with every query.

It serves clusters whose workers have numpy and pyarrow, but not this project. About 420 kB of compressed text
travel with the pickled data source, and a worker imports the packages from that text. It has the modules that
the data source can import, without docstrings, comments and types of functions, but for the modules of the
kernels.

Two shorter ways do not work:

- `SparkContext.addPyFile` and `SparkSession.addArtifacts` (a zip as `pyfile`, or one archive per package). In
  PySpark 4.3.0, classic and Connect, they reach the planner of batch reads, the writers, the commit and all
  tasks, but not the process that holds the source of a stream: Spark gives that process the directory
  `<SparkFiles>/streaming_job`, which does not exist, so `readStream` ends with "No module named 'rmq_spark'"
  (`test_artifacts_do_not_reach_the_source_of_a_stream_4_3`).
- cloudpickle's own by-value mode. It copies function by function and fails at the first cache, lock or
  compiled layout that a module holds.
"""

from __future__ import annotations

import ast
import importlib
import lzma
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from store_format import kernels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pyspark.sql.types import StructType

_PACKAGES = ("rmq_spark", "store_format")
# What only the user's own process needs: what a notebook shows of a store, what `open` gives, a message's
# life, a recovery, tables that are appended without Spark, what `register` and `drop_duplicates` do, a
# consumer that pops, and services but for transactions, which a write decides.
_OF_USERS = (
    "store_format.notebook",
    "store_format.views.trace",
    "store_format.commit.recover",
    "store_format.commit.salvage",
    "store_format.commit.store_copy",
    "rmq_spark.store",
    "rmq_spark.spark.by_value",
    "rmq_spark.write.append_table",
    "rmq_spark.spark.worker_python",
    "rmq_spark.spark.drop_duplicates",
    "rmq_spark.broker.pop.message",
    "rmq_spark.broker.pop.opened_stores",
    "rmq_spark.broker.pop.order",
    "rmq_spark.broker.pop.simple_consumer",
    "rmq_spark.broker.pop.topic_pop",
    "rmq_spark.broker.pop.waiting",
    "rmq_spark.broker.services.clean",
    "rmq_spark.broker.services.orderly",
    "rmq_spark.broker.services.turn",
    "rmq_spark.broker.services.timer",
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def carried_data_source(name: str) -> type[DataSource]:
    """The data source under `name`, in a form that a worker without this project can unpickle.

    cloudpickle sends a class or function by value only if it is local to a function. So everything that
    travels is local to this function and its two helpers, and imports what it uses inside: the globals of
    this module do not exist on the worker. Workers send the readers on to tasks in the same way.
    """
    install = _make_install(packed_sources())
    carried = _make_carried(install)

    class CarriedDataSource(DataSource):
        session: dict[str, str] | None = None
        strategies: tuple[str, ...] | None = ()

        @classmethod
        def name(cls) -> str:
            return name

        def _real(self) -> DataSource:
            install()
            from rmq_spark.spark.data_source import RmqLogDataSource

            real = RmqLogDataSource(self.options)
            real.session, real.strategies = self.session, self.strategies
            return real

        def schema(self) -> StructType | str:
            return self._real().schema()

        def reader(self, schema: StructType) -> Any:
            return carried(self._real().reader(schema))

        def streamReader(self, schema: StructType) -> Any:
            return carried(self._real().streamReader(schema))

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return carried(self._real().writer(schema, overwrite))

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            return carried(self._real().streamWriter(schema, overwrite))

    return CarriedDataSource


def _make_install(packed: bytes) -> Callable[[], None]:
    """A function that makes the packed modules importable in the process that calls it."""

    def install() -> None:
        import sys
        from importlib.abc import InspectLoader, MetaPathFinder
        from importlib.util import spec_from_loader

        if any(type(finder).__name__ == "CarriedSources" for finder in sys.meta_path):
            return
        parts = lzma.decompress(packed).decode().split("\0")
        # module name -> (source text, "1" for a package)
        sources = dict(zip(parts[::3], zip(parts[1::3], parts[2::3], strict=True), strict=True))

        class CarriedSources(MetaPathFinder, InspectLoader):
            def find_spec(
                self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
            ) -> ModuleSpec | None:
                if fullname not in sources:
                    return None
                return spec_from_loader(fullname, self, origin="sent with the query")

            def get_source(self, fullname: str) -> str:
                return sources[fullname][0]

            def is_package(self, fullname: str) -> bool:
                return bool(sources[fullname][1])

        sys.meta_path.insert(0, CarriedSources())

    return install


def _make_carried(install: Callable[[], None]) -> Callable[[Any], Any]:
    """A function that makes a reader or writer bring the sources along when Spark pickles it to tasks."""

    def restore(pickled: bytes) -> object:
        import pickle

        install()
        kind, state = pickle.loads(pickled)
        restored = kind.__new__(kind)
        restored.__dict__.update(state)
        return restored

    def carried(original: Any) -> Any:  # Any: any of the four kinds of readers and writers
        from pyspark import cloudpickle  # as Spark does: the clock of a group is a lambda

        kind = type(original)

        def reduce(self: Any) -> tuple[Any, ...]:
            pickled = cloudpickle.dumps((kind, self.__dict__))  # type: ignore[no-untyped-call]  # no types
            return restore, (pickled,)

        original.__class__ = type("Carried", (kind,), {"__reduce__": reduce})
        return original

    return carried


@cache
def packed_sources() -> bytes:
    """What `_make_install` takes: the modules that the data source can import, compressed."""
    sources, needed, found = _sources(), ["rmq_spark.spark.data_source"], {}
    as_it_is = kernels.source_modules()  # so that kernels of an archive are those of this code
    while needed:
        name = needed.pop()
        if name in sources and name not in found and not name.startswith(_OF_USERS):
            tree = _WithoutCards().visit(ast.parse(sources[name][0]))
            needed += [name.rpartition(".")[0], *_imports(tree)]
            text = sources[name][0] if name in as_it_is else _shortened(tree)
            found[name] = text, sources[name][1]
    # of text, bytes have no alignment (pb), and longer matches are worth a search
    how = {"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 4, "lp": 0, "pb": 0, "nice_len": 273, "depth": 1000}
    return lzma.compress(joined(found).encode(), filters=[how])


def joined(sources: Mapping[str, tuple[str, bool]]) -> str:
    """Modules as one text: the name of each, its source, and "1" for a package, with a NUL between them."""
    return "\0".join(
        part
        for name, (text, is_package) in sorted(sources.items())
        for part in (name, text, "1" * is_package)
    )


class _WithoutCards(ast.NodeTransformer):
    """Removes what a notebook shows of an object: no task has one."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef | None:
        return None if node.name in ("_repr_html_", "_diagnosis_card") else node


def _imports(tree: ast.Module) -> Iterator[str]:
    """What may be modules: the names that a module imports, also within its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", "")
            yield from (module, *(f"{module}.{each.name}".lstrip(".") for each in node.names))


def _shortened(tree: ast.Module) -> str:
    """The text without docstrings, and without what only type checkers read."""
    tree.body = [each for node in tree.body for each in _at_run_time(node)]
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body[:1] = [] if len(node.body) > 1 else [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return _less_indented(ast.unparse(ast.fix_missing_locations(_Untyped().visit(tree))))


def _at_run_time(node: ast.stmt) -> list[ast.stmt]:
    """The statement, or what it has in place of imports that only type checkers make."""
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return node.orelse
    return [node]


def _less_indented(text: str) -> str:
    """What `ast.unparse` writes, with one blank for four: it leaves no line break within a text."""
    return re.sub("^(?: {4})+", lambda blanks: blanks[0][::4], text, flags=re.MULTILINE)


class _Untyped(ast.NodeTransformer):
    """Removes the types of variables. Fields of a class keep theirs, which dataclasses read."""

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = [each if isinstance(each, ast.AnnAssign) else self.visit(each) for each in node.body]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        return node if node.value is None else ast.Assign([node.target], node.value)


def _sources() -> dict[str, tuple[str, bool]]:
    """Module name -> (source text, whether the module is a package)."""
    found = {}
    for package in _PACKAGES:
        root = importlib.import_module(package)
        below = [module.name for module in pkgutil.walk_packages(root.__path__, f"{package}.")]
        for name in (package, *below):
            spec = find_spec(name)
            assert spec is not None
            assert isinstance(spec.loader, InspectLoader)
            found[name] = (spec.loader.get_source(name) or "", spec.submodule_search_locations is not None)
    return found
