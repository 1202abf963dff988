"""Messages side by side: what our reader finds, in the fields and spelling of expected.jsonl.gz, as
RocketMQ's answers have them.

Also which files of a store RocketMQ may change by opening it, and which it may not.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path

from store_format.layouts import CQ_UNIT
from store_format.store import MessageStore
from tests.interop.programs import Line
from tests.support.rows import rows_of

_PLACE = ("topic", "queueId", "queueOffset", "physicalOffset", "storeSize")
_SAME = (
    *_PLACE,
    "sysFlag",
    "flag",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "bodyCRC",
    "tagsCode",
)
_RENAMED = {"bornTimestampMs": "bornTimestamp", "storeTimestampMs": "storeTimestamp", "offsetMsgId": "msgId"}
COLUMNS = [*_SAME, *_RENAMED, "body", "rawBody", "properties"]  # of a read, for `line_of`
_COMPRESSED = 0x1  # MessageSysFlag.COMPRESSED_FLAG, which the client clears when it has decompressed
# Not a byte of a message or of its index: RocketMQ rewrites these by loading, starting or stopping.
_OWN_BUSINESS = (
    "config",
    "rocksdbstore",
    "compaction",
    "checkpoint",
    "lock",
    "abort",
    "timerwheel",
    "timerlog",
)


def ours(store: Path, topics: Iterable[str] | None = None, *, tiered_path: Path | None = None) -> list[Line]:
    """Every message that MessageStore reads from the queues of these topics, or of all, in order."""
    wanted = None if topics is None else set(topics)
    opened = MessageStore.open(str(store), tiered_path=None if tiered_path is None else str(tiered_path))
    queues = [queue for queue in opened.queues() if wanted is None or queue.topic in wanted]
    return by_place(
        line_of(row) for queue in queues for batch in queue.read(columns=COLUMNS) for row in rows_of(batch)
    )


def line_of(row: Line) -> Line:
    """A row of ours, with `COLUMNS`, in the fields of expected.jsonl.gz."""
    line = {name: row[name] for name in _SAME} | {name: row[column] for column, name in _RENAMED.items()}
    line |= {"body": _base64(row["body"]), "properties": dict(row["properties"])}
    return line | ({"rawBody": _base64(row["rawBody"])} if row["rawBody"] != row["body"] else {})


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def as_client(lines: Iterable[Line]) -> list[Line]:
    """Without what a client does not learn."""
    return by_place(
        {name: value for name, value in line.items() if name not in ("tagsCode", "rawBody", "brokerName")}
        | {"sysFlag": line["sysFlag"] & ~_COMPRESSED}
        for line in lines
    )


def dispatched(store: Path, topic: str) -> dict[tuple[int, int], int]:
    """(queue, queue offset) -> the physical offset, of each entry that a broker has in its consume queues."""
    return {
        (int(queue.name), (int(file.name) + at) // CQ_UNIT.itemsize): int.from_bytes(data[at : at + 8])
        for queue in (store / "consumequeue" / topic).iterdir()
        for file in queue.iterdir()
        for data in (file.read_bytes(),)
        for at in range(0, len(data) - CQ_UNIT.itemsize + 1, CQ_UNIT.itemsize)
        if any(data[at + 8 : at + 12])  # its size
    }


def by_place(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (line["topic"], line["queueId"], line["queueOffset"]))


def data_files(store: Path) -> dict[str, str]:
    """Path -> digest of the files that hold messages, queues and index: what a load after a clean end leaves
    as it is.
    """
    inside = {str(path.relative_to(store)): path for path in sorted(store.rglob("*")) if path.is_file()}
    return {
        name: _digest(path) for name, path in inside.items() if not name.startswith((*_OWN_BUSINESS, "."))
    }


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes()).hexdigest()
