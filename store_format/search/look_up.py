"""What `MessageStore.find` does: by key, by either kind of id, or by tags and time; and its result (`Found`).

Each question takes the shortest way that finds all messages. An offset message id contains the place of the
message. A key or a UNIQ_KEY is looked up in the index files for the part of the commitlog that they cover,
and scanned for in the rest. Each candidate is checked against its own topic and key, so that a hash collision
gives no wrong message. What no trustworthy index file covers is scanned, so that no message is missed. Both
apply the same test of topic, key and time, to many messages at once. Without key and id, consume queues point
to the messages with the tags.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.bookkeeping.journal import CommitState, StoreState
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, UnitRun
from store_format.consumequeue.database import QueueDatabase
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import list_queues
from store_format.display.units import size_text
from store_format.errors import CorruptStoreError, OptionError, UnsupportedFormatError
from store_format.files.read import all_answered
from store_format.index.file import index_key, key_hash
from store_format.index.query import Coverage, plan_coverage
from store_format.layouts import OFFSET_MAX
from store_format.message import sysflag
from store_format.message.columns import DecodeOptions, arrow_schema
from store_format.message.decode import decode
from store_format.message.locate import BadUnit, UnitRefs, Units, inner_batches, locate
from store_format.message.properties import PropertyTable
from store_format.metadata.read import Checkpoint, read_checkpoint, read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import SCHEDULE_TOPIC, QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.read.choice import MessageChoice
from store_format.read.chosen_messages import in_time, ranges_in_time, read_chosen, with_body
from store_format.read.log_reader import without_damaged
from store_format.read.static_topics import with_logical
from store_format.read.store import Store
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.gone import QueueProofs
from store_format.survey.snapshot import Snapshot

if TYPE_CHECKING:
    from store_format.index.tiered import IndexedLog

# Store host and physical offset in hex (MessageDecoder.createMessageId): 4 or 16 bytes of address, 4 of port,
# 8 of offset.
_OFFSET_ID = re.compile(r"(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]{40})([0-9A-Fa-f]{16})\Z")
_log = logging.getLogger(__name__)
_HELPERS = ("topic", "queueId", "physicalOffset", "queueOffset", "msgId", "tags", "storeTimestampMs")

_LOST = "lost messages"  # a search has warned of them
_LOOK_SIZE = 8  # total size and magic code of a message, never zero
_PLACE = ("topic", "queueId", "queueOffset", "physicalOffset", "storeTimestampMs")
_ORDER_COLUMNS = ("physicalOffset", "queueOffset")


# ---- what was found ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search has read.

    `topics` are the topics that were looked up in `index_files`. `unused` has (index file, reason) pairs.
    `candidates` is the number of messages that the index named. `scanned` are physical offsets [start, stop)
    of the commitlog, `bytes_scanned` in all; a scan skipped `damaged_bytes` of them. `lost` messages are gone
    with missing parts of the commitlog. `damaged_at` are the physical offsets of damaged messages to which
    the index, or the id, leads.
    """

    topics: tuple[str, ...]
    index_files: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]
    candidates: int
    scanned: tuple[tuple[int, int], ...]
    bytes_scanned: int
    damaged_bytes: int
    lost: int = 0
    damaged_at: tuple[int, ...] = ()

    @property
    def is_partial(self) -> bool:
        """Whether damage may hide messages that match."""
        return bool(self.damaged_bytes or self.lost or self.damaged_at)

    def __str__(self) -> str:
        return self._text(f"{self.bytes_scanned} bytes")

    def for_people(self) -> str:
        """The sentence with sizes in units, for cards."""
        return self._text(size_text(self.bytes_scanned))

    def _text(self, scanned: str) -> str:
        files = f"{len(self.index_files)} index file{'s' * (len(self.index_files) != 1)}"
        candidates = f"{self.candidates} candidate{'s' * (self.candidates != 1)}"
        parts = [f"{files} ({candidates})", f"{scanned} of the commitlog scanned"]
        if self.unused:
            parts.append(f"{len(self.unused)} index files not used, the first because {self.unused[0][1]}")
        return "; ".join([*parts, *self.missing_parts()])

    def missing_parts(self) -> list[str]:
        """What may be missing from the answer, a part of a sentence each."""
        parts = [self._damaged_text()] if self.damaged_at else []
        if self.damaged_bytes:
            parts.append(f"{self.damaged_bytes} bytes are damaged and may have held more")
        if self.lost:
            parts.append(f"{self.lost} messages are lost with missing parts of the commitlog")
        return parts

    @staticmethod
    def together(searches: Sequence[Searched]) -> Searched:
        """What several searches of a store have read; bytes that each of them scanned count once for each."""
        return Searched(
            tuple(sorted({topic for each in searches for topic in each.topics})),
            tuple(dict.fromkeys(name for each in searches for name in each.index_files)),
            tuple(dict.fromkeys(reason for each in searches for reason in each.unused)),
            sum(each.candidates for each in searches),
            tuple(dict.fromkeys(part for each in searches for part in each.scanned)),
            sum(each.bytes_scanned for each in searches),
            max((each.damaged_bytes for each in searches), default=0),
            max((each.lost for each in searches), default=0),
            tuple(sorted({place for each in searches for place in each.damaged_at})),
        )

    def _damaged_text(self) -> str:
        first, more = self.damaged_at[0], len(self.damaged_at) - 1
        who = "the index names a message with this key" if self.index_files else "the id names a message"
        others = f"; {more} more of its places {'is' if more == 1 else 'are'} damaged" if more else ""
        return f"{who} at physical offset {first}, which is damaged{others}"


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """The messages that a search found, and what it read.

    `table` has the messages in commitlog order, with `physicalOffset` among the columns. `how` is "index"
    (only index files and the messages at their edges were read), "scan", "index and scan", "offset" for an
    offset message id, or "consume queue" for a search without key and id. `searched` has the numbers.
    """

    table: pa.Table
    how: str
    searched: Searched

    def to_pandas(self) -> Any:  # Any: a pandas.DataFrame; pandas has no types here
        """Returns the messages as a pandas DataFrame: `table.to_pandas()`. Needs pandas."""
        return self.table.to_pandas()

    def _repr_html_(self) -> str:
        from store_format.display.page import PageSpace, card, fact, facts, table, text, wide_last

        lines = [("found by", text(self.how)), ("searched", text(self.searched.for_people(), 500))]
        found = self.table.select(wide_last(self.table.schema.names))
        rows = table(found.to_batches(), found.schema, PageSpace(), total=found.num_rows)
        title = f"{self.table.num_rows:,} message{'s' * (self.table.num_rows != 1)}"
        return card(title, "found", [facts(starmap(fact, lines)), rows]).source


