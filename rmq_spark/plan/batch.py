"""The plan of a batch read: which queues are read, from which offset to which, and in which split.

Planning reads only the first and last entries of each queue. For one key or message id the index files say
which queue offsets to read; tasks read and test each message as in any other read. Options that do not match
the stores, such as a misspelt topic or an offset outside of a queue, are an error here, before any task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.options.option import Earliest, Latest
from rmq_spark.options.read_options import WHOLE_QUEUE, ReadOptions
from rmq_spark.plan.garbage import collector_paused
from rmq_spark.plan.splits import Plan, StoreSlices, available_cores, make_splits, splits_of_clients
from rmq_spark.plan.starts import (
    Starts,
    open_stores,
    refuse_unknown,
    stated_offset,
    warn_of_deleted_times,
    warn_of_no_match,
)
from store_format import Queue
from store_format.consumequeue.slices import QueueSlice
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, OptionError, StorePermissionError
from store_format.files import paths
from store_format.files.read import all_answered, one_look
from store_format.names import QueueKey, is_light_queue
from store_format.read.choice import MessageChoice
from store_format.read.store import Store, find_queues
from store_format.search.look_up import How, bytes_to_scan, look_up

_log = logging.getLogger(__name__)

_SCAN_BYTES_MAX = 1 << 30  # takes about a second of planning; the tasks scan more than that


@collector_paused()
@all_answered()
@one_look()
def plan(options: ReadOptions, *, cores: int | None = None) -> Plan:
    """Looks at the stores once and divides the read into splits for `cores` tasks (default: this machine's).

    Raises StoreNotFoundError for a path without a store, OptionError for a topic, queue or option that does
    not match the stores, and OffsetOutOfRangeError for an offset outside of its queue, unless failOnDataLoss
    is false.
    """
    stores = open_stores(options)
    starts = Starts(stores, options)
    planning = _Planning(options, starts)
    found = [planning.store_slices(store) for store in stores]
    if options.choice.has_topics or not planning.reads_all:  # else the options name nothing
        refuse_unknown(stores, options, [*planning.read, *starts.left_out])
    warn_of_no_match(stores, options, [*planning.read, *starts.left_out], "The read has no rows")
    if options.group is None:
        warn_of_deleted_times(planning.begins, options)
    if starts.clients is not None:
        return Plan(splits_of_clients(found, starts.clients), planning.lost)
    return Plan(make_splits(found, options, cores or available_cores()), planning.lost)


@dataclass(slots=True)
class _Planning:
    """Collects, store by store, the queues that are `read`, where the options lead, and the number of `lost`
    messages.
    """

    options: ReadOptions
    starts: Starts
    read: list[MessageQueue] = field(default_factory=list)
    begins: list[tuple[Queue, int]] = field(default_factory=list)
    lost: int = 0
    reads_all: bool = field(init=False)  # from the beginning of each queue to its end
    takes_whole: bool = field(init=False)  # and all messages, in splits of any queues

    def __post_init__(self) -> None:
        edges = self.options.starting, self.options.ending
        is_stated = self.options.group is not None or any(each.entries for each in edges)
        self.reads_all = not is_stated and [each.default for each in edges] == [Earliest(), Latest()]
        has_key = (self.options.choice.key, self.options.choice.message_id) != (None, None)
        self.takes_whole = self.reads_all and not has_key and self.options.split_by != WHOLE_QUEUE

    def store_slices(self, store: Store) -> StoreSlices:
        there = find_queues(store, self.options.choice)
        found = StoreSlices(store, there.cuts)
        if self.takes_whole and not any(map(paths.is_remote, (store.path, *store.commit_log_paths))):
            apart = [queue for queue in there.filed.others.values() if queue.parts]
            found.whole = there.filed.without([(queue.topic, queue.queue_id) for queue in apart])
            for each in apart:
                found.slices += each.piece(each.min_offset, each.max_offset).by_part()
            if self.options.choice.has_topics:
                self.read += [MessageQueue(topic, store.broker_name, number) for topic, number in there.filed]
        else:
            self._add(there.queues, found)
        for queue in filter(self.starts.reads, there.scanned):
            found.add(queue, self._slice(queue))
        return found

    def _add(self, queues: Sequence[Queue], found: StoreSlices) -> None:
        by_key = _offsets_of_key(found.store, queues, self.options)
        for queue in filter(self.starts.reads, queues):
            piece = self._slice(queue)
            if by_key is not None:
                found.slices += narrowed(piece, by_key.get(queue.key, ()))
            elif piece.start < piece.stop:
                found.slices += piece.by_part()

    def _slice(self, queue: Queue) -> QueueSlice:
        """The offsets of the queue between the `starting…` and `ending…` options, cut to those that exist."""
        options, there = self.options, queue.range
        self.read.append(MessageQueue.of(queue))
        if self.reads_all:
            return QueueSlice(there, there.min_offset, there.max_offset)
        name = MessageQueue.of(queue)
        start_option, start = self.starts.of(queue)
        self.begins.append((queue, start))
        stop_option = options.ending.option
        stop = stated_offset(queue, options.ending.for_queue(*name), options.mode)
        low, high = there.served_from, there.max_offset
        if low <= start <= stop <= high:
            return there.piece(max(start, there.min_offset), max(stop, there.min_offset))
        for option, offset in ((start_option, start), (stop_option, stop)):
            if not low <= offset <= high:
                message = f"{name}: {option} {offset} is not in the queue, which holds {low} to {high}"
                if options.fail_on_data_loss:
                    advice = "correct it"
                    if options.group is not None and option == start_option and offset > high:
                        message += (
                            f": its offsets went back by {offset - high} (is the store an older copy, or was "
                            "the topic deleted and created again?)"
                        )
                        advice = f"move group {options.group.group} with rmqlog offsets"
                    raise OffsetOutOfRangeError(
                        f"{message}; {advice}, or set failOnDataLoss=false to read the offsets that exist"
                    )
                if offset < low:
                    lost = max(min(low, max(stop, offset)) - offset, 0) if option == start_option else 0
                    self.lost += lost
                    _log.warning("%d messages lost: %s", lost, message)
                else:
                    _log.warning("reading the offsets that exist: %s", message)
        start, stop = min(max(start, low), high), min(max(stop, low), high)
        if start > stop and options.group is not None:
            start = stop  # the group has already consumed the messages before the end of the read
        if start > stop:
            raise OptionError(
                f"{name}: {start_option} starts at offset {start}, after {stop_option}, which ends at {stop}"
            )
        return there.piece(start, stop)


# ---- one key or message id ---------------------------------------------------------------------------------


def _offsets_of_key(
    store: Store, queues: Sequence[Queue], options: ReadOptions
) -> Mapping[QueueKey, list[int]] | None:
    """The queue offsets of the messages with the `key` or `messageId` of the options, by queue.

    None means that all messages have to be read. That is so for light queues (%LMQ%), because the index knows
    a message by the topic it is stored under, and in PERMISSIVE, which returns damaged messages, too.
    """
    key, message_id = options.choice.key, options.choice.message_id
    if (key is None and message_id is None) or not queues or options.permissive:
        return None
    topics = {queue.topic for queue in queues}
    if any(is_light_queue(topic) for topic in topics):
        return None
    choice = MessageChoice(tuple(topics) if len(topics) == 1 else (), key=key, message_id=message_id)
    how = How(
        ("topic", "queueId", "queueOffset"),
        verify_crc=options.verify_crc,
        hash_slot_num=options.max_hash_slot_num,
        index_num=options.max_index_num,
    )
    try:
        if bytes_to_scan(store, choice, how) > _SCAN_BYTES_MAX:
            return None
        found = look_up(store, choice, how)
    except (CorruptStoreError, StorePermissionError) as error:
        # maybe in a topic that is not read: the tasks raise it if they meet it
        _log.info("%s: reading all messages, because the index cannot be used: %s", store.path, error)
        return None
    _log.info("%s: %d messages found by %s: %s", store.path, found.table.num_rows, found.how, found.searched)
    offsets: dict[QueueKey, list[int]] = {}
    for row in found.table.select(["topic", "queueId", "queueOffset"]).to_pylist():
        offsets.setdefault((row["topic"], row["queueId"]), []).append(row["queueOffset"])
    return offsets


def narrowed(piece: QueueSlice, offsets: Sequence[int]) -> Iterator[QueueSlice]:
    """The parts of a slice that hold the offsets: one part for each run of consecutive offsets."""
    wanted = sorted({offset for offset in offsets if piece.start <= offset < piece.stop})
    start = 0
    for i in range(1, len(wanted) + 1):
        if i == len(wanted) or wanted[i] != wanted[i - 1] + 1:
            yield piece._replace(start=wanted[start], stop=wanted[i - 1] + 1)
            start = i
