"""Makes log, consume queues and index of a store agree, under its lock: for a writer after a crash and before
a commit, and for `recover`.

Messages behind the end of the log are refused or cut. Whole messages may follow damage; or the consume queues
reach behind the log's end, because its last messages are damaged or its last files missing. A broker that
starts cuts log and queues, and logs nothing. A writer that kept the queue entries would put its messages
where entries of other queues point to, and consumers would get messages of other topics.

Everything is read and compared before the first change, so that a store that cannot be repaired is refused
as it was. A repair can be repeated: of a store that a broker's crash left, `abort` stays until everything is
complete; in another store entries are corrected in ascending order, whole queues and index files are moved
in, and `.rmqlog/rebuild` shows the next writer that something may be missing.
"""

from __future__ import annotations

import datetime
import itertools
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from store_format.bookkeeping.journal import Abort, StoreState, rebuild_path
from store_format.bookkeeping.ledger import GivenUp, Ledger, LedgerEntry
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.log_comparison import (
    LockedStore,
    LogComparison,
    RecoverOptions,
)
from store_format.commit.publication import index_end, save_checkpoint
from store_format.commit.queue_changes import QueuesAside, cut_queue, entries_stop
from store_format.commit.rebuilt_index import IndexBuilder, move_index
from store_format.commit.steps import write_topics
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import EndKind
from store_format.commitlog.write import LogFiles
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import FiledQueue, list_queues
from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StoreError, StoreInUseError
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.index.updates import IndexBatch, cut_index
from store_format.layouts import MESSAGE_SIZE_MIN, OFFSET_MAX
from store_format.metadata.group_offsets import rewrite_config, write_delay_offsets
from store_format.metadata.read import (
    Checkpoint,
    broken_configs,
    config_path,
    read_checkpoint,
    read_delay_offsets,
    read_topics,
)
from store_format.metadata.values import raise_queue_nums
from store_format.names import SCHEDULE_TOPIC, QueueKey
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.survey.fates import StoredTopics
from store_format.survey.gone import QueueProofs
from store_format.survey.log_end import LogEnd, ReadableEnd
from store_format.survey.queues import ComparedQueue

if TYPE_CHECKING:  # not sent to workers, see `by_value`
    from store_format.commit.store_copy import CopiedPart

_log = logging.getLogger(__name__)


# ---- the end of the log, and what is behind it -------------------------------------------------------------


def refuse_cut(opened: Opened, log: CommitLog, end: LogEnd, *, staged: tuple[int, int] | None = None) -> None:
    """Raises if a writer that clears everything behind `end` would destroy messages that can be read.

    `staged` is (physical offset, ms): an interrupted commit has staged everything that was written from that
    offset on and up to that time, and writes it again.

    Raises CorruptStoreError for whole messages behind damage, unless they are remains of an old recovery,
    which a warning counts. Raises StoreInUseError for messages that were appended since `end` was found:
    another process writes to the store although its lock cannot be seen (NFS, the mount of a virtual
    machine).
    """
    found = ReadableEnd.find(opened, log.relisted(), end)
    if staged is not None and end.offset >= staged[0] and found.last_timestamp <= staged[1]:
        return
    if found.damage is not None:
        behind = f"{found.damage.found}, and {found.messages} whole messages behind it up to {found.offset}"
        raise _cut_error(found.damage, behind, found.cut)
    if found.offset > end.offset:
        raise StoreInUseError(
            f"{opened}: expected the commitlog to end at {end.offset}, found messages up to {found.offset}: "
            "another process writes to the store, and its lock cannot be seen from this machine. Nothing was "
            "written. Stop that process, then write again"
        )
    if found.remains:
        _log.warning(
            "%s: the commitlog ends at %d. %d whole messages from %d to %d behind this end (%s) are older "
            "than the last message before it, or repeat queue offsets: they are remains of an earlier "
            "recovery, and are cleared",
            opened.path, found.offset, found.remains, *found.remains_range, found.remains_text,
        )  # fmt: skip


