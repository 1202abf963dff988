"""The last lines of a report: one plain sentence that sums it up, and the next command to type."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

from rmq_spark.cli.column_look import BOLD, RED, painted
from rmq_spark.cli.output import Output
from rmq_spark.cli.remarks import remark
from store_format.display.text import shown


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` is the sentence, `command` the next command, "" for none. `is_bad` makes the sentence red."""

    text: str
    command: str = ""
    is_bad: bool = False


def is_report(output: Output) -> bool:
    """Whether the output is for people: rows alone go to stdout in all other formats, and with --columns."""
    return output.form == "table" and not output.columns


def write_verdict(output: Output, verdict: Verdict) -> None:
    """Writes the verdict to stdout under a report; in the other formats to stderr."""
    lines = [("verdict", verdict.text), *([("next", verdict.command)] if verdict.command else [])]
    if not is_report(output):
        for label, text in lines:
            remark(f"{label}: {text}")
        return
    colour = (RED if verdict.is_bad else BOLD) if output.colour else ""
    for label, text in lines:
        line = shown(f"{label + ':':<9}{text}")
        if label == "verdict" and output.terminal_columns is not None and not output.wide:
            line = fill(
                line,
                output.terminal_columns,
                subsequent_indent=" " * 9,
                break_long_words=False,
                break_on_hyphens=False,
            )
        print(painted(line, colour if label == "verdict" else ""))
