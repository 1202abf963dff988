"""How to recover a store, and which sizes the files of the recovered store get."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from store_format.bookkeeping.settings import StoreSettings, read_settings, settings_of
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import QueueKind
from store_format.consumequeue.listing import list_queues
from store_format.errors import OptionError, StoreError
from store_format.files.read import list_store_files
from store_format.index.file import IndexFile, list_index_files
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT
from store_format.message.tags_code import DELAY_LEVELS_MS

_BATCH_FILE_SIZE = 300_000 * 46  # MessageStoreConfig.mapperFileSizeBatchConsumeQueue
_FILES_LOOKED_AT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverOptions:
    """How to recover a store.

    - `topics`: only the queues of these topics; they are rebuilt even where the store does not show whether
      the topic was deleted. None: all queues.
    - `queues`, `index`: whether consume queues and index files are compared with the log and rebuilt.
    - `cut_after_damage`: gives up the messages behind damage in the log, as a broker that starts does.
    - `ignore_missing_stores`: says that stores of the cluster that are missing now do not come back. Without
      it, a recovery that needs to ask one of them is refused.
    - `into`: the directory of a copy that is recovered in place of the store. `salvage`: the copy keeps the
      messages behind damage (`salvage.py`).
    - `settings`: for a store whose files do not show its sizes; `is_queue_size_given` is False if nobody gave
      mappedFileSizeConsumeQueue. `batch_queue_file_size` is mapperFileSizeBatchConsumeQueue.
    - `delay_levels_ms`: messageDelayLevel. `tag_keys`: whether the broker indexes tags (5.4 and later); None
      asks the store.
    - `threads` scan the log; None: one for each core. `clock` (ms) names index files.
    """

    topics: frozenset[str] | None = None
    queues: bool = True
    index: bool = True
    cut_after_damage: bool = False
    ignore_missing_stores: bool = False
    into: str | None = None
    salvage: bool = False
    settings: StoreSettings | None = None
    is_queue_size_given: bool = True
    batch_queue_file_size: int = _BATCH_FILE_SIZE
    delay_levels_ms: tuple[int, ...] = tuple(DELAY_LEVELS_MS)
    tag_keys: bool | None = None
    log_directories: tuple[str, ...] = ()
    lock_timeout: float = 0.0
    threads: int | None = None
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def chooses(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics


def settings_of_files(root: str, log: CommitLog, options: RecoverOptions) -> StoreSettings:
    """The sizes of the store's files; of a damaged index file those of the other index files."""
    name = root.rstrip("/").rpartition("/")[2]
    try:
        return settings_of(root, log, name, options.settings)
    except OptionError:
        for listed in list_index_files(f"{root}/index"):
            with IndexFile.open(listed.path) as file:
                if file.geometry is not None:
                    return settings_of(root, log, name, options.settings, geometry=file.geometry)
        if options.settings is None:
            raise
        return settings_of(root, log, name, options.settings, geometry=options.settings.geometry)


def known_queue_file_size(root: str, log: CommitLog, options: RecoverOptions) -> int | None:
    """The bytes of a consume queue file; None if the store does not show them."""
    known = options.settings if options.is_queue_size_given else None
    known = known or read_settings(root)
    if known is None and log.file_size == StoreSettings("").mapped_file_size_commit_log:
        known = StoreSettings("")  # a broker with the default size for the log
    return usual_file_size(root, "simple", None if known is None else known.queue_file_size)


def usual_file_size(root: str, kind: QueueKind, given: int | None) -> int | None:
    """The bytes of the store's queue files: `given` if a file has them, else the most frequent length.

    Damaged files have other lengths. Without a file with a length of whole units, `given`.
    """
    unit = (BATCH_CQ_UNIT if kind == "batch" else CQ_UNIT).itemsize
    sizes: Counter[int] = Counter()
    for _, _, directory, found in list_queues(root, lambda _: True, lambda _: None):
        if found == kind:
            with suppress(StoreError):
                sizes.update(file.size for file in list_store_files(directory))
        if sizes.total() > _FILES_LOOKED_AT:
            break
    whole = {size: count for size, count in sizes.items() if size and not size % unit}
    if not whole or given in whole:
        return given
    return max(whole, key=lambda size: (whole[size], size))


def batch_file_size(root: str, given: int) -> int:
    """`usual_file_size` of batch queues; a given size in whole units."""
    size = usual_file_size(root, "batch", given // BATCH_CQ_UNIT.itemsize * BATCH_CQ_UNIT.itemsize)
    assert size is not None
    return size
