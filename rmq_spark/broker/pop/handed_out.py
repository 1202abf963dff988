"""What a receive asks for, and the messages that it was handed out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.broker.pop.window import QueueWindow
from store_format.pop.records import CheckPoint
from store_format.read.store import Queue


@dataclass(frozen=True, slots=True)
class PopRequest:
    """What one receive asks for. `pop_time` is now in ms; `owner` is the consumer's name, for views.

    `attempt_id` names the receive: in order, a repeat with the same name gets the same messages.
    """

    count: int
    invisible_ms: int
    pop_time: int
    owner: str = ""
    attempt_id: str | None = None


@dataclass(frozen=True, slots=True)
class HandedOut:
    """Messages of one queue that this consumer got; `window` has their places, None before they were read.

    `attempts` are the earlier deliveries by queue offset, of messages whose own number does not say so.
    """

    point: CheckPoint
    queue: Queue
    window: QueueWindow | None
    attempts: Mapping[int, int] = field(default_factory=dict)
