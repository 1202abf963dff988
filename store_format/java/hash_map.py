"""The order in which java.util.HashMap returns its names: the order of properties that a broker writes."""

from __future__ import annotations

from functools import lru_cache

from store_format.java.hashes import java_hash

BROKER_MAP_CAPACITY = 128  # MessageDecoder.string2messageProperties: new HashMap<>(128)


def table_size(count: int, capacity: int = BROKER_MAP_CAPACITY) -> int:
    """Returns the number of buckets of a map that was made with `capacity` and has `count` names.

    `capacity` is a power of two. The table doubles when it is more than three quarters full.
    """
    while 4 * count > 3 * capacity:
        capacity *= 2
    return capacity


def hash_bucket(name: str, size: int) -> int:
    """Returns the bucket of `name` among `size` buckets (HashMap.hash)."""
    value = java_hash(name) & 0xFFFFFFFF
    return (value ^ value >> 16) & (size - 1)


@lru_cache(maxsize=1024)
def hash_map_order(names: tuple[str, ...], capacity: int = BROKER_MAP_CAPACITY) -> tuple[int, ...]:
    """Returns the places of distinct `names`, put into a HashMap in their order, in iteration order.

    Buckets ascend; a bucket keeps the order of insertion. Not modelled: nine names in one bucket become a
    tree in Java, which may return them in another order. Many messages share a sequence of names, hence the
    cache.
    """
    size = table_size(len(names), capacity)
    return tuple(sorted(range(len(names)), key=lambda place: hash_bucket(names[place], size)))
