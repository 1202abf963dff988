"""What of a store a command is about: the same options everywhere, as one value.

Start is inclusive, end exclusive, as in the options of the DataFrame; without `--topic` RocketMQ's own topics
are left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.completion import complete_topic
from rmq_spark.cli.exit_codes import NotFoundError
from rmq_spark.cli.options import Command, standing_for
from rmq_spark.options.parse import Given, timestamp_ms
from store_format.names import did_you_mean, is_system_topic

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rmq_spark.consume.sql92 import Sql92Filter

__all__ = ["MESSAGE_FILTERS", "Filters", "filter_options"]

_WILD = re.compile(r"[*?\[]")

MESSAGE_FILTERS = ("topic", "all", "queue", "tag", "key", "since", "until", "where", "limit")


@dataclass(frozen=True, slots=True)
class Filters:
    """Plain values. `since_ms` is inclusive, `until_ms` exclusive; both are store times."""

    topic: str | None = None
    all_topics: bool = False
    queue_ids: tuple[int, ...] = ()
    tags: tuple[str, ...] = ()
    key: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    where: Sql92Filter | None = field(default=None)
    limit: int | None = None

    def chooses_topic(self, topic: str) -> bool:
        """A pattern that begins with a wildcard does not mean RocketMQ's own topics, unless with `--all`."""
        if self.topic is not None and not fnmatchcase(topic, self.topic):
            return False
        if self.all_topics or (self.topic is not None and not _WILD.match(self.topic)):
            return True
        return not is_system_topic(topic)

    def chooses_queue(self, queue_id: int) -> bool:
        return not self.queue_ids or queue_id in self.queue_ids

    def without_topic(self) -> Filters:
        """The rest of the filters, where the topic has been looked at."""
        return replace(self, topic=None, all_topics=True)

    @property
    def one_topic(self) -> str | None:
        """The topic, where it is no pattern."""
        return None if self.topic is None or _WILD.search(self.topic) else self.topic

    @property
    def looks_at_messages(self) -> bool:
        """Whether only the messages themselves say which are meant."""
        return bool(self.tags) or self.key is not None or self.where is not None

    def refuse_unknown_topic(self, known: Iterable[str]) -> None:
        """Raises NotFoundError, with the nearest name, when `--topic` means none of the topics that are
        there.
        """
        names = sorted(known)
        if self.topic is None or any(map(self.chooses_topic, names)):
            return
        raise NotFoundError(f"no topic is named {self.topic!r}; {did_you_mean(self.topic, names, 'topics')}")


_OPTIONS: dict[str, Callable[[Command], Command]] = {
    "topic": click.option(
        "-t",
        "--topic",
        metavar="GLOB",
        shell_complete=complete_topic,
        help="Topics, such as Orders or 'Order*'.",
    ),
    "all": click.option("-a", "--all", "all_topics", is_flag=True, help="RocketMQ's own topics too."),
    "queue": click.option(
        "-q",
        "--queue",
        "queue_ids",
        type=click.IntRange(0),
        multiple=True,
        help="A queue of these topics; repeatable.",
    ),
    "tag": click.option("--tag", "tags", multiple=True, help="Messages with this tag; repeatable."),
    "key": click.option("-k", "--key", help="Messages with this key, or this UNIQ_KEY."),
    "since": click.option(
        "--since", metavar="TIME", help="Stored at or after: ISO 8601, ms since 1970, or -2h."
    ),
    "until": click.option("--until", metavar="TIME", help="Stored before: the same."),
    "where": click.option(
        "--where", metavar="SQL92", help="A condition on properties, as a consumer's: \"region = 'north'\"."
    ),
    "limit": click.option("-n", "--limit", type=click.IntRange(1), help="At most so many."),
}


def filter_options(*names: str, limit: int | None = None) -> Callable[[Command], Command]:
    """Some of the options; the command gets them as `filters`. `limit` is the default of `--limit`."""

    def decorate(command: Command) -> Command:
        taken = set(names)
        parameters = {"all": "all_topics", "queue": "queue_ids", "tag": "tags"}
        wanted = [parameters.get(name, name) for name in taken]

        def called(**given: Any) -> Any:
            mine = {name: given.pop(name) for name in wanted}
            return command(filters=_filters(mine, limit), **given)

        called = standing_for(command, called)
        for name in reversed([name for name in _OPTIONS if name in taken]):
            called = _OPTIONS[name](called)
        return called

    return decorate


def _filters(given: dict[str, Any], limit: int | None) -> Filters:  # Any: what click parsed
    now_ms = time.time_ns() // 1_000_000
    for name in ("since", "until"):
        if name in given:
            text = given.pop(name)
            given[f"{name}_ms"] = None if text is None else timestamp_ms(Given(f"--{name}", text, now_ms))
    if (
        given.get("since_ms") is not None
        and given.get("until_ms") is not None
        and given["since_ms"] >= given["until_ms"]
    ):
        raise click.UsageError("--since is not before --until, so nothing can be between them")
    if given.get("where") is not None:
        from rmq_spark.consume.sql92 import parse_sql92

        given["where"] = parse_sql92(given["where"])
    if "limit" in given and given["limit"] is None:
        given["limit"] = limit
    return Filters(**given)
