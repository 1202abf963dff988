"""Pickling of plain frozen values that travel to tasks by the ten thousand.

What dataclasses do for frozen classes with slots looks up each field by name, both ways, in Python.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import Any, ClassVar

__all__ = ["PlainValue"]


class PlainValue:
    """A base for frozen dataclasses with slots, of at least two fields: pickled as a call of the class with
    their values.
    """

    __slots__ = ()
    _values: ClassVar[Any] = None  # a C function from an object to the tuple of its fields

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        kind = type(self)
        if kind._values is None:
            kind._values = attrgetter(*(field.name for field in fields(kind)))  # type: ignore[arg-type] # subclasses are dataclasses
        return kind, kind._values(self)
