"""One option: its row in a table, the parsers of its text, and how values become the fields of a class.

Texts are numbers, sizes, words, lists, patterns, times, JSON, paths and names of views. Nothing is guessed: a
text that does not parse is an OptionError with the option's documented name, the expected and the found text.
No parser reads a file. Tasks run in other directories than the caller, so relative paths become absolute
here.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from store_format.errors import OptionError
from store_format.files import paths
from store_format.names import did_you_mean

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

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/", re.ASCII)
_FILE_URI = re.compile(r"\Afile:(?://)?(?=/(?!/))", re.IGNORECASE)  # file:/x and file:///x

MESSAGES = "messages"  # the view that is a read of messages
_WITH_VIEW = frozenset(("view", "path", "paths", "brokerName", "storePathCommitLog", "columns", "brokerConf"))


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
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


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


def timestamp_ms(given: Given, where: str = "", value: str | int | None = None) -> int:
    """Milliseconds since the epoch, from digits, ISO 8601 (UTC without a zone) or `-2 hours` before `now_ms`.

    Parts of a millisecond round up, so that no message before the given time is at or after the result.
    """
    word = (given.text if value is None else str(value)).strip()
    found = "" if value is None else found_json(value)
    expected = _A_TIME + where
    if re.fullmatch("[0-9]+", word):
        if len(word) > 19 or int(word) > _LONG_MAX:
            raise given.error(expected, found)
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
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
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
    """One path."""
    return (_local(given, given.text),)


def file_path(given: Given) -> str:
    """The path of one file, absolute."""
    return _local(given, given.text)


def paths_json(given: Given) -> tuple[str, ...]:
    """Paths from the JSON list that Spark passes for `load([a, b])`."""
    try:
        found = json.loads(given.text)
    except (ValueError, RecursionError) as error:
        raise given.error('a JSON list of paths such as ["/data/a","/data/b"]') from error
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise given.error('a JSON list of paths such as ["/data/a","/data/b"]')
    return _each_once(given, [_local(given, path) for path in found])


def path_list(given: Given) -> tuple[str, ...]:
    """Paths separated by commas, as the broker's `storePathCommitLog` (MixAll.MULTI_PATH_SPLITTER)."""
    return _each_once(given, [_local(given, path.strip()) for path in given.text.split(",")])


def _local(given: Given, path: str) -> str:
    """An absolute path. Not percent-decoded: in Spark's Hadoop paths `%20` is three characters."""
    plain = _FILE_URI.sub("", path, count=1)
    scheme = _SCHEME.match(plain)
    if scheme is not None:
        raise given.error(
            "a local path",
            repr(path),
            f"file systems such as {scheme[1]}: cannot be read; copy or mount the store",
        )
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
    from store_format.views.registry import VIEWS  # every read parses the default, and few show a view

    by_lower = {name.lower(): name for name in (MESSAGES, *(view.name for view in VIEWS))}
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
        return
    for name in given:
        if name not in _WITH_VIEW:
            raise OptionError(
                f"{name} has no effect with view={view}, which shows the whole store; "
                "leave it out and filter the DataFrame"
            )
