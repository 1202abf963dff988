"""The objects of a store on object storage, by one listing: what directories and files are on a local disk.

A listing costs a request for each 1,000 objects, so it is taken once by who opens a store, and again by who
looks at the store again (`renew`). All that asks in between gets the answer of one moment.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from store_format.files.source import StoredObject, source_of

_TREES_MAX = 256
_AGE_MIN_S = 1.0
_MARKS = frozenset({"commitlog", "consumequeue", "batchconsumequeue"})  # of the root of a store
_OFFSET_SIZE = 20  # digits of a file of the commitlog

_trees: OrderedDict[str, Tree] = OrderedDict()
_levels: dict[str, Tree] = {}  # what is directly in directories that are no stores
_lock = threading.Lock()


@dataclass(slots=True)
class Tree:
    """All objects below a root, by their paths, and the names in each directory."""

    root: str
    objects: dict[str, StoredObject] = field(default_factory=dict)
    names: dict[str, set[str]] = field(default_factory=dict)
    taken: float = field(default_factory=time.monotonic)
    took_s: float = 0.0  # the listing

    def add(self, item: StoredObject) -> None:
        path, self.objects[item.path] = item.path, item
        while len(path) > len(self.root):
            directory, _, name = path.rpartition("/")
            there = self.names.setdefault(directory, set())
            if name in there:
                return
            there.add(name)
            path = directory


def take(root: str) -> Tree:
    """Lists the objects below a root, and keeps them for all that asks about paths there."""
    begun = time.monotonic()
    return _keep(_tree_with(root, source_of(root).all_below(root) or (), begun))


def _tree_with(root: str, objects: Iterable[StoredObject], begun: float) -> Tree:
    tree = Tree(root, took_s=time.monotonic() - begun)
    for item in objects:
        tree.add(item)
    return tree


def adopt(root: str, objects: Iterable[StoredObject]) -> None:
    """Keeps those of the objects below a root, which another process has listed: a task lists nothing."""
    tree = Tree(root)
    for item in objects:
        if item.path.startswith(f"{root}/"):
            tree.add(item)
    _keep(tree)


def _keep(tree: Tree) -> Tree:
    with _lock:
        for root in [root for root in _trees if root.startswith(f"{tree.root}/")]:
            del _trees[root]  # a part of this one, of another moment
        _trees[tree.root] = tree
        _trees.move_to_end(tree.root)
        while len(_trees) > _TREES_MAX:
            _trees.popitem(last=False)
    return tree


def renew(path: str) -> None:
    """Lists the objects of the tree of a path again, at most once a second, or in the time that it takes."""
    tree = _known(path)
    if tree is not None and not _is_young(tree):
        take(tree.root)


@contextmanager
def one_moment(paths: Iterable[str]) -> Iterator[None]:
    """Lists the objects below the paths again, as `renew` does, and until the caller is done never again."""
    trees = []
    for path in paths:
        tree = _known(path)
        if tree is None or not _is_young(tree):
            tree = take(path if tree is None else tree.root)
        trees.append((tree, tree.taken))
        tree.taken = math.inf
    try:
        yield
    finally:
        for tree, taken in trees:
            tree.taken = min(tree.taken, taken)


def newest(path: str) -> StoredObject | None:
    """The object of a path in its newest version, for which the service is asked; None without one."""
    found, tree = source_of(path).find(path), _known(path)
    if found is not None and tree is not None:
        tree.add(found)
    return found


def _is_young(tree: Tree) -> bool:
    return tree.taken > time.monotonic() - max(_AGE_MIN_S, tree.took_s)


def _known(path: str) -> Tree | None:
    """The tree with the longest root that a path lies in."""
    with _lock:
        while "://" in path:
            if path in _trees:
                return _trees[path]
            path = path.rpartition("/")[0]
    return None


def _tree_of(path: str) -> Tree:
    """The tree of a path. Of a large directory that is no store, only what is directly in it is listed."""
    tree = _known(path)
    if tree is not None:
        return tree
    level = _levels.get(path)
    if level is not None and _is_young(level):
        return level
    begun = time.monotonic()
    every = source_of(path).all_below(path, lambda first: _is_of_store(path, first))
    if every is not None:
        tree = _tree_with(path, every, begun)
        if _is_of_store(path, every):
            return _keep(tree)
    else:
        directories, objects = source_of(path).names(path)
        if not _MARKS.isdisjoint(directories):
            return take(path)
        tree = _tree_with(path, objects, begun)
        tree.names.setdefault(path, set()).update(directories)
        tree.names.update({f"{path}/{name}": set() for name in directories})
    if len(_levels) > _TREES_MAX:
        _levels.clear()
    _levels[path] = tree
    return tree


def _is_of_store(path: str, objects: Iterable[StoredObject]) -> bool:
    """Whether these objects below a path are those of a store, or of a directory of commitlog files."""
    for item in objects:
        name, _, rest = item.path[len(path) + 1 :].partition("/")
        if (name in _MARKS) if rest else (len(name) == _OFFSET_SIZE and name.isdigit()):
            return True
    return False


def names_in(directory: str) -> frozenset[str] | None:
    """The names in a directory; None where no object is below it."""
    found = _tree_of(directory).names.get(directory)
    return None if found is None else frozenset(found)


def is_directory(path: str) -> bool:
    """Whether objects are below a path."""
    return path in _tree_of(path).names


def stored_object(path: str) -> StoredObject | None:
    """The object of a path; None without one, and for a directory."""
    tree = _known(path) or _tree_of(path.rpartition("/")[0])
    return None if path in tree.names else tree.objects.get(path)


def listed_object(path: str) -> StoredObject | None:
    """`stored_object`, as far as this process has listed it: asks no service."""
    tree = _known(path)
    return None if tree is None or path in tree.names else tree.objects.get(path)


def objects_of(directory: str) -> list[StoredObject]:
    """The objects directly in a directory, by name."""
    tree = _tree_of(directory)
    paths = (f"{directory}/{name}" for name in sorted(tree.names.get(directory, ())))
    return [tree.objects[path] for path in paths if path in tree.objects and path not in tree.names]


def versions_below(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the path and the version of each object."""
    for path in paths:
        for item in _tree_of(path).objects.values():
            yield item.path, item.version or f"{item.size} {item.mtime_ms}"


def objects_below(root: str, left_out: str, kept: Collection[str]) -> tuple[StoredObject, ...]:
    """The objects of a store without those whose path below the root matches the regular expression
    `left_out`, but with all in the directories `kept`.
    """
    is_left_out = re.compile(re.escape(root) + left_out).match
    return tuple(
        item
        for path, item in _tree_of(root).objects.items()
        if not is_left_out(path) or path.rpartition("/")[0] in kept
    )


def existing_object(path: str) -> StoredObject:
    """`stored_object`, which raises FileNotFoundError without one."""
    found = stored_object(path)
    if found is None:
        raise FileNotFoundError(path)
    return found
