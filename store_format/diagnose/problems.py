"""The result of `diagnose`: problems that say where, what was expected, what was found and what to do.

`Findings` collects the problems during the checks. It keeps a thousand of a kind, so that a store with a
million faults does not become a million objects. `verdict` says what they come to: one sentence, and the
next step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, asdict, dataclass, field, replace
from enum import StrEnum
from itertools import starmap
from typing import Literal

from store_format.commitlog.log import STRAY_ADVICE
from store_format.diagnose.lost_messages import LostMessages
from store_format.display.columns import BROKER, LONG, TEXT, ViewColumn
from store_format.display.text import shown
from store_format.display.unserved import NONE_UNSERVED, Unserved
from store_format.errors import CorruptStoreError
from store_format.survey.gone import LostLog

Severity = Literal["damage", "warning", "info"]

PROBLEM_COLUMNS = (
    BROKER,
    ViewColumn(
        "severity",
        TEXT,
        "`damage`: messages cannot be read, or are read wrongly. "
        "`warning`: a broker or a reader may fail. `info`.",
    ),
    ViewColumn("file", TEXT, "The file or directory."),
    ViewColumn("position", LONG, "The byte in the file."),
    ViewColumn("expected", TEXT, "What should be there."),
    ViewColumn("found", TEXT, "What is there."),
    ViewColumn("advice", TEXT, "What to do."),
)
INDEX_ADVICE = (
    "rmqlog recover rebuilds the index file from the commitlog. Until then readers find its messages by a "
    "scan; a broker does not rebuild the file, and does not find them by key"
)
EXTENSION_ADVICE = (
    "No message is lost: readers take the tags from the messages, and a broker hands these messages out for "
    "all tags. Copy the extension back before a broker starts: without it, a broker begins it again, and old "
    "addresses then lead to the tags codes of new messages; with a file that is cut off, it does not start"
)
BODY_ADVICE = (
    "No command puts this right: the body has its checksum, but no client decodes the record. Reads with "
    "mode=DROPMALFORMED leave the message out. If only the body is wrong, the column rawBody has its bytes"
)
CLAIM_ADVICE = (
    "No command puts this right: the message says another place than its entry. Reads with "
    "mode=DROPMALFORMED leave it out, a broker hands it out"
)
FAR_ADVICE = (
    "No command puts this right: rmqlog recover files no message with such a queue offset, and only a search "
    "of the commitlog finds the message"
)
ODD_SIZE_ADVICE = (
    "A broker whose mappedFileSizeCommitLog is another length refuses to start. If the file was cut off, "
    "restore it"
)
NO_OFFSETS_ADVICE = (
    "The lag of all groups is unknown, and consumers begin where their consumeFromWhere says. Restore the "
    "file from a backup, or set the offsets before the broker starts: rmqlog offsets STORE GROUP --topic "
    "TOPIC --to-time TIME"
)
_SEVERITIES: tuple[Severity, ...] = ("damage", "warning", "info")
_SHOWN_MAX = 1000  # problems of one kind; the rest is counted

NO_FILE_ADVICE = "Move it out of the store, or put the file back: readers refuse what has the name of a file"
REFUSES = "broker refuses to start on this store"  # words of the advice for files that a broker checks
# RocksDBConsumeQueueStore.load, getDispatchFromPhyOffset; tried with a broker of 5.5.0
_REBUILDS = (
    "with commitLogRecoverMaxNum at least the number of commitlog files, it builds the queues again, without "
    "a message at physical offset 0"
)
REBUILT_ADVICE = (
    f"Readers scan the commitlog for all queues, and a {REFUSES}. Move the directory aside, and start the "
    f"broker: {_REBUILDS}"
)
MISSING_ADVICE = (
    "Readers scan the commitlog for all queues. If the broker with storeType=defaultRocksDB starts "
    f"{_REBUILDS}"
)
UNCHECKED_ADVICE = (
    "Whether a broker starts on the database is not checked: install the extra rocksdb, and verify again"
)
_LINKS = "Links below the store's root"
# advice about what a recovery leaves as it is
_BY_HAND = (
    BODY_ADVICE,
    CLAIM_ADVICE,
    EXTENSION_ADVICE,
    FAR_ADVICE,
    NO_OFFSETS_ADVICE,
    ODD_SIZE_ADVICE,
    "A broker refuses to start on this store",
    "After a crash a broker rescans the log",
    "Consumers cannot find the topic",
    "Delete the blank file",
    _LINKS,
    "Messages of this batch are lost",
    "Move ",
    "Neither the file nor its .bak",
    "Nothing can be written",
    "A power loss came before",
    "Raise readQueueNums",
    "Readers and writers ask",
    "Restore the file: a broker refuses",
)
KILLED_ROUND_ADVICE = (
    "A broker was killed while a round replaced this file, and a 5.5.0 broker refuses to start: it takes "
    "each name for a number (CompactionStore.load). Copy the store, move the files that end in .delete out "
    "of compaction/, and run rmqlog verify again: it says whether the queue is whole without them"
)
_NOT_ALL = "; a broker may serve others, from files that are not read"
_MOUNT = "mount its disk, or name its directory (--commitlog DIR)"
_NOT_CHECKED = (
    "not checked: a DLedger store (enableDLegerCommitLog=true) with no commitlog in dledger-*/data, or with "
    "several; name its directory (--commitlog DIR)"
)

# of the card: names, and the fields of `LogSummary`
_SUMS = (
    ("messages", "unit_bytes"),
    ("padding", "blank_bytes"),
    ("damage", "damage_bytes"),
    ("unwritten", "unwritten_bytes"),
    ("not in the sequence", "unplaced_bytes"),
    ("missing files", "missing_bytes"),
)
_SENTENCE_CHARACTERS = 1000


# ---- the problems ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a store: severity, file, byte position, what was expected and found, and advice.

    The severity is "damage" (messages cannot be read, or are read wrongly), "warning" (a broker or a reader
    will fail or behave unexpectedly, but no message is lost) or "info" (worth knowing).
    """

    severity: Severity
    file: str
    position: int
    expected: str
    found: str
    advice: str

    def __str__(self) -> str:
        where = f"{self.severity}: {self.file} at byte {self.position}"
        return shown(f"{where}: expected {self.expected}, found {self.found}. {self.advice}")


