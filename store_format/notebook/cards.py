"""The HTML forms of this package's own objects: a store, a queue, what `find` found, what `diagnose` found, a
view, a message.

Each is made when a notebook asks for it, from a listing and a few reads, and says what it could not read
instead of failing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from store_format.display.columns import INT, LONG, TEXT, ViewColumn, batch_of, schema_of
from store_format.display.message import message, title_of
from store_format.display.page import Html, Room, card, fact, facts, note, text, warning
from store_format.display.table import LIMIT, table
from store_format.errors import StoreError
from store_format.views.broker_state import PROBLEM_COLUMNS
from store_format.views.registry import view_batches, view_named

if TYPE_CHECKING:
    from store_format.diagnose.problems import Diagnosis, Problem
    from store_format.search.by_key import Found
    from store_format.store import MessageStore, Queue

__all__ = [
    "diagnosis_card",
    "found_card",
    "message_cards",
    "queue_card",
    "store_card",
    "table_card",
    "view_card",
]

_PREVIEW_ROWS = 10
_PREVIEW_COLUMNS = ("queueOffset", "storeTimestamp", "tags", "keys", "msgId", "body")
_TOPICS_SHOWN = 30
_FINDINGS_SHOWN = 5
_MESSAGES_MAX = 10
_MESSAGE_FRAME_SIZE = 500  # bytes of what every message has around its values

_TOPIC_COLUMNS = (
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queues", INT, "Queues that have messages, or had some."),
    ViewColumn("messages", LONG, "Messages that can be read."),
)


def table_card(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    title: str,
    *,
    limit: int = LIMIT,
    total: int | None = None,
) -> Html:
    """Any rows."""
    return card(title, "rows", [table(batches, schema, Room(), limit=limit, total=total)])


def view_card(store: MessageStore, name: str, *, limit: int = LIMIT, now_ms: int | None = None) -> Html:
    """A view, read no further than it is shown."""
    view = view_named(name)
    about = {column.name: column.about for column in view.columns}
    rows = table(view_batches(store, name, now_ms=now_ms), view.schema, Room(), limit=limit, about=about)
    return card(f"{store.broker_name}: {name}", "view", [note(view.about), rows])


# Any: values of columns
def message_cards(rows: Iterable[Mapping[str, Any]], *, limit: int = _MESSAGES_MAX) -> Html:
    """A card for each row, one page for all."""
    room, parts, title, shown = Room(), [], "message", 0
    for row in rows:
        if shown == limit or room.is_full:
            parts.append(
                note(
                    f"the first {shown:,} messages{': the page is full' if room.is_full else '; more follow'}"
                )
            )
            break
        if shown:
            head = f'<div class="s">{text(title_of(row))}</div>'
            room.spend(len(head.encode()) + _MESSAGE_FRAME_SIZE)
            parts.append(head)
        else:
            title = title_of(row)
        parts += message(row, room)
        shown += 1
    return card(title, "message" if shown < 2 else f"{shown:,} messages", parts or [note("no message")])


# ---- stores and queues -------------------------------------------------------------------------------------


def store_card(store: MessageStore) -> Html:
    """What a store is, and its topics with the most messages."""
    log = store.log
    files = f"{len(log.files):,} file{'s' * (len(log.files) != 1)}, {log.size_bytes:,} bytes, from offset {log.min_offset:,}"
    lines = [("path", text(store.path, 500)), ("broker", text(store.broker_name)), ("commitlog", files)]
    parts: list[str] = []
    try:
        lines.append(("state", str(store.state)))
        if store.has_consume_queues:
            queues = store.queues()
            lines.append(
                (
                    "messages",
                    f"{sum(queue.max_offset - queue.min_offset for queue in queues):,} in {len(queues):,} queues",
                )
            )
            parts.append(_topics(queues))
        else:
            parts.append(
                note(
                    "no consume queue files; store.view('topics') finds the topics in the commitlog by reading all of it"
                )
            )
    except (StoreError, OSError) as error:
        parts.append(warning(f"not all of it can be read: {error}"))
    parts = [*map(warning, _findings(store)), *parts]
    return card(store.broker_name, "message store", [facts(starmap(fact, lines)), *parts])


def _findings(store: MessageStore) -> Iterator[str]:
    yield from (str(finding) for finding in store.log.findings[:_FINDINGS_SHOWN])
    if len(store.log.findings) > _FINDINGS_SHOWN:
        yield f"{len(store.log.findings):,} such findings in all; store.diagnose() names them"


def _topics(queues: list[Queue]) -> str:
    sums: dict[str, tuple[int, int]] = {}
    for queue in queues:
        count, messages = sums.get(queue.topic, (0, 0))
        sums[queue.topic] = (count + 1, messages + queue.max_offset - queue.min_offset)
    rows = sorted(((topic, *counted) for topic, counted in sums.items()), key=lambda row: (-row[2], row[0]))
    batch = batch_of(_TOPIC_COLUMNS, rows[: _TOPICS_SHOWN + 1])
    about = {column.name: column.about for column in _TOPIC_COLUMNS}
    return table(
        [batch], schema_of(_TOPIC_COLUMNS), Room(), limit=_TOPICS_SHOWN, total=len(rows), about=about
    )


def queue_card(queue: Queue) -> Html:
    """A queue's offsets and its newest messages."""
    start = max(queue.max_offset - _PREVIEW_ROWS, queue.min_offset)
    lines = [
        ("broker", text(queue.store.broker_name)),
        ("offsets", f"{queue.min_offset:,} up to {queue.max_offset:,}, which is not in it yet"),
        ("messages", f"{queue.max_offset - queue.min_offset:,}"),
    ]
    parts: list[str] = []
    try:
        batches = (
            list(queue.read(start, columns=_PREVIEW_COLUMNS)) if queue.max_offset > queue.min_offset else []
        )
        if batches:
            parts.append(
                '<div class="s">the newest</div>'
                + table(batches, batches[0].schema, Room(), limit=_PREVIEW_ROWS)
            )
    except (StoreError, OSError) as error:
        parts.append(warning(f"its newest messages cannot be read: {error}"))
    return card(f"{queue.topic}-{queue.queue_id}", "message queue", [facts(starmap(fact, lines)), *parts])


# ---- answers -----------------------------------------------------------------------------------------------


def found_card(found: Found) -> Html:
    """The messages, and where they were looked for."""
    lines = [("found by", text(found.how)), ("searched", text(str(found.searched), 500))]
    rows = table(found.table.to_batches(), found.table.schema, Room(), total=found.table.num_rows)
    title = f"{found.table.num_rows:,} message{'s' * (found.table.num_rows != 1)}"
    return card(title, "found", [facts(starmap(fact, lines)), rows])


_SUMS = (
    ("messages", "unit_bytes"), ("padding", "blank_bytes"), ("damage", "damage_bytes"), ("unwritten", "unwritten_bytes"),
    ("not in the sequence", "unplaced_bytes"), ("missing files", "missing_bytes"),
)  # fmt: skip


def diagnosis_card(diagnosis: Diagnosis) -> Html:
    """The commitlog's bytes by what they are, and the problems."""
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
    )


def _problem_row(problem: Problem) -> tuple[object, ...]:
    return problem.severity, problem.file, problem.position, problem.expected, problem.found, problem.advice
