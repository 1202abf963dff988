"""Consume queues against the commitlog, both ways: every message has its entry, and every entry its message.

Entries on disk are known to be right when as many of them were equal to those that the log's messages give.
Only another queue is read a second time, entry by entry, to report the wrong ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import without_ranges
from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.ledger import GivenUp
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import Dispatch, Filing
from store_format.consumequeue.files import FOLDERS, cut_files, ext_directory
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.consumequeue.units import FiledQueue
from store_format.diagnose.commitlog import DAMAGE_ADVICE, Lost, Targets
from store_format.diagnose.entry_check import EntryCheck
from store_format.diagnose.files import QUEUE_ADVICE, SIZE_ADVICE, checked_queue_files, queue_directories
from store_format.diagnose.lost_messages import Evidence, LostMessages, LostPlaces
from store_format.diagnose.plain_queues import PlainEntries, plain_queues
from store_format.diagnose.problems import (
    Findings,
    repeated_text,
)
from store_format.diagnose.queue_advice import (
    AHEAD_ADVICE,
    DELETED_ADVICE,
    LAG_ADVICE,
    LIGHT_ADVICE,
    LOST_ADVICE,
    NO_LIGHT_ADVICE,
    PAST_ADVICE,
    REPEATED_ADVICE,
    UNKNOWN_ADVICE,
    WRITTEN_ADVICE,
)
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.paths import StoreFile
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, OFFSET_MAX
from store_format.message.columns import decode_options_of
from store_format.names import QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.read.store import Queue, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.fates import Fate, Fates, StoredTopics
from store_format.survey.gone import QueueProofs
from store_format.survey.queues import ComparedQueue, QueueComparison, StoredQueue

_PENDING_MAX = 1 << 17  # entries between two comparisons: a comparison of few entries of each queue is slow
_USUAL_UNITS = 300_000  # of a file: mappedFileSizeConsumeQueue / 20
_TOPICS = frozenset({"topics.json", "topics.json.bak"})

_IntArray = NDArray[np.int64]
_Units = NDArray[np.void]


@dataclass(slots=True)
class _CheckedEntries:
    """What the entries of all queues say: how many lead to lost messages, the messages behind the log's end
    and the greatest physical offset of an entry there, and the queue offset behind each queue.
    """

    stranded: int = 0
    behind: list[LostMessages] = field(default_factory=list)
    last_behind: int = -1
    ends: dict[QueueKey, int] = field(default_factory=dict)


class QueueCheck:
    """Compares the queues with the log: `add` takes its runs, `finish` reports the differences."""

    def __init__(
        self,
        findings: Findings,
        opened: Opened,
        log: CommitLog,
        states: tuple[StoreState, StoreState],
        log_end: int | None,
        filing: Filing,
        *,
        has_queues: bool,
    ) -> None:
        """`states`: by which missing entries, and entries behind the log's end, are judged.

        `log_end` is where the log ends by the broker's rule after a crash, else None; messages behind it need
        no entry. `filing` is what a broker that starts files. `has_queues` is false where RocksDB keeps the
        queues.
        """
        self._findings, self._opened, self._log = findings, opened, log
        self._state, self._behind = states
        self._log_end, self._has_queues = log_end, has_queues
        # known after `finish`:
        self.lost_places = LostPlaces()
        self.lead_behind_files = False  # whether entries lead behind the last file of the log
        self.lacks_ends = False  # whether messages are lost of which no queue shows how many
        self.ahead = 0  # entries that lead behind the log's end
        self.repeated = 0  # messages whose place another one has
        self.not_light = 0  # the same in a light queue
        self.unserved: dict[QueueKey, int] = {}  # messages that a broker does not hand out after its start
        self.unserved_light: dict[QueueKey, int] = {}  # the same in light queues; they are also in their own
        self.unclaimed = 0  # queue offsets that no message has, and no recovery gave up
        self.batched = 0  # messages of batches less the batches, each of which is one record of the log
        # known after `count_readable`:
        self.readable = 0  # messages that a read returns
        self.readable_topics: Mapping[
            str, int
        ] = {}  # the same of each topic; empty if readers refuse the store
        self.unread = 0  # whole messages of the queues that a read does not return
        self._waiting: set[QueueKey] = set()  # without files: a broker that starts makes them
        self._lost: set[QueueKey] = set()  # without files
        self._left_out: set[QueueKey] = set()  # of deleted topics, or those about which a reader asks
        self._stored = self._list_queues()
        # whether the files of a queue are lost, or have to be replaced
        self.is_incomplete = any(stored.misfit for stored in self._stored.values())
        self._dispatch = Dispatch(self._batch_topics(), ())  # delivery times are not compared
        self.comparison = self._comparison(filing)

    def _list_queues(self) -> dict[QueueKey, StoredQueue]:
        """The files of each queue. Reports those that do not fit together."""
        queues: dict[QueueKey, StoredQueue] = {}
        findings = self._findings
        for topic, queue_id, directory, kind in queue_directories(findings, self._opened):
            layout = BATCH_CQ_UNIT if kind == "batch" else CQ_UNIT
            run, usable = checked_queue_files(findings, directory, layout.itemsize)
            size = layout.itemsize * _USUAL_UNITS if run is None else run.file_size
            starts = () if run is None else range(run.first_file, run.last_file + 1, run.file_size)
            queues[topic, queue_id] = StoredQueue(
                topic,
                queue_id,
                kind == "batch",
                directory,
                size,
                {start: f"{directory}/{StoreFile.name_at(start)}" for start in starts},
                "" if usable else "reported",
            )
        for kind in FOLDERS:
            mine = {key: each for key, each in queues.items() if each.kind == kind and each.files}
            files = {key: (each.files[min(each.files)], each.file_size) for key, each in mine.items()}
            for key, error in cut_files(files).items():
                findings.add_error("damage", error, SIZE_ADVICE, kind="queue")
                mine[key].files, mine[key].misfit = {}, "reported"
        return queues

    def _batch_topics(self) -> frozenset[str]:
        batch = frozenset(topic for (topic, _), stored in self._stored.items() if stored.is_batch)
        with suppress(StoreError):  # another check reports topics.json
            batch |= StoredTopics(self._opened).batch
        return batch

    def _comparison(self, filing: Filing) -> QueueComparison:
        opened, log = self._opened, self._log
        end = OFFSET_MAX if self._log_end is None else self._log_end
        begins = GivenUp.known(opened).queue_begins
        with suppress(StoreError):  # `queue_directories` reports what is no queue
            queues = QueueProofs(opened, log).queues(lambda _: None)
            begins |= QueueProofs.begun_again(log, queues)
        return QueueComparison(
            self._find, log=log, contradictions=Contradictions(opened, log), log_stop=end, begins=begins,
            broker_start=filing.start, filing=filing,
        )  # fmt: skip

    def _find(self, key: QueueKey) -> StoredQueue:
        return self._stored.get(key) or StoredQueue(
            *key, False, FiledQueue.of(self._opened, *key).directory, CQ_UNIT.itemsize * _USUAL_UNITS
        )

    @property
    def topics(self) -> dict[str, str]:
        """Topic -> the directory of one of its queues."""
        return {topic: stored.directory for (topic, _), stored in self._stored.items()}

    def all_messages(self, topics: Collection[str]) -> dict[str, int]:
        """The numbers of messages of topics that no client finds, also in queues that lack their files."""
        counts = dict.fromkeys(topics, 0)
        for key, queue in self.comparison.queues.items():
            if key[0] in counts and key not in self._left_out:
                counts[key[0]] += queue.seen.claims.count()
        return counts

    @property
    def filled(self) -> dict[QueueKey, tuple[str, int]]:
        """Queue -> (directory, number of its messages), for queues with files, or that a broker will file."""
        return {
            key: (queue.stored.directory, queue.seen.claims.count())
            for key, queue in self.comparison.queues.items()
            if queue.stored.files or key in self._waiting
        }

    @property
    def unfiled_levels(self) -> set[int]:
        """The delay levels, from 1, of the queues that have messages without an entry."""
        queues = self.comparison.queues if self._has_queues else {}
        lacking = {key for key, queue in queues.items() if queue.equal < queue.seen.claims.count()}
        return {level for key, level in self._dispatch.levels if key in lacking and level > 0}

    def count_readable(self, readers: Sequence[Queue] | None, *, reads_all: bool) -> None:
        """Counts the messages that a read returns of `readers`, the queues as a reader sees them. None:
        readers refuse the store, and all messages count.

        Queues of which all entries are right are not read again unless `reads_all`: the bodies of some
        messages cannot be opened.
        """
        counts = {
            key: queue.seen.claims.count()
            for key, queue in self.comparison.queues.items()
            if key not in self._left_out
        }
        self.readable = sum(count for (topic, _), count in counts.items() if not is_light_queue(topic))
        if readers is None:
            return
        light = [each for each in readers if is_light_queue(each.topic)]
        others = [each for each in readers if not is_light_queue(each.topic)]
        self.readable_topics = self._count_rows(others, reads_all)
        self.readable, in_light = self.readable_topics.total(), self._count_rows(light, reads_all).total()
        self.unread = max(sum(counts.values()) - self.readable - in_light, 0)
        if self.unread and in_light:  # only light queues may lead to them
            self.readable += len(np.setdiff1d(_physical_offsets(light), _physical_offsets(others)))

    def _count_rows(self, readers: Sequence[Queue], reads_all: bool) -> Counter[str]:
        """How many messages a read of these queues returns, by topic."""
        pieces, counts = defaultdict[str, list[tuple[Queue, QueueSlice]]](list), Counter[str]()
        for queue in readers:
            compared = None if reads_all else self.comparison.queues.get(queue.key)
            right = None if compared is None else compared.right_within(queue.min_offset, queue.max_offset)
            if compared is not None and queue.scanned is not None:
                right = compared.seen.claims.count(queue.min_offset, queue.max_offset)
            counts[queue.topic] += right or 0
            if right is None:
                pieces[queue.topic].append((queue, queue.piece()))
        columns = ("queueOffset", "body") if reads_all else ("queueOffset",)
        for topic, mine in pieces.items():
            counts[topic] += sum(int(batch.num_rows) for batch in _rows(mine, *columns))
        return counts

    def add(self, run: UnitRun) -> None:
        """Takes a run of good messages, in the order of the log."""
        self._dispatch.add(self._log.refs_of(run))
        if self._dispatch.count >= _PENDING_MAX:
            self._compare_pending()

    def _compare_pending(self) -> None:
        names, rows = self._dispatch.take_rows()
        if self._log_end is not None:
            rows = rows[rows["physical"] < self._log_end]
        self.batched += int((rows["batch_size"] - 1).sum())
        self.comparison.add(names, rows)

    def finish(self, lost: Lost, log_end: int) -> int:
        """Reports all differences, and returns how many messages are lost: entries lead to them, or
        they have a wrong topic or place, or no entry and no message has queue offsets between others.

        The walk ended at `log_end`; entries may point into `lost`.
        """
        self._compare_pending()
        targets = Targets(self._log, log_end if self._log_end is None else self._log_end, lost)
        plain = plain_queues(() if self._opened.is_remote else self.comparison.queues.values(), targets)
        if lost.stop:
            self.comparison.end(lost.contains, {key: each.first_physical for key, each in plain.items()})
        damaged = self.comparison.damaged
        for error in damaged.values():
            self._findings.add_error("damage", error, DAMAGE_ADVICE)
        checked, is_clean = self._check_entries(targets, plain), self._behind is StoreState.CLEAN
        self._judge_behind(checked)
        if checked.stranded:
            found = f"{checked.stranded} that point to lost messages"
            advice = "Follows from the damage of the commitlog; nothing else is wrong with the queues"
            self._add_info("entries that point to messages", found, advice)
        self._report_absent()
        if self._behind is not StoreState.LIVE and (is_clean or not self.ahead):
            self.lacks_ends = QueueProofs(self._opened, self._log).lacks_ends(
                is_ahead=self.ahead + checked.stranded > 0, lacks_queues=bool(self._lost)
            )
        self._count_places(has_lost=bool(lost.stop or damaged))
        if self.comparison.misplaced:
            found = (
                f"{self.comparison.misplaced} messages with a queue id or queue offset that no queue can "
                "have, or far from all others"
            )
            advice = "Nothing needs to be done: only a search of the commitlog finds them, also at a broker"
            self._add_info("messages of queues that can have files", found, advice)
        # else the places of messages that were never given these queue offsets
        lost_messages = self._add_lost_between() if lost.stop else 0
        ends = checked.ends | {key: self.comparison.queues[key].places.max_offset for key in self._lost}
        self._report_ahead(ends if is_clean else {})
        lost_messages += self._add_lost_by_ledger(ends) if self._behind is not StoreState.LIVE else 0
        lost_messages += self.comparison.damaged_messages
        self.lost_places.add(*(LostMessages(None, None, None, 1, Evidence.CLAIM, at) for at in damaged))
        return checked.stranded + lost_messages + (self.ahead if is_clean else 0)

    def _add_info(self, expected: str, found: str, advice: str) -> None:
        self._findings.add("info", f"{self._opened.path}/consumequeue", 0, expected, found, advice)

    def _check_entries(self, targets: Targets, plain: Mapping[QueueKey, PlainEntries]) -> _CheckedEntries:
        """Reads the queues with files, except the `plain` ones, and reports what is wrong with them."""
        checked, damaged = _CheckedEntries(), [*self.comparison.damaged]
        for key, stored in self._stored.items():
            if not stored.files:
                continue
            compared = self.comparison.queues.get(key)
            if compared is not None:
                self._add_unserved(compared)
            if key in plain:
                checked.ends[key] = self._end(stored, plain[key].stop, targets)
                continue
            extension = ext_directory(self._opened, *key)
            check = EntryCheck(self._findings, stored, targets, compared, extension, damaged)
            check.run(self._behind)
            checked.stranded += check.lost
            self.unclaimed += check.unclaimed
            checked.ends[key] = self._end(stored, check.stop, targets)
            self.ahead += check.behind
            self.lost_places.add(*check.gone)
            checked.behind += check.gone_behind
            checked.last_behind = max(checked.last_behind, check.last_behind)
            check.report_lacking(is_live=self._state is StoreState.LIVE)
        return checked

    def _end(self, stored: StoredQueue, stop: int, targets: Targets) -> int:
        """The queue offset behind the last entry, which ends at `stop`, and the last message. Counts the
        offsets between expired messages and those in the log that no message has.
        """
        key = (stored.topic, stored.queue_id)
        seen = self.comparison.queues.get(key)
        first = 0 if seen is None or stored.is_batch or targets.lost.stop else seen.places.first
        if self._log.min_offset and stored.first < stop < first:  # behind entries that are expired
            self.unclaimed += first - stop - self._given_up().within({key: (stop, first)}).count
        return max(stop, 0 if seen is None else seen.places.max_offset)

    def _judge_behind(self, checked: _CheckedEntries) -> None:
        """Decides what entries behind the log's end say: messages that are lost, or that never were there."""
        is_clean = self._behind is StoreState.CLEAN
        is_old = QueueProofs(self._opened, self._log).has_old_entries(checked.last_behind)
        self.ahead = 0 if is_clean and is_old else self.ahead  # as a read: nothing was there
        is_lost = self.ahead and self._behind is not StoreState.LIVE
        self.lost_places.add(*(checked.behind if is_lost else ()))
        self.lead_behind_files = bool(is_clean and self.ahead and checked.last_behind >= self._log.stop)

    def _add_lost_between(self) -> int:
        """Adds the lost messages that neither log nor queue show, and returns how many they are."""
        given_up, deleted = self._given_up(), StoredTopics(self._opened).deleted_until()
        lost_messages = 0
        between = ComparedQueue.lost_between(self.comparison.queues.values(), deleted)
        for topic, queue_id, first, stop in between:
            known = given_up.within({(topic, queue_id): (first, stop)})
            lost_messages += stop - first - known.count
            left = without_ranges(first, stop, (each[2:] for each in known.messages))
            self.lost_places.add(
                *(LostMessages(topic, queue_id, low, high - low, Evidence.GAP) for low, high in left)
            )
        return lost_messages

    def _add_lost_by_ledger(self, ends: Mapping[QueueKey, int]) -> int:
        """Adds the lost messages that only the ledger shows, and returns how many they are."""
        filed = (QueueRange(*key, 0, end, None) for key, end in ends.items())
        gone = QueueProofs(self._opened, self._log).gone_by_ledger(filed)
        self.lost_places.add(
            *(LostMessages(one.topic, one.queue_id, one.first, one.count, Evidence.LEDGER) for one in gone)
        )
        return sum(each.count for each in gone)

    def _count_places(self, *, has_lost: bool) -> None:
        """Counts messages that are in no queue, and offsets without a message, unless those are lost."""
        given_up = self._given_up()
        for key, queue in self.comparison.queues.items():
            claims, before = queue.seen.claims, list[tuple[int, int]]()
            if not self._log.min_offset and queue.is_comparable and not queue.stored.is_batch:
                first = queue.places.first
                before = [(min(queue.stored.first, first), first)]  # a broker begins at the first file
            self.repeated += 0 if is_light_queue(key[0]) else claims.repeated
            self.not_light += claims.repeated if is_light_queue(key[0]) else 0
            self.unclaimed += sum(
                stop - first - given_up.within({key: (first, stop)}).count
                for first, stop in ([] if has_lost else [*before, *queue.gaps])
            )
        if self.repeated or self.not_light:
            place, expected = f"{self._opened.path}/consumequeue", "one message for each queue offset"
            found = repeated_text(self.repeated, self.not_light)
            self._findings.add("info", place, 0, expected, found, REPEATED_ADVICE)

    def _add_unserved(self, queue: ComparedQueue) -> None:
        """A message of a light queue is served from its own queue."""
        if self._state is not StoreState.LIVE and queue.unserved:
            counts = self.unserved_light if is_light_queue(queue.key[0]) else self.unserved
            counts[queue.key] = queue.unserved

    def _given_up(self) -> GivenUp:
        with suppress(CorruptStoreError):  # another check reports the file
            return GivenUp.read(self._opened)
        return GivenUp()

    def _report_ahead(self, ends: Mapping[QueueKey, int]) -> None:
        """Reports groups that have committed an offset behind the end of a queue, and behind all that a
        recovery has given up: the next message gets an offset behind that.
        """
        given_up = {(topic, number): stop for topic, number, _, stop in self._given_up().messages}
        for key, known in Fates(self._opened, self._log).committed_ends().items():
            if known.offset > max(ends.get(key, known.offset), given_up.get(key, 0)):
                place = f"{self._opened.path}/config"
                expected = f"committed offsets up to {ends[key]}, its end"
                kind = f"ahead {key}"
                self._findings.add("warning", place, 0, expected, known.evidence, AHEAD_ADVICE, kind=kind)

    def _report_absent(self) -> None:
        """Reports the queues that have messages and no files, by the fate of the messages."""
        absent = {
            key: queue
            for key, queue in self.comparison.queues.items()
            if self._has_queues and not queue.stored.files and not queue.stored.misfit
        }
        seen = {key: queue.seen for key, queue in self.comparison.queues.items()}
        has_topics = bool(self._opened.files.names(f"{self._opened.path}/config", missing_ok=True) & _TOPICS)
        has_light = StoredTopics(self._opened).has_light_queues
        # whether the broker makes light queues
        is_shown = self._opened.files.is_directory(f"{self._opened.path}/{FOLDERS['simple']}")
        for key, (fate, evidence) in sorted(Fates(self._opened, self._log).decide(absent, seen).items()):
            queue = absent[key]
            is_light = is_light_queue(key[0])
            is_dispatched = self._state is StoreState.CRASHED and (is_shown or not is_light)
            is_dispatched &= not (queue.seen.claims.left or queue.seen.gaps)  # it files one behind the other
            if fate is not Fate.DELETED and is_dispatched and 0 < queue.places.entries == queue.by_broker:
                fate = Fate.WAITING
            count = queue.places.entries + queue.places.misplaced
            place = f"{self._opened.path}/consumequeue/{key[0]}/{key[1]}"
            expected = f"consume queue files of {key[0]}-{key[1]}"
            found = f"none for {count} messages, the first at commitlog {queue.begin}"
            if 0 < queue.by_broker < count and self._state is not StoreState.LIVE:
                found += f", of which a broker that starts writes the last {queue.by_broker}"
            found += f"; {evidence}"
            is_left = fate is Fate.DELETED or (is_light and not has_light)
            self._left_out |= {key} if is_left or fate is Fate.UNKNOWN else set()
            if is_left:
                advice = DELETED_ADVICE if fate is Fate.DELETED else NO_LIGHT_ADVICE
                self._findings.add("info", place, 0, expected, found, advice)
                continue
            self.is_incomplete = True
            self._lost.add(key)
            if fate is not Fate.UNKNOWN:
                self._add_unserved(queue)
            if fate is Fate.WAITING:
                self._waiting.add(key)
                self._findings.add("warning", place, 0, expected, found, LAG_ADVICE)
                continue
            # readers find lost queues by topics.json
            lost_advice = LIGHT_ADVICE if is_light else LOST_ADVICE if has_topics else QUEUE_ADVICE
            advice = UNKNOWN_ADVICE if fate is Fate.UNKNOWN else lost_advice
            is_right = not (queue.seen.claims.left or queue.seen.claims.repeated or queue.seen.gaps)
            is_written = not (is_light or queue.unserved or self._state is StoreState.LIVE)
            is_answered = self._state is StoreState.CRASHED and any(
                one.files for one in self._stored.values()
            )
            if is_written and (is_answered or fate is not Fate.UNKNOWN):
                advice = WRITTEN_ADVICE if is_right else lost_advice  # after a crash, readers do not ask
            self._findings.add("damage", place, 0, expected, found, advice)
        past = (
            Fates(self._opened, self._log).past_queues(self._log.min_offset, self.comparison.queues)
            if self._has_queues
            else {}
        )
        for (topic, queue_id), end in past.items():
            self.is_incomplete = True
            place = f"{self._opened.path}/consumequeue/{topic}/{queue_id}"
            expected = f"consume queue files of {topic}-{queue_id} that end at offset {end.offset} or later"
            self._findings.add("damage", place, 0, expected, f"none, and {end.evidence}", PAST_ADVICE)


def _rows(pieces: Sequence[tuple[Queue, QueueSlice]], *columns: str) -> Iterator[pa.RecordBatch]:
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    return read_pieces(pieces, decode_options_of(columns, True), tolerance)


def _physical_offsets(readers: Sequence[Queue]) -> _IntArray:
    """Those of the messages that a read of these queues returns."""
    rows = _rows([(queue, queue.piece()) for queue in readers], "physicalOffset")
    return np.concatenate([np.empty(0, np.int64), *(batch["physicalOffset"].to_numpy() for batch in rows)])
