"""What a consumer has done: `SimpleConsumer.metrics()`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(slots=True)
class ConsumerMetrics:
    """Counters since the consumer was made.

    `received` are messages that receives returned, of which `redelivered` were delivered before; `acked` and
    `changed` those whose handles were accepted. `filtered` did not match the subscription and were
    acknowledged, `dead_letters` had reached the group's maximum, `lost` were deleted by retention before they
    were delivered, and `damaged` were returned with an `error`. `invalid_handles` were refused.

    Of the receives, `short_polling_hit` found messages at once (RocketMQ's is_short_polling_hit),
    `long_polling` waited (is_long_polling), and `notified` counts the wake-ups. `empty` returned nothing.
    """

    receives: int = 0
    received: int = 0
    redelivered: int = 0
    acked: int = 0
    changed: int = 0
    filtered: int = 0
    dead_letters: int = 0
    lost: int = 0
    damaged: int = 0
    invalid_handles: int = 0
    short_polling_hit: int = 0
    long_polling: int = 0
    notified: int = 0
    empty: int = 0


class Counters:
    """The counters of one consumer, which its threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ConsumerMetrics()

    def add(self, **counts: int) -> None:
        """Adds to the counters of these names."""
        with self._lock:
            for name, count in counts.items():
                setattr(self._now, name, getattr(self._now, name) + count)

    def snapshot(self) -> ConsumerMetrics:
        with self._lock:
            return replace(self._now)

    def forget(self) -> None:
        """Starts again from 0, in a forked child."""
        self._lock, self._now = threading.Lock(), ConsumerMetrics()