def _cut_error(damage: CorruptStoreError, behind: str, cut: int) -> CorruptStoreError:
    advice = (
        f"Nothing was written. A writer would cut the commitlog at {cut} and lose these messages, as a "
        "broker that starts does. Keep them in a recovered copy (rmqlog recover STORE --into NEW --salvage "
        "--apply), or export them into a new store (rmqlog export --skip-damage, or mode=DROPMALFORMED), or "
        "give them up: rmqlog recover STORE --cut-after-damage --apply"
    )
    return CorruptStoreError(damage.file, damage.position, damage.expected, f"{behind}. {advice}")


def end_of_clean_log(log: CommitLog, ledger: Ledger, queued_stop: int) -> LogEnd:
    """The end of a log without a crash, found by a scan from the last commit, else from `queued_stop`: the
    end of the messages that the queues know (ConsumeQueueStore.getMaxPhyOffsetInConsumeQueue), -1 without
    queues.
    """
    ours = last_commit(log, ledger)
    if ours is None:
        return LogEnd.after_stop(log, queued_stop)
    end = LogEnd.scan(log, ours.stop, ours.stop)
    return replace(end, last_unit_offset=ours.last_offset) if end.last_unit_offset < 0 else end


def last_commit(log: CommitLog, ledger: Ledger) -> LedgerEntry | None:
    """The last commit in the ledger; None if the log does not have it as it was written."""
    ours = ledger.last
    if ours is None or not ours.last_size or ours.damage(log) is not None:
        return None
    return ours if log.file_at(ours.last_offset) else None


def end_reason(end: LogEnd) -> str:
    if end.end.kind is EndKind.TORN:
        return (
            f"{end.end.path} at byte {end.end.position}: expected {end.end.expected}, found {end.end.found}"
        )
    return "no file follows" if end.is_full else "nothing is written there"


def lower_checkpoint(opened: Opened, log: CommitLog, end: LogEnd) -> None:
    """Lowers the checkpoint to the log's end: it must not say that later messages are on the disk."""
    checkpoint = read_checkpoint(f"{opened.path}/checkpoint")
    if checkpoint is None:
        return
    last, timestamp = max(end.last_unit_offset, 0), max(log.store_timestamp_at(end.last_unit_offset), 0)
    lowered = replace(
        checkpoint,
        physic_msg_timestamp=min(checkpoint.physic_msg_timestamp, timestamp),
        logics_msg_timestamp=min(checkpoint.logics_msg_timestamp, timestamp),
        index_msg_timestamp=min(checkpoint.index_msg_timestamp, timestamp),
        confirm_phy_offset=min(checkpoint.confirm_phy_offset, last),
        logics_physical_offset=min(checkpoint.logics_physical_offset, last),
    )
    if lowered != checkpoint:
        save_checkpoint(opened, lowered, FileWrites(sync=True))


# ---- what a recovery changes -------------------------------------------------------------------------------


class LoweredLevel(NamedTuple):
    """A delay level (from 1): its next queue offset in delayOffset.json, and the end of its queue."""

    level: int
    offset: int
    end: int


