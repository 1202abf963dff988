"""The key hashes of a batch of messages, in the broker's order (IndexService.buildIndex)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, without_nulls
from store_format.index.file import index_key, key_hash
from store_format.index.updates import IndexBatch
from store_format.java.hashes import java_hash
from store_format.java.text import decode_utf8
from store_format.message import sysflag
from store_format.message.locate import UnitRefs, Units, locate
from store_format.message.properties import PropertyTable
from store_format.names import KEYS, TAGS, UNIQ_KEY

_HASH_MASK = 0xFFFFFFFF

_Hashes = tuple[NDArray[np.int32], NDArray[np.int64]]


def index_key_hashes(
    topics: pa.Array,
    uniq_keys: pa.Array,
    keys: pa.Array,
    tags: pa.Array,
    *,
    tag_keys: bool = True,
    rolled_back: NDArray[np.bool_] | None = None,
) -> _Hashes:
    """(key hashes, message numbers) of all index entries: UNIQ_KEY, then the parts of KEYS, then TAGS.

    The arrays are UTF-8 strings, null where a message lacks the property. `topics` is preferably a
    dictionary. Brokers from 5.4 on index tags, too (`tag_keys`). Messages
    of type rollback have no entry.
    """
    count = len(uniq_keys)
    topics = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    names = [decode_utf8(name) for name in topics.dictionary.cast(pa.binary()).to_pylist()]
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    batch = _Batch(
        names,
        codes,
        uniq_keys.is_valid().to_numpy(zero_copy_only=False),
        np.zeros(1, bool) if rolled_back is None else rolled_back,
        [flat_bytes(without_nulls(values)) for values in (uniq_keys, keys, tags)],
        tag_keys,
    )
    assert {len(codes), *(len(ends) - 1 for _, ends in batch.texts)} == {count}
    assert len(batch.skipped) in (1, count)
    ends = np.zeros(count + 1, np.int64)
    if not kernels.worth(count):
        each = [batch.hashes_of(i) for i in range(count)]
        np.cumsum([len(hashes) for hashes in each], out=ends[1:])
        hashes = np.fromiter(chain.from_iterable(each), np.int32, int(ends[-1]))
    else:
        hashes = batch.hashes(ends)
    return hashes, np.repeat(np.arange(count), np.diff(ends))


@dataclass(frozen=True, slots=True)
class _Batch:
    """The messages of a batch: the texts are UNIQ_KEY, KEYS and TAGS, as bytes with offsets."""

    topics: list[str]
    topic: NDArray[np.int64]  # the place in `topics` of each message's
    has_uniq_key: NDArray[np.bool_]
    skipped: NDArray[np.bool_]  # of each message, or of all
    texts: list[tuple[NDArray[np.uint8], NDArray[np.int64]]]
    tag_keys: bool

    def hashes(self, ends: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns all hashes; those of message i end at ends[i + 1]."""
        keys = self.texts[1][0]
        hashes = np.empty((len(keys) + len(ends)) // 2 + 2 * len(ends), np.int32)
        seeds = [[java_hash(topic + joint) for topic in self.topics] for joint in ("#", "#T#")]
        is_valid = kernels.hashes.key_hashes(
            self.topic,
            np.array(seeds[0], np.int64) & _HASH_MASK,
            np.array(seeds[1] if self.tag_keys else [], np.int64) & _HASH_MASK,
            *self.texts[0],
            self.has_uniq_key,
            *self.texts[1],
            *self.texts[2],
            self.skipped,
            hashes,
            ends,
        )
        if not is_valid:
            malformed = np.flatnonzero(hashes[: ends[-1]] < 0)
            for i in np.unique(np.searchsorted(ends, malformed, "right") - 1).tolist():
                hashes[ends[i] : ends[i + 1]] = self.hashes_of(i)
        return hashes[: ends[-1]]

    def hashes_of(self, i: int) -> list[int]:
        """Returns the hashes of one message."""
        if self.skipped[i if len(self.skipped) > 1 else 0]:
            return []
        uniq_key, keys, tags = (data[ends[i] : ends[i + 1]].tobytes() for data, ends in self.texts)
        topic = self.topics[self.topic[i]]
        texts = [uniq_key] * bool(self.has_uniq_key[i]) + list(filter(None, keys.split(b" ")))
        hashes = [key_hash(index_key(topic, decode_utf8(text))) for text in texts]
        if tags and self.tag_keys:
            hashes.append(key_hash(index_key(topic, decode_utf8(tags), "T")))
        return hashes


def unit_key_hashes(units: Units, *, tag_keys: bool = True) -> _Hashes:
    """`index_key_hashes` of units in a commitlog, for entries that a crash kept from being written."""
    table = PropertyTable(units.raw_properties())
    return index_key_hashes(
        units.stored_topics(),
        table.values(UNIQ_KEY),
        table.values(KEYS),
        table.values(TAGS),
        tag_keys=tag_keys,
        rolled_back=(units.sys_flag & sysflag.TRANSACTION_MASK) == sysflag.TRANSACTION_ROLLBACK,
    )


def index_batch(refs: UnitRefs, *, tag_keys: bool = True) -> IndexBatch:
    """Returns the index entries of the messages at `refs`, except those of rolled back messages."""
    if not kernels.worth(len(refs)):
        units, _ = locate(refs, verify_crc=False)
        units = units.select((units.sys_flag & sysflag.TRANSACTION_MASK) != sysflag.TRANSACTION_ROLLBACK)
        times = units.integers("store_timestamp").astype(np.int64)
        return IndexBatch(units.physical_offsets, times, *unit_key_hashes(units, tag_keys=tag_keys))
    kinds, times = np.empty(len(refs), np.uint8), np.empty(len(refs), np.int64)
    room = int(refs.sizes.sum()) // 2
    hashes, messages = np.empty(room, np.int32), np.empty(room, np.int64)
    count = kernels.dispatch.index_keys(
        refs.buffer,
        refs.positions,
        refs.physical_offsets,
        refs.sizes,
        tag_keys,
        kinds,
        times,
        hashes,
        messages,
    )
    hashes, messages = hashes[:count].copy(), messages[:count].copy()
    odd = np.flatnonzero(kinds == kernels.dispatch.ODD)
    if len(odd):
        units, _ = locate(refs.select(odd), verify_crc=False)
        more, of = unit_key_hashes(units, tag_keys=tag_keys)
        messages = np.concatenate([messages, odd[of]])
        order = np.argsort(messages, kind="stable")
        hashes, messages = np.concatenate([hashes, more])[order], messages[order]
    physical = refs.physical_offsets
    indexed = kinds != kernels.dispatch.NOT_INDEXED
    if not indexed.all():
        physical, times = physical[indexed], times[indexed]
        messages = (np.cumsum(indexed) - 1)[messages]
    return IndexBatch(physical, times, hashes, messages)
