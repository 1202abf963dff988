"""What `messages`, `find` and `trace` in Python take: the checks of their arguments, searches for several
keys, and warnings of what no message has.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.seen_names import Spelling, end_hint, hint_of_nothing, missing_tags
from store_format.display.rows import iso_utc
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS
from store_format.names import KEYS, TAGS, UNIQ_KEY, did_you_mean, is_system_topic
from store_format.read.choice import MessageChoice, refuse_empty_key
from store_format.search.look_up import Found, How, Searched, look_up
from store_format.views.trace import NAMED_AS_KEY, TRACE_COLUMNS, LifeSearch

if TYPE_CHECKING:
    from store_format.message.columns import PropertyFilter
    from store_format.read.store import Store

_log = logging.getLogger("rmq_spark")
_PROPERTIES = {"tags": TAGS, "keys": KEYS, "msgId": UNIQ_KEY}
_ORDER = ("physicalOffset", "queueOffset")  # messages of an inner batch have one physical offset
_ARGUMENTS = (
    "key", "message_id", "topic", "tags", "since", "until", "where", "body", "columns",
)  # fmt: skip


# ---- arguments ---------------------------------------------------------------------------------------------


def keys_of(key: object) -> tuple[str, ...]:
    """The keys of the argument `key`, each once: a text, or a list of texts; () for None.

    Raises OptionError for another value, for an empty list and for an empty key.
    """
    if key is None:
        return ()
    keys = (key,) if isinstance(key, str) else key
    if not isinstance(keys, list | tuple | set | frozenset) or not all(
        isinstance(each, str) for each in keys
    ):
        raise OptionError(f"key: expected a text or a list of texts, found {key!r}")
    if not keys:
        raise OptionError("key: expected a key, found an empty list")
    for each in keys:
        refuse_empty_key(each)
    return tuple(dict.fromkeys(keys))


def refuse_other_id(message_id: object) -> None:
    """Raises OptionError for an id that is no text."""
    if message_id is not None and not isinstance(message_id, str):
        raise OptionError(f"message_id: expected a text, found {message_id!r}")


def tags_of(tags: object) -> frozenset[str] | None:
    """The tags of the argument `tags`: a list of texts; None for no choice.

    Raises OptionError for an empty list, and for another value: of a text, each letter would be a tag, and
    `a || b` is how RocketMQ writes two tags.
    """
    if tags is None:
        return None
    given = [tags] if isinstance(tags, str) else [*tags] if isinstance(tags, Iterable) else []
    if "*" in given:
        raise OptionError(f"tags: expected tags, found {tags!r}; for all messages, leave tags out")
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        example = _parts(tags) if isinstance(tags, str) else ["paid", "shipped"]
        raise OptionError(f"tags: expected a list of tags, found {tags!r}; write tags={example}")
    if not given:
        raise OptionError("tags: expected tags, found an empty list")
    for tag in given:
        if not isinstance(tag, str):
            raise OptionError(f"tags: expected a list of texts, found {tag!r} in it")
        if "||" in tag:
            raise OptionError(f"tags: expected one tag in each text, found {tag!r}; write tags={_parts(tag)}")
    return frozenset(given)


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, re.split(r"\|\||,", text)) if part]


def refuse_columns(columns: object) -> None:
    """Raises OptionError for columns that are no list of known columns."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        example = _parts(columns) if isinstance(columns, str) else ["keys", "body"]
        raise OptionError(f"columns: expected a list of columns, found {columns!r}; write columns={example}")
    unknown = next((name for name in columns if name not in COLUMNS), None)
    if unknown is not None:
        hint = did_you_mean(str(unknown), COLUMNS, "columns", listed_max=len(COLUMNS))
        raise OptionError(f"columns: unknown column {unknown!r}; {hint}")


def warn_of_columns(names: Iterable[str]) -> None:
    """Warns of names in a condition that are columns: a condition names properties of messages."""
    for name in names:
        if name in COLUMNS:
            _log.warning(
                "where: %s is a column, and a condition names properties of messages%s",
                name,
                f": write {_PROPERTIES[name]}" if name in _PROPERTIES else "",
            )


