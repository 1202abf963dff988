"""The checkpoint file: six longs that say up to when and where a broker had flushed (StoreCheckpoint, spec
5.1).

It is written in place every second and has no checksum, so its numbers are hints for recovery, never facts
about messages.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from store_format.files.read import FileView
from store_format.layouts import CHECKPOINT, unpack

__all__ = ["CHECKPOINT_SINCE", "Checkpoint", "read_checkpoint"]

# The first release that writes each long. An older one leaves it 0, and reads past it.
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
    """The longs as stored; 0 where the broker has not set one. See `layouts.CHECKPOINT` for what each means."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def timestamp_min(self) -> int:
        """From where recovery scans after a crash, up to 5.4: 3 s before the older of commitlog and queues,
        at least 0.
        """
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _RECOVERY_MARGIN_MS, 0)

    @property
    def implausible(self) -> tuple[str, ...]:
        """The names of longs that no broker writes: negative ones. For `diagnose`; nothing else trusts these
        numbers.
        """
        return tuple(field.name for field in fields(self) if getattr(self, field.name) < 0)


def read_checkpoint(path: str) -> Checkpoint | None:
    """The checkpoint at `path`; None when there is no file. Any bytes are a checkpoint.

    What a short file lacks counts as 0, because the broker maps 4096 bytes, whatever the file has. Raises
    CorruptStoreError for a link or a directory.
    """
    try:
        with FileView(path) as view:
            data = view.read(0, CHECKPOINT.itemsize)
    except FileNotFoundError:
        return None
    longs = unpack(data.ljust(CHECKPOINT.itemsize, b"\0"), CHECKPOINT)[0]
    return Checkpoint(*longs.tolist())