# ---- the search --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class How:
    """How rows are decoded and how far the index is trusted.

    `use_index=False` scans the whole commitlog: index files have no checksum, and a file that lost a link
    hides the messages behind that link. Nor does an index file's header show that a broker ran with
    messageIndexEnable=false for a while and then continued the same file. `on_scanned` is called during a
    scan with the bytes scanned so far and the bytes to scan at most. Searches with the same `warned` warn of
    the same damage once.
    """

    columns: tuple[str, ...]
    on_damage: str = "FAILFAST"
    verify_crc: bool = True
    use_index: bool = True
    hash_slot_num: int | None = None
    index_num: int | None = None
    on_scanned: Callable[[int, int], object] | None = None
    warned: set[str] = field(default_factory=set)

    @property
    def tolerance(self) -> Tolerance:
        return Tolerance(self.on_damage, warned=self.warned)


@all_answered()
def look_up(store: Store, choice: MessageChoice, how: How) -> Found:
    """The messages in commitlog order, with `physicalOffset` among the columns, and how they were found.

    Warns of messages that are lost with missing parts of the commitlog: the search may have been for one.
    Raises OptionError for a key that no message can have.
    """
    store = replace(store, log=store.log.relisted())  # with the commitlog files that exist now
    found = _found(store, choice, how)
    if (choice.key, choice.message_id) != (None, None):
        found = _with_own(store, found, choice, how)
    proofs = QueueProofs(store.opened, store.log)
    gone = (proofs.find_gone if _LOST in how.warned else proofs.warn_of_gone)(store.state)
    how.warned.update([_LOST] if gone else [])
    lost = sum(each.count for each in gone)
    return replace(found, searched=replace(found.searched, lost=lost)) if lost else found