@dataclass(slots=True, kw_only=True)
class Recovery(LogComparison):
    """A store's whole log by a broker's rules, and what a recovery changes.

    `refused` says why the store cannot be recovered as it is. `queued_stop` is the end of the messages in
    `queues`, the queues of `source`, -1 without any. `ahead` are those with entries that point behind the
    log's end, each with the number of the first unit that is cut. An interrupted commit has `staged` all
    messages behind a physical offset, up to a time (ms): it writes them again. `topics` are those that
    topics.json has lost, with their numbers of queues, `short_topics` those that have more queues there than
    clients read. A salvage leaves out the `remains`. `lost` are the
    messages of the compared queues that nobody can read, as `verify` counts them. Of a log whose end is
    certain, entries behind it are old (`has_old_entries`).
    `whole_in` is the log that shows which messages are whole, if `log` is that of a copy, whose short files
    got their full length.
    """

    end: LogEnd
    queued_stop: int
    queues: list[QueueBounds]
    refused: StoreError | None = None
    staged: tuple[int, int] | None = None
    ahead: list[tuple[QueueBounds, int]] = field(default_factory=list)
    levels: list[LoweredLevel] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)
    short_topics: dict[str, int] = field(default_factory=dict)
    broken: dict[str, CorruptStoreError] = field(default_factory=dict)
    copied: list[CopiedPart] = field(default_factory=list)
    remains: ReadableEnd | None = None
    whole_in: CommitLog | None = None
    lost: GivenUp = field(default_factory=GivenUp)
    has_old_entries: bool = False
    lacks_ends: bool = False  # whether more messages are lost, of queues of which nothing shows the end
    is_torn: bool = False  # the head of a message is at the end of a crashed store's log

    @property
    def torn(self) -> tuple[tuple[int, int], ...]:
        """The physical offset and store timestamp (ms) of a message whose head is at the end of a crashed
        store's log; empty without such a head.
        """
        timestamp = (self.whole_in or self.log).store_timestamp_at(self.end.offset) if self.is_crashed else -1
        return ((self.end.offset, timestamp),) if timestamp >= 0 else ()

    @property
    def short(self) -> list[StoreFile]:
        """The short files of a store that is recovered in place: only zeros follow the log in them.

        The recovery after a crash removes files that begin behind the log's end.
        """
        size, end = self.log.file_size, self.stop
        return [
            file
            for file in (self.log.files if self.opened == self.source else ())
            if file.size < size and end < file.start + size and (file.start <= end or not self.is_crashed)
        ]

    def compare(self) -> None:
        """Compares the store, and changes nothing."""
        self.run()
        self.find_files()

    def find_files(self) -> None:
        """Finds what is lost and what is wrong with configuration files, once the queues are compared."""
        self.lost = self._find_lost()
        self.lacks_ends = self._lacks_ends()
        created = (each.queue for each in self.changes if each.action == "create")
        # readers ask about queues of an unknown fate as before
        named = [key for key in (*created, *self.unknown) if not self.compared[key].stored.is_batch]
        self.short_topics = StoredTopics(self.source).short(named, self.options.topics)
        if self.options.topics is None:
            self.topics = StoredTopics(self.source).lost(named)
        else:  # the user named them: also topics that a readable topics.json lacks
            wanted = self.options.topics.difference(read_topics(self.source) or ())
            numbers = StoredTopics(self.source).shown_numbers(named)  # also of queues that are made now
            self.topics = {topic: number for topic, number in numbers.items() if topic in wanted}
        self.broken = broken_configs(self.source)
        self.levels = lowered_levels(self.source, self.opened, self.log, self.compared, self.ahead)

    def _find_lost(self) -> GivenUp:
        """Entries lead to the messages, or to nothing behind the log's end, or the ledger ends their queues
        behind them, or no message has queue offsets between others.
        """
        log, known = self.whole_in or self.log, GivenUp.read(self.source)
        self.is_torn = bool(self.torn)
        ranges = [*((each.start, each.stop) for each in self.filled), *(each.range for each in self.damage)]
        deleted = StoredTopics(self.source).deleted_until()
        lost_between = ComparedQueue.lost_between(self.compared.values(), deleted)
        proofs = QueueProofs(self.source, log)
        self.has_old_entries = not self.is_crashed and proofs.has_old_entries(self.queued_stop)
        ranges += [] if self.has_old_entries else [(self.end.offset, OFFSET_MAX)]
        gone = [*proofs.pointing_to(self.queues, ranges), *proofs.gone_by_ledger(self.known_queues)]
        places = [
            (*each.key, *place) for each in gone for place in each.without_whole(self.compared.get(each.key))
        ]
        found = GivenUp(tuple(places)).with_more(GivenUp(tuple(lost_between if self.lacks_bytes else ())))
        return GivenUp(tuple(_without(found, known)))

    @property
    def known_queues(self) -> list[QueueBounds | QueueRange]:
        """The queues of `source`; those without files up to the last message that the log has of them."""
        created = (each.queue for each in self.changes if each.action == "create")
        ends = ((key, self.compared[key].places.max_offset) for key in created)
        return [*(QueueRange(*key, 0, end, None) for key, end in ends), *self.queues]

    def _lacks_ends(self) -> bool:
        """`QueueProofs.lacks_ends` of the store, or the one that is copied."""
        filed = {(queue.topic, queue.queue_id) for queue in self.queues}
        created = {each.queue for each in self.changes if each.action == "create"}
        proofs = QueueProofs(self.source, self.whole_in or self.log)
        is_ahead = bool(self.ahead) and not self.has_old_entries
        if self.is_crashed and is_ahead:
            is_ahead = proofs.lost_last_files(self.end, self.queues, is_crashed=True) is not None
            if not is_ahead:
                return False
        return proofs.lacks_ends(is_ahead=is_ahead, lacks_queues=bool(created - filed))

    def end_at(self, end: LogEnd) -> None:
        """Sets the end of the log, and what the queues have behind it."""
        self.end, self.stop = end, end.offset
        self.ahead = [
            (queue, entries_stop(queue.directory, queue.kind, end.offset) // queue.unit_size)
            for queue in self.queues
            if queue.last_physical_offset >= end.offset
        ]


def _without(lost: GivenUp, known: GivenUp) -> Iterator[tuple[str, int, int, int]]:
    """The lost messages that are not among the known ones."""
    for topic, queue_id, first, stop in lost.messages:
        there = known.within({(topic, queue_id): (first, stop)}).with_more(GivenUp()).messages
        for _, _, low, high in (*there, (topic, queue_id, stop, stop)):
            if first < low:
                yield topic, queue_id, first, low
            first = high


def find_end(
    opened: Opened,
    log: CommitLog,
    options: RecoverOptions,
    source: Opened | None = None,
    *,
    staged: tuple[int, int] | None = None,
) -> Recovery:
    """The end of the log by the broker's rules, and what a recovery would cut off. Changes nothing.

    `source` is the store of which `opened` is a copy without queues; the copy need not exist yet.
    """
    target, opened = opened, source or opened
    settings = options.settings_of(opened, log)
    size = options.queue_file_size(opened, log)
    settings = settings if size is None else replace(settings, mapped_file_size_consume_queue=size)
    is_crashed = Abort.read_mark(opened) == ""
    state = StoreState.CRASHED if is_crashed else StoreState.CLEAN
    proofs = QueueProofs(opened, log)
    queues = proofs.queues(lambda _: None)  # the comparison reports others
    queued_stop = max(
        (queue.last_physical_offset + queue.last_size for queue in queues if queue.kind == "simple"),
        default=-1,
    )
    if is_crashed:
        end = LogEnd.after_crash(log, read_checkpoint(f"{opened.path}/checkpoint") or Checkpoint())
    else:
        end = end_of_clean_log(log, Ledger.read(opened), queued_stop)
    filing = proofs.filing(state, end.start)
    recovery = Recovery(
        opened=target, source=opened, log=log, start=log.min_offset, stop=end.offset, settings=settings,
        options=options, is_crashed=is_crashed, staged=staged, end=end,
        queued_stop=queued_stop, queues=queues,
        broker_start=max(filing.start, end.start),
        begins=proofs.begun_again(log, queues), filing=filing,
    )  # fmt: skip
    recovery.end_at(end)
    try:
        if not (options.cut_after_damage or options.salvage):
            error = proofs.lost_last_files(end, queues, is_crashed=is_crashed)
            if error is not None and (staged is None or end.offset < staged[0]):
                raise error
            refuse_cut(opened, log, end, staged=staged)
            records = proofs.last_records(queues, end.offset)
            if records and (staged is None or end.offset < staged[0]):
                found = (
                    f"{end.end.found}, in {len(records)} messages that a broker hands out all the same. "
                    "Nothing was written. Keep them in a recovered copy (rmqlog recover STORE --into NEW "
                    "--salvage --apply), or give them up: rmqlog recover STORE --cut-after-damage --apply"
                )
                raise CorruptStoreError(end.end.path, end.end.position, end.end.expected, found)
    except StoreError as refused:
        recovery.refused = refused
    return recovery


# ---- compared, and written beside the store ----------------------------------------------------------------


@dataclass(slots=True)
class Built:
    """What a comparison found, and the queues and index files that were written aside meanwhile."""

    found: LogComparison
    queues: QueuesAside
    index: IndexBuilder | None = None

    def add_index(self, batch: IndexBatch) -> None:
        check = self.found.index
        if check is not None and check.is_empty:
            self.index = self.index or self.index_builder(0)
            self.index.add(batch)

    def index_builder(self, kept: int) -> IndexBuilder:
        assert self.found.index is not None
        now = self.found.options.clock()
        zone = datetime.timezone(datetime.timedelta(seconds=time.localtime(now // 1000).tm_gmtoff))
        return IndexBuilder(
            self.found.index, kept, f"{self.queues.opened.path}/index", now, zone, FileWrites(sync=False)
        )

    def apply(self, files: FileWrites) -> None:
        """Changes queues and index. `files` syncs all of them."""
        found = self.found
        log_range = (found.log.min_offset, found.stop)
        if found.lacks_bytes:
            deleted = StoredTopics(found.source).deleted_until()
            lost_between = ComparedQueue.lost_between(found.compared.values(), deleted)
            lost = GivenUp((*lost_between, *self._before_first()))
            lost.add_to(found.opened, files)
            if lost.messages:
                text = (
                    "%s: %s between others, of which neither the commitlog nor a queue shows more, given up"
                )
                _log.warning(text, found.opened.path, lost)
        try:
            self.queues.apply(found.opened, found.changes, found.compared, log_range, files)
            for key, (end, _) in found.past.items():
                size = found.settings.mapped_file_size_consume_queue
                self.queues.create_empty(found.opened, key, end, size, files)
            self._change_index(files)
        except Exception:
            for name in ("consumequeue", "index"):  # The disk may be full.
                with suppress(StoreError):
                    files.remove_tree(f"{self.queues.opened.path}/{name}")
            raise

    def _before_first(self) -> Iterator[tuple[str, int, int, int]]:
        """The queue offsets before the first message of new queues: retention has deleted nothing of a log
        that begins at 0, so that damaged bytes had these messages.
        """
        found = self.found
        for change in found.changes if not found.log.min_offset else ():
            queue = found.compared[change.queue]
            damaged = sum(
                each.stop - each.start for each in found.damage if each.range[0] < queue.seen.epochs[0][0]
            )
            if change.action == "create" and 0 < change.first <= damaged // MESSAGE_SIZE_MIN:
                yield (*change.queue, 0, change.first)

    def _change_index(self, files: FileWrites) -> None:
        found, check = self.found, self.found.index
        if check is None or check.missing_from is None:
            return
        index = self.index
        if index is None:
            index = self.index_builder(check.kept())
            for batch in found.index_batches(index.start, found.stop, found.fillings):
                index.add(batch)
        index.close()
        move_index(check, f"{self.queues.opened.path}/index", files)
        end = index_end(found.opened, found.settings.geometry)
        checkpoint = read_checkpoint(f"{found.opened.path}/checkpoint") or Checkpoint()
        if end is not None and end > checkpoint.index_msg_timestamp:
            save_checkpoint(found.opened, replace(checkpoint, index_msg_timestamp=end), files)


def compare_aside(found: LogComparison) -> Built:
    """Compares a store with its log, from the log's first message on if a part of it is not enough.

    Leaves nothing behind if the comparison raises. The caller calls `end_rebuild`.
    """
    files, aside = FileWrites(sync=True), rebuild_path(found.opened)
    was_begun = is_rebuild_begun(found.opened)
    while True:
        files.remove_tree(aside)
        files.make_directories(found.opened.path, OWN_DIRECTORY, aside.rpartition("/")[2])
        like = f"{found.opened.path}/consumequeue"  # .rmqlog may be another user's
        files.give_like(aside, like if files_at(like).stat_identity(like) is not None else found.opened.path)
        built = Built(found, QueuesAside(Opened(aside), FileWrites(sync=False)))
        try:
            found.run(on_index=built.add_index, on_placed=built.queues.put)
        except BaseException:
            if not was_begun:
                end_rebuild(found.opened)
            raise
        if not found.needs_all():
            return built
        found = replace(found, start=found.log.min_offset)


def is_rebuild_begun(opened: Opened) -> bool:
    """Whether a process died while it completed queues: some queues may still end too early."""
    return opened.files.stat_identity(rebuild_path(opened)) is not None


def end_rebuild(opened: Opened) -> None:
    FileWrites(sync=True).remove_tree(rebuild_path(opened))


# ---- after a crash, and in a recovery ----------------------------------------------------------------------


def repair(held: LockedStore, *, mended: int | None = None, staged: tuple[int, int] | None = None) -> LogEnd:
    """A broker's recovery after a crash (DefaultMessageStore.recover). Returns the log's end. A second call
    changes nothing.

    The log ends at its first bad unit, and everything behind is cleared. Every message before gets its
    missing queue and index entries, however many files that takes: a 5.4 broker scans the last 10 files only.
    Raises, before any change, what `LogComparison.run` raises, and the `refused` of `find_end`.
    """
    recovery = find_end(held.opened, held.log, held.compared(index=True), staged=staged)
    if recovery.refused is not None:
        raise recovery.refused
    _log.warning(
        "%s: a broker crashed on this store; its commitlog ends at %d, completing queue and index entries "
        "from %d on",
        held.opened.path,
        recovery.stop,
        recovery.end.scan_start,
    )
    recovery.written, recovery.mended = (), mended
    if recovery.queued_stop >= 0 and not is_rebuild_begun(held.opened):
        recovery.start = max(recovery.start, recovery.end.scan_start)
    carry_out(recovery, held.files)
    end_rebuild(held.opened)
    return recovery.end


def carry_out(recovery: Recovery, files: FileWrites) -> Recovery:
    """Makes the changes that a recovery needs. Returns it with what was compared."""
    built = compare_aside(recovery)
    assert isinstance(built.found, Recovery)
    recovery, opened = built.found, recovery.opened
    recovery.find_files()
    _note_sizes(recovery, files)
    _keep_aside(recovery, files)
    write_topics(opened, recovery.topics, recovery.options.clock(), files)
    if recovery.short_topics:
        rewrite_config(
            config_path(opened, "topics.json"),
            lambda data, file: raise_queue_nums(
                data or b"", recovery.short_topics, recovery.options.clock(), file
            ),
            files,
        )
    # Before the queues: of a recovery that is interrupted, the next one still sees them ahead.
    if recovery.levels:
        levels = {each.level: each.end for each in recovery.levels}
        write_delay_offsets(opened, levels, timestamp=recovery.options.clock(), files=files)
    cut_behind_end(recovery, files)
    built.apply(files)
    return recovery


def _keep_aside(recovery: Recovery, files: FileWrites) -> None:
    """Renames the configuration files that no broker loads; a `.bak` that can be read takes their place."""
    for broken in recovery.broken:
        path = recovery.opened.path + broken.removeprefix(recovery.source.path)
        names = (f"{path}.broken{number or ''}" for number in itertools.count())
        files.rename(path, next(name for name in names if not files_at(name).exists(name)))
        backup = files_at(path).read(f"{path}.bak")
        if backup and f"{broken}.bak" not in recovery.broken:
            files.replace(path, backup)


def cut_behind_end(recovery: Recovery, files: FileWrites) -> None:
    """Removes what points behind the log's end, then clears the log there.

    Messages that are lost, as queue entries or the ledger prove, are noted before as given up. The log may
    still have a whole message where they lead: without `cut_after_damage` an earlier recovery has cut it. If
    the process dies before the log is cleared, the remaining entries show the next writer that it has to
    continue.
    """
    opened, log, end = recovery.opened, recovery.log, recovery.end
    limit = OFFSET_MAX if recovery.staged is None else max(recovery.staged[0], end.offset)
    proofs = QueueProofs(opened, log)
    gone = proofs.pointing_to(recovery.queues, [(end.offset, limit)]) if end.offset < limit else []
    is_cut = recovery.options.cut_after_damage and not recovery.options.salvage
    is_lost, whole_in = is_cut or not recovery.has_old_entries, recovery.whole_in or log
    lost = [each for each in gone if is_lost and (is_cut or not _is_whole(whole_in, each.physical))]
    holes = [(hole.start, hole.stop) for hole in recovery.filled]
    fillers = tuple(holes) if opened != recovery.source else ()
    lost += [*proofs.pointing_to(recovery.queues, holes), *proofs.gone_by_ledger(recovery.known_queues)]
    noted, begins = [], []
    for each in lost:
        places = each.without_whole(recovery.compared.get(each.key))
        noted += [(*each.key, *place) for place in places]
        if places and not places[0][0] and each.physical >= 0:
            begins.append((*each.key, min(each.physical, end.offset)))  # behind the end it may lead anywhere
    is_unnamed = all(0 <= each.physical < end.offset for each in lost)
    torn = tuple((*each, int(is_unnamed)) for each in recovery.torn if end.offset < limit)
    GivenUp(tuple(noted), fillers, tuple(begins), recovery.lacks_ends, torn=torn).add_to(opened, files)
    before = Ledger.read(opened)
    ledger = before.with_given_up(
        lambda last: last >= recovery.stop or any(start <= last < stop for start, stop in holes)
    )
    if ledger != before:
        ledger.write(opened, files)
    # an empty log looks like one that was lost
    if opened != recovery.source or recovery.stop == log.min_offset:
        lower_checkpoint(opened, log, end)
    if opened != recovery.source:
        pass  # it has no queue yet, or those of a recovery that was broken off
    elif recovery.is_crashed:
        for queue in list_queues(opened, lambda _: True):
            with suppress(StoreError):  # a queue that is left as it is
                cut_queue(queue.directory, queue.kind, end.offset, files)
    elif recovery.ahead:
        first = min(gone, key=lambda each: each.physical, default=None)
        name = "" if first is None else f"{shown(first.topic)}-{first.queue_id} offset {first.first}"
        _cut_queues(
            recovery, name, -1 if first is None else first.physical, sum(each.count for each in gone), files
        )
    directories = sorted({file.path.rpartition("/")[0] for file in log.files})
    log_files = LogFiles(log, directories, recovery.settings.mapped_file_size_commit_log, files)
    # A broker keeps a file that begins exactly at the end (MappedFileQueue.truncateDirtyFiles). A commit that
    # is completed goes on at the end: no byte of an old BLANK may remain behind its messages. Else a BLANK at
    # the log's end stays: if the messages behind it are found again, it leads to them.
    keeps_blank = recovery.staged is None and end.end.kind is EndKind.BLANK
    log_files.clear_behind(
        log.stop if keeps_blank else end.offset, keep=end.offset + 1 if recovery.is_crashed else -1
    )
    # Only now: in a file of full length a message that was cut off could look whole.
    for short in recovery.short:
        with files.open_full(short.path, log.file_size, extend=True)[0] as file:
            files.sync(file)


def _is_whole(log: CommitLog, physical: int) -> bool:
    return next(iter(log.walk(physical, physical + 1, verify_crc=True)), None) is not None


def _cut_queues(recovery: Recovery, name: str, place: int, count: int, files: FileWrites) -> None:
    """Removes the queue entries behind the end of a log without a crash, and those of the index. They lead to
    `count` messages, the first at the physical offset `place`.
    """
    opened, log, end = recovery.opened, recovery.log, recovery.end
    _log.warning(
        "%s: the commitlog ends at %d: %s. Consume queues point to messages behind this end, the first at "
        "%s, physical offset %d (entries: %d, queues: %d). These messages cannot be read; the entries are "
        "removed, as a broker that starts does",
        opened.path, end.offset, end_reason(end), name, place, count, len(recovery.ahead),
    )  # fmt: skip
    lower_checkpoint(opened, log, end)
    if recovery.options.index and not recovery.index_problem:
        cut_index(
            f"{opened.path}/index", end.offset, log.store_timestamp_at, recovery.settings.geometry, files
        )
    for queue, _ in recovery.ahead:
        cut_queue(queue.directory, queue.kind, end.offset, files)


# ---- delay levels ------------------------------------------------------------------------------------------


def lowered_levels(
    source: Opened,
    opened: Opened,
    log: CommitLog,
    compared: Mapping[QueueKey, ComparedQueue],
    ahead: Sequence[tuple[QueueBounds, int]],
) -> list[LoweredLevel]:
    """The levels in `source`'s delayOffset.json that are ahead of their queues in `opened`.

    `compared` are the queues by the messages of the log, `ahead` the queues that are cut, with the number of
    the first unit that is cut. Nothing is known of other queues.
    """
    cut = {(queue.topic, queue.queue_id): unit for queue, unit in ahead if queue.kind == "simple"}
    found = []
    try:
        offsets = read_delay_offsets(source) or {}
    except StoreError:  # A broker does not start with such a file; a recovery leaves it as it is.
        return []
    for level, offset in sorted(offsets.items()):
        key = (SCHEDULE_TOPIC, level - 1)
        end = cut.get(key, -1)
        if key in compared and compared[key].places.entries:
            end = max(end, compared[key].places.max_offset)
            if key not in cut:
                try:
                    bounds = FiledQueue.of(opened, *key).bounds(log.min_offset)
                except StoreError:
                    continue
                end = max(end, bounds.max_offset if bounds is not None else 0)
        if 0 <= end < offset:
            found.append(LoweredLevel(level, offset, end))
    return found


# ---- sizes -------------------------------------------------------------------------------------------------


def sizes_path(opened: Opened) -> str:
    return opened.own("recover.json")


def _note_sizes(recovery: Recovery, files: FileWrites) -> None:
    """Notes the sizes of files: after a crash in between, no file of the store may show them any more."""
    if recovery.index is not None and (recovery.changes or recovery.index.missing_from is not None):
        batch = recovery.options.batch_file_size(recovery.source)
        value = asdict(recovery.settings) | {"batch": batch}
        files.replace(sizes_path(recovery.opened), json.dumps(value).encode())


def with_noted_sizes(opened: Opened, options: RecoverOptions) -> RecoverOptions:
    """The options, with the sizes that a recovery noted before it was interrupted."""
    data = opened.files.read(sizes_path(opened))
    if data is None or options.settings is not None:
        return options
    try:
        value = json.loads(data)
        batch = int(value.pop("batch"))
        return replace(options, settings=StoreSettings(**value), batch_queue_file_size=batch)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            sizes_path(opened), 0, "the sizes of a store", "something else; give them with --broker-conf"
        ) from error
