"""A check for Nagios, Icinga and other monitoring systems: `check`, one line and the exit codes of their
plugins.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.group_options import (
    group_options,
    groups_without_offsets,
    lost_with_log,
    refuse_unknown_group,
)
from rmq_spark.cli.options import (
    broker_confs_option,
    confs_for,
    expect_stores_option,
    filter_options,
    from_one_look,
    known_topics,
    now_option,
    open_all,
    refuse_unknown_topic,
    store_path_argument,
)
from rmq_spark.cli.view_rows import KeepWhere, keep_where
from store_format.display.text import shown
from store_format.errors import OptionError, StoreError
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    from rmq_spark.metrics.lag_memory import GroupLag
    from rmq_spark.metrics.limits import CheckResult, Limit, Measure
    from store_format import MessageStore
    from store_format.metadata.broker_confs import BrokerConfs

_UNKNOWN = 3  # of monitoring plugins; also in `CheckState`, whose module --help does not wait for


class _Plugin(click.Command):
    """A command whose errors are the state unknown: a line on stdout, and the exit code 3."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:  # Any: as of click.Command
        with _errors_are_unknown():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:  # Any: what the command returns
        with _errors_are_unknown():
            return super().invoke(ctx)


@contextmanager
def _errors_are_unknown() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        text = error.format_message()
    except (StoreError, OSError) as error:
        text = str(error)
    else:
        return
    click.echo(f"RMQLOG UNKNOWN - {shown(text).replace('|', '¦')}")
    raise click.exceptions.Exit(_UNKNOWN)


@click.command("check", cls=_Plugin)
@store_path_argument
@click.option(
    "--max-lag", metavar="WARN[:CRIT]", help="Unread messages of a group on a topic, such as 1000:5000."
)
@click.option("--max-age", metavar="WARN[:CRIT]", help="Age of the oldest unread message, such as 10m:1h.")
@click.option(
    "--max-lost", metavar="WARN[:CRIT]", help="Messages that retention has deleted unread, such as 0."
)
@click.option(
    "--max-loss-in",
    metavar="WARN[:CRIT]",
    help="Less time until retention deletes unread messages, such as 24h:6h.",
)
@now_option
@broker_confs_option
@expect_stores_option
@group_options
@filter_options("topic")
@from_one_look
def check_(
    path: str,
    commit_log_paths: tuple[str, ...],
    broker_name: str | None,
    max_lag: str | None,
    max_age: str | None,
    max_lost: str | None,
    max_loss_in: str | None,
    now_ms: int,
    broker_confs: BrokerConfs,
    expected_count: int | None,
    group: str | None,
    all_groups: bool,
    filters: MessageChoice,
) -> int:
    """One line for Nagios and Icinga: do groups keep their limits?

    Compares each group on each topic with the limits. A single value is critical; WARN:CRIT has both, and a
    value with a colon behind it is only a warning. The exit codes are those of monitoring plugins, and not
    those of the other commands: 0 ok, 1 warning, 2 critical, 3 unknown. A store, a part of a store or a
    group that cannot be read is unknown, and so is a member of a directory of stores that is empty, or a
    link that leads nowhere. Behind | is the performance data: for each limit the worst value
    of one group on one topic, and not the sum of all.

    \b
    rmqlog check /data/store --max-lag 1000:5000 --max-age 1h
    rmqlog check /data/store --group CG_orders --max-lag 5000 --max-loss-in 24h:6h
    """
    from rmq_spark.metrics.limits import MEASURES, CheckResult
    from rmq_spark.metrics.store_numbers import StoreNumbers

    given = zip(MEASURES, (max_lag, max_age, max_lost, max_loss_in), strict=True)
    limits = [_limit(measure, text) for measure, text in given if text is not None]
    if not limits:
        options = ", ".join(measure.option for measure in MEASURES)
        raise click.UsageError(f"expected a limit, found none; give at least one of {options}")
    stores = open_all(path, broker_name, commit_log_paths)
    confs = confs_for(broker_confs, [store.broker_name for store in stores])
    refuse_unknown_topic(filters, known_topics(stores))
    refuse_unknown_group(stores, group)
    result, keep = CheckResult(limits), keep_where(group=group, topic=filters.glob, all_groups=all_groups)
    _add_missing(result, path if not commit_log_paths else None, len(stores), expected_count)
    for store in stores:
        without = groups_without_offsets(store, group)
        if without.evidence:
            result.add_unknown(str(without))
        broker = store.broker_name if len(stores) > 1 else ""
        _add_store(
            result, store, StoreNumbers(store, confs.of(store.broker_name)).groups(now_ms)[1], keep, broker
        )
    if not result.group_count:
        result.add_unknown("no group has an offset that can be read")
    click.echo(result.line())
    return int(result.state)


def _add_missing(result: CheckResult, path: str | None, count: int, expected: int | None) -> None:
    """Adds the stores of a cluster that are not there; `path` is None if it is no cluster for certain."""
    from store_format.read.store_root import members_without_store

    for each in [] if path is None else members_without_store(path):
        if each.is_missing:
            result.add_unknown(str(each))
    if expected is not None and count != expected:
        result.add_unknown(f"expected {expected} stores (--expect-stores), found {count}")


def _add_store(
    result: CheckResult, store: MessageStore, groups: list[GroupLag], keep: KeepWhere | None, broker: str
) -> None:
    """Adds the numbers of a store's groups, and what is not known of it; names the `broker`, if given."""
    from store_format.metadata.group_offsets import refuse_unknown_offsets

    try:
        refuse_unknown_offsets(store.opened)
    except StoreError as error:
        result.add_unknown(str(error).partition(";")[0])
    if lost := lost_with_log(store):
        result.add_unknown(lost)
    result.add((each for each in groups if keep is None or keep.keeps(each.row)), broker)
    for why in store.unreadable or ():
        result.add_unknown(why)


def _limit(measure: Measure, text: str) -> Limit:
    """The limits that an option gives. Raises OptionError."""
    from rmq_spark.metrics.limits import Limit

    before, colon, after = text.partition(":")
    warning, critical = (before, after) if colon else ("", before)
    limit = Limit(measure, *(_number(measure, part) for part in (warning, critical)))
    if (limit.warning, limit.critical) == (None, None):
        raise OptionError(f"{measure.option}: expected WARN:CRIT or CRIT, found {text!r}")
    if limit.warning is not None and limit.critical is not None:
        gap = limit.warning - limit.critical if measure.is_low_bad else limit.critical - limit.warning
        if gap < 0:
            order = "at least" if measure.is_low_bad else "at most"
            raise OptionError(f"{measure.option}: expected a warning of {order} CRIT, found {text!r}")
    return limit


def _number(measure: Measure, text: str) -> int | None:
    from rmq_spark.options.option import Given, duration_ms

    if not text:
        return None
    if measure.is_time:
        return duration_ms(Given(measure.option, text, 0))
    if not (text.isascii() and text.isdigit()):
        raise OptionError(f"{measure.option}: expected a number of messages, such as 1000, found {text!r}")
    return int(text)