def _found(store: Store, choice: MessageChoice, how: How) -> Found:
    if choice.message_id is not None:
        placed = _OFFSET_ID.match(choice.message_id)
        found = None if placed is None else _at_offset(store, choice, how, int(placed[1], 16))
        if found is not None:
            return found
    elif choice.key is None:
        return _by_queues(store, choice, how)
    found = _by_key(store, choice, replace(how, columns=_names(how, choice)))
    table = found.table
    if compacted := store.compacted_topics:  # `_with_own`
        table = table.filter(pc.invert(pc.is_in(table["topic"], value_set=pa.array(sorted(compacted)))))
    table = _with_queue_times(store, _rows_wanted(table, choice))
    return replace(found, table=table.select(_shown(how)))


def bytes_to_scan(store: Store, choice: MessageChoice, how: How) -> int:
    """Bytes of the commitlog that no index file covers for this search; preallocated files do not count."""
    if choice.key is None and choice.message_id is None:
        return 0
    coverage, _, _ = _cover(store, store.state, _key_of(choice), choice, how)
    return _scan_size(store.log, coverage.uncovered)


def _names(how: How, choice: MessageChoice) -> tuple[str, ...]:
    conditions = (("properties", choice.where), ("body", choice.body))
    looked_at = (name for name, given in conditions if given is not None)
    return tuple(dict.fromkeys((*how.columns, *_HELPERS, *looked_at)))


def _shown(how: How) -> list[str]:
    return list(dict.fromkeys((*how.columns, "physicalOffset")))


def _rows_wanted(table: pa.Table, choice: MessageChoice) -> pa.Table:
    """The rows that meet the conditions of which the index knows nothing.

    Without a topic, system topics are searched, too.
    """
    keep = pc.is_valid(table["physicalOffset"])
    if choice.has_topics:
        topics = table["topic"].to_pylist()
        keep = pc.and_(keep, pa.array([choice.chooses_topic(topic) for topic in topics], pa.bool_()))
    if choice.queue_ids:
        keep = pc.and_(keep, pc.is_in(table["queueId"], value_set=pa.array(choice.queue_ids, pa.int32())))
    if choice.message_id is not None:
        keep = pc.and_(keep, pc.equal(table["msgId"], choice.message_id))
    if choice.tags is not None:
        keep = pc.and_(keep, pc.is_in(table["tags"], value_set=pa.array(list(choice.tags), pa.string())))
    if choice.where is not None:
        properties = table["properties"].combine_chunks()
        mask = choice.where.mask(
            len(properties), lambda name: pc.map_lookup(properties, pa.scalar(name), "last")
        )
        keep = pc.and_(keep, mask)
    table = table.filter(keep)
    return table if choice.body is None else with_body(table, choice.body)


# ---- in the files of queues --------------------------------------------------------------------------------


def _with_own(store: Store, found: Found, choice: MessageChoice, how: How) -> Found:
    """What was found by key or id in the commitlog, with the messages of queues that have files of their own:
    of compacted topics all, of tiered storage those before the messages of the commitlog.
    """
    compacted = store.compacted_topics
    if not compacted and store.tiered_path is None:
        return found

    def may_have_own(topic: str) -> bool:
        if choice.has_topics and not choice.chooses_topic(topic):
            return False
        return topic in compacted or store.tiered_path is not None

    parts = [
        (queue, part)
        for queue in store.queues(may_have_own)
        if choice.chooses_queue(queue.topic, store.broker_name, queue.queue_id)
        for part in queue.range.parts
        if part.own is not None or queue.topic in compacted
    ]
    indexed = _indexed(store, {queue.topic for queue, _ in parts} - compacted, choice, how)
    ranges = [
        (queue, *each)
        for queue, part in parts
        for each in _ranges_with_key(store, part, indexed.get(queue.key), choice.message_id)
    ]
    names = _names(how, choice)
    rows = list(read_chosen(ranges, names, how.tolerance, choice, verify_crc=how.verify_crc))
    own = _in_order(pa.Table.from_batches(rows, arrow_schema(names))).select(_shown(how))
    return replace(found, table=pa.concat_tables([found.table, own]))


