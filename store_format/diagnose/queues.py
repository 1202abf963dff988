"""Consume queues against the commitlog, both ways: every message has its entry, and every entry its message.

Entries on disk are known to be right when as many of them were equal to those that the log's messages give.
Only another queue is read a second time, entry by entry, to report the wrong ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import without_ranges
from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.ledger import GivenUp
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.consumequeue.dispatch import Dispatch, Filing
from store_format.consumequeue.files import FOLDERS, cut_files, ext_directory, place_in_files
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.consumequeue.units import FiledQueue, lost_mask, message_mask, pre_blank_mask, resolve_known
from store_format.diagnose.commitlog import DAMAGE_ADVICE, Lost, Targets
from store_format.diagnose.files import QUEUE_ADVICE, SIZE_ADVICE, checked_queue_files, queue_directories
from store_format.diagnose.lost_messages import LOST_MAX, Evidence, LostMessages, LostPlaces
from store_format.diagnose.problems import (
    CLAIM_ADVICE,
    EXTENSION_ADVICE,
    FAR_ADVICE,
    Findings,
    Severity,
    repeated_text,
)
from store_format.diagnose.queue_advice import (
    AHEAD_ADVICE,
    BEHIND_ADVICE,
    BLANK_ADVICE,
    DELETED_ADVICE,
    HOLE_ADVICE,
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
from store_format.java.text import tags_code_many
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX, CQ_UNIT, OFFSET_MAX
from store_format.message.columns import decode_options_of
from store_format.message.locate import Identity, locate
from store_format.message.properties import PropertyTable
from store_format.names import SCHEDULE_TOPIC, TAGS, QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.read.store import Queue, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import Contradictions, LogEntries
from store_format.survey.fates import Fate, Fates, StoredTopics
from store_format.survey.gone import QueueProofs
from store_format.survey.queues import ComparedQueue, QueueComparison, StoredQueue

_PENDING_MAX = 1 << 17  # entries between two comparisons: a comparison of few entries of each queue is slow
_CHUNK_UNITS_MIN, _CHUNK_UNITS_MAX = 1 << 9, 1 << 16
_USUAL_UNITS = 300_000  # of a file: mappedFileSizeConsumeQueue / 20
_TOPICS = frozenset({"topics.json", "topics.json.bak"})
_SIZE_AT, _TAGS_CODE_AT = 8, 12  # in a unit

_IntArray = NDArray[np.int64]
_Units = NDArray[np.void]


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
        self._stored: dict[QueueKey, StoredQueue] = {}
        for topic, queue_id, directory, kind in queue_directories(findings, opened):
            layout = BATCH_CQ_UNIT if kind == "batch" else CQ_UNIT
            run, usable = checked_queue_files(findings, directory, layout.itemsize)
            size = layout.itemsize * _USUAL_UNITS if run is None else run.file_size
            starts = () if run is None else range(run.first_file, run.last_file + 1, run.file_size)
            self._stored[topic, queue_id] = StoredQueue(
                topic,
                queue_id,
                kind == "batch",
                directory,
                size,
                {start: f"{directory}/{StoreFile.name_at(start)}" for start in starts},
                "" if usable else "reported",
            )
        for kind in FOLDERS:
            mine = {key: each for key, each in self._stored.items() if each.kind == kind and each.files}
            files = {key: (each.files[min(each.files)], each.file_size) for key, each in mine.items()}
            for key, error in cut_files(files).items():
                findings.add_error("damage", error, SIZE_ADVICE, kind="queue")
                mine[key].files, mine[key].misfit = {}, "reported"
        # whether the files of a queue are lost, or have to be replaced
        self.is_incomplete = any(stored.misfit for stored in self._stored.values())
        batch = frozenset(topic for (topic, _), stored in self._stored.items() if stored.is_batch)
        with suppress(StoreError):  # another check reports topics.json
            batch |= StoredTopics(opened).batch
        self._dispatch = Dispatch(batch, ())  # delivery times are not compared
        end = OFFSET_MAX if log_end is None else log_end
        begins = GivenUp.known(opened).queue_begins
        with suppress(StoreError):  # `queue_directories` reports what is no queue
            queues = QueueProofs(opened, log).queues(lambda _: None)
            begins |= QueueProofs.begun_again(log, queues)
        self.comparison = QueueComparison(
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
        if lost.stop:
            self.comparison.end(lost.contains)
        damaged = self.comparison.damaged
        for error in damaged.values():
            self._findings.add_error("damage", error, DAMAGE_ADVICE)
        targets = Targets(self._log, log_end if self._log_end is None else self._log_end, lost)
        stranded, behind = 0, list[LostMessages]()
        ends: dict[QueueKey, int] = {}
        is_clean, last_behind = self._behind is StoreState.CLEAN, -1
        for key, stored in self._stored.items():
            if not stored.files:
                continue
            compared, extension = self.comparison.queues.get(key), ext_directory(self._opened, *key)
            if compared is not None:
                self._add_unserved(compared)
            check = _EntryCheck(self._findings, stored, targets, compared, extension, [*damaged])
            check.run(self._behind)
            stranded += check.lost
            self.unclaimed += check.unclaimed
            seen = self.comparison.queues.get(key)
            first = 0 if seen is None or stored.is_batch or lost.stop else seen.places.first
            if self._log.min_offset and stored.first < check.stop < first:  # behind entries that are expired
                given_up = self._given_up().within({key: (check.stop, first)})
                self.unclaimed += first - check.stop - given_up.count
            ends[key] = max(check.stop, 0 if seen is None else seen.places.max_offset)
            self.ahead += check.behind
            self.lost_places.add(*check.gone)
            behind += check.gone_behind
            last_behind = max(last_behind, check.last_behind)
            check.report_lacking(is_live=self._state is StoreState.LIVE)
        is_old = QueueProofs(self._opened, self._log).has_old_entries(last_behind)
        self.ahead = 0 if is_clean and is_old else self.ahead  # as a read: nothing was there
        self.lost_places.add(*(behind if self.ahead and self._behind is not StoreState.LIVE else ()))
        self.lead_behind_files = bool(is_clean and self.ahead and last_behind >= self._log.stop)
        if stranded:
            place, expected = f"{self._opened.path}/consumequeue", "entries that point to messages"
            found = f"{stranded} that point to lost messages"
            advice = "Follows from the damage of the commitlog; nothing else is wrong with the queues"
            self._findings.add("info", place, 0, expected, found, advice)
        self._report_absent()
        if self._behind is not StoreState.LIVE and (is_clean or not self.ahead):
            self.lacks_ends = QueueProofs(self._opened, self._log).lacks_ends(
                is_ahead=self.ahead + stranded > 0, lacks_queues=bool(self._lost)
            )
        self._count_places(has_lost=bool(lost.stop or damaged))
        if self.comparison.misplaced:
            place, expected = f"{self._opened.path}/consumequeue", "messages of queues that can have files"
            found = (
                f"{self.comparison.misplaced} messages with a queue id or queue offset that no queue can "
                "have, or far from all others"
            )
            advice = "Nothing needs to be done: only a search of the commitlog finds them, also at a broker"
            self._findings.add("info", place, 0, expected, found, advice)
        lost_messages = 0
        if lost.stop:  # else the places of messages that were never given these queue offsets
            given_up, deleted = self._given_up(), StoredTopics(self._opened).deleted_until()
            between = ComparedQueue.lost_between(self.comparison.queues.values(), deleted)
            for topic, queue_id, first, stop in between:
                known = given_up.within({(topic, queue_id): (first, stop)})
                lost_messages += stop - first - known.count
                left = without_ranges(first, stop, (each[2:] for each in known.messages))
                self.lost_places.add(
                    *(LostMessages(topic, queue_id, low, high - low, Evidence.GAP) for low, high in left)
                )
        ends |= {key: self.comparison.queues[key].places.max_offset for key in self._lost}
        self._report_ahead(ends if is_clean else {})
        if self._behind is not StoreState.LIVE:
            filed = (QueueRange(*key, 0, end, None) for key, end in ends.items())
            gone = QueueProofs(self._opened, self._log).gone_by_ledger(filed)
            lost_messages += sum(each.count for each in gone)
            self.lost_places.add(
                *(
                    LostMessages(one.topic, one.queue_id, one.first, one.count, Evidence.LEDGER)
                    for one in gone
                )
            )
        lost_messages += self.comparison.damaged_messages
        self.lost_places.add(*(LostMessages(None, None, None, 1, Evidence.CLAIM, at) for at in damaged))
        return stranded + lost_messages + (self.ahead if is_clean else 0)

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


# ---- the entries of one queue ------------------------------------------------------------------------------


@dataclass(slots=True)
class _EntryCheck:
    """One queue read from its first unit to its last: which entries point to no message, or to another
    message than they say. Entries point into the log, into lost ranges, or behind the log's end.
    """

    findings: Findings
    queue: StoredQueue
    targets: Targets
    compared: ComparedQueue | None
    extension: str  # its directory
    damaged: Sequence[int]  # the physical offsets of messages that are reported already
    low: int = 0  # the number of the first unit that is not pre-blank
    stop: int = 0  # the queue offset behind the last entry
    first_physical: int = -1  # the physical offset in the first entry that points into the log
    inside: int = 0
    lost: int = 0
    gone: list[LostMessages] = field(default_factory=list)  # to damage; the first ones
    gone_behind: list[LostMessages] = field(default_factory=list)  # behind the log's end; the first ones
    unclaimed: int = 0  # entries outside of the queue's messages that lead to others
    behind: int = 0
    first_behind: tuple[int, int] = (0, 0)  # unit number and physical offset
    last_behind: int = -1  # the greatest physical offset of an entry behind the log's end
    unknown: int = 0  # entries of messages whose tags code in the extension is lost
    has_wrong: bool = False  # has an entry behind the log's end whose message is elsewhere

    def run(self, state: StoreState) -> None:
        """Counts the entries, and reports the wrong ones if not all are known to be right.

        `state` is how entries behind the log's end are judged.
        """
        self.low, self.stop = self.queue.first, 0 if self.queue.is_batch else self.queue.first
        for number, units in self._chunks():
            self._count_chunk(number, units)
        if state is not StoreState.LIVE:
            self._report_blank()
        if self.behind and state is not StoreState.LIVE:
            severity: Severity = "damage" if state is StoreState.CLEAN else "warning"
            number, physical = self.first_behind
            file, position = self._place(number)
            expected = f"entries that point to messages before the log's end, {self.targets.end}"
            found = f"physicalOffset {physical}, the first of {self.behind} entries of {self._name} behind it"
            self.findings.add(severity, file, position, expected, found, BEHIND_ADVICE, kind="behind")
        if self.unknown:
            expected = f"an extension with the tags codes of {self._name} (enableConsumeQueueExt)"
            found = f"none for {self.unknown} messages"
            self.findings.add("warning", self.extension, 0, expected, found, EXTENSION_ADVICE)
        right = self.compared.equal if self.compared is not None else 0
        # an entry is equal to each of two messages that claim its place
        has_pairs = self.compared is not None and self.compared.seen.claims.repeated
        may_be_wrong = self.has_wrong or has_pairs or ComparedQueue.differences_of(self.compared, "wrong")
        if self.inside != right or may_be_wrong:
            self._report_wrong()

    @property
    def _name(self) -> str:
        return f"{self.queue.topic}-{self.queue.queue_id}"

    def _place(self, number: int) -> tuple[str, int]:
        """(file, byte) of a unit."""
        return place_in_files(self.queue.directory, self.queue.file_size, number * self.queue.layout.itemsize)

    def _offsets(self, number: int, units: _Units) -> _IntArray:
        """The queue offsets of units; the first of them is unit `number`."""
        if self.queue.is_batch:
            return units["base_offset"].astype(np.int64)
        return np.arange(number, number + len(units), dtype=np.int64)

    def _messages(self, units: _Units) -> NDArray[Any]:
        """How many messages each unit leads to."""
        return units["batch_size"] if self.queue.is_batch else np.ones(len(units), np.int64)

    def _chunks(self) -> Iterator[tuple[int, _Units]]:
        """(number of the first unit, units), up to the last valid one, or a whole chunk without one.

        Chunks begin small, because small queues are many.
        """
        start, high, count = self.queue.first, self.queue.stop, _CHUNK_UNITS_MIN
        while start < high:
            units = self.queue.read(start, min(start + count, high))
            used = np.flatnonzero((units["size"] > 0) & (units["physical_offset"] >= 0))
            if not len(used):
                return
            yield start, units[: int(used[-1]) + 1]
            start, count = start + len(units), min(2 * count, _CHUNK_UNITS_MAX)

    def _count_chunk(self, number: int, units: _Units) -> None:
        """Counts a chunk of units, and reports invalid units that have valid ones behind them."""
        targets = self.targets
        if number == self.low:
            blank = pre_blank_mask(units) & ~lost_mask(units)
            self.low += len(units) if blank.all() else int(np.argmin(blank))
        physical = units["physical_offset"].astype(np.int64)
        valid = (units["size"] > 0) & (physical >= 0)
        filled = np.flatnonzero(valid)
        if len(filled):
            covers = int(units["batch_size"][filled[-1]]) if self.queue.is_batch else 1
            self.stop = int(self._offsets(number, units)[filled[-1]]) + covers
        self._report_holes(number, units, np.flatnonzero(~valid))
        entries, is_elsewhere = message_mask(units), self._is_elsewhere(number, units)
        gone = entries & targets.lost.contains(physical) & ~is_elsewhere
        current = entries & (physical >= targets.log.min_offset) & ~gone
        current &= (physical < targets.end) | ~is_elsewhere
        self.has_wrong |= bool((entries & is_elsewhere & (physical >= targets.end)).any())
        behind = current & (physical >= targets.end)
        inside = current & ~behind
        if behind.any() and not self.behind:
            self.first_behind = (number + int(behind.argmax()), int(physical[behind.argmax()]))
        if inside.any() and self.first_physical < 0:
            self.first_physical = int(physical[inside.argmax()])
        self.last_behind = max(self.last_behind, int(physical[behind].max(initial=-1)))
        self.inside += int(inside.sum())
        if not self.queue.is_batch:
            self.unknown += resolve_known(self.extension, units["tags_code"][inside].astype(np.int64))
        messages = self._messages(units)
        self.lost += int(messages[gone].sum())
        self.behind += int(messages[behind].sum())
        self._collect(self.gone, number, units, np.flatnonzero(gone), Evidence.ENTRY)
        self._collect(self.gone_behind, number, units, np.flatnonzero(behind), Evidence.BEHIND)

    def _collect(
        self, found: list[LostMessages], number: int, units: _Units, rows: _IntArray, evidence: Evidence
    ) -> None:
        """Keeps the messages of the units at `rows`, up to `LOST_MAX` in all."""
        key, offsets = (self.queue.topic, self.queue.queue_id), self._offsets(number, units)
        for row in rows[: LOST_MAX - len(found)].tolist():
            count, physical = int(self._messages(units)[row]), int(units["physical_offset"][row])
            size = int(units["size"][row])
            found.append(LostMessages(*key, int(offsets[row]), count, evidence, physical, size))

    def _is_elsewhere(self, number: int, units: _Units) -> NDArray[np.bool_]:
        """Which of the units do not lead to their own message. The message is whole at another place; or it
        has expired, as an entry behind the unit shows that leads to an earlier place.
        """
        offsets, found = self._offsets(number, units), np.zeros(len(units), bool)
        physical = units["physical_offset"].astype(np.int64)
        rows = np.flatnonzero(message_mask(units))
        behind = np.delete(rows, LogEntries.longest_ascent(physical[rows]))
        found[behind] = physical[behind] >= self.targets.end
        for each in ComparedQueue.differences_of(self.compared, "wrong"):
            found |= (offsets >= each.first) & (offsets < each.stop)
        return found

    def _report_holes(self, number: int, units: _Units, holes: _IntArray) -> None:
        """Reports the invalid units at `holes`; equal ones in a row, such as zeros, as one problem."""
        physical, size = units["physical_offset"][holes], units["size"][holes]
        same = (np.diff(holes) == 1) & (np.diff(physical) == 0) & (np.diff(size) == 0)
        starts = np.flatnonzero(np.concatenate(([True], ~same))) if len(holes) else holes
        for start, stop in pairwise([*starts.tolist(), len(holes)]):
            file, position = self._place(number + int(holes[start]))
            found = f"physicalOffset {int(physical[start])} and size {int(size[start])}"
            more = f" in {stop - start} entries in a row" if stop - start > 1 else ""
            found = f"{found}{more}, with entries behind {'them' if more else 'it'}"
            if self._is_hole(number + holes[start:stop]):
                self.findings.add("info", file, position, f"an entry of {self._name}", found, HOLE_ADVICE)
                continue
            self._report(file, position, f"an entry of {self._name}", found)

    def _is_hole(self, offsets: _IntArray) -> bool:
        """Whether the log shows that these queue offsets never had a message."""
        unfilled = [
            range(each.first, each.stop) for each in ComparedQueue.differences_of(self.compared, "unfilled")
        ]
        queue, log = self.queue, self.targets.log
        if queue.is_batch or not all(any(offset in each for each in unfilled) for offset in offsets.tolist()):
            return False
        key = (queue.topic, queue.queue_id)
        bounds = queue.filed.bounds(log.min_offset)
        if bounds is None:
            return False
        return bool(
            LogEntries(log)
            .are_holes(QueueRange(*key, bounds.min_offset, bounds.max_offset, bounds), offsets)
            .all()
        )

    def _report_blank(self) -> None:
        """Reports a blank last file. A broker creates a file when it writes to it."""
        per_file = self.queue.file_size // CQ_UNIT.itemsize
        last = self.queue.stop - per_file
        if not self.queue.is_batch and self.stop <= last:
            file, position = self._place(last)
            self.findings.add("warning", file, position, "an entry", "a blank file", BLANK_ADVICE)
            stop = 0 if self.compared is None else self.compared.places.max_offset
            self.unclaimed += not self.stop % per_file and stop <= self.stop

    def _report(
        self, file: str, position: int, expected: str, found: str, advice: str = QUEUE_ADVICE
    ) -> None:
        self.findings.add("damage", file, position, expected, found, advice, kind="entry")

    def report_lacking(self, *, is_live: bool) -> None:
        """Reports runs of messages without an entry. While a broker writes, the last ones wait for it."""
        # A topic that was deleted and created again leaves messages in the log that are older than all that
        # the queue's entries point to, at offsets that the queue has.
        low = 0 if self.queue.is_batch else self.low
        for each in ComparedQueue.differences_of(self.compared, "missing"):
            is_left_over = each.physical < self.first_physical and each.first >= low
            if is_left_over or (is_live and each.first >= self.stop):
                continue
            is_dispatched = (
                each.first == self.stop
                and each.by_broker == each.entries
                and not self._has_second_first(each.physical)
            )
            severity: Severity = "warning" if is_dispatched else "damage"
            file, position = (self.queue.directory, 0) if self.queue.is_batch else self._place(each.first)
            expected = f"entries of {self._name} from offset {each.first} to {each.stop - 1}"
            found = f"none for {each.entries} messages, the first at commitlog {each.physical}"
            advice = LAG_ADVICE if severity == "warning" else QUEUE_ADVICE
            self.findings.add(severity, file, position, expected, found, advice, kind="entry")
        if self.compared is not None and self.compared.places.problem is not None:
            advice = QUEUE_ADVICE if self.compared.differences else FAR_ADVICE
            place, problem = self.queue.directory, self.compared.places.problem
            self.findings.add("damage", place, 0, *problem, advice, kind="entry")

    def _has_second_first(self, physical: int) -> bool:
        """Whether a second message with offset 0 is behind the physical offset, and others are behind it. A
        broker files it behind the first one, and leaves out the message that has its place.
        """
        seen = None if self.compared is None else self.compared.seen
        return seen is not None and any(
            first == 0 and physical < low < seen.last for low, _, first, _ in seen.claims.left
        )

    @property
    def _ends(self) -> tuple[int, int]:
        """The queue offsets from the first message in the log to behind the last one."""
        if self.compared is None:
            return 0, 0
        runs, places = self.compared.seen.claims.runs, self.compared.places
        return (runs[0][0], runs[-1][1]) if self.queue.is_batch and runs else (places.first, places.stop)

    def _is_unclaimed(self, offset: int) -> bool:
        """Whether no message of the log has a queue offset between others."""
        first, stop = self._ends
        return first <= offset < stop and not any(
            each.first <= offset < each.stop for each in ComparedQueue.differences_of(self.compared, "wrong")
        )

    def _is_outside(self, offset: int) -> bool:
        """Whether a queue offset is before or behind those of all messages, and not that of a second one with
        offset 0, which a broker files. In a log that begins at 0, `_count_places` counts those before, but
        not of a batch queue, whose files do not say where it begins.
        """
        (first, stop), counts_before = self._ends, self.targets.log.min_offset or self.queue.is_batch
        if self.compared is None or (counts_before and offset < first):
            return True
        return offset >= stop and not self.compared.seen.claims.repeated

    # ---- wrong entries -------------------------------------------------------------------------------------

    def _report_wrong(self) -> None:
        """Compares every entry with the message that it points to."""
        for number, units in self._chunks():
            physical = units["physical_offset"].astype(np.int64)
            is_readable = self.targets.readable(physical)
            lost = message_mask(units) & ~is_readable & self._is_elsewhere(number, units)
            for row in np.flatnonzero(lost).tolist():
                offset = int(self._offsets(number, units)[row])
                expected = f"the place of the message {self._name} offset {offset}"
                self._report(*self._place(number + row), expected, f"physicalOffset {int(physical[row])}")
                self.unclaimed += self._is_outside(offset)
            rows = np.flatnonzero(message_mask(units) & is_readable & ~np.isin(physical, self.damaged))
            in_files = self.targets.log.file_index(physical[rows])
            for index in np.unique(in_files).tolist():
                if index >= 0:
                    self._check_in_file(index, number, units, rows[in_files == index])

    def _check_in_file(self, index: int, number: int, units: _Units, rows: _IntArray) -> None:
        """Compares the entries at `rows` of `units`, which point into one file, with their messages."""

        right = np.ones(len(rows), bool)

        def report(row: int, at: int, expected: str, found: str) -> None:
            right[row] = False
            file, position = self._place(number + int(rows[row]))
            offset, compared = int(offsets[row]), self.compared
            differs = compared is None or any(
                each.first <= offset < each.stop for each in compared.differences
            )
            who, advice = (
                f"the message {self._name} offset {offset}",
                QUEUE_ADVICE if differs else CLAIM_ADVICE,
            )
            self._report(file, position + at, f"{expected}{who}", found, advice)

        file = self.targets.log.files[index]
        topic = self.queue.topic
        physical = units["physical_offset"][rows].astype(np.int64)
        offsets = self._offsets(number, units)[rows]
        light = (is_light_queue(topic),)
        messages = self._messages(units)
        identity = Identity((topic,), None, np.full(len(rows), self.queue.queue_id, np.int32), offsets, light)
        for mine, refs in self.targets.log.refs_at(file, physical, identity):
            good, bad = locate(refs, verify_crc=False)
            for unit in bad:
                at, error = int(refs.physical_offsets[unit.index]), unit.error
                offset = int(offsets[mine.start + unit.index])
                is_whole = LogEntries(self.targets.log).message_at(at) is not None
                self.lost += self._is_unclaimed(offset) and not is_whole
                if is_whole and self._is_outside(offset):
                    self.unclaimed += int(messages[rows[mine][unit.index]])
                found = f"physicalOffset {at}, where {error.expected} is expected and {error.found} found"
                report(mine.start + unit.index, 0, "", found)
            kept = np.setdiff1d(np.arange(len(refs)), [unit.index for unit in bad])
            stored, sizes = units[rows[mine][kept]], refs.sizes[kept]
            kept += mine.start
            for i in np.flatnonzero(stored["size"] != sizes).tolist():
                report(int(kept[i]), _SIZE_AT, f"size {int(sizes[i])} of ", str(int(stored["size"][i])))
            if topic == SCHEDULE_TOPIC or not len(good):
                continue
            codes = tags_code_many(PropertyTable(good.raw_properties()).values(TAGS))
            tags = stored["tags_code"].astype(np.int64)
            for i in np.flatnonzero((tags != codes) & (tags > CQ_EXT_ADDRESS_MAX)).tolist():
                report(int(kept[i]), _TAGS_CODE_AT, f"tagsCode {int(codes[i])} of ", str(int(tags[i])))
        if light[0]:  # whose messages name it, and belong to another queue
            own = LogEntries(self.targets.log).leads_to_own(
                (topic, self.queue.queue_id), offsets, units[rows]
            )
            for row in np.flatnonzero(right & ~own).tolist():
                self.unclaimed += self._is_outside(int(offsets[row]))
                report(row, 0, "", f"physicalOffset {int(physical[row])}, of another message")
