"""The one way messages get into a store: staged files become one commit, all or nothing, once for each key.

The steps of a commit, for one store and for the stores of a cluster. Each step is done in all stores, in the
order of their names, before the next step begins; large parts of a cluster are carried out at the same time:

 1. Lock the store (`StoreLock`); refuse stores that are not written to and stores that a broker has open.
 2. Finish what a crash left (`open_store`). 3. Compare the key with the ledgers. A committed key ends the
 commit here. 4. Check the staged files (`_check`). 5. Decide every position, as a journal (`plan`). 6. Write
 the journals (`cluster.write_journals`). 7. Carry the journal out (`carry_out`): topics.json, `abort`,
 commitlog, consume queues and index, checkpoint, ledger, removal of `abort` and of the journal
 (`steps.publish` and `steps.conclude`). 8. Remove the staged files; report a broker that started meanwhile.

A failure before step 7 leaves the store as it was. A crash in step 7 is completed by the next writer
(`roll_forward`). From the journal and the staged files the rest of the commit follows: doing the steps again
writes the same bytes at the same places.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.identity import ClusterMember, LogPlace, StagedFile
from store_format.bookkeeping.journal import Abort, Journal
from store_format.bookkeeping.ledger import Ledger, LedgerEntry, LeftOut, ServiceTurn
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append_position import (
    complete_known_queues,
    ends_with_commit,
    find_writer_end,
    gaps_before,
    queue_append_positions,
)
from store_format.commit.cluster import committed_batch, refuse_missing_stores, write_journals
from store_format.commit.committed_batch import complete_batch, complete_from
from store_format.commit.journal_place import bytes_before
from store_format.commit.log_comparison import LockedStore
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.publication import Publication, note_flushed
from store_format.commit.roll_forward import repeat, roll_forward
from store_format.commit.staged_units import check_staged, remove_staging
from store_format.commit.staging import TIMES_SUFFIX
from store_format.commit.steps import conclude, publish, undo, write_topics
from store_format.commit.unsupported import StoreRefusals
from store_format.commitlog.write import LogLayout
from store_format.errors import OptionError, StoreInUseError, StoreWriteError
from store_format.files import paths
from store_format.files.lock import StoreLock
from store_format.files.read import files_at
from store_format.files.write import FileWrites, saying_nothing_written
from store_format.index.updates import last_index_file
from store_format.metadata.read import known_topics, read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.survey.fates import StoredTopics
from store_format.survey.gone import QueueProofs

_log = logging.getLogger(__name__)

# A last message that is further ahead of the clock than this does not move the store times of new messages.
_CLOCK_STEP_MAX_MS = 24 * 3_600_000
_PUBLISHED_AT_ONCE_MAX = 4  # stores of a cluster; each takes about 30 MB for its chunks


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit did to one store. `committed` is False if the key had been committed before.

    `start` and `stop` are the physical offsets [start, stop) of the new messages. `queues` maps (topic, queue
    id) to the queue offsets [start, stop) of the new messages. `reports` are sentences about a repeated
    batch, and about earlier batches that were cut or overwritten since. `sync_seconds` is the time spent
    waiting for the disk.
    """

    committed: bool
    start: int = 0
    stop: int = 0
    queues: Mapping[QueueKey, tuple[int, int]] = field(default_factory=dict)
    reports: tuple[str, ...] = ()
    sync_seconds: float = 0.0


def commit(
    root: str,
    staged: Sequence[StagedFile],
    *,
    key: tuple[str, int] | None = None,
    store_timestamps: int | NDArray[np.int64] | None = None,
    options: CommitOptions | None = None,
) -> CommitResult:
    """Publishes the staged files, in this order, and removes them.

    `key` is (id, number). A number that is not above the highest committed number of its id is a replay:
    nothing is written. `store_timestamps` (ms) is one for all messages, raised to the last message's where it
    is below, or one for each message, taken as given; None is the clock.

    Raises StoreInUseError when another process has the store, UnsupportedFormatError for a store or topic
    that is not written to, and StoreWriteError naming the file that could not be written: the store is then
    as before, or the error says that the next writer completes the batch.
    """
    options = options or CommitOptions()
    return _commit_all({root: staged}, key, store_timestamps, (), options, is_cluster=False)[root]


