"""Warnings of stores that appear in the directory of a cluster while a query runs."""

from __future__ import annotations

import logging

from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.files.read import directory_identity, entry_names
from store_format.read.store_root import cluster_members

_log = logging.getLogger(__name__)


class Newcomers:
    """Warns of each store that appears in the directory of a cluster: the query reads it after a restart."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = directory_identity(path)
        self._known = entry_names(path)
        self._is_cluster = "commitlog" not in self._known
        self._coming: set[str] = set()  # directories that are not a store yet

    def look(self) -> None:
        """Costs one system call, and one more for each new directory that is not a store."""
        if not self._is_cluster:
            return
        identity = directory_identity(self._path)
        if identity is not None and identity != self._identity:
            names = entry_names(self._path, missing_ok=True)
            self._coming = (self._coming | (names - self._known)) & names
            self._identity, self._known = identity, names
        for name in sorted(self._coming):
            errors: list[StoreError] = []
            if cluster_members(self._path, [name], errors.append):
                _log.warning(
                    "%s/%s was added while the query runs; the query reads it after a restart",
                    self._path,
                    shown(name),
                )
            elif errors:
                _log.warning(
                    "%s/%s was added while the query runs, and cannot be read: %s",
                    self._path,
                    shown(name),
                    errors[0],
                )
            else:
                continue
            self._coming.discard(name)