def _indexed(
    store: Store, topics: Collection[str], choice: MessageChoice, how: How
) -> dict[QueueKey, IndexedLog]:
    """What the index files of tiered storage have of the key, as far as they can be used."""
    if store.tiered_path is None or not how.use_index:
        return {}
    from store_format.consumequeue.tiered import TieredDirectory  # most stores have none
    from store_format.index.tiered import indexed_logs
    from store_format.metadata.tiered import TieredMetadata

    ids, key = TieredMetadata.read(store.opened).topic_ids, _key_of(choice)
    known = {ids[topic]: topic for topic in topics if topic in ids}
    files = TieredDirectory.find(store.tiered_path, store.broker_name).index_files()
    try:
        hashes = {number: key_hash(index_key(topic, key)) for number, topic in known.items()}
        found = indexed_logs(files, hashes)
    except CorruptStoreError as error:
        _log.warning("%s: the index files of tiered storage are not used", error)
        return {}
    return {(known[number], queue_id): each for (number, queue_id), each in found.items()}


def _ranges_with_key(
    store: Store, part: QueueRange, indexed: IndexedLog | None, message_id: str | None
) -> Iterator[tuple[int, int]]:
    """The queue offsets [start, stop) of a part that may have a key or an id: those that index files name, or
    an offset message id, and those before and behind what the files cover.
    """
    low, high = part.min_offset, part.max_offset
    if indexed is None or part.own is None:
        yield low, high
        return
    log = part.own.log(store.files)
    first, last = log.queue_offset_at(indexed.first), log.queue_offset_at(indexed.last)
    if last < 0 or (first < 0 and indexed.first >= log.min_offset):
        yield low, high  # they are of another log
        return
    placed = None if message_id is None else _OFFSET_ID.match(message_id)
    candidates = (*indexed.candidates, *([] if placed is None else [int(placed[1], 16)]))
    yield low, min(max(first, low), high)
    for offset in sorted({log.queue_offset_at(place) for place in candidates}):
        if max(low, first) <= offset < min(last, high):
            yield offset, offset + 1
    yield max(last, low), high


# ---- by place ----------------------------------------------------------------------------------------------


def _at_offset(store: Store, choice: MessageChoice, how: How, offset: int) -> Found | None:
    """The message at a physical offset, if it has the id of the choice.

    None if it has another id: then the choice's id may be a UNIQ_KEY.
    """
    log: CommitLog = store.log
    file = log.file_at(offset)
    stop = Snapshot.find_log_end(store.opened, log, store.state)
    if file is None or (stop is not None and offset >= stop) or not log.has_message_at(offset):
        return None
    _, refs = next(log.refs_at(file, np.array([offset])))
    names = tuple(dict.fromkeys((*_names(how, choice), "offsetMsgId")))
    contradictions = Contradictions(store.opened, log)
    units, _ = locate(refs, verify_crc=False)
    refs = without_damaged(refs, units, contradictions, how.tolerance)
    options = with_logical(DecodeOptions(names, how.verify_crc), store.opened, store.broker_name)
    batch, bad = decode(refs, options, store.broker_name)
    how.tolerance.drop(bad)
    table = pa.Table.from_batches([batch], arrow_schema(names))
    assert choice.message_id is not None
    table = table.filter(pc.equal(table["offsetMsgId"], choice.message_id.upper()))
    if not table.num_rows and not bad and len(refs):
        return None
    table = _rows_wanted(in_time(table, choice), replace(choice, message_id=None))
    table = _with_queue_times(store, table).select(_shown(how))
    damaged_at = (offset,) if bad or not len(refs) else ()
    return Found(table, "offset", Searched((), (), (), 1, (), 0, 0, damaged_at=damaged_at))


