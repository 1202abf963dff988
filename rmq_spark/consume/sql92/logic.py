"""Three-valued logic with errors, as truth tables of AND, OR, NOT, equality and IS NULL.

Only TRUE delivers a message. ERROR stands for an exception that RocketMQ throws while it evaluates.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FALSE, TRUE, UNKNOWN, ERROR = (np.uint8(code) for code in range(4))

Outcomes: TypeAlias = NDArray[np.uint8]  # FALSE, TRUE, UNKNOWN or ERROR for each message


def _truth_table(*rows: str) -> NDArray[np.uint8]:
    return np.array([["FTUE".index(letter) for letter in row] for row in rows], np.uint8)


def decide(table: NDArray[np.uint8], *operands: Outcomes) -> Outcomes:
    """Looks up the operands of each message in a table."""
    decided: Outcomes = table[operands]
    return decided


# Rows are the left operand, columns the right one: FALSE, TRUE, UNKNOWN, ERROR. The left operand is evaluated
# first: if it decides alone, an error on the right does not count; its own error is the result
# (LogicExpression).
AND = _truth_table("FFFF", "FTUE", "FUUE", "EEEE")
OR = _truth_table("FTUE", "TTTT", "UTUE", "EEEE")
# ComparisonExpression.doCreateEqual: both null is TRUE, null on the left UNKNOWN, null on the right FALSE.
EQUAL = _truth_table("TFFE", "FTFE", "UUTE", "EEEE")
(NOT,) = _truth_table("TFUE")
(NEGATE,) = _truth_table("UUUE")  # of a value that is not a number: null
(IS_NULL,) = _truth_table("FFTE")
(NEVER,) = _truth_table("FFFE")  # a search in a value that is not text; equality of different kinds
(BESIDE_TEXT,) = _truth_table("EEUE")  # a condition = a text
(BESIDE_NUMBER,) = _truth_table("FFUE")
