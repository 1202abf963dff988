"""Which stores a path means: a store root, or a directory of store roots, which is a cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from store_format.errors import OptionError, StoreError, StoreNotFoundError
from store_format.files.read import LOST_AND_FOUND, Refused, entry_names, refuse
from store_format.files.status import directory_identity, is_directory
from store_format.read.store import Store
from store_format.read.store_root import looks_like_store

if TYPE_CHECKING:
    from rmq_spark.options.read_options import ReadOptions

__all__ = ["Newcomers", "cluster_members", "open_stores", "refuse_repeated"]

_log = logging.getLogger(__name__)


def open_stores(options: ReadOptions, *, skip_unreadable: bool | None = None) -> list[Store]:
    """The stores of all paths, in the order of paths and of names within a cluster.

    With `skip_unreadable`, by default where failOnDataLoss is false, members and queues that may not be read
    are left out with a warning.

    Raises StoreNotFoundError for a path that holds none, and OptionError when two paths lead to one store, or
    two stores have one broker name: their queues could not be told apart (master and slave of one broker are
    such a pair, and hold the same messages).
    """
    skip = not options.fail_on_data_loss if skip_unreadable is None else skip_unreadable
    refused: list[StoreError] = []
    stores: list[Store] = []
    given: list[tuple[str, Store]] = []
    for path in options.paths:
        roots = _roots(path, options, refused.append if skip else refuse)
        if len(roots) > 1 and options.broker_name is not None:
            raise OptionError(
                f"brokerName is for one store and {path} is a cluster of {len(roots)}; leave it out, each store says its own"
            )
        for root in roots:
            store = Store.open(
                root,
                broker_name=options.broker_name,
                commit_log_paths=options.commit_log_paths,
                skip_unreadable=skip,
            )
            stores.append(store)
            given.append((path, store))
    refuse_repeated((path, store.path, store.commit_log_paths) for path, store in given)
    by_name: dict[str, str] = {}
    for store in stores:
        other = by_name.setdefault(store.broker_name, store.path)
        if other != store.path:
            raise OptionError(
                f"{other} and {store.path} are both of broker {store.broker_name}; "
                f"read one of them, or one by one under names of your own (brokerName)"
            )
    stores[0].pass_over(refused)
    return stores


def refuse_repeated(stores: Iterable[tuple[str, str, Sequence[str]]]) -> None:
    """Raises OptionError where two of these, each (path as given, store root, directories of its commitlog),
    are one store.

    A store is its commitlog: two ways to one, by a link, a mount or the directory of a cluster, would give
    all messages twice.
    """
    seen: dict[object, tuple[int, str]] = {}
    for number, (path, root, directories) in enumerate(stores):
        name = root if path == root else f"{root} (in {path})"
        for directory in directories:
            identity = directory_identity(directory)
            for key in (os.path.realpath(directory), *([] if identity is None else [identity[:2]])):
                other = seen.setdefault(key, (number, name))
                if other[0] != number:
                    raise OptionError(
                        f"{other[1]} and {name} are one store, with the commitlog {os.path.realpath(directory)}; "
                        "its messages would come twice: give it once"
                    )


def cluster_members(path: str, names: Iterable[str], refused: Refused = refuse) -> list[str]:
    """The store roots among the `names` in a directory, by name; none where it is itself the directory of a
    store.

    What looks like a store without a commitlog, or may not be looked into, is `refused`, and left out where
    that does not raise.
    """
    if looks_like_store(names := frozenset(names)):
        return []
    members = []
    for name in sorted(names - {LOST_AND_FOUND}):
        member = f"{path}/{name}"
        try:
            if is_directory(f"{member}/commitlog"):
                members.append(member)
            elif is_directory(member):
                _refuse_without_log(path, member)
        except StoreError as error:
            refused(error)
    return members


class Newcomers:
    """Warns of each store that comes into the directory of a cluster after a query began: its next start
    reads it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = directory_identity(path)
        self._known = entry_names(path)
        self._is_cluster = "commitlog" not in self._known
        self._coming: set[str] = set()  # directories that are no store yet

    def look(self) -> None:
        """Costs one call of the system, and one for each new directory that is no store."""
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
                    "%s/%s came after the query began; it is read when the query is started again",
                    self._path,
                    name,
                )
            elif errors:
                _log.warning(
                    "%s/%s came after the query began and cannot be read: %s", self._path, name, errors[0]
                )
            else:
                continue
            self._coming.discard(name)


def _refuse_without_log(path: str, member: str) -> None:
    names = entry_names(member)
    if "commitlog" in names or looks_like_store(names):
        raise StoreNotFoundError(
            f"{member} looks like a store, but has no directory `commitlog`; if that lies elsewhere, read this store by itself with "
            f"storePathCommitLog and the others of {path} by their own paths; if this is no store, move it out of {path}"
        )


def _roots(path: str, options: ReadOptions, refused: Refused) -> list[str]:
    names = entry_names(path)
    if "commitlog" in names or options.commit_log_paths:
        return [path]
    errors: list[StoreError] = []
    members = cluster_members(path, names, errors.append)
    for error in errors:
        (refused if members else refuse)(error)
    if not members:
        Store.open(path)  # raises, and says what was found instead
        raise StoreNotFoundError(f"{path} is no store root")
    return members
