"""Subscription expressions, which say what of a topic is wanted; TAG expressions, `TagA || TagB`, are read
here.

The rules are those of FilterAPI.buildSubscriptionData. A match has two halves: the hash in the consume queue
entry, which may let too much through, and the TAGS string of the message, which decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.consume.sql92 import Sql92Filter, parse_sql92
from store_format.errors import OptionError
from store_format.java.hashes import java_hash

__all__ = ["TagFilter", "parse_subscription", "parse_tags"]

_ALL = "*"
_SEPARATOR = "||"
_JAVA_TRIM = "".join(map(chr, range(0x21)))  # String.trim: up to U+0020, so a full-width space stays


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed expression. `codes` are the Java hashes of `tags`; both are empty for `subscribe_all`."""

    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()

    @property
    def subscribe_all(self) -> bool:
        return not self.tags


def parse_subscription(expression_type: str, expression: str | None) -> tuple[TagFilter, Sql92Filter | None]:
    """What `expressionType` (TAG or SQL92) and `subExpression` ask for. Raises OptionError where RocketMQ's
    client or broker does.
    """
    if expression_type == "TAG":
        return parse_tags(expression), None
    if expression is None:
        raise OptionError(
            "expressionType: SQL92 needs a subExpression, found none; give a condition such as price > 3, or leave expressionType out"
        )
    return TagFilter(), parse_sql92(expression)


def parse_tags(expression: str | None) -> TagFilter:
    """`*`, an empty or no expression subscribes to all; else tags between `||`, trimmed, empty ones left out.

    >>> sorted(parse_tags("TagA || TagB ||").tags)
    ['TagA', 'TagB']

    `*` is only a wildcard alone: `* || TagA` and ` * ` name a tag `*`, as in RocketMQ. Raises OptionError
    when no tag is left: `||` fails in RocketMQ too; a blank expression matches nothing there in the broker
    and everything in the client.
    """
    if not expression or expression == _ALL:
        return TagFilter()
    tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip(_JAVA_TRIM)))
    if not tags:
        raise OptionError(
            f"subExpression: expected tags between ||, found {expression!r}, which names none; use * for all messages or TagA || TagB"
        )
    return TagFilter(tags, frozenset(map(java_hash, tags)))
