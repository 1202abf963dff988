"""One option: its row in a table, the parsers of its text, and how values become the fields of a class.

Texts are numbers, sizes, words, lists, patterns, times, JSON, paths, names of views, and queues. Nothing is
guessed: a text that does not parse is an OptionError with the option's documented name, the expected and the
found text. No parser reads a file. Tasks run in other directories than the caller, so relative paths become
absolute here.

`subscribe`, `subscribePattern`, `assign` and `includeSystemTopics` choose topics and queues. System topics
are left out by default: RocketMQ keeps its bookkeeping there (TopicValidator), and topics with `%RETRY%`,
`%DLQ%` and `%LMQ%` hold messages that another topic has already.

The JSON of `startingOffsets` and the related options is `{"topic":{"broker":{"0":23}}}` or
`{"topic":{"0":23}}`. -2 means earliest, -1 latest, and `"*"` any topic, broker or queue; a queue without an
entry has the default. The most specific entry decides: topic before broker before queue.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from store_format.display.instants import number_advice
from store_format.display.rows import iso_utc
from store_format.errors import OptionError
from store_format.files import paths
from store_format.files.source import place_of
from store_format.names import did_you_mean
from store_format.read.choice import MessageChoice, QueueName

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BATCH = "batch"
STREAM = "stream"
WRITE = "write"

_SHOWN_MAX = 100  # characters of a value that an error repeats
_LONG_MAX = (1 << 63) - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# JavaUtils.byteStringAs of Spark: binary units, with or without the B.
_SIZE = re.compile(r"([0-9]+)([a-z]*)", re.ASCII)
_SIZE_UNITS = {
    "": 0,
    "b": 0,
    "k": 1,
    "kb": 1,
    "m": 2,
    "mb": 2,
    "g": 3,
    "gb": 3,
    "t": 4,
    "tb": 4,
    "p": 5,
    "pb": 5,
}

_ISO = re.compile(
    r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII | re.IGNORECASE
)
_BELOW_MICROSECONDS = re.compile(r"\.\d{6}0*[1-9]", re.ASCII)
_RELATIVE = re.compile(r"-\s*(\d+\s*[a-z]+\s*)+", re.ASCII)
_DURATION = re.compile(r"(\d+\s*[a-z]+\s*)+", re.ASCII)
_RELATIVE_PART = re.compile(r"(\d+)\s*([a-z]+)", re.ASCII)
_TIME_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
    **dict.fromkeys(("w", "week", "weeks"), 604_800_000),
}
_TIME_UNITS_ADVICE = "the units are ms, s, m (minutes), h, d and w, or their English names"
_A_TIME = "ms since the epoch, ISO 8601 (2024-05-01T12:00:00Z) or a time back from now (-2 hours)"

MESSAGES = "messages"  # the view that is a read of messages
_DIFF = "diff"  # the view of two stores
_WITH_VIEW = frozenset((
    "view", "path", "paths", "brokerName", "storePathCommitLog", "columns", "brokerConf", "compacted",
    "tieredStoreFilePath",
))  # fmt: skip
_WITH_DIFF = _WITH_VIEW - {"brokerConf"} | {
    "otherPath", "subscribe", "subscribePattern", "includeSystemTopics",
}  # fmt: skip

_ANY = "*"
_EARLIEST_VALUE, _LATEST_VALUE = -2, -1  # KafkaOffsetRangeLimit
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_OFFSETS_EXAMPLE = '{"TopicTest":{"broker-a":{"0":23}}} or {"TopicTest":{"0":23}}'
_TIMES_EXAMPLE = '{"TopicTest":{"broker-a":{"0":"-2 hours"}}} or {"TopicTest":{"0":1700000000000}}'

_ASSIGN_EXAMPLE = '{"TopicTest":[0,1]} or {"TopicTest":{"broker-a":[0,1]}}'


# ---- a row of a table --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, how its text is parsed, its default, and the queries that it applies to.

    `default` is text, and is parsed like the caller's text. Without a default the value is None, and
    `otherwise` describes the effect for the reference. `stream` has the parser and the default of a
    streaming query, if they differ.
    """

    name: str
    kind: str
    parse: Callable[[Given], Any]  # Any: the field of the options class has the type
    about: str
    default: str | None = None
    otherwise: str = ""
    heading: str = ""
    applies: frozenset[str] = frozenset({BATCH, STREAM})
    stream: tuple[Callable[[Given], Any], str | None] | None = None

    def read(self, given: Mapping[str, Given], now_ms: int, where: str = BATCH) -> Any:
        """The value: parsed from the caller's text, else from the default, else None."""
        parse, default = (
            self.stream if self.stream is not None and where == STREAM else (self.parse, self.default)
        )
        if self.name in given:
            return parse(given[self.name])
        return None if default is None else parse(Given(self.name, default, now_ms))


