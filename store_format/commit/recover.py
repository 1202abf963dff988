"""Recovery of a store: a plan that shows what changes, and its execution under the store's lock.

The log ends where a broker that starts would end it (spec 7.3, 7.4). Entries behind this end are removed, and
consume queues and index are completed from the messages before it: not only from the last 10 files, as a
broker does, and also in a store that was shut down cleanly and lost some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from store_format.bookkeeping.journal import Abort, Journal, StoreState
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import StoreSettings, broker_conf_of
from store_format.commit.cluster import RECOVER_IGNORING
from store_format.commit.journal_place import (
    is_given_up,
    is_given_up_in_copy,
    is_lost_with_power,
    will_complete,
)
from store_format.commit.log_comparison import RecoverOptions
from store_format.commit.needed_settings import contradictions, settings_text, write_needed_settings
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.repair import (
    Recovery,
    carry_out,
    end_rebuild,
    find_end,
    sizes_path,
    with_noted_sizes,
)
from store_format.commit.salvage import check_holes, end_of_salvaged, fill_holes, find_holes, short_tails
from store_format.commit.store_copy import (
    NOT_COPIED,
    copy_parts,
    copy_store,
    end_copy,
    keep_times,
    make_target,
    not_copied,
    refuse_target,
)
from store_format.commit.unsupported import StoreRefusals
from store_format.commitlog.log import CommitLog, open_log
from store_format.consumequeue.files import FOLDERS
from store_format.consumequeue.units import list_queues
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of
from store_format.display.text import first_names, shown
from store_format.display.unserved import NONE_UNSERVED, Unserved
from store_format.errors import OptionError, StoreError, StoreInUseError
from store_format.files import paths
from store_format.files.lock import StoreLock
from store_format.files.read import FileCache, files_at
from store_format.files.write import FileWrites
from store_format.index.file import list_index_files
from store_format.metadata.read import BrokerConf
from store_format.names import SCHEDULE_TOPIC, is_light_queue
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.read.store_root import broker_name_of, looks_like_store, refuse_root
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.gone import LostLog, QueueProofs
from store_format.survey.log_end import ReadableEnd

RECOVER_COLUMNS = (
    BROKER,
    ViewColumn(
        "part",
        TEXT,
        "commitlog, consumequeue, batchconsumequeue, delayOffset, config, topics, index, abort, or commit "
        "(of rmqlog).",
    ),
    ViewColumn("topic", TEXT, "The topic of a queue."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn(
        "action",
        TEXT,
        "What happens: see docs/services.md.",
    ),
    ViewColumn(
        "position",
        LONG,
        "Where the change begins: queue offset, unit of a batch queue, or physical offset.",
    ),
    ViewColumn("entries", LONG, "Messages of the log, or entries that are added, corrected or removed."),
    ViewColumn(
        "byBroker", LONG, "Those of the entries that a broker that starts would write; null: unknown."
    ),
    ViewColumn("reason", TEXT, "Why."),
)
# a file of config/ -> what is lost with it, if no `.bak` takes its place
_LOST_WITH = {
    "topics.json": "the settings of topics are lost",
    "subscriptionGroup.json": "the settings of groups are lost",
    "consumerOffset.json": "the offsets of all groups are lost",
    "lmqConsumerOffset.json": "the offsets of all groups are lost",
    "delayOffset.json": "delayed messages may be delivered again",
    "consumerFilter.json": "the filters of groups are lost",
    "consumerOrderInfo.json": "what consumers in order have in flight is lost",
    "topicQueueMapping.json": "the queues of static topics are lost",
    "messageRequestMode.json": "the request modes of groups are lost",
    "timermetrics": "the counts of timed messages are lost",
    "transactionMetrics": "the counts of half messages are lost",
}
_UNCHANGED = frozenset({"end", "keep", "left", "lost", "omit", "unknown"})  # actions that change no file
_LOG = logging.getLogger(__name__)
_Row = tuple[object, ...]


@dataclass(slots=True)
class RecoverPlan:
    """A planned recovery. `table` shows the changes and writes nothing; `apply` makes them."""

    opened: Opened
    options: RecoverOptions
    broker_name: str
    _recovery: Recovery | None = field(default=None)
    _seen: object = field(default=None)

    def table(self) -> pa.Table:
        """Returns one row for each change, with `RECOVER_COLUMNS`. Reads the whole log, changes nothing."""
        if self._recovery is None:
            self._refuse_running()
            self._seen = _identity_of_files(self.opened, self.options)
            into = self.options.into
            self._commit_row()  # raises as `apply` does, before the log is read
            options = with_noted_sizes(self.opened, self.options)
            recovery = (
                find_end(self.opened, _open_store_log(self.opened, self.options), options)
                if into is None
                else _recovery_of_copy(self.opened, Opened(into), options)
            )
            recovery.compare()
            self._recovery = recovery
        return self._table(self._recovery)

    def apply(self) -> pa.Table:
        """Recovers the store and returns the `table` of the changes.

        Raises StoreInUseError if a broker has the store, or if the store has changed since `table`. Raises
        CorruptStoreError if messages behind damage or missing files would be lost, unless `cut_after_damage`
        or `salvage` is set. Raises StoreNotFoundError if only a missing store of the cluster knows whether a
        commit has begun, unless `ignore_missing_stores` is set. Raises OptionError if the store does not show
        the sizes of the files to create. If the process dies, the next recovery or the next commit completes
        the work.
        """
        if self.options.into is not None:
            return self._apply_into(self.options.into)
        with StoreLock(self.opened.path, timeout=self.options.lock_timeout) as lock:
            lock.refuse_other_openers()
            self._refuse_change("since the recovery was planned; plan it again")
            before = self._commit_row()
            recovery = _carry_out_recovery(self.opened, self.options)
            lock.refuse_other_openers()
        return self._table(recovery, before)

    def unserved(self) -> Unserved:
        """The messages that a broker would not serve without this recovery. Not known before `table`,
        and of a copy, whose queues are all new.
        """
        recovery = self._recovery
        if recovery is None or self.options.into is not None:
            return NONE_UNSERVED
        compared = recovery.compared
        counts = {
            change.queue: compared[change.queue].unserved
            for change in recovery.changes
            if not is_light_queue(change.queue[0])
        }
        topics = {
            topic: sum(each.seen.claims.count() for key, each in compared.items() if key[0] == topic)
            for topic in recovery.topics
        }
        return Unserved.of(counts, topics)

    @property
    def needs_copy(self) -> bool:
        """Whether a recovered copy (`into`, `salvage`) keeps more than this recovery: what is damaged in the
        log, or lost of it other than by a crash. `verify` advises the copy, too. Not known before `table`.
        """
        found, options = self._recovery, self.options
        is_part = options.topics is not None or not options.queues
        if found is None or options.into is not None or options.cut_after_damage or is_part:
            return False
        is_lost = found.damaged_messages or (found.lost.count and not found.is_crashed)
        return bool(found.refused or found.damage or is_lost)

    def _apply_into(self, target: str) -> pa.Table:
        """Recovers the copy; the store itself is only read. A new copy that fails is removed."""
        self._refuse_running()
        self._refuse_change("since the recovery was planned; plan it again")
        self._seen = _identity_of_files(self.opened, self.options)
        refuse_target(self.opened.path, target)
        recovery = _recovery_of_copy(self.opened, Opened(target), self.options)
        if recovery.refused is not None:
            raise recovery.refused
        is_known = self.options.queue_file_size(self.opened, recovery.log) is not None
        if not is_known or self.options.delay_levels_ms is None:
            recovery.compare()  # raises before anything is copied
            recovery = _recovery_of_copy(self.opened, Opened(target), self.options)
        is_new = not files_at(target).names(target, missing_ok=True)
        files = FileWrites(sync=True)
        try:
            make_target(target, files)
            with StoreLock(target, timeout=self.options.lock_timeout):
                recovery = _carry_out_into(recovery)
            self._refuse_running()
            self._refuse_change("while it was copied; stop what writes to the store, and repeat")
        except Exception:
            if is_new:
                files.remove_tree(target)
            raise
        return self._table(recovery)

    def _refuse_running(self) -> None:
        if StoreState.of(self.opened) is StoreState.LIVE:
            raise StoreInUseError(
                f"{self.opened}: a broker has the store open; stop the broker, or copy the store first"
            )

    def _refuse_change(self, when: str) -> None:
        if self._seen is not None and self._seen != _identity_of_files(self.opened, self.options):
            raise StoreInUseError(f"{self.opened}: the store changed {when}")

    def _commit_row(self) -> list[_Row]:
        journal = Journal.read(self.opened)
        if journal is None:
            return []
        if self.options.into is not None:
            action, what = "left", "its commitlog is another one, and the copy does without the commit"
        elif is_given_up(self.opened, journal, cut_after_damage=self.options.cut_after_damage):
            action, what = "drop", "its staged files are missing, and it is given up first"
        elif will_complete(
            self.opened, journal, _open_store_log(self.opened, self.options),
            ignore_missing=self.options.ignore_missing_stores, way_out=RECOVER_IGNORING,
        ):  # fmt: skip
            action, what = "complete", "it is completed first"
        elif is_lost_with_power(self.opened, journal):
            action, what = "drop", "a power loss took its staged files, and it is dropped first"
        else:
            action, what = "drop", "no store of its cluster has begun it, and it is dropped first"
        reason = f"a commit of rmqlog was interrupted; {what}"
        return [(self.broker_name, "commit", None, None, action, None, None, 0, reason)]

    def _table(self, recovery: Recovery, before: list[_Row] | None = None) -> pa.Table:
        rows = self._commit_row() if before is None else before
        rows += [(self.broker_name, *row) for row in _plan_rows(recovery)]
        if (
            recovery.is_crashed
            and recovery.opened == recovery.source
            and _UNCHANGED.issuperset(row[4] for row in rows)
        ):
            reason = "the broker was killed, and nothing else is left of that"
            rows.append((self.broker_name, "abort", None, None, "remove", None, None, None, reason))
        return pa.Table.from_batches([batch_of(RECOVER_COLUMNS, rows)])


def recover(
    path: str,
    *,
    rebuild_queues: bool = True,
    rebuild_index: bool = True,
    topics: Collection[str] | None = None,
    into: str | None = None,
    cut_after_damage: bool = False,
    salvage: bool = False,
    ignore_missing_stores: bool = False,
    broker_conf: str | None = None,
    commit_log_paths: Sequence[str] = (),
) -> RecoverPlan:
    """Returns the plan of a recovery of the store at `path`. `plan.table()` shows it, `plan.apply()` carries
    it out.

    The log ends where a starting broker ends it (CommitLog.recoverNormally, recoverAbnormally). With
    `rebuild_queues`, every consume queue (of `topics`, or of all topics) is compared with the messages of the
    log, and with `rebuild_index` every index file; missing and wrong entries are written again.
    `cut_after_damage` removes the messages behind damage in the log; without it, the plan refuses to.
    `ignore_missing_stores` says that stores of the cluster that are missing now do not come back; without it,
    a recovery that needs to ask one of them, about a commit that was interrupted, is refused.
    `broker_conf` is the path of the broker's settings; without it, the sizes come from the store's own files.

    With `into`, the path of a new directory, the store is only read: commitlog, configuration, checkpoint and
    timer files are copied, and the copy is recovered. `salvage` keeps the messages behind damage in the copy,
    with their physical and queue offsets: the damaged bytes become messages that are in no queue.

    Raises UnsupportedFormatError for a store with RocksDB queues, under a controller, or of DLedger, and
    StoreNotFoundError without a store.

    Example: `recover("/data/store").table()`, then `recover("/data/store").apply()`.
    """
    root = paths.absolute(path)
    opened = Opened(root)
    if salvage and into is None:
        raise OptionError(
            "salvage: expected into=DIRECTORY (--into) too: the damaged store itself is not changed"
        )
    if into is not None:
        into = paths.absolute(into)
        refuse_target(root, into)
        if topics is not None or not (rebuild_queues and rebuild_index):
            raise OptionError("into: expected all queues and the index, found a part: a copy has none yet")
    names = files_at(root).names(root)
    if "commitlog" not in names and not commit_log_paths and not looks_like_store(names):
        refuse_root(root, names)
    StoreRefusals(opened).refuse_rocksdb_queues()
    StoreRefusals(opened).refuse_ledger_recovery()
    StoreRefusals(opened).refuse_store()
    conf = broker_conf_of(opened, broker_conf)
    name = broker_name_of(opened)
    sizes = conf.commit_log_file_size, conf.queue_file_size, conf.max_hash_slot_num, conf.max_index_num
    options = RecoverOptions(
        topics=None if topics is None else frozenset(topics),
        queues=rebuild_queues,
        index=rebuild_index and conf.message_index_enable,
        cut_after_damage=cut_after_damage,
        ignore_missing_stores=ignore_missing_stores,
        into=into,
        salvage=salvage,
        settings=None if broker_conf is None else StoreSettings(name, *sizes),
        batch_queue_file_size=conf.batch_queue_file_size,
        delay_levels_ms=conf.known_delay_levels_ms,
        log_directories=tuple(map(paths.absolute, commit_log_paths)),
    )
    if broker_conf is not None:
        _warn_of_sizes(opened, options, conf, broker_conf)
    return RecoverPlan(opened, options, name)


def _warn_of_sizes(opened: Opened, options: RecoverOptions, conf: BrokerConf, path: str) -> None:
    """Files keep their lengths: a recovery takes the sizes of the settings only where no file shows them."""
    with suppress(StoreError):  # the plan raises the error
        found = contradictions(opened, _open_store_log(opened, options), conf)
        if found:
            said = settings_text({name: size for name, (size, _) in found.items()})
            needed = settings_text({name: size for name, (_, size) in found.items()})
            _LOG.warning(
                "%s: expected the sizes of the files of %s, %s, found %s. A broker with these settings does "
                "not start on the store, or misses keys: correct the settings before you start the broker",
                path, opened.path, needed, said,
            )  # fmt: skip


def _identity_of_files(opened: Opened, options: RecoverOptions) -> object:
    """Changes when anything that a recovery looks at changes."""
    found = [
        file.path
        for directory in options.log_directories or (f"{opened.path}/commitlog",)
        for file in files_at(directory).store_files(directory, irregular=lambda _: None)
    ]
    for _, _, directory, _ in list_queues(opened, lambda _: True, lambda _: None):
        files = files_at(directory).store_files(directory, irregular=lambda _: None)
        found += [directory, *(file.path for file in files)]
    found += [file.path for file in list_index_files(f"{opened.path}/index")]
    found += [f"{opened.path}/{name}" for name in ("abort", "checkpoint", "config/topics.json")]
    return [(path, files_at(path).stat_identity(path)) for path in found], Journal.read(opened)


# ---- carrying it out ---------------------------------------------------------------------------------------


def _open_store_log(opened: Opened, options: RecoverOptions) -> CommitLog:
    directories = options.log_directories or (f"{opened.path}/commitlog",)
    log = CommitLog.open(directories, FileCache()) if options.salvage else open_log(directories)
    LostLog.refuse(opened, log)
    return replace(log, whole_size=StoreSettings.size_of_cut_file(opened, log, options.settings))


def _carry_out_recovery(opened: Opened, options: RecoverOptions) -> Recovery:
    """Recovers the store, whose lock the caller holds. Raises what `find_end` has as `refused`."""
    files = FileWrites(sync=True)
    files.make_directories(opened.path, OWN_DIRECTORY)
    options = with_noted_sizes(opened, options)
    is_part = not (options.queues and options.index and options.topics is None)
    if Journal.read(opened) is not None or (is_part and Abort.read_mark(opened) == ""):
        open_store(opened.path, _commit_options(options), files, way_out=RECOVER_IGNORING)
    recovery = find_end(opened, _open_store_log(opened, options), options)
    if recovery.refused is not None:
        raise recovery.refused
    recovery = carry_out(recovery, files)
    _finish(recovery, files)
    return recovery


def _carry_out_into(recovery: Recovery) -> Recovery:
    """Makes the copy that `_recovery_of_copy` describes, whose lock the caller holds, and recovers it."""
    files = FileWrites(sync=True)
    source, target = recovery.source, recovery.opened
    original = recovery.log
    copy_store(source.path, original, target.path, files)
    mine = replace(recovery.options, log_directories=(), into=None)
    # The end stays: bytes behind it may look like a message in a file of full length.
    recovery.whole_in, recovery.log = recovery.log, _open_store_log(target, mine)
    if recovery.holes:
        fill_holes(recovery.log, f"{target.path}/commitlog", Ledger.read(source), recovery.holes, files)
        mine = replace(mine, cut_after_damage=True)  # What can be read lies before the end now.
    recovery.options = mine
    recovery = carry_out(recovery, files)
    _finish(recovery, files)
    open_store(target.path, _commit_options(mine), files)
    write_needed_settings(target, recovery.log, files)
    keep_times(source, original, target.path, files)
    end_copy(target.path, files)
    return recovery


def _finish(recovery: Recovery, files: FileWrites) -> None:
    opened, options = recovery.opened, _commit_options(recovery.options)
    if recovery.index_problem:  # no index file shows its sizes, and none is changed
        options = replace(options, settings=recovery.settings)
    if recovery.is_crashed:
        # Complete, but the checkpoint does not say so: as after an ASYNC commit. `open_store` flushes it.
        Abort.write_mark(opened, "recovered", files)
        end_rebuild(opened)
    if Abort.read_mark(opened):
        open_store(opened.path, options, files)
    end_rebuild(opened)
    files.remove(sizes_path(opened))


def _recovery_of_copy(source: Opened, target: Opened, options: RecoverOptions) -> Recovery:
    """What a copy would get: the parts, the holes in the log that would be filled, the log's end."""
    log = _open_store_log(source, options)
    journal = Journal.read(source)
    if journal is not None and not is_given_up_in_copy(source, journal, log):
        raise StoreInUseError(
            f"{source}: a commit of rmqlog was interrupted, and only this store can complete it. Copy the "
            "whole directory (cp -a --sparse=always) and recover the copy"
        )
    recovery = find_end(target, log, options, source)
    recovery.copied = copy_parts(source, log)
    if options.salvage:
        readable = ReadableEnd.find(source, log, recovery.end)
        recovery.holes = find_holes(
            log, recovery.stop, readable, Contradictions(source, log), recovery.queues
        )
        recovery.remains = readable
        recovery.end_at(end_of_salvaged(log, recovery.end, readable, recovery.holes))
    else:
        recovery.holes = short_tails(log, recovery.stop)
    holes = [(hole.start, hole.stop) for hole in recovery.holes]
    # up to the first invalid entry: a broker that starts makes a queue that begins with zeros again
    queues = QueueProofs(source, log).queues(lambda _: None, scan=True)
    recovery.begins = QueueProofs.begun_again(log, queues, holes, is_copied=True)
    check_holes(log, Ledger.read(source), recovery.holes)
    return recovery


