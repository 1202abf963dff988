"""A batch whose key is committed already is not written: how many messages that leaves out is said, and
another batch is refused.

Spark repeats a batch after a crash with the same messages, in other partitions and with other ids and times.
So batches are compared by what does not change then: how many messages they have, and the sum of their
bodies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from store_format.bookkeeping.staged_file import StagedFile
from store_format.errors import OptionError

__all__ = ["CommittedBatch", "note_repeat", "totals"]

_log = logging.getLogger(__name__)

_UNKNOWN = -1


class CommittedBatch(NamedTuple):
    """What is remembered of the highest committed batch of a key, in all stores of a cluster; -1 is what an
    older release did not note.
    """

    number: int
    messages: int
    bodies: int


def totals(staged: Iterable[StagedFile]) -> tuple[int, int]:
    """Messages, and the sum of their bodies."""
    files = [each for each in staged if each.units]
    known = all(each.bodies != _UNKNOWN for each in files)
    return sum(each.units for each in files), sum(each.bodies for each in files) % (
        1 << 64
    ) if known else _UNKNOWN


def note_repeat(
    where: str,
    key: tuple[str, int],
    committed: CommittedBatch,
    staged: Iterable[StagedFile],
    *,
    is_stream: bool,
) -> str:
    """Warns of the messages that are not written, and gives that sentence.

    Raises OptionError for another batch under the number of the committed one. Other bodies of as many
    messages are one for a job; a stream has to be able to repeat a batch whose rows uuid() or a clock made,
    and is only warned.
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
            "A checkpoint that was restored from a backup numbers its batches again: start the query with a new checkpoint, "
            "from where its rows are missing"
            if is_stream
            else "Give each batch a txnVersion of its own, higher than the last"
        )
        raise OptionError(
            f"{where}: {name} has {messages} messages and is committed already, {found}: nothing was written. {advice}"
        )
    told = f"{where}: {name} is not written, {messages} message{'s' * (messages != 1)}: "
    if not same_number:
        told += (
            f"batch {committed.number} of it is committed already. Numbers that went back mean a checkpoint that was restored "
            "from a backup, or a lower txnVersion; what is new in these messages is not in the store"
        )
    else:
        told += "it is committed already" + (", with as many messages and other bodies" if others else "")
    (_log.warning if messages else _log.info)("%s", told)
    return told
