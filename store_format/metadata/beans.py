"""From JSON members to the fields of a dataclass, as fastjson fills a Java bean: by name, defaults where a
member is missing.

What has another type than the field's is an error with the member's path, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, TypeVar

__all__ = ["UnlikeBeanError", "bean", "integer", "integer_map", "items", "members", "string"]

_T = TypeVar("_T")
_LONG = 1 << 63
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z", re.ASCII)


class UnlikeBeanError(ValueError):
    """A member has another type than the bean's. The reader of the file makes it a CorruptStoreError."""

    def __init__(self, where: str, expected: str, found: object) -> None:
        super().__init__(where, expected, found)
        self.where, self.expected, self.found = where, expected, found


def members(value: Any, where: str) -> dict[str, Any]:  # Any: JSON
    """An object's members; none for null or a missing one, as fastjson leaves the bean's default."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UnlikeBeanError(where, "an object", value)
    return value


def items(value: Any, where: str) -> list[Any]:
    """An array's elements; none for null or a missing one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise UnlikeBeanError(where, "an array", value)
    return value


def integer(value: Any, where: str) -> int:
    """A long. fastjson also takes one in quotes, and writes those above 2^53 so."""
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
    if isinstance(value, str):
        return value
    raise UnlikeBeanError(where, "a string", value)


def _string_map(value: Any, where: str) -> dict[str, str]:
    return {key: string(item, f"{where}.{key}") for key, item in members(value, where).items()}


def integer_map(value: Any, where: str) -> dict[int, int]:
    """A map with integer keys, quoted or not."""
    return {
        integer(key, where): integer(item, f"{where}.{key}") for key, item in members(value, where).items()
    }


# By annotation, for `bean`. What has another is given by the caller.
_CONVERTERS = {
    "int": integer,
    "bool": _boolean,
    "str": string,
    "Mapping[str, str]": _string_map,
    "Mapping[str, Any]": members,
}


def bean(kind: type[_T], value: Any, where: str, **given: Any) -> _T:
    """A value of dataclass `kind` from the members of the same names in camelCase. null and missing mean the
    default.

    `given` are fields that are not taken from members of their own.
    """
    rest = dict(members(value, where))
    values = dict(given)
    for each in fields(kind):  # type: ignore[arg-type]  # T is always one of the dataclasses above
        head, *tail = each.name.split("_")
        name = head + "".join(part.capitalize() for part in tail)
        if each.name == "unknown":
            continue
        found = rest.pop(name, None)
        if found is not None and each.name not in given:
            values[each.name] = _CONVERTERS[str(each.type)](found, f"{where}.{name}")
    make: Any = kind  # what its constructor takes is known only here
    made: _T = make(**values, unknown=rest)
    return made
