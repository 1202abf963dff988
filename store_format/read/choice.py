"""Which messages a reader takes: one value for searches, commands, the Python API and Spark.

Each of them has its own parser, which makes this value of what the user wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from store_format.errors import OptionError
from store_format.names import is_system_topic

if TYPE_CHECKING:
    from store_format.message.columns import PropertyFilter

_WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class MessageChoice:
    """The messages that meet all conditions. None, and an empty tuple, is no condition.

    `names` are topics by name, `glob` is a name or a pattern such as `Order*`; at most one of them is given.
    A system topic is read if it is named, if the pattern does not begin with a wildcard, or with
    `include_system_topics`.

    A message has any of the `tags`, the `key` as UNIQ_KEY or as a word of KEYS, the `message_id` as UNIQ_KEY
    or as offset message id, and the text `body` in its body. `where` chooses by properties. Store times are
    in ms: `since_ms` is inclusive, `until_ms` exclusive. `offset` is the first queue offset to read, and
    `limit` the largest number of messages.
    """

    names: tuple[str, ...] = ()
    glob: str | None = None
    include_system_topics: bool = False
    queue_ids: tuple[int, ...] = ()
    tags: frozenset[str] | None = None
    key: str | None = None
    message_id: str | None = None
    where: PropertyFilter | None = None
    body: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    offset: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.message_id is not None:
            raise OptionError("key and message_id are given together; use only one of them")
        if self.message_id == "":
            raise OptionError(
                "the message id is empty; give the id that a client shows, or an offset message id"
            )

    @property
    def has_topics(self) -> bool:
        """Whether topics are given, by name or by a pattern."""
        return bool(self.names) or self.glob is not None

    @property
    def one_topic(self) -> str | None:
        """The topic, if there is one and it is given by name."""
        if self.glob is not None and not _WILD.search(self.glob):
            return self.glob
        return self.names[0] if len(self.names) == 1 else None

    @property
    def looks_at_messages(self) -> bool:
        """Whether messages must be read to choose them, apart from their store times."""
        conditions = (self.tags, self.key, self.message_id, self.where, self.body)
        return any(condition is not None for condition in conditions)

    def chooses_topic(self, topic: str) -> bool:
        """False only for a topic of which no queue is read."""
        if self.names:
            return topic in self.names
        if self.glob is not None and not fnmatchcase(topic, self.glob):
            return False
        return not self.hides(topic)

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether this queue of a chosen topic is read."""
        return not self.queue_ids or queue_id in self.queue_ids

    def hides(self, topic: str) -> bool:
        """Whether the topic is left out only because it is a system topic."""
        if self.names or self.include_system_topics or not is_system_topic(topic):
            return False
        return self.glob is None or bool(_WILD.match(self.glob))