def commit_held(
    lock: StoreLock,
    opened: Opened,
    staged: Sequence[StagedFile],
    *,
    turn: ServiceTurn | None,
    store_timestamps: int | NDArray[np.int64] | None,
    options: CommitOptions,
) -> CommitResult:
    """`commit` for a caller that holds the store's lock already.

    A `turn` is always carried out: the service has decided under the lock where it goes on (`resume`).
    """
    key = None if turn is None else (turn.key_id, turn.number)
    if turn is not None and turn.batch is None:
        options = replace(options, keeps_key=True)
    return _commit_all(
        {opened.path: staged}, key, store_timestamps, (), options, is_cluster=False, held=lock, turn=turn
    )[opened.path]


def commit_cluster(
    members: Mapping[str, Sequence[StagedFile]],
    *,
    key: tuple[str, int] | None = None,
    store_timestamp: int | None = None,
    watched: Collection[str] = (),
    options: CommitOptions | None = None,
) -> dict[str, CommitResult]:
    """`commit` for several stores at once, by root (absolute path): everything is published, or nothing.

    A key that any store has is committed: a commit that was broken off is finished in all stores first.
    `watched` are stores of the cluster without a part in this commit: their keys count too, and they get a
    note (`left_out`). New topics are created in every store of `members`. `options.log_directories` is
    ignored: each store has its own `commitlog`.

    Raises StoreNotFoundError for a key while a store is missing that has batches of this cluster
    (`refuse_missing_stores`).
    """
    options = replace(options or CommitOptions(), log_directories=())
    return _commit_all(members, key, store_timestamp, watched, options, is_cluster=True)


def recover(root: str, *, options: CommitOptions | None = None) -> None:
    """Completes what a crash left, of a broker or of a commit, without a new message."""
    opened = Opened(root)
    options = options or CommitOptions()
    StoreRefusals(opened).refuse_store()
    with StoreLock(root, timeout=options.lock_timeout) as lock:
        lock.refuse_other_openers()
        held = open_store(root, options, FileWrites(sync=options.sync))
        _complete_topics(held)
        if options.cut_after_damage or not StoredTopics(opened).has_queue_files or ends_with_commit(held):
            complete_known_queues(held)


def flush(root: str, *, options: CommitOptions | None = None) -> None:
    """Flushes what ASYNC commits wrote: syncs all files, updates the checkpoint, removes `abort`.

    A SYNC commit does the same.
    """
    options = options or CommitOptions()
    recover(root, options=replace(options, sync=True))


# ---- the steps ---------------------------------------------------------------------------------------------


def _complete_topics(held: LockedStore) -> None:
    """Completes the topics of commits that topics.json lacks because it is older than the ledger."""
    created = held.ledger.created
    known = known_topics(held.opened) if created else None
    if known and not created.keys() <= known.keys() and StoredTopics(held.opened).missing(known):
        complete_from(held, held.log.min_offset)


@dataclass(slots=True)
class _CommitMember:
    """A store of a commit. `publication` is None until step 6, and for a store that gets no message."""

    opened: Opened
    staged: tuple[StagedFile, ...]
    lock: StoreLock
    held: LockedStore
    reports: tuple[str, ...] = ()
    publication: Publication | None = None

    def result(self, files: FileWrites) -> CommitResult:
        if self.publication is None:
            return CommitResult(True, reports=self.reports)
        journal, entry = self.publication.journal, self.publication.entry
        ends = zip(journal.queues, journal.queue_bases, self.publication.queue_stops, strict=True)
        queues = {queue: (first, stop) for queue, first, stop in ends}
        waited = files.sync_seconds + self.held.files.sync_seconds
        return CommitResult(True, journal.base, entry.stop, queues, self.reports, waited)


