"""A compiled SQL92 expression: steps for a machine with a stack, in the order of evaluation.

A list and no tree, so that nothing recurses, neither evaluation nor pickling nor `==`, however long the
expression is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

__all__ = ["Between", "In", "Kind", "Literal", "Operator", "Ordering", "Property", "Search", "Step"]


class Kind(Enum):
    """What a value can be besides null, known before any message is: the Java class it would have."""

    TEXT = "String"
    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    TRUTH = "Boolean"
    NOTHING = "null"  # the negative of what is no number

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
    """Pushes a property of the message: text, or null where it is absent (PropertyExpression)."""

    name: str


class Operator(Enum):
    """Steps that need nothing but what is on the stack."""

    NEGATE = "-"
    # a bare property: null where absent, else FALSE (UnaryExpression.createBooleanCast)
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