def _with_queue_times(store: Store, table: pa.Table) -> pa.Table:
    """The rows; `tagsCode` of a delayed message, its delivery time, is what its queue says. If the queue is
    lost, messageDelayLevel of the store counts, as in the view `delayed`.
    """
    if "tagsCode" not in table.schema.names or SCHEDULE_TOPIC not in pc.unique(table["topic"]).to_pylist():
        return table
    codes, rows = table["tagsCode"].to_pylist(), enumerate(table.select(_PLACE).to_pylist())
    waiting = {i: row for i, row in rows if row["topic"] == SCHEDULE_TOPIC}
    taken = Snapshot.take(store.opened, store.log, store.state, SCHEDULE_TOPIC.__eq__, lambda error: None)
    filed = {queue.queue_id: queue for queue in store.queues_of(taken)}
    ranges = [
        (filed[row["queueId"]], row["queueOffset"], row["queueOffset"] + 1)
        for row in waiting.values()
        if row["queueId"] in filed
    ]
    times, tolerance = dict[int, int | None](), Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    for batch in read_chosen(ranges, ("physicalOffset", "tagsCode"), tolerance, MessageChoice()):
        times |= zip(batch["physicalOffset"].to_pylist(), batch["tagsCode"].to_pylist(), strict=True)
    conf = broker_conf_of(store.opened)
    for i, row in waiting.items():
        codes[i], delay = times.get(row["physicalOffset"]), conf.delay_ms(row["queueId"] + 1)
        if codes[i] is None and delay is not None:
            codes[i] = min(row["storeTimestampMs"] + delay, OFFSET_MAX)
    place = table.schema.get_field_index("tagsCode")
    return table.set_column(place, "tagsCode", pa.array(codes, pa.int64()))


# ---- by tags and time --------------------------------------------------------------------------------------


def _by_queues(store: Store, choice: MessageChoice, how: How) -> Found:
    """The messages of queues, between the offsets that the broker's search by time gives."""
    names = _names(how, choice)
    chooses = choice.chooses_topic if choice.has_topics else lambda topic: not is_light_queue(topic)
    queues = [
        queue
        for queue in store.queues(chooses)
        if choice.chooses_queue(queue.topic, store.broker_name, queue.queue_id)
    ]
    ranges = ranges_in_time(queues, choice, on_damage=how.on_damage)
    batches = list(read_chosen(ranges, names, how.tolerance, choice, verify_crc=how.verify_crc))
    read = [max(stop - start, 0) for queue, start, stop in ranges if queue.scanned is None]
    scanned = tuple(  # one walk: the same range for all queues
        dict.fromkeys(
            (queue.store.log.min_offset, queue.scanned.physical_stop) for queue in queues if queue.scanned
        )
    )
    searched = Searched(
        tuple(sorted({queue.topic for queue in queues})),
        (),
        (),
        sum(read),
        scanned,
        sum(stop - start for start, stop in scanned),
        0,
    )
    table = _in_order(pa.Table.from_batches(batches, arrow_schema(names))).select(_shown(how))
    return Found(table, "scan" if scanned and not read else "consume queue", searched)


# ---- by key ------------------------------------------------------------------------------------------------


def _key_of(choice: MessageChoice) -> str:
    """The key to look for: that of the choice, or its id, which may be a UNIQ_KEY."""
    key, topic = choice.message_id if choice.key is None else choice.key, choice.one_topic
    assert key is not None, "a search by key has a key or an id"
    for name, text in (("key", key), ("topic", topic or "")):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise OptionError(f"{name} {text!r} is not valid Unicode, so no message has it")
    if topic is not None and is_light_queue(topic):
        raise OptionError(
            f"{topic} is a light queue: its messages are stored and indexed under another topic; "
            "give that topic, or no topic"
        )
    return key