@dataclass(frozen=True, slots=True)
class LogSummary:
    """How many bytes of the commitlog files are messages, padding, damage or unwritten.

    `files` and `units` are the numbers of files and messages. `unplaced_bytes` are in files that do not fit
    into the sequence, `stray_bytes` of them in files that never were of the log; `missing_bytes` are in files
    that do not exist. `torn_bytes` of the damage are the part of a message at the end of a crashed store,
    `padding_damage_bytes` were padding. `total_bytes` is the exact sum of the lengths of all files.
    `log_end` is the physical offset at which the log ends. A crash lost `lost_in_crash`
    messages: consume queues of the crashed store point to them, behind the log's end.
    A batch is one of `units`; `batched` counts the other messages of the batches. `unopened` messages pass
    all checks, and no client decodes them. `readable` messages are those that a read returns, `unread` are
    other whole messages of the queues. `repeated` messages are in no queue, because another
    message has their offset, `not_light` are not in a light queue for this reason; `unclaimed` queue offsets
    between the ends of queues no message has.
    """

    files: int = 0
    units: int = 0
    unit_bytes: int = 0
    blank_bytes: int = 0
    damage_bytes: int = 0
    torn_bytes: int = 0
    padding_damage_bytes: int = 0
    unwritten_bytes: int = 0
    unplaced_bytes: int = 0
    stray_bytes: int = 0
    missing_bytes: int = 0
    log_end: int = 0
    state: str = ""
    readable: int = 0
    cut_offset: int | None = None
    cut_bytes: int = 0
    cut_messages: int = 0
    lost_entries: int = 0
    lost_in_crash: int = 0
    batched: int = 0
    unopened: int = 0
    repeated: int = 0
    not_light: int = 0
    unclaimed: int = 0
    unread: int = 0

    @property
    def total_bytes(self) -> int:
        return (
            self.unit_bytes
            + self.blank_bytes
            + self.damage_bytes
            + self.unwritten_bytes
            + self.unplaced_bytes
        )


