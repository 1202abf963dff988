"""Lines on stderr that a person reads beside the data on stdout: remarks, and progress of long work."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TextIO

import click

from rmq_spark.cli.exit_codes import NOT_FOUND
from store_format.display.text import shown, width
from store_format.display.units import size_text

# ---- remarks -----------------------------------------------------------------------------------------------

WORDS = "rmqlog.words"  # the words behind `rmqlog`, in the meta data of a context
_COMMAND_CONTEXT = "rmqlog.context"  # the context of the command with a STORE, in the same place


_LOOKS_WITH_VALUE = ("-o", "--output", "--columns", "--tz")
_COMMAND = re.compile(r"\brmqlog [a-z]+(?: [^;,]+)?")
_WITH_PLACEHOLDER = re.compile(r"\b(rmqlog [a-z]+) STORE\b")
_JOINT = "\x00"  # `shown` leaves no such character in a text


def remark(text: str) -> None:
    """Prints a sentence, escaped: on a terminal wrapped, else as one line."""
    line = with_given_store(f"rmqlog: {shown(text)}")
    print(wrapped(line, terminal_columns(sys.stderr)), file=sys.stderr)


def terminal_columns(stream: TextIO) -> int | None:
    """The width of the terminal that the stream writes to; None for no terminal, or an unknown width."""
    try:
        if not stream.isatty():
            return None
        return int(os.environ.get("COLUMNS", "")) or None
    except ValueError:  # no number, or a closed stream
        return None if stream.closed else os.get_terminal_size(stream.fileno()).columns or None


def wrapped(line: str, columns: int | None, indent: int = 8) -> str:
    """The escaped line, broken between words where it is longer than `columns`; None: never.

    A command of rmqlog stays in one line if it fits, so that it can be copied. The first line begins with
    `indent` columns of a label, and the others with as many blanks.
    """
    if columns is None:
        return line

    def joined(command: re.Match[str]) -> str:
        return command[0].replace(" ", _JOINT) if width(command[0]) <= columns - indent else command[0]

    lines, filled = [""], 0
    for i, word in enumerate(_COMMAND.sub(joined, line).split(" ")):
        if i and filled + 1 + width(word) > columns:
            lines.append(" " * indent + word)
            filled = indent + width(word)
        else:
            lines[-1] += f" {word}" if i else word
            filled += bool(i) + width(word)
    return "\n".join(lines).replace(_JOINT, " ")


def nothing(text: str) -> int:
    """Says that the answer is empty, and returns the exit code for that."""
    remark(text)
    return NOT_FOUND


def remember_store(context: click.Context, argument: click.Parameter, store: str) -> str:
    """The callback of the argument STORE: lets `with_given_store` know the store, also after the command."""
    context.meta[_COMMAND_CONTEXT] = context
    return store


def with_given_store(text: str, context: click.Context | None = None) -> str:
    """The escaped text with the store in the place of STORE in its commands, such as `rmqlog recover STORE`.

    `context` is that of rmqlog, by default the current one. Where the command line names a cluster, the
    placeholder stays: the command may be for one of its stores.
    """
    context = context or click.get_current_context(silent=True)
    command: click.Context | None = context.meta.get(_COMMAND_CONTEXT) if context else None
    if command is None or not _WITH_PLACEHOLDER.search(text):
        return text
    path = str(command.params.get("store", ""))
    if os.path.isdir(path) and not (
        command.params.get("commit_log")
        or any(os.path.isdir(os.path.join(path, name)) for name in ("commitlog", "consumequeue"))
    ):
        return text
    return with_store(text, _store_words(command.params))


def with_store(text: str, store: str) -> str:
    """The text with `store`, quoted for a shell, in the place of STORE in its commands."""
    return _WITH_PLACEHOLDER.sub(lambda found: f"{found[1]} {store}", text)


def given_store(root: str = "") -> str:
    """The STORE of the command line, or the store `root` in it, with the directories of its commitlog, quoted
    for a shell: for the next command to type.
    """
    return _store_words(click.get_current_context().params, root)


def _store_words(given: Mapping[str, Any], root: str = "") -> str:  # Any: what click parsed
    logs = "".join(f" --commitlog {shlex.quote(shown(log))}" for log in given.get("commit_log", ()))
    return shlex.quote(shown(root or str(given.get("store", "STORE")))) + logs


def given_command(*more: str) -> str:
    """The command line with `more` words, quoted for a shell: for the next command to type. It lacks the
    options that only decide how the answer of this command looks.
    """
    words = ["rmqlog", *_without_looks(click.get_current_context().meta[WORDS]), *more]
    return " ".join(shlex.quote(shown(word)) for word in words)


def _without_looks(words: Sequence[str]) -> Iterator[str]:
    """
    >>> [*_without_looks(["recover", "node", "-ojson", "--columns", "part", "--wide", "--index"])]
    ['recover', 'node', '--index']
    """
    rest = iter(words)
    for word in rest:
        if word in _LOOKS_WITH_VALUE:
            next(rest, None)
        elif word != "--wide" and not word.startswith(("-o", "--output=", "--columns=", "--tz=")):
            yield word


# ---- progress of long work ---------------------------------------------------------------------------------


_STEP_SECONDS = 0.1
_CLEAR = "\r\x1b[K"


class Progress:
    """A context manager that clears the line at the end. A `total` of 0 means unknown."""

    def __init__(
        self,
        what: str,
        total: int,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        quiet: bool = False,
    ) -> None:
        self._what, self._total = what, total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        # if False, callers need not find out the total
        self.is_shown = not quiet and self._stream.isatty()
        self._begun = self._drawn = clock()
        self.done = 0

    def add(self, size: int) -> None:
        self.reach(self.done + size)

    def reach(self, done: int) -> None:
        """Sets the number of bytes done. Draws at most ten times a second."""
        self.done = done
        now = self._clock()
        if self.is_shown and now - self._drawn >= _STEP_SECONDS:
            self._drawn = now
            self._stream.write(f"{_CLEAR}{self.line(now)}")
            self._stream.flush()

    def reach_of(self, done: int, total: int) -> None:
        """Sets the number of bytes done and the total, for work whose total becomes known on the way."""
        self._total = total
        self.reach(done)

    def line(self, now: float) -> str:
        """The line at a time of the clock."""
        rate = self.done / max(now - self._begun, 1e-6)
        if not self._total:
            return f"{self._what}: {size_text(self.done)}, {size_text(int(rate))}/s"
        left = max(self._total - self.done, 0) / rate if rate else 0.0
        share = min(100 * self.done // self._total, 100)
        done = f"{size_text(self.done)} of {size_text(self._total)} ({share} %)"
        return f"{self._what}: {done}, {size_text(int(rate))}/s, {left:.0f} s left"

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
