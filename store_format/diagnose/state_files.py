"""How a store was left, its commits, checkpoint and configuration files, and formats that are not read.

Apart from a commit's messages and a queue's missing files this is never damage: no message depends on it. A
reader works without these files; a broker may not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress

from store_format.bookkeeping.journal import Abort, Journal, StoreState
from store_format.bookkeeping.ledger import GivenUp, Ledger
from store_format.commit.journal_place import is_lost_with_power, will_complete
from store_format.commitlog.dledger import committed_index, entry_index
from store_format.commitlog.log import CommitLog
from store_format.diagnose.databases import check_config_databases
from store_format.diagnose.files import entries_of
from store_format.diagnose.problems import NO_OFFSETS_ADVICE, REFUSES, Findings, LogSummary, Problem, Severity
from store_format.display.text import first_names, shown
from store_format.errors import CorruptStoreError, StoreError
from store_format.files import paths
from store_format.files.lock import StoreLock
from store_format.files.read import files_at
from store_format.layouts import CHECKPOINT, CHECKPOINT_FILE_SIZE
from store_format.metadata import read as config_json
from store_format.metadata.group_offsets import lacks_offsets
from store_format.metadata.read import read_checkpoint
from store_format.metadata.values import TopicConfig
from store_format.names import SCHEDULE_TOPIC, QueueKey
from store_format.opened.store import Opened
from store_format.survey.fates import StoredTopics
from store_format.survey.gone import LostLog, QueueProofs

_TOPICS_ADVICE = (
    "Put topics.json back from a backup: without it a broker knows no topic, and consumers find none. "
    "Or make it again from the queues and the messages (rmqlog recover STORE --apply), without the topics "
    "that have neither"
)

_BAK_LACKS_ADVICE = (
    "rmqlog recover STORE --apply creates these topics again, as the queues and messages show them. Or put "
    "topics.json back from a backup"
)
_CONFIG_LINK_ADVICE = "Neither the file nor its .bak can be read: restore one of them"
_KEPT_ASIDE = "rmqlog recover STORE --apply keeps the broken file aside, as .broken"
_BROKEN_ADVICE = f"The .bak counts instead, as for a broker (ConfigManager.load). {_KEPT_ASIDE}"
_UNREADABLE_ADVICE = (
    "The file counts as lost, and a broker starts without its content. Restore the file from a backup, or "
    f"make it again: {_KEPT_ASIDE}"
)
_UNREADABLE_PAIR_ADVICE = (  # BrokerController.initializeMetadata
    f"The file counts as lost, and so does its .bak: a {REFUSES}. Restore one of them from a backup, or make "
    f"the file again: {_KEPT_ASIDE}"
)
# Counts that only metrics show. A broker of 5.x that is killed while it writes one leaves the .bak alone,
# and a broker of 4.9 that goes on never writes the file (TransactionMetrics.persist, TimerMetrics.persist).
_COUNTS = frozenset({"transactionMetrics", "timermetrics"})

# (directory below the root, the file in it that proves the format (empty: any file), the format)
_FORMATS = (
    (
        "consumequeue",
        "CURRENT",
        "consume queues in RocksDB (storeType=defaultRocksDB)",
    ),
    (
        "consumequeue_rocksdb",
        "CURRENT",
        "consume queues in RocksDB (useSeparateStorePathForRocksdbCQ)",
    ),
    ("config/topics", "CURRENT", "topics in RocksDB (storeType=defaultRocksDB)"),
    ("config/metadata", "CURRENT", "configuration in RocksDB (useSingleRocksDBForAllConfigs)"),
    ("config/rdb", "CURRENT", "configuration in RocksDB (configManagerVersion=v2)"),
    ("batchconsumequeue", "", "topics of queue.type=BatchCQ: an entry stands for several messages"),
)

_CHECKPOINT_ADVICE = (
    "Move the checkpoint out of the store; a broker makes a new one (StoreCheckpoint). If the store has an "
    "abort file and more than 10 commitlog files, set the broker's commitLogRecoverMaxNum to the number of "
    "these files first"
)
_CRASH_ADVICE = (
    "Readers do the broker's recovery in memory. A broker that starts does the recovery on disk and cuts "
    "the log where it ends: copy the store first"
)
_UNFLUSHED_ADVICE = (
    "Before a broker starts, call MessageStore.open(path).flush() or make one commit with SYNC_FLUSH: a "
    "broker that finds the abort file deletes index files and indexes the last 10 commitlog files only, so "
    "that queries by key miss older messages"
)
_JOURNAL_ADVICE = "The next writer completes this commit; until then readers see none of its messages"
_DROPPED_ADVICE = (
    "The next writer drops this commit: no store of its cluster has published a part. Run the job again: it "
    "writes the whole batch"
)
_LOST_STAGING_ADVICE = (
    "A power loss came before a commit with ASYNC_FLUSH was on the disk. The next writer drops this commit: "
    "those of its messages stay that a broker would find. Run the job again: it writes the whole batch"
)
_LEDGER_ADVICE = (
    "Messages of this batch are lost: a broker ran while it was written, or the files were restored or "
    "truncated. Write these messages again, under another key"
)
_LOST_JOURNAL_ADVICE = (
    "A power loss came before a commit with ASYNC_FLUSH was on the disk: a part of its messages may be lost, "
    "and a part visible. The next commit replaces this file"
)
_OLD_LEDGER_ADVICE = (
    "The ledger of the last flush counts instead: a power loss came before that of a later commit with "
    "ASYNC_FLUSH was on the disk. A job of a later batch that runs again writes its messages again"
)
_FILE_ADVICE = (
    "Nothing can be written before this file is restored or moved out of the store. Without the journal, "
    "readers may show a part of a commit that was broken off; without the ledger, a job that runs again "
    "writes its messages again"
)
_COMMITTED_ADVICE = (
    "Nothing needs to be done: the group commits these entries, or replaces them. Readers show them after a "
    "kill only, because a broker that was killed had not noted what it committed last"
)
_PHYSICAL_LONGS = ("confirm_phy_offset", "logics_physical_offset")


def check_state(findings: Findings, opened: Opened, state: StoreState) -> None:
    """Reports a store in use, a crash, and commits that are not flushed."""
    if state is StoreState.LIVE:
        advice = (
            "Messages that are being written now may look unfinished; check again when the broker is down"
        )
        found = f"process {StoreLock.holder(f'{opened.path}/lock')} holding the lock"
        findings.add("info", f"{opened.path}/lock", 0, "a store that nobody writes to", found, advice)
    if state is StoreState.CRASHED:
        expected, found = "no abort file while nobody holds the lock", "one: the broker was killed"
        findings.add("warning", f"{opened.path}/abort", 0, expected, found, _CRASH_ADVICE)
    if state is StoreState.CLEAN and Abort.read_mark(opened):
        expected = "no abort file before a broker starts"
        found = "one: commits with ASYNC_FLUSH are not flushed, or a commit was broken off"
        findings.add("info", f"{opened.path}/abort", 0, expected, found, _UNFLUSHED_ADVICE)


def check_lost_log(findings: Findings, opened: Opened, log: CommitLog) -> LostLog | None:
    """Reports and returns a lost commitlog, with which no other check makes sense."""
    try:
        lost = LostLog.find(opened, log)
    except StoreError:  # of the journal or the ledger: check_commits reports the file
        return None
    if lost is not None:
        expected = f"messages, because {lost.known}"
        findings.add(
            "damage", log.directories[0], 0, expected, "no commitlog file with a message", LostLog.ADVICE
        )
    return lost


def check_commits(findings: Findings, opened: Opened, log: CommitLog) -> GivenUp:
    """Reports a commit that was broken off, and committed batches that were cut or overwritten since.

    Returns what earlier recoveries gave up.
    """
    try:
        journal = Journal.read(opened)
        if journal is not None:
            expected = "no commit that was broken off"
            found = f"one of {journal.units} messages from physical offset {journal.base} on"
            try:
                advice = _JOURNAL_ADVICE
                if not will_complete(opened, journal, log):
                    is_unstaged = is_lost_with_power(opened, journal)
                    advice = _LOST_STAGING_ADVICE if is_unstaged else _DROPPED_ADVICE
            except StoreError as error:
                advice = f"The next writer refuses, and until then readers see none of its messages: {error}"
            findings.add("warning", Journal.path(opened), 0, expected, found, advice)
        elif opened.files.stat_identity(Journal.path(opened)) is not None:
            expected, found = "the journal of a commit", "a file whose bytes were not written"
            findings.add("warning", Journal.path(opened), 0, expected, found, _LOST_JOURNAL_ADVICE)
        ledger, given_up = Ledger.read(opened), GivenUp.read(opened)
        if Ledger.is_lost(opened):
            expected, found = "the ledger of the last commit", "a file whose bytes were not written"
            findings.add("warning", Ledger.path(opened), 0, expected, found, _OLD_LEDGER_ADVICE)
    except CorruptStoreError as error:
        findings.add_error("damage", error, _FILE_ADVICE)
        return GivenUp()
    for report in ledger.reports(log, QueueProofs.damage_of_batch):
        expected = "every committed batch in the log"
        findings.add("damage", Ledger.path(opened), 0, expected, report, _LEDGER_ADVICE, kind=report)
    return given_up


def check_formats(findings: Findings, opened: Opened) -> None:
    """Reports parts of the store that are read in another way, or not at all."""
    for place, name, what in _FORMATS:
        entries = (
            entries_of(findings, f"{opened.path}/{place}")
            if "/" not in place or entries_of(findings, f"{opened.path}/config")
            else []
        )
        if any(entry.name == name for entry in entries) or (not name and entries):
            advice = "Nothing needs to be done"
            findings.add(
                "info", f"{opened.path}/{place}", 0, "consume queue files and JSON", what, advice, kind=place
            )


def check_committed(findings: Findings, log: CommitLog, last_offset: int) -> None:
    """Reports entries of a ledger behind the one that its checkpoint calls committed. `last_offset` is the
    physical offset of the last message.
    """
    file = log.file_at(last_offset)
    index = None if file is None else entry_index(file, log.cache, last_offset)
    if file is None or index is None:
        return
    ledger = paths.parent(paths.parent(file.path))
    path = f"{ledger}/checkpoint"
    try:
        committed = committed_index(ledger)
    except CorruptStoreError as error:
        findings.add_error("warning", error, _COMMITTED_ADVICE)
        return
    if committed is None:
        findings.add("info", path, 0, "a line committedIndex=NUMBER", "none", _COMMITTED_ADVICE)
    elif committed < index:
        expected = f"committedIndex {index}, of the last entry"
        findings.add("info", path, 0, expected, str(committed), _COMMITTED_ADVICE)


def check_checkpoint(findings: Findings, opened: Opened, summary: LogSummary, log_stop: int) -> None:
    """Reports a checkpoint whose numbers no broker writes, or that points behind `log_stop`.

    `log_stop` is the log's end, or the end that the log had before it was damaged.
    """
    path = f"{opened.path}/checkpoint"
    try:
        data, checkpoint = files_at(path).read(path), read_checkpoint(path)
    except CorruptStoreError as error:
        findings.add_error("warning", error, _CHECKPOINT_ADVICE)
        return
    if data is None or checkpoint is None:
        if summary.units:
            advice = "After a crash a broker rescans the log from its 10th last file on"
            findings.add("warning", path, 0, "a checkpoint", "none", advice)
        return
    if len(data) != CHECKPOINT_FILE_SIZE:
        expected = f"{CHECKPOINT_FILE_SIZE} bytes"
        findings.add("warning", path, len(data), expected, f"{len(data)} bytes", _CHECKPOINT_ADVICE)
    assert CHECKPOINT.fields is not None
    for name in checkpoint.implausible:
        position, found = CHECKPOINT.fields[name][1], str(getattr(checkpoint, name))
        findings.add("warning", path, position, f"{name} of at least 0", found, _CHECKPOINT_ADVICE)
    for name in _PHYSICAL_LONGS:
        value = getattr(checkpoint, name)
        if value > log_stop:
            position, expected = CHECKPOINT.fields[name][1], f"{name} before the log's end, {log_stop}"
            findings.add("warning", path, position, expected, str(value), _CHECKPOINT_ADVICE)


def check_config(findings: Findings, opened: Opened) -> None:
    """Reports configuration files that a broker does not load: it loads the `.bak`, or nothing."""
    for name in config_json.DECODERS:
        path = config_json.config_path(opened, name)
        try:
            found = {place: files_at(place).read(place) for place in (path, f"{path}.bak")}
        except CorruptStoreError as link:
            findings.add_error("damage", link, _CONFIG_LINK_ADVICE)
            continue
        errors = {place: config_json.config_error(data, place) for place, data in found.items() if data}
        error = errors.get(path)
        if not errors or (path in errors and error is None):
            continue
        if name == "topics.json" and errors.get(f"{path}.bak", error) is None and StoredTopics(opened).lost():
            continue  # check_topics reports the file, and what its .bak lacks
        lost = errors.get(f"{path}.bak", error)
        if lost is not None:
            advice = _UNREADABLE_PAIR_ADVICE if f"{path}.bak" in errors else _UNREADABLE_ADVICE
            findings.add_error("damage", error or lost, advice, kind=name)
        elif error is not None:
            findings.add_error("warning", error, _BROKEN_ADVICE, kind="bak")
        else:
            what = "none" if found[path] is None else "an empty file"
            advice = f"{name}.bak is used instead, as by a broker (ConfigManager.load)"
            severity: Severity = "info" if name in _COUNTS else "warning"
            findings.add(severity, path, 0, "a configuration file", what, advice, kind="bak")
    check_config_databases(findings, opened)
    with suppress(StoreError):  # is reported above, or is no problem of the store
        if lacks_offsets(opened):
            path = config_json.config_path(opened, "consumerOffset.json")
            # A broker that was killed in its first five seconds has written none either.
            findings.add("info", path, 0, "the committed offsets of groups", "none", NO_OFFSETS_ADVICE)


def counts_backup(problem: Problem) -> bool:
    """Whether a problem says that the `.bak` of its file counts in place of the file."""
    said = problem.advice
    is_used = said in (_BROKEN_ADVICE, _BAK_LACKS_ADVICE) or ".bak is used instead" in said
    return is_used and problem.severity != "info"


def check_topics(
    findings: Findings,
    opened: Opened,
    directories: Mapping[str, str],
    filled: Mapping[QueueKey, tuple[str, int]],
) -> dict[str, int]:
    """Compares the queues with topics.json. Returns the topics that it lacks, with their numbers of messages.

    `directories` gives a queue directory for each topic that has one, `filled` the directory and the number
    of messages of each queue that has some, also of those that a broker makes when it starts.
    """
    try:
        topics = config_json.read_topics(opened)
    except CorruptStoreError:
        return {}  # check_config has reported the file
    if topics is None and StoredTopics(opened).has_rocksdb_config:
        return {}
    lost = StoredTopics(opened).lost()
    if topics is not None or not lost:
        made = {topic: path for (topic, _), (path, _) in filled.items() if topic not in directories}
        others = {topic: path for topic, path in {**directories, **made}.items() if topic not in lost}
        _check_topic_types(findings, others, topics or {})
    if lost and topics is not None and topics.is_backup:
        _report_old_backup(findings, opened, lost)
    elif lost:
        names = f"the {len(lost)} topic{'s' * (len(lost) != 1)}"
        have = "has" if len(lost) == 1 else "have"
        expected, found = f"{names} that {have} consume queue files", "no file with them that can be read"
        if topics:
            expected = f"{names} that commits created: {first_names(lost)}"
            found = "a file from before these commits"
        path = config_json.config_path(opened, "topics.json")
        findings.add("damage", path, 0, expected, found, _TOPICS_ADVICE)
    without = {
        topic: 0 for topic, _ in filled if StoredTopics.needs_config(topic) and topic not in (topics or ())
    }
    for (topic, _), (_, count) in filled.items():
        if topic in without:
            without[topic] += count
    # a topic that was lost may have no queue file: its messages are to be counted, too
    return {topic: count for topic, count in without.items() if count} | dict.fromkeys(lost, 0)


def _report_old_backup(findings: Findings, opened: Opened, lost: Mapping[str, int]) -> None:
    """Reports a topics.json that no broker loads, and the topics that the .bak in its place lacks."""
    path = config_json.config_path(opened, "topics.json")
    data = files_at(path).read(path)
    error = config_json.config_error(data, path) if data else None
    position, found = (0, "none") if error is None else (error.position, error.found)
    found += f"; a broker loads the .bak instead (ConfigManager.load), which lacks {first_names(lost)}"
    findings.add("damage", path, position, "a topics.json that is JSON", found, _BAK_LACKS_ADVICE)


def _check_topic_types(
    findings: Findings, directories: Mapping[str, str], topics: Mapping[str, TopicConfig]
) -> None:
    """Reports topics with a directory of a queue that topics.json lacks, or has with another queue.type."""
    for topic, directory in directories.items():
        config = topics.get(topic)
        if config is None and StoredTopics.needs_config(topic):
            advice = (
                "Consumers cannot find the topic, readers can. Unless it was deleted on purpose, create the "
                "topic again, with as many queues as it has directories here: rmqlog recover STORE --topic "
                f"{shlex.quote(shown(topic))} --apply"
            )
            expected, kind = f"topic {topic} in topics.json", f"topic {topic}"
            findings.add("warning", directory, 0, expected, "none", advice, kind=kind)
        elif config and (config.queue_type == "BatchCQ") != ("/batchconsumequeue/" in directory):
            expected = "the queue.type of the consume queue on disk"
            found = f"queue.type={config.queue_type} in topics.json"
            findings.add("warning", directory, 0, expected, found, "A broker refuses to start on this store")


def check_queue_ids(
    findings: Findings, opened: Opened, queues: Mapping[QueueKey, tuple[str, int]]
) -> dict[QueueKey, int]:
    """Reports and returns queues whose id is not below readQueueNums, with their numbers of messages:
    consumers do not read them.

    `queues` gives the directory and the number of messages of each queue.
    """
    try:
        topics = config_json.read_topics(opened)
    except CorruptStoreError:
        return {}  # check_config has reported it
    if not topics:
        return {}
    is_old = topics.is_backup and not StoredTopics(opened).has_rocksdb_config
    highest: dict[str, int] = {}
    unread: dict[QueueKey, int] = {}
    for topic, queue_id in queues:
        highest[topic] = max(highest.get(topic, 0), queue_id)
    for (topic, queue_id), (directory, count) in queues.items():
        config = topics.get(topic)
        # the broker itself reads the schedule topic
        if config is None or queue_id < config.read_queue_nums or topic == SCHEDULE_TOPIC:
            continue
        unread[topic, queue_id] = count
        needed = highest[topic] + 1
        expected = f"queue ids of {topic} below {config.read_queue_nums} (readQueueNums in topics.json)"
        found = f"a queue with {count} message{'s' * (count != 1)}, which consumers do not read"
        advice = (
            "topics.json.bak is from before the topic grew: rmqlog recover STORE --apply raises "
            f"readQueueNums of {topic} to {needed}"
            if is_old
            else f"Raise readQueueNums of {topic} to {needed} (mqadmin updateTopic -r {needed}, or without a "
            f"broker rmqlog recover STORE --topic {shlex.quote(topic)} --apply)"
        )
        findings.add("warning", directory, 0, expected, found, advice)
    return unread
