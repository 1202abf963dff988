"""What is not written to: stores whose queues, topics or log are not in the files we keep in step, and topics
with rules of their own.

Each refusal names the broker setting that made it so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from store_format.errors import IllegalMessageError, UnsupportedFormatError
from store_format.files.read import entry_names
from store_format.metadata.values import TopicConfig
from store_format.names import SELF_TEST_TOPIC, TIMER_TOPIC, QueueKey, is_light_queue

__all__ = ["refuse_missing_queues", "refuse_store", "refuse_timer", "refuse_topics"]

# every broker that starts puts it into topics.json (TopicConfigManager.init)
_QUEUE_ID_MAX = 2**31 - 1
_BY_FILE = (  # directory, file in it, what it means
    ("consumequeue", "CURRENT", "RocksDB consume queues (storeType=defaultRocksDB)"),
    ("consumequeue_rocksdb", "CURRENT", "RocksDB consume queues (useSeparateStorePathForRocksdbCQ=true)"),
    ("config/topics", "CURRENT", "topics in RocksDB (storeType=defaultRocksDB)"),
    ("config/metadata", "CURRENT", "configuration in RocksDB (useSingleRocksDBForAllConfigs=true)"),
    ("config/rdb", "CURRENT", "configuration in RocksDB (configManagerVersion=v2)"),
)
_BY_NAME = {
    "epochFileCheckpoint": "a store under a controller (enableControllerMode=true)",
    "brokerIdentity": "a store under a controller (enableControllerMode=true)",
}


def refuse_store(root: str) -> None:
    """Raises UnsupportedFormatError for a store that is not written to."""
    names = entry_names(root)
    for directory, file, meaning in _BY_FILE:
        if file in entry_names(f"{root}/{directory}", missing_ok=True):
            raise UnsupportedFormatError(f"{root} has {meaning}: it can be read, but not be written to")
    for name in sorted(names):
        meaning = _BY_NAME.get(name) or (
            "a DLedger store (enableDLegerCommitLog=true)" if name.startswith("dledger-") else ""
        )
        if meaning:
            raise UnsupportedFormatError(f"{root} is {meaning}, as {name} says: it is not written to")


def refuse_topics(root: str, queues: Iterable[QueueKey], topics: Mapping[str, TopicConfig]) -> None:
    """Raises UnsupportedFormatError for a topic of another kind of queue, and IllegalMessageError for a name
    that is no directory's.
    """
    batch_topics = entry_names(f"{root}/batchconsumequeue", missing_ok=True)
    for topic, queue_id in queues:
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            raise IllegalMessageError(f"topic {topic!r}: not a name that a consume queue directory can have")
        if not 0 <= queue_id <= _QUEUE_ID_MAX:
            raise IllegalMessageError(
                f"topic {topic}: queue id {queue_id}, 0 to {_QUEUE_ID_MAX} are possible"
            )
        config = topics.get(topic)
        kind = None
        if is_light_queue(topic):
            kind = "a light queue (enableLmq)"
        elif topic in batch_topics or (config is not None and config.queue_type == "BatchCQ"):
            kind = "of queue.type=BatchCQ"
        elif config is not None and config.cleanup_policy == "COMPACTION":
            kind = "of cleanup.policy=COMPACTION"
        elif config is not None and config.message_type == "LITE":
            kind = "of message.type=LITE"
        if kind is not None:
            raise UnsupportedFormatError(f"topic {topic} is {kind}: it is not written to")


def refuse_timer(root: str, used: Iterable[str], topics: Mapping[str, TopicConfig]) -> None:
    """Raises UnsupportedFormatError for timer messages in the store of a broker without a timer: nobody would
    deliver them.

    A broker with a timer has its topic in topics.json as soon as it has started (TopicConfigManager.init).
    """
    if TIMER_TOPIC in used and SELF_TEST_TOPIC in topics and TIMER_TOPIC not in topics:
        raise UnsupportedFormatError(
            f"{root}: a message with a time of delivery (column deliverTimestamp) is not written, because the broker of this store "
            f"would not deliver it: topics.json has no {TIMER_TOPIC}, so the broker is older than 5.0 or has timerWheelEnable=false. "
            "Use the column delayTimeLevel, or start a broker with timerWheelEnable=true on the store first"
        )


def refuse_missing_queues(root: str, queues: Iterable[QueueKey], topics: Mapping[str, TopicConfig]) -> None:
    """Raises IllegalMessageError for a queue that its topic does not have: no consumer reads it, or no
    producer writes to it.
    """
    for topic, queue_id in queues:
        config = topics.get(topic)
        if config is not None and queue_id not in config.written_queue_ids:
            raise IllegalMessageError(
                f"{root}: topic {topic} has readQueueNums={config.read_queue_nums} and writeQueueNums={config.write_queue_nums} in "
                f"topics.json, and a message of this write is for queue {queue_id}, which consumers would not read. Nothing was written. "
                "If the topic was created or changed while this write ran, run it again: it then uses the queues that there are; "
                "otherwise raise both numbers (updateTopic -r -w), or use another queue"
            )
