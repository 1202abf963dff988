"""JSON as RocketMQ writes it: fastjson 1.2 (up to 5.3), fastjson2 (since 5.4); spec 6.2, consumption 3.6.

Both do not quote integer keys of maps, and a client's offsets.json has whole objects as keys. Both also read
what people and power losses leave in a file: comments, single quotes, commas before a closing brace, `8L`,
NUL bytes around the value. Where the two differ, fastjson2 2.0.59 of RocketMQ 5.5.0 decides.

The standard library parses plain JSON. Other text is parsed token by token, in one pass and without
recursion, so that the cost of a hostile file is linear in its length.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable, Collection
from typing import Any, NoReturn

from store_format.errors import CorruptStoreError
from store_format.java.text import decode_utf8

DEPTH_MAX = 64  # the deepest file of a broker has eight levels

_INTEGER_DIGITS_MAX = 4300  # Python's own limit (sys.int_info), because converting takes quadratic time
_REFERENCE_MEMBERS_MAX = 1_000_000  # members of all objects that references name, together

# Possessive quantifiers: a malformed string or number fails at once, without backtracking.
_TOKEN = re.compile(
    r"""([{}\[\]:,])|("[^"\\]*+(?:\\.[^"\\]*+)*+"|'[^'\\]*+(?:\\.[^'\\]*+)*+')|"""
    r"([-+]?[0-9]++)(\.[0-9]*+)?+([eE][+-]?[0-9]++)?+[LDFBS]?+|(true|false|null)",
    re.DOTALL,
)
# What fastjson2 skips before a token, by the token before (JSONReaderASCII.next, JSONReaderUTF16.next). In a
# text of Latin-1 characters it compares signed bytes, so that a no-break space and eleven others are blanks.
_BLANK = r" \t\r\n\f\b"
_LATIN = _BLANK + "\x88\x89\x8a\x8c\x8d\xa0\xc8\xc9\xca\xcc\xcd\xe0"
_COMMENT = r"//[^\n]*+(?:\n|\Z)|/\*(?:[^*]|\*(?!/))*+\*/"
_HEAD = re.compile(
    rf"(?:[{_BLANK}\0]*+(?=[\0-\xff]*+\Z)|[{_BLANK}]*+(?:\ufeff[{_BLANK}\0]*+)?+)(?:[{_BLANK}]|{_COMMENT})*+"
)
_AFTER_COLON = re.compile(rf"[{_BLANK}]*+")


def _gaps(blank: str) -> dict[str, re.Pattern[str]]:
    within, open_ = f"[{blank}]*+", f"(?:[{blank}]|{_COMMENT})*+"
    close = rf"{within}(?:{open_}(?=[}}\]]))?+"
    patterns = {"{": open_, "[": open_, ",": open_, "}": close, "]": close, "": within}
    return {mark: re.compile(pattern) for mark, pattern in patterns.items()} | {":": _AFTER_COLON}


_GAPS = _gaps(_BLANK)
_LATIN_GAPS = _gaps(_LATIN)
# A NUL or a blank may follow the value, and a comma; 0x1A ends the text.
_TAIL = re.compile(rf"(?:[{_LATIN}\0]|{_COMMENT})*+(?:,[{_BLANK}\0]*+)?+(?:\x1a.*+)?+\Z", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPES = dict(zip("01234567btnvfFr", "\0\1\2\3\4\5\6\7\b\t\n\v\f\f\r", strict=True)) | {
    each: each for each in "\"'/\\#&[]@()_,.~ "
}
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_REFERENCE_STEP = re.compile(
    r"""\.((?:[^.\[\]\\"']|\\.)+)|\[([0-9]{1,9})\]|\["((?:[^"\\]|\\.)+)"\]|\['((?:[^'\\]|\\.)+)'\]"""
)
_WORDS = {"true": True, "false": False, "null": None}


class SingleQuoted(str):
    """A string in single quotes, which fastjson2 does not read everywhere."""

    __slots__ = ()


def loads(data: bytes, file: str, bare_below: Collection[str] | None = None) -> Any:  # Any: JSON
    """Returns the value in `data`. All keys are strings; of equal keys the last counts, as in Java's maps.

    An object as a key becomes its compact JSON text with sorted names. Malformed UTF-8 and lone surrogates
    become U+FFFD, as in a broker. `{"$ref":"$.a.b"}` becomes the object that it names. With `bare_below` only
    these members may have keys without quotes: fastjson2 refuses them in a member that it skips.

    >>> loads(b'{"offsetTable":{0:8,1:5}}', "consumerOffset.json")
    {'offsetTable': {'0': 8, '1': 5}}

    Raises CorruptStoreError with `file` and the first byte that is not JSON or nests deeper than DEPTH_MAX.
    """
    text = decode_utf8(data)
    try:
        value = _parse_plain(text)
    except (ValueError, RecursionError):
        value = _Reader(text, data, file, bare_below).read()
    return _resolve_references(value, file) if '"$ref"' in text else value


def _parse_plain(text: str) -> Any:
    """Returns the value of plain JSON. Raises ValueError or RecursionError for all other text."""
    if _SURROGATE_ESCAPE.search(text):
        raise ValueError("surrogates")
    value = json.loads(text, strict=False, parse_constant=_refuse_constant)
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        containers = [node for node in level if isinstance(node, dict | list)]
        if not containers:
            return value
        level = [
            child for node in containers for child in (node.values() if isinstance(node, dict) else node)
        ]
    raise ValueError("too deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _end_of(gap: re.Pattern[str], text: str, position: int) -> int:
    match = gap.match(text, position)
    assert match is not None  # the pattern matches the empty string
    return match.end()


class _Frame:
    """An open container. `key` is the key of the next value; `is_key`: the container is itself a key."""

    __slots__ = ("container", "is_key", "key", "start")

    def __init__(self, container: dict[str, Any] | list[Any], is_key: bool, start: int) -> None:
        self.container = container
        self.is_key = is_key
        self.start = start
        self.key: str | None = None


class _Reader:
    """A parser in one pass over the tokens. `_expect` is its state: the method for the next token."""

    def __init__(self, text: str, data: bytes, file: str, bare_below: Collection[str] | None) -> None:
        self._text, self._data, self._file, self._bare_below = text, data, file, bare_below
        self._gaps = _GAPS if text.isascii() or max(text) > "\xff" else _LATIN_GAPS
        self._stack: list[_Frame] = []
        self._root: Any = None
        self._done = False
        self._token: re.Match[str]
        self._was_number = False  # the token before
        self._expect: Callable[[], None] = self._value

    def read(self) -> Any:
        end = position = _end_of(_HEAD, self._text, 0)
        while not self._done:
            token = _TOKEN.match(self._text, position)
            if token is None:
                self._fail(position)
            self._token = token
            self._expect()
            gaps = _GAPS if token[1] == "," and self._was_number else self._gaps
            self._was_number = token[3] is not None
            end = token.end()
            position = _end_of(gaps[token[1] or ""], self._text, end)
        if _TAIL.match(self._text, end) is None:
            self._fail(position, "nothing after the value")
        return self._root

    def _value(self) -> None:
        mark = self._token[1]
        if mark == "{":
            self._open({}, is_key=False)
        elif mark == "[":
            self._open([], is_key=False)
        elif mark is None:
            self._complete(self._scalar())
        else:
            self._fail(self._token.start(), "a value")

    def _first_value(self) -> None:
        if self._token[1] == "]":
            self._close()
        else:
            self._value()

    def _first_key(self) -> None:
        if self._token[1] == "}":
            self._close()
        else:
            self._key()

    def _key(self) -> None:
        token = self._token
        if token[2] is not None:
            self._stack[-1].key = self._string()
            self._expect = self._colon
        elif token[3] is not None and token[4] is None and token[5] is None:
            if self._bare_below is not None and self._stack[0].key not in self._bare_below:
                self._fail(token.start(), "a key in quotes")
            self._stack[-1].key = token[3]
            self._expect = self._colon
        elif token[1] == "{":
            self._open({}, is_key=True)
        else:
            self._fail(self._token.start(), "a key: a string, an integer or an object")

    def _colon(self) -> None:
        if self._token[1] != ":":
            self._fail(self._token.start(), "a colon")
        self._expect = self._value

    def _next(self) -> None:
        is_object = isinstance(self._stack[-1].container, dict)
        if self._token[1] == ",":
            self._expect = self._first_key if is_object else self._first_value
        elif is_object and self._token[1] is None:  # fastjson2 does without the comma
            self._key()
        elif self._token[1] == ("}" if is_object else "]"):
            self._close()
        else:
            self._fail(
                self._token.start(), "a comma or the end of the " + ("object" if is_object else "array")
            )

    def _open(self, container: dict[str, Any] | list[Any], *, is_key: bool) -> None:
        if len(self._stack) == DEPTH_MAX:
            self._fail(self._token.start(), f"at most {DEPTH_MAX} levels")
        self._stack.append(_Frame(container, is_key, self._token.start()))
        self._expect = self._first_key if isinstance(container, dict) else self._first_value

    def _close(self) -> None:
        frame = self._stack.pop()
        if not frame.is_key:
            self._complete(frame.container)
            return
        assert isinstance(frame.container, dict)
        if any(isinstance(value, dict | list) for value in frame.container.values()):
            self._fail(frame.start, "a key object of plain values")
        self._stack[-1].key = json.dumps(
            frame.container, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        self._expect = self._colon

    def _complete(self, value: Any) -> None:
        if not self._stack:
            self._root, self._done = value, True
            return
        frame = self._stack[-1]
        if isinstance(frame.container, list):
            frame.container.append(value)
        else:
            assert frame.key is not None
            frame.container[frame.key] = value
            frame.key = None
        self._expect = self._next

    def _scalar(self) -> Any:
        token = self._token
        if token[2] is not None:
            return self._string()
        if token[6] is not None:
            return _WORDS[token[6]]
        if token[4] is not None or token[5] is not None:
            return float(token[0].rstrip("LDFBS"))
        if len(token[3]) > _INTEGER_DIGITS_MAX:
            self._fail(self._token.start(), f"an integer of at most {_INTEGER_DIGITS_MAX} digits")
        return int(token[3])

    def _string(self) -> str:
        quoted = self._token[2]
        text = quoted[1:-1]
        if "\\" in text:
            text = _ESCAPE.sub(self._unescaped, text)
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return SingleQuoted(text) if quoted[0] == "'" else text

    def _unescaped(self, escape: re.Match[str]) -> str:
        if escape[3] is None:
            return chr(int(escape[1] or escape[2], 16))
        if escape[3] not in _ESCAPES:
            self._fail(self._token.start(), "a string with the escapes of JSON")
        return _ESCAPES[escape[3]]

    def _fail(self, position: int, expected: str = "JSON") -> NoReturn:
        # The byte of the character at `position`: the length of the shortest prefix that contains the
        # character.
        prefixes = range(len(self._data) + 1)
        byte = (
            bisect.bisect_right(prefixes, position, key=lambda length: len(decode_utf8(self._data[:length])))
            - 1
        )
        found = (
            repr(self._text[position : position + 20])
            if position < len(self._text)
            else "the end of the file"
        )
        raise CorruptStoreError(self._file, byte, expected, found)


def _resolve_references(root: Any, file: str) -> Any:
    """Replaces each reference by the object that it names, which fastjson wrote only once.

    Only paths from the root to objects and arrays of plain values are supported: they cannot make a small
    file large or a tree endless. No known file of a broker has a reference.
    """
    members = 0
    pending = [root]
    while pending:
        node = pending.pop()
        for key, child in _children(node):
            if isinstance(child, dict) and len(child) == 1 and isinstance(child.get("$ref"), str):
                target = _at_path(root, child["$ref"])
                plain = isinstance(target, dict | list) and not any(
                    isinstance(value, dict | list)
                    for value in (target.values() if isinstance(target, dict) else target)
                )
                members += len(target) if plain else 0
                if not plain or members > _REFERENCE_MEMBERS_MAX:
                    raise CorruptStoreError(
                        file,
                        0,
                        'a "$ref" from the root to an object of plain values',
                        repr(child["$ref"])[:100],
                    )
                node[key] = target
            elif isinstance(child, dict | list):
                pending.append(child)
    return root


def _children(node: Any) -> list[tuple[Any, Any]]:
    if isinstance(node, dict):
        return list(node.items())
    return list(enumerate(node)) if isinstance(node, list) else []


def _at_path(root: Any, path: str) -> Any:
    """Returns the value at a path such as `$.offsetTable.a\\.b` or `$["a"][0]`; None when it is missing."""
    if not path.startswith("$"):
        return None
    node, position = root, 1
    while position < len(path):
        step = _REFERENCE_STEP.match(path, position)
        if step is None:
            return None
        position = step.end()
        name = next(group for group in step.groups() if group is not None)
        if isinstance(node, dict):
            node = node.get(re.sub(r"\\(.)", r"\1", name))
        elif isinstance(node, list) and step[2] is not None and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node
