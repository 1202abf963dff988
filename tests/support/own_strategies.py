"""Strategies as a user writes them, for tests in which another process imports them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from rmq_spark.consume.consumer import MessageQueue


class ByParity:
    """Even queues to the first client, odd queues to the last."""

    def get_name(self) -> str:
        return "PARITY"

    def allocate(
        self, consumer_group: str, current_cid: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]
    ) -> list[MessageQueue]:
        even = current_cid == cid_all[0]
        odd = current_cid == cid_all[-1]
        return [queue for queue in mq_all if (odd if queue.queue_id % 2 else even)]


class Rooms:
    """Rooms by the last letter of a broker's name and of a client's id."""

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        return message_queue.broker_name[-1]

    def consumer_deploy_in(self, client_id: str) -> str:
        return client_id[-1]


def first_bytes(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)
