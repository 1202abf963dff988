"""Digests of messages for a comparison of stores: what equal messages have in common, in 128 bits.

Two messages are equal if they have the same topic, decompressed body, flag, born time, born host,
reconsumeTimes and properties, in any order and without BROKER_PROPERTIES. Store time, store host, sysFlag and
all places depend on the broker, and do not count.

The digests have a secret key of their own in each comparison, so that no store can be made whose messages
share a digest. With the compiled kernels they are SipHash, else BLAKE2b of hashlib: one comparison uses one
of both.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import mapped_array, without_nulls
from store_format.layouts import CRC_PROPERTY_NAME
from store_format.names import INNER_BASE, INNER_MULTI_QUEUE_OFFSET, UNIQ_KEY, WAIT

# What a broker adds when it stores a message (AbstractSendMessageProcessor, SendMessageProcessor,
# LmqDispatch, CommitLog), and WAIT, which some versions do not store.
BROKER_PROPERTIES = (
    CRC_PROPERTY_NAME.decode(), "MSG_REGION", "TRACE_ON", "CLUSTER", WAIT, INNER_BASE,
    INNER_MULTI_QUEUE_OFFSET,
)  # fmt: skip

# the columns that equal messages have in common, with `properties`
COMPARED = ("topic", "body", "flag", "bornTimestampMs", "bornHost", "reconsumeTimes")
READ = (*COMPARED, "properties", "queueId", "queueOffset", "physicalOffset", "storeSize", UNIQ_KEY)

PLACE = np.dtype(
    [("physical", "i8"), ("offset", "i8"), ("queue", "i4"), ("topic", "u4"), ("store", "i2")]
)  # topic: the index in MessageDigests.topics; store: -1 for no message
RECORD = np.dtype(
    [("low", "u8"), ("high", "u8"), ("id", "u8"), ("copies", "i8"), ("place", PLACE)]
)  # low and high: the digest of the message; id: that of its UNIQ_KEY, 0 without
_HEAD = np.dtype(
    [("texts", "u8", (3, 2)), ("topic", "i8"), ("born", "i8"), ("flag", "i4"), ("times", "i4")]
)  # texts: the digests of body, born host and properties

_Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]


class MessageDigests:
    """Makes the records of the messages of one comparison."""

    def __init__(self, messages: int) -> None:
        """`messages`: about how many there are in all stores together."""
        self.topics: list[str] = []
        self._key = secrets.token_bytes(16)
        self._indexes: dict[str, int] = {}
        self._digests: Callable[[pa.RecordBatch, _Ints], tuple[_Words, _Words]] = self._plain
        if kernels.ready(messages):
            self._digests = self._compiled

    def records(self, batch: pa.RecordBatch, store: int) -> NDArray[np.void]:
        """One RECORD for each message of a batch with the columns READ. `store` is kept in the places."""
        found = np.zeros(len(batch), RECORD)
        topics = self._indexes_of(batch["topic"])
        digests, ids = self._digests(batch, topics)
        found["low"], found["high"], found["copies"] = digests[:, 0], digests[:, 1], 1
        found["id"] = np.where(pc.is_valid(batch[UNIQ_KEY]).to_numpy(zero_copy_only=False), ids, 0)
        place = found["place"]
        place["physical"], place["offset"] = (
            batch["physicalOffset"].to_numpy(),
            batch["queueOffset"].to_numpy(),
        )
        place["queue"], place["topic"], place["store"] = batch["queueId"].to_numpy(), topics, store
        return found

    def _indexes_of(self, topics: pa.StringArray) -> _Ints:
        """The index of each topic, which is the same in all stores."""
        coded = topics.dictionary_encode()
        names = coded.dictionary.to_pylist()
        indexes = [self._indexes.setdefault(name, len(self._indexes)) for name in names]
        self.topics += list(self._indexes)[len(self.topics) :]
        found: _Ints = np.array(indexes, np.int64)[coded.indices.to_numpy()]
        return found

    def _compiled(self, batch: pa.RecordBatch, topics: _Ints) -> tuple[_Words, _Words]:
        key = np.frombuffer(self._key, np.uint64)

        def digests_of(array: pa.Array) -> _Words:
            offsets, data = mapped_array(without_nulls(array))
            return _digests(data, offsets, key)

        heads = np.empty(len(batch), _HEAD)
        heads["texts"][:, 0] = digests_of(batch["body"])
        heads["texts"][:, 1] = digests_of(batch["bornHost"])
        heads["texts"][:, 2] = _of_maps(batch["properties"], key)
        heads["topic"], heads["born"] = topics, batch["bornTimestampMs"].to_numpy()
        heads["flag"], heads["times"] = batch["flag"].to_numpy(), batch["reconsumeTimes"].to_numpy()
        offsets = np.arange(len(heads) + 1, dtype=np.int32) * np.int32(_HEAD.itemsize)
        return _digests(heads.view(np.uint8), offsets, key), digests_of(batch[UNIQ_KEY])[:, 0]

    def _plain(self, batch: pa.RecordBatch, topics: _Ints) -> tuple[_Words, _Words]:
        def digest(value: object) -> bytes:
            return hashlib.blake2b(repr(value).encode(), key=self._key, digest_size=16).digest()

        found = [
            digest([*map(row.get, COMPARED), sorted(compared_properties(row["properties"]).items())])
            + digest(row[UNIQ_KEY])
            for row in batch.select([*COMPARED, "properties", UNIQ_KEY]).to_pylist()
        ]
        words = np.frombuffer(b"".join(found), np.uint64).reshape(-1, 4)
        return words[:, :2], words[:, 2]


def compared_properties(properties: Any) -> dict[str, str]:  # Any: Arrow's list of pairs
    """The properties that count in a comparison."""
    return {name: value for name, value in properties if name not in BROKER_PROPERTIES}


def _digests(data: NDArray[np.uint8], offsets: NDArray[np.int32], key: _Words) -> _Words:
    found = np.empty(2 * (len(offsets) - 1), np.uint64)
    kernels.digests.digests(data, offsets, key, found)
    return found.reshape(-1, 2)


def _of_maps(maps: pa.MapArray, key: _Words) -> _Words:
    skipped = pc.is_in(maps.keys, value_set=pa.array(BROKER_PROPERTIES)).to_numpy(zero_copy_only=False)
    (names, name_data), (values, value_data) = mapped_array(maps.keys), mapped_array(maps.items)
    found = np.empty(2 * len(maps), np.uint64)
    offsets = maps.offsets.to_numpy()
    kernels.digests.map_digests(name_data, names, value_data, values, skipped, offsets, key, found)
    return found.reshape(-1, 2)
