"""Remarks: lines on stderr that a person reads beside the data on stdout."""

from __future__ import annotations

import shlex
import sys

import click

from rmq_spark.cli.exit_codes import NOT_FOUND
from store_format.display.text import shown

WORDS = "rmqlog.words"  # the words behind `rmqlog`, in the meta data of a context


def remark(text: str) -> None:
    """Prints one line, escaped."""
    print(f"rmqlog: {shown(text)}", file=sys.stderr)


def nothing(text: str) -> int:
    """Says that the answer is empty, and returns the exit code for that."""
    remark(text)
    return NOT_FOUND


def given_store() -> str:
    """The STORE of the command line, quoted for a shell: for the next command to type."""
    return shlex.quote(shown(str(click.get_current_context().params.get("store", "STORE"))))


def given_command(*more: str) -> str:
    """The command line with `more` words, quoted for a shell: for the next command to type."""
    words = ["rmqlog", *click.get_current_context().meta[WORDS], *more]
    return " ".join(shlex.quote(shown(word)) for word in words)
