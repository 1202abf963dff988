"""A dead letter stored again: the new message that a producer would send with the same content."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.produce.send_back import offset_ids, scattered
from store_format.java.hashes import java_hash_many
from store_format.message import sysflag
from store_format.message.encode import MessageColumns, StoredMessages, edited_properties
from store_format.names import RESENT_FROM, RESERVED_PROPERTIES, RETRY_TOPIC, SHARDING_KEY, WAIT

_Ints = NDArray[np.int64]
_KEPT_FLAGS = sysflag.COMPRESSED | sysflag.COMPRESSION_MASK | sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6


def resend(
    dead: StoredMessages,
    topics: pa.StringArray,
    queue_nums: _Ints,
    *,
    origin_topics: pa.StringArray | None = None,
) -> MessageColumns:
    """New messages for these topics, with the content of dead letters.

    Body, flag, tags, keys, UNIQ_KEY, the user's properties, the time of birth and the born host are kept. All
    properties that RocketMQ sets itself are removed, as the write does with the column `properties`, and
    reconsumeTimes is 0: the message can fail and be retried as often as a new one. The property RESENT_FROM
    has the offset message id of the dead letter. `queue_nums` are the queues of each topic: a message with
    a sharding key gets the queue of SelectMessageQueueByHash, another one a queue that follows from its
    place. With `origin_topics` the copies go to a retry topic and have RETRY_TOPIC, which consumers show as
    the topic.
    """
    put: dict[str, Any] = {WAIT: "true", RESENT_FROM: offset_ids(dead)}  # Any: a text, or an array
    if origin_topics is not None:
        put[RETRY_TOPIC] = origin_topics
    flags = np.asarray(dead.messages.sys_flag, np.int64)
    return dead.copies(
        topic=topics,
        queue_id=_queues(dead, queue_nums),
        properties=edited_properties(dead.messages.properties, put, removed=RESERVED_PROPERTIES),
        sys_flag=flags & _KEPT_FLAGS,
        reconsume_times=0,
        prepared_transaction_offset=0,
    )


def _queues(dead: StoredMessages, queue_nums: _Ints) -> _Ints:
    (keys,) = dead.properties(SHARDING_KEY)
    by_place = scattered(dead.physical_offsets, queue_nums)
    if keys.null_count == len(keys):
        return by_place
    hashed = java_hash_many(keys.fill_null("").cast(pa.large_binary())).astype(np.int64)
    by_key = np.abs(np.fmod(hashed, queue_nums))
    return np.where(keys.is_valid().to_numpy(zero_copy_only=False), by_key, by_place)
