"""The checkpoint file: six longs, up to which time and offset a broker had flushed.

A broker overwrites the file in place every second, without a checksum. So the numbers are hints for recovery,
not facts about messages (StoreCheckpoint, spec 5.1).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from store_format.files.view import FileView
from store_format.layouts import CHECKPOINT, unpack

# The first release that writes each long. Older releases leave the long at 0 and ignore it.
CHECKPOINT_SINCE = {
    "physic_msg_timestamp": "3.0",
    "logics_msg_timestamp": "3.0",
    "index_msg_timestamp": "3.0",
    "master_flushed_offset": "5.0",
    "confirm_phy_offset": "5.1.1",
    "logics_physical_offset": "5.5",
}

_RECOVERY_MARGIN_MS = 3000  # StoreCheckpoint.getMinTimestamp


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The longs as stored; 0 if the broker has not set the long. `layouts.CHECKPOINT` has the meanings."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def timestamp_min(self) -> int:
        """The store time in ms from which recovery scans after a crash, up to 5.4; at least 0.

        It is 3 s before the older of the times of commitlog and consume queues.
        """
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _RECOVERY_MARGIN_MS, 0)

    @property
    def implausible(self) -> tuple[str, ...]:
        """The names of negative longs, which no broker writes; for `diagnose`."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) < 0)


def read_checkpoint(path: str) -> Checkpoint | None:
    """The checkpoint at `path`; None without a file. Any bytes are a valid checkpoint.

    Missing bytes of a short file count as 0, since the broker maps 4096 bytes, whatever the file's length.
    Raises CorruptStoreError for a link or a directory.
    """
    try:
        with FileView(path) as view:
            data = view.read(0, CHECKPOINT.itemsize)
    except FileNotFoundError:
        return None
    longs = unpack(data.ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT)[0]
    return Checkpoint(*longs.tolist())
