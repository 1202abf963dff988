"""What a write does, Spark aside: tasks stage their rows, the driver commits what they staged.

All that a task needs is in the `WriteTarget`, plain values; all that the driver needs to commit is in the
`Staged` of each task.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from rmq_spark.produce.messages import ProducedMessages, Producer, ProducerSettings
from rmq_spark.produce.queues import QueueSelector
from rmq_spark.produce.unique_ids import UniqueIds, own_address
from rmq_spark.write.target import TargetStore, WriteTarget, given_settings
from store_format.bookkeeping.staged_file import OWN_DIRECTORY, StagedFile
from store_format.commit.abandoned_staging import collect, discard
from store_format.commit.append import CommitResult, commit, commit_cluster
from store_format.commit.create_store import create_store, make_root, remove_place, remove_store
from store_format.commit.prepare_store import CommitOptions
from store_format.commit.staging import StagingWriter, begin_staging
from store_format.commit.unsupported import refuse_timer
from store_format.errors import StoreError
from store_format.files.read import entry_names
from store_format.message.encode import encode

_log = logging.getLogger("rmq_spark")

_BORN_PORT = 0
_STORE_PORT = 10911  # a broker's listenPort
_FRAME_SIZE_MAX = 16 << 20  # NettyDecoder: com.rocketmq.remoting.frameMaxLength of a client
_FRAME_HEAD_SIZE_MAX = 1 << 12  # of the answer to a pull
_ABORT_LOCK_TIMEOUT = 5.0  # seconds; what is not removed then is collected later


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task attempt staged, by store root, and the topics it needs: the number of queues of each."""

    files: Mapping[str, StagedFile]
    new_topics: tuple[tuple[str, int], ...]


# ---- in a task ---------------------------------------------------------------------------------------------


def stage_rows(
    target: WriteTarget, batches: Iterable[pa.RecordBatch], *, partition: int | None = None
) -> Staged:
    """Stages the rows of one task attempt. Memory is that of a batch. What fails leaves no file. Errors name
    the `partition`.
    """
    options = target.options
    producer = Producer(
        ProducerSettings(
            born_host=options.born_host or (own_address(), _BORN_PORT),
            topic=options.topic,
            property_columns=options.property_columns,
            compression=options.compression,
            strict_properties=options.strict_properties,
            message_size_max=options.max_message_size,
            store_host_v6=options.store_host is not None and len(options.store_host[0]) == 16,
            crc_property=any(store.crc_property for store in target.stores),
            file_sizes=tuple(store.settings.mapped_file_size_commit_log for store in target.stores),
        ),
        QueueSelector(target.routes, options.message_queue_selector),
        UniqueIds.of_this_process(),
        partition=partition,
    )
    queue_nums: dict[str, int] = {}  # by topic, in the order met
    with _Staging(target) as staging:
        for batch in batches:
            if batch.num_rows:
                messages = producer.produce(batch, _now_ms())
                for topic, needed in messages.queue_nums().items():
                    queue_nums[topic] = max(queue_nums.get(topic, 0), needed)
                staging.append(messages)
        files = staging.close()
    producer.report()
    created = target.routes.created(queue_nums)
    return Staged(files, tuple((name, config.write_queue_nums) for name, config in created.items()))


