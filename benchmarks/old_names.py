"""Where older commits keep the names that the measurements import.

`python -m benchmarks.compare` runs this package on that commit, too. Each missing module is replaced by a
module that imports a name from its old place at the first use; a module that is there gets the names that it
lacks.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

# Module of today: its names, and the old module of each, with the old name behind a colon if it differs. Of
# two old modules the first that is there counts.
OLD_NAMES: dict[str, dict[str, str]] = {
    "rmq_spark.broker": {"chosen_services": "rmq_spark.services.registry"},
    "rmq_spark.broker.services.turn": dict.fromkeys(
        ("TurnReport", "now_of", "take_turn"), "rmq_spark.services.turn"
    ),
    "rmq_spark.options.option": {"STREAM": "rmq_spark.option_table"},
    "rmq_spark.options.read_options": {"parse_read_options": "rmq_spark.options"},
    "rmq_spark.plan.batch": {"plan": "rmq_spark.plan"},
    "rmq_spark.plan.output_fields": {"fields_from_options": "rmq_spark.schema:projection_from_options"},
    "rmq_spark.plan.scan": {"Scan": "rmq_spark.scan"},
    "rmq_spark.spark.types": {"to_spark_schema": "rmq_spark.schema"},
    "rmq_spark.stream.positions": {"StreamPositions": "rmq_spark.stream_positions"},
    "rmq_spark.stream.stores": {"StreamStores": "rmq_spark.stream_stores"},
    "store_format.arrays.ranges": {
        "fixed_width": "store_format.flat_arrays",
        "from_flat": "store_format.flat_arrays",
    },
    "store_format.bookkeeping.identity": {
        "StagedFile": "store_format.bookkeeping.staged_file store_format.staging"
    },
    "store_format.commit.append": {"commit": "store_format.append"},
    "store_format.commit.options": {"CommitOptions": "store_format.commit.prepare_store store_format.append"},
    "store_format.commit.staging": {
        "StagingWriter": "store_format.staging",
        "stage_columns": "store_format.stage_columns",
    },
    "store_format.java.text": {"tags_code_many": "store_format.java.hashes store_format.java_hash"},
    "store_format.message.columns": {
        "DEFAULT_COLUMNS": "store_format.columns",
        "DecodeOptions": "store_format.columns:Projection",
    },
    "store_format.message.encode": dict.fromkeys(
        ("EncodedUnits", "MessageColumns", "assign", "encode"), "store_format.encode"
    ),
    "store_format.message.property_encoder": {"encode_property_columns": "store_format.property_strings"},
    "store_format.read.tolerance": {"Tolerance": "store_format.tolerance"},
}


def alias_old_names() -> None:
    """Makes the names of `OLD_NAMES` importable where the code under test does not have them."""
    spec = importlib.util.find_spec("store_format")
    if spec is None or spec.origin is None:
        return
    root = Path(spec.origin).parent.parent
    for module, names in OLD_NAMES.items():
        path = root.joinpath(*module.split("."))
        source = path.with_suffix(".py")
        if not source.exists() and not path.is_dir():
            sys.modules.setdefault(module, _Moved(module, names))
        elif source.exists():
            text = source.read_text(encoding="utf-8")
            for name in names:
                if not re.search(rf"\b{name}\b", text):
                    setattr(importlib.import_module(module), name, getattr(_Moved(module, names), name))


class _Moved(ModuleType):
    """A module whose names lie in other modules."""

    def __init__(self, module: str, names: dict[str, str]) -> None:
        super().__init__(module)
        self._names = names

    def __getattr__(self, name: str) -> Any:  # Any: whatever the name is
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        modules, _, old = self._names[name].partition(":")
        module = next(filter(_is_there, modules.split()))
        return getattr(importlib.import_module(module), old or name)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there
        return False
