"""A compiled SQL92 expression: the steps of a stack machine, in the order of evaluation.

The steps are a list instead of a tree, so that evaluation, pickling and `==` of a long expression do not
recurse.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class Kind(Enum):
    """The Java class of a value that is not null, known before any message is read."""

    TEXT = "String"
    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    TRUTH = "Boolean"
    NOTHING = "null"  # the negative of a value that is not a number

    @property
    def is_number(self) -> bool:
        return self in (Kind.INTEGER, Kind.LONG, Kind.DOUBLE)


@dataclass(frozen=True, slots=True)
class Literal:
    """Pushes a constant; None is NULL, whose kind is TRUTH (ConstantExpression)."""

    kind: Kind
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Property:
    """Pushes a property of the message: text, or null if it is absent (PropertyExpression)."""

    name: str


class Operator(Enum):
    """Steps whose operands are all on the stack."""

    NEGATE = "-"
    # a bare property: null if absent, else FALSE (UnaryExpression.createBooleanCast)
    CAST = "as a boolean"
    NOT = "NOT"
    AND = "AND"
    OR = "OR"
    EQUAL = "="
    IS_NULL = "IS NULL"


@dataclass(frozen=True, slots=True)
class Ordering:
    """`left symbol right`, with one of > >= < <=."""

    symbol: str


@dataclass(frozen=True, slots=True)
class Between:
    """`value [NOT] BETWEEN low AND high`."""

    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    """`property [NOT] IN ('a', 'b')`."""

    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Search:
    """`operand [NOT] CONTAINS 'text'`, STARTSWITH or ENDSWITH."""

    how: str
    text: str
    negated: bool


Step: TypeAlias = Literal | Property | Operator | Ordering | Between | In | Search