@dataclass(eq=False, repr=False)
class Diagnosis(list[Problem]):
    """A list of all problems in the order of the checks.

    `summary` has the numbers of the commitlog, and `root` is the path of the store. `is_checked` is False if
    the messages are in a DLedger commitlog that was not found; `is_dledger` is True if the store has files of
    DLedger, whose broker recovers by rules of its own. `has_more` is True if a broker serves
    messages from other files, too. With a `lost_log` only the configuration is checked. The log begins at
    `log_begin`; `given_up` says what recoveries gave up before. `lacks_last_files` is True if queues lead
    behind the last commitlog file of a store that was shut down cleanly. `lacks_ends` is True if messages are
    lost with the last commitlog files of which no queue shows how many. `lacks_settings` is True if
    consume queues or the index have to be built, and the store does not show the sizes of their files, or
    the delay of a level. `refusal` is the error with which all other commands refuse the files of the
    commitlog. `unserved` are the messages that a broker does not serve after its start; `unserved_light`
    those that it does not serve from a light queue. `lost` are the first thousand messages that are gone.
    `readable_topics` are the messages of each topic that a read returns. `has_databases` is True if RocksDB
    has queues or configuration, which no recovery changes. `uncommitted` says how many messages of which
    topics a DLedger group may replace.
    """

    problems: InitVar[Iterable[Problem]]
    summary: LogSummary
    root: str = ""
    is_checked: bool = True
    is_dledger: bool = False
    has_more: bool = False
    lost_log: LostLog | None = None
    log_begin: int = 0
    given_up: str = ""
    lacks_last_files: bool = False
    lacks_ends: bool = False
    lacks_settings: bool = False
    refusal: CorruptStoreError | None = None
    unserved: Unserved = NONE_UNSERVED
    unserved_light: Unserved = NONE_UNSERVED
    lost: tuple[LostMessages, ...] = ()
    readable_topics: Mapping[str, int] = field(default_factory=dict)
    has_databases: bool = False
    uncommitted: str = ""

    def __post_init__(self, problems: Iterable[Problem]) -> None:
        self.extend(problems)

    @property
    def verdict(self) -> str:
        """One sentence about all problems."""
        return verdict(self)[0]

    def of(self, *severities: Severity) -> list[Problem]:
        """Returns the problems of these severities, for example `of("damage", "warning")`."""
        return [problem for problem in self if problem.severity in severities]

    def _repr_html_(self) -> str:
        return _diagnosis_card(self)