def _commit_all(
    parts: Mapping[str, Sequence[StagedFile]],
    key: tuple[str, int] | None,
    store_timestamps: int | NDArray[np.int64] | None,
    watched: Collection[str],
    options: CommitOptions,
    *,
    is_cluster: bool,
    held: StoreLock | None = None,
    turn: ServiceTurn | None = None,
) -> dict[str, CommitResult]:
    files = FileWrites(sync=options.sync)
    with ExitStack() as stack:
        with saying_nothing_written():
            members = _open_members(parts, stack, options, held)
            repeated = None
            for member in members:
                _complete_topics(member.held)
            if key is not None and turn is None:
                repeated = _repeated(members, watched, key, options)
            if repeated is not None:
                for member in members:
                    remove_staging(member.opened, member.staged, files)
                return {member.opened.path: CommitResult(False, reports=(repeated,)) for member in members}
            if is_cluster and key is not None:
                ignores = options.ignore_missing_stores
                refuse_missing_stores(
                    [member.opened.path for member in members], watched, key, files, ignore_missing=ignores
                )
            for member in members:
                # A store of a cluster cannot undo its part: nothing is left to be checked in step 7.
                member.reports += _check(member.held, member.staged, records_sum=is_cluster)
            began = None if turn is None else turn.began
            _plan_members(members, key, store_timestamps, options, files, is_cluster=is_cluster, began=began)
            published = [
                (member.publication, member.held) for member in members if member.publication is not None
            ]
            if key is not None and published:
                untold = [*watched, *(member.opened.path for member in members if member.publication is None)]
                _note_left_out(untold, key, published[0][0].journal.members, options, files)
            write_journals({each.opened.path: each.journal for each, _ in published}, files)
            _carry_out_all(published)
        batch = StagedFile.totals(each for member in members for each in member.staged)
        named = published[0][0].journal.members if published else ()
        for member in members:
            _finish(member, key, batch, named, files, keeps_key=options.keeps_key)
        return {member.opened.path: member.result(files) for member in members}


def _open_members(
    parts: Mapping[str, Sequence[StagedFile]],
    stack: ExitStack,
    options: CommitOptions,
    held: StoreLock | None,
) -> list[_CommitMember]:
    """Steps 1 and 2. `held` is the lock of the only store if the caller has it.

    Each store has its own FileWrites, because they are published at the same time.
    """
    roots = sorted(parts)
    for root in roots:
        StoreRefusals(Opened(root)).refuse_store()
    if held is not None:
        locks = [held]
    else:
        locks = [stack.enter_context(StoreLock(root, timeout=options.lock_timeout)) for root in roots]
    for lock in locks:
        lock.refuse_other_openers()
    return [
        _CommitMember(
            Opened(root),
            tuple(parts[root]),
            lock,
            open_store(root, options, FileWrites(sync=options.sync)),
        )
        for root, lock in zip(roots, locks, strict=True)
    ]


def _repeated(
    members: Sequence[_CommitMember], watched: Collection[str], key: tuple[str, int], options: CommitOptions
) -> str | None:
    """Step 3: the report on a batch whose key is committed in any of the stores; None for a batch that is to
    be written. What the commitlog of a member has of the batch is completed.
    """
    opened = {member.opened.path: member for member in members}
    found, damage = None, None
    for root in (*opened, *watched):
        committed = committed_batch(Opened(root), key, ignore_missing=options.ignore_missing_stores)
        member = opened.get(root)
        entry = None if committed is None or member is None else member.held.ledger.keys.get(key[0])
        is_same = entry is not None and entry.number == key[1]
        if entry is not None and member is not None:
            if is_same and entry.is_gone(member.held.log):
                continue  # the store has nothing of it, as if it had not been committed
            lost = QueueProofs.lost_of_batch(entry, member.held.log) if is_same else []
            damage = QueueProofs.damage_of_batch(entry, member.held.log, lost)
            if is_same and damage is None:
                complete_batch(member.held, entry)
            elif is_same and options.lost_batch == "again":
                complete_from(member.held, entry.start)
                member.reports += (_note_again(Opened(root), key, entry, sum(each.count for each in lost)),)
                return None
        if committed is not None and (found is None or damage is not None):
            found = root, committed
        if damage is not None:
            break
    if found is None:
        return None
    staged = [each for member in members for each in member.staged]
    return found[1].note_repeat(found[0], key, staged, is_stream=options.keeps_key, damage=damage)


