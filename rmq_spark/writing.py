"""What a write does, Spark aside: the target is looked at once, tasks stage their rows, the driver commits what they staged.

All that a task needs is in `WriteTarget`, plain values; all that the driver needs to commit is in the `Staged` of each task.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rmq_spark.produce.messages import ProducedMessages, Producer, ProducerSettings
from rmq_spark.produce.queues import QueueSelector
from rmq_spark.produce.routes import Routes, StoreTopics
from rmq_spark.produce.unique_ids import UniqueIds, own_address
from rmq_spark.write_options import WriteOptions
from store_format.append import CommitOptions, CommitResult, collect, commit, discard
from store_format.commit_log import CommitLog
from store_format.config_json import read_topics
from store_format.creation import create_store
from store_format.encode import encode
from store_format.errors import StoreError, StoreInUseError, UnsupportedFormatError
from store_format.files import FileCache, entry_names
from store_format.lock import lock_holder
from store_format.refusals import refuse_store
from store_format.staging import StagedFile, StagingWriter
from store_format.store_settings import StoreSettings, settings_of

__all__ = ["Staged", "WriteTarget", "abort_write", "commit_write", "open_target", "stage_rows"]

_log = logging.getLogger("rmq_spark")

_BORN_PORT = 0
_STORE_PORT = 10911  # a broker's listenPort


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """A store and what holds for all rows written to it. Plain values: pickled to every task."""

    root: str
    write: str  # names this write's staging
    options: WriteOptions
    settings: StoreSettings
    routes: Routes


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task attempt staged, and the topics it needs: the number of queues of each."""

    file: StagedFile
    new_topics: tuple[tuple[str, int], ...]


def open_target(options: WriteOptions) -> WriteTarget:
    """The store to write to, made when there is none.

    Raises StoreInUseError when a broker has it, before any task runs, UnsupportedFormatError for what is not written to.
    """
    root = options.path
    names = entry_names(root, missing_ok=True)
    if "commitlog" not in names and any(os.path.isdir(f"{root}/{name}/commitlog") for name in names):
        raise UnsupportedFormatError(f"{root} is a cluster directory; write to its stores one by one")
    new = options.new_store
    name = new.broker_name or os.path.basename(root)
    given = {
        "mapped_file_size_commit_log": new.mapped_file_size_commit_log,
        "mapped_file_size_consume_queue": new.mapped_file_size_consume_queue,
        "max_hash_slot_num": new.max_hash_slot_num,
        "max_index_num": new.max_index_num,
    }
    wanted = StoreSettings(name, **{key: value for key, value in given.items() if value is not None})
    if "commitlog" not in names:
        create_store(root, wanted, timestamp=_now_ms(), exist_ok=True)
    refuse_store(root)
    holder = lock_holder(f"{root}/lock")
    if holder is not None and not options.writer_lock_timeout_ms:
        raise StoreInUseError(f"{root} is in use by process {holder}; stop the broker, or write to another store")
    log = CommitLog.open([f"{root}/commitlog"], FileCache())
    settings = settings_of(root, log, name, wanted)
    routes = Routes.of(
        [StoreTopics(settings.broker_name, dict(read_topics(root) or {}))],
        auto_create=options.auto_create_topic_enable,
        default_topic_queue_nums=options.default_topic_queue_nums,
    )
    return WriteTarget(root, secrets.token_hex(8), options, settings, routes)


def stage_rows(target: WriteTarget, batches: Iterable[pa.RecordBatch]) -> Staged:
    """Stages the rows of one task attempt. Memory is that of a batch. What fails leaves no file."""
    options = target.options
    producer = Producer(
        ProducerSettings(
            born_host=options.born_host or (own_address(), _BORN_PORT),
            topic=options.topic,
            compression=options.compression,
            strict_properties=options.strict_properties,
            message_size_max=options.max_message_size,
            file_size=target.settings.mapped_file_size_commit_log,
        ),
        QueueSelector(target.routes, options.message_queue_selector),
        UniqueIds.of_this_process(),
    )
    writer = StagingWriter(target.root, target.write, sync=options.flush_disk_type == "SYNC_FLUSH")
    topics: dict[str, None] = {}  # in the order met
    try:
        for batch in batches:
            if batch.num_rows:
                messages = producer.produce(batch, _now_ms())
                parking = (messages.topics[place] for place in np.unique(messages.topic).tolist())
                topics.update(dict.fromkeys((*messages.real_topics, *parking)))
                _stage(writer, target, messages)
        staged = writer.close()
    except BaseException:
        writer.discard()
        raise
    producer.report()
    created = target.routes.created(topics)
    return Staged(staged, tuple((name, config.write_queue_nums) for name, config in created.items()))


def _stage(writer: StagingWriter, target: WriteTarget, messages: ProducedMessages) -> None:
    options = target.options
    units = encode(messages.columns(options.store_host or (own_address(), _STORE_PORT)), message_size_max=options.max_message_size)
    queues, queue_index = messages.queues()
    hashes, owners = messages.key_hashes() if options.message_index_enable else (None, None)
    timed = messages.timed if messages.timed.any() else None
    writer.append(units, queues, queue_index, messages.tags_code, hashes, owners, timed)


def commit_write(target: WriteTarget, staged: Sequence[Staged], key: tuple[str, int] | None) -> CommitResult:
    """Publishes what the tasks staged, in the order of the tasks."""
    options = target.options
    new_topics: dict[str, int] = {}
    for each in staged:
        for topic, queue_nums in each.new_topics:
            new_topics[topic] = max(new_topics.get(topic, 0), queue_nums)
    result = commit(
        target.root,
        [each.file for each in staged],
        key=key,
        options=CommitOptions(
            sync=options.flush_disk_type == "SYNC_FLUSH",
            message_index_enable=options.message_index_enable,
            new_topics=new_topics,
            lock_timeout=options.writer_lock_timeout_ms / 1000,
            settings=target.settings,
        ),
    )
    try:
        collect(target.root, older_than=time.time() - options.staging_retention_ms / 1000)
    except (StoreError, OSError) as error:  # the batch is published: failing now would make a job without a key write it again
        _log.warning("%s: files of dead tasks could not be collected; the next write tries again: %s", target.root, error)
    if not result.committed:
        _log.info("%s: batch %s is committed already; nothing was written", target.root, key)
    return result


def abort_write(target: WriteTarget, staged: Sequence[Staged]) -> None:
    """Removes what tasks staged, unless a commit that cannot be undone still needs it."""
    options = CommitOptions(lock_timeout=target.options.writer_lock_timeout_ms / 1000)
    if not discard(target.root, [each.file for each in staged], options=options):
        _log.warning(
            "%s: the commit is begun and will be completed by the next writer; a write without a key must not be run again", target.root
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