def _by_key(store: Store, choice: MessageChoice, how: How) -> Found:
    """The messages with the key. The memory is that of the messages found.

    After a crash, nothing after the log's valid end counts, and no index file that a broker would delete when
    it starts.
    """
    before = CommitState.read(store.opened)
    found = _search(store, choice, how if before.base is None else replace(how, use_index=False))
    # While our commit writes index entries, slots point to entries that the header does not count yet.
    unchanged = CommitState.read(store.opened) == before
    return found if unchanged else _search(store, choice, replace(how, use_index=False))


def _search(store: Store, choice: MessageChoice, how: How) -> Found:
    log, state, key = store.log, store.state, _key_of(choice)
    coverage, topics, stop = _cover(store, state, key, choice, how)
    names = tuple(dict.fromkeys((*how.columns, *_ORDER_COLUMNS)))
    options = with_logical(DecodeOptions(names, how.verify_crc), store.opened, store.broker_name)
    search = KeySearch(
        log, key, choice, store.broker_name, options, how.tolerance, state is StoreState.LIVE,
        Contradictions(store.opened, log),
    )  # fmt: skip
    if how.on_scanned is not None:
        search.on_scanned = partial(_report_scanned, how.on_scanned, _scan_size(log, coverage.uncovered))
    candidates = coverage.candidates
    candidates = candidates[(candidates >= log.min_offset) & (candidates < stop)]
    batches = list(search.candidates(candidates))
    for start, end in coverage.uncovered:
        batches += search.scan(start, end, coverage.edges)
    by = (
        "scan"
        if not coverage.files
        else "index and scan"
        if search.units_scanned or search.damaged_bytes
        else "index"
    )
    searched = Searched(
        topics if coverage.files else (),
        tuple(file.path for file in coverage.files),
        coverage.unused,
        len(candidates),
        coverage.uncovered,
        search.bytes_scanned,
        search.damaged_bytes,
        damaged_at=tuple(sorted(search.damaged_at)),
    )
    return Found(_ordered(batches, names), by, searched)


def _report_scanned(on_scanned: Callable[[int, int], object], size: int, scanned: int) -> None:
    on_scanned(scanned, size)


def _scan_size(log: CommitLog, ranges: Sequence[tuple[int, int]]) -> int:
    """Bytes of these physical ranges in files that hold messages; preallocated files do not count."""
    sizes = [
        (file, sum(max(min(stop, file.stop) - max(start, file.start), 0) for start, stop in ranges))
        for file in log.files
    ]
    return sum(size for file, size in sizes if size and any(log.view(file).read(0, _LOOK_SIZE)))


def _cover(
    store: Store, state: StoreState, key: str, choice: MessageChoice, how: How
) -> tuple[Coverage, tuple[str, ...], int]:
    """Which part of the log the index files cover, for which topics, and where the log ends at most."""
    log, index = store.log, f"{store.path}/index"
    stop = Snapshot.find_log_end(store.opened, log, state)
    if stop is None:
        stop = log.stop
    topics: tuple[str, ...] = ()
    reason = "the caller does not use it"
    if how.use_index:
        topics, reason = _topics_to_look_up(store.opened, choice.one_topic)
    if not topics:
        return Coverage((), ((index, reason),), ((log.min_offset, stop),), frozenset()), topics, stop
    checkpoint = read_checkpoint(f"{store.path}/checkpoint") or Checkpoint()
    coverage = plan_coverage(
        index,
        log.min_offset,
        stop,
        is_unit=log.has_message_at,
        timestamp_max=checkpoint.index_msg_timestamp if state is StoreState.CRASHED else None,
        hash_slot_num=how.hash_slot_num,
        index_num=how.index_num,
        keys=[(topic, key) for topic in topics],
        begin=choice.since_ms,
        end=None if choice.until_ms is None else choice.until_ms - 1,
    )
    return coverage, topics, stop


