"""`verify`: checks records, queue entries and index entries against each other, and counts every byte."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, TextIO

import click

from rmq_spark.cli.exit_codes import DAMAGE, OK, PARTIAL
from rmq_spark.cli.needed_settings import write_needed_settings
from rmq_spark.cli.next_command import move_command, recover_command, salvage_command
from rmq_spark.cli.options import store_argument
from rmq_spark.cli.output import (
    Output,
    Verdict,
    fitted,
    output_options,
    print_json,
    write_line,
    write_verdict,
)
from rmq_spark.cli.remarks import Progress, given_store, terminal_columns, with_store, wrapped
from store_format.display.text import shown

if TYPE_CHECKING:
    from store_format.diagnose.problems import Diagnosis, LogSummary, Severity

_SUMS = (
    ("unit_bytes", "in messages"),
    ("blank_bytes", "padding at the ends of files"),
    ("damage_bytes", "damaged"),
    ("unwritten_bytes", "not written yet"),
    ("unplaced_bytes", "in files that do not belong to the log"),
)


@click.command("verify")
@store_argument(opened=False)
@output_options()
def verify_(roots: list[str], commit_log_paths: tuple[str, ...], output: Output) -> int:
    """Check all files of a store, and account for every byte.

    Checks every record of the commitlog with its CRC, every consume queue entry, every index entry, the
    checkpoint and the configuration. The last lines are a verdict in one sentence, and the next command to
    type. The exit code is 3 if messages are damaged or no broker may start, and 4 for a DLedger store whose
    commitlog was not found. Works on stores that other commands refuse, too.

    \b
    rmqlog verify /data/store
    """
    from store_format.diagnose import diagnose
    from store_format.diagnose.broker_start import MayStart, broker_start

    found: dict[str, Diagnosis] = {}
    for root in roots:
        start, size = log_bytes(root, commit_log_paths)
        with Progress(f"verify {shown(root)}", size) as progress:
            found[root] = diagnose(root, commit_log_paths, on_offset=partial(_reach, progress, start))
    _write(output, found, commit_log_paths)
    if any(each.of("damage") or broker_start(each).may is MayStart.NO for each in found.values()):
        return DAMAGE
    return OK if all(diagnosis.is_checked for diagnosis in found.values()) else PARTIAL


def _reach(progress: Progress, start: int, offset: int) -> None:
    progress.reach(offset - start)


def log_bytes(root: str, commit_log_paths: Sequence[str]) -> tuple[int, int]:
    """(first offset of the log, bytes of its files); zeros if the files cannot be listed."""
    from store_format.errors import StoreError
    from store_format.files.read import files_at
    from store_format.opened.store import Opened
    from store_format.read.store_root import own_directories

    try:
        files = [
            file
            for directory in commit_log_paths or own_directories(Opened(root))
            for file in files_at(directory).store_files(directory)
        ]
    except (StoreError, OSError):
        return 0, 0
    return min((file.start for file in files), default=0), sum(file.size for file in files)


def _write(output: Output, found: dict[str, Diagnosis], commit_log_paths: Sequence[str]) -> None:
    """Writes problems as rows. The sums are in the JSON document, else after the table, else on stderr."""
    from rmq_spark.cli.view_rows import show_batches
    from store_format.diagnose.broker_start import broker_start
    from store_format.diagnose.problems import PROBLEM_COLUMNS
    from store_format.display.columns import TEXT, ViewColumn, batch_of

    columns = (ViewColumn("store", TEXT, "The store root."), *PROBLEM_COLUMNS[1:])
    if output.form == "json":
        document = [
            {
                "store": root,
                "problems": [asdict(problem) for problem in diagnosis],
                **_sums(diagnosis.summary),
                "verdict": verdict_of(root, diagnosis).text,
                "next": verdict_of(root, diagnosis).command,
                "mayStart": str(broker_start(diagnosis).may),
                "startCause": broker_start(diagnosis).cause,
            }
            for root, diagnosis in found.items()
        ]
        print_json(document)
        return
    rows = [
        (root, p.severity, p.file, p.position, p.expected, p.found, p.advice)
        for root, each_of in found.items()
        for p in each_of
    ]
    if output.form == "table" and not output.columns:
        for root, diagnosis in found.items():
            for problem in diagnosis:
                line = with_store(str(problem), given_store(root))
                print(_problem_text(output, problem.severity, line))
            fitted_to = None if output.wide else output.terminal_columns
            _print_sums(root, diagnosis, sys.stdout, fitted_to)
            _write_end(output, root, diagnosis, commit_log_paths)
        return
    show_batches(output, [batch_of(columns, rows)], [column.name for column in columns])
    for root, diagnosis in found.items():
        _print_sums(root, diagnosis, sys.stderr, terminal_columns(sys.stderr))
        _write_end(output, root, diagnosis, commit_log_paths)


def _write_end(output: Output, root: str, diagnosis: Diagnosis, commit_log_paths: Sequence[str]) -> None:
    """Writes the lines below the sums. Without damage, one of them says what keeps a broker from a start."""
    from store_format.diagnose.broker_start import MayStart, broker_start

    _write_given_up(output, root)
    write_needed_settings(output, root, commit_log_paths)
    start = broker_start(diagnosis)
    if start.may is MayStart.NO and not diagnosis.of("damage"):
        write_line(output, "broker", f"a broker may not start: {start.cause}")
    write_verdict(output, verdict_of(root, diagnosis))


def _write_given_up(output: Output, root: str) -> None:
    """Names the first messages that earlier recoveries gave up; `.rmqlog/given-up.json` has all."""
    from store_format.bookkeeping.ledger import GivenUp
    from store_format.display.text import first_names
    from store_format.opened.store import Opened

    given_up = GivenUp.known(Opened(root))
    places = (
        f"{topic}-{queue_id} offset{'' if stop - first == 1 else 's'} {first}"
        + (f" to {stop - 1}" if stop - first > 1 else "")
        for topic, queue_id, first, stop in given_up.messages
    )
    torn = (
        f"the torn message at commitlog {physical}, of no known queue"
        for physical, _, n in given_up.torn
        if n
    )
    if named := first_names((*places, *torn), 3):
        write_line(output, "given up", named)


def verdict_of(root: str, diagnosis: Diagnosis) -> Verdict:
    """The sentence about a store, and the command that a user types next."""
    from store_format.diagnose.problems import REBUILT_ADVICE, NextStep, verdict

    text, step = verdict(diagnosis)
    conf = "FILE" if diagnosis.lacks_settings else ""  # the broker's configuration
    commands = {NextStep.RECOVER: recover_command, NextStep.SALVAGE: salvage_command}
    command = commands[step](root, conf) if step in commands else ""
    if step is NextStep.MOVE:
        command = move_command(next(each.file for each in diagnosis if each.advice == REBUILT_ADVICE))
    return Verdict(text, command, is_bad=step is NextStep.SALVAGE or bool(diagnosis.of("damage")))


def _problem_text(output: Output, severity: str, line: str) -> str:
    """A problem for a terminal: wrapped with an indent, the severity in colour; elsewhere one line."""
    from rmq_spark.cli.cells import colour_of, painted

    line = fitted(output, line, indent=len(severity) + 2)
    colour = colour_of("severity", severity) if output.colour else ""
    return painted(severity, colour) + line.removeprefix(severity)


def _sums(summary: LogSummary) -> dict[str, int | str | None]:
    from store_format.metadata.values import java_name

    return {java_name(name): value for name, value in asdict(summary).items()} | {
        "totalBytes": summary.total_bytes
    }


def _print_sums(root: str, diagnosis: Diagnosis, stream: TextIO, columns: int | None) -> None:
    """Writes the sums of the commitlog. `columns` is the width of the terminal, None for no terminal."""
    from store_format.diagnose.problems import counted

    if not diagnosis.is_checked:
        return
    summary = diagnosis.summary
    severities: tuple[Severity, ...] = ("damage", "warning", "info")
    counts = (
        ", ".join(
            counted(len(diagnosis.of(severity)), severity)
            for severity in severities
            if diagnosis.of(severity)
        )
        or "no problem"
    )
    line = (
        f"{shown(root)}: {summary.units + summary.batched:,} messages in {summary.files:,} files "
        f"up to {summary.log_end}; {counts}"
    )
    sums = [(getattr(summary, name), f"bytes {what}") for name, what in _SUMS]
    sums.append((summary.total_bytes, "bytes in all"))
    if summary.missing_bytes:
        sums.append((summary.missing_bytes, "bytes of files that are missing"))
    print(wrapped(line, columns), file=stream)
    for number, what in sums:
        print(f"{number:>20,}  {what}", file=stream)
