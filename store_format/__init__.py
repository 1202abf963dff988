"""Reads and writes Apache RocketMQ's store files in Python, without Spark.

Start with `MessageStore.open(path)`, or with `rmq_spark.open(path)`, which adds RocketMQ's filters. `errors`
has the exceptions of both packages, `layouts` has the byte layouts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store_format import errors, layouts
    from store_format.commit.options import CommitOptions
    from store_format.message.encode import MessageColumns
    from store_format.message.property_encoder import encode_property_columns
    from store_format.metadata.group_offsets import Committed
    from store_format.read.store import Queue
    from store_format.store import MessageStore
    from store_format.views.lag import lag_table

__all__ = [
    "CommitOptions",
    "Committed",
    "MessageColumns",
    "MessageStore",
    "Queue",
    "encode_property_columns",
    "errors",
    "lag_table",
    "layouts",
]

_MODULES = {
    "CommitOptions": "store_format.commit.options",
    "Committed": "store_format.metadata.group_offsets",
    "MessageColumns": "store_format.message.encode",
    "MessageStore": "store_format.store",
    "Queue": "store_format.read.store",
    "encode_property_columns": "store_format.message.property_encoder",
    "lag_table": "store_format.views.lag",
}


def __getattr__(name: str) -> Any:  # Any: whatever the name is
    # Numpy and pyarrow are imported only when the store is used: command line help must not wait for them.
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name in __all__:
        return import_module(f"store_format.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    # `help` and the completion of notebooks list these names, which `__getattr__` imports.
    return sorted({*globals(), *__all__})
