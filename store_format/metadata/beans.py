"""Fills a dataclass from JSON members as fastjson fills a Java bean: by name, with defaults.

A member of another type than the field's is an error with the member's path; no value is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any, NoReturn, TypeVar

from store_format.errors import CorruptStoreError

_T = TypeVar("_T")
_Member = tuple[str, str, Callable[[Any, str], Any]]
_LONG = 1 << 63
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)


class UnlikeBeanError(ValueError):
    """A member has another type than the bean's field. See `bean_errors_of`."""

    def __init__(self, where: str, expected: str, found: object) -> None:
        super().__init__(where, expected, found)
        self.where, self.expected, self.found = where, expected, found


@contextmanager
def bean_errors_of(file: str) -> Iterator[None]:
    """Raises CorruptStoreError for `file` where the block raises UnlikeBeanError.

    The parser keeps no positions, so the error names the member's path instead of a byte.
    """
    try:
        yield
    except UnlikeBeanError as error:
        expected = f"{error.expected} as {error.where}"
        raise CorruptStoreError(file, 0, expected, repr(error.found)[:100]) from error


def members(value: Any, where: str) -> dict[str, Any]:  # Any: JSON
    """The members of an object; empty for null or a missing member, as in fastjson."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnlikeBeanError(where, "an object", value)
    return value


def items(value: Any, where: str) -> list[Any]:
    """The elements of an array; empty for null or a missing member."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnlikeBeanError(where, "an array", value)
    return value


def integer(value: Any, where: str) -> int:
    """A 64-bit integer, also in quotes: fastjson reads both, and writes numbers above 2^53 in quotes."""
    if isinstance(value, str) and _INTEGER.match(value):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and -_LONG <= value < _LONG:
        return value
    raise UnlikeBeanError(where, "a 64-bit integer", value)


def _boolean(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return bool(value == "true")
    raise UnlikeBeanError(where, "true or false", value)


def string(value: Any, where: str) -> str:
    """A string. Raises UnlikeBeanError for anything else."""
    if isinstance(value, str):
        return value
    raise UnlikeBeanError(where, "a string", value)


def _string_map(value: Any, where: str) -> dict[str, str]:
    return {key: string(item, f"{where}.{key}") for key, item in members(value, where).items()}


def integer_map(value: Any, where: str) -> dict[int, int]:
    """A map with integer keys, in quotes or not."""
    return {
        integer(key, where): integer(item, f"{where}.{key}") for key, item in members(value, where).items()
    }


def _of_caller(value: Any, where: str) -> NoReturn:
    raise TypeError(f"{where}: the caller of `bean` gives this field")


# Converters of `bean` by the field's annotation. The caller gives the fields of other types.
_CONVERTERS = {
    "int": integer,
    "bool": _boolean,
    "str": string,
    "Mapping[str, str]": _string_map,
    "Mapping[str, Any]": members,
}


def bean(kind: type[_T], value: Any, where: str, **given: Any) -> _T:
    """A dataclass `kind` from the members with the fields' names in camelCase; null means the default.

    `given` are fields that the caller sets. Members without a field go to the field `unknown`.
    """
    rest = dict(members(value, where))
    values = dict(given)
    make: Any = kind  # the constructor's parameters are the fields
    for attribute, name, convert in _members_of(make):
        found = rest.pop(name, None)
        if found is not None and attribute not in given:
            values[attribute] = convert(found, f"{where}.{name}")
    made: _T = make(**values, unknown=rest)
    return made


@cache
def _members_of(kind: type[Any]) -> list[_Member]:
    """Of each field its name, its member, and the converter of the member."""
    found: list[_Member] = []
    for each in fields(kind):
        head, *tail = each.name.split("_")
        if each.name != "unknown":
            name = head + "".join(part.capitalize() for part in tail)
            found.append((each.name, name, _CONVERTERS.get(str(each.type), _of_caller)))
    return found
