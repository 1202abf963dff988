"""Collects a report: one check of the whole store, and the views of what can be read."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.report.before import compared
from rmq_spark.report.contents import Contents, Section
from rmq_spark.report.page import page
from rmq_spark.report.start_notes import NextDeletion, backups, recovery_is_optional
from rmq_spark.report.text import document, markdown
from store_format.bookkeeping.journal import StoreState
from store_format.commit.needed_settings import needed_text
from store_format.diagnose import diagnose, unheard
from store_format.diagnose.broker_start import MayStart, broker_start
from store_format.diagnose.lost_messages import LOST_COLUMNS, lost_table
from store_format.diagnose.problems import PROBLEM_COLUMNS, Diagnosis, counted, verdict
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of
from store_format.display.text import shown
from store_format.display.units import size_text
from store_format.errors import StoreError
from store_format.files.read import files_at, one_look
from store_format.metadata.group_offsets import read_broker_offsets, refuse_unknown_offsets
from store_format.metadata.read import BrokerConf, read_broker_conf
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.views.files import FILE_COLUMNS
from store_format.views.lag_by_topic import LAG_BY_TOPIC_COLUMNS
from store_format.views.registry import refuse_no_ms, view_table

AFFECTED_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queues", INT, "Queues of the topic that have lost messages."),
    ViewColumn("lostUnread", LONG, "Lost messages that the group has not consumed: it never gets them."),
    ViewColumn("lostConsumed", LONG, "Lost messages that the group has consumed before."),
)
_SUMS = (
    ("messages", "unit_bytes"),
    ("padding", "blank_bytes"),
    ("damaged", "damage_bytes"),
    ("not written yet", "unwritten_bytes"),
    ("not in the sequence", "unplaced_bytes"),
    ("of missing files", "missing_bytes"),
)
_CHUNK = 1 << 20
_DRAWN_QUEUES_MAX = 500  # of all groups: a chart of more has no room


class Report(Contents):
    """A report in three forms."""

    def html(self) -> str:
        """One self-contained page, for a browser and for paper."""
        with unheard():
            return page(self)

    def markdown(self) -> str:
        """The report as Markdown, for a ticket or a terminal: the first rows of each section."""
        return markdown(self)

    def json(self) -> str:
        """One JSON document with all rows; `startCause` is null if a broker may start."""
        return document(self)

    def _repr_html_(self) -> str:
        return self.html()


def report(
    path: str,
    commit_log_paths: Sequence[str] = (),
    *,
    now_ms: int | None = None,
    broker_conf: str | BrokerConf | None = None,
    sha256: bool = False,
    before: str | None = None,
    next_command: Callable[[Diagnosis], str] = lambda diagnosis: "",
    given_store: str = "",
    on_offset: Callable[[int], object] | None = None,
) -> Report:
    """Collects the report about the store at `path`. Reads the whole commitlog once, and writes nothing.

    `now_ms` is the time to which ages are measured, by default now. `sha256` adds the digest of each file.
    `before` is an earlier state of the store, with which messages, topics, groups and offsets are compared.
    `next_command` gives the command that the page advises, and `given_store` is the store in other commands,
    by default `path`; `on_offset` is that of `diagnose`.

    Raises StoreNotFoundError if `path` is no store; no damage inside the store raises. Raises StoreError if
    `before` cannot be read.

    Example: `report("/data/store").start.may`.
    """
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    refuse_no_ms(now_ms)
    if isinstance(broker_conf, str):  # an error before the store is read
        broker_conf = read_broker_conf(broker_conf)
    # what a read leaves out is among the problems
    with one_look(), unheard(), StoreState.still(Opened(path)):
        store = _opened(path, commit_log_paths)
        diagnosis = diagnose(path, commit_log_paths, on_offset=on_offset, readers=store)
        typed = given_store or shlex.quote(shown(path))
        reader = _Sections(store, diagnosis, commit_log_paths, now_ms, broker_conf, sha256, typed)
        sections = [section for section in reader.sections() if section is not None]
        if before is not None and store is not None:
            earlier = Store.open(before, skip_unreadable=True, fail_on_unknown=False)
            sections[1:1] = compared(earlier, store, (shlex.quote(shown(before)), typed))
    start, command = broker_start(diagnosis), next_command(diagnosis)
    may = start.may is MayStart.YES
    return Report(
        path,
        "" if store is None else store.broker_name,
        now_ms,
        verdict(diagnosis)[0],
        command,
        start,
        reader.deletion.warning(now_ms) if may and reader.deletion is not None else "",
        recovery_is_optional(start.may, diagnosis, command),
        diagnosis,
        tuple(sections),
        store,
    )


def _opened(path: str, commit_log_paths: Sequence[str]) -> Store | None:
    try:
        opened = Store.open(
            path, commit_log_paths=commit_log_paths, skip_unreadable=True, fail_on_unknown=False
        )
        return opened.in_one_look()
    except (StoreError, OSError):
        return None


@dataclass(slots=True)
class _Sections:
    store: Store | None
    diagnosis: Diagnosis
    commit_log_paths: Sequence[str]
    now_ms: int
    broker_conf: str | BrokerConf | None
    sha256: bool
    given_store: str
    deletion: NextDeletion | None = None  # of unread messages, once the lag is known

    def sections(self) -> Iterator[Section | None]:
        yield self._log()
        yield self._lost()
        yield self._affected()
        yield backups(self.store, self.diagnosis) if self.store is not None else None
        yield self._problems()
        for each in (self._topics, self._lag, self._files):
            yield each() if self.store is not None else None

    def _view(self, store: Store, name: str, section: Section) -> pa.Table | None:
        """A view; None, with a warning in the section, if its files cannot be read."""
        try:
            return view_table(store, name, now_ms=self.now_ms, broker_conf=self.broker_conf)
        except (StoreError, OSError) as error:
            section.warning = shown(f"cannot be read: {error}")
            return None

    # ---- damage --------------------------------------------------------------------------------------------

    def _log(self) -> Section:
        summary = self.diagnosis.summary
        facts = [
            ("state", {"live": "a broker has the store open"}.get(summary.state, summary.state)),
            ("readable", f"{summary.readable:,} messages"),
            ("files", f"{summary.files:,}, {size_text(summary.total_bytes)} ({summary.total_bytes:,} bytes)"),
            ("log begins at", f"physical offset {self.diagnosis.log_begin:,}"),
            ("log ends at", f"physical offset {summary.log_end:,}"),
        ]
        facts += [
            (name, f"{size_text(size)} ({size:,} bytes)")
            for name, field in _SUMS
            if (size := getattr(summary, field))
        ]
        if needed := needed_text(self.diagnosis.root, self.commit_log_paths):
            facts.append(("broker.conf needs", needed))
        return Section("log", "Commitlog", facts=facts)

    def _lost(self) -> Section:
        diagnosis, summary = self.diagnosis, self.diagnosis.summary
        count = summary.lost_entries + summary.lost_in_crash
        about = "No message is known to be lost."
        if not diagnosis.is_checked or diagnosis.lost_log is not None:
            about = "Which messages are lost is unknown: the commitlog is not checked."
        elif count:
            about = f"{count:,} {'message is' if count == 1 else 'messages are'} known to be lost."
        if diagnosis.given_up:
            about += f" An earlier recovery gave up {diagnosis.given_up}."
        names = tuple(name for name in _without_broker(LOST_COLUMNS) if name != "keyHashes")
        section = Section("lost", "Messages that are gone", about, columns=names, meanings=LOST_COLUMNS)
        gone = summary.damage_bytes - summary.torn_bytes + summary.missing_bytes
        if gone > summary.padding_damage_bytes:
            section.notes.append(
                f"{gone:,} bytes of the log are damaged or missing. Which messages were there is known only "
                "where a consume queue, the index, a neighbour or .rmqlog shows it; the rest is unknown."
            )
        if diagnosis.lost and self.store is not None:
            store = self.store
            rows = sorted(
                diagnosis.lost, key=lambda each: (each.topic or "", each.queue_id or 0, each.first or 0)
            )
            section.table = lost_table(store.opened, store.log, rows, store.broker_name)
            listed = sum(each.count for each in diagnosis.lost)
            if listed < count:
                section.notes.append(f"The rows are the first {listed:,} of these messages.")
            section.shown = 100
        return section

    def _affected(self) -> Section | None:
        """The groups with offsets in a queue that has lost messages."""
        lost: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for each in self.diagnosis.lost:
            if each.topic is not None and each.queue_id is not None and each.first is not None:
                lost[each.topic, each.queue_id].append((each.first, each.stop))
        if not lost or self.store is None:
            return None
        section = Section(
            "groups", "Consumer groups that lose messages", columns=_without_broker(AFFECTED_COLUMNS),
            meanings=AFFECTED_COLUMNS,
        )  # fmt: skip
        try:
            _, offsets = read_broker_offsets(self.store.opened)
        except (StoreError, OSError) as error:
            section.warning = shown(f"which groups lose them is unknown: {error}")
            return section
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for topic, group, table in offsets.by_topic_and_group() if offsets is not None else ():
            for queue_id, committed in table.items():
                ranges = lost.get((topic, queue_id), ())
                unread = sum(max(stop - max(first, committed), 0) for first, stop in ranges)
                if ranges:
                    counts = sums[group, topic]
                    counts[0] += 1
                    counts[1] += unread
                    counts[2] += sum(stop - first for first, stop in ranges) - unread
        ordered = sorted(sums.items(), key=lambda each: (-each[1][1], each[0]))
        rows = [(self.store.broker_name, *key, *counts) for key, counts in ordered]
        missing = len({group for (group, _), counts in sums.items() if counts[1]})
        section.about = (
            f"{missing:,} group{'s lose' if missing > 1 else ' loses'} messages that "
            f"{'they have' if missing > 1 else 'it has'} not consumed."
            if missing
            else "Each group with an offset in these queues has consumed the lost messages before."
            if rows
            else "No group has an offset in these queues."
        )
        section.table = pa.Table.from_batches([batch_of(AFFECTED_COLUMNS, rows)])
        return section

    def _problems(self) -> Section:
        diagnosis = self.diagnosis
        counts = [
            counted(len(found), severity)
            for severity in ("damage", "warning", "info")
            if (found := diagnosis.of(severity))
        ]
        rows = [
            ("", each.severity, each.file.removeprefix(f"{diagnosis.root}/"), each.position, each.expected,
             each.found, each.advice)
            for each in diagnosis
        ]  # fmt: skip
        table = pa.Table.from_batches([batch_of(PROBLEM_COLUMNS, rows)])
        about = ", ".join(counts) or "No problem: every byte is accounted for."
        return Section(
            "problems", "Problems", about, table=table, columns=_without_broker(PROBLEM_COLUMNS), shown=50,
            all_rows=f"rmqlog verify {self.given_store}",
        )  # fmt: skip

    # ---- what is there -------------------------------------------------------------------------------------

    def _topics(self) -> Section:
        assert self.store is not None
        about = "Messages that can be read. Bytes in the commitlog; those without a topic are in no queue."
        section = Section("topics", "Disk by topic", about, all_rows=f"rmqlog du {self.given_store}")
        usage = self._view(self.store, "usage", section)
        if usage is not None:
            section.drawn = usage
            sums = usage.group_by("topic").aggregate([("bytes", "sum")])
            topics = sums["topic"].to_pylist()
            counts = [self.diagnosis.readable_topics.get(topic or "") for topic in topics]
            sums = pa.table(
                {"topic": topics, "messages": pa.array(counts, pa.int64()), "bytes": sums["bytes_sum"]}
            )
            section.table = sums.sort_by([("bytes", "descending"), ("topic", "ascending")])
        return section

    def _lag(self) -> Section:
        assert self.store is not None
        names = (
            "group", "topic", "lagMessages", "lagBytes", "lagMs", "lostMessages", "nextLostMessages",
            "expiresTimestamp",
        )  # fmt: skip
        section = Section(
            "lag", "Lag, and what groups lose next", columns=names, meanings=LAG_BY_TOPIC_COLUMNS,
            all_rows=f"rmqlog lag {self.given_store}",
        )  # fmt: skip
        lag = self._view(self.store, "lagByTopic", section)
        if lag is None:
            return section
        order = [("nextLostMessages", "descending"), ("lagMessages", "descending")]
        section.table = lag.sort_by(order)  # an unknown lag is last
        unknown = pc.sum(pc.is_null(lag["lagMessages"])).as_py() or 0
        if unknown:
            section.notes.append(f"{unknown:,} rows without lagMessages: their lag is unknown, and not 0.")
        expiring = lag.filter(pc.is_valid(lag["expiresTimestamp"]))
        losing = expiring.filter(pc.fill_null(pc.not_equal(expiring["nextLostMessages"], 0), True))
        if losing.num_rows:
            self.deletion = NextDeletion.of(self.store, losing, self.broker_conf, self.now_ms)
            section.warning = str(self.deletion)
        if not lag.num_rows:
            section.about = "No group has a committed offset: there is no lag that could be known."
        try:
            refuse_unknown_offsets(self.store.opened)
        except StoreError as error:
            section.about = shown(f"The lag of all groups is unknown: {str(error).partition(';')[0]}")
        if 0 < (pc.sum(lag["queues"]).as_py() or 0) <= _DRAWN_QUEUES_MAX:
            section.drawn = self._view(self.store, "lag", section)
        return section

    def _files(self) -> Section:
        assert self.store is not None
        names = ("kind", "file", "sizeBytes", "usedBytes", "diskBytes", "modified")
        section = Section(
            "files", "Files", columns=names, shown=60, meanings=FILE_COLUMNS,
            all_rows=f"rmqlog info {self.given_store} --view files",
        )  # fmt: skip
        section.table = self._view(self.store, "files", section)
        if section.table is not None and self.sha256:
            digests = [_sha256(self.store.path, name) for name in section.table["file"].to_pylist()]
            section.table = section.table.append_column("sha256", pa.array(digests, pa.string()))
            section.columns = (*names, "sha256")
        return section


def _without_broker(columns: Iterable[ViewColumn]) -> tuple[str, ...]:
    return tuple(column.name for column in columns if column is not BROKER)


def _sha256(root: str, name: str) -> str | None:
    """The digest of a file of the store; None if the file cannot be read."""
    path = name if name.startswith("/") else f"{root}/{name}"
    digest, at = hashlib.sha256(), 0
    try:
        with files_at(path).view(path) as view:
            while at < view.size:
                part = view.read(at, min(_CHUNK, view.size - at))
                digest.update(part)
                at += len(part)
    except (StoreError, OSError):
        return None
    return digest.hexdigest()