def _commit_options(options: RecoverOptions) -> CommitOptions:
    return CommitOptions(
        log_directories=options.log_directories,
        settings=options.settings,
        is_queue_size_given=options.is_queue_size_given,
        cut_after_damage=options.cut_after_damage,
        ignore_missing_stores=options.ignore_missing_stores,
        message_index_enable=options.index,
        clock=options.clock,
    )


# ---- rows --------------------------------------------------------------------------------------------------


def _plan_rows(recovery: Recovery) -> Iterator[_Row]:
    yield from _log_rows(recovery)
    for change in recovery.changes:
        part = FOLDERS["batch" if change.is_batch else "simple"]
        yield (
            part, *change.queue, change.action, change.first, change.entries, change.by_broker, change.reason
        )  # fmt: skip
    yield from (
        ("consumequeue", *key, "create", end, 0, 0, f"no file, and {evidence}")
        for key, (end, evidence) in recovery.past.items()
    )
    yield from (
        ("consumequeue", *left.queue, "left", None, left.entries, None, left.reason) for left in recovery.left
    )
    if recovery.misplaced:
        reason = "messages with a queue id or queue offset that no queue can have, or far from all others"
        yield "consumequeue", None, None, "left", None, recovery.misplaced, None, reason
    for each in recovery.levels:
        reason = "delayOffset.json is ahead of the queue's end: new delayed messages would be skipped"
        lost = each.offset - each.end
        yield "delayOffset", SCHEDULE_TOPIC, each.level - 1, "lower", each.end, lost, None, reason
    for place, error in recovery.broken.items():
        name = paths.base_name(place)
        reason = f"{_put_aside(recovery, place)}; it cannot be read ({error}), and is kept as {name}.broken"
        yield "config", None, None, "aside", error.position, None, None, reason
    for topic, number in sorted(recovery.topics.items()):
        reason = (
            f"topics.json lacks the topic: it gets {number} queue{'s' * (number != 1)} again, as its files "
            "or messages show"
        )
        yield "topics", topic, None, "create", None, None, None, reason
    for topic, number in sorted(recovery.short_topics.items()):
        reason = f"readQueueNums of topics.json is less than the {number} queues that files or messages show"
        yield "topics", topic, None, "raise", None, number, None, reason
    yield from _index_rows(recovery)


