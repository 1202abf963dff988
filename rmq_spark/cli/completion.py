"""Shell completion from the store itself: its topics and its groups. Only configuration and directory names
are read.

bash: `eval "$(_RMQLOG_COMPLETE=bash_source rmqlog)"`; zsh and fish with zsh_source and fish_source.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from store_format.errors import StoreError

_OFFERED_MAX = 500


def complete_topic(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Topics of the STORE before it that begin so."""
    from store_format.consumequeue.listing import list_queues
    from store_format.metadata.read import read_topics

    store = _store(context)
    if store is None:
        return []
    try:
        names = {topic for topic, *_ in list_queues(store, lambda _: True)} | set(read_topics(store) or ())
    except (StoreError, OSError):
        return []
    return _offer(names, incomplete)


def complete_group(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Groups of the STORE before it that begin so."""
    from store_format.metadata.group_offsets import read_committed
    from store_format.metadata.read import read_subscription_groups

    store = _store(context)
    if store is None:
        return []
    try:
        names = set(read_subscription_groups(store) or ()) | {
            group for group, _ in read_committed(store).pairs()
        }
    except (StoreError, OSError):
        return []
    return _offer(names, incomplete)


def _store(context: click.Context) -> str | None:
    """An option without its value ends click's parsing: then the STORE is still among the arguments."""
    given = context.params.get("store") or next(
        (each for each in context.args if not each.startswith("-")), None
    )
    return os.path.abspath(given) if isinstance(given, str) else None


def _offer(names: set[str], incomplete: str) -> list[CompletionItem]:
    """Without names that a shell could take for something else: they come from the store."""
    safe = sorted(
        name
        for name in names
        if name.startswith(incomplete) and name.isprintable() and not set(name) & set(" '\"`$\\;&|<>()\n")
    )
    return [CompletionItem(name) for name in safe[:_OFFERED_MAX]]
