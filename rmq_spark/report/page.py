"""A report as one HTML page: without a script, with nothing from the network, also for a narrow window and
for paper. Each text of the store is escaped.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from rmq_spark.charts.file_map import file_map_data
from store_format.diagnose.broker_start import MayStart
from store_format.display.page import PageSpace, card, fact, facts, note, problem_list, table, text, warning
from store_format.display.rows import iso_utc
from store_format.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.report.contents import Contents, Section
    from store_format.read.store import Store

_SIZE_MAX = 1_900_000
_CHARTS_MAX = 400_000  # bytes
_ANSWERS = {
    MayStart.YES: ("yes", "Yes: a broker may start on this store."),
    MayStart.NO: ("no", "No: do not start a broker on this store."),
    MayStart.UNKNOWN: ("unknown", "Unknown: the files do not show whether a broker may start."),
}
_STYLE = """
body{margin:0;background:#fff;color:#1b1b1b}
main{max-width:1080px;margin:0 auto;padding:12px 16px 40px}
h2{font-size:16px;margin:26px 0 6px;border-bottom:1px solid #ccc}
.answer{border-left:6px solid #888;background:#f4f4f4;padding:10px 14px;margin:12px 0;font-size:15px}
.answer.yes{border-color:#2b8a3e;background:#ebfbee}.answer.no{border-color:#c92a2a;background:#fff5f5}
.answer.unknown{border-color:#e67700;background:#fff9db}
.answer b{display:block;font-size:17px}
code.command{display:block;white-space:pre-wrap;overflow-wrap:anywhere;background:#f1f3f5;
padding:8px 10px;margin:6px 0}
.command>span{display:inline-block;max-width:100%}
.scroll{overflow-x:auto}
.map{display:grid;grid-template-columns:minmax(9em,22em) 1fr;gap:2px 10px;font-size:12px}
.map div{overflow-wrap:anywhere}.map .bar{display:flex;height:14px;background:#eee;min-width:120px}
.map .bar i{display:block;height:14px}
.legend span{margin-right:14px;font-size:12px;white-space:nowrap}
.legend i{display:inline-block;width:10px;height:10px;margin-right:5px}
.meanings{font-size:11px;color:#555;margin:2px 0 6px}
img{max-width:100%;height:auto}
nav a{margin-right:14px;font-size:13px;color:#1c5d99}
@media screen and (max-width:520px){.map{grid-template-columns:1fr}.scroll img{max-width:none;width:640px}
.rmqlog .scroll table.r{width:max-content}}
@media print{main{max-width:none;padding:0}nav{display:none}.scroll{overflow:visible}h2{break-after:avoid}
.rmqlog table.r{font-size:9px}.rmqlog table.r tr th,.rmqlog table.r tr td{padding:2px 4px}
tr,.answer,img{break-inside:avoid}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_COLOURS = {
    "messages": "#4c78a8",
    "padding at a file's end": "#eeca3b",
    "damaged": "#e03131",
    "not written yet": "#dddddd",
    "not read": "#b3a2c7",
}


def page(report: Contents) -> str:
    """The whole page, below 2 MB."""
    space = PageSpace(_SIZE_MAX - _CHARTS_MAX)
    name = report.broker_name or report.path
    parts = [_answer(report)]
    links = "".join(f'<a href="#{each.key}">{escape(each.title)}</a>' for each in report.sections)
    parts.append(f"<nav>{links}</nav>")
    for section in report.sections:
        parts.append(f'<h2 id="{section.key}">{escape(section.title)}</h2>')
        parts += _section(report, section, space)
    parts.append(
        note("All times are UTC. Made by rmqlog from the files alone; nothing was written to the store.")
    )
    body = card(f"Report: {name}", report.path, parts).source
    title = escape(f"rmqlog report: {name}")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _answer(report: Contents) -> str:
    """What an operator asks first, and the command to type."""
    kind, sentence = _ANSWERS[report.start.may]
    cause = f"<div>{text(report.start_cause, 600)}</div>" if report.start_cause else ""
    if report.start_warning:
        sentence = "Yes, but it deletes unread messages soon: see what to set first."
    file = f"<div>{text(report.start.file, 600)}</div>" if report.start.file else ""
    # a line breaks between the words of a command only: "- -salvage" cannot be typed
    words = " ".join(f"<span>{text(word, 2000)}</span>" for word in report.command.split(" "))
    command = f'Next:<code class="command">{words}</code>' if report.command else ""
    taken = text(iso_utc(report.taken_ms))
    return (
        f'<div class="answer {kind}"><b>May a broker start? {escape(sentence)}</b>{cause}{file}</div>'
        f'<div class="answer"><b>{text(report.verdict, 2000)}</b>{command}</div>'
        f"{facts([fact('taken', taken)])}"
    )


def _section(report: Contents, section: Section, space: PageSpace) -> Iterator[str]:
    if section.about:
        yield note(section.about)
    if section.warning:
        yield warning(section.warning)
    if section.facts:
        yield facts(fact(name, text(value, 300)) for name, value in section.facts)
    if section.key == "log" and report.store is not None:
        yield _map(report.store)
    if section.drawn is not None and section.drawn.num_rows:
        yield _chart(section.key, section.drawn)
    if section.key == "problems" and section.table is not None:
        rows = section.table.to_pylist()
        yield from problem_list(rows, space, report.path, len(rows), limit=section.shown)
    elif (visible := section.visible) is not None and visible.num_rows:
        rows = table(visible.to_batches(), visible.schema, space, limit=section.shown, total=section.rows)
        yield f'<div class="scroll">{rows}</div>'
        if section.rows > section.shown and section.all_rows:
            yield note(f"all rows: {section.all_rows}")
        shown = {each.name: each.about.replace("`", "") for each in section.meanings}
        if shown:
            lines = (fact(name, text(shown[name], 400)) for name in visible.schema.names if name in shown)
            yield f'<div class="meanings">{facts(lines)}</div>'
    yield from map(note, section.notes)


# ---- pictures ----------------------------------------------------------------------------------------------


def _map(store: Store) -> str:
    """One bar for each file: its parts, from left to right."""
    try:
        drawn = file_map_data(store)
    except (StoreError, OSError) as error:
        return warning(f"the map of the files cannot be drawn: {error}")
    colours = "".join(
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>' for name, colour in _COLOURS.items()
    )
    rows = []
    pieces = drawn.table.to_pylist()
    for kind, of_kind in groupby(pieces, key=lambda piece: piece["kind"]):
        rows.append(f"<div><b>{text(kind)}</b></div><div></div>")
        for name, parts in groupby(of_kind, key=lambda piece: piece["name"]):
            bars, numbers = [], ""
            for part in parts:
                width = max(part["high"] - part["low"], 0.0) * 100
                colour = _COLOURS.get(part["part"], "#888888")
                bars.append(f'<i style="width:{width:.2f}%;background:{colour}"></i>')
                numbers = numbers or part["numbers"]
            bar = f'<div class="bar" title="{escape(numbers)}">{"".join(bars)}</div>'
            rows.append(f"<div>{text(name)}</div><div>{bar}{text(numbers)}</div>")
    remarks = "".join(map(note, drawn.notes))
    return f'<div class="legend">{colours}</div><div class="map">{"".join(rows)}</div>{remarks}'


def _chart(key: str, drawn: pa.Table) -> str:
    """A chart of `rmq_spark.charts` as an image inside the page; a remark without altair."""
    from rmq_spark import charts

    try:
        import vl_convert  # noqa: F401
    except ImportError:
        return note("With altair and vl-convert-python (extra notebook), the page has a chart here.")
    buffer = io.StringIO()
    draw = charts.lag if key == "lag" else charts.disk_use
    draw(drawn).save(buffer, format="svg")
    image = base64.b64encode(buffer.getvalue().encode()).decode()
    if len(image) > _CHARTS_MAX // 2:
        return note("The chart has too many parts for this page.")
    return f'<div class="scroll"><img alt="{key}" src="data:image/svg+xml;base64,{image}"></div>'
