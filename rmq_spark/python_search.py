"""What `find` and `trace` in Python take: the checks of their arguments, and searches for several keys."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from store_format.errors import OptionError
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS, decode_options_of
from store_format.names import KEYS, TAGS, TRACE_PREFIXES, UNIQ_KEY, did_you_mean, is_system_topic
from store_format.read.choice import MessageChoice
from store_format.search.look_up import Found, How, Searched, look_up
from store_format.views.trace import NAMED_AS_KEY, TRACE_COLUMNS

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

    Raises OptionError for another value, and for an empty list.
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
    return tuple(dict.fromkeys(keys))


def refuse_other_id(message_id: object) -> None:
    """Raises OptionError for an id that is no text."""
    if message_id is not None and not isinstance(message_id, str):
        raise OptionError(f"message_id: expected a text, found {message_id!r}")


def tags_of(tags: object) -> frozenset[str] | None:
    """The tags of the argument `tags`: a list of texts; None for no choice.

    Raises OptionError for another value: of a text, each letter would be a tag, and `a || b` is how RocketMQ
    writes two tags.
    """
    if tags is None:
        return None
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        example = (
            [part.strip() for part in re.split(r"\|\||,", tags)]
            if isinstance(tags, str)
            else ["paid", "shipped"]
        )
        raise OptionError(f"tags: expected a list of tags, found {tags!r}; write tags={example}")
    tags = frozenset(tags)
    several = next((tag for tag in tags if isinstance(tag, str) and "||" in tag), None)
    if several is not None:
        parts = [part.strip() for part in several.split("||")]
        raise OptionError(f"tags: expected one tag in each text, found {several!r}; write tags={parts}")
    return tags


def refuse_words(tags: object, key: object) -> None:
    """Raises OptionError for tags that are no list, and for a key that is no text."""
    tags_of(tags)
    keys = keys_of(key)
    if key is not None and not isinstance(key, str):
        raise OptionError(f"key: messages takes one key, found {keys!r}; find(key=[…]) takes several")


def refuse_topic_and_columns(topic: object, columns: object) -> None:
    """Raises OptionError for a topic that is no text, and for columns that are no list."""
    if not (topic is None or isinstance(topic, str)):
        raise OptionError(f"topic: expected a topic or a pattern such as 'Order*', found {topic!r}")
    if isinstance(columns, str):
        example = f"columns=[{columns!r}]"
        raise OptionError(f"columns: expected a list of columns, found {columns!r}; write {example}")


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
    known = (*_ARGUMENTS, *(each.name for each in fields(How) if each.name != "columns"))
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known, "arguments", listed_max=len(known))
        raise OptionError(f"find: unknown argument {unknown!r}; {hint}")


# ---- several keys ------------------------------------------------------------------------------------------


def find(
    store: Store,
    since_ms: int | None,
    until_ms: int | None,
    where: PropertyFilter | None,
    misses: list[str],
    *,
    key: str | Sequence[str] | None = None,
    message_id: str | None = None,
    topics: tuple[str, ...] = (),
    tags: Sequence[str] | None = None,
    body: str | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    **how: Any,  # Any: the other fields of `How`
) -> Found:
    """See `LogStore.find`; the topics are names, which may be unknown.

    Appends to `misses` which of several keys and tags no message has that is found.
    """
    refuse_unknown_arguments(how)
    decode_options_of(columns, how.get("verify_crc", True))
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
    if choice.tags is None or len(choice.tags) < 2:
        return _found_of(store, choice, keys, How(tuple(columns), **how), misses)
    found = _found_of(
        store, choice, keys, How(tuple({**dict.fromkeys(columns), "tags": None}), **how), misses
    )
    if len(found.table):
        there = set(found.table["tags"].to_pylist())
        misses.extend(f"the tag {tag!r}" for tag in choice.tags - there)
    return found if "tags" in columns else replace(found, table=found.table.drop_columns(["tags"]))


def warn_of_misses(misses: Sequence[Collection[str]]) -> None:
    """Warns of what no message has in any store. `misses` are those of `find`, for each store."""
    for miss in sorted(set(misses[0]).intersection(*misses)) if misses else ():
        _log.warning("find: no message that matches has %s", miss)


def _found_of(store: Store, choice: MessageChoice, keys: Sequence[str], how: How, misses: list[str]) -> Found:
    """The messages that match, with any of the keys, in commitlog order and each once."""
    if len(keys) < 2:
        return look_up(store, replace(choice, key=keys[0]) if keys else choice, how)
    columns = tuple(dict.fromkeys((*how.columns, *_ORDER)))
    wider = replace(how, columns=columns)
    found = [look_up(store, replace(choice, key=key), wider) for key in keys]
    misses.extend(f"the key {key!r}" for key, each in zip(keys, found, strict=True) if not len(each.table))
    rows = pa.concat_tables([each.table for each in found]).combine_chunks()
    places = zip(*(rows[name].to_pylist() for name in _ORDER), strict=True)
    seen = {place: i for i, place in enumerate(places)}
    table = rows.take(pa.array([seen[place] for place in sorted(seen)], pa.int64()))
    shown = list(dict.fromkeys((*how.columns, "physicalOffset")))
    hows = {each.how for each in found}
    return Found(
        table.select(shown),
        hows.pop() if len(hows) == 1 else "index and scan",
        _together([each.searched for each in found]),
    )


def _together(searches: Sequence[Searched]) -> Searched:
    """What several searches have read; bytes that each of them scanned count once for each."""
    return Searched(
        tuple(sorted({topic for each in searches for topic in each.topics})),
        tuple(dict.fromkeys(name for each in searches for name in each.index_files)),
        tuple(dict.fromkeys(reason for each in searches for reason in each.unused)),
        sum(each.candidates for each in searches),
        tuple(dict.fromkeys(part for each in searches for part in each.scanned)),
        sum(each.bytes_scanned for each in searches),
        max(each.damaged_bytes for each in searches),
        max(each.lost for each in searches),
    )


# ---- the lives of the messages with a key ------------------------------------------------------------------


def trace(
    store: Store,
    message_id: str | None,
    key: str | Sequence[str] | None,
    life_of: Callable[[str], pa.Table],
) -> pa.Table:
    """See `LogStore.trace`. `life_of` has the life of the message with an id."""
    if (message_id is None) == (key is None):
        raise OptionError("trace: expected a message id, or key=…, and not both")
    refuse_other_id(message_id)
    if message_id is not None:
        events = life_of(message_id)
        _refuse_key_as_id(events, message_id)
        if not events.num_rows:
            _log.warning("trace: no message has the id or key %r", message_id)
        return events
    lives: dict[str, pa.Table] = {}
    for each in keys_of(key):
        found = find(
            store, None, None, None, [], key=each, columns=("msgId", "topic"), on_damage="DROPMALFORMED"
        )
        if not found.table.num_rows:
            _log.warning("trace: no message has the key %r", each)
        for row in found.table.to_pylist():
            if row["msgId"] not in lives and not row["topic"].startswith(TRACE_PREFIXES):
                lives[row["msgId"]] = _with_message(life_of(row["msgId"]), each, row["msgId"])
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
