"""The checkpoint file as a writer changes it.

After a crash a broker deletes each index file that ends after `index_msg_timestamp`, and indexes again
only the messages that its recovery scans (IndexService.load): older keys are lost. A broker moves this
time when an index file is full. We move it with each flushed commit, so that a crash in a later commit,
before its index entries, costs no key.
"""

from __future__ import annotations

from dataclasses import replace

from store_format.files.write import FileWrites
from store_format.index.file import IndexFile, IndexGeometry, list_index_files
from store_format.layouts import CHECKPOINT, CHECKPOINT_FILE_SIZE, pack
from store_format.metadata.read import Checkpoint, read_checkpoint


def save_checkpoint(root: str, checkpoint: Checkpoint, files: FileWrites) -> None:
    file, made = files.open_full(f"{root}/checkpoint", CHECKPOINT_FILE_SIZE)
    with file:
        file.write(0, pack(CHECKPOINT, {name: getattr(checkpoint, name) for name in CHECKPOINT.names or ()}))
        files.sync(file)
    if made:
        files.sync_directory(root)


def note_flushed(root: str, last_offset: int, timestamp: int) -> None:
    """Notes in the checkpoint that all messages up to `last_offset` are on the disk.

    Called before a commit without flush leaves `abort` in a store that was shut down cleanly. A broker that
    starts then scans the log from the file with the message at `last_offset` on. Without logicsPhysicalOffset
    in the checkpoint (before 5.5, or nothing flushed since) the broker starts at an older file, and cuts the
    log at a damaged message there.
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
    """The end timestamp (ms) of the `last` index file from the end, 1 being the newest; None without it."""
    listed = list_index_files(f"{root}/index")
    if len(listed) < last:
        return None
    file = IndexFile.open(
        listed[-last].path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num
    )
    return file.header().end_timestamp


def lower_index_mark(root: str, geometry: IndexGeometry) -> None:
    """Lowers `index_msg_timestamp` before the last index file changes.

    If this process dies, a broker then removes the file with its incomplete entries, whatever their time.
    Always synced: the checkpoint must be on the disk before the entries.
    """
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    full = index_end(root, geometry, last=2) or 0
    if checkpoint is not None and checkpoint.index_msg_timestamp > full:
        save_checkpoint(root, replace(checkpoint, index_msg_timestamp=full), FileWrites(sync=True))
