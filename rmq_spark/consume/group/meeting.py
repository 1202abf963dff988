"""Where the members of a group meet when nobody says: one directory, whatever stores there are.

A place is `.rmqlog/groups/<group>` in the directory that was loaded: a store, or a cluster's directory, so
that a broker that is added to the cluster changes nothing. Other queries may have been given another path to
the same stores: one store of a cluster, another list of paths, or, by an older version, the store that sorts
first. Members in two places would read every message twice, so a query is refused while there are members in
another place; without them it takes over what they recorded.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence

from rmq_spark.consume.client_ids import check_group
from rmq_spark.consume.group.leases import Watch
from rmq_spark.consume.group.membership import Clocks
from rmq_spark.consume.group.state import GroupState, MemberEntry, QueueEntry, read_state, write_state
from rmq_spark.consume.offset_store import LocalOffsets, OffsetStore, StoreOffsets, make_path
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.errors import OptionError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites

__all__ = ["group_directory", "inherit", "other_places", "refuse_members_elsewhere"]

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
    """Where the members of a group meet: `groupPath`, else beside the offsets. None, nowhere, for `none`
    without a groupPath.

    `roots` are store roots by broker name, `paths` what was loaded. Of several paths the first one by name
    counts. Without paths, which only the offset tools do not know, it is the place that has members' records,
    or else the store's own.
    """
    if group_path is not None:
        return f"{group_path.rstrip('/')}/{check_group(group)}"
    if isinstance(store, LocalOffsets):
        return f"{os.path.dirname(store.path)}/members"
    if not isinstance(store, StoreOffsets):
        return None
    if paths:
        return _place(min(paths), group)
    first = roots[min(roots)]
    parents = {os.path.dirname(root) for root in roots.values()}
    known = [*parents, *roots.values()]
    recorded = [place for place in (_place(path, group) for path in known) if _is_used(place)]
    return (
        recorded[0]
        if recorded
        else _place(parents.pop() if len(roots) > 1 and len(parents) == 1 else first, group)
    )


def other_places(
    directory: str | None,
    store: OffsetStore,
    *,
    group: str,
    roots: Mapping[str, str],
    paths: Sequence[str] = (),
) -> list[str]:
    """Places other than `directory` where members of the group have met, of those that no groupPath chose."""
    if directory is None or not isinstance(store, StoreOffsets):
        return []
    known = {*paths, *roots.values(), *(os.path.dirname(root) for root in roots.values())}
    found = {os.path.realpath(place): place for place in sorted(_place(path, group) for path in known)}
    found.pop(os.path.realpath(directory), None)
    return [place for place in found.values() if _is_used(place)]


def _place(path: str, group: str) -> str:
    return f"{path.rstrip('/')}/{OWN_DIRECTORY}/groups/{check_group(group)}"


def _is_used(place: str) -> bool:
    return os.path.isfile(f"{place}/group.json")


def refuse_members_elsewhere(
    group: str, directory: str, others: Iterable[str], clocks: Clocks, *, known_gone: Collection[str] = ()
) -> frozenset[str]:
    """Raises OptionError for a member in another place that lives, after watching those of other hosts for a
    lease time at most.

    Returns the ids of those that are gone, which a second call need not watch again.
    """
    gone = set(known_gone)
    for other in others:
        for name, entry in read_state(other).members.items():
            if name not in gone and not _is_gone(other, name, entry, clocks):
                raise OptionError(
                    f"group {group}: its query {', '.join(entry.clients)} runs and meets others in {other}, this query would meet them in "
                    f"{directory}, and both would read every message. Load the same path in all queries of the group, or set the same "
                    f"groupPath in all of them; queries of an older version have to be stopped first"
                )
            gone.add(name)
    return frozenset(gone)


def _is_gone(directory: str, name: str, entry: MemberEntry, clocks: Clocks) -> bool:
    watch = Watch(directory, name, entry, clocks.monotonic)
    while watch.why_gone() is None:
        if watch.has_beaten:
            return False
        clocks.sleep(_WAIT_STEP_SECONDS)
    return True


def inherit(directory: str, others: Sequence[str]) -> None:
    """Takes over what members recorded in other places: positions where `directory` is new, and the highest
    reset number in any case.

    A position that is not the newest does no harm: the offset file shows that others went on (`mirror`).
    """
    if not others:
        return
    make_path(directory)
    with StoreLock(directory, timeout=_LOCK_SECONDS):
        state = read_state(directory)
        is_new = not _is_used(directory)
        before = state.reset
        for other in others:
            theirs = read_state(other)
            state.reset = max(state.reset, theirs.reset)
            if is_new:
                _merge(state, theirs)
        if is_new or state.reset != before:
            state.serial += 1
            write_state(directory, state, FileWrites(sync=True))


def _merge(state: GroupState, theirs: GroupState) -> None:
    """Of a queue in two places the one that was reset last, or was read further, counts."""
    for queue, entry in theirs.queues.items():
        there = state.queues.get(queue)
        if there is None or (entry.reset, entry.position or 0) > (there.reset, there.position or 0):
            epoch = max(entry.epoch, there.epoch if there else 0)
            state.queues[queue] = QueueEntry(None, None, epoch, entry.position, entry.reset, entry.mirrored)
