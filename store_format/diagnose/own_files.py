"""The files of compacted topics: that their entries are in order, and lead to whole messages.

Nothing shows which messages a round of the broker should have kept, so that this is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from store_format.consumequeue.compacted import compacted_part
from store_format.consumequeue.files import is_queue_id
from store_format.consumequeue.slices import QueueRange
from store_format.diagnose.problems import Findings
from store_format.errors import CorruptStoreError, FileReplacedError, StoreError
from store_format.files.read import FileCache, files_at
from store_format.message.columns import DecodeOptions
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.read.queue_reader import QueueReader
from store_format.read.tolerance import Tolerance

_COMPACTED_ADVICE = (
    "Restore the queue's directories in compactionCq and compactionLog from a backup. Until then read the "
    "topic with compacted=false: messages of the commitlog are not harmed"
)


def check_compacted(findings: Findings, opened: Opened, topics: Iterable[str]) -> None:
    """Reports the first damage of each queue of these topics in `compaction/`."""
    for topic in topics:
        directory = f"{opened.path}/compaction/compactionCq/{topic}"
        try:
            names = files_at(directory).directories(directory, is_queue_id)
        except StoreError:  # who may not read it is told by a read
            continue
        for queue_id in sorted(int(name) for name, _ in names):
            error = _first_damage(opened, (topic, queue_id))
            if error is not None:
                findings.add_error("damage", error, _COMPACTED_ADVICE, kind="compacted")


def _first_damage(opened: Opened, key: QueueKey) -> CorruptStoreError | None:
    with suppress(FileReplacedError):  # a broker at work
        try:
            _read(compacted_part(opened, key))
        except CorruptStoreError as error:
            return error
    return None


def _read(part: QueueRange) -> None:
    if part.own is None or part.bounds is None:
        return
    reader = QueueReader(
        part.own.log(FileCache()), "", DecodeOptions(("body",), verify_crc=True), Tolerance()
    )
    for _ in reader.read([part.piece(part.min_offset, part.max_offset)]):
        pass
