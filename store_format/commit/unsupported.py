"""Refusals of stores, topics, queues and disks that a commit does not write to.

The stores keep queues, topics or the log in other files than a commit updates, or a topic has rules of its
own. Each error names the broker setting that is the reason.

A broker refuses every message if a disk is nearly full, also those of its own delivery and revival, which try
again later (DefaultMessageStore.CleanCommitLogService.isSpaceToDelete, HookUtils.checkBeforePutMessage). It
still flushes and deletes files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from store_format.bookkeeping.settings import broker_conf_of
from store_format.commitlog.dledger import GROUP_RECOVERS
from store_format.consumequeue.files import can_be_queue, has_rocksdb_queues
from store_format.errors import IllegalMessageError, StoreWriteError, UnsupportedFormatError
from store_format.files.paths import base_name
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf, read_queue_mappings
from store_format.metadata.values import TopicConfig
from store_format.names import SCHEDULE_TOPIC, SELF_TEST_TOPIC, TIMER_TOPIC, QueueKey, is_light_queue
from store_format.opened.store import Opened

# every broker that starts puts it into topics.json (TopicConfigManager.init)
_QUEUE_ID_MAX = 2**31 - 1
_BY_FILE = (  # directory, file in it, what the store has then
    ("consumequeue", "CURRENT", "RocksDB consume queues (storeType=defaultRocksDB)"),
    ("consumequeue_rocksdb", "CURRENT", "RocksDB consume queues (useSeparateStorePathForRocksdbCQ=true)"),
    ("config/topics", "CURRENT", "topics in RocksDB (storeType=defaultRocksDB)"),
    ("config/metadata", "CURRENT", "configuration in RocksDB (useSingleRocksDBForAllConfigs=true)"),
    ("config/rdb", "CURRENT", "configuration in RocksDB (configManagerVersion=v2)"),
)
_TIMELINE_KEYS = (b"timeline_checkpoint", b"sys_topic_scan_offset_checkpoint")
_TIMELINE_TABLES = (b"nametimer",)  # rocksdb.column.family.name, its beginning shared with the key before
_TABLE_END = 1 << 16
_LEDGER = "a DLedger store (enableDLegerCommitLog=true)"
_BY_NAME = {
    "epochFileCheckpoint": "a store under a controller (enableControllerMode=true)",
    "brokerIdentity": "a store under a controller (enableControllerMode=true)",
}


@dataclass(frozen=True, slots=True)
class StoreRefusals:
    """Why a commit does not write to a store; each error names the broker setting that is the reason."""

    opened: Opened

    def refuse_store(self) -> None:
        """Raises UnsupportedFormatError for a store that is not written to."""
        names = self.opened.files.names(self.opened.path)
        for directory, file, meaning in _BY_FILE:
            if file in self.opened.files.names(f"{self.opened.path}/{directory}", missing_ok=True):
                raise UnsupportedFormatError(
                    f"{self.opened}: cannot write to a store with {meaning}, found {directory}/{file}. It "
                    "can be read; send messages through its broker, or write to another store"
                )
        for name in sorted(names):
            if name in _BY_NAME:
                self._refuse(_BY_NAME[name], name)
        self.refuse_ledger()

    def refuse_ledger(self) -> None:
        """Raises UnsupportedFormatError for a DLedger store: its files are those of a Raft group."""
        for path in self.opened.dledger_logs:
            self._refuse(_LEDGER, base_name(path))

    def _refuse(self, meaning: str, name: str) -> None:
        raise UnsupportedFormatError(
            f"{self.opened}: cannot write to {meaning}, found {name}. Send messages through its broker, or "
            "write to another store"
        )

    def refuse_ledger_recovery(self) -> None:
        """Raises UnsupportedFormatError for a DLedger store: its group decides which entries count."""
        for path in self.opened.dledger_logs:
            raise UnsupportedFormatError(
                f"{self.opened}: cannot recover {_LEDGER}, found {base_name(path)}. Its recovery belongs to "
                f"its group: {GROUP_RECOVERS}"
            )

    def refuse_rocksdb_queues(self) -> None:
        """Raises UnsupportedFormatError for a store whose consume queues its broker completes itself."""
        if has_rocksdb_queues(self.opened):
            raise UnsupportedFormatError(
                f"{self.opened}: expected consume queues in files, found a RocksDB database "
                "(storeType=defaultRocksDB). Its broker completes the database from the commitlog when it "
                "starts. If the database is lost, remove the directory with the file CURRENT and start the "
                "broker with commitLogRecoverMaxNum at least the number of commitlog files. To read the "
                "messages without a broker, read the store as it is: the commitlog alone is enough"
            )

    def refuse_topics(self, queues: Iterable[QueueKey], topics: Mapping[str, TopicConfig]) -> None:
        """Raises UnsupportedFormatError for a topic that is not written to, IllegalMessageError for a bad
        name.

        A bad name, or queue id, is one that a consume queue directory cannot have.
        """
        static = read_queue_mappings(self.opened) or {}
        batch_topics = self.opened.files.names(f"{self.opened.path}/batchconsumequeue", missing_ok=True)
        for topic, queue_id in queues:
            if not can_be_queue(topic, 0):
                raise IllegalMessageError(
                    f"topic {topic!r}: expected a name that a directory can have: not empty, '.' or '..', "
                    "without '/' and NUL, at most 255 bytes"
                )
            if not 0 <= queue_id <= _QUEUE_ID_MAX:
                raise IllegalMessageError(
                    f"topic {topic}: expected a queue id from 0 to {_QUEUE_ID_MAX}, found {queue_id}"
                )
            config = topics.get(topic)
            kind = None
            if is_light_queue(topic):
                kind = "a light queue (enableLmq)"
            elif topic in batch_topics or (config is not None and config.queue_type == "BatchCQ"):
                kind = "a topic with queue.type=BatchCQ"
            elif config is not None and config.cleanup_policy == "COMPACTION":
                kind = "a topic with cleanup.policy=COMPACTION"
            elif config is not None and config.message_type == "LITE":
                kind = "a topic with message.type=LITE"
            elif topic in static:
                kind = "a static topic, whose queues topicQueueMapping.json shares out among brokers"
            if kind is not None:
                raise UnsupportedFormatError(
                    f"topic {topic}: cannot write to {kind}. Send its messages through the broker"
                )

    def refuse_timer(self, used: Iterable[str], topics: Mapping[str, TopicConfig]) -> None:
        """Raises UnsupportedFormatError for timer messages if the store's broker has no timer to deliver
        them.

        A broker with a timer has its topic in topics.json as soon as it has started
        (TopicConfigManager.init).
        """
        if TIMER_TOPIC in used and SELF_TEST_TOPIC in topics and TIMER_TOPIC not in topics:
            raise UnsupportedFormatError(
                f"{self.opened}: cannot write messages with a time of delivery (column deliverTimestamp): "
                f"topics.json has no {TIMER_TOPIC}, so this store's broker is older than 5.0 or has "
                "timerWheelEnable=false, and would never deliver them. Use the column delayTimeLevel, or "
                "start a broker with timerWheelEnable=true on the store first"
            )

    def refuse_timeline(self, conf: BrokerConf) -> None:
        """Raises UnsupportedFormatError if the broker keeps waiting timer messages in RocksDB.

        Without the setting in broker.conf, `rocksdbstore/` decides: each broker from 5.4 on creates it, and
        only one with timerRocksDBEnable=true has records of its timeline there.
        """
        found = conf.timer_rocksdb_enable
        where = "broker.conf has timerRocksDBEnable=true"
        if not found and "timerRocksDBEnable" not in conf.given:
            name = _timeline_file(f"{self.opened.path}/rocksdbstore")
            found, where = name is not None, f"found records of the timer in rocksdbstore/{name}"
        if found:
            raise UnsupportedFormatError(
                f"{self.opened}: cannot deliver timer messages, which wait in a timeline in RocksDB: "
                f"{where}. Start the store's broker, which delivers them; or, if the timeline is not in use "
                "any more, set timerRocksDBEnable=false in broker.conf"
            )

    def refuse_missing_queues(self, queues: Iterable[QueueKey], topics: Mapping[str, TopicConfig]) -> None:
        """Raises IllegalMessageError for a queue id that consumers do not read, or producers do not write.

        The topic of delay levels has 18 queues in topics.json, however many levels messageDelayLevel has.
        """
        for topic, queue_id in queues:
            config = topics.get(topic)
            if topic != SCHEDULE_TOPIC and config is not None and queue_id not in config.written_queue_ids:
                raise IllegalMessageError(
                    f"{self.opened}: topic {topic} has readQueueNums={config.read_queue_nums} and "
                    f"writeQueueNums={config.write_queue_nums} in topics.json; expected queue ids below "
                    f"both, found a message for queue {queue_id}, which consumers would not read. Nothing "
                    "was written. If the topic was created or changed while this write ran, run it again. "
                    "Otherwise raise both numbers (mqadmin updateTopic -r -w), or use another queue"
                )

    def full_disk(self, log_directories: Sequence[str], limit: int) -> str | None:
        """Why a store takes no messages if more than `limit` percent of a disk may not be used; None if it
        does.

        Of several commitlog directories, the emptiest counts.
        """
        logs = [
            files_at(path).disk_space(path) for path in log_directories or (f"{self.opened.path}/commitlog",)
        ]
        log = min(logs, key=lambda disk: disk.used_percent)
        for disk in (
            self.opened.files.disk_space(self.opened.path),
            log,
            self.opened.files.disk_space(f"{self.opened.path}/consumequeue"),
        ):
            if disk.used_percent > limit:
                used = f"the file system {disk.mount} is {disk.used_percent} % full"
                return f"{used}, above the limit of {limit} % for writes"
        return None

    def refuse_full_disk(
        self, limit: int | None, conf: BrokerConf | None, log_directories: Sequence[str] = ()
    ) -> None:
        """Raises StoreWriteError if more of a disk is used than `limit` percent, or the broker's limit."""
        if limit is None:
            limit = broker_conf_of(self.opened, conf).disk_warning_percent
        reason = self.full_disk(log_directories, limit)
        if reason is not None:
            raise StoreWriteError(
                f"{self.opened}: {reason}; free some space (rmqlog clean), or raise "
                "diskSpaceWarningLevelRatio or disk_limit"
            )


def _timeline_file(directory: str) -> str | None:
    """A file with records of the column family `timer` (MessageRocksDBStorage); None without any.

    A log has its progress keys; the properties at the end of a table name the column family.
    """
    for name in sorted(files_at(directory).names(directory, missing_ok=True)):
        if name.endswith((".log", ".sst")):
            with files_at(directory).view(f"{directory}/{name}") as view:
                data = view.read(0 if name.endswith(".log") else max(view.size - _TABLE_END, 0), view.size)
            if any(mark in data for mark in (_TIMELINE_KEYS if name.endswith(".log") else _TIMELINE_TABLES)):
                return name
    return None
