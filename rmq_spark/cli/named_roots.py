"""The stores that a command writes to, named by path and broker: unrelated stores in a directory look like a
cluster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from store_format.display.text import shown
from store_format.errors import StoreError


def broker_name(root: str) -> str:
    """The name of the store's broker; that of the directory if the store's files cannot be read."""
    from store_format.read.store_root import broker_name_of

    try:
        return broker_name_of(root)
    except StoreError:
        return os.path.basename(root)


def named_roots(roots: Sequence[str]) -> list[str]:
    """The path and the broker of each store, for people. Raises OptionError for two stores of one broker."""
    from store_format.read.store_root import refuse_equal_names

    names = [broker_name(root) for root in roots]
    refuse_equal_names(zip(names, roots, strict=True))
    return [f"{shown(root)} (broker {shown(name)})" for name, root in zip(names, roots, strict=True)]
