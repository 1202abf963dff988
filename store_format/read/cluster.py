"""Which stores a path means: a store root, or the directory of a cluster, which holds one root per broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from store_format.commitlog.log import CommitLog
from store_format.errors import OptionError, StoreError, StoreNotFoundError
from store_format.files import paths
from store_format.files.read import LOST_AND_FOUND, Refused, entry_names, refuse
from store_format.files.status import directory_identity, is_directory
from store_format.files.view import FileCache
from store_format.read.store_root import looks_like_store
from store_format.survey.lost_log import refuse_lost_log


def store_roots(path: str, refused: Refused = refuse, *, missing_ok: bool = False) -> list[str]:
    """The store roots of `path`: its members sorted by name if it is the directory of a cluster, else [path].

    The path itself need not be a store: opening it says what is missing. Members that cannot be read, or look
    like a store without a commitlog, are `refused` and left out; without any other member they are an error.
    Raises OptionError if two members are one store.
    """
    names = entry_names(path, missing_ok=missing_ok)
    if "commitlog" in names:
        return [path]
    errors: list[StoreError] = []
    members = cluster_members(path, names, errors.append)
    for error in errors:
        (refused if members else refuse)(error)
    refuse_repeated((path, member, [f"{member}/commitlog"]) for member in members)
    return members or [path]


def cluster_members(path: str, names: Iterable[str], refused: Refused = refuse) -> list[str]:
    """The store roots among the `names` in a directory, sorted by name.

    Returns [] if the names are those of a store itself. What looks like a store without a commitlog, or has a
    lost one, or must not be listed, is `refused`, and left out if that does not raise.
    """
    names = frozenset(names)
    if looks_like_store(names):
        return []
    members = []
    for name in sorted(names - {LOST_AND_FOUND}):
        member = f"{path}/{name}"
        try:
            log = f"{member}/commitlog"
            if is_directory(log):
                if not entry_names(log):
                    refuse_lost_log(member, CommitLog.open((log,), FileCache()))
                members.append(member)
            elif is_directory(member):
                _refuse_without_log(path, member)
        except StoreError as error:
            refused(error)
    return members


def refuse_repeated(stores: Iterable[tuple[str, str, Sequence[str]]]) -> None:
    """Raises OptionError if two of the stores are one.

    `stores` are (path as given, store root, commitlog directories). A store is its commitlog: if it is
    reached by two paths, through a link, a mount or the directory of a cluster, every message would be read
    twice.
    """
    seen: dict[object, tuple[int, str]] = {}
    for number, (path, root, directories) in enumerate(stores):
        name = root if path == root else f"{root} (in {path})"
        for directory in directories:
            identity = directory_identity(directory)
            for key in (paths.real(directory), *([] if identity is None else [identity[:2]])):
                other = seen.setdefault(key, (number, name))
                if other[0] != number:
                    raise OptionError(
                        f"{other[1]} and {name} are one store, with the commitlog "
                        f"{paths.real(directory)}; "
                        "every message would be read twice: give the store once"
                    )


def refuse_equal_names(stores: Iterable[tuple[str, str]]) -> None:
    """Raises OptionError if two of the stores, (broker name, store root), have one broker name.

    Their queues would have the same names, and master and slave of a broker have the same messages.
    """
    by_name: dict[str, str] = {}
    for name, root in stores:
        other = by_name.setdefault(name, root)
        if other != root:
            raise OptionError(
                f"{other} and {root} both belong to broker {name}; use only one of them, "
                "or each of them on its own"
            )


def _refuse_without_log(path: str, member: str) -> None:
    names = entry_names(member)
    if "commitlog" in names or looks_like_store(names):
        raise StoreNotFoundError(
            f"{member} looks like a store, but has no directory `commitlog`. If its commitlog is elsewhere, "
            f"read this store alone with storePathCommitLog, and the other stores of {path} by their own "
            "paths. "
            f"If it is not a store, move it out of {path}"
        )
