"""Every problem of a store as a list: no problem hides another, and none is an exception.

The commitlog is walked once. Queues are checked during the walk; index files, the checkpoint and the topics
after it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import get_ident

from store_format.bookkeeping.journal import CommitState, StoreState
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.log_comparison import (
    RecoverOptions,
)
from store_format.commit.rebuilt_index import IndexCheck, indexes_tags
from store_format.commitlog.dledger import committed_index, committed_stop
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import Filing
from store_format.consumequeue.files import has_rocksdb_queues
from store_format.diagnose.commitlog import Lost, check_log, report_cut, report_torn
from store_format.diagnose.databases import check_queue_database, has_databases, lacks_queue_database
from store_format.diagnose.files import check_elsewhere, usable_log
from store_format.diagnose.index import (
    add_messages,
    check_index_files,
    open_index_check,
    report_missing_entries,
)
from store_format.diagnose.problems import Diagnosis, Findings, LogSummary
from store_format.diagnose.queues import QueueCheck
from store_format.diagnose.state_files import (
    check_checkpoint,
    check_commits,
    check_committed,
    check_config,
    check_formats,
    check_lost_log,
    check_queue_ids,
    check_state,
    check_topics,
)
from store_format.display.text import shown
from store_format.display.unserved import Unserved
from store_format.errors import CorruptStoreError, OptionError, StoreError, UnsupportedFormatError
from store_format.files.read import FileCache, all_answered, files_at, one_look
from store_format.opened.store import Opened
from store_format.read.store import Queue, Store
from store_format.read.store_root import looks_like_store, own_directories, refuse_root
from store_format.survey.gone import QueueProofs
from store_format.survey.log_end import LogEnd, ReadableEnd
from store_format.survey.snapshot import Snapshot


@all_answered()
@one_look()
def diagnose(
    root: str,
    commit_log_paths: Sequence[str] = (),
    *,
    on_offset: Callable[[int], object] | None = None,
    readers: Store | None = None,
) -> Diagnosis:
    """Returns every problem of the store at `root`, and the sums of its commitlog's bytes.

    It also works on stores that `MessageStore.open` refuses; of a DLedger store whose commitlog is elsewhere,
    only the configuration is checked. A million messages take less than a second of one core. Memory does not
    grow with the log: it is one byte for each entry and four for each hash slot of one index file, and
    131,072 queue entries. `on_offset` is called from time to time with the physical offset that the walk has
    reached. `readers` is the store as a reader has opened it, if the caller has: its queues are compared with
    the log.

    Raises StoreNotFoundError when `root` cannot be listed, or has nothing of a store; no damage
    inside the store raises. In a store that is in use, retention may delete a file between listing and
    reading, which is a StoreError that says so.
    """
    opened = Opened(root)
    findings = Findings()
    names = files_at(root).names(root)  # raises where the root cannot be listed
    if "commitlog" not in names and not commit_log_paths and not looks_like_store(names):
        refuse_root(root, names)
    state = StoreState.of(opened)
    check_state(findings, opened, state)
    check_formats(findings, opened)
    check_config(findings, opened)
    check_queue_database(findings, opened)
    is_live = state is StoreState.LIVE
    unchecked = partial(Diagnosis, summary=LogSummary(state=state.value), root=root)
    try:
        directories = tuple(commit_log_paths) or own_directories(opened)
    except UnsupportedFormatError:  # of DLedger; the verdict says so
        check_elsewhere(findings, opened, (), is_live=is_live)
        return unchecked(findings.problems(), is_checked=False)
    has_more = check_elsewhere(findings, opened, directories, is_live=is_live)
    lost = Lost()
    with StoreState.still(opened):
        log, file_size, unplaced = usable_log(findings, opened, directories)
        lost_log = None if unplaced[0] else check_lost_log(findings, opened, log)
        if lost_log is not None:
            return unchecked(findings.problems(), lost_log=lost_log)
        given_up = check_commits(findings, opened, log)
        ends = _JudgedEnds.find(opened, log, state, directories)
        queues = QueueCheck(
            findings, opened, log, ends.states, ends.log_end, ends.filing(opened, log, state),
            has_queues=not (has_rocksdb_queues(opened) or lacks_queue_database(opened)),
        )  # fmt: skip
        # before the walk: a broker may add messages
        read = _queues_of_readers(opened, commit_log_paths, readers)
        walked = _LogCheck(findings, opened, log, file_size, state, ends, lost, queues)
        walked.run(on_offset)
        summary = walked.counted(read, unplaced)
        found = walked.checked(summary, has_more=has_more, given_up=str(given_up))
        found.uncommitted = "" if state is StoreState.LIVE else _uncommitted(opened, log, read or ())
        return found


@dataclass(frozen=True, slots=True)
class _JudgedEnds:
    """Where the log ends. `readable` is that end for readers, None where nothing shows it; `log_end` its
    offset. `states`: by which missing entries, and entries behind the log's end, are judged. Entries behind
    it `may_go_on` in a log that is not read. `is_hidden`: a commit, or a DLedger group, has not concluded
    what is behind it.
    """

    readable: ReadableEnd | None
    states: tuple[StoreState, StoreState]
    may_go_on: bool
    is_hidden: bool

    @property
    def log_end(self) -> int | None:
        return None if self.readable is None else self.readable.offset

    @staticmethod
    def find(opened: Opened, log: CommitLog, state: StoreState, directories: Sequence[str]) -> _JudgedEnds:
        base = _hidden_end(opened, log, state) if state is not StoreState.CRASHED else None
        end, readable = Snapshot.ends(opened, log, state) if base is None else (None, ReadableEnd(base, base))
        # Entries behind the end of an old commitlog may lead to that of DLedger, if it is not read.
        may_go_on = base is not None or bool(opened.unread_ledgers(directories))
        states = _judged_as(state, readable, may_go_on=may_go_on)
        proofs = QueueProofs(opened, log)
        if (
            end is not None
            and states[1] is StoreState.CRASHED
            and proofs.lost_last_files(end, proofs.queues(lambda _: None), is_crashed=True) is not None
        ):
            states = state, StoreState.CLEAN  # entries behind the log's end are not ahead of it
        return _JudgedEnds(readable, states, may_go_on, base is not None)

    def filing(self, opened: Opened, log: CommitLog, state: StoreState) -> Filing:
        """What a broker that starts files. All, if the store is not judged by its own state."""
        start = None if self.readable is None else self.readable.start
        filing = QueueProofs(opened, log).filing(state, start)
        return filing if self.states[0] is state else Filing(0, first_of=filing.first_of)


@dataclass(slots=True)
class _LogCheck:
    """The walk over the commitlog, and what is compared with it: `run` walks, `counted` compares the queues,
    and `checked` the other files.
    """

    findings: Findings
    opened: Opened
    log: CommitLog
    file_size: int
    state: StoreState
    ends: _JudgedEnds
    lost: Lost
    queues: QueueCheck
    summary: LogSummary = field(default_factory=LogSummary)
    index: IndexCheck | None = None
    last_offset: int = -1  # of a message

    def run(self, on_offset: Callable[[int], object] | None) -> None:
        log, ends = self.log, self.ends
        stop = log.stop if ends.log_end is None else ends.log_end
        index = self.index = open_index_check(self.opened, log, stop, ends.states[1])
        tag_keys = index is not None and indexes_tags(self.opened, log, index)

        def visit(run: UnitRun) -> None:
            self.queues.add(run)
            self.last_offset = int(run.physical_offsets[-1])
            if index is not None:
                add_messages(index, log.refs_of(run), tag_keys=tag_keys)
            if on_offset is not None:
                on_offset(run.file.start + run.stop)

        self.summary = check_log(
            self.findings, log, self.file_size, self.state, self.lost, visit, ends.readable
        )
        if self.state is StoreState.CLEAN and not ends.is_hidden:
            self.summary = _with_cut(self.findings, self.opened, log, self.summary, ends.readable)

    def counted(self, read: list[Queue] | None, unplaced: tuple[int, int]) -> LogSummary:
        """Compares the queues, and returns the sums of the store. `unplaced` are those of `usable_log`."""
        queues, summary, readable = self.queues, self.summary, self.ends.readable
        lost_entries = queues.finish(self.lost, summary.log_end)
        with unheard():
            queues.count_readable(read, reads_all=summary.unopened > 0)
        has_crashed = self.state is self.ends.states[1] is StoreState.CRASHED
        # else of an earlier one
        is_last_crash = has_crashed and readable is not None and not readable.remains_of
        is_torn = is_last_crash and readable is not None and _is_begun(self.log, readable.offset)
        return replace(
            summary,
            unplaced_bytes=sum(unplaced),
            stray_bytes=unplaced[1],
            lost_entries=lost_entries,
            lost_in_crash=max(queues.ahead, int(is_torn)) if is_last_crash else 0,
            readable=queues.readable,
            unread=0 if self.state is StoreState.LIVE else queues.unread,
            batched=queues.batched,
            repeated=queues.repeated,
            not_light=queues.not_light,
            unclaimed=queues.unclaimed,
        )

    def checked(self, summary: LogSummary, *, has_more: bool, given_up: str) -> Diagnosis:
        """Checks the topics, the index, the checkpoint and the commits."""
        findings, opened, log, ends = self.findings, self.opened, self.log, self.ends
        queues, index, state = self.queues, self.index, self.state
        unknown = check_topics(findings, opened, queues.topics, queues.filled)
        unserved = queues.unserved | check_queue_ids(findings, opened, queues.filled)
        check_index_files(
            findings,
            f"{opened.path}/index",
            log,
            StoreState.LIVE if ends.may_go_on else state,
            summary.log_end if ends.log_end is None else ends.log_end,
            self.lost,
        )
        if index is not None:
            report_missing_entries(findings, index)
        check_checkpoint(findings, opened, summary, max(summary.log_end, self.lost.stop))
        if state is not StoreState.LIVE:
            check_committed(findings, log, self.last_offset)
        sized = index  # shows the sizes of index files, also after a crash, when it is not compared
        if state is StoreState.CRASHED:
            sized = open_index_check(opened, log, log.stop, StoreState.CLEAN)
        return Diagnosis(
            findings.problems(),
            summary,
            opened.path,
            has_more=has_more,
            is_dledger=log.has_heads or bool(opened.dledger_logs),
            has_databases=has_databases(opened),
            refusal=_refusal(log.directories),
            log_begin=log.min_offset,
            given_up=given_up,
            unserved=Unserved.of(unserved, queues.all_messages(unknown)),
            unserved_light=Unserved.of(queues.unserved_light, {}),
            lost=tuple(queues.lost_places.rows),
            readable_topics=queues.readable_topics,
            lacks_last_files=queues.lead_behind_files,
            lacks_ends=queues.lacks_ends,
            lacks_settings=_lacks_settings(
                opened, log, queues, has_empty_index=sized is not None and sized.is_empty
            ),
        )


def _is_begun(log: CommitLog, end: int) -> bool:
    """Whether the head of a message is at the log's end."""
    return log.store_timestamp_at(log.message_offset(end)) >= 0


