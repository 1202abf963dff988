"""Apache RocketMQ's store files: the bytes, without Spark. Start at `MessageStore.open(path)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store_format.store import MessageStore, Queue

__all__ = ["MessageStore", "Queue"]


def __getattr__(name: str) -> Any:  # Any: whatever the name is
    """Numpy and pyarrow are imported only when the store is used: command line help must not wait for them."""
    if name in __all__:
        from store_format import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