def plain_fields(options_class: type[DataclassInstance], read: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `options_class` that are an option's value as parsed: those with the option's name.

    `read` has the values by the documented names. A new option needs its row in a table and its field in the
    class; only a value that is combined with others needs code.
    """
    names = {field.name for field in fields(options_class)}
    by_field = {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in read.items()}
    return {name: value for name, value in by_field.items() if name in names}


def value_text(value: Any) -> str:
    """A parsed value as the log shows it. Any: each parser has its own type."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and isinstance(value[0], bytes):
        from store_format.message.hosts import format_host  # the command line's help imports this module

        return format_host(*value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# ---- the text of an option ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """One option as the caller wrote it: documented name, text, and the clock for relative times."""

    name: str
    text: str
    now_ms: int

    def error(self, expected: str, found: str = "", advice: str = "") -> OptionError:
        """An OptionError. `found` is by default the text in quotes; `advice` says what to write instead."""
        shown = found or repr(self.text)
        if len(shown) > _SHOWN_MAX:
            shown = shown[:_SHOWN_MAX] + "…"
        return OptionError(
            f"{self.name}: expected {expected}, found {shown}" + (f"; {advice}" if advice else "")
        )


def text(given: Given) -> str:
    """The text unchanged. A blank text is an error: it comes mostly from a variable that is not set."""
    if not given.text.strip():
        raise given.error("some text", advice="leave the option out to use its default")
    return given.text


def boolean(given: Given) -> bool:
    word = given.text.strip().lower()
    if word not in ("true", "false"):
        raise given.error("true or false")
    return word == "true"


def whole_number(given: Given) -> int:
    """A positive Java int, as all counts are."""
    word = given.text.strip()
    if not re.fullmatch("[0-9]{1,10}", word) or not 1 <= int(word) < 1 << 31:
        raise given.error("a whole number from 1 to 2147483647")
    return int(word)


def number(low: int, high: int) -> Callable[[Given], int]:
    """A whole number within bounds, both inclusive."""

    def parse(given: Given) -> int:
        word = given.text.strip()
        if not re.fullmatch("-?[0-9]{1,19}", word) or not low <= int(word) <= high:
            raise given.error(f"a whole number from {low} to {high}")
        return int(word)

    return parse


def byte_size(given: Given) -> int:
    """A number of bytes, in the syntax of Spark's settings: `67108864`, `64m`, `1g`."""
    match = _SIZE.fullmatch(given.text.strip().lower())
    if match is None or match[2] not in _SIZE_UNITS or len(match[1]) > 19:
        raise given.error("a size in bytes such as 67108864, 64m or 1g")
    size = int(match[1]) << (10 * _SIZE_UNITS[match[2]])
    if not 1 <= size <= _LONG_MAX:
        raise given.error("a size from 1 to 9223372036854775807 bytes")
    return size


def sized(size_bytes_min: int, size_bytes_max: int, advice: str = "") -> Callable[[Given], int]:
    """A `byte_size` within bounds, both inclusive."""

    def parse(given: Given) -> int:
        size = byte_size(given)
        if not size_bytes_min <= size <= size_bytes_max:
            raise given.error(f"a size from {size_bytes_min} to {size_bytes_max} bytes", advice=advice)
        return size

    return parse


def one_of(*words: str) -> Callable[[Given], str]:
    """One of `words` in any case; the value is the documented spelling."""
    by_lower = {word.lower(): word for word in words}

    def parse(given: Given) -> str:
        word = by_lower.get(given.text.strip().lower())
        if word is None:
            raise given.error(f"one of {', '.join(words)}")
        return word

    return parse


def names(given: Given) -> tuple[str, ...]:
    """At least one name, separated by commas; trimmed, empty names left out, as in Kafka's `subscribe`."""
    found = tuple(name for name in map(str.strip, given.text.split(",")) if name)
    if not found:
        raise given.error("names separated by commas")
    return found


def pattern(given: Given) -> str:
    """A regular expression that must match a whole name, as in Kafka's `subscribePattern`.

    The syntax is Python's `re` with ASCII classes, the meaning of Java's `\\w`, `\\d` and `\\s`. Java's
    `\\p{..}`, `\\Q..\\E`, `(?<name>..)` and `[a-z&&[^b]]` are not supported.
    """
    advice = "use the syntax of Python's re; the pattern must match the whole topic name"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # `&&` in a class is an intersection in Java; Python only warns
            re.compile(text(given), re.ASCII)
    except (re.error, Warning, OverflowError, RecursionError) as error:
        raise given.error(f"a regular expression ({error})", advice=advice) from error
    return given.text


def duration_ms(given: Given) -> int:
    """A length of time in ms, from text with units: `30s`, `24 hours`, `1h 30m`. The unit is required."""
    word = given.text.strip().lower()
    error = given.error("a length of time such as 30s, 10m or 24h", advice=_TIME_UNITS_ADVICE)
    if not _DURATION.fullmatch(word):
        raise error
    return sum(_time_part_ms(error, *part) for part in _RELATIVE_PART.findall(word))


def timestamp_ms(
    given: Given,
    where: str = "",
    value: str | int | None = None,
    aware: Callable[[datetime], datetime] = lambda clock: clock.replace(tzinfo=UTC),
) -> int:
    """Milliseconds since the epoch, from digits, ISO 8601 or `-2 hours` before `now_ms`.

    `aware` gives a time without a zone its zone, UTC unless given, or raises ValueError. Parts of a
    millisecond round up, so that no message before the given time is at or after the result.
    """
    word = (given.text if value is None else str(value)).strip()
    found = "" if value is None else found_json(value)
    expected = _A_TIME + where
    if re.fullmatch("[0-9]+", word):
        if len(word) > 19 or int(word) > _LONG_MAX:
            raise given.error(expected, found)
        advice = number_advice(word)
        if advice:
            raise given.error(expected, found, advice)
        return int(word)
    if _RELATIVE.fullmatch(word.lower()):
        return given.now_ms - sum(
            _time_part_ms(given.error(expected, found, _TIME_UNITS_ADVICE), *part)
            for part in _RELATIVE_PART.findall(word.lower())
        )
    if not _ISO.fullmatch(word):
        raise given.error(expected, found, _time_advice(word))
    try:
        moment = datetime.fromisoformat(word.upper())
        since = (moment if moment.tzinfo else aware(moment)) - _EPOCH
    except (ValueError, OverflowError) as error:
        raise given.error(expected, found, str(error)) from error
    below_us = _BELOW_MICROSECONDS.search(word) is not None  # `fromisoformat` drops them
    return -(-(since // timedelta(microseconds=1) + below_us) // 1000)


def _time_part_ms(error: OptionError, digits: str, unit: str) -> int:
    if unit not in _TIME_UNITS_MS or len(digits) > 15:
        raise error
    return int(digits) * _TIME_UNITS_MS[unit]


def _time_advice(word: str) -> str:
    if re.fullmatch(r"-\s*\d+", word):
        return f"a time back from now needs a unit, as in {word}m"
    unsigned = word.lstrip("+ ")
    if _RELATIVE.fullmatch(f"-{unsigned.lower()}"):
        return f"a time back from now begins with a minus, as in -{unsigned}"
    return ""


def found_json(value: object) -> str:
    """A JSON value as text for an error; of a list or an object, which may be large, only the kind."""
    if isinstance(value, dict | list):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value, ensure_ascii=False)


def json_object(given: Given, example: str) -> dict[str, object]:
    """The text as a JSON object. Unlike in `json.loads`, duplicate names, NaN and Infinity are errors."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) != len(pairs):
            twice = next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))
            raise given.error("each name once in a JSON object", found_json(twice))
        return members

    def refuse(constant: str) -> NoReturn:
        raise given.error("JSON numbers", constant)

    advice = f"write it as {example}"
    try:
        value = json.loads(given.text, object_pairs_hook=unique, parse_constant=refuse)
    except OptionError:
        raise
    except json.JSONDecodeError as error:
        raise given.error(f"JSON ({error.msg} at character {error.pos})", advice=advice) from error
    except (ValueError, RecursionError) as error:  # thousands of digits or of brackets
        raise given.error("JSON of a reasonable depth and size", advice=advice) from error
    if not isinstance(value, dict):
        raise given.error("a JSON object", advice=advice)
    return value


# ---- paths -------------------------------------------------------------------------------------------------


def single_path(given: Given) -> tuple[str, ...]:
    """One path of a store that is read."""
    return (_place(given, given.text),)


def written_path(given: Given) -> tuple[str, ...]:
    """One path of a store that is written to."""
    if paths.scheme(given.text.strip()) in paths.SCHEMES:
        raise given.error(
            "a local path",
            repr(given.text),
            "a write needs a lock and files that grow, which "
            f"{paths.remote_kind(given.text.strip())} does not have; write to a local or mounted directory, "
            "and copy the store",
        )
    return (_local(given, given.text),)


def file_path(given: Given) -> str:
    """The path of one file, absolute."""
    return _local(given, given.text)


def place(given: Given) -> str:
    """One absolute path, local or on object storage or HDFS."""
    return _place(given, given.text)


def paths_json(given: Given) -> tuple[str, ...]:
    """Paths from the JSON list that Spark passes for `load([a, b])`."""
    try:
        found = json.loads(given.text)
    except (ValueError, RecursionError) as error:
        raise given.error('a JSON list of paths such as ["/data/a","/data/b"]') from error
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise given.error('a JSON list of paths such as ["/data/a","/data/b"]')
    return _each_once(given, [_place(given, path) for path in found])


def path_list(given: Given) -> tuple[str, ...]:
    """Paths separated by commas, as the broker's `storePathCommitLog` (MixAll.MULTI_PATH_SPLITTER)."""
    return _each_once(given, [_place(given, path.strip()) for path in given.text.split(",")])


def _place(given: Given, path: str) -> str:
    """An absolute path on a local disk, on object storage or on HDFS."""
    if paths.is_remote(path) and "\0" not in path:
        place_of(paths.absolute(path))
        return paths.absolute(path)
    return _local(given, path, paths.PLACE)


def _local(given: Given, path: str, expected: str = "a local path") -> str:
    """An absolute path. Not percent-decoded: in Spark's Hadoop paths `%20` is three characters."""
    refused = paths.refused(path)
    if refused is not None:
        raise given.error(expected, *refused)
    plain = paths.without_file_scheme(path)
    if not plain.strip() or "\0" in plain:
        raise given.error(
            "a path", repr(path), "give the broker's store directory, as in load('/data/store')"
        )
    return paths.absolute(plain)


def _each_once(given: Given, paths: list[str]) -> tuple[str, ...]:
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise given.error("each path once", repr(path), "its messages would be read twice")
    return tuple(paths)


# ---- the name of a view ------------------------------------------------------------------------------------


def parse_view(given: Given) -> str:
    """`messages` or the name of a view of `store_format.views.registry`, in its documented spelling."""
    word = given.text.strip().lower()
    if word == MESSAGES:
        return MESSAGES
    from store_format.views.registry import ALL_VIEWS  # every read parses the default, and few show a view

    by_lower = {name.lower(): name for name in (MESSAGES, *(view.name for view in ALL_VIEWS))}
    if word in by_lower:
        return by_lower[word]
    raise given.error(f"one of {', '.join(by_lower.values())}", advice=did_you_mean(word, by_lower.values()))


def refuse_beside_view(given: Mapping[str, Given]) -> None:
    """Raises OptionError for an option that chooses messages: a view would silently ignore it."""
    view = parse_view(given["view"]) if "view" in given else MESSAGES
    if view == MESSAGES:
        if "brokerConf" in given:
            raise OptionError(
                "brokerConf has no effect in a read of messages; leave it out, or give a view that depends "
                "on the broker's settings: retention, delayed"
            )
        if "otherPath" in given:
            raise OptionError(
                f"otherPath has no effect in a read of messages; set view={_DIFF}, or leave it out"
            )
        return
    if view == _DIFF and "otherPath" not in given:
        raise OptionError(f"view={_DIFF} compares two stores; name the other one with the option otherPath")
    for name in given:
        if name not in (_WITH_DIFF if view == _DIFF else _WITH_VIEW) and not name.startswith("fs."):
            raise OptionError(
                f"{name} has no effect with view={view}, which shows the whole store; "
                "leave it out and filter the DataFrame"
            )


# ---- which queues ------------------------------------------------------------------------------------------


def subscription_text(choice: MessageChoice, expression_type: str, expression: str) -> str:
    """A subscription as text, by which members of a group compare theirs: sorted topics, and the filter.

    Two members of one group must have the same subscription, as in RocketMQ.
    """
    if choice.names:
        what = ",".join(sorted(set(choice.names)))
    elif choice.queues:
        what = ",".join(sorted({str(queue) for queue in choice.queues}))
    elif choice.pattern is not None:
        what = f"/{choice.pattern}/"
    else:
        what = "every topic" + (" and the system's" if choice.include_system_topics else "")
    return f"{what} {expression_type} {expression}"


def parse_subscribe(given: Given) -> tuple[str, ...]:
    """The topics, without duplicates."""
    topics = tuple(dict.fromkeys(names(given)))
    if "*" in topics:
        raise given.error(
            "names of topics", '"*"', "leave subscribe out to read every topic, or use subscribePattern"
        )
    return topics


def parse_assign(given: Given) -> tuple[QueueName, ...]:
    """Queues from Kafka's `{"topic":[0,1]}` or `{"topic":{"broker":[0,1]}}`. A duplicate is an error."""
    queues: list[QueueName] = []
    for topic, value in json_object(given, _ASSIGN_EXAMPLE).items():
        where = json.dumps(_given_name(given, topic, "a topic"), ensure_ascii=False)
        brokers = value if isinstance(value, dict) else {None: value}
        for broker, ids in brokers.items():
            place = (
                where
                if broker is None
                else f"{where} → {json.dumps(_given_name(given, broker, 'a broker'), ensure_ascii=False)}"
            )
            if not isinstance(ids, list) or not ids:
                raise given.error(
                    f"a list of queue ids at {place}", found_json(ids), f"write it as {_ASSIGN_EXAMPLE}"
                )
            queues += [QueueName(topic, broker, _assigned_id(given, place, queue_id)) for queue_id in ids]
    if not queues:
        raise given.error("at least one queue", advice=f"write it as {_ASSIGN_EXAMPLE}")
    if len(set(queues)) != len(queues):
        twice = next(queue for i, queue in enumerate(queues) if queue in queues[:i])
        raise given.error("each queue once", found_json(str(twice)))
    return tuple(queues)


def _assigned_id(given: Given, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise given.error(f"queue ids from 0 at {where}", found_json(value))
    return value


def _given_name(given: Given, name: str, what: str) -> str:
    if not name or name == "*":
        raise given.error(
            f"the name of {what}", found_json(name), "assign needs queues; use subscribe for whole topics"
        )
    return name


# ---- from where to where -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    """The minimum offset of the queue."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """The maximum offset of the queue: the offset of the next message."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class Offset:
    """A queue offset."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first message stored at or after this time, in ms since the epoch."""

    ms: int

    def __str__(self) -> str:
        return f"{self.ms} ({iso_utc(self.ms)})"


Position = Earliest | Latest | Offset | Timestamp
EARLIEST, LATEST = Earliest(), Latest()


_Place = tuple[str | None, str | None, int | None]


@dataclass(frozen=True)
class OffsetSpec:
    """One end of a read. `option` names the deciding option, for errors; `entries` are its queues."""

    option: str
    default: Position
    entries: tuple[tuple[QueueName, Position], ...] = ()

    @cached_property
    def _by_name(self) -> dict[_Place, Position]:
        return dict(self.entries)

    def for_queue(self, topic: str, broker: str, queue_id: int) -> Position:
        if self.entries:
            for name in _names_of(topic, broker, queue_id):
                position = self._by_name.get(name)
                if position is not None:
                    return position
        return self.default

    def named_queues(self) -> tuple[QueueName, ...]:
        """The queues in the option's value; planning checks with `unread` that each queue is read."""
        return tuple(name for name, _ in self.entries)

    def unread(self, queues: Iterable[tuple[str, str, int]]) -> tuple[QueueName, ...]:
        """The entries that match no (topic, broker, queue id) of `queues`: typos, or topics not read."""
        missing: dict[_Place, QueueName] = {
            name: name for name in self.named_queues() if name != (None, None, None)
        }
        for queue in queues:
            if not missing:
                break
            for name in _names_of(*queue):
                missing.pop(name, None)
        return tuple(missing.values())

    def __str__(self) -> str:
        if not self.entries:
            return str(self.default)
        tree: dict[str, dict[str, dict[str, object]]] = {}
        for name, position in self.entries:
            topic, broker, queue = (
                str(name.topic or _ANY),
                str(name.broker or _ANY),
                _ANY if name.queue_id is None else str(name.queue_id),
            )
            tree.setdefault(topic, {}).setdefault(broker, {})[queue] = _json_value(position)
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def _json_value(position: Position) -> object:
    match position:
        case Offset(value):
            return value
        case Timestamp(ms):
            return ms
        case Earliest():
            return _EARLIEST_VALUE
        case Latest():
            return _LATEST_VALUE


def _names_of(topic: str, broker: str, queue_id: int) -> tuple[_Place, ...]:
    """All names that match a queue, the most specific first.

    Plain tuples, which equal QueueNames and are faster: a store may have 128,000 queues.
    """
    return (
        (topic, broker, queue_id),
        (topic, broker, None),
        (topic, None, queue_id),
        (topic, None, None),
        (None, broker, queue_id),
        (None, broker, None),
        (None, None, queue_id),
        (None, None, None),
    )


def parse_offsets(given: Given, *, default: Position, refused: Position | None) -> OffsetSpec:
    """`earliest`, `latest` or JSON. `refused` is the end that makes no sense here, as in Kafka's batch reads.

    A batch that starts at latest or ends at earliest is empty whatever the store holds.
    """
    word = given.text.strip().lower()
    by_word: dict[str, Position] = {"earliest": EARLIEST, "latest": LATEST}
    if word in by_word:
        if by_word[word] == refused:
            raise given.error(
                f"{default} or JSON in a batch read",
                advice=f"a batch read with {given.name}={word} is always empty",
            )
        return OffsetSpec(given.name, by_word[word])
    if not word.startswith("{"):
        raise given.error("earliest, latest or JSON", advice=f"write JSON as {_OFFSETS_EXAMPLE}")
    entries = []
    for name, where, value in _walk(given, json_object(given, _OFFSETS_EXAMPLE), _OFFSETS_EXAMPLE):
        position = _offset(given, where, value)
        if position == refused:
            raise given.error(
                f"an offset or {_json_value(default)} ({default}) at {where} in a batch read",
                found_json(value),
            )
        entries.append((name, position))
    return OffsetSpec(given.name, default, _once(given, entries))


def parse_offsets_by_timestamp(given: Given, *, default: Position) -> OffsetSpec:
    """The JSON of `parse_offsets` with times for offsets: ms, or text as `timestamp_ms` reads it."""
    entries: list[tuple[QueueName, Position]] = []
    for name, where, value in _walk(given, json_object(given, _TIMES_EXAMPLE), _TIMES_EXAMPLE):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise given.error(f"a time at {where}", found_json(value), f"write it as {_TIMES_EXAMPLE}")
        entries.append((name, Timestamp(timestamp_ms(given, f" at {where}", value))))
    return OffsetSpec(given.name, default, _once(given, entries))


def parse_timestamp(given: Given) -> OffsetSpec:
    """One time for all queues."""
    return OffsetSpec(given.name, Timestamp(timestamp_ms(given)))


def _walk(
    given: Given, topics: Mapping[str, object], example: str
) -> Iterator[tuple[QueueName, str, object]]:
    """(queue, where in the JSON, value) of every leaf. A value that is an object makes its name a broker,
    else a queue.
    """
    # Here, because every command imports this module, and few read the offsets of a stream.
    from rmq_spark.consume.stream_offset import AGAIN, AT, FROM, RESET

    for topic, members in topics.items():
        if topic in (AT, FROM, RESET, AGAIN):
            continue  # of the offset of a stream, as its progress shows it: for its own query only
        at_topic = json.dumps(topic, ensure_ascii=False)
        if not isinstance(members, dict):
            raise given.error(
                f"an object of queues or brokers at {at_topic}", found_json(members), f"write it as {example}"
            )
        for name, value in members.items():
            where = f"{at_topic} → {json.dumps(name, ensure_ascii=False)}"
            if not isinstance(value, dict):
                yield _queue(given, topic, _ANY, name, where), where, value
                continue
            for queue, leaf in value.items():
                at_queue = f"{where} → {json.dumps(queue, ensure_ascii=False)}"
                yield _queue(given, topic, name, queue, at_queue), at_queue, leaf


def _queue(given: Given, topic: str, broker: str, queue: str, where: str) -> QueueName:
    if not topic or not broker:
        raise given.error(f"a name at {where}", '""')
    if queue != _ANY and (not _QUEUE_ID.fullmatch(queue) or int(queue) >= 1 << 31):
        raise given.error(
            f'a queue id or "*" at {where}', found_json(queue), f"write it as {_OFFSETS_EXAMPLE}"
        )
    return QueueName(
        None if topic == _ANY else topic,
        None if broker == _ANY else broker,
        None if queue == _ANY else int(queue),
    )


def _offset(given: Given, where: str, value: object) -> Position:
    if isinstance(value, bool) or not isinstance(value, int) or not _EARLIEST_VALUE <= value <= _LONG_MAX:
        advice = (
            "write the number without quotes"
            if isinstance(value, str) and value.lstrip("-").isdecimal()
            else ""
        )
        raise given.error(f"an offset, -1 (latest) or -2 (earliest) at {where}", found_json(value), advice)
    if value == _EARLIEST_VALUE:
        return EARLIEST
    return LATEST if value == _LATEST_VALUE else Offset(value)


def _once(given: Given, entries: list[tuple[QueueName, Position]]) -> tuple[tuple[QueueName, Position], ...]:
    """`{"t":{"0":1,"*":{"0":2}}}` names queue 0 of every broker twice."""
    named: dict[QueueName, Position] = {}
    for name, position in entries:
        if name in named:
            raise given.error("each queue once", found_json(str(name)))
        named[name] = position
    return tuple(entries)
