"""What changed between an earlier state of a store, such as the damaged one or a backup, and the store."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa

from rmq_spark.report.contents import Section
from store_format.bookkeeping.ledger import GivenUp
from store_format.consumequeue.units import lost_mask, read_units
from store_format.display.columns import TEXT, ViewColumn, batch_of
from store_format.display.text import first_names, shown
from store_format.errors import StoreError
from store_format.metadata.group_offsets import read_broker_offsets
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.metadata.values import java_name
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.read.choice import MessageChoice
from store_format.read.store import Store
from store_format.views.diff import StoreDiff, diff_stores

SETTING_COLUMNS = (
    ViewColumn("kind", TEXT, "topic, group, or offset."),
    ViewColumn("name", TEXT, "The topic, the group, or the group and its queue."),
    ViewColumn("before", TEXT, "The value in the earlier store; null without one."),
    ViewColumn("now", TEXT, "The value in the store; null without one."),
)
_ROWS_MAX = 1000
_PLACES_MAX = 20
_NAMES = ("topic_name", "group_name")
_KINDS = (
    ("onlyInA", "only in the earlier store"),
    ("onlyInB", "only in this store"),
    ("changed", "changed"),
    ("moreInA", "more copies in the earlier store"),
    ("moreInB", "more copies in this store"),
    ("moved", "in another queue"),
)


def compared(before: Store, now: Store, typed: tuple[str, str]) -> Iterator[Section]:
    """The sections about messages and configuration. `typed` are the two stores as a command names them."""
    with diff_stores([before], [now], MessageChoice(include_system_topics=True)) as found:
        yield _messages(before, now, found, typed)
    yield _settings(before, now)


def _messages(before: Store, now: Store, found: StoreDiff, typed: tuple[str, str]) -> Section:
    title = f"Messages, compared with {shown(before.path)}"
    section = Section("before", title, shown=50, all_rows=f"rmqlog diff {typed[0]} {typed[1]}")
    section.columns = ("difference", "topic", "msgId", "keys", "addressA", "addressB", "fields")
    section.facts = [
        ("readable before", f"{found.messages[0]:,}"),
        ("readable now", f"{found.messages[1]:,}"),
        *((words, f"{found.counts[kind]:,}") for kind, words in _KINDS if found.counts[kind]),
    ]
    missing = found.counts["onlyInA"] + found.counts["moreInA"] + found.counts["changed"]
    if missing:
        section.warning = (
            f"{missing:,} {'message' if missing == 1 else 'messages'} of the earlier store "
            f"{'is' if missing == 1 else 'are'} missing or changed here."
        )
        if (begin := now.log.min_offset) > before.log.min_offset:
            section.warning += (
                f" The log of this store begins at physical offset {begin:,}: earlier messages were deleted, "
                "by retention or by hand."
            )
    elif found.is_equal:
        section.about = "Each message that could be read before is here as it was, and no other."
    else:
        section.about = "Each message that could be read before is here as it was; others came."
    if again := _twice(now):
        section.about += (
            f" Groups that read again from before these offsets get {len(again):,} "
            f"message{'s' * (len(again) != 1)} again: {first_names(again, _PLACES_MAX)}."
        )
    for when, count in zip(("before", "now"), found.unread, strict=True):
        if count:
            section.notes.append(f"{count:,} damaged places could not be read {when}.")
    section.table = pa.Table.from_batches(_first(found))
    section.total = sum(found.counts.values())
    if section.total > section.table.num_rows:
        section.notes.append(f"The rows are the first of {section.total:,}; {section.all_rows} shows all.")
    return section


def _twice(store: Store) -> list[str]:
    """The places of messages that a recovery gave up whose entries lead to the next whole message."""
    given_up = defaultdict[QueueKey, list[tuple[int, int]]](list)
    for topic, queue_id, first, stop in GivenUp.known(store.opened).messages:
        given_up[topic, queue_id].append((first, stop))
    found = list[str]()
    for queue in store.queues(lambda topic: any(topic == each for each, _ in given_up)) if given_up else ():
        bounds = queue.range.bounds
        if bounds is None or queue.range.is_batch:
            continue
        for first, stop in given_up.get(queue.key, ()):
            with suppress(StoreError):  # is among the problems
                first, stop = max(first, bounds.min_offset), min(stop, bounds.max_offset)
                again = (first + np.flatnonzero(lost_mask(read_units(bounds, first, stop)))).tolist()
                found += [f"{shown(queue.topic)}/{queue.queue_id}@{each}" for each in again]
    return found


def _first(found: StoreDiff) -> Iterator[pa.RecordBatch]:
    """The batches of the first rows."""
    left = _ROWS_MAX
    for batch in found.batches():
        yield batch.slice(0, left)
        left -= min(batch.num_rows, left)
        if not left:
            return


def _settings(before: Store, now: Store) -> Section:
    """The topics, groups and committed offsets that differ."""
    readers: tuple[tuple[str, Callable[[Opened], Mapping[str, str]]], ...] = (
        ("topic", _topics),
        ("group", _groups),
        ("offset", _offsets),
    )
    section = Section("settings", "Topics, groups and offsets that changed")
    rows = []
    for kind, read in readers:
        sides = []
        for store in (before, now):
            try:
                sides.append(read(store.opened))
            except (StoreError, OSError) as error:
                section.notes.append(shown(f"{kind}s of {store.path} cannot be read: {error}"))
                sides.append({})
        old, new = sides
        rows += [
            (kind, name, old.get(name), new.get(name))
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    section.about = _about_settings(rows)
    section.table = pa.Table.from_batches([batch_of(SETTING_COLUMNS, rows)])
    return section


def _about_settings(rows: Sequence[tuple[str, str, str | None, str | None]]) -> str:
    """How many differ, and the first names that are missing now."""
    if not rows:
        return "Topics, groups and committed offsets are as they were."
    counts = Counter(kind for kind, *_ in rows)
    told = ", ".join(f"{count:,} {kind}{'s' * (count != 1)}" for kind, count in counts.items())
    gone = [f"{kind} {shown(name)}" for kind, name, _, now in rows if now is None]
    missing = f"; missing now: {first_names(gone)}" if gone else ""
    return f"{told} differ from the earlier store{missing}."


def _topics(opened: Opened) -> dict[str, str]:
    return {name: _text(asdict(each)) for name, each in (read_topics(opened) or {}).items()}


def _groups(opened: Opened) -> dict[str, str]:
    return {name: _text(asdict(each)) for name, each in (read_subscription_groups(opened) or {}).items()}


def _text(values: Mapping[str, Any]) -> str:
    """The fields of a topic or a group that say something."""
    names = (name for name, value in values.items() if name not in _NAMES and value not in ({}, None))
    return ", ".join(f"{java_name(name)}={values[name]}" for name in names)


def _offsets(opened: Opened) -> dict[str, str]:
    _, found = read_broker_offsets(opened)
    return {
        f"{group} {topic}-{queue_id}": str(offset)
        for topic, group, table in (found.by_topic_and_group() if found is not None else ())
        for queue_id, offset in table.items()
    }
