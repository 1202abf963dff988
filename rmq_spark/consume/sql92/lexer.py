"""The tokens of SQL92 filter expressions, by the token rules of RocketMQ's SelectorParser.jj.

The parser asks for one token at a time, because RocketMQ never reads the text after a complete expression.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from store_format.errors import OptionError

# Kinds of tokens. The kind of a keyword or symbol is its own text, keywords in upper case.
NAME, STRING, DECIMAL, FLOAT, END = "a property", "a string", "a whole number", "a number", "the end"
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
_KINDS = {"float": FLOAT, "decimal": DECIMAL, "string": STRING, "name": NAME}

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


class Token(NamedTuple):
    """`text` is the token as written, `start` its position in the expression."""

    kind: str
    text: str
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.text)


class Lexer:
    """The tokens of `text`, one at a time; `peek` looks at the next one. `option` is named in errors."""

    def __init__(self, text: str, option: str) -> None:
        self._text = text
        self._option = option
        self._place = 0
        self._next: Token | None = None

    def peek(self) -> Token:
        """The next token, which stays the next one. Raises OptionError if no token can begin there."""
        if self._next is None:
            self._next = self._scan()
        return self._next

    def next(self) -> Token:
        token = self.peek()
        self._next = None
        return token

    def error(self, expected: str, token: Token, advice: str = "") -> OptionError:
        """An error: what was expected at `token`, what was found, and the marked place in the expression."""
        stop = min(token.stop, token.start + _SHOWN)
        before, after = max(0, token.start - _SHOWN), stop + _SHOWN
        left, right = (_BLANKS.sub(" ", part) for part in (self._text[before:stop], self._text[stop:after]))
        dots = "…" if after < len(self._text) else ""
        place = f"{'…' if before else ''}{left} <-- HERE {right.lstrip()}{dots}".strip()
        found = token.kind if token.kind == END else _shortened(token.text)
        advice = advice or self._advice(token)
        message = (
            f"{self._option}: expected {expected}, found {found} at character {token.start + 1}: {place}"
        )
        return OptionError(f"{message}; {advice}" if advice else message)

    def _advice(self, token: Token) -> str:
        """What to write instead of `token`; "" if that is not clear."""
        if token.text == "=" and self._text[: token.start].endswith("="):
            return "write = for equal"
        quoted = _DOUBLE_QUOTED.match(self._text, token.start)
        if quoted is not None:
            single = "'" + quoted[1].replace("'", "''") + "'"
            return f"write strings in single quotes: {single}"
        return _ADVICE.get(token.text.upper(), "")

    def _scan(self) -> Token:
        self._skip()
        place, text = self._place, self._text
        if place == len(text):
            return Token(END, "", place)
        match = _TOKEN.match(text, place)
        if match is None:
            raise self.error("a word, a number, a string or an operator", Token("", text[place], place))
        self._place = match.end()
        word = match.group()
        group = match.lastgroup or ""
        if group == "name" and word.upper() in _KEYWORDS:
            return Token(word.upper(), word, place)
        return Token(_KINDS.get(group, word), word, place)

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