def _uncommitted(opened: Opened, log: CommitLog, queues: Iterable[Queue]) -> str:
    """How many messages that are read a DLedger group may not have committed, by topic; empty without any."""
    counts, index = Counter[str](), None
    for ledger in opened.dledger_logs:
        with suppress(CorruptStoreError):  # is reported
            index, stop = committed_index(ledger), committed_stop(ledger, log.files, log.cache)
            for queue in queues:
                if stop is not None and queue.scanned is None:
                    *_, behind = queue.piece(queue.min_offset, queue.max_offset).split_at([stop])
                    counts[queue.topic] += behind.stop - behind.start
    if not counts.total():
        return ""
    by_topic = ", ".join(f"{count:,} of {shown(topic)}" for topic, count in counts.most_common(5) if count)
    more = "" if len(+counts) <= 5 else f" and {len(+counts) - 5:,} more"
    noun = "messages" if counts.total() > 1 else "message"
    are = "are" if counts.total() > 1 else "is"
    return (
        f"{counts.total():,} {noun} behind the committed index {index} {are} not known to be committed: "
        f"{by_topic}{more}"
    )


def _queues_of_readers(
    opened: Opened, commit_log_paths: Sequence[str], store: Store | None
) -> list[Queue] | None:
    """The queues as a reader sees them in the commitlog; None if readers refuse the store."""
    with suppress(StoreError, OSError), unheard():
        store = store or Store.open(
            opened.path,
            commit_log_paths=commit_log_paths,
            skip_unreadable=True,
            fail_on_unknown=False,
            compacted=False,
        )
        queues = store.queues()
        return [Queue(each.store, each.range.in_log, None) if each.range.parts else each for each in queues]
    return None


