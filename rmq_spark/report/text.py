"""A report as Markdown, and as a JSON document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from store_format.display.rows import iso_utc, plain_rows
from store_format.display.text import shown
from store_format.metadata.values import java_name

if TYPE_CHECKING:
    from rmq_spark.report.contents import Contents, Section

_MARKS = re.compile(r"([\\`*_\[\]<>|#&])")
_ROWS_MAX = 20
_CELL_MAX = 200


def markdown(report: Contents) -> str:
    """The answers, and the first rows of each section."""
    start = f"**{report.start.may}**" + (f": {_plain(report.start_cause)}" if report.start_cause else "")
    lines = [
        f"# Report: {_plain(report.broker_name or report.path)}",
        "",
        f"- store: {_plain(report.path)}",
        f"- taken: {iso_utc(report.taken_ms)}",
        f"- may a broker start: {start}",
        f"- verdict: {_plain(report.verdict)}",
    ]
    lines += [f"- file: {_plain(report.start.file)}"] if report.start.file else []
    lines += ["", "Next:", "", *_code(report.command)] if report.command else []
    for section in report.sections:
        lines += ["", f"## {section.title}", "", *_section(section)]
    return "\n".join(lines).rstrip() + "\n"


def _section(section: Section) -> Iterator[str]:
    for sentence in (section.about, section.warning):
        if sentence:
            yield from (_plain(sentence), "")
    for name, value in section.facts:
        yield f"- {_plain(name)}: {_plain(value)}"
    if (table := section.visible) is not None and table.num_rows:
        yield "| " + " | ".join(map(_plain, table.schema.names)) + " |"
        yield "| " + " | ".join("---" for _ in table.schema.names) + " |"
        limit = min(section.shown, _ROWS_MAX)
        for batch in table.slice(0, limit).to_batches():
            for row in plain_rows(batch):
                yield "| " + " | ".join(_cell(value) for value in row.values()) + " |"
        if section.rows > limit:
            more = f"; all rows: {section.all_rows}" if section.all_rows else ""
            yield ""
            yield _plain(f"the first {limit} of {section.rows:,} rows{more}")
    for remark in section.notes:
        yield ""
        yield _plain(remark)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return _plain(" ".join(map(str, value)))
    return _plain(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _plain(value: str) -> str:
    """A text without any mark of Markdown or HTML."""
    cut = value if len(value) <= _CELL_MAX * 5 else value[: _CELL_MAX * 5] + "…"
    return _MARKS.sub(r"\\\1", shown(cut))


def _code(command: str) -> list[str]:
    return [f"    {shown(command)}"]


def document(report: Contents) -> str:
    """All rows of all sections."""
    answer: dict[str, Any] = {
        "store": report.path,
        "brokerName": report.broker_name or None,
        "taken": iso_utc(report.taken_ms),
        "verdict": report.verdict,
        "next": report.command or None,
        "mayStart": str(report.start.may),
        "startCause": report.start.cause or None,
        "startWarning": report.start_warning or None,
        "optional": report.optional or None,
        "startFile": report.start.file or None,
    }
    answer["log"] = {java_name(name): value for name, value in asdict(report.diagnosis.summary).items()}
    for section in report.sections:
        if section.key == "log":
            continue
        answer[section.key] = {
            "about": section.about or None,
            "warning": section.warning or None,
            "notes": section.notes,
            "rows": []
            if section.table is None
            else [row for batch in section.table.to_batches() for row in plain_rows(batch)],
        }
    return json.dumps(answer, indent=1, ensure_ascii=False) + "\n"
