"""The objects of a store on object storage, by one listing: what directories and files are on a local disk.

A listing costs a request for each 1,000 objects, so it is taken once by who opens a store, and again by who
looks at the store again (`renew`). All that asks in between gets the answer of one moment. A task that was
given the objects it needs has listings of its own with these only (`part_of`).
"""

from __future__ import annotations

import math
import re
import threading
import time
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from store_format.files.client import StoredObject
from store_format.files.source import Bucket

_TREES_MAX = 256
_AGE_MIN_S = 1.0
_MARKS = frozenset({"commitlog", "consumequeue", "batchconsumequeue"})  # of the root of a store
_OFFSET_SIZE = 20  # digits of a file of the commitlog
_UNLISTED_MS = -1  # the time of an object of which only the name and the size are known


@dataclass(slots=True)
class Tree:
    """All objects below a root, by their paths, and the names in each directory."""

    root: str
    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    taken: float = field(default_factory=time.monotonic)
    took_s: float = 0.0  # the listing
    found: dict[object, Any] = field(default_factory=dict)  # what was looked up; Any: of several kinds

    def add(self, item: StoredObject) -> None:
        self.found.clear()
        path, self.objects[item.path] = item.path, item
        while len(path) > len(self.root):
            directory, _, name = path.rpartition("/")
            there = self.names.setdefault(directory, set())
            if name in there:
                return
            there.add(name)
            path = directory


def _tree_with(root: str, objects: Iterable[StoredObject], begun: float) -> Tree:
    tree = Tree(root, took_s=time.monotonic() - begun)
    for item in objects:
        tree.add(item)
    return tree


@dataclass(frozen=True, slots=True)
class FileSeries:
    """Files of one size in a directory, whose names are numbers of 20 digits: `start`, `start` + `step`, ….

    A task has them for the objects that it does not need: a log of 10 TB has 10,000.
    """

    directory: str
    start: int
    step: int
    count: int
    size: int

    def objects(self) -> Iterator[StoredObject]:
        """The files, as objects of which nothing else is known: a task that needs one lists its directory."""
        for start in range(self.start, self.start + self.count * self.step, self.step):
            yield StoredObject(f"{self.directory}/{start:0{_OFFSET_SIZE}d}", self.size, "", _UNLISTED_MS)


@dataclass(frozen=True, slots=True)
class NumberedFiles:
    """The objects of a directory whose names are numbers, by these, and the series that they are."""

    starts: list[int]
    objects: list[StoredObject]
    series: list[FileSeries]

    def between(self, low: int, high: int) -> list[StoredObject]:
        """Those with any of the bytes [low, high) of a file queue."""
        return self.objects[max(bisect_right(self.starts, low) - 1, 0) : bisect_left(self.starts, high)]


def _series_of(directory: str, objects: list[StoredObject], starts: list[int]) -> list[FileSeries]:
    found: list[FileSeries] = []
    for item, start in zip(objects, starts, strict=True):
        last = found[-1] if found else None
        if last is not None and last.size == item.size:
            step = start - last.start if last.count == 1 else last.step
            if start == last.start + last.count * step:
                found[-1] = replace(last, step=step, count=last.count + 1)
                continue
        found.append(FileSeries(directory, start, 1, 1, item.size))
    return found


def _is_number(name: str) -> bool:
    return len(name) == _OFFSET_SIZE and name.isdigit()


def is_listed(item: StoredObject) -> bool:
    """Whether more is known of an object than its name and size."""
    return item.mtime_ms != _UNLISTED_MS


def _is_of_store(path: str, objects: Iterable[StoredObject]) -> bool:
    """Whether these objects below a path are those of a store, or of a directory of commitlog files."""
    for item in objects:
        name, _, rest = item.path[len(path) + 1 :].partition("/")
        if (name in _MARKS) if rest else _is_number(name):
            return True
    return False


