"""The two halves of a write, without Spark: tasks stage their rows, the driver commits what they staged.

A task needs the `WriteTarget` only, the driver the `Staged` of each task; both are plain values.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pyarrow as pa

from rmq_spark.produce.messages import ProducedMessages, Producer, ProducerSettings
from rmq_spark.produce.queues import QueueSelector
from rmq_spark.produce.unique_ids import UniqueIds, own_address
from rmq_spark.write.target import TargetStore, WriteTarget, given_settings
from rmq_spark.write.timer_wheel import put_late_in_wheel
from store_format.bookkeeping.identity import StagedFile
from store_format.commit.abandoned_staging import collect, discard
from store_format.commit.append import CommitResult, commit, commit_cluster
from store_format.commit.create_store import StoreDirectory
from store_format.commit.options import CommitOptions
from store_format.commit.staging import StagingWriter
from store_format.commit.unsupported import StoreRefusals
from store_format.errors import StoreError
from store_format.files.read import files_at
from store_format.files.write import saying_nothing_written
from store_format.message.encode import encode
from store_format.names import TIMER_TOPIC
from store_format.opened.store import OWN_DIRECTORY

_log = logging.getLogger("rmq_spark")

_BORN_PORT = 0
_STORE_PORT = 10911  # a broker's listenPort
_FRAME_SIZE_MAX = 16 << 20  # NettyDecoder: com.rocketmq.remoting.frameMaxLength of a client
_FRAME_HEAD_SIZE_MAX = 1 << 12  # the head of the answer to a pull
# Of small bodies, three of Spark's batches of 10,000 rows: a task takes 0.8 of the CPU time of one by one.
_JOINED_SIZE = 8 << 20
_ABORT_LOCK_TIMEOUT = 5.0  # seconds; files that are not removed by then are collected later


@dataclass(frozen=True, slots=True)
class Staged:
    """The staged files of one task attempt, by store root, and (topic, number of queues) of new topics.

    `first_timer_ms` is the earliest TIMER_OUT_MS of its messages; None without messages in the timer.
    """

    files: Mapping[str, StagedFile]
    new_topics: tuple[tuple[str, int], ...]
    first_timer_ms: int | None = None


# ---- in a task ---------------------------------------------------------------------------------------------


def stage_rows(
    target: WriteTarget, batches: Iterable[pa.RecordBatch], *, partition: int | None = None
) -> Staged:
    """Stages the rows of one task attempt, a batch at a time. Errors name the `partition`.

    A failed attempt leaves no file.
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
            transaction_group=options.producer_group if options.transaction == "half" else None,
            transaction_id=not any(store.is_old for store in target.stores),
            store_host_v6=options.store_host is not None and len(options.store_host[0]) == 16,
            crc_property=any(store.crc_property for store in target.stores),
            file_sizes=tuple(store.settings.mapped_file_size_commit_log for store in target.stores),
            confs=tuple(store.conf for store in target.stores),
        ),
        QueueSelector(target.routes, options.message_queue_selector),
        UniqueIds.of_this_process(),
        partition=partition,
    )
    queue_nums: Counter[str] = Counter()  # by topic, in the order met
    timer_ms: list[int] = []
    with saying_nothing_written(), _Staging(target) as staging:
        for batch in _joined(batches):
            messages = producer.produce(batch, _now_ms())
            queue_nums |= Counter(messages.queue_nums())  # the larger number
            if messages.first_timer_ms is not None:
                timer_ms.append(messages.first_timer_ms)
            staging.append(messages)
        files = staging.close()
    producer.report()
    created = target.routes.created(queue_nums)
    new_topics = tuple((name, config.write_queue_nums) for name, config in created.items())
    return Staged(files, new_topics, min(timer_ms, default=None))


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches with rows. Small ones with the same columns are joined, up to `_JOINED_SIZE` bytes.

    The first one comes alone, as soon as it is there: an error that all rows have ends the task then.
    """
    filled = (batch for batch in batches if batch.num_rows)
    yield from islice(filled, 1)
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in filled:
        if held and (size + batch.nbytes > _JOINED_SIZE or batch.schema != held[0].schema):
            yield _one_batch(held)
            held, size = [], 0
        held.append(batch)
        size += batch.nbytes
    if held:
        yield _one_batch(held)


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class _Staging:
    """The staged files of one task attempt, one in each store that gets messages.

    A context manager that removes the files after an error.
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
        StoreRefusals(store.opened).refuse_timer(
            {topic for topic, _ in queues}, self._target.routes.stores[place].topics
        )
        columns = messages.columns(options.store_host or (own_address(), _STORE_PORT))
        hashes, key_ends = messages.key_hashes() if options.message_index_enable else (None, None)
        self._writer(place).append(
            encode(columns, crc_property=store.crc_property, message_size_max=options.max_message_size),
            queues,
            queue_index,
            messages.tags_code,
            hashes,
            key_ends,
            messages.timed if messages.timed.any() else None,
            messages.parked_queues(),
            messages.body_crc,
        )

    def _writer(self, place: int) -> StagingWriter:
        if place not in self._writers:
            store = self._target.stores[place]
            if store.is_new and not self._target.is_begun:
                StoreDirectory(store.root).make()
            self._writers[place] = StagingWriter(
                store.opened,
                self._target.write,
                sync=is_sync(self._target),
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
        _restore_places(self._target.stores)


# ---- on the driver -----------------------------------------------------------------------------------------


def begin_write(target: WriteTarget) -> WriteTarget:
    """Creates the directories in which tasks stage.

    Commit or abort removes them, so that a task that still runs then stages nothing. This is only for writes
    that always end with commit or abort on the driver; for others, tasks create their directories.
    """
    for store in target.open_stores:
        if store.is_new:
            StoreDirectory(store.root).make()
        StagingWriter.begin(store.opened, target.write, sync=is_sync(target))
    return replace(target, is_begun=True)


def commit_write(
    target: WriteTarget, staged: Sequence[Staged], key: tuple[str, int] | None, *, keeps_key: bool = False
) -> dict[str, CommitResult]:
    """Commits what the tasks staged, in the order of the tasks; returns the result of each open store.

    With `keeps_key` the ledger keeps `key` for ever, as a stream needs.
    """
    begun = time.perf_counter()
    options = target.options
    _log.info("writing %s", ", ".join(f"{name}={value}" for name, value in options.resolved()))
    members = {
        store.root: [each.files[store.root] for each in staged if store.root in each.files]
        for store in target.open_stores
    }
    settings = replace(commit_options(target, staged), keeps_key=keeps_key)
    _warn_of_large_messages(
        options.path, max((file.unit_size_max for files in members.values() for file in files), default=0)
    )
    if target.is_cluster:
        watched = [store.root for store in target.stores if store.closed]
        results = commit_cluster(members, key=key, watched=watched, options=settings)
    else:
        results = {target.stores[0].root: _commit_one(target.stores[0], members, key, settings)}
    timer_ms = [each.first_timer_ms for each in staged if each.first_timer_ms is not None]
    for root, result in results.items() if timer_ms else ():
        if (TIMER_TOPIC, 0) in result.queues:
            put_late_in_wheel(root, min(timer_ms), settings)
    _collect_staging(target, members)
    messages = sum(file.units for files in members.values() for file in files)
    _log_commit(target, results, key, messages, time.perf_counter() - begun)
    return results


def _collect_staging(target: WriteTarget, roots: Iterable[str]) -> None:
    """Removes the staged files of this write, and of tasks that died long ago."""
    older_than = time.time() - target.options.staging_retention_ms / 1000
    for root in roots:
        try:
            collect(root, older_than=older_than, finished=[target.write])
        except (StoreError, OSError) as error:
            # not an error: the messages are committed, and a job without a key would write them again
            _log.warning(
                "%s: staged files of dead tasks could not be removed; the next write tries again: %s",
                root,
                error,
            )


def _warn_of_large_messages(path: str, size_max: int) -> None:
    if size_max > _FRAME_SIZE_MAX - _FRAME_HEAD_SIZE_MAX:
        _log.warning(
            "%s: the write has a message of %d bytes. Consumers with default settings accept at most %d "
            "bytes, and stop at this message. Start them with a larger com.rocketmq.remoting.frameMaxLength, "
            "or lower maxMessageSize",
            path,
            size_max,
            _FRAME_SIZE_MAX - _FRAME_HEAD_SIZE_MAX,
        )


def commit_options(target: WriteTarget, staged: Sequence[Staged]) -> CommitOptions:
    """How the driver commits: by the options of the write."""
    options = target.options
    new_topics: Counter[str] = Counter()
    for each in staged:
        new_topics |= Counter(dict(each.new_topics))  # the larger number
    return CommitOptions(
        sync=is_sync(target),
        message_index_enable=options.message_index_enable,
        new_topics=new_topics,
        lock_timeout=options.writer_lock_timeout_ms / 1000,
        settings=given_settings(options, target.stores[0].settings.broker_name),
        unfiled_queues=options.unfiled_queues,
        lost_batch=options.txn_lost_batch,
        ignore_missing_stores=options.ignore_missing_stores,
        is_queue_size_given=options.new_store.mapped_file_size_consume_queue is not None,
        conf=None if options.broker_conf is None else target.stores[0].conf,  # None: each store's own
    )


def _commit_one(
    store: TargetStore,
    members: Mapping[str, Sequence[StagedFile]],
    key: tuple[str, int] | None,
    options: CommitOptions,
) -> CommitResult:
    """Commits to a single store. A new store is created now, and removed again if the commit fails."""
    made = store.is_new and StoreDirectory(store.root).create(
        store.settings, timestamp=_now_ms(), exist_ok=True, lock_timeout=options.lock_timeout
    )
    try:
        return commit(store.root, members[store.root], key=key, options=options)
    except BaseException:
        if made:
            try:
                StoreDirectory(store.root).remove_store()
            except StoreError as error:
                _log.warning("%s: the new store could not be removed and stays, empty: %s", store.root, error)
        raise


def _log_commit(
    target: WriteTarget,
    results: Mapping[str, CommitResult],
    key: tuple[str, int] | None,
    messages: int,
    seconds: float,
) -> None:
    """Logs one line for the batch, and a warning for each store that was left out."""
    for store in target.stores:
        if store.closed:
            _log.warning(
                "%s (%s) takes no messages now and was left out: %s",
                store.settings.broker_name,
                store.root,
                store.closed,
            )
    if not all(result.committed for result in results.values()):
        return  # `note_repeat` has logged the repeated batch
    ranges = ", ".join(
        f"{root} {result.start} to {result.stop}"
        for root, result in results.items()
        if result.stop > result.start
    )
    # stores wait for the disk at the same time
    synced = max((result.sync_seconds for result in results.values()), default=0.0)
    _log.info(
        "batch %s: %d messages into %s; committed in %.1f ms, of which %.1f ms waiting for the disk",
        key or "without a key",
        messages,
        ranges or target.options.path,
        seconds * 1000,
        synced * 1000,
    )


def abort_write(target: WriteTarget) -> None:
    """Removes all staged files of this write, unless a commit that cannot be undone still needs them."""
    for store in target.open_stores:
        if OWN_DIRECTORY not in files_at(store.root).names(store.root, missing_ok=True):
            continue
        try:
            if not discard(store.root, [target.write], lock_timeout=_ABORT_LOCK_TIMEOUT):
                _log.warning(
                    "%s: the commit has begun, and the next writer completes it; do not repeat this write "
                    "unless it has a key (txnAppId)",
                    store.root,
                )
        except StoreError as error:
            _log.warning("%s: staged files stay until stagingRetention has passed: %s", store.root, error)
    _restore_places(target.stores)


def _restore_places(stores: Iterable[TargetStore]) -> None:
    """Restores places that were not a store before the write."""
    for store in stores:
        if store.is_new:
            StoreDirectory(store.root).restore(was_missing=store.was_missing)


def is_sync(target: WriteTarget) -> bool:
    return target.options.flush_disk_type == "SYNC_FLUSH"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
