"""RMQLOG_STORE: the store directory for command lines that name none."""

from __future__ import annotations

import os

import click

VARIABLE = "RMQLOG_STORE"


def default_store() -> str | None:
    """The value of RMQLOG_STORE; None if it is unset or empty."""
    return os.environ.get(VARIABLE) or None


def with_default_store(context: click.Context, command: click.Command, words: list[str]) -> list[str]:
    """The words after a command's name, with the value of RMQLOG_STORE in front if they name no STORE.

    Where the other arguments can be left out, as in `find [WORD]`, a first word that begins with / or . or
    is a directory is the STORE.
    """
    default = default_store()
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if default is None or context.resilient_parsing or "store" not in [each.name for each in arguments]:
        return words
    parsed, _, _ = command.make_parser(click.Context(command, parent=context)).parse_args(list(words))
    given = [parsed[each.name] for each in arguments if isinstance(parsed.get(each.name or ""), str)]
    needed = 1 + sum(each.required for each in arguments if each.name != "store")
    if len(given) > needed or len(given) == len(arguments):
        return words
    if len(given) == needed and (given[0].startswith(("/", ".")) or os.path.isdir(given[0])):
        return words
    return [default, *words]
