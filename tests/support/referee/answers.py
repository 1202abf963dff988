"""Runs a caller of the product in this process, and keeps everything that it said."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

from rmq_spark.cli.exit_codes import BUG, NOT_FOUND, OK, PARTIAL
from rmq_spark.cli.main import main
from store_format.errors import StoreError
from tests.support.referee.truth import QueueKey, Row, Truth


@dataclass(frozen=True)
class Answer:
    """What a caller said about a store, and the truth to judge it by."""

    asker: str
    truth: Truth = field(repr=False)
    rows: Counter[Row] | None = None  # None: it does not return messages
    earlier: Counter[Row] = field(default_factory=Counter)  # what a running query has delivered before
    told: frozenset[Row] = frozenset()  # of what a running query has said before that it is missing
    counts: Mapping[str, int | None] = field(default_factory=dict)
    starts: Mapping[QueueKey, int] = field(default_factory=dict)  # first offsets that a write gave
    text: str = ""
    advice: str = ""  # the next command
    code: int = 0
    warnings: tuple[str, ...] = ()
    refusal: str = ""  # class and sentence of a StoreError, or the sentence of a command that failed
    bug: str = ""  # any other exception
    key: str = ""  # of `find`
    skips: bool = False  # asked to go on at damage

    @property
    def is_silent(self) -> bool:
        """Whether nothing says that the answer is not complete."""
        return not self.refusal and not self.bug and not self.warnings and self.code in (OK, NOT_FOUND)


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@contextmanager
def heard() -> Iterator[list[str]]:
    """The warnings of the block."""
    handler = _Kept()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.said
    finally:
        logging.getLogger().removeHandler(handler)


def asked(answer: Answer, root: Path, ask: Callable[[Answer], Answer]) -> Answer:
    """Completes an answer by a call of the Python API. Paths of the store are written STORE."""

    def short(text: str) -> str:
        return text.replace(str(root), "STORE")

    with heard() as said:
        try:
            answer = ask(answer)
        except StoreError as error:
            answer = replace(answer, refusal=short(f"{type(error).__name__}: {error}"))
        except Exception as error:
            answer = replace(answer, bug=short(f"{type(error).__name__}: {error}"))
    return replace(answer, warnings=tuple(map(short, said)))


@dataclass(frozen=True)
class Run:
    """How a command ended. Paths of the store are written STORE in `err`."""

    code: int
    out: str
    err: str
    warnings: tuple[str, ...]

    def onto(self, answer: Answer, *codes: int) -> Answer:
        """The answer with the exit code, the warnings and the refusal of this run.

        `codes` are exit codes of this command that are no refusal, beside 0, 4, and 1 for no match.
        """
        lines = [line.removeprefix("rmqlog: ") for line in self.err.splitlines()] or [""]
        sentence = lines[0] if self.code == BUG else lines[-1]
        answers = self.code in (OK, PARTIAL)
        answers |= self.code in codes and bool(self.out.strip())
        answers |= self.code == NOT_FOUND and sentence.startswith(("no ", "the store has no"))
        return replace(
            answer,
            code=self.code,
            warnings=self.warnings,
            bug=sentence if self.code == BUG else "",
            refusal="" if answers or self.code == BUG else f"exit code {self.code}: {sentence}",
        )


def rmqlog(root: Path, *arguments: object) -> Run:
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with heard() as said, redirect_stdout(out), redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    texts = [text.replace(str(root), "STORE") for text in (err.getvalue(), *said)]
    return Run(code, out.getvalue(), texts[0], tuple(texts[1:]))
