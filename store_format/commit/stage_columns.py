"""Message columns into a staged file: encoded, and with what queues and index need of them, taken from the
messages themselves.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.commit.staging import NO_QUEUE, NOT_DISPATCHED, StagingWriter
from store_format.errors import IllegalMessageError
from store_format.index.keys import index_key_hashes
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.message.encode import MESSAGE_SIZE_MAX, MessageColumns, encode
from store_format.message.encode_parts import Integers
from store_format.message.property_table import PropertyTable
from store_format.message.tags_code import tags_codes
from store_format.names import DELAY, KEYS, SCHEDULE_TOPIC, TAGS, UNIQ_KEY, QueueKey

__all__ = ["stage_columns"]


def stage_columns(
    writer: StagingWriter,
    messages: MessageColumns,
    *,
    crc_property: bool = False,
    tag_keys: bool = True,
    message_size_max: int = MESSAGE_SIZE_MAX,
) -> None:
    """Appends the messages to the staged file, each for the queue that its topic and queue id say.

    Tags code and index keys come from the properties as stored; `tag_keys` indexes tags too, as brokers do
    from 5.4 on. Queue offset, physical offset and store time are the commit's to give. Raises
    IllegalMessageError as `encode` does, and for a null body.
    """
    if messages.body.null_count:
        row = messages.body.is_null().index(pa.scalar(True)).as_py()
        topic = messages.topic if isinstance(messages.topic, str) else messages.topic[row].as_py()
        raise IllegalMessageError(f"topic {topic}: message {row} has no body (null); b'' is an empty one")
    units = encode(messages, crc_property=crc_property, message_size_max=message_size_max)
    count = len(units)
    topics = messages.topic
    encoded = (
        pa.array([topics] * count, pa.string()).dictionary_encode() if isinstance(topics, str) else topics
    )
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    table = PropertyTable(pc.fill_null(messages.properties.cast(pa.binary()), b""))
    scheduled = np.isin(codes, [code for code, name in enumerate(names) if name == SCHEDULE_TOPIC])
    # With a store time of 0 a time of delivery is the delay alone, which is what a staged file holds.
    tags = tags_codes(table, scheduled, np.zeros(count, np.int64))
    delays = table.values(DELAY).to_pylist() if scheduled.any() else []
    timed = (
        np.array([bool(flag) and _is_level(delays[i]) for i, flag in enumerate(scheduled.tolist())], bool)
        if delays
        else None
    )
    queues, index = _queues(
        names, codes, _spread(messages.queue_id, count), _spread(messages.sys_flag, count)
    )
    rolled_back = index == NOT_DISPATCHED
    hashes, message_index = index_key_hashes(
        encoded,
        table.values(UNIQ_KEY),
        table.values(KEYS),
        table.values(TAGS),
        tag_keys=tag_keys,
        rolled_back=rolled_back if rolled_back.any() else None,
    )
    writer.append(units, queues, index, tags, hashes, message_index, timed)


def _is_level(text: str | None) -> bool:
    return (parse_long(text) or 0) > 0


def _spread(values: Integers, count: int) -> NDArray[np.int64]:
    return values.astype(np.int64) if isinstance(values, np.ndarray) else np.full(count, values, np.int64)


def _queues(
    names: list[str], codes: NDArray[np.int64], queue_ids: NDArray[np.int64], sys_flags: NDArray[np.int64]
) -> tuple[list[QueueKey], NDArray[np.int64]]:
    """The queues of the batch, and the place in that list of each message's; prepared and rolled back ones
    have none.
    """
    kinds = sys_flags & sysflag.TRANSACTION_MASK
    queued = (kinds == sysflag.TRANSACTION_NONE) | (kinds == sysflag.TRANSACTION_COMMIT)
    values, inverse = np.unique(codes[queued] << 32 | queue_ids[queued], return_inverse=True)
    index = np.where(kinds == sysflag.TRANSACTION_ROLLBACK, NOT_DISPATCHED, NO_QUEUE)
    index[queued] = inverse
    return [(names[value >> 32], value & 0xFFFFFFFF) for value in values.tolist()], index
