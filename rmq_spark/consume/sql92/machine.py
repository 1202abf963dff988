"""The stack machine that evaluates SQL92 steps over columns and constants, for all messages at once.

The kind of each value is known before any message is read, so a step costs a few Arrow or numpy kernels, and
three-valued logic with errors is a table lookup: truth tables of AND, OR, NOT, equality and IS NULL. Only
TRUE delivers a message. ERROR stands for an exception that RocketMQ throws while it evaluates.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_spark.consume.sql92.parser import (
    Between,
    In,
    Kind,
    Literal,
    Operator,
    Ordering,
    Property,
    Search,
    Step,
)
from store_format.java.number_columns import double_keys, read_doubles, read_integers

FALSE, TRUE, UNKNOWN, ERROR = (np.uint8(code) for code in range(4))

Outcomes: TypeAlias = NDArray[np.uint8]  # FALSE, TRUE, UNKNOWN or ERROR for each message

_Value: TypeAlias = Literal | Property | Outcomes
_Mask: TypeAlias = NDArray[np.bool_]
_Keys: TypeAlias = NDArray[np.int64] | np.int64

_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_SEARCH: dict[str, tuple[Callable[..., pa.BooleanArray], Callable[[str, str], bool]]] = {
    "CONTAINS": (pc.match_substring, operator.contains),
    "STARTSWITH": (pc.starts_with, str.startswith),
    "ENDSWITH": (pc.ends_with, str.endswith),
}


# ---- three-valued logic ------------------------------------------------------------------------------------


def _truth_table(*rows: str) -> NDArray[np.uint8]:
    return np.array([["FTUE".index(letter) for letter in row] for row in rows], np.uint8)


def _decide(table: NDArray[np.uint8], *operands: Outcomes) -> Outcomes:
    """Looks up the operands of each message in a table."""
    decided: Outcomes = table[operands]
    return decided


# Rows are the left operand, columns the right one: FALSE, TRUE, UNKNOWN, ERROR. The left operand is evaluated
# first: if it decides alone, an error on the right does not count; its own error is the result
# (LogicExpression).
_AND = _truth_table("FFFF", "FTUE", "FUUE", "EEEE")
_OR = _truth_table("FTUE", "TTTT", "UTUE", "EEEE")
# ComparisonExpression.doCreateEqual: both null is TRUE, null on the left UNKNOWN, null on the right FALSE.
_EQUAL = _truth_table("TFFE", "FTFE", "UUTE", "EEEE")
(_NOT,) = _truth_table("TFUE")
(_NEGATE,) = _truth_table("UUUE")  # of a value that is not a number: null
(_IS_NULL,) = _truth_table("FFTE")
(_NEVER,) = _truth_table("FFFE")  # a search in a value that is not text; equality of different kinds
(_BESIDE_TEXT,) = _truth_table("EEUE")  # a condition = a text
(_BESIDE_NUMBER,) = _truth_table("FFUE")


# ---- the machine -------------------------------------------------------------------------------------------


class Machine:
    """Evaluates steps for `count` messages; `values(name)` is the column of a property.

    A property is fetched once, and parsed as a number once for each kind of number.
    """

    def __init__(self, count: int, values: Callable[[str], pa.StringArray]) -> None:
        self._count = count
        self._values = values
        self._columns: dict[str, tuple[pa.StringArray, _Mask]] = {}
        self._numbers: dict[tuple[str, Kind], tuple[NDArray[np.int64], _Mask]] = {}
        self._stack: list[_Value] = []

    def run(self, steps: Sequence[Step]) -> Outcomes:
        """The outcomes of a whole expression."""
        for step in steps:
            self._stack.append(self._step(step))
        return self._outcomes(self._stack.pop())

    def _step(self, step: Step) -> _Value:
        pop = self._stack.pop
        match step:
            case Literal() | Property():
                return step
            case Operator():
                return self._operate(step)
            case Ordering(symbol):
                right = pop()
                return self._ordered(symbol, pop(), right)
            case Between(negated):
                high, low, value = pop(), pop(), pop()
                if negated:
                    return _decide(_OR, self._ordered("<", value, low), self._ordered(">", value, high))
                return _decide(_AND, self._ordered(">=", value, low), self._ordered("<=", value, high))
            case In(values, negated):
                return self._in(pop(), values, negated)
            case Search():
                return self._search(pop(), step)

    def _operate(self, step: Operator) -> _Value:
        right = self._stack.pop()
        match step:
            case Operator.NEGATE:
                return self._negative(right)
            case Operator.CAST:
                assert isinstance(right, Property)
                return np.where(self._present(right), FALSE, UNKNOWN)
            case Operator.NOT:
                return _decide(_NOT, self._outcomes(right))
            case Operator.IS_NULL:
                return self._is_null(right)
            case Operator.EQUAL:
                return self._equal(self._stack.pop(), right)
            case Operator.AND:
                return _decide(_AND, self._outcomes(self._stack.pop()), self._outcomes(right))
            case Operator.OR:
                return _decide(_OR, self._outcomes(self._stack.pop()), self._outcomes(right))

    # ---- values --------------------------------------------------------------------------------------------

    def _column(self, name: str) -> tuple[pa.StringArray, _Mask]:
        """(the column of the property, which messages have it)"""
        if name not in self._columns:
            column = self._values(name)
            self._columns[name] = column, column.is_valid().to_numpy(zero_copy_only=False)
        return self._columns[name]

    def _present(self, value: Literal | Property) -> _Mask:
        return self._column(value.name)[1] if isinstance(value, Property) else np.ones(self._count, np.bool_)

    def _keys(self, value: Literal | Property, kind: Kind) -> tuple[_Keys, _Mask | np.bool_]:
        """(the numbers as integers that sort like this kind, which of the values are numbers of this kind)"""
        if isinstance(value, Literal):
            if isinstance(value.value, str):
                return _parse_numbers(pa.array([value.value], pa.string()), kind)
            assert isinstance(value.value, int | float)
            if kind is Kind.DOUBLE:
                return double_keys(np.array([value.value], np.float64))[0], np.True_
            return np.int64(value.value), np.True_
        known = self._numbers.get((value.name, kind))
        if known is None:
            known = self._numbers[value.name, kind] = _parse_numbers(self._column(value.name)[0], kind)
        return known

    def _outcomes(self, value: _Value) -> Outcomes:
        if isinstance(value, np.ndarray):
            return value
        assert isinstance(value, Literal)
        constant = UNKNOWN if value.value is None else TRUE if value.value else FALSE
        return np.full(self._count, constant)

    def _is_outcome(self, value: _Value) -> bool:
        return isinstance(value, np.ndarray) or (isinstance(value, Literal) and value.kind is Kind.TRUTH)

    # ---- steps ---------------------------------------------------------------------------------------------

    def _negative(self, value: _Value) -> _Value:
        if isinstance(value, Literal) and value.kind.is_number:
            assert isinstance(value.value, int | float)
            return Literal(value.kind, -value.value)
        if self._is_outcome(value):
            return _decide(_NEGATE, self._outcomes(value))
        return np.full(self._count, UNKNOWN)

    def _is_null(self, value: _Value) -> Outcomes:
        if self._is_outcome(value):
            return _decide(_IS_NULL, self._outcomes(value))
        assert isinstance(value, Literal | Property)
        return np.where(self._present(value), FALSE, TRUE)

    def _in(self, value: _Value, values: tuple[str, ...], negated: bool) -> Outcomes:
        assert isinstance(value, Property)
        column, present = self._column(value.name)
        found = _filled_mask(pc.is_in(column, _value_set(values))) ^ negated
        return np.where(present, found.view(np.uint8), UNKNOWN)

    def _search(self, value: _Value, step: Search) -> Outcomes:
        """A null or a value that is not text matches neither the search nor its negation.

        ContainsExpression, StartsWithExpression, EndsWithExpression.
        """
        in_column, in_text = _SEARCH[step.how]
        if not step.text:
            return np.full(self._count, FALSE)
        if isinstance(value, Property):
            column, present = self._column(value.name)
            return ((_filled_mask(in_column(column, step.text)) ^ step.negated) & present).view(np.uint8)
        if isinstance(value, Literal) and isinstance(value.value, str):
            return np.full(self._count, TRUE if in_text(value.value, step.text) ^ step.negated else FALSE)
        return (
            _decide(_NEVER, self._outcomes(value)) if self._is_outcome(value) else np.full(self._count, FALSE)
        )

    def _ordered(self, symbol: str, left: _Value, right: _Value) -> Outcomes:
        """ComparisonExpression.evaluate: null on either side is UNKNOWN, before text is parsed."""
        if isinstance(left, np.ndarray):  # the negative of a value that is not a number
            return left
        if isinstance(right, np.ndarray):
            return np.where(self._present(left), right, UNKNOWN)
        return self._compared(_ORDER[symbol], left, right, self._present(left) & self._present(right))

    def _equal(self, left: _Value, right: _Value) -> Outcomes:
        if self._is_outcome(left) and self._is_outcome(right):
            return _decide(_EQUAL, self._outcomes(left), self._outcomes(right))
        if self._is_outcome(left):
            return self._truth_equals(self._outcomes(left), right)
        if self._is_outcome(right):
            return self._equals_truth(left, self._outcomes(right))
        assert isinstance(left, Literal | Property)
        assert isinstance(right, Literal | Property)
        there, here = self._present(left), self._present(right)
        if _kind(left) is _kind(right) is Kind.TEXT:
            equal = pc.equal(self._text(left), self._text(right))
            equal = (
                np.full(self._count, equal.as_py()) if isinstance(equal, pa.Scalar) else _filled_mask(equal)
            )
            outcomes = equal.astype(np.uint8)
        else:
            outcomes = self._compared(operator.eq, left, right, there & here)
        return np.where(there & here, outcomes, np.where(here, UNKNOWN, np.where(there, FALSE, TRUE)))

    def _truth_equals(self, left: Outcomes, right: _Value) -> Outcomes:
        """A condition = a value: ERROR for a text, as in Java, where the cast fails; FALSE for a number."""
        assert isinstance(right, Literal | Property)
        beside = _BESIDE_TEXT if _kind(right) is Kind.TEXT else _BESIDE_NUMBER
        return np.where(self._present(right), _decide(beside, left), _decide(_IS_NULL, left))

    def _equals_truth(self, left: _Value, right: Outcomes) -> Outcomes:
        """A value = a condition: a text is TRUE if it is `true` in any case, else FALSE (Boolean.valueOf).

        A number equals neither.
        """
        assert isinstance(left, Literal | Property)
        if _kind(left) is not Kind.TEXT:
            return _decide(_NEVER, right)
        said = pc.equal(pc.ascii_lower(self._text(left)), "true")
        said = np.full(self._count, said.as_py()) if isinstance(said, pa.Scalar) else _filled_mask(said)
        return _decide(_EQUAL, np.where(self._present(left), said.astype(np.uint8), UNKNOWN), right)

    def _compared(
        self, compare: Callable[[Any, Any], Any], left: _Value, right: _Value, present: _Mask
    ) -> Outcomes:
        """Compares both values as numbers of one kind; a text that is not such a number is an ERROR.

        The kind is that of the constant, the wider kind of two constants, and double without a constant.
        """
        assert isinstance(left, Literal | Property)
        assert isinstance(right, Literal | Property)
        kinds = {_kind(left), _kind(right)}
        kind = Kind.INTEGER if kinds == {Kind.TEXT, Kind.INTEGER} else Kind.LONG
        if Kind.DOUBLE in kinds or kinds == {Kind.TEXT}:
            kind = Kind.DOUBLE
        (one, one_read), (other, other_read) = self._keys(left, kind), self._keys(right, kind)
        read = np.where(one_read & other_read, np.where(compare(one, other), TRUE, FALSE), ERROR)
        return np.where(present, read, UNKNOWN)

    def _text(self, value: Literal | Property) -> pa.StringArray | pa.StringScalar:
        return (
            self._column(value.name)[0]
            if isinstance(value, Property)
            else pa.scalar(value.value, pa.string())
        )


def _kind(value: Literal | Property) -> Kind:
    return value.kind if isinstance(value, Literal) else Kind.TEXT


def _filled_mask(found: pa.BooleanArray) -> _Mask:
    mask: _Mask = pc.fill_null(found, False).to_numpy(zero_copy_only=False)
    return mask


@lru_cache(maxsize=16)
def _value_set(values: tuple[str, ...]) -> pa.StringArray:
    return pa.array(values, pa.string())


def _parse_numbers(texts: pa.StringArray, kind: Kind) -> tuple[NDArray[np.int64], _Mask]:
    if kind is Kind.DOUBLE:
        numbers, read = read_doubles(texts)
        return double_keys(numbers), read
    integers, read = read_integers(texts)
    if kind is Kind.INTEGER:
        read = read & (integers >= -(2**31)) & (integers < 2**31)
    return integers, read
