"""Batches whose key is committed already: they are not written, and another batch with the key is refused.

Spark repeats a batch after a crash with the same messages, in other partitions and with other ids and times.
So batches are compared by what does not change: the number of their messages, and the sum of their bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from store_format.bookkeeping.ledger import LedgerEntry
from store_format.bookkeeping.staged_file import StagedFile
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.errors import OptionError

_log = logging.getLogger(__name__)

_UNKNOWN = -1


class CommittedBatch(NamedTuple):
    """The highest committed batch of a key: its number, and what it has in all stores of a cluster.

    -1 stands for a value that an older release did not write.
    """

    number: int
    messages: int
    bodies: int


def totals(staged: Iterable[StagedFile]) -> tuple[int, int]:
    """(The number of messages, the sum of their bodies), -1 for a sum that is not known."""
    files = [each for each in staged if each.units]
    known = all(each.bodies != _UNKNOWN for each in files)
    return sum(each.units for each in files), sum(each.bodies for each in files) % (
        1 << 64
    ) if known else _UNKNOWN


def is_gone(entry: LedgerEntry, log: CommitLog) -> bool:
    """Whether the log has no message of a batch any more: it was cut where the batch began, or before.

    The part of a batch over a cluster that another store has is not known here.
    """
    if entry.members or entry.start < log.min_offset or entry.damage(log) is None:
        return False
    walk = log.walk(entry.start, verify_crc=True, resync=True) if entry.start < log.stop else ()
    return all(isinstance(run, Damage) for run in walk)


def note_repeat(
    where: str,
    key: tuple[str, int],
    committed: CommittedBatch,
    staged: Iterable[StagedFile],
    *,
    is_stream: bool,
    damage: str | None = None,
) -> str:
    """Logs that the messages of a repeated batch are not written, and returns that report.

    Raises OptionError for another batch with the number of the committed one: another number of messages, or,
    for a job, other bodies. A stream may repeat a batch whose rows come from uuid() or a clock, so its other
    bodies are only reported. `damage` says that messages of the committed batch are lost since: an error for
    a job, which is to write them.
    """
    messages, bodies = totals(staged)
    name = f"batch {key[1]} of {key[0]}"
    others = _UNKNOWN not in (committed.bodies, bodies) and committed.bodies != bodies
    same_number = committed.number == key[1]
    if (
        messages
        and same_number
        and ((committed.messages not in (_UNKNOWN, messages)) or (others and not is_stream))
    ):
        found = (
            "with other bodies" if committed.messages == messages else f"with {committed.messages} messages"
        )
        advice = (
            "A checkpoint that was restored from a backup numbers its batches again: start the query with a "
            "new checkpoint, from the first row that is missing in the store"
            if is_stream
            else "Give each batch its own txnVersion, higher than the last"
        )
        raise OptionError(
            f"{where}: {name} has {messages} messages and is committed already, {found}. Nothing was "
            f"written. {advice}"
        )
    report = f"{where}: {name} is not written, {messages} message{'s' * (messages != 1)}: "
    if not same_number:
        report += (
            f"batch {committed.number} of {key[0]} is committed already. Batch numbers go back after a "
            "checkpoint was restored from a backup, or with a lower txnVersion; if these messages are new, "
            "they are not in the store"
        )
    else:
        report += "it is committed already" + (", with as many messages and other bodies" if others else "")
    if damage is not None:
        report += (
            f". But messages of batch {committed.number} are lost: it {damage}. Find out which messages the "
            "store has, and write the others under another key"
        )
        if messages and same_number and not is_stream:
            raise OptionError(report)
    (_log.warning if messages else _log.info)("%s", report)
    return report
