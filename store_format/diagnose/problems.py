"""What `diagnose` hands back: problems that say where, what was expected, what was found and what to do, and
the sums of all bytes.

`Findings` collects them while the rooms of diagnose look, and keeps a store with a million faults from
becoming a million objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import starmap
from typing import Literal

from store_format.display.columns import BROKER, LONG, TEXT, ViewColumn, batch_of
from store_format.errors import CorruptStoreError

__all__ = ["PROBLEM_COLUMNS", "Diagnosis", "Findings", "Problem", "Severity", "Summary"]

Severity = Literal["damage", "warning", "info"]

_SUMS = (
    ("messages", "unit_bytes"),
    ("padding", "blank_bytes"),
    ("damage", "damage_bytes"),
    ("unwritten", "unwritten_bytes"),
    ("not in the sequence", "unplaced_bytes"),
    ("missing files", "missing_bytes"),
)
PROBLEM_COLUMNS = (
    BROKER,
    ViewColumn(
        "severity",
        TEXT,
        "`damage`: messages cannot be read, or are read wrongly. `warning`: something will stumble. `info`.",
    ),
    ViewColumn("file", TEXT, "Where."),
    ViewColumn("position", LONG, "At which byte of it."),
    ViewColumn("expected", TEXT, "What should be there."),
    ViewColumn("found", TEXT, "What is there."),
    ViewColumn("advice", TEXT, "What to do."),
)

_SHOWN_MAX = 1000  # of one kind; the rest is counted


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be.

    damage: messages cannot be read, or are read wrongly. warning: a broker or a reader will stumble, no
    message is lost. info: worth knowing.
    """

    severity: Severity
    file: str
    position: int
    expected: str
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.file} at byte {self.position}: expected {self.expected}, found {self.found}. {self.advice}"


@dataclass(frozen=True, slots=True)
class Summary:
    """The bytes of all commitlog files by what they are; `total_bytes` is the sum of the files' lengths, to
    the byte.

    `unplaced` are those of files that do not fit into the sequence. `missing_bytes` are of files that are not
    there.
    """

    files: int = 0
    units: int = 0
    unit_bytes: int = 0
    blank_bytes: int = 0
    damage_bytes: int = 0
    unwritten_bytes: int = 0
    unplaced_bytes: int = 0
    missing_bytes: int = 0
    log_end: int = 0

    @property
    def total_bytes(self) -> int:
        return (
            self.unit_bytes
            + self.blank_bytes
            + self.damage_bytes
            + self.unwritten_bytes
            + self.unplaced_bytes
        )


class Diagnosis(list[Problem]):
    """All problems in the order they were looked for, and the `summary` of the commitlog."""

    def __init__(self, problems: Iterable[Problem], summary: Summary) -> None:
        super().__init__(problems)
        self.summary = summary

    def of(self, *severities: Severity) -> list[Problem]:
        """Those of some severities."""
        return [problem for problem in self if problem.severity in severities]

    def _repr_html_(self) -> str:
        return _diagnosis_card(self)


class Findings:
    """Problems while they are being found. One place is named once for one kind, and each kind at most a
    thousand times.
    """

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
        """`kind` (default: the advice) is what makes two problems of one place the same."""
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
        self.add(severity, error.file, error.position, error.expected, error.found, advice, kind=kind)

    def problems(self) -> list[Problem]:
        more = [
            Problem(
                last.severity,
                last.file,
                last.position,
                last.expected,
                f"{last.found}, the last of {self._counts[kind] - _SHOWN_MAX} more",
                last.advice,
            )
            for kind, last in self._last.items()
        ]
        return self._problems + more


def _diagnosis_card(diagnosis: Diagnosis) -> str:
    """The commitlog's bytes by what they are, and the problems."""
    from store_format.display.page import Room, card, fact, facts, note
    from store_format.display.table import LIMIT, table

    summary = diagnosis.summary
    lines = [
        ("commitlog", f"{summary.total_bytes:,} bytes in {summary.files:,} files, {summary.units:,} messages")
    ]
    lines += [(name, f"{size:,} bytes") for name, field in _SUMS if (size := getattr(summary, field))]
    columns = PROBLEM_COLUMNS[1:]  # without the broker's name
    batch = batch_of(columns, map(_problem_row, diagnosis[: LIMIT + 1]))
    rows = table(
        [batch],
        batch.schema,
        Room(),
        total=len(diagnosis),
        about={column.name: column.about for column in columns},
    )
    damage = len(diagnosis.of("damage"))
    title = f"{damage:,} damage, {len(diagnosis.of('warning')):,} warnings" if diagnosis else "no problems"
    return card(
        title,
        "diagnosis",
        [facts(starmap(fact, lines)), rows if diagnosis else note("every byte is accounted for")],
    ).source


def _problem_row(problem: Problem) -> tuple[object, ...]:
    return problem.severity, problem.file, problem.position, problem.expected, problem.found, problem.advice
