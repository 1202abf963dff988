"""A store that is followed while a broker writes: the chosen queues as of the last look, and what changed.

A look first compares what would show a change: the store's signs, and the bytes at the end of the commitlog.
New messages in the commitlog name the queues to look at. Everything else (a crash, damage, a store without
consume queues) is read as a batch read does.

The signs are state, commits and directories; they need no read of the commitlog. Sizes and times of files
show nothing, because a broker writes into mapped files of full length. A directory's time shows new or
deleted files and queues.

A broker writes the commitlog first and its consume queues later, so that the newest messages may have no
queue entry yet. The follower reads them from the commitlog, from shortly before its end, at the start of a
message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from store_format.bookkeeping.journal import CommitState, StoreState, doorbell_path
from store_format.commitlog.log import CommitLog, written_stop
from store_format.consumequeue.files import FOLDERS
from store_format.consumequeue.slices import Newest, QueueRange
from store_format.consumequeue.units import list_queues
from store_format.display.text import shown
from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    OffsetOutOfRangeError,
    StoreError,
    StoreNotFoundError,
)
from store_format.files.paths import is_settled
from store_format.files.read import FileCache, all_answered, files_at, one_look
from store_format.follow.log_tail import (
    LogSamples,
    News,
    Replaced,
    follow_queues,
    is_torn,
    last_physical_offset,
    near_end,
    read_head,
    read_news,
    replaced_by,
)
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.read.store import Queue, QueueChoice, Store, find_queues
from store_format.read.store_root import OtherFiles
from store_format.survey.snapshot import Snapshot

_log = logging.getLogger(__name__)

# bytes of new messages that a look reads before it reads the queues instead; more for many queues
_NEWS_SIZE = 8 << 20
_NEWS_SIZE_OF_QUEUE = 64 << 10
_STUCK_NS, _STUCK_NS_MAX = 1_000_000_000, 10_000_000_000
_CATCHING_UP_NS = 1_000_000_000  # between looks at consume queues that a broker rebuilds
_PENDING_MAX = 20_000  # a hostile log may name any number of queues

_WORD_SIZE = 8  # total size and magic code of a message; all zeros where none was written
_MARGIN_SIZE = 16 << 20  # bytes of the log for which a broker may not have written queue entries yet
_PLACES_TRIED = (
    3  # the place that a queue names, and the starts of two files: the newest file may be nearly empty
)
_QUEUES_TRIED = 8
_VERSIONS_TRIED = 3  # looks at objects that are uploaded again meanwhile

_Identity = tuple[int, int, int] | None  # inode, size, time in ns; None for what is missing


class StoreFollower:
    """The chosen queues of one store, from look to look.

    `queues` are the chosen queues by (topic, queue id). `changed` are those that the last look that returned
    True found different, None for a queue that is gone. `replaced` are the queues that now have other
    messages at offsets that an earlier look knew.

    Objects of object storage, and a log without its last file, change only with their listing: nothing is
    read to find that out.
    """

    def __init__(
        self, store: Store, choice: QueueChoice, *, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self.store = (
            store.in_log()
        )  # rounds of compaction take messages away, and tiered storage has only older ones
        self.queues: dict[QueueKey, Queue] = {}
        self.changed: dict[QueueKey, Queue | None] = {}
        self.replaced: dict[QueueKey, Replaced] = {}
        self.cuts: list[int] = []
        self._choice = choice
        self._clock_ns = clock_ns
        self._signs: _Signs | None = None
        self._log = store.log
        self._end = 0  # of the log; all messages before it are in `queues`, except the `_pending` ones
        self._head = b""
        self._samples = LogSamples()
        self._grows = False  # whether the warning of a growing crashed store was logged
        # messages of the log that are not in their consume queues yet
        self._pending: dict[QueueKey, Newest] = {}
        self._follows = False
        # a file that was created and is still growing changes no directory when it reaches its length
        self._is_full = False
        self._stuck_since = self._stuck_wait = 0
        self._catching_up_since: int | None = None
        self._by_listing = store.log.growing_files is not None or store.opened.is_remote

    @property
    def log_end(self) -> int:
        """The end of the commitlog at the last look."""
        return self._end

    @property
    def _news_size(self) -> int:
        return _NEWS_SIZE + _NEWS_SIZE_OF_QUEUE * len(self.queues)

    def look(self, *, anew: bool = False) -> bool:
        """Whether anything has changed since the last look. `anew` trusts nothing seen before."""
        if self._by_listing:
            return self._look_by_listing(anew, _VERSIONS_TRIED)
        signs = self._read_signs()
        known, intact = self._signs, None
        if known is not None and not self._samples.is_intact(self._log):
            # retention may have deleted its file
            self._log = self._log.relisted(FileCache())
            intact = None if self._samples.is_intact(self._log) else self._samples.take_intact(self._log)
        is_live = signs.state is StoreState.LIVE
        quiet = signs == known and not (
            anew or intact is not None or self._pending or self._is_full or self._is_catching_up()
        )
        if (
            quiet
            and not self._is_due()
            and read_head(self._log, self._end) == self._head
            and not self._has_longer_file()
        ):
            return False
        if quiet and not is_live and is_torn(self._log, self._end):
            self._note_stuck(True, False)
            self._remember(signs)
            return False
        self.changed, self.replaced = {}, {}
        if known is None or anew or intact is not None or signs.is_another_store(known):
            self._follows = False
            return self._look_anew(signs, {}, intact)
        can_follow = (
            self._follows
            and signs.state is not StoreState.CRASHED
            and (self._stuck_wait < _STUCK_NS or not is_live)
            # another lock time: a broker was started, and may have cut the log
            and signs.lock == known.lock
        )
        if can_follow and self._follow(signs, self._news_size):
            return bool(self.changed)
        return self._look_anew(signs, self.changed)

    def _read_signs(self) -> _Signs:
        """The signs now. Costs about ten system calls."""
        store = self.store
        return _Signs(
            store.state,
            CommitState.read(store.opened),
            tuple(
                files_at(store.path).stat_identity(f"{store.path}/{folder}") for folder in FOLDERS.values()
            ),
            tuple(files_at(path).stat_identity(path) for path in store.commit_log_paths),
            files_at(store.path).stat_identity(f"{store.path}/lock"),
            store.opened.files.stat_identity(doorbell_path(store.opened)),
        )

    def _is_due(self) -> bool:
        """Whether to check an incomplete message at the log's end again: it may be complete soon."""
        return self._stuck_wait > 0 and self._clock_ns() - self._stuck_since >= self._stuck_wait

    def _has_longer_file(self) -> bool:
        """Whether the last file, which was full, has become longer.

        A copy that is refreshed grows without a sign in its directory.
        """
        if self._log.file_at(self._end) is not None or not self._log.files:
            return False
        return self._log.relisted(FileCache()).files != self._log.files

    def _look_by_listing(self, anew: bool, tries: int) -> bool:
        before = self._signs, self.queues, self.cuts
        try:
            with one_look((self.store.path, *self.store.commit_log_paths)), all_answered():
                self._log = self._log.relisted()
                signs = replace(self._read_signs(), listed=_listed(self.store.opened, self._log))
                known, intact = self._signs, None
                if known is not None and not anew and signs.versions == known.versions:
                    return False
                if known is not None and not self._samples.is_intact(self._log):
                    intact = self._samples.take_intact(self._log)
                self.changed, self.replaced = {}, {}
                return self._look_anew(signs, {}, intact)
        except StoreError as error:
            # some of what was found may come from requests that failed
            (self._signs, self.queues, self.cuts), self.store = before, self.store.without_memory()
            if not tries or not isinstance(error, FileReplacedError):
                raise
        return self._look_by_listing(anew, tries - 1)  # uploaded again during the look

    # ---- all of it, as a batch read looks ------------------------------------------------------------------

    def _look_anew(
        self, signs: _Signs, changed: dict[QueueKey, Queue | None], intact: int | None = None
    ) -> bool:
        """Looks at the whole store, as a batch read does.

        `changed` is what an attempt to follow has found already. With `intact`, the log is another one from
        that physical offset.
        """
        self._log = self._log.relisted(self.store.files)
        self.store = replace(self.store, log=self._log)
        crashed = signs.state is StoreState.CRASHED or self._by_listing
        near = end = 0
        if not crashed:  # before the queues are read: later messages are read from the log
            try:
                near, end = _find_start(self.store, self._log, signs, self._end if self._follows else None)
            except StoreNotFoundError:  # retention deleted the file before it was read
                self._log = self._log.relisted(FileCache())
                near, end = _find_start(self.store, self._log, signs, self._end if self._follows else None)
        self.store.look_again_for(self._with_messages(signs, intact))
        OtherFiles(self.store.opened).warn(self._log, self._choice.chooses_topic)  # of compacted topics
        # a warning at the first look only
        there = find_queues(
            self.store, self._choice, level=logging.DEBUG if self._signs is not None else logging.WARNING
        )
        found = {(queue.topic, queue.queue_id): queue for queue in (*there.queues, *there.scanned)}
        behind = self._catching_up(signs, found) if intact is None else {}
        self._catching_up_since = self._clock_ns() if behind else None
        found |= behind
        self.cuts = self.cuts if behind and not there.scanned else there.cuts
        self._note_changes(found, changed, intact)
        self._warn_of_growth(signs, found)
        gone = {key: self.queues[key] for key in self.queues.keys() - found.keys()}
        self.queues = found
        self._pending, self._is_full = {}, False
        self._follows = (
            not crashed
            and not there.scanned
            and not behind
            and not there.has_remains
            and self.store.has_consume_queues
        )
        last = max((last_physical_offset(queue.range) for queue in there.queues), default=-1)
        if crashed or there.scanned or there.has_remains:
            near = last if there.log_end is None else there.log_end
        elif last >= end:
            near = last  # a queue entry points behind damage where the walk ended
        moved, self._end = near != self._end, near
        self.changed = changed
        self._samples.add(self._log, last)
        if not self._follows or not self._follow(signs, None):
            self._note_stuck(any(read_head(self._log, self._end)[:_WORD_SIZE]), moved)
            self._remember(signs)
        for key in gone.keys() & self.queues.keys():  # the topic was created again since it was looked at
            replaced = replaced_by(gone[key], self.queues[key], intact)
            if replaced is not None:
                self.replaced[key] = replaced
        return bool(self.changed)

    def _with_messages(self, signs: _Signs, intact: int | None) -> Collection[QueueKey] | None:
        """The queues that have had messages; None if the log does not show which have new ones."""
        known = {key for key, queue in self.queues.items() if queue.max_offset} | self._pending.keys()
        if self._signs is None:
            return known
        if intact is not None or self._end < self._log.min_offset:
            return None
        try:
            news = read_news(
                self._log, self._end, signs.commit.base, self._choice.chooses_topic, self._news_size
            )
        except (CorruptStoreError, StoreNotFoundError, OffsetOutOfRangeError):
            return None
        return None if news is None or news.is_torn else known | news.queues.keys()

    def _note_changes(
        self, found: dict[QueueKey, Queue], changed: dict[QueueKey, Queue | None], intact: int | None
    ) -> None:
        """Adds to `changed` and `replaced` how the queues differ from those of the last look."""
        changed |= {
            key: queue
            for key, queue in found.items()
            if (before := self.queues.get(key)) is None
            or (before.range, before.scanned) != (queue.range, queue.scanned)
        }
        changed |= dict.fromkeys(self.queues.keys() - found.keys())
        for key in (
            found.keys() if intact is not None else changed.keys() & found.keys()
        ) & self.queues.keys():
            replaced = replaced_by(self.queues[key], found[key], intact)
            if replaced is not None:
                self.replaced[key], changed[key] = replaced, found[key]

    def _catching_up(self, signs: _Signs, found: dict[QueueKey, Queue]) -> dict[QueueKey, Queue]:
        """Queues that were scanned and that a broker is rebuilding.

        Their scanned state counts until the rebuilt queue is as long.
        """
        known = self._signs
        if known is None or signs.state is StoreState.CLEAN or signs.is_another_store(known):
            return {}
        behind = {
            key: before
            for key, before in self.queues.items()
            if before.scanned is not None and _is_behind(before, found.get(key))
        }
        topics = self.store.configured_topics() if behind else frozenset()
        return {key: before for key, before in behind.items() if key[0] in topics}

    def _is_catching_up(self) -> bool:
        """Whether such queues are to be looked at now: no directory shows that they grow."""
        since = self._catching_up_since
        return since is not None and self._clock_ns() - since >= _CATCHING_UP_NS

    def _warn_of_growth(self, signs: _Signs, found: dict[QueueKey, Queue]) -> None:
        """Warns once if a store that looks crashed gets messages: the lock of its writer cannot be seen."""
        was_crashed = self._signs is not None and self._signs.state is signs.state is StoreState.CRASHED
        if (
            was_crashed
            and not (self._grows or self._by_listing)
            and any(
                key not in self.queues or found[key].max_offset > self.queues[key].max_offset for key in found
            )
        ):
            self._grows = True
            _log.warning(
                "%s grows although it looks crashed (abort exists, and no process is seen to hold the file "
                "lock): a running broker "
                "whose lock cannot be seen here (NFS, a mirror, not Linux)? Each look scans the end of its "
                "commitlog",
                self.store.path,
            )

    def _remember(self, signs: _Signs, *, was_unwritten: bool = False) -> None:
        self._signs = signs.settled(self._clock_ns())
        head = read_head(self._log, self._end)
        # A message written since the end was found must not pass for the earlier bytes.
        self._head = b"" if was_unwritten and any(head[:_WORD_SIZE]) else head

    # ---- what came -----------------------------------------------------------------------------------------

    def _follow(self, signs: _Signs, size_max: int | None) -> bool:
        """Takes in the messages since the last look.

        False if that is not possible this way, or not within `size_max` bytes of the log.
        """
        known = self._signs
        try:
            was_quiet = known is not None and (signs.commit, signs.log_directories) == (
                known.commit,
                known.log_directories,
            )
            if self._is_full or not was_quiet:
                self._list_log(signs.state)
            if self._end < self._log.min_offset:
                return False  # retention deleted all files up to a later one
            if (
                known is not None
                and signs.queue_directories != known.queue_directories
                and self._has_vanished()
            ):
                return False  # a topic was deleted, or consume queues were lost
            news, ends, left = self._news(signs, size_max)
        except (CorruptStoreError, StoreNotFoundError, OffsetOutOfRangeError):
            return False  # damage, or files that were deleted meanwhile, or lost
        is_left = news is not None and news.is_torn and signs.state is not StoreState.LIVE
        if news is None or (is_left and size_max is not None and not _is_incomplete(self._log, news.end)):
            return False  # too many new bytes, or a damaged message that no process will complete
        self.queues |= ends
        self.changed |= ends
        pending = self._lacking(left)
        self._pending = pending if len(pending) <= _PENDING_MAX else {}
        if size_max is not None and signs.state is not StoreState.LIVE and pending.keys() & news.queues:
            return False  # no broker dispatches these messages any more: their queues have lost files
        moved, self._end = news.end != self._end, news.end
        self._is_full = news.is_full
        self._note_stuck(news.is_torn, moved)
        self._samples.add(self._log, news.last)
        self._remember(signs, was_unwritten=news.is_unwritten)
        return True

    def _news(
        self, signs: _Signs, size_max: int | None
    ) -> tuple[News | None, dict[QueueKey, Queue], dict[QueueKey, Newest]]:
        """The log's new messages, and what `_ends` says of them.

        If our own commit made progress meanwhile: only what was complete before.
        """
        stop = signs.commit.base
        for _ in range(2):
            news = read_news(self._log, self._end, stop, self._choice.chooses_topic, size_max)
            ends, left = (
                ({}, {})
                if news is None
                else self._ends(self._pending | news.queues, signs.state, stop, is_first=size_max is None)
            )
            if CommitState.read(self.store.opened) == signs.commit:
                return news, ends, left
            stop = CommitState.committed_end(self.store.opened)
            self._list_log(signs.state)
        # Less than everything, because of damage or of new files, could be a part of a commit.
        is_part = news is not None and stop is not None and news.end < stop
        return (None, {}, {}) if is_part else (news, ends, left)

    def _ends(
        self, newest: dict[QueueKey, Newest], state: StoreState, stop: int | None, *, is_first: bool
    ) -> tuple[dict[QueueKey, Queue], dict[QueueKey, Newest]]:
        """The new ends of the queues that `newest` names, and the messages that did not show them.

        `is_first`: the queues were read just now, so that most of these messages are in them.
        """
        if is_first:
            newest = self._lacking(newest)
        trusts_all, queues = state is not StoreState.LIVE, self.queues
        whole = newest
        if not trusts_all or not newest.keys() <= queues.keys():
            whole = {
                key: end for key, end in newest.items() if (trusts_all or end.is_whole) and key in queues
            }
        followed = follow_queues(queues, whole, self._pending.keys())
        ends = {key: queues[key].grown(self.store, newest[key]) for key in followed}
        is_all = len(ends) == len(newest)
        left = {} if is_all else {key: end for key, end in newest.items() if key not in ends}
        for key in left:
            if self._choice.chooses_queue(key[0], self.store.broker_name, key[1]):
                known = self.queues.get(key)
                found = Snapshot.take_queue(self.store.opened, self._log, state, *key, stop)
                _check_files(key, known, found)
                if found is None:
                    continue
                now = Queue(self.store, found, None)
                replaced = None if known is None else replaced_by(known, now, None)
                if replaced is not None:
                    self.replaced[key] = replaced
                if known is None or found.max_offset != known.max_offset or key in self.replaced:
                    ends[key] = now
        return ends, left

    def _lacking(self, newest: dict[QueueKey, Newest]) -> dict[QueueKey, Newest]:
        """The newest messages of chosen queues, where `queues` end before them."""
        return {
            key: end
            for key, end in newest.items()
            if ((queue := self.queues.get(key)) is None or queue.max_offset < end.stop)
            and self._choice.chooses_queue(key[0], self.store.broker_name, key[1])
        }

    def _note_stuck(self, is_torn: bool, moved: bool) -> None:
        """Schedules the next check of an incomplete message at the log's end.

        The next check comes at once, later ones less and less often: such bytes may be old and stay as they
        are.
        """
        if not is_torn:
            self._stuck_wait = 0
        elif moved or not self._stuck_wait:
            self._stuck_since, self._stuck_wait = self._clock_ns(), 1
        elif self._clock_ns() - self._stuck_since >= _STUCK_NS:
            self._stuck_since, self._stuck_wait = (
                self._clock_ns(),
                min(max(2 * self._stuck_wait, _STUCK_NS), _STUCK_NS_MAX),
            )

    # ---- files that came and went --------------------------------------------------------------------------

    def _list_log(self, state: StoreState) -> None:
        """Lists the commitlog files again.

        Where retention deleted files, the queues with messages in them begin later, or their topics were
        created again since.
        """
        before = self._log.min_offset
        self._log = self._log.relisted(FileCache())
        self.store = replace(self.store, log=self._log)
        if self._log.min_offset == before:
            return
        for key, queue in list(self.queues.items()):
            bounds = queue.range.bounds
            if (
                bounds is None
                or bounds.first_physical_offset >= self._log.min_offset
                or bounds.first_physical_offset < 0
            ):
                continue
            now = Snapshot.take_queue(self.store.opened, self._log, state, *key)
            if now is None:
                continue
            _check_files(key, queue, now)
            replaced, high = replaced_by(queue, Queue(self.store, now, None), None), queue.max_offset
            if replaced is not None and replaced.begin is not None:
                self.replaced[key], high = (
                    replaced,
                    now.min_offset,
                )  # new messages count when the log has them
            now = now._replace(max_offset=max(now.min_offset, high))
            self.queues[key] = self.changed[key] = Queue(self.store, now, None)

    def _has_vanished(self) -> bool:
        there = frozenset().union(
            *(
                files_at(self.store.path).names(f"{self.store.path}/{folder}", missing_ok=True)
                for folder in FOLDERS.values()
            )
        )
        return any(topic not in there for topic, _ in self.queues)


