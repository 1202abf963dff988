"""Which topics a pattern such as `Order*` selects."""

from __future__ import annotations

from fnmatch import fnmatchcase

from store_format.names import is_system_topic


def selects_topic(pattern: str | None, topic: str, *, with_system: bool = False) -> bool:
    """Whether a pattern such as `Order*` selects a topic; None selects every topic.

    A system topic is selected only `with_system`, or by a pattern that does not begin with a wildcard.

    >>> selects_topic("*", "Orders"), selects_topic("*", "TBW102"), selects_topic("TBW*", "TBW102")
    (True, False, True)
    """
    if pattern is not None and not fnmatchcase(topic, pattern):
        return False
    return with_system or (pattern is not None and pattern[:1] not in "*?[") or not is_system_topic(topic)
