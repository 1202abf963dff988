"""Shell completion of topics and groups from the store. Reads configuration and directory names only.

`rmqlog completion` prints the script for a shell; the script calls `rmqlog` with COMPLETE in the environment.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from store_format.errors import StoreError

COMPLETE = "_RMQLOG_COMPLETE"
_OFFERED_MAX = 500


def complete_topic(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Topics of the STORE on the line that begin with `incomplete`."""
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
    """Groups of the STORE on the line that begin with `incomplete`."""
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
    """The STORE on the line. While an option lacks its value, click leaves STORE among the arguments."""
    given = context.params.get("store") or next(
        (each for each in context.args if not each.startswith("-")), None
    )
    return os.path.abspath(given) if isinstance(given, str) else None


def _offer(names: set[str], incomplete: str) -> list[CompletionItem]:
    """The first 500 names; without names that a shell could run, since names come from the store."""
    safe = sorted(
        name
        for name in names
        if name.startswith(incomplete) and name.isprintable() and not set(name) & set(" '\"`$\\;&|<>()\n")
    )
    return [CompletionItem(name) for name in safe[:_OFFERED_MAX]]