class Listings:
    """What is listed of one bucket, or of a name node. `bucket` gives its client."""

    def __init__(self, bucket: Callable[[], Bucket]) -> None:
        self._bucket = bucket
        self._trees: OrderedDict[str, Tree] = OrderedDict()
        self._levels: dict[str, Tree] = {}  # what is directly in directories that are no stores
        self._lock = threading.Lock()

    def part_of(
        self, roots: Iterable[str], objects: Iterable[StoredObject], others: Iterable[FileSeries]
    ) -> Listings:
        """Listings that have of the objects below the roots only these, as another process has listed them,
        and the names of the series. They list nothing, unless one of the series is needed: an entry of a
        queue may lead anywhere if it is damaged.
        """
        found = Listings(self._bucket)
        every = [*chain.from_iterable(series.objects() for series in others), *objects]
        for root in roots:
            tree = found._trees[root] = Tree(root, taken=math.inf)
            for item in every:
                if item.path.startswith(f"{root}/"):
                    tree.add(item)
        return found

    @property
    def are_empty(self) -> bool:
        return not (self._trees or self._levels)

    def forget(self) -> None:
        """Forgets all that was listed."""
        with self._lock:
            self._trees.clear()
            self._levels.clear()

    def take(self, root: str) -> Tree:
        """Lists the objects below a root, and keeps them for all that asks about paths there."""
        begun = time.monotonic()
        return self._keep(_tree_with(root, self._bucket().all_below(root) or (), begun))

    def renew(self, path: str) -> None:
        """Lists the tree of a path again, at most once a second, or once in the time that it takes."""
        tree = self._known(path)
        if tree is not None and not _is_young(tree):
            self.take(tree.root)

    @contextmanager
    def one_moment(self, path: str) -> Iterator[None]:
        """Lists what is below the path again, as `renew` does, and until the caller is done never again."""
        tree = self._known(path)
        if tree is None or not _is_young(tree):
            tree = self.take(path if tree is None else tree.root)
        taken, tree.taken = tree.taken, math.inf
        try:
            yield
        finally:
            tree.taken = min(tree.taken, taken)

    def newest(self, path: str) -> StoredObject | None:
        """The object of a path in its newest version, for which the service is asked; None without one."""
        found, tree = self._bucket().find(path), self._known(path)
        if found is not None and tree is not None:
            tree.add(found)
        return found

    def numbered_files(self, directory: str) -> NumberedFiles:
        """The numbered files of a directory; as good as nothing at the second call."""
        tree = self._tree_of(directory)
        files: NumberedFiles | None = tree.found.get(directory)
        if files is None:
            objects = [
                item for item in self.objects_of(directory) if _is_number(item.path.rpartition("/")[2])
            ]
            starts = [int(item.path[-_OFFSET_SIZE:]) for item in objects]
            files = NumberedFiles(starts, objects, _series_of(directory, objects, starts))
            tree.found[directory] = files
        return files

    def names_in(self, directory: str) -> frozenset[str] | None:
        """The names in a directory; None where no object is below it."""
        found = self._tree_of(directory).names.get(directory)
        return None if found is None else frozenset(found)

    def is_directory(self, path: str) -> bool:
        """Whether objects are below a path."""
        return path in self._tree_of(path).names

    def object_at(self, path: str) -> StoredObject | None:
        """The object of a path; None without one, and for a directory."""
        tree = self._known(path) or self._tree_of(path.rpartition("/")[0])
        return None if path in tree.names else self._listed(tree, path)

    def known_object(self, path: str) -> StoredObject | None:
        """`object_at`, as far as it is listed: asks no service."""
        tree = self._known(path)
        return None if tree is None or path in tree.names else tree.objects.get(path)

    def objects_of(self, directory: str) -> list[StoredObject]:
        """The objects directly in a directory, by name."""
        tree = self._tree_of(directory)
        paths = (f"{directory}/{name}" for name in sorted(tree.names.get(directory, ())))
        return [tree.objects[path] for path in paths if path in tree.objects and path not in tree.names]

    def versions_below(self, path: str) -> Iterator[tuple[str, str]]:
        """Yields the path and the version of each object."""
        for item in self._tree_of(path).objects.values():
            yield item.path, item.version or f"{item.size} {item.mtime_ms}"

    def objects_below(self, root: str, left_out: str) -> list[StoredObject]:
        """The objects of a store without those whose path below the root matches the regular expression."""
        tree, is_left_out = self._tree_of(root), re.compile(re.escape(root) + left_out).match
        key = root, left_out
        if key not in tree.found:
            tree.found[key] = [item for path, item in tree.objects.items() if not is_left_out(path)]
        return list(tree.found[key])

    def _listed(self, tree: Tree, path: str) -> StoredObject | None:
        """The object of a path. Lists the directory of one that a task only has the name of."""
        found = tree.objects.get(path)
        if found is None or is_listed(found):
            return found
        directory = path.rpartition("/")[0]
        there = {item.path: item for item in self._bucket().all_below(directory) or ()}
        for name in list(tree.names[directory]):
            other = tree.objects[f"{directory}/{name}"]
            if not is_listed(other):
                tree.add(there.get(other.path, other))
        return there.get(path)

    def _keep(self, tree: Tree) -> Tree:
        with self._lock:
            for root in [root for root in self._trees if root.startswith(f"{tree.root}/")]:
                del self._trees[root]  # a part of this one, of another moment
            self._trees[tree.root] = tree
            self._trees.move_to_end(tree.root)
            while len(self._trees) > _TREES_MAX:
                self._trees.popitem(last=False)
        return tree

    def _known(self, path: str) -> Tree | None:
        """The tree with the longest root that a path lies in."""
        with self._lock:
            while "://" in path:
                if path in self._trees:
                    return self._trees[path]
                path = path.rpartition("/")[0]
        return None

    def _tree_of(self, path: str) -> Tree:
        """The tree of a path. Of a large directory that is no store, only what is directly in it."""
        tree = self._known(path)
        if tree is not None:
            return tree
        level = self._levels.get(path)
        if level is not None and _is_young(level):
            return level
        begun = time.monotonic()
        every = self._bucket().all_below(path, lambda first: _is_of_store(path, first))
        if every is not None:
            tree = _tree_with(path, every, begun)
            if _is_of_store(path, every):
                return self._keep(tree)
        else:
            directories, objects = self._bucket().names(path)
            if not _MARKS.isdisjoint(directories):
                return self.take(path)
            tree = _tree_with(path, objects, begun)
            tree.names.setdefault(path, set()).update(directories)
            tree.names.update({f"{path}/{name}": set() for name in directories})
        if len(self._levels) > _TREES_MAX:
            self._levels.clear()
        self._levels[path] = tree
        return tree


def _is_young(tree: Tree) -> bool:
    return tree.taken > time.monotonic() - max(_AGE_MIN_S, tree.took_s)