@contextmanager
def unheard() -> Iterator[None]:
    """Without the warnings of this thread's reads: the problems name what a read leaves out. Those of other
    threads are heard.
    """
    here = get_ident()

    def is_heard(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno >= logging.ERROR

    loggers = [
        logging.getLogger(name)
        for name in [*logging.root.manager.loggerDict]
        if name.startswith("store_format.")
    ]
    for logger in loggers:
        logger.addFilter(is_heard)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_heard)


def _with_cut(
    findings: Findings, opened: Opened, log: CommitLog, summary: LogSummary, readable: ReadableEnd | None
) -> LogSummary:
    """Reports what a broker cuts from the log of a store that was stopped in order, and counts that."""
    if readable is not None and not readable.remains:
        report_torn(findings, log, readable.offset)
    if readable is not None or not summary.damage_bytes:
        return summary
    end = ReadableEnd.find(opened, log, LogEnd.after_stop(log))  # CommitLog.recoverNormally
    report_cut(findings, log, end)
    if end.damage is None:
        return summary
    return replace(summary, cut_offset=end.cut, cut_bytes=end.offset - end.cut, cut_messages=end.messages)


def _lacks_settings(opened: Opened, log: CommitLog, queues: QueueCheck, *, has_empty_index: bool) -> bool:
    """Whether a recovery asks for sizes that the files do not show: those of the commitlog, of an index with
    entries, or of consume queues or an index without a file, which it builds. Or for the delay of a level.
    """
    levels, options = queues.unfiled_levels, RecoverOptions()
    try:
        options.settings_of(opened, log)
        return (
            (queues.is_incomplete and options.queue_file_size(opened, log) is None)
            or (has_empty_index and not options.is_index_size_known(opened, log))
            or (
                broker_conf_of(opened).known_delay_levels_ms is None
                and not levels <= QueueProofs(opened, log).shown_delays().keys()
            )
        )
    except (CorruptStoreError, OptionError) as error:  # the former is reported
        return isinstance(error, OptionError)


