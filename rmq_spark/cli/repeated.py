"""Options that a command line gives more than once: those that add up, and the error for all others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class SeveralTopics(MessageChoice):
    """Messages of the topics that match any of `globs`, by the rules of `glob`, which is None here."""

    globs: tuple[str, ...] = ()

    @cached_property
    def _each(self) -> tuple[MessageChoice, ...]:
        return tuple(
            MessageChoice(glob=glob, include_system_topics=self.include_system_topics) for glob in self.globs
        )

    @property
    def has_topics(self) -> bool:
        """Always true."""
        return True

    def chooses_by_name(self, topic: str) -> bool:
        """Whether a glob chooses the topic."""
        return any(each.chooses_by_name(topic) for each in self._each)

    def hides(self, topic: str) -> bool:
        """Whether the topic is left out only because it is a system topic."""
        return all(each.hides(topic) for each in self._each)


def globs_of(filters: MessageChoice) -> tuple[str, ...]:
    """The values of --topic; () without the option."""
    if isinstance(filters, SeveralTopics):
        return filters.globs
    return () if filters.glob is None else (filters.glob,)


def choice_of_topics(globs: Sequence[str], **others: object) -> MessageChoice:
    """The choice of messages with these values of --topic."""
    distinct = tuple(dict.fromkeys(globs))
    if len(distinct) > 1:
        return SeveralTopics(globs=distinct, **others)  # type: ignore[arg-type] # fields by name
    return MessageChoice(glob=distinct[0] if distinct else None, **others)  # type: ignore[arg-type]