def _topics_to_look_up(opened: Opened, wanted: str | None) -> tuple[tuple[str, ...], str]:
    """The topics to look up in the index; none, with the reason, where only a scan finds all messages.

    Without `wanted` these are all topics with a queue or a configuration. Messages that a
    deleted topic left in the commitlog are found if `wanted` is their topic, or without the index.
    """
    topics = read_topics(opened)
    configured: Mapping[str, TopicConfig] = topics or {}
    stored = {
        (topic, kind) for topic, _, _, kind in list_queues(opened, lambda topic: wanted in (None, topic))
    }
    batch = {topic for topic, kind in stored if kind == "batch"} | {
        name for name, topic in configured.items() if topic.queue_type == "BatchCQ"
    }
    if batch if wanted is None else wanted in batch:
        return (), "topics with queue.type=BatchCQ keep keys inside batches, which index files do not cover"
    if wanted is not None:
        return (wanted,), ""
    if not stored and topics is not None:
        stored = {(topic, "database") for topic in _topics_in_database(opened)}
    if not stored:
        return (), "without consume queue files the store's topics are unknown; give the topic"
    if topics is not None and topics.is_backup:
        return (), "topics.json cannot be read, and its .bak may lack topics; give the topic"
    return tuple(sorted({topic for topic, _ in stored} | set(configured))), ""


def _topics_in_database(opened: Opened) -> set[str]:
    """The topics of the queues that RocksDB has; none without a database, or one that cannot be read."""
    try:
        database = QueueDatabase.read(opened)
    except (CorruptStoreError, UnsupportedFormatError):
        return set()  # a scan needs no topics
    return set() if database is None else {topic for topic, _ in database.ends}


def _in_order(table: pa.Table) -> pa.Table:
    """The rows in commitlog order. Two queues with logs of their own may have the same places."""
    return table.sort_by([(name, "ascending") for name in _ORDER_COLUMNS])


def _ordered(batches: list[pa.RecordBatch], names: tuple[str, ...]) -> pa.Table:
    """The rows in commitlog order, each once: index and scan both find messages at the edges of a file."""
    table = pa.Table.from_batches(batches, arrow_schema(names))
    places = np.stack([table[name].to_numpy().astype(np.int64) for name in _ORDER_COLUMNS])
    _, first = np.unique(places, axis=1, return_index=True)
    return table.take(pa.array(first))


# ---- messages with a key -----------------------------------------------------------------------------------


