"""What a search says besides its rows: a near key, the property that was meant, matches in system topics.

A hint must be cheap. It reads at most the newest `LOOKED_AT_MAX` messages, of at most `_QUEUES_MAX` queues
with consume queue files, on a file system; where that is not enough, there is no hint, or the hint says so.
Damage on the way is no error: the search itself reports what matters.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rmq_spark.cli.reading import chosen_queues, clock_hint, read_range, wanted_range
from rmq_spark.cli.remarks import given_store, remark
from rmq_spark.cli.repeated import choice_of_topics, globs_of
from store_format.display.text import cut, first_names, shown
from store_format.errors import StoreError
from store_format.files.paths import is_remote
from store_format.names import KEYS, TAGS, UNIQ_KEY, advice_of, is_light_queue, nearest
from store_format.read.choice import MessageChoice
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format import MessageStore, Queue

LOOKED_AT_MAX = 50_000  # messages: about 0.1 s of CPU time
_QUEUES_MAX = 100
_PLACE = ("physicalOffset", "queueOffset")
_TEXT_COLUMNS = 60  # of a key in a sentence
_PART_MIN = 3  # characters of a word that is looked for within keys
_KEYS_NAMED = 3
_TAGS_NAMED = 8

# Names that people give to RocketMQ's properties.
_PROPERTIES = {"tag": TAGS, "tags": TAGS, "key": KEYS, "keys": KEYS, "msgid": UNIQ_KEY, "uniqkey": UNIQ_KEY}


def hint_of_nothing(stores: Sequence[MessageStore], filters: MessageChoice, words: Sequence[str] = ()) -> str:
    """The end of the sentence that no message matches; "" without a hint. `words` are searched keys."""
    words = words or ([] if filters.key is None else [filters.key])
    names: Sequence[str] = getattr(filters.where, "names", ())
    hint = ""
    if words or names or filters.tags:
        looked = _look(stores, replace(filters, include_system_topics=True) if words else filters)
        hint = _key_hint(words, looked) or _property_hint(names, looked)
        hint = hint or _tag_hint(filters.tags or (), looked)
    return hint or clock_hint(stores, filters)


def say_missing_tags(stores: Sequence[MessageStore], filters: MessageChoice) -> None:
    """Says which of several `--tag` no message of the chosen queues has, if others are there.

    `hint_of_nothing` has the sentence for tags of which none is there.
    """
    if filters.tags is None or len(filters.tags) < 2:
        return
    looked = _look(stores, filters)
    for tag in sorted(filters.tags - looked.tags) if filters.tags & looked.tags else ():
        who = "no message of the chosen topics" if looked.is_all else f"none{looked.of_newest}"
        remark(f"{who} has the tag {_short(tag)}{_tag_hint([tag], looked)}")


def hint_of_key(stores: Sequence[MessageStore], key: str) -> str:
    """The key of another case, or the keys that the word is a part of; "" if there is none."""
    return _key_hint([key], _look(stores, MessageChoice(include_system_topics=True))).removeprefix("; ")


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
    if is_remote(store.path) or len(queues) > _QUEUES_MAX or any(queue.scanned for queue in queues):
        return None
    ranges = [(queue, *wanted_range(queue, searches[0], "FAILFAST")) for queue in queues]
    if len(searches) * sum(stop - start for _, start, stop in ranges) > LOOKED_AT_MAX:
        return None
    places: set[tuple[int, int]] = set()
    for search in searches:
        for batch in read_range(ranges, search, _PLACE, Tolerance()):
            places.update(zip(*(batch[name].to_pylist() for name in _PLACE), strict=True))
    return len(places)


# ---- what the newest messages have -------------------------------------------------------------------------


@dataclass(slots=True)
class _SeenNames:
    """Keys, tags and names of properties of the newest messages; of all chosen messages if `is_all`."""

    keys: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    properties: set[str] = field(default_factory=set)
    messages: int = 0
    is_all: bool = True

    @property
    def of_newest(self) -> str:
        return "" if self.is_all else f" of the newest {self.messages:,} messages"


def _look(stores: Sequence[MessageStore], filters: MessageChoice) -> _SeenNames:
    looked = _SeenNames()
    choice = choice_of_topics(
        globs_of(filters),
        include_system_topics=filters.include_system_topics,
        queue_ids=filters.queue_ids,
    )
    with suppress(StoreError, OSError):
        for store in stores:
            queues = [queue for queue in chosen_queues(store, choice) if not is_light_queue(queue.topic)]
            seen = [] if is_remote(store.path) else [q for q in queues if q.scanned is None][:_QUEUES_MAX]
            ranges = _newest_ranges(seen, LOOKED_AT_MAX // len(stores))
            looked.is_all &= len(seen) == len(queues)
            looked.is_all &= all(start == queue.min_offset for queue, start, _ in ranges)
            for batch in read_range(ranges, MessageChoice(), ("keys", "tags", "properties"), Tolerance()):
                looked.messages += batch.num_rows
                looked.keys.update(batch["keys"].flatten().drop_null().to_pylist())
                looked.tags.update(batch["tags"].drop_null().unique().to_pylist())
                looked.properties.update(batch["properties"].keys.unique().to_pylist())
    return looked


def _newest_ranges(queues: Sequence[Queue], messages_max: int) -> list[tuple[Queue, int, int]]:
    """Ranges of the newest messages; what a short queue does not need goes to the longer ones."""
    ranges, left = [], messages_max
    by_length = sorted(queues, key=lambda queue: queue.max_offset - queue.min_offset)
    for i, queue in enumerate(by_length):
        start = max(queue.min_offset, queue.max_offset - left // (len(by_length) - i))
        ranges.append((queue, start, queue.max_offset))
        left -= queue.max_offset - start
    return ranges


def _key_hint(words: Iterable[str], looked: _SeenNames) -> str:
    """Keys that contain a word, or differ in case only: a search takes a whole key as it is."""
    for word in words:
        part = word.strip("*").casefold()
        same = [key for key in looked.keys if key.casefold() == part and key != word]
        if same and "*" not in word:
            return f"; keys are case-sensitive, {advice_of(_short(min(same)))}"
        near = sorted(key for key in looked.keys if part and key.casefold().startswith(part))
        verb = "begin"
        if not near and len(part) >= _PART_MIN:
            near, verb = sorted(key for key in looked.keys if part in key.casefold()), "contain"
        if near and word not in near:
            return _part_hint(near, part, verb, looked)
    return ""


def _part_hint(near: Sequence[str], part: str, verb: str, looked: _SeenNames) -> str:
    """The keys with a part, and the search for all of them."""
    at = near[0].casefold().find(part)
    typed = near[0][at : at + len(part)]
    count = f"{len(near):,} key{'s' * (len(near) != 1)}{looked.of_newest}"
    verb += "s" * (len(near) == 1) + " with" * (verb == "begin")
    named = first_names(near, _KEYS_NAMED)
    hint = f"; keys are whole and case-sensitive: {count} {verb} {_short(typed)}: {named}"
    if len(near) == 1 or not re.fullmatch(r"[\w.:/#+-]+", typed):  # else it needs more quotes
        return hint
    condition = f"\"KEYS CONTAINS '{typed}'\""
    return f"{hint}; for all of them: rmqlog find {given_store()} -a --where {condition}"


def _tag_hint(tags: Collection[str], looked: _SeenNames) -> str:
    """The tag that was meant, if no message has any of `tags`."""
    if not tags or not looked.tags or looked.tags & set(tags):
        return ""
    by_lower = {tag.lower(): tag for tag in looked.tags}
    for tag in sorted(tags):
        parts = [part for part in re.split(r"[,|;\s]+", tag) if part]
        if len(parts) > 1 and set(parts) <= looked.tags:
            return f"; several tags are --tag {shlex.quote(' || '.join(parts))}"
        if tag.lower() in by_lower:
            return f"; tags are case-sensitive, {advice_of(_short(by_lower[tag.lower()]))}"
    return f"; the tags{looked.of_newest} are {first_names(sorted(looked.tags), _TAGS_NAMED)}"


def _short(text: str) -> str:
    return cut(shown(text), _TEXT_COLUMNS)


def _property_hint(names: Iterable[str], looked: _SeenNames) -> str:
    """The first name of --where that no message has as a property, and the property that was meant."""
    by_lower = {name.lower(): name for name in looked.properties}
    for name in names:
        if name in looked.properties or not looked.messages:
            continue
        meant = (
            by_lower.get(name.lower()) or _PROPERTIES.get(name.lower()) or nearest(name, looked.properties)
        )
        hint = advice_of(_short(meant)) if meant else f"they have {first_names(sorted(looked.properties))}"
        if looked.is_all:
            return f"; no message has a property {_short(name)}, {hint}"
        return f"; none{looked.of_newest} has a property {_short(name)}, {hint}"
    return ""
