"""The messages of a store that are gone, one by one, and what the store still shows of each.

A queue entry shows topic, queue, queue offset and place of a message. At that place the record may be
damaged in its body only, and still say its keys; an index entry of the place has the store time and the hash
of a key.
Where nothing shows more than an offset, the rest is unknown, and null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from store_format.commitlog.log import CommitLog
from store_format.display.columns import BROKER, INT, LONG, NAMES, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import StoreError
from store_format.index.file import open_index_files
from store_format.message.properties import decode_properties
from store_format.message.single import Located, QueuePlace, locate_one
from store_format.names import KEYS, UNIQ_KEY
from store_format.opened.store import Opened

LOST_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic; null if nothing shows it."),
    ViewColumn("queueId", INT, "The queue; null if nothing shows it."),
    ViewColumn("queueOffset", LONG, "The queue offset of the message, or of the first of several."),
    ViewColumn("messages", LONG, "How many messages are gone from this queue offset on."),
    ViewColumn("physicalOffset", LONG, "Where the message was in the commitlog; null if nothing shows it."),
    ViewColumn("storeTimestamp", TIME, "When the message was stored; see `timeAccuracy`."),
    ViewColumn(
        "timeAccuracy",
        TEXT,
        "Null if `storeTimestamp` is exact. An index file has whole seconds from its first message on: the "
        "true time is at most a second before or after the one that is shown.",
    ),
    ViewColumn("keys", NAMES, "The keys that the remains of the record say."),
    ViewColumn("msgId", TEXT, "UNIQ_KEY, if the remains of the record say it."),
    ViewColumn("keyHashes", NAMES, "Hashes of `topic#key` in the index; the key itself is not stored."),
    ViewColumn("evidence", TEXT, "What shows that there was a message."),
)
LOST_MAX = 1000  # of a store; the rest is counted
_ABOUT = "about, within 1 s"
_INDEX_SECONDS = 0x7FFF_FFFF  # a broker keeps this where it does not know the time


class Evidence(StrEnum):
    """What shows that there was a message."""

    ENTRY = "its entry in the consume queue leads into damaged or missing bytes"
    BEHIND = "its entry in the consume queue leads behind the end of the log"
    GAP = "no message has this queue offset, though others before and behind have theirs"
    LEDGER = "rmqlog wrote it: .rmqlog/ledger.json"
    CLAIM = "its record says another place than the entry that leads to it"


@dataclass(frozen=True, slots=True)
class LostMessages:
    """`count` messages of a queue that are gone, from queue offset `first` on."""

    topic: str | None
    queue_id: int | None
    first: int | None
    count: int
    evidence: Evidence
    physical_offset: int | None = None
    size: int = 0

    @property
    def stop(self) -> int:
        return (self.first or 0) + self.count


@dataclass(slots=True)
class LostPlaces:
    """Collects lost messages, at most `LOST_MAX` rows, and counts all."""

    rows: list[LostMessages] = field(default_factory=list)
    count: int = 0

    def add(self, *lost: LostMessages) -> None:
        self.count += sum(each.count for each in lost)
        self.rows += lost[: LOST_MAX - len(self.rows)]


class _Remains(NamedTuple):
    """What is left of a record."""

    store_timestamp: int | None = None
    keys: tuple[str, ...] = ()
    msg_id: str | None = None


def lost_table(opened: Opened, log: CommitLog, lost: Iterable[LostMessages], broker_name: str) -> pa.Table:
    """The lost messages with what the store still shows of them: columns `LOST_COLUMNS`."""
    lost = list(lost)
    indexed = _in_index(opened, {each.physical_offset for each in lost if each.physical_offset is not None})
    rows = []
    for each in lost:
        remains = _remains_of(log, each)
        about, hashes = indexed.get(each.physical_offset, (None, ()))
        is_about = remains.store_timestamp is None and about is not None
        evidence = str(each.evidence)
        if hashes:
            evidence += f"; the index has {'its time and ' * is_about}the hashes of its keys"
        rows.append((
            broker_name, each.topic, each.queue_id, each.first, each.count, each.physical_offset,
            time_us(about if is_about else remains.store_timestamp), _ABOUT if is_about else None,
            remains.keys or None, remains.msg_id, hashes or None, evidence,
        ))  # fmt: skip
    return pa.Table.from_batches([batch_of(LOST_COLUMNS, rows)])


def _remains_of(log: CommitLog, lost: LostMessages) -> _Remains:
    """What the record at the place of the entry says, if only its body is wrong: all lengths fit, and it
    claims this topic, queue and queue offset.
    """
    if lost.topic is None or lost.queue_id is None or lost.first is None or lost.physical_offset is None:
        return _Remains()
    file = log.file_at(lost.physical_offset)
    if file is None:
        return _Remains()
    position = lost.physical_offset - file.start
    unit = log.view(file).read(position, min(lost.size, file.size - position))
    place = QueuePlace(lost.topic, lost.queue_id, lost.first)
    found = locate_one(unit, 0, len(unit), lost.physical_offset, place, verify_crc=False)
    if not isinstance(found, Located):
        return _Remains()
    start, length = found.parts.properties_start, found.parts.properties_length or 0
    properties = decode_properties(bytes(unit[start : start + max(length, 0)]))
    return _Remains(
        found.head.store_timestamp, tuple(properties.get(KEYS, "").split()), properties.get(UNIQ_KEY)
    )


def _in_index(opened: Opened, offsets: set[int]) -> Mapping[int | None, tuple[int | None, tuple[str, ...]]]:
    """(store time in ms, to a second, hashes of keys) of the physical offsets that index files have."""
    wanted = np.array(sorted(offsets), np.int64)
    times: dict[int | None, int | None] = {}
    hashes: dict[int | None, list[str]] = defaultdict(list)
    with suppress(StoreError, OSError):  # the problems name a damaged index file
        for file in open_index_files(f"{opened.path}/index") if len(wanted) else ():
            with file:
                begin = file.header().begin_timestamp
                for _, units in file.chunks():
                    for unit in units[np.isin(units["physical_offset"], wanted)]:
                        physical, seconds = int(unit["physical_offset"]), int(unit["time_diff"])
                        hashes[physical].append(str(int(unit["key_hash"])))
                        times[physical] = _about(begin, seconds)
    return {physical: (times[physical], tuple(found)) for physical, found in hashes.items()}


def _about(begin: int, seconds: int) -> int | None:
    """The time in ms, to a full second, of an entry `seconds` whole seconds behind `begin` (IndexFile.putKey
    leaves out what is less than a second). It is off by a second at most; None if the broker did not know it.

    >>> _about(1_867, 30)
    32000
    """
    if not 0 <= seconds < _INDEX_SECONDS:
        return None
    return (begin + seconds * 1000 + 1000) // 1000 * 1000