def topics_of(topic: object, known: Collection[str]) -> tuple[str, ...]:
    """The names among `known` of the argument `topic`: a topic, a pattern, or a list of them; () for None.

    Raises OptionError for another value, and, with the nearest name, for a topic or pattern without a match.
    """
    if topic is None:
        return ()
    given = (topic,) if isinstance(topic, str) else topic
    if not isinstance(given, list | tuple | set | frozenset) or not all(
        isinstance(each, str) for each in given
    ):
        raise OptionError(f"topic: expected a topic, a pattern or a list of them, found {topic!r}")
    if not given:
        raise OptionError("topic: expected a topic, found an empty list")
    names: dict[str, None] = {}
    for each in given:
        choice = MessageChoice(glob=each)
        found = [each] if each in known else sorted({*filter(choice.chooses_topic, known)})
        if not found:
            named = sorted({name for name in known if not is_system_topic(name)})
            raise OptionError(f"no topic is named {each!r}; {did_you_mean(each, named, 'topics')}")
        names.update(dict.fromkeys(found))
    return tuple(names)


def refuse_unknown_arguments(names: Iterable[str]) -> None:
    """Raises OptionError for a name that is no argument of `find`."""
    known = (*_ARGUMENTS, *(each.name for each in fields(How) if each.name not in ("columns", "warned")))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known, "arguments", listed_max=len(known))
        raise OptionError(f"find: unknown argument {unknown!r}; {hint}")


# ---- warnings of what no message has -----------------------------------------------------------------------

_SPELLING = Spelling(
    any_tag=lambda tags: f"tags={list(tags)}",
    several_keys=lambda keys: f"find takes several keys: key={list(keys)}",
    with_part=lambda part: f"where=\"KEYS CONTAINS '{part}'\"",
)


def warn_of_nothing(name: str, stores: Sequence[Store], choice: MessageChoice, count: int) -> None:
    """Warns of tags, properties and a key that no message has; `count` messages match. `name` is the method.

    The sentences are those of `rmqlog`. A property that is a column has its warning: `warn_of_columns`.
    """
    sentences = missing_tags(stores, choice, _SPELLING)
    words = () if choice.key is None else (choice.key,)
    if not count and not any(each in COLUMNS for each in getattr(choice.where, "names", ())):
        hint = hint_of_nothing(stores, choice, words, _SPELLING)
        if not hint and (choice.since_ms, choice.until_ms) != (None, None):
            hint = end_hint(stores, replace(choice, include_system_topics=bool(words)), iso_utc)
        if hint or words:
            sentences.append(f"no message matches{hint}")
    for sentence in sentences:
        _log.warning("%s: %s", name, sentence)


def warn_of_missing_keys(name: str, keys: Iterable[str], hint: str = "") -> None:
    """Warns of each key that no message has. `name` is the method; `hint` ends the sentence."""
    for key in keys:
        _log.warning("%s: no message that matches has the key %r%s", name, key, hint)


# ---- reads of several keys ---------------------------------------------------------------------------------