def _refusal(directories: Sequence[str]) -> CorruptStoreError | None:
    """The error with which every other command refuses the commitlog's files; None if they fit together."""
    try:
        CommitLog.open(directories, FileCache())
    except CorruptStoreError as error:
        return error
    return None


def _judged_as(
    state: StoreState, readable: ReadableEnd | None, *, may_go_on: bool
) -> tuple[StoreState, StoreState]:
    """The states by which missing entries, and entries behind the log's end, are judged.

    A clean store whose entries point to messages that an earlier recovery has cut is judged like a crashed
    one. Entries of an incomplete commit are judged like entries that are being written: the log `may_go_on`.
    """
    if may_go_on:
        return state, StoreState.LIVE
    has_cut = readable is not None and readable.remains > 0 and state is not StoreState.LIVE
    return (StoreState.CRASHED, StoreState.CRASHED) if has_cut else (state, state)


def _hidden_end(opened: Opened, log: CommitLog, state: StoreState) -> int | None:
    """The physical offset where an incomplete commit begins, or entries that a DLedger group has not
    committed: readers do not pass it. None without any.
    """
    try:
        base = CommitState.read(opened).base
        with unheard():
            return Snapshot.committed_end(opened, log, state) if base is None else base
    except CorruptStoreError:  # check_commits has reported the file
        return None
