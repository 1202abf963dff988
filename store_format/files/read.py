"""Looks at paths, lists and opens store files, and reads small ones whole, wherever they lie."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, TypeVar

from store_format.errors import (
    FileReplacedError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from store_format.files import paths
from store_format.files.client import Access, StoredObject
from store_format.files.files import Files, LookedFiles
from store_format.files.paths import (
    StoreFile,
    denied,
)
from store_format.files.source import Bucket, ObjectBucket, place_of

if TYPE_CHECKING:
    from store_format.files.hdfs import HdfsBucket
    from store_format.files.objects import ObjectFiles
    from store_format.files.tree import FileSeries
    from store_format.files.view import FileView

_Found = TypeVar("_Found")
_Look = TypeVar("_Look")
_Row = TypeVar("_Row")


# ---- places ------------------------------------------------------------------------------------------------


class Clients:
    """The clients of buckets and name nodes, one for each and for each way to reach it."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str, Access], ObjectBucket | HdfsBucket] = {}
        self._process: int | None = None  # the one that uses them

    def client(self, place: str, access: Access) -> Bucket:
        """Returns the client of a bucket such as `s3://bucket`."""
        if self._process not in (None, os.getpid()):
            raise StoreUnreachableError(
                f"{place}: this process is a fork of one that reads object storage or HDFS, and its client "
                "does not work in a fork; start the process anew (multiprocessing: the method spawn)"
            )
        found = self._clients.get((place, access))
        if found is None:
            self._process = os.getpid()
            found = self._clients[place, access] = _client(place, access)
        return found

    def unanswered(self) -> dict[tuple[str, Access], tuple[int, str]]:
        """How many requests of each client failed after their tries, and the error of the last one."""
        return {key: (each.unanswered_count, each.unanswered) for key, each in self._clients.items()}


def _client(place: str, access: Access) -> ObjectBucket | HdfsBucket:
    if place.startswith("hdfs:"):
        from store_format.files.hdfs import HdfsBucket

        return HdfsBucket(place, access)
    return ObjectBucket(place, access)


class StorePlaces:
    """The disks of this machine, and buckets and name nodes, each with its own listings and bytes."""

    def __init__(self) -> None:
        self.clients = Clients()
        self._disks = Files()
        self._remote: dict[str, ObjectFiles] = {}
        self._access: dict[str, Access] = {}

    def in_one_look(self) -> StorePlaces:
        """These places, whose disks remember what was read (`LookedFiles`)."""
        if isinstance(self._disks, LookedFiles):
            return self
        found = copy(self)
        found._disks = LookedFiles()
        return found

    def files_at(self, path: str) -> Files:
        """The files of the place that a path leads to."""
        return self.objects_at(path) if paths.is_remote(path) else self._disks

    def objects_at(self, path: str) -> ObjectFiles:
        """`files_at` of a path that leads to object storage or HDFS."""
        place = place_of(path)
        if place not in self._remote:
            from store_format.files.objects import ObjectFiles  # it imports numpy

            files = ObjectFiles(self.clients.client, place, self._access_of(place))
            return self._remote.setdefault(place, files)  # that of another thread, if it was faster
        return self._remote[place]

    def set_access(self, place: str, access: Access) -> None:
        """Sets how a bucket is reached; "" is every bucket for which nothing else is set."""
        self._access[place] = access
        for known, files in [*self._remote.items()]:
            files.access = self._access_of(known)

    def _access_of(self, place: str) -> Access:
        return self._access.get(place) or self._access.get("") or Access()

    def reach(self, path: str, access: Access, *, anew: bool = False) -> None:
        """Sets how the bucket of a path is reached from now on.

        Raises OptionError if its objects were listed at another endpoint, because a store that is open would
        read those of the new one; with `anew`, what was listed is forgotten.
        """
        files = self.objects_at(path)
        if files.access.endpoint != access.endpoint:
            if not (files.listings.are_empty or anew):
                raise OptionError(
                    f"{place_of(path)}: this process has read this bucket at another endpoint; read it at "
                    f"{access.endpoint or 'its own'} in another process"
                )
            files.listings.forget()
        self.set_access(place_of(path), access)

    def with_part(
        self, roots: Iterable[str], objects: Iterable[StoredObject], others: Iterable[FileSeries]
    ) -> StorePlaces:
        """These places, which have of the objects below the roots only these (`Listings.part_of`)."""
        found = StorePlaces()
        found.clients, found._access, found._remote = self.clients, self._access, dict(self._remote)
        every, series, below = list(objects), list(others), list(roots)
        for place in set(map(place_of, below)):
            mine = [root for root in below if place_of(root) == place]
            found._remote[place] = self.objects_at(place).part_of(mine, every, series)
        return found