class AnyKey:
    """Keeps the messages of record batches that have any of several keys, as UNIQ_KEY or as a word of KEYS.

    The batches need the columns NEEDS. `missing` are the keys that no message of them has.
    """

    NEEDS: ClassVar = ("keys", UNIQ_KEY)

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys, self._seen = tuple(keys), set[str]()

    def messages_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch that have any of the keys."""
        wanted, words, ids = pa.array(self._keys, pa.string()), batch["keys"], batch[UNIQ_KEY]
        keep = pc.is_in(ids, value_set=wanted).to_numpy(zero_copy_only=False).copy()
        hits = pc.is_in(words.flatten(), value_set=wanted)
        self._seen.update(words.flatten().filter(hits).to_pylist(), ids.filter(pa.array(keep)).to_pylist())
        keep[np.asarray(pc.list_parent_indices(words))[hits.to_numpy(zero_copy_only=False)]] = True
        return batch.filter(pa.array(keep))

    @property
    def missing(self) -> list[str]:
        return [key for key in self._keys if key not in self._seen]


# ---- searches, for several keys, too -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindSearch:
    """A search of `find`: the messages that `choice` chooses, with any of the `keys` if there are some."""

    choice: MessageChoice
    keys: tuple[str, ...]
    how: How

    def run(self, stores: Sequence[Store]) -> list[Found]:
        """What was found in each store. Warns of what no message of all stores has.

        Of a single missing key, the warning names near keys. Of several keys it does not: programs ask for
        many keys, and each look costs 0.1 s of CPU time.
        """
        found = [[look_up(store, choice, self._wider) for choice in self._choices] for store in stores]
        missing = [
            key for i, key in enumerate(self.keys) if not any(len(of_store[i].table) for of_store in found)
        ]
        searched = replace(self.choice, key=None)
        hint = (
            hint_of_nothing(stores, searched, missing, _SPELLING) if missing and len(self.keys) == 1 else ""
        )
        warn_of_missing_keys("find", missing, hint)
        merged = [_merged(of_store, self.how.columns) for of_store in found]
        count = sum(len(each.table) for each in merged)
        if not self.keys:
            choice = replace(self.choice, include_system_topics=not self.choice.has_topics)
            warn_of_nothing("find", stores, choice, count)
        return merged

    @property
    def _choices(self) -> list[MessageChoice]:
        return [replace(self.choice, key=key) for key in self.keys] or [self.choice]

    @property
    def _wider(self) -> How:
        """The search with the columns that tell one message from another."""
        return (
            replace(self.how, columns=tuple(dict.fromkeys((*self.how.columns, *_ORDER))))
            if (len(self.keys) > 1)
            else self.how
        )


def search_of(
    topics: tuple[str, ...],
    since_ms: int | None,
    until_ms: int | None,
    where: PropertyFilter | None,
    *,
    key: str | Sequence[str] | None = None,
    message_id: str | None = None,
    tags: Sequence[str] | None = None,
    body: str | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    **how: Any,  # Any: the other fields of `How`
) -> FindSearch:
    """The search of `LogStore.find`; the topics are names, which a store of a cluster may lack."""
    refuse_unknown_arguments(how)
    refuse_columns(columns)
    refuse_other_id(message_id)
    if body is not None and not isinstance(body, str):
        raise OptionError(f"body: expected a text, found {body!r}")
    keys = keys_of(key)
    choice = MessageChoice(
        names=topics,
        tags=tags_of(tags),
        key=keys[0] if keys else None,
        message_id=message_id,
        where=where,
        body=body,
        since_ms=since_ms,
        until_ms=until_ms,
    )
    return FindSearch(choice, keys, How(tuple(columns), **how))


def _merged(found: Sequence[Found], columns: Sequence[str]) -> Found:
    """The messages of several searches in commitlog order, each once."""
    if len(found) == 1:
        return found[0]
    rows = pa.concat_tables([each.table for each in found]).combine_chunks()
    places = zip(*(rows[name].to_pylist() for name in _ORDER), strict=True)
    seen = {place: i for i, place in enumerate(places)}
    table = rows.take(pa.array([seen[place] for place in sorted(seen)], pa.int64()))
    shown = list(dict.fromkeys((*columns, "physicalOffset")))
    hows = {each.how for each in found}
    return Found(
        table.select(shown),
        hows.pop() if len(hows) == 1 else "index and scan",
        Searched.together([each.searched for each in found]),
    )


# ---- the lives of the messages with a key ------------------------------------------------------------------


def trace(store: Store, message_id: str | None, key: str | Sequence[str] | None) -> pa.Table:
    """See `LogStore.trace`."""
    if (message_id is None) == (key is None):
        raise OptionError("trace: expected a message id, or key=…, and not both")
    refuse_other_id(message_id)
    search = LifeSearch(store)
    events = _lives_of(search, keys_of(key)) if message_id is None else _life_of(search, message_id)
    search.warn_of_missing()
    return events


def _life_of(search: LifeSearch, message_id: str) -> pa.Table:
    events = search.life_of(message_id)
    _refuse_key_as_id(events, message_id)
    if not events.num_rows:
        _log.warning("trace: no message has the id or key %r", message_id)
    return events


def _lives_of(search: LifeSearch, keys: Sequence[str]) -> pa.Table:
    lives: dict[str, pa.Table] = {}
    for key in keys:
        ids = search.ids_of(MessageChoice(key=key))
        if not ids:
            _log.warning("trace: no message has the key %r", key)
        for each in ids:
            if each not in lives:
                lives[each] = _with_message(search.life_of(each), key, each)
    if lives:
        return pa.concat_tables(lives.values())
    return _with_message(pa.table({each.name: pa.array([], each.type) for each in TRACE_COLUMNS}), "", "")


def _refuse_key_as_id(events: pa.Table, message_id: str) -> None:
    """Raises OptionError if messages have `message_id` as a key, and none has it as its id."""
    if set(events["what"].to_pylist()) == {NAMED_AS_KEY}:
        raise OptionError(
            f"trace: no message has the id {message_id!r}, but {events.num_rows} have it as a key; "
            f"write trace(key={message_id!r})"
        )


def _with_message(events: pa.Table, key: str, message_id: str) -> pa.Table:
    """The events with the columns `key` and `msgId` in front."""
    for name, text in (("msgId", message_id), ("key", key)):
        events = events.add_column(0, name, pa.array([text] * events.num_rows, pa.string()))
    return events
