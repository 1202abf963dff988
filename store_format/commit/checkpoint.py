"""The checkpoint as a writer changes it, and its mark of what is safe in the index.

After an unclean end a broker deletes each index file that ends after `index_msg_timestamp`, and indexes again
only what its recovery goes over (IndexService.load): older keys are lost. A broker moves the mark when a file
is full; here it moves with each flushed commit, so that a death in a later one, before its index, costs no
key.
"""

from __future__ import annotations

from dataclasses import replace

from store_format.files.write import FileWrites
from store_format.index.file import IndexFile, list_index_files
from store_format.index.geometry import IndexGeometry
from store_format.layouts import CHECKPOINT, CHECKPOINT_FILE_SIZE, pack
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint

__all__ = ["index_end", "lower_index_mark", "note_flushed", "save_checkpoint"]


def save_checkpoint(root: str, checkpoint: Checkpoint, files: FileWrites) -> None:
    file, made = files.open_full(f"{root}/checkpoint", CHECKPOINT_FILE_SIZE)
    with file:
        file.write(0, pack(CHECKPOINT, {name: getattr(checkpoint, name) for name in CHECKPOINT.names or ()}))
        files.sync(file)
    if made:
        files.sync_directory(root)


def note_flushed(root: str, last_offset: int, timestamp: int) -> None:
    """Before a commit without flush leaves `abort` in a store that was stopped in order: all messages so far
    are on the disk.

    A broker that starts then looks through the log from the file with that message on. From older files,
    where a damaged message would make it cut the log, it starts when the checkpoint has no
    logicsPhysicalOffset (before 5.5, or nothing flushed since).
    """
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    if 0 <= checkpoint.logics_physical_offset < last_offset:
        noted = replace(
            checkpoint,
            physic_msg_timestamp=max(checkpoint.physic_msg_timestamp, timestamp),
            logics_msg_timestamp=max(checkpoint.logics_msg_timestamp, timestamp),
            logics_physical_offset=last_offset,
        )
        save_checkpoint(root, noted, FileWrites(sync=True))


def index_end(root: str, geometry: IndexGeometry, *, last: int = 1) -> int | None:
    """The end timestamp of the index file that many from the end; None without such a file."""
    listed = list_index_files(f"{root}/index")
    if len(listed) < last:
        return None
    file = IndexFile.open(
        listed[-last].path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num
    )
    return file.header().end_timestamp


def lower_index_mark(root: str, geometry: IndexGeometry) -> None:
    """Before the last index file changes: what is half written must go, should this process die, whatever
    time its entries have.

    Always synced: it must be on disk before what it speaks of.
    """
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    full = index_end(root, geometry, last=2) or 0
    if checkpoint is not None and checkpoint.index_msg_timestamp > full:
        save_checkpoint(root, replace(checkpoint, index_msg_timestamp=full), FileWrites(sync=True))
