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

    Raises OptionError for another value: of a text, each letter would be a tag.
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
    return frozenset(tags)


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


def refuse_unknown_topic(topic: str, known: Collection[str]) -> None:
    """Raises OptionError, with the nearest name, for a topic that is not among `known`."""
    if topic not in known:
        named = sorted(name for name in known if not is_system_topic(name))
        raise OptionError(f"no topic is named {topic!r}; {did_you_mean(topic, named, 'topics')}")


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
    *,
    key: str | Sequence[str] | None = None,
    message_id: str | None = None,
    topic: str | None = None,
    tags: Sequence[str] | None = None,
    body: str | None = None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    **how: Any,  # Any: the other fields of `How`
) -> Found:
    """See `LogStore.find`; the topic may be unknown."""
    refuse_unknown_arguments(how)
    decode_options_of(columns, how.get("verify_crc", True))
    refuse_other_id(message_id)
    if body is not None and not isinstance(body, str):
        raise OptionError(f"body: expected a text, found {body!r}")
    keys = keys_of(key)
    choice = MessageChoice(
        names=() if topic is None else (topic,),
        tags=tags_of(tags),
        key=keys[0] if keys else None,
        message_id=message_id,
        where=where,
        body=body,
        since_ms=since_ms,
        until_ms=until_ms,
    )
    return _found_of(store, choice, keys, How(tuple(columns), **how))


def _found_of(store: Store, choice: MessageChoice, keys: Sequence[str], how: How) -> Found:
    """The messages that match, with any of the keys, in commitlog order and each once."""
    if len(keys) < 2:
        return look_up(store, replace(choice, key=keys[0]) if keys else choice, how)
    columns = tuple(dict.fromkeys((*how.columns, *_ORDER)))
    wider = replace(how, columns=columns)
    found = [look_up(store, replace(choice, key=key), wider) for key in keys]
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
        return events
    lives: dict[str, pa.Table] = {}
    for each in keys_of(key):
        found = find(store, None, None, None, key=each, columns=("msgId", "topic"), on_damage="DROPMALFORMED")
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
