"""The values of the option `view`, and the options that may be given together with a view."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_spark.options.parse import Given
from store_format.errors import OptionError
from store_format.names import did_you_mean

MESSAGES = "messages"

_BESIDE = frozenset(("view", "path", "paths", "brokerName", "storePathCommitLog", "columns", "brokerConf"))


def parse_view(given: Given) -> str:
    """`messages` or the name of a view of `store_format.views.registry`, in its documented spelling."""
    word = given.text.strip().lower()
    if word == MESSAGES:
        return MESSAGES
    from store_format.views.registry import VIEWS  # every read parses the default, and few show a view

    by_lower = {name.lower(): name for name in (MESSAGES, *(view.name for view in VIEWS))}
    if word in by_lower:
        return by_lower[word]
    raise given.error(f"one of {', '.join(by_lower.values())}", advice=did_you_mean(word, by_lower.values()))


def refuse_beside_view(given: Mapping[str, Given]) -> None:
    """Raises OptionError for an option that chooses messages: a view would silently ignore it."""
    view = parse_view(given["view"]) if "view" in given else MESSAGES
    if view == MESSAGES:
        if "brokerConf" in given:
            raise OptionError(
                "brokerConf has no effect in a read of messages; leave it out, or give a view that depends "
                "on the broker's settings: retention, delayed"
            )
        return
    for name in given:
        if name not in _BESIDE:
            raise OptionError(
                f"{name} has no effect with view={view}, which shows the whole store; "
                "leave it out and filter the DataFrame"
            )
