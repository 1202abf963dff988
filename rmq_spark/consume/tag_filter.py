"""Subscription expressions: which messages of a topic a consumer reads. TAG expressions are parsed here.

The rules are those of FilterAPI.buildSubscriptionData. A tag is matched twice: the reader of the queue
compares its hash with the consume queue entry, which may let other tags through; then the TAGS property of
the message decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from store_format.errors import OptionError

if TYPE_CHECKING:
    from rmq_spark.consume.sql92 import Sql92Filter

Tags: TypeAlias = frozenset[str] | None  # None matches all messages

_ALL = "*"
_SEPARATOR = "||"
_JAVA_TRIM = "".join(map(chr, range(0x21)))  # String.trim: up to U+0020, so a full-width space stays


def parse_subscription(expression_type: str, expression: str | None) -> tuple[Tags, Sql92Filter | None]:
    """The tags and the condition of the options `expressionType` (TAG or SQL92) and `subExpression`.

    Raises OptionError for an expression that RocketMQ's client or broker refuses.
    """
    if expression_type == "TAG":
        return parse_tags(expression), None
    if expression is None:
        raise OptionError(
            "subExpression: expected a condition such as price > 3 for expressionType=SQL92, found none; "
            "set subExpression, or leave expressionType out"
        )
    from rmq_spark.consume.sql92 import parse_sql92

    return None, parse_sql92(expression)


def parse_tags(expression: str | None) -> Tags:
    """Parses tags between `||`, trimmed, without empty ones.

    `*`, an empty text or None matches all messages: the result is None.

    >>> sorted(parse_tags("TagA || TagB ||") or ())
    ['TagA', 'TagB']

    `*` is a wildcard only if it is the whole text: `* || TagA` and ` * ` name a tag `*`, as in RocketMQ.
    Raises OptionError if no tag is left: RocketMQ refuses `||` too; of a blank expression its broker matches
    nothing and its client everything.
    """
    if not expression or expression == _ALL:
        return None
    tags = frozenset(tag for part in expression.split(_SEPARATOR) if (tag := part.strip(_JAVA_TRIM)))
    if not tags:
        raise OptionError(
            f"subExpression: expected tags such as TagA || TagB, found {expression!r}, which names no tag; "
            "use * for all messages"
        )
    return tags
