"""What a search says besides its rows: a near key, the property that was meant, matches in system topics.

`rmq_spark/seen_names.py` looks at the newest messages for that, and says how many at most.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from rmq_spark import seen_names
from rmq_spark.cli.cells import zone_of
from rmq_spark.cli.reading import clock_hint, read_range
from rmq_spark.cli.remarks import given_store, remark
from rmq_spark.cli.typed_times import instant_text
from rmq_spark.seen_names import Spelling
from store_format.errors import StoreError
from store_format.files.paths import is_remote
from store_format.names import is_light_queue
from store_format.read.choice import MessageChoice
from store_format.read.chosen_messages import chosen_queues, offsets_in_time
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format import MessageStore, Queue

_PLACE = ("physicalOffset", "queueOffset")


def _several_keys(keys: Sequence[str]) -> str:
    takes_several = any(each.name == "keys" for each in click.get_current_context().command.params)
    who = "several keys are" if takes_several else "rmqlog find takes several keys:"
    return f"{who} {' '.join(f'-k {shlex.quote(key)}' for key in keys)}"


_SPELLING = Spelling(
    any_tag=lambda tags: f"--tag {shlex.quote(' || '.join(tags))}",
    several_keys=_several_keys,
    with_part=lambda part: f"rmqlog find {given_store()} -a --where \"KEYS CONTAINS '{part}'\"",
)


def hint_of_nothing(stores: Sequence[MessageStore], filters: MessageChoice, words: Sequence[str] = ()) -> str:
    """The end of the sentence that no message matches; "" without a hint. `words` are searched keys."""
    words = words or ([] if filters.key is None else [filters.key])
    hint = seen_names.hint_of_nothing(stores, filters, words, _SPELLING)
    if hint or (filters.since_ms is None and filters.until_ms is None):
        return hint
    searched = replace(filters, include_system_topics=True) if words else filters
    zone = zone_of(click.get_current_context().params.get("tz") or "local", to_terminal=True)
    return clock_hint(stores, filters) or seen_names.end_hint(
        stores, searched, partial(instant_text, zone=zone)
    )


def say_missing_tags(stores: Sequence[MessageStore], filters: MessageChoice) -> None:
    """Says which of several `--tag` no message of the chosen queues has, if others are there."""
    for sentence in seen_names.missing_tags(stores, filters, _SPELLING):
        remark(sentence)


def hint_of_key(stores: Sequence[MessageStore], key: str) -> str:
    """The key of another case, or the keys that the word is a part of; "" if there is none."""
    return seen_names.hint_of_key(stores, key, _SPELLING)


def say_what_system_topics_have(
    stores: Sequence[MessageStore], filters: MessageChoice, keys: Sequence[str] = ()
) -> None:
    """Says how many more messages match in system topics, which a search without -a leaves out.

    With `keys`, messages with any of them match.
    """
    if filters.include_system_topics or not (filters.looks_at_messages or keys):
        return
    everywhere = replace(filters, include_system_topics=True, limit=None)
    searches = [replace(everywhere, key=key) for key in keys] or [everywhere]
    try:
        counts = [_count(store, searches, _left_out(store, filters, everywhere)) for store in stores]
    except StoreError as error:
        remark(f"system topics were not searched: {error}")
        return
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        remark("system topics were not searched; to search them, too: -a")
    elif sum(known):
        remark(f"{sum(known):,} more in system topics: -a")


def _left_out(store: MessageStore, filters: MessageChoice, everywhere: MessageChoice) -> list[Queue]:
    """The queues of system topics that only -a adds. Light queues show messages of other queues again."""
    return [
        queue
        for queue in chosen_queues(store, everywhere)
        if not filters.chooses_topic(queue.topic) and not is_light_queue(queue.topic)
    ]


def _count(store: MessageStore, searches: Sequence[MessageChoice], queues: Sequence[Queue]) -> int | None:
    """How many messages of the queues match any of the searches; None if that is not cheap."""
    if not queues:
        return 0
    if is_remote(store.path) or len(queues) > seen_names.QUEUES_MAX or any(queue.scanned for queue in queues):
        return None
    ranges = [(queue, *offsets_in_time(queue, searches[0])) for queue in queues]
    if len(searches) * sum(stop - start for _, start, stop in ranges) > seen_names.LOOKED_AT_MAX:
        return None
    places: set[tuple[int, int]] = set()
    for search in searches:
        for batch in read_range(ranges, search, _PLACE, Tolerance()):
            places.update(zip(*(batch[name].to_pylist() for name in _PLACE), strict=True))
    return len(places)