def _note_again(opened: Opened, key: tuple[str, int], entry: LedgerEntry, lost: int) -> str:
    """Logs that a batch of which so many messages are lost is written again, and returns that report."""
    twice = f"the other {entry.units - lost:,} messages" if lost else "what it has of the batch"
    report = (
        f"{opened}: batch {key[1]} of {key[0]} is written again, because {lost:,} of its {entry.units:,} "
        f"messages are lost; the store then has {twice} twice"
    )
    _log.warning("%s", report)
    return report


def _plan_members(
    members: Sequence[_CommitMember],
    key: tuple[str, int] | None,
    store_timestamps: int | NDArray[np.int64] | None,
    options: CommitOptions,
    files: FileWrites,
    *,
    is_cluster: bool,
    began: int | None,
) -> None:
    """Step 5. The journals of a cluster have one id, and name all stores that get messages."""
    filled = [member for member in members if any(each.units for each in member.staged)]
    journals = [
        plan(member.held, member.staged, key=key, store_timestamps=store_timestamps, began=began)
        for member in filled
    ]
    if is_cluster:
        assert len({paths.parent(member.opened.path) for member in filled}) <= 1  # names are relative to it
        ClusterMember.separate_copies(
            [member.opened.path for member in members],
            lambda root, member: member in Ledger.read(Opened(root)).members,
            files,
        )
        named = tuple(ClusterMember.of(member.opened, files) for member in filled)
        messages, bodies = StagedFile.totals(each for member in filled for each in member.staged)
        journals = [
            replace(each, id=journals[0].id, members=named, messages=messages, bodies=bodies)
            for each in journals
        ]
    for member, journal in zip(filled, journals, strict=True):
        member.publication = Publication(member.opened, journal, member.held.log, member.held.files)
    for member in members if filled else ():
        if member.publication is None:
            write_topics(member.opened, options.new_topics, options.clock(), files)


def _note_left_out(
    left_out: Collection[str],
    key: tuple[str, int],
    named: tuple[ClusterMember, ...],
    options: CommitOptions,
    files: FileWrites,
) -> None:
    """Before step 6: the stores of the cluster that get nothing now learn where the batch may be.

    A member without messages notes the key in step 8; a crash before that leaves the note.
    """
    for root in left_out:
        try:
            LeftOut(key, named).add_to(Opened(root), files, is_kept=options.keeps_key)
        except StoreWriteError as error:
            if not options.ignore_missing_stores:
                raise
            _log.warning("%s; the store does not know batch %d of %s", error, key[1], key[0])


def _carry_out_all(published: Sequence[tuple[Publication, LockedStore]]) -> None:
    """Step 7 for all stores, large parts at the same time.

    The journals of all stores are complete: each completes its part, whatever becomes of the others.
    """
    if len(published) == 1 or all(publication.is_little for publication, _ in published):
        for each in published:
            carry_out(*each)
        return
    with ThreadPoolExecutor(_PUBLISHED_AT_ONCE_MAX, thread_name_prefix="rmqlog-store") as threads:
        parts = [threads.submit(carry_out, *each) for each in published]
    for part in parts:
        part.result()


def carry_out(publication: Publication, held: LockedStore) -> None:
    """Step 7 for one store. A failure is undone while no queue was touched, else rolled forward.

    The part of a cluster is always rolled forward: other stores may have published theirs.
    """
    opened, journal, files = publication.opened, publication.journal, held.files
    previous_mark = Abort.read_mark(opened)
    try:
        publish(publication, files)
        conclude(opened, journal, files)
    except BaseException as error:
        try:
            if not journal.members and not publication.touched_queues:
                undo(publication, previous_mark, files)
                raise
            if not isinstance(error, Exception):
                raise  # This process is being ended: the next writer completes the commit.
            disturbance = publication.disturbance()
            if disturbance is not None:
                _log.warning("%s: %s; the commit is carried out again", opened.path, disturbance)
                # A new FileWrites: it holds no file that was removed.
                now = replace(held.relisted(), files=FileWrites(sync=files.is_sync))
                roll_forward(replace(now, settings=StoreSettings.of(opened, now.log, "")), journal)
                return
            repeat(held, journal)
            conclude(opened, journal, files)
        except Exception as second:
            if second is error:
                raise
            raise StoreWriteError(
                f"{second}; before that: {error}. The commit is neither complete nor undone: "
                f"{Journal.path(opened)} exists, and the next writer completes it. Run the job again "
                "only if it writes with a key"
            ) from error