@dataclass(slots=True)
class KeySearch:
    """One search by key: decodes the messages that match, and counts what was read.

    `choice` gives the topic and the store times.
    """

    log: CommitLog
    key: str
    choice: MessageChoice
    broker_name: str
    decode_options: DecodeOptions
    tolerance: Tolerance
    is_live: bool
    contradictions: Contradictions | None = None
    bytes_scanned: int = 0
    damaged_bytes: int = 0
    damaged_at: set[int] = field(default_factory=set)  # physical offsets of damaged candidates
    units_scanned: int = 0  # without those at the edges of index files
    on_scanned: Callable[[int], object] | None = None  # called with the bytes scanned so far

    # ---- from the index ------------------------------------------------------------------------------------

    def candidates(self, offsets: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
        """The candidates that match."""
        files = self.log.file_index(offsets)
        for index in np.unique(files).tolist():
            mine = offsets[files == index]
            if index < 0:
                path, expected = (
                    self.log.files[0].path,
                    f"commitlog files that hold {int(mine[0])}, to which the index points",
                )
                self.tolerance.damage(CorruptStoreError(path, 0, expected, "a gap in the commitlog"))
                self.damaged_at.update(mine.tolist())
                continue
            for _, refs in self.log.refs_at(self.log.files[index], mine):
                yield from self._matching(refs, is_candidate=True)

    # ---- from the log --------------------------------------------------------------------------------------

    def scan(self, start: int, stop: int, edges: frozenset[int]) -> Iterator[pa.RecordBatch]:
        """The matching messages among those that begin in [start, stop)."""
        known = np.array(sorted(edges), np.int64)
        for step in self.log.walk(start, stop, resync=True):
            if isinstance(step, Damage):
                if not (step.at_tail and self.is_live):  # a message that is being written
                    self.damaged_bytes += step.stop - step.start
                    self.tolerance.damage(
                        CorruptStoreError(step.file.path, step.start, step.expected, step.found)
                    )
                continue
            self.bytes_scanned += step.stop - step.buffer_start
            if self.on_scanned is not None:
                self.on_scanned(self.bytes_scanned + self.damaged_bytes)
            self.units_scanned += len(step.positions)
            if len(known):
                self.units_scanned -= _count_in(known, step.physical_offsets)
            rows = self._rows_with_key(step)
            if len(rows):
                yield from self._matching(self._refs(step, rows))

    def _rows_with_key(self, run: UnitRun) -> NDArray[np.int64]:
        """Messages with the bytes of the key in their properties, and batches, which may be compressed.

        All messages of the run where the bytes cannot tell, and of a run that is not worth a kernel.
        """
        rows, key = np.arange(len(run.positions)), self.key
        # malformed bytes decode to U+FFFD
        if run.buffer is None or "\ufffd" in key or not kernels.ready():
            return rows
        starts, offset = run.positions - run.buffer_start, run.file.start + run.buffer_start
        word = np.frombuffer(key.encode(), np.uint8)
        return rows[: kernels.search.rows_with(run.buffer, starts, run.sizes, offset, word, rows)]

    def _refs(self, run: UnitRun, rows: NDArray[np.int64]) -> UnitRefs:
        refs = self.log.written_refs(run) if self.is_live else self.log.refs_of(run)
        return refs.select(rows[rows < len(refs)])

    # ---- what matches --------------------------------------------------------------------------------------

    def _matching(self, refs: UnitRefs, *, is_candidate: bool = False) -> Iterator[pa.RecordBatch]:
        units, bad = locate(refs, verify_crc=False)
        self._drop(refs, bad, is_candidate)
        units = units.select(self._of_topic_and_time(units))
        if not len(units):
            return
        table = PropertyTable(units.raw_properties())
        by_key: NDArray[np.bool_] = table.has_key(self.key).to_numpy(zero_copy_only=False)
        inner = inner_batches(units)
        # A batch matches as a whole by its own key, and its messages match by theirs.
        for rows, key in ((by_key, None), (inner & ~by_key, self.key)):
            if rows.any():
                refs = self._whole(units.select(rows))
                batch, bad = decode(refs, replace(self.decode_options, key=key), self.broker_name)
                self._drop(refs, bad, is_candidate)
                if batch.num_rows:
                    yield batch

    def _drop(self, refs: UnitRefs, bad: Sequence[BadUnit], is_candidate: bool) -> None:
        """Counts damaged messages: the places of candidates of the index, the bytes of the others."""
        self.tolerance.drop(bad)
        for unit in bad:
            if is_candidate:
                self.damaged_at.add(int(refs.physical_offsets[unit.index]))
            else:
                self.damaged_bytes += int(refs.sizes[unit.index])

    def _whole(self, units: Units) -> UnitRefs:
        """The messages that no consume queue contradicts."""
        if self.contradictions is None:
            return units.refs
        refs = without_damaged(units.refs, units, self.contradictions, self.tolerance)
        self.damaged_bytes += int(units.refs.sizes.sum() - refs.sizes.sum())
        return refs

    def _of_topic_and_time(self, units: Units) -> NDArray[np.bool_]:
        # Rolled back units are not indexed (IndexService.buildIndex), so a scan does not show them either.
        keep: NDArray[np.bool_] = (units.sys_flag & sysflag.TRANSACTION_MASK) != sysflag.TRANSACTION_ROLLBACK
        if self.choice.one_topic is not None:
            topics = units.stored_topics()
            keep &= pc.equal(topics, pa.scalar(self.choice.one_topic.encode(), topics.type)).to_numpy(
                zero_copy_only=False
            )
        times = units.integers("store_timestamp").astype(np.int64)
        if self.choice.since_ms is not None:
            keep &= times >= self.choice.since_ms
        if self.choice.until_ms is not None:
            keep &= times < self.choice.until_ms
        return keep


def _count_in(few: NDArray[np.int64], ascending: NDArray[np.int64]) -> int:
    """How many of `few` are among many in ascending order."""
    places = np.minimum(np.searchsorted(ascending, few), len(ascending) - 1)
    return int((ascending[places] == few).sum())
