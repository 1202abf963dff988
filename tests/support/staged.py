"""Messages of the oracle handed to the writing side: as columns, encoded, staged, committed into a store made
for a test.
"""

from __future__ import annotations

import ipaddress
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from store_format import MessageStore
from store_format.bookkeeping.identity import StagedFile
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import CommitResult, commit
from store_format.commit.create_store import StoreDirectory
from store_format.commit.options import CommitOptions
from store_format.commit.staging import NO_QUEUE, NOT_DISPATCHED, StagingWriter
from store_format.message.encode import MessageColumns, encode
from store_format.opened.store import Opened
from tests.support import oracle
from tests.support.file_edits import edited_json
from tests.support.oracle import Message

Rows = dict[tuple[str, int], list[tuple[int, int]]]

_SCHEDULED = "SCHEDULE_TOPIC_XXXX"
_KINDS = {4: NO_QUEUE, 12: NOT_DISPATCHED}  # sysFlag & 12: prepared, rolled back


def deleted_topic(root: Path, topic: str) -> None:
    """What a broker does when a topic is deleted; its messages stay in the commitlog."""
    with edited_json(root / "config" / "topics.json") as topics:
        topics["topicConfigTable"].pop(topic, None)
    shutil.rmtree(root / "consumequeue" / topic, ignore_errors=True)


def messages_of(root: Path) -> list[Message]:
    """Every unit of a store's commitlog."""
    files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
    return oracle.walk_files(files, len(files[min(files)])).messages if files else []


def settings_from(config: Mapping[str, str], broker_name: str = "broker-a") -> StoreSettings:
    """Those of a broker.conf."""
    names = {
        "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
        "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
        "maxHashSlotNum": "max_hash_slot_num",
        "maxIndexNum": "max_index_num",
    }
    return StoreSettings(
        broker_name, **{name: int(config[key]) for key, name in names.items() if key in config}
    )


def make_store(root: Path, settings: StoreSettings | None = None) -> Path:
    StoreDirectory(str(root)).create(
        settings or StoreSettings("broker-a", 1 << 14, 20 * 20, 50, 200), timestamp=1_700_000_000_000
    )
    return root


@lru_cache(1 << 10)
def _ip(host: tuple[str, int]) -> bytes:
    return ipaddress.ip_address(host[0]).packed.ljust(16, b"\0")


def columns_of(messages: Sequence[Message], *, crc_property: bool = False) -> MessageColumns:
    """As a producer would give them: without positions and store times, and without the CRC property where
    that is appended.
    """
    cut = 20 if crc_property else 0
    return MessageColumns(
        topic=pa.array([m.topic for m in messages], pa.string()),
        body=pa.array([m.body for m in messages], pa.binary()),
        properties=pa.array(
            [m.properties_bytes[: len(m.properties_bytes) - cut] for m in messages], pa.binary()
        ),
        queue_id=np.array([m.queue_id for m in messages], np.int64),
        flag=np.array([m.flag for m in messages], np.int64),
        sys_flag=np.array([m.sys_flag for m in messages], np.int64),
        born_timestamp=np.array([m.born_timestamp for m in messages], np.int64),
        born_ip=np.array([_ip(m.born_host) for m in messages], "V16"),
        born_port=np.array([m.born_host[1] for m in messages], np.int64),
        store_ip=np.array([_ip(m.store_host) for m in messages], "V16"),
        store_port=np.array([m.store_host[1] for m in messages], np.int64),
        reconsume_times=np.array([m.reconsume_times for m in messages], np.int64),
        prepared_transaction_offset=np.array([m.prepared_transaction_offset for m in messages], np.int64),
    )


@dataclass(frozen=True)
class _Piece:
    """What a producer hands over with some messages: their columns, and what the oracle says of each."""

    columns: MessageColumns
    queues: list[tuple[str, int]]
    numbers: np.ndarray[Any, np.dtype[np.int64]]
    codes: np.ndarray[Any, np.dtype[np.int64]]
    key_hashes: np.ndarray[Any, np.dtype[np.int32]]
    key_ends: np.ndarray[Any, np.dtype[np.int64]]
    timed: np.ndarray[Any, np.dtype[np.bool_]]