def _finish(
    member: _CommitMember,
    key: tuple[str, int] | None,
    batch: tuple[int, int],
    named: tuple[ClusterMember, ...],
    files: FileWrites,
    *,
    keeps_key: bool,
) -> None:
    """Step 8. A store that got no message notes the key, with the totals and stores of the whole batch."""
    opened = member.opened
    if member.publication is None and key is not None:
        messages, bodies = batch
        entry = LedgerEntry(
            key[1], "", 0, 0, -1, 0, 0, messages=messages, bodies=bodies, kept=keeps_key, members=named
        )
        Ledger.read(opened).with_key(key[0], entry).write(opened, files)
    LeftOut.settle(opened, files)
    remove_staging(opened, member.staged, files)
    if member.publication is not None:
        member.reports += _late_reports(member.lock, opened, member.publication.journal.id, files)


def _late_reports(lock: StoreLock, opened: Opened, journal: str, files: FileWrites) -> tuple[str, ...]:
    """The report on a broker that began to start during the commit.

    It is too late to refuse. The ledger marks the batch as suspect, and the next commit checks all of it.
    """
    try:
        lock.refuse_other_openers()
    except StoreInUseError as error:
        report = f"while this batch was committed: {error}"
        _log.warning("%s: %s", opened.path, report)
        Ledger.read(opened).with_suspect(journal).write(opened, files)
        return (report,)
    return ()


# ---- step 5 ------------------------------------------------------------------------------------------------


def _check(held: LockedStore, staged: Sequence[StagedFile], *, records_sum: bool = False) -> tuple[str, ...]:
    """Checks that the staged files are complete and that each message fits into a commitlog file.

    Returns a report for each earlier batch that was cut or overwritten since the last commit. Without
    `records_sum` the checksum of the messages is left to `Publication.append_log`, where a difference can
    still be undone.
    """
    for each in staged:
        check_staged(held.opened, each, records_sum=records_sum)
        LogLayout(0, held.settings.mapped_file_size_commit_log).place(
            np.array([each.unit_size_max] if each.units else [])
        )
    reports = tuple(held.ledger.new_reports(held.log))
    for report in reports:
        _log.warning("%s: %s", held.opened.path, report)
    return reports


