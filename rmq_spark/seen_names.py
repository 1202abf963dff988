"""What the newest messages have, for hints of a search that finds nothing: a near key, tag or property.

A hint must be cheap. It reads at most the newest `LOOKED_AT_MAX` messages, of at most `QUEUES_MAX` queues
with consume queue files, on a file system; where that is not enough, there is no hint, or the hint says so.
Damage on the way is no error: the search itself reports what matters.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from store_format.display.text import cut, first_names, shown
from store_format.errors import StoreError
from store_format.files.paths import is_remote
from store_format.names import KEYS, TAGS, UNIQ_KEY, advice_of, is_light_queue, nearest
from store_format.read.choice import MessageChoice
from store_format.read.chosen_messages import chosen_queues, read_chosen
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

LOOKED_AT_MAX = 50_000  # messages: about 0.1 s of CPU time
QUEUES_MAX = 100
_TEXT_COLUMNS = 60  # of a key in a sentence
_PART_MIN = 3  # characters of a word that is looked for within keys
_KEYS_NAMED = 3
_TAGS_NAMED = 8
_TOPICS_NAMED = 5
_END_QUEUES_MAX = 100

# Names that people give to RocketMQ's properties.
_PROPERTIES = {"tag": TAGS, "tags": TAGS, "key": KEYS, "keys": KEYS, "msgid": UNIQ_KEY, "uniqkey": UNIQ_KEY}


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a caller writes searches: for any of several tags, for several keys, for all keys with a part."""

    any_tag: Callable[[Sequence[str]], str]
    several_keys: Callable[[Sequence[str]], str]
    with_part: Callable[[str], str]


@dataclass(slots=True)
class SeenNames:
    """Keys, tags and names of properties of the newest messages; of all chosen messages if `is_all`."""

    keys: set[str] = field(default_factory=set)
    tags: set[str] = field(default_factory=set)
    properties: set[str] = field(default_factory=set)
    messages: int = 0
    is_all: bool = True

    @property
    def of_newest(self) -> str:
        return "" if self.is_all else f" of the newest {self.messages:,} messages"


