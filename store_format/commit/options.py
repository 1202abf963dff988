"""How to write to a store: the options of a commit, of a flush and of a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from store_format.bookkeeping.settings import StoreSettings
from store_format.metadata.read import BrokerConf
from store_format.survey.fates import Unfiled

LostBatch = Literal["again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOptions:
    """Settings of a commit (`MessageStore.append`). The defaults are those of a broker with SYNC_FLUSH.

    - `sync` (flushDiskType=SYNC_FLUSH): the commit survives a power loss. Without `sync` it survives only the
      death of the process; `MessageStore.flush` makes it durable later.
    - `message_index_enable`: the commit also writes the index files.
    - `tag_keys`: index entries that are rebuilt after a crash include the tags, as brokers write them from
      5.4.
    - `new_topics`: topic -> number of queues, for topics that topics.json does not have. A new topic without
      an entry gets as many queues as the batch uses.
    - `lock_timeout`: seconds to wait for the store's lock. With 0, a locked store is refused at once.
    - `log_directories`: the directories of the commitlog files, if they are not in the store.
    - `unfiled_queues`: what to do if a topic has messages in the commitlog and no consume queue files, and
      the store does not show why. "read" rebuilds its queues. "skip" treats the topic as deleted and created
      again. None refuses the commit.
    - `cut_after_damage`: removes the valid messages behind damaged bytes, as a starting broker does. Without
      this option, a store with such messages is refused.
    - `lost_batch`: what to do with a batch whose key is committed and of which the commitlog lacks messages.
      "again" writes the whole batch again, so that the store has its other messages twice; a report counts
      them. None refuses the batch, and names its lost messages.
    - `ignore_missing_stores`: says that stores of the cluster that are missing now do not come back. Without
      it, a commit that needs to ask one of them is refused.
    - `keeps_key`: the ledger never forgets the key. Streams and services use this option.
    - `settings`: file sizes, for a broker's store whose files do not show them. `is_queue_size_given` is
      False if the user gave no mappedFileSizeConsumeQueue, so that `settings` has the default.
    - `conf`: the settings of the store's broker; None reads the store's `.rmqlog/broker.conf`.
    - `disk_limit`: messages are refused if a higher percentage of a disk is used; 100 refuses none. None is
      diskSpaceWarningLevelRatio of the broker's settings, from 35 to 90, else 90.
    - `clock`: a function that returns the time in ms since 1970. It dates messages and names index files.

    Example: `store.append(messages, options=CommitOptions(new_topics={"Orders": 4}, lock_timeout=10))`.
    """

    sync: bool = True
    message_index_enable: bool = True
    tag_keys: bool = True  # For index entries that are rebuilt after a crash: brokers index tags from 5.4 on.
    new_topics: Mapping[str, int] = field(default_factory=dict)
    keeps_key: bool = False
    lock_timeout: float = 0.0
    log_directories: tuple[str, ...] = ()
    settings: StoreSettings | None = None
    cut_after_damage: bool = False
    unfiled_queues: Unfiled | None = None
    lost_batch: LostBatch | None = None
    ignore_missing_stores: bool = False
    is_queue_size_given: bool = True
    conf: BrokerConf | None = None
    disk_limit: int | None = None
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000
