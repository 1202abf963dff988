"""The name of an in-flight log, and of the topics whose queues it has."""

from __future__ import annotations

from dataclasses import dataclass

from store_format.names import pop_retry_topic
from store_format.pop.log import in_flight_directory
from store_format.pop.state import RETRY, RETRY_V2, TOPIC


@dataclass(frozen=True, slots=True)
class PopName:
    """One in-flight log: the topic that a group pops in the store at `root`."""

    root: str
    group: str
    topic: str

    @property
    def directory(self) -> str:
        return in_flight_directory(self.root, self.group, self.topic)

    @property
    def part(self) -> str:
        """The name of its revives in the ledger."""
        return f"pop/{self.group}/{self.topic}"

    def topic_of(self, flag: int) -> str:
        """The topic with the queues of this flag."""
        return queue_topic(self.group, self.topic, flag)

    def flags(self) -> dict[str, int]:
        """The flag of each of its topics."""
        return {self.topic_of(flag): flag for flag in (TOPIC, RETRY, RETRY_V2)}


def queue_topic(group: str, topic: str, flag: int) -> str:
    """The topic of a queue by its retry flag: the popped topic, or the group's retry topic of pop for it."""
    if flag == TOPIC:
        return topic
    assert flag in (RETRY, RETRY_V2), "a log has no other flags"
    return pop_retry_topic(group, topic, is_v2=flag == RETRY_V2)
