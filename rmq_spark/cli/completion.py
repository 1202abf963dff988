"""Shell completion of topics and groups from the store, and of columns; and RMQLOG_STORE, the store directory
for command lines that name none. Reads configuration and directory names only.

`rmqlog completion` prints the script for a shell; the script calls `rmqlog` with COMPLETE in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import click
from click.shell_completion import CompletionItem

from store_format.errors import StoreError

COMPLETE = "_RMQLOG_COMPLETE"
_OFFERED_MAX = 500

# the views that have the columns of a command
_VIEWS = {
    "dlq": ("deadLetters",),
    "delay": ("delayed",),
    "half": ("transactions",),
    "lag": ("lagByTopic", "lag"),
    "groups": ("groups",),
    "offsets": ("lag",),
    "du": ("usage",),
    "diff": ("diff",),
}
_MESSAGES = ("head", "tail", "get", "find", "export")  # commands with columns of messages

VARIABLE = "RMQLOG_STORE"


# ---- the default store -------------------------------------------------------------------------------------


def default_store() -> str | None:
    """The value of RMQLOG_STORE; None if it is unset or empty."""
    return os.environ.get(VARIABLE) or None


def with_default_store(context: click.Context, command: click.Command, words: list[str]) -> list[str]:
    """The words after a command's name, with the value of RMQLOG_STORE in front if they name no STORE.

    Where the other arguments can be left out, as in `find [WORD]`, a first word that begins with / or . or
    is a directory is the STORE. Of `trace` and `get`, a first word that is no path is an ID, not the STORE: a
    second ID is then reported as one too many.
    """
    default = default_store()
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    if default is None or context.resilient_parsing or "store" not in [each.name for each in arguments]:
        return words
    parsed, _, _ = command.make_parser(click.Context(command, parent=context)).parse_args(list(words))
    given = [parsed[each.name] for each in arguments if isinstance(parsed.get(each.name or ""), str)]
    needed = 1 + sum(each.required for each in arguments if each.name != "store")
    is_place = len(given) == needed and (given[0].startswith(("/", ".")) or os.path.isdir(given[0]))
    if "id" in parsed and given and not (is_place or "/" in given[0] or os.path.lexists(given[0])):
        return [default, *words]
    has_store = len(given) > needed or len(given) == len(arguments) or is_place
    return words if has_store else [default, *words]


# ---- completion --------------------------------------------------------------------------------------------


def complete_topic(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Topics of the STORE on the line that begin with `incomplete`."""
    from store_format.consumequeue.units import list_queues
    from store_format.metadata.read import read_topics
    from store_format.opened.store import Opened

    def names(store: str) -> set[str]:
        return {queue.topic for queue in list_queues(Opened(store), lambda _: True)} | set(
            read_topics(Opened(store)) or ()
        )

    return _offer_of_store(context, names, incomplete)


def complete_group(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Groups of the STORE on the line that begin with `incomplete`."""
    from store_format.metadata.group_offsets import read_committed
    from store_format.metadata.read import read_subscription_groups
    from store_format.opened.store import Opened

    def names(store: str) -> set[str]:
        committed = {group for group, _ in read_committed(Opened(store)).pairs()}
        return committed | set(read_subscription_groups(Opened(store)) or ())

    return _offer_of_store(context, names, incomplete)


def complete_column(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Columns of the command that begin with the part of `incomplete` after its last comma."""
    from store_format.message.columns import COLUMNS
    from store_format.views.registry import view_named

    command = context.info_name or ""
    views = [view_named(name) for name in _VIEWS.get(command, ())]
    names = [column.name for view in views for column in view.columns] if views else list(COLUMNS)
    if not views and command not in _MESSAGES:
        return []
    before, comma, _ = incomplete.rpartition(",")
    given = set(before.split(","))
    return _offer({f"{before}{comma}{name}" for name in names if name not in given}, incomplete)


def complete_view(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Views that begin with `incomplete`."""
    from store_format.views.registry import VIEWS

    return _offer({view.name for view in VIEWS}, incomplete)


def _store(context: click.Context) -> str | None:
    """The STORE on the line, else of RMQLOG_STORE. While an option lacks its value, click leaves STORE among
    the arguments.
    """
    given = context.params.get("store") or next(
        (each for each in context.args if not each.startswith("-")), None
    )
    given = given if isinstance(given, str) else default_store()
    return None if given is None else os.path.abspath(given)


def _offer_of_store(
    context: click.Context, names: Callable[[str], set[str]], incomplete: str
) -> list[CompletionItem]:
    store = _store(context)
    try:
        return [] if store is None else _offer(names(store), incomplete)
    except (StoreError, OSError):
        return []


def _offer(names: set[str], incomplete: str) -> list[CompletionItem]:
    """The first 500 names; without names that a shell could run, since names come from the store."""
    safe = sorted(
        name
        for name in names
        if name.startswith(incomplete) and name.isprintable() and not set(name) & set(" '\"`$\\;&|<>()\n")
    )
    return [CompletionItem(name) for name in safe[:_OFFERED_MAX]]
