"""Which stores of a command are read together with tiered storage, and from where."""

from __future__ import annotations

from collections.abc import Mapping

from store_format.consumequeue.tiered import TieredDirectory
from store_format.errors import StoreNotFoundError
from store_format.files import paths
from store_format.files.read import files_at
from store_format.metadata.read import parse_properties
from store_format.opened.store import Opened


def own_tiered_path(opened: Opened) -> str | None:
    """tieredStoreFilePath of `.rmqlog/broker.conf` in the store; None without one.

    A file in a store is not trusted: only an absolute path of this machine counts, and no address.
    """
    own = opened.own("broker.conf")
    data = files_at(own).read(own)
    path = "" if data is None else parse_properties(data).get("tieredStoreFilePath", "").strip()
    return paths.absolute(path) if path.startswith("/") and "\0" not in path else None


def brokers_with_tiered(given: Mapping[str, str], *, missing_ok: bool = False) -> frozenset[str]:
    """The brokers that have a directory below their tieredStoreFilePath; `given` is that path by broker.

    Raises StoreNotFoundError if none of them has one, unless `missing_ok`.
    """
    found: set[str] = set()
    missing: StoreNotFoundError | None = None
    for broker_name, path in given.items():
        try:
            TieredDirectory.find(path, broker_name)
            found.add(broker_name)
        except StoreNotFoundError as error:
            missing = error
    if missing is not None and not found and not missing_ok:
        raise missing
    return frozenset(found)
