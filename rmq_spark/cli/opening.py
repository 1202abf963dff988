"""The STORE of a command line: one store root, or a directory of them, which is a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.parameters import Command, standing_for
from rmq_spark.values import Given, timestamp_ms
from store_format.errors import OptionError

if TYPE_CHECKING:
    from store_format import MessageStore

__all__ = ["now_option", "open_all", "open_roots", "store_argument"]


def store_argument(*, opened: bool = True) -> Callable[[Command], Command]:
    """STORE and what says more about it. The command gets `stores`, or with `opened=False` the paths of their roots as `roots`."""

    def decorate(command: Command) -> Command:
        def called(store: str, commit_log: tuple[str, ...], broker_name: str | None, **others: Any) -> Any:
            if opened:
                return command(stores=open_all(store, broker_name, commit_log), **others)
            return command(roots=open_roots(store, commit_log), commit_log_paths=tuple(map(os.path.abspath, commit_log)), **others)

        called = standing_for(command, called)
        about = "Where the commitlog files are, if elsewhere (storePathCommitLog); repeatable."
        called = click.option("--commitlog", "commit_log", type=click.Path(), multiple=True, metavar="PATH", help=about)(called)
        called = click.option("--broker-name", metavar="NAME", help="The broker's name, if the store does not say it.")(called)
        return click.argument("store", type=click.Path())(called)

    return decorate


def now_option(command: Command) -> Command:
    """`--now`, the moment that ages count to, as `now_ms`."""

    def called(now: str | None, **others: Any) -> Any:
        clock_ms = time.time_ns() // 1_000_000
        return command(now_ms=clock_ms if now is None else timestamp_ms(Given("--now", now, clock_ms)), **others)

    about = "The moment that ages count to, such as that of a copy; by default the clock."
    return click.option("--now", metavar="TIME", help=about)(standing_for(command, called))


def open_roots(path: str, commit_log: tuple[str, ...] = ()) -> list[str]:
    """The store roots that a path means; the path itself where it holds none, for whoever reads it to say so."""
    from store_format.files import entry_names

    root = os.path.abspath(path)
    names = entry_names(root)
    if "commitlog" in names or commit_log:
        return [root]
    from rmq_spark.stores import cluster_members  # with all options of Spark, so only for a cluster

    return cluster_members(root, names) or [root]


def open_all(path: str, broker_name: str | None = None, commit_log: tuple[str, ...] = ()) -> list[MessageStore]:
    """The stores of a path. Raises StoreNotFoundError where there is none."""
    from store_format import MessageStore

    roots = open_roots(path, commit_log)
    if len(roots) > 1 and broker_name is not None:
        raise OptionError(f"--broker-name is for one store and {path} is a cluster of {len(roots)}; leave it out, each store says its own")
    logs = tuple(map(os.path.abspath, commit_log))
    return [MessageStore.open(root, broker_name=broker_name, commit_log_paths=logs) for root in roots]
