"""What a consumer has done: `SimpleConsumer.metrics()`."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(slots=True)
class ConsumerMetrics:
    """Counters of one consumer since it was created, from `SimpleConsumer.metrics()`.

    Messages: `received` were returned by receives, and `redelivered` of them had been delivered before.
    `acked` and `changed` had accepted handles; `invalid_handles` were refused. `filtered` did not match the
    subscription and were acknowledged. `dead_letters` had reached the group's maximum of deliveries. `lost`
    were deleted by retention before their delivery. `damaged` were returned with an `error`.

    Receives: `short_polling_hit` found messages at once (RocketMQ's is_short_polling_hit), `long_polling`
    waited (is_long_polling), `empty` returned no message. `notified` counts the wake-ups.
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
