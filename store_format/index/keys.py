"""The key hashes of a batch of messages, in the broker's order (IndexService.buildIndex).

Key strings are built only if they are not ASCII. Otherwise Java's polynomial gives the hash of the parts:
hash(prefix + key) = hash(prefix) * 31^len(key) + hash(key).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, from_flat
from store_format.index.updates import IndexBatch
from store_format.java.hashes import hash_powers, java_hash_many
from store_format.message import sysflag
from store_format.message.locate import Units, locate
from store_format.message.property_table import PropertyTable
from store_format.message.unit_refs import UnitRefs
from store_format.names import KEYS, TAGS, UNIQ_KEY

_SPACE = 0x20  # MessageConst.KEY_SEPARATOR
_KEY_JOINT = b"#"  # IndexService.buildKey
_TAG_JOINT = b"#T#"
_BINARY = pa.large_binary()

_Hashes = tuple[NDArray[np.int32], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class _Parts:
    """Keys without their topic: `texts[i]` is a key of message `messages[i]`; messages ascend."""

    texts: pa.LargeBinaryArray
    messages: NDArray[np.int64]


def index_key_hashes(
    topics: pa.Array | str,
    uniq_keys: pa.Array,
    keys: pa.Array,
    tags: pa.Array,
    *,
    tag_keys: bool = True,
    rolled_back: NDArray[np.bool_] | None = None,
) -> _Hashes:
    """(key hashes, message numbers) of all index entries: UNIQ_KEY, then the parts of KEYS, then TAGS.

    The arrays are UTF-8 strings, null where a message lacks the property. `topics` is one string for all
    messages, or an array, preferably a dictionary. Brokers from 5.4 on index tags, too (`tag_keys`). Messages
    of type rollback have no entry.
    """
    count = len(uniq_keys)
    prefixes = _Prefixes(topics, count)
    uniq = _stored_texts(uniq_keys, rolled_back)
    parts = _key_parts(keys, rolled_back)
    tagged = (
        _stored_texts(tags, rolled_back, filled=True)
        if tag_keys
        else _Parts(uniq.texts[:0], uniq.messages[:0])
    )
    if not len(parts.messages) and not len(tagged.messages) and len(uniq.messages) == count:
        return prefixes.hashes(uniq, _KEY_JOINT), uniq.messages
    groups = ((uniq, _KEY_JOINT), (parts, _KEY_JOINT), (tagged, _TAG_JOINT))
    return _interleave(count, [(prefixes.hashes(group, joint), group.messages) for group, joint in groups])


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
        refs.buffer, refs.positions, refs.sizes, refs.base, tag_keys, kinds, times, hashes, messages
    )
    hashes, messages = hashes[:count].copy(), messages[:count].copy()
    odd = np.flatnonzero(kinds == kernels.dispatch.ODD)
    if len(odd):
        units, _ = locate(refs.select(odd), verify_crc=False)
        more, of = unit_key_hashes(units, tag_keys=tag_keys)
        messages = np.concatenate([messages, odd[of]])
        order = np.argsort(messages, kind="stable")
        hashes, messages = np.concatenate([hashes, more])[order], messages[order]
    physical = refs.positions + refs.base
    indexed = kinds != kernels.dispatch.NOT_INDEXED
    if not indexed.all():
        physical, times = physical[indexed], times[indexed]
        messages = (np.cumsum(indexed) - 1)[messages]
    return IndexBatch(physical, times, hashes, messages)


def _interleave(count: int, groups: list[_Hashes]) -> _Hashes:
    """Merges groups of entries: by message, and for one message in the order of the groups."""
    counts = [np.bincount(messages, minlength=count) for _, messages in groups]
    total = np.add.reduce(counts)
    places = np.cumsum(total) - total  # where the next group's entries of each message go
    hashes = np.empty(int(total.sum()), np.int32)
    for (values, messages), mine in zip(groups, counts, strict=True):
        if len(messages):
            ranks = np.arange(len(messages)) - (np.cumsum(mine) - mine)[messages]
            hashes[places[messages] + ranks] = values
            places += mine
    return hashes, np.repeat(np.arange(count), total)


class _Prefixes:
    """Topics, each with the joint behind it hashed once."""

    def __init__(self, topics: pa.Array | str, count: int) -> None:
        self._index: NDArray[np.int64] | None = None
        if isinstance(topics, str):
            self._topics = pa.array([topics.encode()], _BINARY)
            return
        if not pa.types.is_dictionary(topics.type):
            topics = topics.dictionary_encode()
        self._topics = topics.dictionary.cast(_BINARY)
        if len(self._topics) != 1:
            self._index = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        assert len(topics) == count

    def hashes(self, parts: _Parts, joint: bytes) -> NDArray[np.int32]:
        """IndexFile.indexKeyHashMethod of topic + joint + text: |hash|, and 0 for -2^31."""
        data, offsets = flat_bytes(parts.texts)
        heads = pc.binary_join_element_wise(self._topics, pa.scalar(joint, _BINARY), pa.scalar(b"", _BINARY))
        which = None if self._index is None else self._index[parts.messages]
        if len(data) and int(data.max()) >= 0x80:
            # Outside ASCII the number of UTF-16 units is not that of bytes: these texts are hashed whole.
            texts = heads.take(pa.array(np.zeros(len(parts.messages), np.int64) if which is None else which))
            hashes = java_hash_many(pc.binary_join_element_wise(texts, parts.texts, pa.scalar(b"", _BINARY)))
        else:
            before = java_hash_many(heads).view(np.uint32)
            factors = hash_powers(np.diff(offsets))
            factors *= before[0] if which is None else before[which]
            factors += java_hash_many(parts.texts).view(np.uint32)
            hashes = factors.view(np.int32)
        return np.maximum(np.abs(hashes), np.int32(0))  # numpy leaves -2^31 as it is


def _stored_texts(values: pa.Array, rolled_back: NDArray[np.bool_] | None, *, filled: bool = False) -> _Parts:
    """The values that are not null (`filled`: and not empty), as binary."""
    chosen = ~_nulls(values) if values.null_count else np.ones(len(values), bool)
    if rolled_back is not None:
        chosen &= ~rolled_back
    if filled:
        chosen &= np.diff(flat_bytes(values)[1]) > 0
    messages = np.flatnonzero(chosen)
    texts = values if len(messages) == len(values) else values.take(pa.array(messages))
    return _Parts(texts.cast(_BINARY), messages)


def _key_parts(keys: pa.Array, rolled_back: NDArray[np.bool_] | None) -> _Parts:
    """The non-empty parts of KEYS between spaces, not trimmed and with repetitions."""
    whole = _stored_texts(keys, rolled_back, filled=True)
    data, offsets = flat_bytes(whole.texts)
    solid = data != _SPACE
    if solid.all():
        return whole
    before = np.empty(len(data), bool)  # whether a character would begin a part
    before[1:] = ~solid[:-1]
    before[offsets[:-1]] = True  # no value is empty
    starts = np.flatnonzero(solid & before)
    rows = np.searchsorted(offsets, starts, "right") - 1
    solid_before = np.concatenate(([0], np.cumsum(solid)))
    return _Parts(from_flat(data[solid], solid_before[np.append(starts, len(data))]), whole.messages[rows])


def _nulls(values: pa.Array) -> NDArray[np.bool_]:
    nulls: NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return nulls
