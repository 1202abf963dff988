"""Compiles SQL92 filter expressions to steps, by RocketMQ's grammar (SelectorParser.jj) and its checks.

A compiled expression is a list of steps of a stack machine, in the order of evaluation. It is a list instead
of a tree, so that evaluation, pickling and `==` of a long expression do not recurse.

Operators nest as in the grammar, one method a rule. The checks are those of the `create…` methods of
ComparisonExpression, UnaryExpression and ConstantExpression. The parser asks for one token at a time: as in
RocketMQ, text after a complete expression is ignored, and never read.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from store_format.errors import OptionError

_LENGTH_MAX = 1 << 18  # an IN list of some ten thousand keys
_DEPTH_MAX = 64  # nested parentheses, signs and NOT; a parenthesis takes six Python calls
_LONG_MAX = 2**63 - 1
_INTEGER_MAX = 2**31 - 1
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_ORDERINGS = (">", ">=", "<", "<=")
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}

# Kinds of tokens. The kind of a keyword or symbol is its own text, keywords in upper case.
_NAME, _STRING, _DECIMAL, _FLOAT, _END = "a property", "a string", "a whole number", "a number", "the end"
_KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

# The longest token wins. A `--` comment needs the end of its line; on a last line without it, `--` is two
# signs.
_SKIPPED = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r))+")
_TOKEN = re.compile(
    r"""(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<decimal>0|[1-9][0-9]*[lL]?)
    |(?P<string>'[^']*(?:''[^']*)*')
    |(?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<symbol><>|<=|>=|[=<>(),+-])""",
    re.VERBOSE,
)
_KINDS = {"float": _FLOAT, "decimal": _DECIMAL, "string": _STRING, "name": _NAME}

_DOUBLE_QUOTED = re.compile(r'"([^"]{1,40})"')
_BLANKS = re.compile(r"[ \t\n\r\f]+")
_SHOWN = 24  # characters of the expression in an error, on each side of the place
_ADVICE = {
    '"': "write strings in single quotes: 'it''s'",
    "'": "end the string with a single quote; double a quote inside it: 'it''s'",
    "!": "write <> for unequal",
    ".": "the name of a property has only letters, digits, _ and $",
    "*": "* is a TAG expression; SQL92 has no arithmetic",
    "/": "SQL92 has no arithmetic; end a comment with */",
    "%": "SQL92 has no arithmetic",
    "LIKE": "SQL92 has no LIKE; use STARTSWITH, ENDSWITH or CONTAINS with plain text",
}


# ---- steps -------------------------------------------------------------------------------------------------


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


# ---- the parser --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parsed:
    """The steps of an expression, the properties it names, and the text after its end, which is ignored.

    `pairs` are the comparisons of two properties, such as `region = north`: the text before the
    last property, and that property. `region = (north)` is none of them.
    """

    steps: tuple[Step, ...]
    names: tuple[str, ...]
    ignored: str
    pairs: tuple[tuple[str, str], ...] = field(default=(), compare=False)


class _Operand(NamedTuple):
    """A part of the expression, for the checks. `bare` is set for a constant or a property alone."""

    kind: Kind
    token: _Token  # the first token, for errors
    bare: Literal | Property | None = None


def parse(expression: str, option: str) -> Parsed:
    """Compiles an expression; errors name the `option`.

    Raises OptionError, with the place, for what RocketMQ's parser refuses, and for an expression that is
    longer than 262,144 characters or nested deeper than 64.
    """
    if len(expression) > _LENGTH_MAX:
        raise OptionError(
            f"{option}: expected at most {_LENGTH_MAX} characters of SQL92, found {len(expression)}"
        )
    try:
        expression.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{option}: expected text, found half of a surrogate pair at character {error.start + 1}"
        ) from error
    parser = _Parser(_Lexer(expression, option))
    parser.as_condition(parser.disjunction())
    end = parser.lexer.peek()
    names = dict.fromkeys(step.name for step in parser.steps if isinstance(step, Property))
    return Parsed(tuple(parser.steps), tuple(names), expression[end.start :], tuple(parser.pairs))


@dataclass(slots=True)
class _Parser:
    """One method a rule, the loosest operators first. Each emits the steps of its part, left to right."""

    lexer: _Lexer
    steps: list[Step] = field(default_factory=list)
    depth: int = 0
    pairs: list[tuple[str, str]] = field(default_factory=list)

    # ---- the grammar ---------------------------------------------------------------------------------------

    def disjunction(self) -> _Operand:
        left = self._conjunction()
        while self._next_is("OR"):
            self.as_condition(left)
            self.lexer.next()
            self.as_condition(self._conjunction())
            left = self._emit(Operator.OR, left)
        return left

    def _conjunction(self) -> _Operand:
        left = self._equality()
        while self._next_is("AND"):
            self.as_condition(left)
            self.lexer.next()
            self.as_condition(self._equality())
            left = self._emit(Operator.AND, left)
        return left

    def _equality(self) -> _Operand:
        left = self._comparison()
        while self._next_is("=", "<>", "IS"):
            operator = self.lexer.next()
            if operator.kind == "IS":
                negated = self._accept("NOT")
                self._expect("NULL", "NULL" if negated else "NULL or NOT NULL")
                left = self._emit(Operator.IS_NULL, left)
            else:
                negated = operator.kind == "<>"
                word = self.lexer.peek()
                right = self._comparison()
                self._refuse_unequal_kinds(left, right, operator)
                if (
                    isinstance(left.bare, Property)
                    and isinstance(right.bare, Property)
                    and word.kind == _NAME
                ):
                    self.pairs.append((f"{left.bare.name} {operator.kind}", word.text))
                left = self._emit(Operator.EQUAL, left)
            if negated:
                left = self._emit(Operator.NOT, left)
        return left

    def _comparison(self) -> _Operand:
        left = self._unary()
        while self._next_is("NOT", *_ORDERINGS, *_SEARCHES, "BETWEEN", "IN"):
            negated = self._accept("NOT")
            operator = self.lexer.next()
            if negated and operator.kind not in (*_SEARCHES, "BETWEEN", "IN"):
                raise self.lexer.error("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT", operator)
            left = self._compared(left, operator, negated)
        return left

    def _compared(self, left: _Operand, operator: _Token, negated: bool) -> _Operand:
        """Parses the operands after `left [NOT] operator`."""
        if operator.kind in _SEARCHES:
            return self._emit(Search(operator.kind, self._string(operator), negated), left)
        if operator.kind == "IN":
            if not isinstance(left.bare, Property):
                raise self.lexer.error(
                    "a property before IN",
                    left.token,
                    "NOT binds more tightly than IN: write a NOT IN (…) or NOT (a IN (…))",
                )
            return self._emit(In(self._strings(), negated), left)
        self._refuse_unordered(left, operator)
        low = self._unary()
        self._refuse_unordered(low, operator)
        if operator.kind != "BETWEEN":
            return self._emit(Ordering(operator.kind), left)
        self._expect("AND", "AND between the bounds")
        high = self._unary()
        self._refuse_unordered(high, operator)
        if not negated and _is_empty_range(low.bare, high.bare):
            raise self.lexer.error(
                f"bounds in ascending order, {low.token.text} at most {high.token.text}", low.token
            )
        return self._emit(Between(negated), left)

    def _unary(self) -> _Operand:
        sign = self.lexer.peek()
        if sign.kind not in ("+", "-", "NOT"):
            return self._primary()
        self._enter(self.lexer.next())
        operand = self._unary()
        self.depth -= 1
        if sign.kind == "+":
            return operand
        if sign.kind == "NOT":
            self.as_condition(operand)
            return self._emit(Operator.NOT, operand._replace(token=sign))
        self.steps.append(Operator.NEGATE)
        return _Operand(operand.kind if operand.kind.is_number else Kind.NOTHING, sign)

    def _primary(self) -> _Operand:
        token = self.lexer.next()
        if token.kind == "(":
            self._enter(token)
            inner = self.disjunction()
            self._expect(")", "a closing parenthesis")
            self.depth -= 1
            return inner
        step: Literal | Property = Property(token.text) if token.kind == _NAME else self._literal(token)
        self.steps.append(step)
        return _Operand(step.kind if isinstance(step, Literal) else Kind.TEXT, token, step)

    def _literal(self, token: _Token) -> Literal:
        if token.kind == _STRING:
            return Literal(Kind.TEXT, _unquoted(token))
        if token.kind in _CONSTANTS:
            return Literal(Kind.TRUTH, _CONSTANTS[token.kind])
        if token.kind == _DECIMAL:
            digits = token.text.rstrip("lL")
            if len(digits) > 19 or int(digits) > _LONG_MAX:
                raise self.lexer.error(f"a whole number up to {_LONG_MAX}", token)
            return Literal(Kind.INTEGER if int(digits) <= _INTEGER_MAX else Kind.LONG, int(digits))
        if token.kind == _FLOAT:
            number = float(token.text)
            # ConstantExpression.createFloat compares with Double.MIN_VALUE, the smallest number above 0
            if not 0 < number < math.inf:
                raise self.lexer.error("a finite number with a fraction above 0", token, "write 0 for zero")
            return Literal(Kind.DOUBLE, number)
        raise self.lexer.error(
            "a property, a number, a string, TRUE, FALSE, NULL, NOT or a parenthesis", token
        )

    def _strings(self) -> tuple[str, ...]:
        """Parses a list of strings in parentheses, at least one."""
        opened = self._expect("(", "a list of strings in parentheses after IN")
        values = [self._string(opened)]
        while self._accept(","):
            values.append(self._string(opened))
        self._expect(")", "a comma or a closing parenthesis in the list")
        return tuple(values)

    def _string(self, before: _Token) -> str:
        return _unquoted(self._expect(_STRING, f"a string such as 'x' after {before.kind}"))

    # ---- checks --------------------------------------------------------------------------------------------

    def as_condition(self, operand: _Operand) -> None:
        """A bare property becomes a condition (asBooleanExpression); a number or a string cannot."""
        if isinstance(operand.bare, Property):
            self.steps.append(Operator.CAST)
        elif operand.kind is not Kind.TRUTH:
            raise self.lexer.error(
                "a condition, which is true or false", operand.token, "compare the value with another one"
            )

    def _refuse_unordered(self, operand: _Operand, operator: _Token) -> None:
        """Only numbers and properties have an order (checkLessThanOperand)."""
        if operand.kind is Kind.TRUTH or (isinstance(operand.bare, Literal) and not operand.kind.is_number):
            advice = "strings, TRUE, FALSE and conditions cannot be ordered"
            raise self.lexer.error(f"a number or a property beside {operator.kind}", operand.token, advice)

    def _refuse_unequal_kinds(self, left: _Operand, right: _Operand, operator: _Token) -> None:
        for operand in (left, right):
            if isinstance(operand.bare, Literal) and operand.bare.value is None:
                raise self.lexer.error(
                    f"a value beside {operator.kind}", operand.token, "write IS NULL or IS NOT NULL"
                )
        constants = isinstance(left.bare, Literal) and isinstance(right.bare, Literal)
        if constants and left.kind is Kind.TRUTH and right.kind is not Kind.TRUTH:
            raise self.lexer.error(
                f"TRUE, FALSE or a condition after {left.token.text} {operator.kind}", right.token
            )

    def _enter(self, token: _Token) -> None:
        self.depth += 1
        if self.depth > _DEPTH_MAX:
            raise self.lexer.error(f"parentheses, signs and NOT nested at most {_DEPTH_MAX} deep", token)

    # ---- tokens and steps ----------------------------------------------------------------------------------

    def _next_is(self, *kinds: str) -> bool:
        return self.lexer.peek().kind in kinds

    def _accept(self, kind: str) -> bool:
        found = self._next_is(kind)
        if found:
            self.lexer.next()
        return found

    def _expect(self, kind: str, expected: str) -> _Token:
        token = self.lexer.next()
        if token.kind != kind:
            raise self.lexer.error(expected, token)
        return token

    def _emit(self, step: Step, left: _Operand) -> _Operand:
        """Adds a step whose result is a condition that begins at `left`."""
        self.steps.append(step)
        return _Operand(Kind.TRUTH, left.token)


def _is_empty_range(low: Literal | Property | None, high: Literal | Property | None) -> bool:
    """Whether constant bounds are in the wrong order (createBetween)."""
    return (
        isinstance(low, Literal)
        and isinstance(high, Literal)
        and _bound_value(low, high) > _bound_value(high, low)
    )


def _bound_value(bound: Literal, other: Literal) -> int | float:
    """A bound as Java compares it: as a double if either bound is a double."""
    assert isinstance(bound.value, int | float)
    return float(bound.value) if Kind.DOUBLE in (bound.kind, other.kind) else bound.value


def _unquoted(token: _Token) -> str:
    return token.text[1:-1].replace("''", "'")


# ---- tokens ------------------------------------------------------------------------------------------------


class _Token(NamedTuple):
    """`text` is the token as written, `start` its position in the expression."""

    kind: str
    text: str
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.text)


class _Lexer:
    """The tokens of `text`, one at a time; `peek` looks at the next one. `option` is named in errors."""

    def __init__(self, text: str, option: str) -> None:
        self._text = text
        self._option = option
        self._place = 0
        self._next: _Token | None = None

    def peek(self) -> _Token:
        """The next token, which stays the next one. Raises OptionError if no token can begin there."""
        if self._next is None:
            self._next = self._scan()
        return self._next

    def next(self) -> _Token:
        token = self.peek()
        self._next = None
        return token

    def error(self, expected: str, token: _Token, advice: str = "") -> OptionError:
        """An error: what was expected at `token`, what was found, and the marked place in the expression."""
        stop = min(token.stop, token.start + _SHOWN)
        before, after = max(0, token.start - _SHOWN), stop + _SHOWN
        left, right = (_BLANKS.sub(" ", part) for part in (self._text[before:stop], self._text[stop:after]))
        dots = "…" if after < len(self._text) else ""
        place = f"{'…' if before else ''}{left} <-- HERE {right.lstrip()}{dots}".strip()
        found = token.kind if token.kind == _END else _shortened(token.text)
        advice = advice or self._advice(token)
        message = (
            f"{self._option}: expected {expected}, found {found} at character {token.start + 1}: {place}"
        )
        return OptionError(f"{message}; {advice}" if advice else message)

    def _advice(self, token: _Token) -> str:
        """What to write instead of `token`; "" if that is not clear."""
        if token.text == "=" and self._text[: token.start].endswith("="):
            return "write = for equal"
        quoted = _DOUBLE_QUOTED.match(self._text, token.start)
        if quoted is not None:
            single = "'" + quoted[1].replace("'", "''") + "'"
            return f"write strings in single quotes: {single}"
        return _ADVICE.get(token.text.upper(), "")

    def _scan(self) -> _Token:
        self._skip()
        place, text = self._place, self._text
        if place == len(text):
            return _Token(_END, "", place)
        match = _TOKEN.match(text, place)
        if match is None:
            raise self.error("a word, a number, a string or an operator", _Token("", text[place], place))
        self._place = match.end()
        word = match.group()
        group = match.lastgroup or ""
        if group == "name" and word.upper() in _KEYWORDS:
            return _Token(word.upper(), word, place)
        return _Token(_KINDS.get(group, word), word, place)

    def _skip(self) -> None:
        """Skips blanks and comments."""
        while True:
            match = _SKIPPED.match(self._text, self._place)
            if match is not None:
                self._place = match.end()
            end = self._text.find("*/", self._place + 2) if self._text.startswith("/*", self._place) else -1
            if end < 0:
                return
            self._place = end + 2


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
