"""The choice of messages of several `--topic`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from store_format.read.choice import MessageChoice


@dataclass(frozen=True)
class SeveralTopics(MessageChoice):
    """Messages of the topics that match any of `globs`, by the rules of `glob`, which is None here."""

    globs: tuple[str, ...] = ()

    @cached_property
    def _each(self) -> tuple[MessageChoice, ...]:
        return tuple(
            MessageChoice(glob=glob, include_system_topics=self.include_system_topics) for glob in self.globs
        )

    @property
    def has_topics(self) -> bool:
        """Always true."""
        return True

    def chooses_by_name(self, topic: str) -> bool:
        """Whether a glob chooses the topic."""
        return any(each.chooses_by_name(topic) for each in self._each)

    def hides(self, topic: str) -> bool:
        """Whether the topic is left out only because it is a system topic."""
        return all(each.hides(topic) for each in self._each)
