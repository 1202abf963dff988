"""The files of compacted topics: that their entries are in order, and lead to whole messages.

Nothing shows which messages a round of the broker should have kept, so that this is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from store_format.consumequeue.compacted import compacted_part
from store_format.consumequeue.files import is_queue_id
from store_format.consumequeue.slices import QueueRange
from store_format.diagnose.problems import KILLED_ROUND_ADVICE, Findings
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
_REPLACED = ".delete"  # DefaultMappedFile.renameToDelete


def check_compacted(findings: Findings, opened: Opened, topics: Iterable[str], *, is_live: bool) -> None:
    """Reports the first damage of each queue of these topics in `compaction/`, and, of a store that no broker
    has open, the first file that a round has left.
    """
    for topic in topics:
        logs, queues = (f"{opened.path}/compaction/compaction{each}/{topic}" for each in ("Log", "Cq"))
        try:
            names = files_at(queues).directories(queues, is_queue_id)
        except StoreError:  # who may not read it is told by a read
            continue
        for queue_id in sorted(int(name) for name, _ in names):
            for directory in () if is_live else (f"{logs}/{queue_id}", f"{queues}/{queue_id}"):
                _check_replaced(findings, opened, directory)
            error = _first_damage(opened, (topic, queue_id))
            if error is not None:
                findings.add_error("damage", error, _COMPACTED_ADVICE, kind="compacted")


def _check_replaced(findings: Findings, opened: Opened, directory: str) -> None:
    left = sorted(name for name in opened.files.names(directory, missing_ok=True) if name.endswith(_REPLACED))
    if left:
        found = f"{len(left)} that end in {_REPLACED}, to be moved out of compaction/"
        findings.add("warning", f"{directory}/{left[0]}", 0, "only files in use", found, KILLED_ROUND_ADVICE)


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
