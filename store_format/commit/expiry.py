"""Which files retention deletes: the oldest commitlog files, then what pointed only into them.

The rules are the broker's (MappedFileQueue.deleteExpiredFileByTime and deleteExpiredFileByOffset,
ConsumeQueueExt.truncateByMinAddress, IndexService.deleteExpiredFile). Each looks at the files alone, so that
a deletion that was broken off is completed by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import QueueKind, is_queue_id
from store_format.consumequeue.units import FiledQueue, ext_offset, is_ext_address, list_queues
from store_format.errors import CorruptStoreError, StoreError, StoreWriteError
from store_format.files import paths
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.index.file import list_index_files
from store_format.layouts import (
    BATCH_CQ_UNIT,
    CQ_UNIT,
    INDEX_HEADER,
    TIMER_LOG_BLANK,
    TIMER_LOG_UNIT,
    unpack,
)
from store_format.metadata.timer import units_per_file
from store_format.opened.store import Opened

_log = logging.getLogger(__name__)

_UNITS: dict[QueueKind, np.dtype[np.void]] = {"simple": CQ_UNIT, "batch": BATCH_CQ_UNIT}
_KINDS: dict[QueueKind, str] = {"simple": "consumequeue", "batch": "batchconsumequeue"}
_FOLLOWERS = ("consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "timerlog")
_MAGIC_MASK = 0xF  # TimerMessageStore.isMagicOK


@dataclass(frozen=True, slots=True)
class ExpiredFile:
    """A file that retention deletes.

    `kind` is the directory: `commitlog`, `consumequeue`, `batchconsumequeue`, `consumequeue_ext`, `index` or
    `timerlog`. `start` is the number in its name, `size_bytes` its length. `disk_bytes` is the room that it
    takes, `modified_ms` when it was written last.
    """

    kind: str
    path: str
    start: int
    size_bytes: int
    disk_bytes: int
    modified_ms: int

    @staticmethod
    def before_last(log: CommitLog) -> list[ExpiredFile]:
        """The commitlog files that may be deleted at all, oldest first: all before the last written one.

        Behind the last written file there may be an empty one that a broker has prepared. A broker forgets
        such a file when it stops.
        """
        return [expired_file("commitlog", file) for file in log.files[: ExpiredFile.last_written(log)]]

    @staticmethod
    def last_written(log: CommitLog) -> int:
        """The number of the last commitlog file that has been written to: how many are before it."""
        last = max(len(log.files) - 1, 0)
        while last > 0 and not any(log.view(log.files[last]).read(0, 8)):
            last -= 1
        return last

    @staticmethod
    def count(
        modified_ms: Sequence[int], now_ms: int, reserved_ms: int, *, is_forced: bool, batch_max: int
    ) -> int:
        """How many of the files, oldest first, one round deletes (MappedFileQueue.deleteExpiredFileByTime).

        A file is expired `reserved_ms` after it was last modified. The first young file ends the round, and
        `batch_max` files do. If the round `is_forced`, because the disk is nearly full, age does not count.

        >>> ExpiredFile.count([0, 5, 1], now_ms=14, reserved_ms=10, is_forced=False, batch_max=10)
        1
        """
        count = 0
        for modified in modified_ms:
            if not is_forced and now_ms < modified + reserved_ms:
                break
            count += 1
            if count >= batch_max:
                break
        return count

    @staticmethod
    def refuse_links(opened: Opened) -> None:
        """Raises StoreWriteError if a directory of queues, index or timer log is a symbolic link.

        Such a link can lead to the directory of another store, whose files must not be deleted.
        """
        for name in _FOLLOWERS:
            path = f"{opened.path}/{name}"
            if paths.is_link(path):
                raise StoreWriteError(
                    f"{path}: expected a directory, found a symbolic link to {paths.real(path)}; clean "
                    "deletes no files through a link, and nothing was deleted; replace the link by the "
                    "directory, or by a bind mount of it"
                )

    @staticmethod
    def following(opened: Opened, log_min: int) -> Iterator[ExpiredFile]:
        """The files that only point before `log_min`, the start of the commitlog: queues, index and timer
        log.

        The last file of each kind is kept. A queue or file that is damaged is left out with a warning, and
        the others go on. The same holds for a topic or queue that is a symbolic link.
        """
        ext_directories = _ext_directories(opened)
        for queue in list_queues(opened, lambda topic: True, _warn):
            yield from _whole_list(_queue_files, queue.directory, queue.kind, log_min)
            ext = ext_directories.get((queue.topic, str(queue.queue_id)))
            if queue.kind == "simple" and ext is not None:
                yield from _whole_list(_ext_files, ext, queue, log_min)
        yield from _whole_list(_index_files, f"{opened.path}/index", log_min)
        yield from _whole_list(_timer_files, f"{opened.path}/timerlog", log_min)


def expired_file(kind: str, file: StoreFile) -> ExpiredFile:
    disk_bytes, modified_ms = files_at(file.path).status(file.path) or (0, 0)
    return ExpiredFile(kind, file.path, file.start, file.size, disk_bytes, modified_ms)


# ---- what follows the commitlog ----------------------------------------------------------------------------


def _ext_directories(opened: Opened) -> dict[tuple[str, str], str]:
    """The extension directory of each (topic, queue id). Links are left out with a warning."""
    found = {}
    try:
        topics = opened.files.directories(f"{opened.path}/consumequeue_ext", refused=_warn)
    except StoreError as error:
        _warn(error)
        return {}
    for topic, topic_path in topics:
        try:
            for name, path in files_at(topic_path).directories(topic_path, is_queue_id, _warn):
                found[topic, name] = path
        except StoreError as error:
            _warn(error)
    return found


def _whole_list(find: Callable[..., Iterator[ExpiredFile]], *arguments: object) -> list[ExpiredFile]:
    try:
        return list(find(*arguments))
    except StoreError as error:
        _warn(error)
        return []


def _warn(error: StoreError) -> None:
    _log.warning("retention passes over %s", error)


def _queue_files(directory: str, kind: QueueKind, log_min: int) -> Iterator[ExpiredFile]:
    """The first files of a queue whose last unit points before `log_min`."""
    layout = _UNITS[kind]
    for file, following in pairwise(files_at(directory).store_files(directory)):
        if not file.size or file.size % layout.itemsize or following.size != file.size:
            raise CorruptStoreError(
                following.path,
                0,
                f"files of one length, a multiple of {layout.itemsize}",
                f"{file.size} and {following.size} bytes",
            )
        last = _unit(file, file.size - layout.itemsize, layout)
        # An unwritten next file is none yet: the queue would forget its offsets.
        if last["size"] <= 0 or last["physical_offset"] >= log_min:
            return
        if _unit(following, 0, layout)["size"] <= 0:
            return
        yield expired_file(_KINDS[kind], file)


def _ext_files(ext_directory: str, queue: FiledQueue, log_min: int) -> Iterator[ExpiredFile]:
    """The files of a queue's extension that end before the address in the queue's first valid unit.

    Nothing if that unit has no address, or if the queue has no valid unit (ConsumeQueue.correctMinOffset).
    """
    files = files_at(ext_directory).store_files(ext_directory)
    if len(files) < 2:
        return
    bounds = queue.bounds(log_min)
    if bounds is None or bounds.first_physical_offset < 0:
        return
    with bounds.open() as units:
        address = np.array([units.unit(bounds.unit_start)[2]], np.int64)
    if is_ext_address(address)[0]:
        for file in files[:-1]:
            if file.stop >= int(ext_offset(address)[0]):
                return
            yield expired_file("consumequeue_ext", file)


def _index_files(directory: str, log_min: int) -> Iterator[ExpiredFile]:
    """The first index files whose last entry points before `log_min`."""
    for file in list_index_files(directory)[:-1]:
        with files_at(file.path).view(file.path) as view:
            header = view.read(0, INDEX_HEADER.itemsize)
        if len(header) < INDEX_HEADER.itemsize:
            return
        if unpack(header, INDEX_HEADER)[0]["end_physical_offset"] >= log_min:
            return
        yield expired_file("index", file)


def _timer_files(directory: str, log_min: int) -> Iterator[ExpiredFile]:
    """The first timerlog files whose last unit points before `log_min`.

    The rule is MappedFileQueue.deleteExpiredFileByOffsetForTimerLog, which looks at the last whole unit, and
    keeps the file if there is something else.
    """
    for file in files_at(directory).store_files(directory)[:-1]:
        unit_size, number = TIMER_LOG_UNIT.itemsize, units_per_file(file.size)
        if not number or file.size < TIMER_LOG_BLANK.itemsize:
            return
        last = _unit(file, (number - 1) * unit_size, TIMER_LOG_UNIT)
        if last["size"] != unit_size or last["magic"] & ~_MAGIC_MASK or last["physical_offset"] >= log_min:
            return
        yield expired_file("timerlog", file)


def _unit(file: StoreFile, position: int, layout: np.dtype[np.void]) -> np.void:
    with files_at(file.path).view(file.path) as view:
        data = view.read(position, layout.itemsize)
    if len(data) < layout.itemsize:
        raise CorruptStoreError(
            file.path, position, f"a unit of {layout.itemsize} bytes", f"{len(data)} bytes"
        )
    unit: np.void = unpack(data, layout)[0]
    return unit