# A test of kills stages the same messages in each of some hundred stores.
@lru_cache(16)
def _piece(messages: tuple[Message, ...], crc_property: bool, tag_keys: bool) -> _Piece:
    queues = list(dict.fromkeys((m.topic, m.queue_id) for m in messages if m.sys_flag & 12 not in _KINDS))
    numbers = [_KINDS.get(m.sys_flag & 12) or queues.index((m.topic, m.queue_id)) for m in messages]
    timed = [m.topic == _SCHEDULED and int(m.properties.get("DELAY", "0")) > 0 for m in messages]
    codes = [oracle.tags_code(m) - t * m.store_timestamp for m, t in zip(messages, timed, strict=True)]
    keys = [oracle.index_keys(m, tag_keys) if m.sys_flag & 12 != 12 else [] for m in messages]
    piece = _Piece(
        columns_of(messages, crc_property=crc_property),
        queues,
        np.array(numbers, np.int64),
        np.array(codes, np.int64),
        np.array([oracle.index_key_hash(key) for each in keys for key in each], np.int32),
        np.cumsum([0, *map(len, keys)]),
        np.array(timed, bool),
    )
    for array in (piece.numbers, piece.codes, piece.key_hashes, piece.key_ends, piece.timed):
        array.flags.writeable = False
    return piece


def stage(
    root: Path,
    messages: Sequence[Message],
    *,
    write: str = "w",
    crc_property: bool = False,
    tag_keys: bool = True,
    part: int = 1000,
    sync: bool = True,
) -> StagedFile:
    """One staged file, written in parts of so many messages. Tags codes and index keys are the oracle's."""
    writer = StagingWriter(Opened(str(root)), write, sync=sync)
    for start in range(0, len(messages), part):
        piece = _piece(tuple(messages[start : start + part]), crc_property, tag_keys)
        writer.append(
            encode(piece.columns, crc_property=crc_property),
            list(piece.queues),
            piece.numbers,
            piece.codes,
            piece.key_hashes,
            piece.key_ends,
            piece.timed,
        )
    return writer.close()


def numbered(topic: str, first: int, count: int, *, queues: int = 4, body_size: int = 60) -> list[Message]:
    """Messages that can be told apart: body, UNIQ_KEY, a key each and a tag."""
    return [_numbered(topic, i, queues, body_size) for i in range(first, first + count)]


@lru_cache(1 << 12)
def _numbered(topic: str, i: int, queues: int, body_size: int) -> Message:
    properties = oracle.encode_properties(
        {"UNIQ_KEY": f"U{i:07d}", "KEYS": f"k{i} even" if i % 2 == 0 else f"k{i}", "TAGS": f"T{i % 3}"}
    )
    body = f"message {i} of {topic}".encode().ljust(body_size, b".")
    return Message(
        topic.encode(), body, properties, queue_id=i % queues, born_timestamp=1_700_000_000_000 + i
    )


def prepare_stage(messages: Sequence[Message]) -> None:
    """Makes `stage` of these messages fast, in this process and in its forks."""
    _piece(tuple(messages), False, True)


def append(
    root: Path,
    messages: Sequence[Message],
    *,
    key: tuple[str, int] | None = None,
    options: CommitOptions | None = None,
) -> CommitResult:
    """Staged and committed in one go, dated by a clock that stands still. New topics get the queues that
    `numbered` spreads over.
    """
    options = options or CommitOptions(clock=lambda: 1_700_000_100_000)
    options = replace(
        options, new_topics=dict.fromkeys({m.topic for m in messages}, 4) | dict(options.new_topics)
    )
    staged = stage(root, messages, write=f"w{key[1]}" if key else "w", sync=options.sync)
    return commit(str(root), [staged], key=key, options=options)


def update_topic(root: Path, topic: str, queues: int) -> None:
    """What `mqadmin updateTopic -r -w` leaves in topics.json."""
    with edited_json(root / "config" / "topics.json") as config:
        config["topicConfigTable"][topic] |= {"readQueueNums": queues, "writeQueueNums": queues}


def rows_by_queue(root: Path) -> Rows:
    """By queue: (queueOffset, physicalOffset) of every message that a reader sees."""
    found: Rows = {}
    for queue in MessageStore.open(str(root)).queues():
        rows = found.setdefault((queue.topic, queue.queue_id), [])
        for batch in queue.read(columns=["queueOffset", "physicalOffset"]):
            rows += zip(batch["queueOffset"].to_pylist(), batch["physicalOffset"].to_pylist(), strict=True)
    return {key: rows for key, rows in found.items() if rows}