_PROCESS = StorePlaces()
_places: ContextVar[StorePlaces | None] = ContextVar("_places", default=None)  # of the code of a task


def places() -> StorePlaces:
    """The places that the code sees which runs now in this thread."""
    return _places.get() or _PROCESS


def with_objects(
    roots: Iterable[str], objects: Iterable[StoredObject], others: Iterable[FileSeries], rows: Iterator[_Row]
) -> Iterator[_Row]:
    """Yields `rows`, whose iterator sees `StorePlaces.with_part`. Who takes the rows, and every other thread,
    sees whole listings.
    """
    part = places().with_part(roots, objects, others)
    while True:
        before = _places.set(part)
        try:
            row = next(rows)
        except StopIteration:
            return
        finally:
            _places.reset(before)
        yield row


# ---- looks at paths ----------------------------------------------------------------------------------------


@contextmanager
def all_answered() -> Iterator[None]:
    """Raises the error of a request that got no answer meanwhile, though who asked has gone on without it.

    Many a look takes a file that cannot be read for one that says nothing, which is right on a disk. The
    reader of a whole queue, or of a view, must not miss what such a look would have found.
    """
    clients = places().clients
    before = clients.unanswered().items()
    yield
    for _, (count, text) in clients.unanswered().items() - before:
        if count:
            raise StoreUnreachableError(text)


@contextmanager
def one_look(paths_below: Iterable[str] = ()) -> Iterator[None]:
    """One look at stores, from which one answer is given.

    No small file of a local disk is read twice, unless it has changed (`LookedFiles`). What lies below the
    paths on object storage is listed once. A look within a look is a part of it.
    """
    token = _places.set(places().in_one_look())
    try:
        with ExitStack() as stack:
            for path in paths_below:
                stack.enter_context(files_at(path).one_look(path))
            yield
    finally:
        _places.reset(token)


def files_at(path: str) -> Files:
    """The files of the place that a path leads to, as the code sees them that runs now in this thread."""
    return places().files_at(path)


# ---- open files --------------------------------------------------------------------------------------------


class FileCache:
    """The open views used last, by path: at most `capacity` views.

    A view is opened again when its path names another file or the size has changed: a store may be cleaned or
    restored at any time. An opened store has one cache, which also keeps what later looks need to know:
    `said` has the warnings that were given, `found` the results that take long to find, by their keys.
    """

    def __init__(self, capacity: int = 256) -> None:
        self.said = set[object]()
        self.found = dict[object, object]()
        self._capacity = capacity
        self._views: OrderedDict[str, FileView] = OrderedDict()

    def open(self, path: str) -> FileView:
        """Returns the open view of a path. Raises StoreNotFoundError when the file was deleted."""
        view = self._views.pop(path, None)
        try:
            if view is None or not view.is_current():
                view = files_at(path).view(path)
        except FileNotFoundError as error:
            raise StoreNotFoundError(
                f"{path}: the file is gone; it was deleted (retention?) after planning"
            ) from error
        except PermissionError as error:
            raise error if isinstance(error, StoreError) else denied(path) from error
        self._keep(view)
        return view

    def view(self, file: StoreFile) -> FileView:
        """Returns the open view of a listed file. Raises FileReplacedError if another file has its path."""
        if file.stored is not None:
            return self._version(file.stored)
        view = self.open(file.path)
        if file.identity not in (None, view.identity) or view.size < file.size:
            is_other = file.identity not in (None, view.identity)
            raise FileReplacedError(
                f"{file.path}: expected {file.size} bytes, found {view.size}: since the files were listed, "
                f"{'another file took this name' if is_other else 'the file became shorter'}. If a program "
                "copies the store, wait until the copy is complete"
            )
        return view

    def _version(self, stored: StoredObject) -> FileView:
        view = self._views.pop(stored.path, None)
        if view is None or view.listed != stored:
            view = files_at(stored.path).view(stored.path, stored)
        self._keep(view)
        return view

    def _keep(self, view: FileView) -> None:
        self._views[view.path] = view
        while len(self._views) > self._capacity:
            self._views.popitem(last=False)  # its destructor closes the file once no reader uses the view

    def forget_deleted(self) -> None:
        """Closes the views of deleted and replaced files, whose space on disk stays in use until then."""
        for path, view in list(self._views.items()):
            try:
                is_current = view.is_current()
            except OSError:
                is_current = False
            if not is_current:
                del self._views[path]

    def __len__(self) -> int:
        return len(self._views)

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)
