"""How a store was left and what it is: crashed or in use, checkpoint, configuration files, and formats that
are not read.

None of this decides about a message, so it is never damage: a reader works without, a broker may not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from store_format.bookkeeping.journal import abort_mark
from store_format.bookkeeping.state import StoreState
from store_format.diagnose.files import QUEUE_ADVICE, entries_of
from store_format.diagnose.problems import Findings, Summary
from store_format.errors import CorruptStoreError
from store_format.files.lock import lock_holder
from store_format.files.read import read_bytes
from store_format.java.fastjson import loads
from store_format.layouts import CHECKPOINT, CHECKPOINT_FILE_SIZE
from store_format.metadata import read as config_json
from store_format.metadata import read_state as config_state
from store_format.metadata.checkpoint import read_checkpoint
from store_format.metadata.values import TopicConfig
from store_format.names import SCHEDULE_TOPIC, QueueKey, is_light_queue

__all__ = [
    "check_checkpoint",
    "check_config",
    "check_formats",
    "check_queue_ids",
    "check_state",
    "check_topics",
]

_READERS: Mapping[str, Callable[[str], object]] = {
    "topics.json": config_json.read_topics,
    "subscriptionGroup.json": config_json.read_subscription_groups,
    "consumerOffset.json": config_json.read_consumer_offsets,
    "lmqConsumerOffset.json": config_json.read_lmq_consumer_offsets,
    "delayOffset.json": config_json.read_delay_offsets,
    "consumerFilter.json": config_state.read_consumer_filters,
    "consumerOrderInfo.json": config_state.read_order_infos,
    "topicQueueMapping.json": config_state.read_queue_mappings,
    "messageRequestMode.json": config_state.read_request_modes,
    "timermetrics": config_state.read_timer_metrics,
    "transactionMetrics": config_state.read_transaction_metrics,
}

# (place below the root, name in it that proves it, what it is)
_FORMATS = (
    (
        "consumequeue",
        "CURRENT",
        "consume queues in RocksDB (storeType=defaultRocksDB): the commitlog is scanned instead",
    ),
    (
        "consumequeue_rocksdb",
        "CURRENT",
        "consume queues in RocksDB (useSeparateStorePathForRocksdbCQ): the commitlog is scanned instead",
    ),
    ("config/topics", "CURRENT", "topics in RocksDB: which topics are configured is not known"),
    (
        "config/metadata",
        "CURRENT",
        "configuration in RocksDB (useSingleRocksDBForAllConfigs): it is not read",
    ),
    ("config/rdb", "CURRENT", "configuration in RocksDB (configManagerVersion=v2): it is not read"),
    ("batchconsumequeue", "", "topics of queue.type=BatchCQ: an entry stands for several messages"),
)

_CHECKPOINT_ADVICE = (
    "Move it out of the store; a broker makes a new one (StoreCheckpoint). Where abort is there and the store has more than 10 commitlog "
    "files, set the broker's commitLogRecoverMaxNum to their number first"
)
_LOST_ADVICE = (
    "Readers scan the commitlog for this queue; a broker does not see these messages. A write of rmqlog to the topic "
    "rebuilds the queue; do not start a broker before: howto-recover.md, section 6"
)
_CRASH_ADVICE = "Readers do the broker's recovery in memory. A broker that starts does it on disk and cuts the log where it ends: copy the store first"
_PHYSICAL_LONGS = ("confirm_phy_offset", "logics_physical_offset")


def check_state(findings: Findings, root: str, state: StoreState) -> None:
    """Left by a crash, in use, or not flushed."""
    if state is StoreState.LIVE:
        advice = "What is being written now may look unfinished; look again when the broker is down"
        findings.add(
            "info",
            f"{root}/lock",
            0,
            "a store that nobody writes to",
            f"process {lock_holder(f'{root}/lock')} holding the lock",
            advice,
        )
    if state is StoreState.CRASHED:
        findings.add(
            "warning",
            f"{root}/abort",
            0,
            "no abort file while nobody holds the lock",
            "one: the broker was killed",
            _CRASH_ADVICE,
        )
    if state is StoreState.CLEAN and abort_mark(root):
        advice = (
            "Before a broker starts, call MessageStore.open(path).flush() or make one commit with SYNC_FLUSH: a broker that finds "
            "the file deletes index files and indexes the last 10 commitlog files only, so that queries by key miss older messages"
        )
        found = "one: commits with ASYNC_FLUSH are not flushed, or a commit was broken off"
        findings.add("info", f"{root}/abort", 0, "no abort file before a broker starts", found, advice)


def check_formats(findings: Findings, root: str) -> None:
    """Parts of the store that are read in another way, or not at all."""
    for place, name, what in _FORMATS:
        entries = (
            entries_of(findings, f"{root}/{place}")
            if "/" not in place or entries_of(findings, f"{root}/config")
            else []
        )
        if any(entry.name == name for entry in entries) or (not name and entries):
            findings.add(
                "info",
                f"{root}/{place}",
                0,
                "consume queue files and JSON",
                what,
                "Nothing needs to be done",
                kind=place,
            )
    for entry in entries_of(findings, root):
        if entry.name.startswith("dledger-"):
            found = "a DLedger commitlog (enableDLegerCommitLog=true)"
            findings.add(
                "info", entry.path, 0, "a commitlog in commitlog/", found, "It is not read", kind="dledger"
            )


def check_checkpoint(findings: Findings, root: str, summary: Summary, log_stop: int) -> None:
    """Numbers that no broker writes, or that are ahead of `log_stop`, where the log ends or did before it was
    damaged.
    """
    path = f"{root}/checkpoint"
    advice = _CHECKPOINT_ADVICE
    try:
        data, checkpoint = read_bytes(path), read_checkpoint(path)
    except CorruptStoreError as error:
        findings.add_error("warning", error, advice)
        return
    if data is None or checkpoint is None:
        if summary.units:
            findings.add(
                "warning",
                path,
                0,
                "a checkpoint",
                "none",
                "After a crash a broker rescans the log from its 10th last file on",
            )
        return
    if len(data) != CHECKPOINT_FILE_SIZE:
        findings.add(
            "warning", path, len(data), f"{CHECKPOINT_FILE_SIZE} bytes", f"{len(data)} bytes", advice
        )
    assert CHECKPOINT.fields is not None
    for name in checkpoint.implausible:
        findings.add(
            "warning",
            path,
            CHECKPOINT.fields[name][1],
            f"{name} of at least 0",
            str(getattr(checkpoint, name)),
            advice,
        )
    for name in _PHYSICAL_LONGS:
        value = getattr(checkpoint, name)
        if value > log_stop:
            expected = f"{name} before the log's end, {log_stop}"
            findings.add("warning", path, CHECKPOINT.fields[name][1], expected, str(value), advice)


def check_config(findings: Findings, root: str) -> None:
    """Every configuration file whose format is known: whether a broker would take it, its `.bak`, or neither."""
    names = {entry.name for entry in entries_of(findings, f"{root}/config") if entry.kind == "file"}
    for name, read in _READERS.items():
        path = config_json.config_path(root, name)
        if name not in names and f"{name}.bak" not in names:
            continue
        error = _file_error(path, partial(read, root))
        try:
            read(root)
        except CorruptStoreError as second:
            findings.add_error(
                "warning", second, "Neither the file nor its .bak can be read: restore one of them"
            )
            continue
        if error is not None:
            findings.add_error(
                "warning",
                error,
                f"{name}.bak counts instead, as for a broker (ConfigManager.load)",
                kind="bak",
            )


def _file_error(path: str, read: Callable[[], object]) -> CorruptStoreError | None:
    """Why the file itself does not count; None when it does."""
    try:
        data = read_bytes(path)
        if not data:
            found = "none" if data is None else "an empty file"
            return (
                CorruptStoreError(path, 0, "a configuration file", found)
                if read_bytes(f"{path}.bak")
                else None
            )
        value = loads(data, path)
        if not isinstance(value, dict):
            return CorruptStoreError(path, 0, "a JSON object", type(value).__name__)
        raw = getattr(read(), "raw", value)
        return (
            None
            if raw == value
            else CorruptStoreError(path, 0, "the members of a configuration file", "others")
        )
    except CorruptStoreError as error:
        return error


def check_topics(
    findings: Findings,
    root: str,
    directories: Mapping[str, str],
    absent: Mapping[QueueKey, tuple[int, int]],
) -> None:
    """Queues against topics.json: `directories` are topics that have queues, `absent` queues that have
    messages and no files.
    """
    try:
        topics: Mapping[str, TopicConfig] | None = config_json.read_topics(root)
    except CorruptStoreError:
        return  # said by `check_config`
    for topic, directory in directories.items():
        if topics is None or is_light_queue(topic):
            continue
        config = topics.get(topic)
        if config is None:
            advice = "Consumers cannot find the topic, readers can. Create it again, with as many queues as it has directories here"
            findings.add(
                "warning",
                directory,
                0,
                f"topic {topic} in topics.json",
                "none",
                advice,
                kind=f"topic {topic}",
            )
        elif (config.queue_type == "BatchCQ") != ("/batchconsumequeue/" in directory):
            found = f"queue.type={config.queue_type} in topics.json"
            findings.add(
                "warning",
                directory,
                0,
                "the kind of consume queue that is there",
                found,
                "A broker refuses to start on it",
            )
    for (topic, queue_id), (count, first) in absent.items():
        found = f"none for {count} messages, the first at commitlog {first}"
        expected = f"consume queue files of {topic}-{queue_id}"
        place = f"{root}/consumequeue/{topic}/{queue_id}"
        if topics is None or topic in topics:
            findings.add(
                "damage", place, 0, expected, found, QUEUE_ADVICE if topics is None else _LOST_ADVICE
            )
        else:
            findings.add(
                "info", place, 0, expected, found, "The topic was deleted; retention takes the messages"
            )


def check_queue_ids(findings: Findings, root: str, queues: Mapping[QueueKey, tuple[str, int]]) -> None:
    """Queues, with their directory and number of messages, that consumers do not read: they ask for the ids
    below readQueueNums.
    """
    try:
        topics: Mapping[str, TopicConfig] = config_json.read_topics(root) or {}
    except CorruptStoreError:
        return  # check_config has reported it
    highest: dict[str, int] = {}
    for topic, queue_id in queues:
        highest[topic] = max(highest.get(topic, 0), queue_id)
    for (topic, queue_id), (directory, count) in queues.items():
        config = topics.get(topic)
        # the broker itself reads that one
        if config is None or queue_id < config.read_queue_nums or topic == SCHEDULE_TOPIC:
            continue
        needed = highest[topic] + 1
        expected = f"queue ids of {topic} below {config.read_queue_nums} (readQueueNums in topics.json)"
        found = f"a queue with {count} message{'s' * (count != 1)}, which consumers do not read"
        findings.add(
            "warning",
            directory,
            0,
            expected,
            found,
            f"Raise readQueueNums of {topic} to {needed} (mqadmin updateTopic -r {needed})",
        )