class _Staging:
    """The staged files of one task attempt, one in each store that gets messages; a context manager that
    removes them after an error.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target
        self._writers: dict[int, StagingWriter] = {}  # by place in `target.stores`

    def append(self, messages: ProducedMessages) -> None:
        places = [0] if len(self._target.stores) == 1 else np.unique(messages.store).tolist()
        for place in places:
            self._append(place, messages.of_store(place))

    def _append(self, place: int, messages: ProducedMessages) -> None:
        options, store = self._target.options, self._target.stores[place]
        queues, queue_index = messages.queues()
        refuse_timer(store.root, {topic for topic, _ in queues}, self._target.routes.stores[place].topics)
        columns = messages.columns(options.store_host or (own_address(), _STORE_PORT))
        units = encode(columns, crc_property=store.crc_property, message_size_max=options.max_message_size)
        hashes, owners = messages.key_hashes() if options.message_index_enable else (None, None)
        timed = messages.timed if messages.timed.any() else None
        writer = self._writer(place)
        writer.append(
            units,
            queues,
            queue_index,
            messages.tags_code,
            hashes,
            owners,
            timed,
            messages.parked_queues(),
            messages.body_crc,
        )

    def _writer(self, place: int) -> StagingWriter:
        if place not in self._writers:
            store = self._target.stores[place]
            if store.is_new and not self._target.is_begun:
                make_root(store.root)
            self._writers[place] = StagingWriter(
                store.root,
                self._target.write,
                sync=_is_sync(self._target),
                makes_directory=not self._target.is_begun,
            )
        return self._writers[place]

    def close(self) -> dict[str, StagedFile]:
        return {self._target.stores[place].root: writer.close() for place, writer in self._writers.items()}

    def __enter__(self) -> _Staging:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            return
        for writer in self._writers.values():
            writer.discard()
        _leave(self._target.stores)


# ---- on the driver -----------------------------------------------------------------------------------------


def begin_write(target: WriteTarget) -> WriteTarget:
    """Makes the directories that tasks stage in. Commit or abort takes them away, and a task that runs on
    after that stages nothing.

    Only for a write of which the driver sees every end: without it tasks make their directories themselves.
    """
    for store in target.open_stores:
        if store.is_new:
            make_root(store.root)
        begin_staging(store.root, target.write, sync=_is_sync(target))
    return replace(target, is_begun=True)


def commit_write(
    target: WriteTarget, staged: Sequence[Staged], key: tuple[str, int] | None, *, keeps_key: bool = False
) -> dict[str, CommitResult]:
    """Publishes what the tasks staged, in the order of the tasks; the result of each store that takes
    messages.

    `keeps_key`: it is a stream's, and never forgotten.
    """
    begun = time.perf_counter()
    options = target.options
    _log.info("writing %s", ", ".join(f"{name}={value}" for name, value in options.resolved()))
    members = {
        store.root: [each.files[store.root] for each in staged if store.root in each.files]
        for store in target.open_stores
    }
    commit_options = replace(_commit_options(target, staged), keeps_key=keeps_key)
    _warn_of_large_messages(
        options.path, max((file.unit_size_max for files in members.values() for file in files), default=0)
    )
    if target.is_cluster:
        watched = [store.root for store in target.stores if store.closed]
        results = commit_cluster(members, key=key, watched=watched, options=commit_options)
    else:
        results = {target.stores[0].root: _commit_one(target.stores[0], members, key, commit_options)}
    for root in members:
        try:
            collect(
                root, older_than=time.time() - options.staging_retention_ms / 1000, finished=[target.write]
            )
        except (
            StoreError,
            OSError,
        ) as error:  # the batch is published: failing now would make a job without a key write it again
            _log.warning(
                "%s: files of dead tasks could not be collected; the next write tries again: %s", root, error
            )
    _tell(
        target,
        results,
        key,
        sum(file.units for files in members.values() for file in files),
        time.perf_counter() - begun,
    )
    return results


def _warn_of_large_messages(path: str, size_max: int) -> None:
    if size_max > _FRAME_SIZE_MAX - _FRAME_HEAD_SIZE_MAX:
        _log.warning(
            "%s: a message of %d bytes is among those written, and consumers with default settings take none above %d: they stop at it. "
            "Start them with a larger com.rocketmq.remoting.frameMaxLength, or lower maxMessageSize",
            path,
            size_max,
            _FRAME_SIZE_MAX - _FRAME_HEAD_SIZE_MAX,
        )


def _commit_options(target: WriteTarget, staged: Sequence[Staged]) -> CommitOptions:
    options = target.options
    new_topics: dict[str, int] = {}
    for each in staged:
        for topic, queue_nums in each.new_topics:
            new_topics[topic] = max(new_topics.get(topic, 0), queue_nums)
    return CommitOptions(
        sync=_is_sync(target),
        message_index_enable=options.message_index_enable,
        new_topics=new_topics,
        lock_timeout=options.writer_lock_timeout_ms / 1000,
        settings=given_settings(options, target.stores[0].settings.broker_name),
        rebuild_lost_queues=options.rebuild_lost_queues,
        is_queue_size_given=options.new_store.mapped_file_size_consume_queue is not None,
    )


def _commit_one(
    store: TargetStore,
    members: Mapping[str, Sequence[StagedFile]],
    key: tuple[str, int] | None,
    options: CommitOptions,
) -> CommitResult:
    """A new store is made now, when all tasks have succeeded, and taken away again if nothing gets into it."""
    made = store.is_new and create_store(
        store.root, store.settings, timestamp=_now_ms(), exist_ok=True, lock_timeout=options.lock_timeout
    )
    try:
        return commit(store.root, members[store.root], key=key, options=options)
    except BaseException:
        if made:
            try:
                remove_store(store.root)
            except StoreError as error:
                _log.warning("%s: an empty store stays: %s", store.root, error)
        raise


def _tell(
    target: WriteTarget,
    results: Mapping[str, CommitResult],
    key: tuple[str, int] | None,
    messages: int,
    seconds: float,
) -> None:
    """One line for each batch, and a warning for each store that was passed over."""
    for store in target.stores:
        if store.closed:
            _log.warning(
                "%s (%s) takes no messages now and was passed over: %s",
                store.settings.broker_name,
                store.root,
                store.closed,
            )
    if not all(result.committed for result in results.values()):
        return  # `note_repeat` has said so
    ranges = ", ".join(
        f"{root} {result.start} to {result.stop}"
        for root, result in results.items()
        if result.stop > result.start
    )
    # each has that of all stores together
    synced = max((result.sync_seconds for result in results.values()), default=0.0)
    _log.info(
        "batch %s: %d messages into %s; committed in %.1f ms, of it %.1f ms waiting for the disk",
        key or "without a key",
        messages,
        ranges or target.options.path,
        seconds * 1000,
        synced * 1000,
    )


def abort_write(target: WriteTarget) -> None:
    """Removes what the tasks of this write staged, dead ones too, unless a commit that cannot be undone still
    needs it.
    """
    for store in target.open_stores:
        if OWN_DIRECTORY not in entry_names(store.root, missing_ok=True):
            continue
        try:
            if not discard(store.root, [target.write], lock_timeout=_ABORT_LOCK_TIMEOUT):
                _log.warning(
                    "%s: the commit is begun and will be completed by the next writer; a write without a key must not be run again",
                    store.root,
                )
        except StoreError as error:
            _log.warning(
                "%s: what was staged stays until it is old enough to be collected: %s", store.root, error
            )
    _leave(target.stores)


def _leave(stores: Iterable[TargetStore]) -> None:
    """Places that were no store before are as they were."""
    for store in stores:
        if store.is_new:
            remove_place(store.root, was_missing=store.was_missing)


def _is_sync(target: WriteTarget) -> bool:
    return target.options.flush_disk_type == "SYNC_FLUSH"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
