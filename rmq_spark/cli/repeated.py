"""Options that a command line gives more than once: those that add up, and the error for all others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import click

from store_format.read.choice import MessageChoice


def refuse_given_twice(parent: click.Context, command: click.Command, words: Sequence[str]) -> None:
    """Raises UsageError for an option with one value that the words give twice.

    click takes the last value, so that a search would silently be another search.
    """
    context = click.Context(command, parent=parent, info_name=command.name)
    order: Sequence[click.Parameter] = ()
    with suppress(click.UsageError):  # click reports what it cannot parse
        _, _, order = command.make_parser(context).parse_args(list(words))
    for option in order:
        takes_one = isinstance(option, click.Option) and not (
            option.multiple or option.is_flag or option.count
        )
        if takes_one and order.count(option) > 1:
            raise click.UsageError(f"{option.opts[-1]} is given twice; {_advice(option, command)}", context)


def _advice(option: click.Parameter, command: click.Command) -> str:
    if option.name == "key":
        return "rmqlog find, trace and export take several keys"
    return f"rmqlog {command.name} takes one"


# ---- several topics ----------------------------------------------------------------------------------------


def globs_of(filters: MessageChoice) -> tuple[str, ...]:
    """The values of --topic; () without the option."""
    several: tuple[str, ...] = getattr(filters, "globs", ())
    return several or (() if filters.glob is None else (filters.glob,))


def choice_of_topics(globs: Sequence[str], **others: object) -> MessageChoice:
    """The choice of messages with these values of --topic."""
    distinct = tuple(dict.fromkeys(globs))
    if len(distinct) > 1:
        from rmq_spark.cli.several_topics import SeveralTopics  # few runs need its class

        return SeveralTopics(globs=distinct, **others)  # type: ignore[arg-type] # fields by name
    return MessageChoice(glob=distinct[0] if distinct else None, **others)  # type: ignore[arg-type]
