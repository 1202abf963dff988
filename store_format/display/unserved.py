"""How many messages of a store a broker does not serve after its start, and of which topics and queues.

`verify` and `recover` show the same number: the messages of topics that topics.json lacks, and those whose
entry is missing in a consume queue, unless the broker writes the entry when it starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from store_format.display.text import shown

_NAMES_MAX = 3


@dataclass(frozen=True, slots=True)
class Unserved:
    """The number of these messages, and the names of their topics and queues, the largest first."""

    messages: int = 0
    names: tuple[str, ...] = ()

    @staticmethod
    def of(queues: Mapping[tuple[str, int], int], topics: Mapping[str, int]) -> Unserved:
        """Those of single `queues`, and all messages of whole `topics`, which include their queues.

        >>> str(Unserved.of({("Pay", 1): 2, ("New", 0): 7}, {"New": 9}))
        '11 messages of New and Pay-1 that a broker does not serve'
        """
        counts = Counter({topic: count for topic, count in topics.items() if count})
        single = {key: count for key, count in queues.items() if count and key[0] not in topics}
        of_topic = Counter(topic for topic, _ in single)
        for (topic, queue_id), count in single.items():
            counts[topic if of_topic[topic] > 1 else f"{topic}-{queue_id}"] += count
        return Unserved(counts.total(), tuple(name for name, _ in counts.most_common()))

    def __bool__(self) -> bool:
        return self.messages > 0

    @property
    def named(self) -> str:
        """The number, and the first names."""
        names = [*map(shown, self.names[:_NAMES_MAX])]
        if rest := len(self.names) - len(names):
            names.append(f"{rest:,} more")
        listed = " and ".join([", ".join(names[:-1]), names[-1]][len(names) < 2 :])
        noun = "message" if self.messages == 1 else "messages"
        return f"{self.messages:,} {noun} of {listed}"

    def __str__(self) -> str:
        return f"{self.named} that a broker does not serve"


NONE_UNSERVED = Unserved()