def _is_behind(before: Queue, now: Queue | None) -> bool:
    """Whether the rebuilt queue has only a part of the messages that a scan found, and no others."""
    if now is None:
        return True
    stop = 0 if before.scanned is None else before.scanned.physical_stop
    return (
        now.scanned is None and now.max_offset < before.max_offset and last_physical_offset(now.range) < stop
    )


def _check_files(key: QueueKey, before: Queue | None, now: QueueRange | None) -> None:
    """Raises if the queue may have lost all its files, or its first one: a look at the whole store shows
    it.
    """
    if now is None:
        is_lost = before is not None and before.range.bounds is not None
    else:
        begin = 0 if before is None or before.range.bounds is None else before.range.bounds.first_offset
        there = now.bounds
        is_lost = there is not None and there.first_offset > begin and there.may_lack_first_entries
    if is_lost:
        raise StoreNotFoundError(f"{shown(key[0])}-{key[1]} has lost consume queue files")


def _is_incomplete(log: CommitLog, start: int) -> bool:
    """Whether the last message, which begins at a physical offset, lacks its end: a copy of a store grows."""
    file = log.file_at(start)
    if file is not None and file.stop - start > _WORD_SIZE:
        size = int.from_bytes(log.read(start, _WORD_SIZE)[:4], "big")
        if 0 < size <= file.stop - start and log.read(start + size - 1, 1) != b"\0":
            return False
    return not any(log.runs(start, written_stop(log), verify_crc=True))