class Findings:
    """Collects problems: one place once for each kind, and each kind at most a thousand times."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._seen: set[tuple[str, int, str]] = set()
        self._counts: Counter[str] = Counter()
        self._last: dict[str, Problem] = {}

    def add(
        self,
        severity: Severity,
        file: str,
        position: int,
        expected: str,
        found: str,
        advice: str,
        *,
        kind: str = "",
    ) -> None:
        """Adds a problem. Two problems of one place and one `kind` (default: the advice) are the same."""
        kind = kind or advice
        if (file, position, kind) in self._seen:
            return
        self._counts[kind] += 1
        problem = Problem(severity, file, position, expected, found, advice)
        if self._counts[kind] > _SHOWN_MAX:
            self._last[kind] = problem
            return
        self._seen.add((file, position, kind))
        self._problems.append(problem)

    def add_error(self, severity: Severity, error: CorruptStoreError, advice: str, *, kind: str = "") -> None:
        """Adds the problem that an error describes."""
        self.add(severity, error.file, error.position, error.expected, error.found, advice, kind=kind)

    def problems(self) -> list[Problem]:
        """All problems, and at the end the last one of each kind with too many, with their number."""
        return self._problems + [
            replace(last, found=f"{last.found}, the last of {self._counts[kind] - _SHOWN_MAX} more")
            for kind, last in self._last.items()
        ]


# ---- the verdict -------------------------------------------------------------------------------------------


class NextStep(StrEnum):
    """What somebody who has read the sentence does next."""

    NOTHING = "nothing"
    RECOVER = "recover"  # look at what a recovery of the store changes
    SALVAGE = "salvage"  # look at a recovered copy, which keeps what is whole
    MOVE = "move"  # the database of the queues out of the store
    AGAIN = "again"  # run `verify` once more, when what the sentence names is done


def verdict(diagnosis: Diagnosis) -> tuple[str, NextStep]:
    """The sentence and the next step. A recovery refuses every store with DLedger or RocksDB."""
    if not diagnosis.is_checked:
        return _NOT_CHECKED, NextStep.AGAIN
    if diagnosis.lost_log is not None:
        known = diagnosis.lost_log.known
        return (
            f"the commitlog is missing: no message can be read or checked, but {known}; {_MOUNT}",
            NextStep.AGAIN,
        )
    sentence, step = _sentence(diagnosis)
    if any(each.advice == KILLED_ROUND_ADVICE for each in diagnosis):
        return sentence, NextStep.AGAIN
    if any(each.advice == REBUILT_ADVICE for each in diagnosis) and step is not NextStep.AGAIN:
        return sentence, NextStep.MOVE
    can_recover = not (diagnosis.is_dledger or diagnosis.has_databases)
    return sentence, step if can_recover or step is NextStep.AGAIN else NextStep.NOTHING


def _sentence(diagnosis: Diagnosis) -> tuple[str, NextStep]:
    summary = diagnosis.summary
    damages, warnings = diagnosis.of("damage"), diagnosis.of("warning")
    if not summary.files and not damages:
        return "empty: the commitlog has no files", NextStep.NOTHING
    whole, notes = f"{summary.readable:,} {_messages(summary.readable)} readable", _notes(diagnosis)
    crash = f", {summary.lost_in_crash:,} {_messages(summary.lost_in_crash)} lost with the crash"
    crash = crash if summary.lost_in_crash else ""
    has_gaps = summary.repeated or summary.not_light or summary.unclaimed or summary.unread
    none = "" if has_gaps or diagnosis.given_up or diagnosis.has_more else ", none lost"
    least, files = "at least " if diagnosis.lacks_ends else "", ""
    if diagnosis.lacks_last_files or diagnosis.lacks_ends:
        files = ", with the last commitlog files: copy those back if you have them"
    if diagnosis.lacks_ends:
        none = ", an unknown number of messages lost"
    notes = _NOT_ALL + notes if diagnosis.has_more else notes
    if damages:
        places = f"{len(damages):,} place{'s' * (len(damages) != 1)}"
        gone = summary.damage_bytes - summary.torn_bytes + summary.missing_bytes
        gone += summary.unplaced_bytes - summary.stray_bytes
        lost = "" if crash else none  # damage of queues and index files
        if lost_count := summary.lost_entries + summary.unopened:
            lost = f", {least}{lost_count:,} {_messages(lost_count)} lost"
        elif gone > summary.padding_damage_bytes:
            lost = f", messages in {gone:,} damaged or missing bytes are lost"
        if summary.unopened:
            them = f", {summary.unopened:,} of them in" if summary.lost_entries else ", in"
            lost += f"{them} a record that no client decodes"
        is_salvage = bool(gone or summary.lost_entries or summary.cut_messages)
        step = NextStep.SALVAGE if is_salvage else _recovery(diagnosis)
        lost += files
        if diagnosis.refusal is not None:
            file = diagnosis.refusal.file
            lost += f"; all other commands refuse the store until {file} is restored, or moved out of a copy"
            step = NextStep.AGAIN
        return f"damaged in {places}: {whole}{lost}{crash}{notes}{_start(diagnosis)}", step
    if summary.cut_messages:
        return f"damaged before its end: {whole}{crash}{notes}{_start(diagnosis)}", NextStep.SALVAGE
    whole += (none + files if files else crash or none) + notes
    if summary.state == "live":
        return f"in use, and sound so far: {whole}; check again when no process writes to it", NextStep.AGAIN
    has_crashed = summary.state == "crashed"
    count = sum(not has_crashed or each.advice.startswith(_BY_HAND) for each in warnings)
    more = f", with {counted(count, 'warning')}" if count else ""
    if has_crashed:
        start = _start(diagnosis) or ("" if diagnosis.is_dledger else "; a broker start will cut nothing")
        return f"sound after a crash{more}: {whole}{start}", NextStep.RECOVER
    if warnings:
        return f"sound{more}: {whole}{_start(diagnosis)}", _recovery(diagnosis)
    is_unchecked = any(each.advice == UNCHECKED_ADVICE for each in diagnosis)
    return f"sound: {whole}{'' if is_unchecked else '; nothing has to be done'}", NextStep.NOTHING


def _recovery(diagnosis: Diagnosis) -> NextStep:
    """A recovery, unless everything that is wrong is to be put right by hand, or first what it refuses."""
    if any(each.advice.startswith((_LINKS, STRAY_ADVICE, NO_FILE_ADVICE)) for each in diagnosis.of("damage")):
        return NextStep.NOTHING
    for problem in (*diagnosis.of("damage"), *diagnosis.of("warning")):
        if ".bak is used instead" not in problem.advice and not problem.advice.startswith(_BY_HAND):
            return NextStep.RECOVER
    return NextStep.NOTHING


def _messages(count: int) -> str:
    return "message" if count == 1 else "messages"


def _notes(diagnosis: Diagnosis) -> str:
    """What the log does not have any more, although nothing is wrong with it."""
    begin, given_up = diagnosis.log_begin, diagnosis.given_up
    summary, notes = diagnosis.summary, ""
    if summary.repeated or summary.not_light:
        notes += f"; {repeated_text(summary.repeated, summary.not_light)}"
    if summary.unclaimed:
        notes += f"; {summary.unclaimed:,} queue offset{'s' * (summary.unclaimed != 1)} between the ends of "
        notes += f"queues ha{'s' if summary.unclaimed == 1 else 've'} no message"
    if summary.unread:
        notes += f"; {summary.unread:,} whole {_messages(summary.unread)} that no read returns from "
        notes += "its queue" if summary.unread == 1 else "their queues"
    notes += f"; an earlier recovery gave up {given_up}" if given_up else ""
    notes += f"; {diagnosis.unserved}" if diagnosis.unserved else ""
    notes += f"; {diagnosis.uncommitted}" if diagnosis.uncommitted else ""
    if any(each.advice == UNCHECKED_ADVICE for each in diagnosis):
        notes += "; the RocksDB databases are not checked: install the extra rocksdb"
    if begin:
        notes += f"; the log begins at {begin}: earlier messages were deleted (by retention or by hand)"
    return notes


def repeated_text(repeated: int, not_light: int) -> str:
    """Says how many messages are not where they belong, because another message has their queue offset."""
    counts = ((repeated, "in no queue"), (not_light, "not in a light queue that they name"))
    parts = [f"{n:,} {_messages(n)} {'is' if n == 1 else 'are'} {where}" for n, where in counts if n]
    offset = "its offset" if repeated + not_light == 1 else "their offset"
    return f"{' and '.join(parts)}: the broker filed another one at {offset}"


def _start(diagnosis: Diagnosis) -> str:
    """What a broker does that starts on the store, if it is not the usual."""
    summary = diagnosis.summary
    if any(REFUSES in problem.advice for problem in diagnosis):
        return f"; a {REFUSES}"
    if summary.cut_offset is None:
        return ""
    what = f"{summary.cut_bytes:,} bytes at {summary.cut_offset}"
    if summary.cut_messages:
        what += f", with {summary.cut_messages:,} whole {_messages(summary.cut_messages)}"
    return f"; a broker start will cut {what}"


# ---- the card of a notebook --------------------------------------------------------------------------------


def _diagnosis_card(diagnosis: Diagnosis) -> str:
    """A notebook card: the sums of the commitlog's bytes, and the problems, one below the other."""
    from store_format.display.page import PageSpace, card, fact, facts, note, problem_list, text

    summary = diagnosis.summary
    named = (("verdict", diagnosis.verdict), ("store", diagnosis.root))
    lines = [(name, text(value, _SENTENCE_CHARACTERS)) for name, value in named if value]
    counts = (
        f"{summary.files:,} file{'s' * (summary.files != 1)}, {summary.units + summary.batched:,} messages"
    )
    lines.append(("commitlog", f"{_size(summary.total_bytes)} in {counts}"))
    lines += [(name, _size(size)) for name, field in _SUMS if (size := getattr(summary, field))]
    rows = (asdict(problem) for problem in diagnosis)
    problems = problem_list(rows, PageSpace(), diagnosis.root, len(diagnosis))
    if not diagnosis:
        problems.append(note("every byte is accounted for"))
    by_severity = {name: len(diagnosis.of(name)) for name in _SEVERITIES}
    title = ", ".join(counted(count, name) for name, count in by_severity.items() if count) or "no problems"
    return card(title, "diagnosis", [facts(starmap(fact, lines)), *problems]).source


def _size(size: int) -> str:
    """A size for people, and the exact bytes, which add up."""
    from store_format.display.units import size_text

    return size_text(size) if size < 1024 else f"{size_text(size)} ({size:,} bytes)"


def counted(count: int, severity: Severity) -> str:
    """The number of problems of a severity: `1 damage`, `4 warnings`."""
    return f"{count:,} {severity}{'s' * (severity == 'warning' and count != 1)}"