def look(stores: Sequence[Store], filters: MessageChoice) -> SeenNames:
    """Looks at the newest messages of the chosen queues."""
    looked = SeenNames()
    with suppress(StoreError, OSError):
        for store in stores:
            queues = [queue for queue in chosen_queues(store, filters) if not is_light_queue(queue.topic)]
            seen = [] if is_remote(store.path) else [q for q in queues if q.scanned is None][:QUEUES_MAX]
            ranges = _newest_ranges(seen, LOOKED_AT_MAX // len(stores))
            looked.is_all &= len(seen) == len(queues)
            looked.is_all &= all(start == queue.min_offset for queue, start, _ in ranges)
            for batch in read_chosen(ranges, ("keys", "tags", "properties"), Tolerance(), MessageChoice()):
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


# ---- hints -------------------------------------------------------------------------------------------------


def hint_of_nothing(
    stores: Sequence[Store], filters: MessageChoice, words: Sequence[str], spelling: Spelling
) -> str:
    """The end of the sentence that no message matches; "" without a hint. `words` are searched keys."""
    names: Sequence[str] = getattr(filters.where, "names", ())
    if not (words or names or filters.tags):
        return ""
    if hint := _elsewhere_hint(stores, filters, words):
        return hint
    looked = look(stores, replace(filters, include_system_topics=True) if words else filters)
    hint = _key_hint(words, looked, spelling) or _property_hint(names, looked)
    return hint or _tag_hint(filters.tags or (), looked, spelling)


def end_hint(stores: Sequence[Store], filters: MessageChoice, text_of: Callable[[int], str]) -> str:
    """The end of the sentence that no message matches, if `since_ms` is after the newest message of the
    chosen queues, or `until_ms` at or before the oldest one; else "". Also "" if there are many queues, or
    one has lost its files. `text_of` writes a time in ms.
    """
    from store_format.views.measure import look as look_at

    queues = [
        queue
        for store in stores
        for queue in chosen_queues(store, filters)
        if queue.min_offset < queue.max_offset
    ]
    if not queues or len(queues) > _END_QUEUES_MAX or any(queue.scanned is not None for queue in queues):
        return ""
    of_all = f"message of the chosen {'queues' if filters.queue_ids else 'topics'} was stored at"
    newest = [look_at(queue, queue.max_offset - 1)[0] for queue in queues]
    oldest = [look_at(queue, queue.min_offset)[0] for queue in queues]
    times = [time for time in (*newest, *oldest) if time is not None]
    if len(times) < 2 * len(queues):
        return ""
    if filters.since_ms is not None and max(times) < filters.since_ms:
        return f"; the newest {of_all} {text_of(max(times))}"
    if filters.until_ms is not None and min(times) >= filters.until_ms:
        return f"; the oldest {of_all} {text_of(min(times))}"
    return ""


def missing_tags(stores: Sequence[Store], filters: MessageChoice, spelling: Spelling) -> list[str]:
    """For each of several tags that no message of the chosen queues has, if others are there: a sentence.

    `hint_of_nothing` has the sentence for tags of which none is there.
    """
    if filters.tags is None or len(filters.tags) < 2:
        return []
    looked = look(stores, filters)
    who = "no message of the chosen topics" if looked.is_all else f"none{looked.of_newest}"
    return [
        f"{who} has the tag {_short(tag)}{_tag_hint([tag], looked, spelling)}"
        for tag in (sorted(filters.tags - looked.tags) if filters.tags & looked.tags else ())
    ]


def hint_of_key(stores: Sequence[Store], key: str, spelling: Spelling) -> str:
    """The key of another case, or the keys that the word is a part of; "" if there is none."""
    looked = look(stores, MessageChoice(include_system_topics=True))
    return _key_hint([key], looked, spelling).removeprefix("; ")


def _elsewhere_hint(stores: Sequence[Store], filters: MessageChoice, words: Sequence[str]) -> str:
    """The topics beside the chosen ones whose newest messages have one of the keys, and how many messages
    if all were looked at.
    """
    counts, is_all, messages_max = Counter[str](), True, LOOKED_AT_MAX // max(len(stores) * len(words), 1)
    with suppress(StoreError, OSError):
        for store in stores if words and filters.has_topics and not filters.queue_ids else ():
            others = [
                queue
                for queue in store.queues()
                if not (filters.chooses_topic(queue.topic) or is_light_queue(queue.topic))
            ]
            seen = [] if is_remote(store.path) else [q for q in others if q.scanned is None][:QUEUES_MAX]
            ranges = _newest_ranges(seen, messages_max)
            is_all &= len(seen) == len(others)
            is_all &= all(start == queue.min_offset for queue, start, _ in ranges)
            for word in dict.fromkeys(words):
                found = read_chosen(ranges, ("topic",), Tolerance("DROPMALFORMED"), MessageChoice(key=word))
                for batch in found:
                    counts.update(batch["topic"].to_pylist())
    named = [f"{topic} ({count:,})" if is_all else topic for topic, count in sorted(counts.items())]
    which = "it" if len(words) == 1 else "them"
    return f"; other topics have {which}: {first_names(named, _TOPICS_NAMED)}" if named else ""


def _key_hint(words: Iterable[str], looked: SeenNames, spelling: Spelling) -> str:
    """Keys that contain a word, or differ in case only: a search takes a whole key as it is."""
    for word in words:
        if several := _several_hint(word, looked, spelling):
            return several
        part = word.strip("*").casefold()
        same = [key for key in looked.keys if key.casefold() == part and key != word]
        if same and "*" not in word:
            return f"; keys are case-sensitive, {advice_of(_short(min(same)))}"
        near = sorted(key for key in looked.keys if part and key.casefold().startswith(part))
        verb = "begin"
        if not near and len(part) >= _PART_MIN:
            near, verb = sorted(key for key in looked.keys if part in key.casefold()), "contain"
        if near and word not in near:
            return _part_hint(near, part, verb, looked, spelling)
    return ""


def _several_hint(word: str, looked: SeenNames, spelling: Spelling) -> str:
    """The keys that were typed as one word. Blanks separate the keys of a message, so no key has any."""
    parts = [part for part in re.split(r"[,;\s]+", word) if part]
    if len(parts) == 1 and word != word.strip():
        return f"; a key has no space before or behind it, {advice_of(_short(parts[0]))}"
    if len(parts) < 2 or (looked.is_all and looked.keys.isdisjoint(parts)):
        return ""
    return f"; {spelling.several_keys([shown(part) for part in parts])}"


def _part_hint(near: Sequence[str], part: str, verb: str, looked: SeenNames, spelling: Spelling) -> str:
    """The keys with a part, and the search for all of them."""
    at = near[0].casefold().find(part)
    typed = near[0][at : at + len(part)]
    count = f"{len(near):,} key{'s' * (len(near) != 1)}{looked.of_newest}"
    verb += "s" * (len(near) == 1) + " with" * (verb == "begin")
    named = first_names(near, _KEYS_NAMED)
    hint = f"; keys are whole and case-sensitive: {count} {verb} {_short(typed)}: {named}"
    if len(near) == 1 or not re.fullmatch(r"[\w.:/#+-]+", typed):  # else it needs more quotes
        return hint
    return f"{hint}; for all of them: {spelling.with_part(typed)}"


def _tag_hint(tags: Collection[str], looked: SeenNames, spelling: Spelling) -> str:
    """The tag that was meant, if no message has any of `tags`."""
    if not tags or not looked.tags or looked.tags & set(tags):
        return ""
    by_lower = {tag.lower(): tag for tag in looked.tags}
    for tag in sorted(tags):
        parts = [part for part in re.split(r"[,|;\s]+", tag) if part]
        if len(parts) > 1 and set(parts) <= looked.tags:
            return f"; several tags are {spelling.any_tag(parts)}"
        if tag.lower() in by_lower:
            return f"; tags are case-sensitive, {advice_of(_short(by_lower[tag.lower()]))}"
    return f"; the tags{looked.of_newest} are {first_names(sorted(looked.tags), _TAGS_NAMED)}"


def _short(text: str) -> str:
    return cut(shown(text), _TEXT_COLUMNS)


def _property_hint(names: Iterable[str], looked: SeenNames) -> str:
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
