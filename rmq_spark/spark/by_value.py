"""The data source sent along with every query, for clusters whose workers have numpy and pyarrow but not this
project.

The source text of the packages travels, about 200 kB, and workers import from it. (cloudpickle's own by-value
mode copies function by function instead, and stops at the first cache, lock or compiled layout that a module
holds.)
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import zlib
from importlib.abc import InspectLoader
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from pyspark.sql.types import StructType

__all__ = ["carried_data_source"]

_PACKAGES = ("rmq_spark", "store_format")


def carried_data_source(name: str) -> type[DataSource]:
    """A data source that needs nothing of this project where it is unpickled.

    Everything inside is local to this function, which is what makes cloudpickle send it by value, on from
    worker to worker too. It imports what it uses for the same reason: the globals of this module are not
    there.
    """
    packed = zlib.compress(json.dumps(_sources()).encode())

    def install() -> None:
        import sys
        from importlib.abc import InspectLoader, MetaPathFinder
        from importlib.util import spec_from_loader

        if any(type(finder).__name__ == "CarriedSources" for finder in sys.meta_path):
            return
        # module name -> [text, whether it is a package]
        sources: dict[str, list[Any]] = json.loads(zlib.decompress(packed))

        class CarriedSources(MetaPathFinder, InspectLoader):
            def find_spec(
                self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
            ) -> ModuleSpec | None:
                return (
                    spec_from_loader(fullname, self, origin="sent with the query")
                    if fullname in sources
                    else None
                )

            def get_source(self, fullname: str) -> str:
                return str(sources[fullname][0])

            def is_package(self, fullname: str) -> bool:
                return bool(sources[fullname][1])

        sys.meta_path.insert(0, CarriedSources())

    def restore(pickled: bytes) -> object:
        import pickle

        install()
        kind, state = pickle.loads(pickled)
        restored = kind.__new__(kind)
        restored.__dict__.update(state)
        return restored

    def sent(what: Any) -> Any:
        """A reader or writer, made to bring the source along when Spark pickles it to tasks. Any: whichever
        kind it is.
        """
        import pickle

        kind = type(what)
        what.__class__ = type(
            "Sent", (kind,), {"__reduce__": lambda self: (restore, (pickle.dumps((kind, self.__dict__)),))}
        )
        return what

    class CarriedDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def _real(self) -> DataSource:
            install()
            from rmq_spark.spark.data_source import RmqLogDataSource

            return RmqLogDataSource(self.options)

        def schema(self) -> StructType | str:
            return self._real().schema()

        def reader(self, schema: StructType) -> Any:
            return sent(self._real().reader(schema))

        def streamReader(self, schema: StructType) -> Any:
            return sent(self._real().streamReader(schema))

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return sent(self._real().writer(schema, overwrite))

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            return sent(self._real().streamWriter(schema, overwrite))

    return CarriedDataSource


def _sources() -> dict[str, tuple[str, bool]]:
    """Module name -> (source text, whether it is a package)."""
    found = {}
    for package in _PACKAGES:
        root = importlib.import_module(package)
        for name in (
            package,
            *(module.name for module in pkgutil.walk_packages(root.__path__, f"{package}.")),
        ):
            spec = find_spec(name)
            assert spec is not None
            assert isinstance(spec.loader, InspectLoader)
            found[name] = (spec.loader.get_source(name) or "", spec.submodule_search_locations is not None)
    return found