# ---- where reading begins ----------------------------------------------------------------------------------


def _find_start(store: Store, log: CommitLog, signs: _Signs, known: int | None) -> tuple[int, int]:
    """Returns (start, end): the physical offset to read from, and the log's end.

    A message begins at `start`, at least 16 MiB before the end if the log is that long. `known` is the end
    that an earlier look found, None without one.
    """
    begun = [file.start for file in log.files if any(read_head(log, file.start)[:_WORD_SIZE])]
    if not begun:
        return log.min_offset, log.min_offset
    if known is not None and known >= begun[-2:][0] and log.file_at(known) is not None:
        places = [known]
    else:
        places = sorted({*begun, _place_of_queue(store, log, signs.state)} - {-1})
    return signs.commit.settle(store.opened, partial(_start_before_end, log, places))


def _start_before_end(log: CommitLog, places: list[int], stop: int | None) -> tuple[int, int]:
    """Returns (start, end) of `near_end`, walking from the last place that lies far enough before the end.

    `places` are starts of messages in ascending order. Bytes at and behind `stop` belong to a
    commit that is not complete.
    """
    before = [place for place in places if stop is None or place <= stop][-_PLACES_TRIED:] or places[:1]
    for start in reversed(before):
        near, end = near_end(log, start, stop, _MARGIN_SIZE)
        if end - start >= _MARGIN_SIZE:
            break
    return near, end


