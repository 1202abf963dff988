"""Which messages a reader takes: one value for searches, commands, the Python API and Spark.

Each of them has its own parser, which makes this value of what the user wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from store_format.errors import OptionError
from store_format.names import is_system_topic, normal_topic, retry_topic

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format.message.columns import PropertyFilter

_WILD = re.compile(r"[*?\[]")


def refuse_empty_key(key: str) -> None:
    """Raises OptionError for a key without a character: no message has it."""
    if not key:
        raise OptionError("the key is empty; give a word of KEYS or a UNIQ_KEY")


class BodyFilter(Protocol):
    """Selects messages by their bodies."""

    def mask(self, bodies: pa.LargeBinaryArray) -> pa.BooleanArray:
        """Returns which messages to keep."""


class QueueName(NamedTuple):
    """A queue that a user names; None matches any topic, broker or queue id."""

    topic: str | None
    broker: str | None
    queue_id: int | None

    def __str__(self) -> str:
        return "/".join("*" if part is None else str(part) for part in self)


@dataclass(frozen=True)
class MessageChoice:
    """The messages that meet all conditions. None, and an empty tuple, is no condition.

    At most one of `names` (topics), `glob` (a topic, or a pattern such as `Order*`), `pattern` (a regular
    expression) and `queues` is given. Named topics and queues are always read. System topics are left out
    without `include_system_topics`, but a `glob` that does not begin with a wildcard matches them, too, and a
    `pattern` that begins with `%` matches topics that begin with `%`. The retry topics of `group` are always
    read: its own, and those of pop for the topics that are read. A stream that pops has no `group` here, but
    `pop_retry_topics`. `queue_ids` are those of all topics.

    A message has any of the `tags`, the `key` as UNIQ_KEY or as a word of KEYS, the `message_id` as UNIQ_KEY
    or as offset message id, and the text `body` in its body, or a body that `body` selects. `where` chooses
    by properties. Store times are in ms: `since_ms` is inclusive, `until_ms` exclusive. `offset` is the first
    queue offset to read, and `limit` the largest number of messages.
    """

    names: tuple[str, ...] = ()
    glob: str | None = None
    pattern: str | None = None
    queues: tuple[QueueName, ...] = ()
    include_system_topics: bool = False
    group: str = ""
    pop_retry_topics: frozenset[str] = frozenset()
    queue_ids: tuple[int, ...] = ()
    tags: frozenset[str] | None = None
    key: str | None = None
    message_id: str | None = None
    where: PropertyFilter | None = None
    body: str | BodyFilter | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    offset: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.key is not None and self.message_id is not None:
            raise OptionError("key and message_id are given together; use only one of them")
        if self.key is not None:
            refuse_empty_key(self.key)
        if self.body == "":
            raise OptionError("body: the text is empty")
        if self.message_id == "":
            raise OptionError(
                "the message id is empty; give the id that a client shows, or an offset message id"
            )

    # ---- topics and queues ---------------------------------------------------------------------------------

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "", re.ASCII)

    @cached_property
    def _topics(self) -> frozenset[str]:
        return frozenset(self.named_topics)

    @cached_property
    def _queues(self) -> frozenset[QueueName]:
        return frozenset(self.queues)

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics given by name, in the caller's order: planning refuses topics that no store has."""
        return self.names or tuple(
            dict.fromkeys(queue.topic for queue in self.queues if queue.topic is not None)
        )

    @property
    def one_topic(self) -> str | None:
        """The topic, if there is one and it is given by name."""
        if self.glob is not None and not _WILD.search(self.glob):
            return self.glob
        return self.names[0] if len(self.names) == 1 else None

    @property
    def has_topics(self) -> bool:
        """Whether topics or queues are given."""
        return bool(self.names or self.queues) or self.glob is not None or self.pattern is not None

    @property
    def retry_topic(self) -> str:
        """The group's retry topic; empty without a group."""
        return retry_topic(self.group) if self.group else ""

    def chooses_topic(self, topic: str) -> bool:
        """False only for a topic of which no queue is read.

        For a retry topic of pop its name decides, see `subscribe_set`.
        """
        return self.chooses_by_name(topic) or self._is_retry(topic)

    def _is_retry(self, topic: str) -> bool:
        if topic in self.pop_retry_topics:
            return True
        return bool(self.group) and (topic == self.retry_topic or self.chooses_popped(topic))

    def chooses_popped(self, topic: str) -> bool:
        """Whether the name is that of the group's retry topic of pop, for one of the topics that are read."""
        popped, version = normal_topic(topic, self.group)
        return bool(self.group and version) and not is_system_topic(popped) and self.chooses_by_name(popped)

    def chooses_by_name(self, topic: str) -> bool:
        """Whether the user chose the topic, with or without the group."""
        if self.names or self.queues:
            return topic in self._topics
        if self.glob is not None and not fnmatchcase(topic, self.glob):
            return False
        if self.pattern is not None and not self._expression.fullmatch(topic):
            return False
        return not self.hides(topic)

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether this queue of a topic that `chooses_topic` is read."""
        if self.queue_ids and queue_id not in self.queue_ids:
            return False
        if not self.queues or self._is_retry(topic):
            return True
        return (
            QueueName(topic, broker, queue_id) in self._queues
            or QueueName(topic, None, queue_id) in self._queues
        )

    def hides(self, topic: str) -> bool:
        """Whether the topic is left out only because it is a system topic."""
        if self.names or self.queues or self.include_system_topics or not is_system_topic(topic):
            return False
        if self.glob is not None:
            return bool(_WILD.match(self.glob))
        return not (topic.startswith("%") and (self.pattern or "").startswith("%"))

    # ---- messages ------------------------------------------------------------------------------------------

    @property
    def tags_codes(self) -> frozenset[int] | None:
        """The hashes of the tags, by which entries of consume queues are compared before the tags are."""
        if self.tags is None:
            return None
        from store_format.java.text import tags_code  # imports Arrow, for which no help text waits

        return frozenset(map(tags_code, self.tags))

    @property
    def looks_at_messages(self) -> bool:
        """Whether messages must be read to choose them, apart from their store times."""
        conditions = (self.tags, self.key, self.message_id, self.where, self.body)
        return any(condition is not None for condition in conditions)