def _put_aside(recovery: Recovery, place: str) -> str:
    """Which file of `config/` a recovery puts aside, and what that means."""
    name = paths.base_name(place)
    own, is_backup = name.removesuffix(".bak"), name.endswith(".bak")
    other = place.removesuffix(".bak") if is_backup else f"{place}.bak"
    text = f"config/{name} is put aside"
    if other in recovery.broken or not files_at(other).read(other):
        return f"{text}: {_LOST_WITH[own]}"
    return text if is_backup else f"{text}: its older .bak takes its place"


def _log_rows(recovery: Recovery) -> Iterator[_Row]:
    end = recovery.end
    how = "abnormal recovery (abort exists)" if recovery.is_crashed else "normal recovery"
    why = f": expected {end.end.expected}, found {end.end.found}" if end.end.expected else ""
    reason = f"{how} from {end.start}; the log ends there ({end.end.kind}{why})"
    yield "commitlog", None, None, "end", end.offset, recovery.units or None, None, reason
    if count := max(recovery.lost.count + recovery.damaged_messages, int(recovery.is_torn)):
        queues = first_names(f"{shown(topic)}-{number}" for topic, number, _, _ in recovery.lost.messages)
        place = "damaged bytes" if recovery.damaged_messages else "the torn end of the log"
        reason = f"messages that nobody can read, of {queues or place}"
        yield "commitlog", None, None, "lost", None, count, None, reason
    if recovery.lacks_ends:
        reason = "no file follows the last commitlog file, which is full, and no queue shows how many"
        yield "commitlog", None, None, "unknown", None, None, None, reason
    if recovery.refused is not None:
        yield "commitlog", None, None, "refused", end.offset, None, None, str(recovery.refused)
    for part in recovery.copied:
        left_out = f"; {NOT_COPIED}" if part.name == "commitlog" else ""
        reason = f"{part.files} files, {part.size} bytes (holes included) are copied{left_out}"
        yield part.name, None, None, "copy", None, part.files, None, reason
    for name in not_copied(recovery.source) if recovery.copied else ():
        reason = "no file of a store that a recovery knows; tiered storage is served from where it is"
        yield name, None, None, "omit", None, None, None, reason
    if recovery.filled:
        size = sum(hole.stop - hole.start for hole in recovery.filled)
        reason = f"{size} bytes that are no message become fillers: the messages behind them stay"
        yield "commitlog", None, None, "salvage", recovery.filled[0].start, len(recovery.filled), None, reason
    if records := [hole for hole in recovery.holes if hole.record]:
        reason = (
            "messages with a wrong size, magic code, physical offset, queue id or queue offset get the "
            "numbers that their queue entries show"
        )
        yield "commitlog", None, None, "restore", records[0].start, len(records), None, reason
    if recovery.remains is not None and recovery.remains.remains_of:
        count, names = recovery.remains.remains_of.total(), recovery.remains.remains_text
        reason = (
            f"whole messages behind damage ({names}) are left out as remains of an earlier recovery: they "
            "are older than the last one before the damage, or repeat queue offsets"
        )
        yield "commitlog", None, None, "drop", recovery.remains.old[0][0], count, None, reason
    if recovery.damage:
        first, size = recovery.damage[0], sum(each.stop - each.start for each in recovery.damage)
        reason = f"{size} damaged bytes, the first at {first.file.path} byte {first.start}: "
        reason += f"expected {first.expected}, found {first.found}"
        yield "commitlog", None, None, "keep", None, len(recovery.damage), None, reason
    if recovery.unopened:
        reason = "messages that no client decodes: the body is not what the sysFlag says, or a port is wrong"
        yield "commitlog", None, None, "left", None, recovery.unopened, None, reason
    for short in recovery.short:
        size = recovery.log.file_size
        reason = f"{short.path} has {short.size} bytes: a broker starts with files of {size} bytes only"
        yield "commitlog", None, None, "extend", short.stop, None, None, reason
    for queue, unit in recovery.ahead:
        cut = queue.unit_stop - unit
        reason = f"entries point to {end.offset} or behind, where the log has no message"
        yield FOLDERS[queue.kind], queue.topic, queue.queue_id, "cut", unit, cut, cut, reason


def _index_rows(recovery: Recovery) -> Iterator[_Row]:
    if recovery.index_problem:
        yield "index", None, None, "left", None, None, None, recovery.index_problem
    check = recovery.index
    if check is None or check.missing_from is None:
        return
    kept = check.kept()
    reason = (
        check.problem
        or f"{check.missing} entries are missing, the first of the message at {check.missing_from}"
    )
    yield (
        "index", None, None, "rebuild", check.missing_from, check.missing, None,
        f"{reason}; {kept} of {len(check.files)} files stay, the others are written again",
    )  # fmt: skip
