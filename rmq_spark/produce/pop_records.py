"""The messages in which a broker keeps what pop has in flight: check points and acks (spec 8.5, 11.5).

Each is a timer message for the revive topic. A check point is delivered a second before its messages become
visible, its acks when they do (PopMessageProcessor.buildCkMsg, AckMessageProcessor.appendAck). One whose time
has passed is stored in the revive topic at once (HookUtils.transformTimerMessage).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.produce.columns import Host
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.names import (
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TIMER_TOPIC,
    UNIQ_KEY,
)
from store_format.pop.broker_in_flight import CK_LEAD_MS, CK_TAG, BrokerAck, BrokerCheckPoint

_MAP_CAPACITY = 16  # new HashMap(), as MessageAccessor.putProperty makes it


@dataclass(frozen=True, slots=True)
class PopRecord:
    """A check point or an ack, the queue of the revive topic for it, and when it is delivered there, in ms.

    An ack is delivered when the messages of its check point become visible, and to the same queue.
    `must_wait`: it goes through the timer although its time has passed, because its check point waits there.
    """

    record: BrokerCheckPoint | BrokerAck
    revive_queue_id: int
    deliver_ms: int
    must_wait: bool = False

    @staticmethod
    def of(point: BrokerCheckPoint, revive_queue_id: int) -> PopRecord:
        return PopRecord(point, revive_queue_id, point.visible_at - CK_LEAD_MS)


def pop_record_messages(
    records: Sequence[PopRecord], revive_topic: str, *, now_ms: int, precision_ms: int, broker_host: Host
) -> MessageColumns:
    """The messages of these records, in their order, as a broker at `broker_host` stores them at `now_ms`.

    `precision_ms` is the broker's timerPrecisionMs.
    """
    deliver = np.array([each.deliver_ms for each in records], np.int64)
    queue_ids = np.array([each.revive_queue_id for each in records], np.int64)
    waits = (deliver > now_ms) | np.array([each.must_wait for each in records], bool)
    tags = [each.record.tag if isinstance(each.record, BrokerAck) else CK_TAG for each in records]
    out = (deliver - 1) // precision_ms * precision_ms
    mask = pa.array(waits)
    real_topic = pa.scalar(revive_topic, pa.string())
    nothing = pa.scalar(None, pa.string())
    properties = encode_property_columns(
        len(records),
        {
            TAGS: pa.array(tags, pa.string()),
            UNIQ_KEY: pa.array([each.record.unique_key for each in records], pa.string()),
            TIMER_DELIVER_MS: pa.array(deliver).cast(pa.string()),
            TIMER_OUT_MS: pc.if_else(mask, pa.array(out).cast(pa.string()), nothing),
            REAL_TOPIC: pc.if_else(mask, real_topic, nothing),
            REAL_QID: pc.if_else(mask, pa.array(queue_ids).cast(pa.string()), nothing),
        },
        capacity=_MAP_CAPACITY,
    )
    return MessageColumns(
        topic=pc.if_else(mask, TIMER_TOPIC, revive_topic),
        body=pa.array([each.record.to_json() for each in records], pa.large_binary()),
        properties=properties,
        queue_id=np.where(waits, 0, queue_ids),
        born_timestamp=now_ms,
        born_ip=broker_host[0],
        born_port=broker_host[1],
        store_ip=broker_host[0],
        store_port=broker_host[1],
    )
