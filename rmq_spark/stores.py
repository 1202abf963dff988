"""Which stores a path means: a store root, or a directory of store roots, which is a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterable

from rmq_spark.options import ReadOptions
from store_format import MessageStore
from store_format.errors import OptionError, StoreNotFoundError
from store_format.files import entry_names

__all__ = ["cluster_members", "open_stores"]


def open_stores(options: ReadOptions) -> list[MessageStore]:
    """The stores of all paths, in the order of paths and of names within a cluster.

    Raises StoreNotFoundError for a path that holds none, and OptionError when two stores have one broker name: their
    queues could not be told apart (master and slave of one broker are such a pair, and hold the same messages).
    """
    stores: list[MessageStore] = []
    for path in options.paths:
        roots = _roots(path, options)
        if len(roots) > 1 and options.broker_name is not None:
            raise OptionError(f"brokerName is for one store and {path} is a cluster of {len(roots)}; leave it out, each store says its own")
        stores += [MessageStore.open(root, broker_name=options.broker_name, commit_log_paths=options.commit_log_paths) for root in roots]
    by_name: dict[str, str] = {}
    for store in stores:
        other = by_name.setdefault(store.broker_name, store.path)
        if other != store.path:
            raise OptionError(
                f"{other} and {store.path} are both of broker {store.broker_name}; "
                f"read one of them, or one by one under names of your own (brokerName)"
            )
    return stores


def cluster_members(path: str, names: Iterable[str]) -> list[str]:
    """The store roots among the `names` in a directory, by name."""
    return [f"{path}/{name}" for name in sorted(names) if os.path.isdir(f"{path}/{name}/commitlog")]


def _roots(path: str, options: ReadOptions) -> list[str]:
    names = entry_names(path)
    if "commitlog" in names or options.commit_log_paths:
        return [path]
    members = cluster_members(path, names)
    if not members:
        MessageStore.open(path)  # raises, and says what was found instead
        raise StoreNotFoundError(f"{path} is no store root")
    return members
