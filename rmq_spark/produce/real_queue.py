"""The queue that a waiting message is for: REAL_TOPIC and REAL_QID (HookUtils, spec 8.1, 8.3).

A broker stores a message with a delay level or a delivery time in a system topic. On delivery, it stores a
copy in the real queue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.consumequeue.files import can_be_queue
from store_format.java.number_columns import read_integers
from store_format.message.encode import MessageColumns, StoredMessages, edited_properties
from store_format.names import HALF_TOPIC, REAL_QID, REAL_TOPIC

_QUEUE_ID_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class RealQueues:
    """The real queue of each message; `bad` marks messages without a queue that can exist."""

    topics: pa.StringArray
    queue_ids: NDArray[np.int64]
    bad: NDArray[np.bool_]

    @property
    def is_half(self) -> NDArray[np.bool_]:
        """Messages for the half topic, which a broker discards: only a producer's half may be there."""
        found: NDArray[np.bool_] = pc.equal(self.topics, HALF_TOPIC).to_numpy(zero_copy_only=False)
        return found & ~self.bad


def real_queues(messages: StoredMessages) -> RealQueues:
    """Where the messages are delivered to."""
    names, ids = messages.properties(REAL_TOPIC, REAL_QID)
    queue_ids, is_number = read_integers(ids)
    encoded = names.dictionary_encode()
    can_be = pa.array([can_be_queue(name, 0) for name in encoded.dictionary.to_pylist()], pa.bool_())
    is_topic = pc.fill_null(can_be.take(encoded.indices), False).to_numpy(zero_copy_only=False)
    good = is_topic & is_number & (queue_ids >= 0) & (queue_ids <= _QUEUE_ID_MAX)
    return RealQueues(pc.fill_null(names, ""), queue_ids, ~good)


def delivered_from_level(messages: StoredMessages, queues: RealQueues) -> MessageColumns:
    """The copies that a broker stores when the time of delay levels has come.

    Body, flags, hosts, birth and reconsumeTimes stay. DELAY, REAL_TOPIC and REAL_QID stay in the properties,
    because the broker encodes them before it removes DELAY from the map
    (ScheduleMessageService.messageTimeUp).
    """
    return messages.copies(
        topic=queues.topics,
        queue_id=queues.queue_ids,
        properties=edited_properties(messages.messages.properties, {}),
        prepared_transaction_offset=0,
    )
