"""The directory where the members of a group meet if `groupPath` is not set.

It is `.rmqlog/groups/<group>` in the directory that the query loads: a store, or a cluster's directory, so
that a broker added to the cluster changes nothing. Other queries may load the same stores by another path:
one store of the cluster, another list of paths, or, in an older version, the first store by name. Members in
two directories would both read every message. Therefore a query is refused while another directory has
members; when it has none, the query takes over what they recorded there.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from rmq_spark.consume.client_ids import check_group
from rmq_spark.consume.group.leases import Watch
from rmq_spark.consume.group.state import (
    GroupState,
    MemberEntry,
    QueueEntry,
    has_state,
    read_state,
    write_state,
)
from rmq_spark.consume.offset_store import LocalOffsets, OffsetStore, StoreOffsets, make_path
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.errors import OptionError
from store_format.files.lock import StoreLock
from store_format.files.polling import Clocks
from store_format.files.write import FileWrites

_LOCK_SECONDS = 5.0
_WAIT_STEP_SECONDS = 0.05


def group_directory(
    store: OffsetStore,
    *,
    group: str,
    roots: Mapping[str, str],
    paths: Sequence[str] = (),
    group_path: str | None = None,
) -> str | None:
    """The directory where the members meet: in `groupPath`, else beside the offsets.

    None for the offset store `none` without a groupPath: the members do not meet. `roots` are store
    directories by broker name, `paths` the loaded directories; of several paths the first by name counts.
    Without `paths` (in the offset tools) it is the directory with records of members, else the cluster's
    directory for several stores, else the only store's.
    """
    if group_path is not None:
        return f"{group_path.rstrip('/')}/{check_group(group)}"
    if isinstance(store, LocalOffsets):
        return f"{os.path.dirname(store.path)}/members"
    if not isinstance(store, StoreOffsets):
        return None
    if paths:
        return _directory_in(min(paths), group)
    parents = {os.path.dirname(root) for root in roots.values()}
    for path in (*parents, *roots.values()):
        directory = _directory_in(path, group)
        if has_state(directory):
            return directory
    return _directory_in(parents.pop() if len(roots) > 1 and len(parents) == 1 else roots[min(roots)], group)


def other_places(
    directory: str | None,
    store: OffsetStore,
    *,
    group: str,
    roots: Mapping[str, str],
    paths: Sequence[str] = (),
) -> list[str]:
    """Directories other than `directory`, and other than a groupPath, where members of the group have met."""
    if directory is None or not isinstance(store, StoreOffsets):
        return []
    known = {*paths, *roots.values(), *(os.path.dirname(root) for root in roots.values())}
    found = {os.path.realpath(place): place for place in sorted(_directory_in(path, group) for path in known)}
    found.pop(os.path.realpath(directory), None)
    return [place for place in found.values() if has_state(place)]


def _directory_in(path: str, group: str) -> str:
    return f"{path.rstrip('/')}/{OWN_DIRECTORY}/groups/{check_group(group)}"


def refuse_members_elsewhere(
    group: str, directory: str, others: Iterable[str], clocks: Clocks, *, known_gone: Collection[str] = ()
) -> frozenset[str]:
    """Raises OptionError if a directory of `others` has a live member.

    Members on other hosts are watched for at most their lease time. Returns the ids of the members that are
    gone, which a second call need not watch again.
    """
    gone = set(known_gone)
    found = _live_member(others, clocks, gone)
    if found is not None:
        raise OptionError(
            f"group {group}: expected all its queries to meet in one directory, found the query "
            f"{', '.join(found[1])} in {found[0]} while this query would meet others in {directory}: "
            "both would read every message. Load the same path in all queries of the group, or set the "
            "same groupPath in all of them; stop queries of an older version first"
        )
    return frozenset(gone)


def live_clients(group: str, paths: Iterable[str], clocks: Clocks) -> tuple[str, list[str]] | None:
    """(directory, client ids) of a live member of the group in the directories `paths`; None without one.

    Members that meet in a groupPath elsewhere are not found.
    """
    return _live_member(dict.fromkeys(_directory_in(path, group) for path in paths), clocks, set())


def _live_member(directories: Iterable[str], clocks: Clocks, gone: set[str]) -> tuple[str, list[str]] | None:
    """(directory, client ids) of a live member. `gone` has ids that are not watched, and gets others."""
    for directory in directories:
        for name, entry in read_state(directory).members.items():
            if name not in gone and not _is_gone(directory, name, entry, clocks):
                return directory, entry.clients
            gone.add(name)
    return None


def _is_gone(directory: str, name: str, entry: MemberEntry, clocks: Clocks) -> bool:
    watch = Watch(directory, name, entry, clocks.monotonic)
    while watch.why_gone() is None:
        if watch.has_beaten:
            return False
        clocks.sleep(_WAIT_STEP_SECONDS)
    return True


def inherit(directory: str, others: Sequence[str]) -> None:
    """Takes over what members recorded in the directories `others`.

    A new `directory` gets their queue positions, and every directory the highest reset number. A position
    that is not the newest does no harm: the offset file shows that other members read further (`member`).
    """
    if not others:
        return
    make_path(directory)
    with StoreLock(directory, timeout=_LOCK_SECONDS):
        state = read_state(directory)
        is_new = not has_state(directory)
        before = state.reset
        for other in others:
            theirs = read_state(other)
            state.reset = max(state.reset, theirs.reset)
            if is_new:
                _merge_queues(state, theirs)
        if is_new or state.reset != before:
            state.serial += 1
            write_state(directory, state, FileWrites(sync=True))


def _merge_queues(state: GroupState, theirs: GroupState) -> None:
    """Adds queues of another state. For a queue in both the later reset counts, then the higher position."""
    for queue, entry in theirs.queues.items():
        there = state.queues.get(queue)
        if there is None or (entry.reset, entry.position or 0) > (there.reset, there.position or 0):
            epoch = max(entry.epoch, there.epoch if there else 0)
            state.queues[queue] = QueueEntry(
                None, None, epoch, entry.position, entry.reset, entry.mirrored, at=entry.at
            )
