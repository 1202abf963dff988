"""The STORE of a command line: one store root, or a directory of them, which is a cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.exit_codes import PARTIAL
from rmq_spark.cli.options import Command, standing_for
from rmq_spark.options.parse import Given, timestamp_ms
from store_format.errors import OptionError, StoreError

if TYPE_CHECKING:
    from store_format import MessageStore

__all__ = ["now_option", "open_all", "open_roots", "store_argument"]

_PATH = click.Path(readable=False)  # click would call what may not be read a wrong usage


def store_argument(*, opened: bool = True) -> Callable[[Command], Command]:
    """STORE and what says more about it. The command gets `stores`, or with `opened=False` the paths of their
    roots as `roots`.
    """

    def decorate(command: Command) -> Command:
        def called(store: str, commit_log: tuple[str, ...], broker_name: str | None, **others: Any) -> Any:
            if opened:
                stores = open_all(store, broker_name, commit_log)
                code = command(stores=stores, **others)
                return PARTIAL if not code and any(each.unreadable for each in stores) else code
            return command(
                roots=open_roots(store, commit_log),
                commit_log_paths=tuple(map(os.path.abspath, commit_log)),
                **others,
            )

        called = standing_for(command, called)
        about = "Where the commitlog files are, if elsewhere (storePathCommitLog); repeatable."
        called = click.option(
            "--commitlog", "commit_log", type=_PATH, multiple=True, metavar="PATH", help=about
        )(called)
        called = click.option(
            "--broker-name", metavar="NAME", help="The broker's name, if the store does not say it."
        )(called)
        return click.argument("store", type=_PATH)(called)

    return decorate


def now_option(command: Command) -> Command:
    """`--now`, the moment that ages count to, as `now_ms`."""

    def called(now: str | None, **others: Any) -> Any:
        clock_ms = time.time_ns() // 1_000_000
        return command(
            now_ms=clock_ms if now is None else timestamp_ms(Given("--now", now, clock_ms)), **others
        )

    about = "The moment that ages count to, such as that of a copy; by default the clock."
    return click.option("--now", metavar="TIME", help=about)(standing_for(command, called))


def open_roots(
    path: str, commit_log: tuple[str, ...] = (), left_out: list[StoreError] | None = None
) -> list[str]:
    """The store roots that a path means; the path itself if there are none: opening it says what is missing.

    Members of a cluster that cannot be read, or have no commitlog, go into `left_out`; without it they are
    an error.
    """
    from store_format.files.read import refuse
    from store_format.read.cluster import store_roots

    root = os.path.abspath(path)
    return [root] if commit_log else store_roots(root, refuse if left_out is None else left_out.append)


def open_all(
    path: str, broker_name: str | None = None, commit_log: tuple[str, ...] = ()
) -> list[MessageStore]:
    """The stores of a path; what may not be read of them is left out with a warning. Raises
    StoreNotFoundError where there is none.
    """
    from store_format import MessageStore

    left_out: list[StoreError] = []
    roots = open_roots(path, commit_log, left_out)
    if len(roots) > 1 and broker_name is not None:
        raise OptionError(
            f"--broker-name is for one store and {path} is a cluster of {len(roots)}; leave it out, each store says its own"
        )
    logs = tuple(map(os.path.abspath, commit_log))
    stores = [
        MessageStore.open(root, broker_name=broker_name, commit_log_paths=logs, skip_unreadable=True)
        for root in roots
    ]
    stores[0].pass_over(left_out)
    return stores
