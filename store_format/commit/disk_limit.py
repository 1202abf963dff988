"""The rule of a broker that a store on a nearly full disk takes no messages.

A broker refuses every message, also those of its own delivery and revival, which try again later
(DefaultMessageStore.CleanCommitLogService.isSpaceToDelete, HookUtils.checkBeforePutMessage). It still flushes
and deletes files.
"""

from __future__ import annotations

from collections.abc import Sequence

from store_format.bookkeeping.settings import broker_conf_of
from store_format.errors import StoreWriteError
from store_format.files.read import disk_space
from store_format.metadata.broker_conf import BrokerConf


def full_disk(root: str, log_directories: Sequence[str], limit: int) -> str | None:
    """Why a store takes no messages if more than `limit` percent of a disk may not be used; None if it does.

    Of several commitlog directories, the emptiest counts.
    """
    logs = [disk_space(path) for path in log_directories or (f"{root}/commitlog",)]
    log = min(logs, key=lambda disk: disk.used_percent)
    for disk in (disk_space(root), log, disk_space(f"{root}/consumequeue")):
        if disk.used_percent > limit:
            used = f"the file system {disk.mount} is {disk.used_percent} % full"
            return f"{used}, above the limit of {limit} % for writes"
    return None


def refuse_full_disk(
    root: str, limit: int | None, conf: BrokerConf | None, log_directories: Sequence[str] = ()
) -> None:
    """Raises StoreWriteError if more of a disk is used than `limit` percent, or than the broker allows."""
    if limit is None:
        limit = broker_conf_of(root, conf).disk_warning_percent
    reason = full_disk(root, log_directories, limit)
    if reason is not None:
        raise StoreWriteError(
            f"{root}: {reason}; free some space (rmqlog clean), or raise diskSpaceWarningLevelRatio or "
            "disk_limit"
        )
