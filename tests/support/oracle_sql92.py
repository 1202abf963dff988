"""A second opinion on SQL92 filters, one message at a time: written from the rules alone, sharing nothing
with the project's code.

An expression is a tree of tuples, `("=", ("property", "a"), ("number", "3"))`. The oracle writes it as text
in many spellings, says whether RocketMQ's compiler takes it, and what it is for the properties of one
message.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from random import Random
from typing import Any, TypeAlias

Tree: TypeAlias = tuple[Any, ...]  # Any: an operator, then trees, names, texts or flags, as `text` reads them


class CompileError(Exception):
    """RocketMQ refuses the subscription."""


class EvaluationError(Exception):
    """The message is not delivered."""


class Integer(int):
    """java.lang.Integer"""


class Long(int):
    """java.lang.Long"""


# ---- text --------------------------------------------------------------------------------------------------

_LEVELS = {"or": 0, "and": 1, "=": 2, "<>": 2, "is null": 2, "-": 4, "+": 4, "not": 4}
_PRIMARY = ("property", "string", "number", "boolean", "null")
_BLANKS = (" ", "  ", "\t", "\n ", " /* or not */ ", " -- and so on\n", "\r\n")


def _level(tree: Tree) -> int:
    return 5 if tree[0] in _PRIMARY else _LEVELS.get(tree[0], 3)


def text(tree: Tree, random: Random | None = None, level: int = 0) -> str:
    """The expression; with `random` in one of many spellings, which differ in case, blanks, comments and
    parentheses.
    """
    written = _write(tree, random)
    if _level(tree) < level or (random is not None and random.random() < 0.1):
        return f"({written})"
    return written


def _word(word: str, random: Random | None) -> str:
    if random is None:
        return f" {word} "
    cased = random.choice((word, word.lower(), word.title()))
    return f"{random.choice(_BLANKS)}{cased}{random.choice(_BLANKS)}"


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _write(tree: Tree, random: Random | None) -> str:
    kind, *parts = tree
    if kind in ("property", "number"):
        return str(parts[0])
    if kind == "string":
        return _quoted(parts[0])
    if kind == "boolean":
        return _word("TRUE" if parts[0] else "FALSE", random)
    if kind == "null":
        return _word("NULL", random)
    if kind in ("-", "+", "not"):
        return _word(kind.upper(), random) + text(parts[0], random, 4)
    mine = _level(tree)
    left = text(parts[0], random, mine)
    negation = _word("NOT", random) if parts[-1] is True else ""
    if kind == "is null":
        return left + _word("IS", random) + negation + _word("NULL", random)
    if kind == "between":
        bounds = text(parts[1], random, 4) + _word("AND", random) + text(parts[2], random, 4)
        return left + negation + _word("BETWEEN", random) + bounds
    if kind == "in":
        return left + negation + _word("IN", random) + "(" + ",".join(map(_quoted, parts[1])) + ")"
    if kind in ("contains", "startswith", "endswith"):
        return left + negation + _word(kind.upper(), random) + _quoted(parts[1])
    return left + _word(kind.upper(), random) + text(parts[1], random, mine + 1)


# ---- what the compiler refuses -----------------------------------------------------------------------------

_ORDERINGS = (">", ">=", "<", "<=")


def check(tree: Tree) -> None:
    """Raises CompileError for an expression that RocketMQ does not take."""
    _check(tree)
    _must_be_condition(tree)


def _is_condition(tree: Tree) -> bool:
    return tree[0] not in ("property", "string", "number", "-", "+") or (
        tree[0] == "+" and _is_condition(tree[1])
    )


def _bare(tree: Tree) -> Tree:
    """Without the plus signs, which leave no trace."""
    return _bare(tree[1]) if tree[0] == "+" else tree


def _must_be_condition(tree: Tree) -> None:
    if _bare(tree)[0] != "property" and not _is_condition(tree):
        raise CompileError(f"{tree[0]} is not boolean")


def _must_have_order(tree: Tree) -> None:
    tree = _bare(tree)
    if tree[0] in ("string", "boolean", "null") or _is_condition(tree):
        raise CompileError(f"{tree[0]} cannot be compared")


def _check(tree: Tree) -> None:
    kind, *parts = tree
    for part in parts:
        if isinstance(part, tuple) and part and kind not in ("in", "property", "string"):
            _check(part)
    if kind == "in":
        _check(parts[0])
        if _bare(parts[0])[0] != "property":
            raise CompileError("IN takes a property")
    elif kind == "number":
        _literal(parts[0])
    elif kind in ("and", "or", "not"):
        for part in parts:
            _must_be_condition(part)
    elif kind in ("=", "<>"):
        left, right = map(_bare, parts)
        if "null" in (left[0], right[0]):
            raise CompileError("NULL cannot be compared")
        if left[0] == "boolean" and right[0] in ("string", "number"):
            raise CompileError("a boolean constant beside another constant")
    elif kind in _ORDERINGS:
        for part in parts:
            _must_have_order(part)
    elif kind == "between":
        for part in parts[:3]:
            _must_have_order(part)
        low, high = _bare(parts[1]), _bare(parts[2])
        if (
            not parts[3]
            and low[0] == high[0] == "number"
            and _compare(_literal(low[1]), _literal(high[1])) > 0
        ):
            raise CompileError("bounds the wrong way round")


def _literal(written: str) -> Integer | Long | float:
    if re.fullmatch("[0-9]+[lL]?", written):
        whole = int(written.rstrip("lL"))
        if whole >= 1 << 63:
            raise CompileError("not a 64-bit number")
        return Integer(whole) if whole < 1 << 31 else Long(whole)
    real = float(written)
    if not 0 < real < float("inf"):
        raise CompileError("not above zero and finite")
    return real


# ---- what it is for a message ------------------------------------------------------------------------------


def evaluate(tree: Tree, properties: Mapping[str, str]) -> bool | None:
    """True, False or None for unknown. Raises EvaluationError."""
    value = _evaluate(_as_condition(tree), properties)
    assert value is None or isinstance(value, bool)
    return value


def _as_condition(tree: Tree) -> Tree:
    return ("cast", tree) if _bare(tree)[0] == "property" else tree


def _evaluate(tree: Tree, properties: Mapping[str, str]) -> Any:
    kind, *parts = tree
    match kind:
        case "property":
            return properties.get(parts[0])
        case "string" | "boolean":
            return parts[0]
        case "null":
            return None
        case "number":
            return _literal(parts[0])
        case "+":
            return _evaluate(parts[0], properties)
        case "-":
            value = _evaluate(parts[0], properties)
            return type(value)(-value) if isinstance(value, Integer | Long | float) else None
        case "cast":
            return None if _evaluate(parts[0], properties) is None else False
        case "not":
            return _not(_evaluate(_as_condition(parts[0]), properties))
        case "and" | "or":
            return _logic(kind == "or", _as_condition(parts[0]), _as_condition(parts[1]), properties)
        case "=" | "<>":
            equal = _equal(_evaluate(parts[0], properties), _evaluate(parts[1], properties))
            return equal if kind == "=" else _not(equal)
        case "is null":
            return (_evaluate(parts[0], properties) is None) ^ parts[1]
        case "between":
            low, high = ("<", parts[0], parts[1]), (">", parts[0], parts[2])
            if parts[3]:
                return _logic(True, low, high, properties)
            return _logic(False, (">=", *low[1:]), ("<=", *high[1:]), properties)
        case "in":
            value = _evaluate(parts[0], properties)
            return None if value is None else (value in parts[1]) ^ parts[2]
        case "contains" | "startswith" | "endswith":
            return _search(kind, parts[0], parts[1], parts[2], properties)
    return _ordered(kind, parts[0], parts[1], properties)


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


def _logic(decisive: bool, left: Tree, right: Tree, properties: Mapping[str, str]) -> bool | None:
    """AND, decided by a False, or OR, decided by a True; the right side only where the left does not
    decide.
    """
    one = _evaluate(left, properties)
    if one is decisive:
        return decisive
    other = _evaluate(right, properties)
    if other is decisive:
        return decisive
    return None if one is None or other is None else not decisive


def _search(how: str, operand: Tree, searched: str, negated: bool, properties: Mapping[str, str]) -> bool:
    if not searched:
        return False
    value = _evaluate(operand, properties)
    if not isinstance(value, str):
        return False
    return {
        "contains": searched in value,
        "startswith": value.startswith(searched),
        "endswith": value.endswith(searched),
    }[how] ^ negated


def _equal(left: Any, right: Any) -> bool | None:
    if left is None or right is None:
        return True if left is right else None if left is None else False
    return _compare(left, right) == 0


def _ordered(symbol: str, left: Tree, right: Tree, properties: Mapping[str, str]) -> bool | None:
    one = _evaluate(left, properties)
    if one is None:
        return None
    other = _evaluate(right, properties)
    if other is None:
        return None
    if isinstance(one, str) and isinstance(other, str):
        one, other = _double(one), _double(other)
    answer = _compare(one, other)
    return {">": answer > 0, ">=": answer >= 0, "<": answer < 0, "<=": answer <= 0}[symbol]


def _compare(left: Any, right: Any) -> int:
    """Negative, zero or positive, after one side was made what the other one is."""
    if isinstance(left, str) and not isinstance(right, str):
        left = _read(left, type(right))
    elif isinstance(right, str) and not isinstance(left, str):
        if isinstance(left, bool):
            raise EvaluationError("a boolean is no string")
        right = _read(right, type(left))
    if isinstance(left, str | bool) or isinstance(right, bool):
        return (left > right) - (left < right) if type(left) is type(right) else -1
    if isinstance(left, float) or isinstance(right, float):
        one, other = _double_order(float(left)), _double_order(float(right))
        return (one > other) - (one < other)
    return (left > right) - (left < right)


def _double_order(value: float) -> tuple[int, float, bool]:
    """Double.compareTo: NaN last, and minus zero before zero."""
    if value != value:
        return 1, 0.0, False
    return 0, value, value == 0 and str(value)[0] != "-"


def _read(written: str, kind: type) -> Any:
    if kind is bool:
        return written.lower() == "true" if written.isascii() else False
    if kind is float:
        return _double(written)
    bits = 31 if kind is Integer else 63
    sign, digits = (written[0], written[1:]) if written[:1] in ("+", "-") else ("+", written)
    if not digits or any(unicodedata.category(digit) != "Nd" or ord(digit) > 0xFFFF for digit in digits):
        raise EvaluationError(written)
    value = 0
    for digit in digits:
        value = value * 10 + unicodedata.digit(digit)
    value = -value if sign == "-" else value
    if not -(1 << bits) <= value < 1 << bits:
        raise EvaluationError(written)
    return kind(value)


def _double(written: str) -> float:
    bare = written.strip("".join(map(chr, range(33))))
    number = re.fullmatch(
        r"([+-]?)(?:(NaN|Infinity)|(0[xX][0-9a-fA-F.]+[pP][+-]?[0-9]+)[fFdD]?|([0-9.]+(?:[eE][+-]?[0-9]+)?)[fFdD]?)",
        bare,
    )
    if number is None:
        raise EvaluationError(written)
    sign, named, hexadecimal, decimal = number.groups()
    try:
        value = float(named or decimal) if hexadecimal is None else float.fromhex(hexadecimal)
    except ValueError:
        raise EvaluationError(written) from None
    except OverflowError:
        value = float("inf")
    return -value if sign == "-" else value