def plan(
    held: LockedStore,
    staged: tuple[StagedFile, ...],
    *,
    key: tuple[str, int] | None,
    store_timestamps: int | NDArray[np.int64] | None,
    began: int | None = None,
) -> Journal:
    """The journal of a commit to one store: where the log ends, and the next offset of each queue.

    Writes an array of store times into the staging directory, so that the commit can be repeated. Raises
    UnsupportedFormatError and IllegalMessageError for topics and queues that are not written to, and
    StoreWriteError for messages without the CRC property that the log has.
    """
    opened, options, files, settings = held.opened, held.options, held.files, held.settings
    now = options.clock()
    end = find_writer_end(held)
    _warn_of_links(held)
    queues = tuple(dict.fromkeys(queue for each in staged for queue in each.queues))
    topics: Mapping[str, TopicConfig] = read_topics(opened, is_needed=True) or {}
    StoreRefusals(opened).refuse_topics(queues, topics)
    StoreRefusals(opened).refuse_timer({topic for topic, _ in queues}, topics)
    if began is None:  # A broker delivers to the queue that a message names, whatever topics.json says.
        StoreRefusals(opened).refuse_missing_queues(
            (*queues, *(queue for each in staged for queue in each.parked)), topics
        )
    _refuse_missing_crc(held, staged, end.offset)
    timestamp, times_name = _store_times(opened, staged, store_timestamps, now, files)
    if timestamp < end.last_timestamp <= timestamp + _CLOCK_STEP_MAX_MS:
        timestamp = end.last_timestamp  # store times never go back, unless the clock was far wrong
    messages, bodies = StagedFile.totals(staged)
    bases = queue_append_positions(held, end, queues)
    places = tuple(LogPlace.of(opened, directory, files) for directory in held.log.directories)
    if not options.sync and Abort.read_mark(opened) is None:
        note_flushed(opened, end.last_offset, end.last_timestamp)
    return Journal(
        id=secrets.token_hex(8),
        key=key,
        staged=staged,
        skip=0,
        base=end.offset,
        file_size=settings.mapped_file_size_commit_log,
        queue_file_size=settings.queue_file_size,
        queues=queues,
        queue_bases=tuple(place.base for place in bases),
        new_topics=_new_topics(opened, options.new_topics, queues if began is None else (), topics),
        store_timestamp=timestamp,
        store_timestamps=times_name,
        sync=options.sync,
        index=options.message_index_enable,
        hash_slot_num=settings.geometry.hash_slot_num,
        index_num=settings.geometry.index_num,
        index_base=last_index_file(f"{opened.path}/index"),
        written_at=now,
        zone_seconds=time.localtime(now // 1000).tm_gmtoff,
        log_places=places,
        before=bytes_before(held.log, end.offset, end.last_offset)
        if any(each.id for each in places)
        else None,
        messages=messages,
        bodies=bodies,
        keeps_key=options.keeps_key,
        began=began,
        gaps=gaps_before(bases),
    )


def _warn_of_links(held: LockedStore) -> None:
    files = held.log.files
    if files and (count := files_at(files[-1].path).link_count(files[-1].path)) > 1:
        _log.warning(
            "%s has %d hard links: this write changes the same bytes in the other places, such as a backup "
            "that was made with cp -l. Copy the bytes instead (cp -a)",
            files[-1].path, count,
        )  # fmt: skip


def _new_topics(
    opened: Opened, wanted: Mapping[str, int], queues: Sequence[QueueKey], topics: Mapping[str, TopicConfig]
) -> dict[str, int]:
    """The number of queues of each topic that topics.json lacks.

    All of `wanted` count: a message in SCHEDULE_TOPIC_XXXX is for a topic that has no queue in this batch.
    No topic gets fewer queues than it has files of. If topics.json is lost, all topics with files get in.
    """
    missing = {topic: number for topic, number in wanted.items() if topic not in topics}
    for topic, queue_id in queues:
        if topic not in topics:
            missing[topic] = max(missing.get(topic, 0), queue_id + 1)
    filed = StoredTopics(opened).numbers(missing.__contains__) if missing else {}
    for topic, number in (filed | StoredTopics(opened).lost()).items():
        missing[topic] = max(missing.get(topic, 0), number)
    return missing


def _refuse_missing_crc(held: LockedStore, staged: Sequence[StagedFile], end: int) -> None:
    """Raises StoreWriteError for messages without a CRC property behind a message that has the property."""
    if all(each.crc_property for each in staged if each.units) or not held.log.has_crc_property_before(end):
        return
    raise StoreWriteError(
        f"{held.opened}: the last message of the log, which ends at {end}, has the property __CRC32# (a "
        "broker with enabledAppendPropCRC=true), and this write encoded its messages without it: a broker "
        "with forceVerifyPropCRC=true would truncate them. Nothing was written. A broker has written to the "
        "store since this write began: run it again"
    )


def _store_times(
    opened: Opened,
    staged: tuple[StagedFile, ...],
    store_timestamps: int | NDArray[np.int64] | None,
    now: int,
    files: FileWrites,
) -> tuple[int, str | None]:
    """(The store time of all messages in ms, None), or (0, the name of a staged file with one for each)."""
    if store_timestamps is None:
        return now, None
    if not isinstance(store_timestamps, np.ndarray):
        return store_timestamps, None
    units = sum(each.units for each in staged)
    if len(store_timestamps) != units:
        raise OptionError(
            f"{opened}: expected {units} store timestamps, one for each message, found "
            f"{len(store_timestamps)}"
        )
    if not staged:
        return 0, None
    name = f"{secrets.token_hex(8)}{TIMES_SUFFIX}"
    path = f"{StagedFile.directory(opened, staged[0].write)}/{name}"
    files.write_whole(path, store_timestamps.astype("<i8").tobytes())
    files.sync_directory(path.rpartition("/")[0])
    return 0, name