def _place_of_queue(store: Store, log: CommitLog, state: StoreState) -> int:
    """The start of a message about 16 MiB before the newest one of a few queues; -1 where they name none.

    It saves a walk through a whole file: half a second for two million messages.
    """
    newest = _newest_queue(store, log, state)
    if newest is None or newest.is_batch:
        return -1
    try:
        _, behind = newest.piece(newest.min_offset, newest.max_offset).split_at(
            [_last(newest) - _MARGIN_SIZE]
        )
        _, units = newest.piece(max(behind.start - 1, newest.min_offset), behind.start).read()
        place = int(units[0]["physical_offset"]) if len(units) else -1
        return place if log.has_message_at(place) else -1
    except StoreError:  # retention took a file meanwhile
        return -1


def _newest_queue(store: Store, log: CommitLog, state: StoreState) -> QueueRange | None:
    names = sorted(files_at(store.path).names(f"{store.path}/{FOLDERS['simple']}", missing_ok=True))
    some = frozenset(names[:: max(len(names) // _QUEUES_TRIED, 1)])
    newest: QueueRange | None = None
    for topic, queue_id, _, _ in islice(
        list_queues(store.opened, some.__contains__, lambda error: None), _QUEUES_TRIED
    ):
        try:
            queue = Snapshot.take_queue(store.opened, log, state, topic, queue_id)
        except StoreError:
            continue  # a read of that queue raises the error
        if queue is not None and queue.bounds is not None and _last(queue) > _last(newest):
            newest = queue
    return newest


def _last(queue: QueueRange | None) -> int:
    return -1 if queue is None or queue.bounds is None else queue.bounds.last_physical_offset


# ---- the signs of a change ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Signs:
    """The signs at one look: equal to those of another look if no such change happened in between."""

    state: StoreState
    commit: CommitState
    queue_directories: tuple[_Identity, ...]
    log_directories: tuple[_Identity, ...]
    lock: _Identity = None  # its time changes when a broker starts, which may cut the log
    # its time changes when a commit ends: one that began and ended during a look leaves no other sign
    doorbell: _Identity = None
    listed: Hashable = None  # the versions of the files, where these show each change

    @property
    def versions(self) -> Hashable:
        """What differs at another look if anything has changed, where `listed` shows it."""
        return self.state, self.commit, self.listed

    def is_another_store(self, before: _Signs) -> bool:
        """Whether a directory was replaced: the store was restored from a copy, for example."""
        pairs = zip(
            (*before.queue_directories, *before.log_directories),
            (*self.queue_directories, *self.log_directories),
            strict=True,
        )
        return any(one is not None and other is not None and one[0] != other[0] for one, other in pairs)

    def settled(self, now_ns: int) -> _Signs:
        """The signs to compare with the next look.

        A directory that changed just now may change again within the same tick of its clock, so its time is
        left out.
        """
        queues, logs = (
            tuple(_settled(identity, now_ns) for identity in identities)
            for identities in (self.queue_directories, self.log_directories)
        )
        return replace(self, queue_directories=queues, log_directories=logs)


def _listed(opened: Opened, log: CommitLog) -> Hashable:
    """What changes with each change of the store that counts: the versions of all files; of a log without its
    last file, those of the log, and the names of the topics.
    """
    if log.growing_files is None:
        paths = (opened.path, *log.directories)
        return frozenset(each for path in paths for each in files_at(path).versions(path))
    return log.files, *(
        opened.files.names(f"{opened.path}/{folder}", missing_ok=True) for folder in FOLDERS.values()
    )


def _settled(identity: _Identity, now_ns: int) -> _Identity:
    return identity if identity is None or is_settled(identity, now_ns) else (identity[0], -1, -1)
