"""Rebuilt consume queues: written beside the store's queues, and moved to their places when complete.

So nobody sees an incomplete queue: no reader, and no broker that starts after this process died. The
store is not marked as crashed meanwhile: a broker would then scan old commitlog files too, and cut the
log at the first damaged message. The directory `.rmqlog/rebuild` alone shows the next writer an
unfinished rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from store_format.bookkeeping.journal import rebuild_path
from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.commit.queue_repair import Lacking, QueueState, truncate, write_lacking
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.listing import list_queues, queue_directory
from store_format.errors import StoreError
from store_format.files.read import list_directories, list_store_files
from store_format.files.status import stat_identity
from store_format.files.write import FileWrites
from store_format.names import QueueKey


def is_rebuild_begun(root: str) -> bool:
    """Whether a process died while it completed queues: some queues may still end too early."""
    return stat_identity(rebuild_path(root)) is not None


def end_rebuild(root: str) -> None:
    FileWrites(sync=True).remove_tree(rebuild_path(root))


def complete_queues(
    root: str,
    log: CommitLog,
    lacking: Lacking,
    states: Mapping[QueueKey, QueueState],
    index: Callable[[str], None] | None = None,
) -> None:
    """Writes the missing entries. The caller notes the result, then calls `end_rebuild`.

    `index` writes index files into a directory. Always synced: checkpoint and `abort` stay as they are, and
    may say that the queues are on the disk.
    """
    files = FileWrites(sync=True)
    aside = rebuild_path(root)
    files.remove_tree(aside)
    files.make_directories(root, OWN_DIRECTORY, aside.rpartition("/")[2])
    files.give_like(
        aside, f"{root}/consumequeue" if stat_identity(f"{root}/consumequeue") is not None else root
    )
    new = sorted(
        queue
        for queue in lacking.firsts
        if not any(file.size for file in list_store_files(queue_directory(root, *queue)))
    )
    for queue in sorted(lacking.firsts.keys() - set(new)):
        truncate(states[queue], files)
    try:
        write_lacking(root, log, lacking, states, files, aside=(aside, new))
        if index is not None:
            _make_index(root, aside, index, files)
        is_all_new = all(state.max_offset is None for state in states.values())
        left = move_in(root, aside, new, is_all_new, files)
        if left:  # Another file system is mounted there.
            write_lacking(root, log, lacking, states, files, only=left)
    except Exception:
        for name in ("consumequeue", "index"):  # The disk may be full.
            with suppress(StoreError):
                files.remove_tree(f"{aside}/{name}")
        raise


def _make_index(root: str, aside: str, index: Callable[[str], None], files: FileWrites) -> None:
    index(f"{aside}/index")
    if stat_identity(f"{aside}/index") is None:
        return  # No message has a key.
    clear_directory(f"{root}/index", files)
    if files.move(f"{aside}/index", f"{root}/index"):
        files.sync_directory(root)
    else:
        index(f"{root}/index")


def move_in(
    root: str, aside: str, new: list[QueueKey], is_all_new: bool, files: FileWrites
) -> Collection[QueueKey]:
    """Moves the new queues from `aside` to their places. Returns the queues that could not be moved.

    All are moved at once if the store has no other queue: a broker that finds no queue rebuilds all itself.
    """
    if not new:
        return ()
    if is_all_new:
        for _, _, directory, kind in list_queues(root, lambda _: True):
            if kind == "simple":
                clear_directory(directory, files)
        for _, topic_path in list_directories(f"{root}/consumequeue"):
            files.remove_directory(topic_path)
        if files.move(f"{aside}/consumequeue", f"{root}/consumequeue"):
            files.sync_directory(root)
            return ()
    for number, queue in enumerate(new):  # Readers see by the names in `aside` that they have to look again.
        files.move(queue_directory(aside, *queue), f"{aside}/{number}")
    for topic in {topic for topic, _ in new}:
        files.make_directories(root, "consumequeue", topic)
    left = []
    for number, queue in enumerate(new):
        target = queue_directory(root, *queue)
        clear_directory(target, files)
        if not files.move(f"{aside}/{number}", target):
            left.append(queue)
    for topic in {topic for topic, _ in new}:
        files.sync_directory(f"{root}/consumequeue/{topic}")
    return left


def clear_directory(directory: str, files: FileWrites) -> None:
    """Removes a directory whose files are all empty."""
    found = list_store_files(directory)
    if not any(file.size for file in found):
        for file in found:
            files.remove(file.path)
        files.remove_directory(directory)
