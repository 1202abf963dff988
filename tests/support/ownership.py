"""The ownership log of a group read back: its events, the queues that had two owners, the queues of a
client.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from rmq_spark.consume.consumer import MessageQueue, sort_queues
from rmq_spark.consume.group.change import OwnershipEvent
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.group.member import Assignment
from store_format.files.read import files_at

_ENDS = ("release", "expire")


def read_events(directory: str) -> list[OwnershipEvent]:
    """The events that took effect, in their order: those within the length that the state says."""
    data = (files_at(directory).read(f"{directory}/ownership.log") or b"")[: read_state(directory).log_size]
    return [OwnershipEvent(**json.loads(line)) for line in data.split(b"\n")[:-1]]


def double_ownership(events: Iterable[OwnershipEvent]) -> list[str]:
    """A sentence for each queue that got an owner while it had one, or an epoch that is not greater than
    before.
    """
    owner: dict[MessageQueue, OwnershipEvent] = {}
    epoch: dict[MessageQueue, int] = {}
    found = []
    for event in events:
        queue = MessageQueue(event.topic, event.broker, event.queue)
        if event.event == "gain":
            before = owner.get(queue)
            if before is not None:
                found.append(
                    f"{queue}: {event.client} gained it in epoch {event.epoch} "
                    f"while {before.client} had it in epoch {before.epoch}"
                )
            if event.epoch <= epoch.get(queue, 0):
                found.append(f"{queue}: epoch {event.epoch} of {event.client} is not a new epoch")
            owner[queue], epoch[queue] = event, event.epoch
        elif event.event in _ENDS:
            owner.pop(queue, None)
    return found


def begins(assignment: Assignment, positions: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """The next offset to read of each owned queue. `positions` are those that `settle` was called with."""
    return {queue: assignment.next_offset(queue, positions.get(queue)) for queue in assignment.owned}


def queues_by_client(assignment: Assignment) -> dict[str, list[MessageQueue]]:
    """The queues of each client of an assignment, in order."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in sort_queues(assignment.owned):
        found.setdefault(assignment.owned[queue].client, []).append(queue)
    return found
