"""A slow scalar writer of index files, from the spec alone (4.1 to 4.5): it plays the broker where a test
needs files of its own.

It shares neither layouts nor hashes with the code under test.
"""

from __future__ import annotations

import struct


def java_string_hash(text: str) -> int:
    value = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for (unit,) in struct.iter_unpack(">H", raw):
        value = (31 * value + unit) % 2**32
    return value - 2**32 if value >= 2**31 else value


def message_index_keys(topic: str, properties: dict[str, str], *, tags: bool) -> list[str]:
    """The key strings of one message in the order of spec 4.4; `tags` since 5.4."""
    keys = [f"{topic}#{properties['UNIQ_KEY']}"] if "UNIQ_KEY" in properties else []
    keys += [f"{topic}#{part}" for part in properties.get("KEYS", "").split(" ") if part]
    if tags and properties.get("TAGS"):
        keys.append(f"{topic}#T#{properties['TAGS']}")
    return keys


class IndexFileWriter:
    """One file. `previous_end` is (end timestamp, end physical offset) of the file before, (0, 0) for the
    first.
    """

    def __init__(self, hash_slot_num: int, index_num: int, previous_end: tuple[int, int] = (0, 0)) -> None:
        self.hash_slot_num, self.index_num = hash_slot_num, index_num
        timestamp, offset = previous_end
        self.begin_timestamp = self.end_timestamp = max(timestamp, 0)
        self.begin_physical_offset = self.end_physical_offset = max(offset, 0)
        self.hash_slot_count, self.index_count = 0, 1
        self.slots: dict[int, int] = {}
        self.units: list[bytes] = []

    def put(self, key: str, physical_offset: int, store_timestamp: int) -> bool:
        if self.index_count >= self.index_num:
            return False
        java_hash = java_string_hash(key)
        key_hash = 0 if java_hash == -(2**31) else abs(java_hash)
        slot = key_hash % self.hash_slot_num
        previous = self.slots.get(slot, 0)
        diff = 0
        if self.begin_timestamp > 0:
            diff = min(max(int((store_timestamp - self.begin_timestamp) / 1000), 0), 2**31 - 1)
        self.units.append(struct.pack(">iqii", key_hash, physical_offset, diff, previous))
        self.slots[slot] = self.index_count
        if self.index_count <= 1:
            self.begin_physical_offset, self.begin_timestamp = physical_offset, store_timestamp
        self.hash_slot_count += previous == 0
        self.index_count += 1
        self.end_physical_offset, self.end_timestamp = physical_offset, store_timestamp
        return True

    def header(self) -> bytes:
        times = (
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_physical_offset,
            self.end_physical_offset,
        )
        # indexCount reaches the disk with the first put
        return struct.pack(">qqqqii", *times, self.hash_slot_count, self.index_count if self.units else 0)

    def content(self) -> bytes:
        slots = b"".join(struct.pack(">i", self.slots.get(slot, 0)) for slot in range(self.hash_slot_num))
        units = b"".join([bytes(20), *self.units])
        return self.header() + slots + units.ljust(20 * self.index_num, b"\0")


class IndexWriter:
    """All files: rolls when one is full. `files` in order of creation."""

    def __init__(self, hash_slot_num: int, index_num: int, previous_end: tuple[int, int] = (0, 0)) -> None:
        self.hash_slot_num, self.index_num = hash_slot_num, index_num
        self.files = [IndexFileWriter(hash_slot_num, index_num, previous_end)]

    def put_message(self, keys: list[str], physical_offset: int, store_timestamp: int) -> None:
        self._roll_when_full()
        if physical_offset < self.files[-1].end_physical_offset:
            return
        for key in keys:
            self._roll_when_full()
            assert self.files[-1].put(key, physical_offset, store_timestamp)

    def _roll_when_full(self) -> None:
        last = self.files[-1]
        if last.index_count >= last.index_num:
            self.files.append(
                IndexFileWriter(
                    self.hash_slot_num, self.index_num, (last.end_timestamp, last.end_physical_offset)
                )
            )
