"""A group's offsets are in two places, `group.json` and the offset file: which of them counts, and when.

Members record positions in `group.json`. Brokers, mqadmin and Java consumers read and change the offset file
(consumerOffset.json, or offsets.json with offsetStore=local). For each queue `group.json` has the *mirrored*
offset: the offset that members last wrote to the offset file, or found there. It shows who changed the file:

1. The file has the mirrored offset or the recorded position: nobody else has changed it. The recorded
   position counts. It may be newer than the file, because a member can die after Spark's commit and before it
   writes the file.
2. The file has another offset, and no member has run since the queue's last owner: somebody else has moved
   the group. The file counts, forwards and backwards. A queue that the file no longer names starts where
   `consumeFromWhere` says: the group or the topic was deleted.
3. The file has another offset while members run. An offset below the mirrored one is a reset: the queries
   continue there, also backwards. An offset above the position is ignored with a warning; it counts when no
   member runs. A missing offset is written again, with a warning.
4. After these rules the position is compared with the query's checkpoint, and the higher one counts. A
   checkpoint from before a reset of rule 3 is ignored.
5. A `group.json` of an older version has no mirrored offsets. Without a running member the offset file counts
   if it names the queue, else the recorded position; with a running member the higher of the two counts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from rmq_spark.consume.group.change import Change
from rmq_spark.consume.group.state import NOT_IN_FILE, QueueEntry
from rmq_spark.consume.message_queue import MessageQueue, first_few
from rmq_spark.consume.offset_store import OffsetStore
from store_format.errors import CorruptStoreError

_log = logging.getLogger(__name__)


class GroupOffsetMirror:
    """One member's view of the offset file. Callers hold the directory's lock, except for `is_moved`."""

    def __init__(self, group: str, offsets: OffsetStore) -> None:
        self._group = group
        self._offsets = offsets
        self._is_kept = offsets.kind != "none"
        # The identity of the file at the last comparison; `self` equals no file's identity.
        self._seen: object = self
        self._to_lower: set[MessageQueue] = set()  # corrected queues: their offsets in the file may be higher
        self._ignored: dict[MessageQueue, int] = {}  # higher offsets that a warning has already named
        self._is_torn = False

    def is_moved(self) -> bool:
        """Whether the offset file was replaced since the last comparison."""
        return self._offsets.identity() != self._seen

    def follow(
        self, change: Change, held: Collection[MessageQueue], free: Collection[MessageQueue]
    ) -> set[MessageQueue]:
        """Applies rules 1 to 3 and 5 to the queues that the member holds and the free queues that it takes.

        Afterwards the positions in the state are right; None means that neither place has a position. Returns
        the free queues that the file has moved back by rule 2.
        """
        # The identity is taken before the file is read: a file replaced in between is compared again.
        seen = self._offsets.identity()
        if seen == self._seen and not free:
            return set()
        try:
            known = self._offsets.read()
        except CorruptStoreError as error:
            if free:
                raise
            if not self._is_torn:
                _log.warning(
                    "group %s: resets of its offsets are not noticed for now: %s", self._group, error
                )
            self._is_torn = True
            return set()
        self._seen, self._is_torn = seen, False
        back = self._adopt(change, free, known)
        self._compare(change, [*held, *free], known)
        return back

    def _adopt(
        self, change: Change, free: Iterable[MessageQueue], known: Mapping[MessageQueue, int]
    ) -> set[MessageQueue]:
        """Rule 2, and rule 5 without a running member. Returns the queues that were moved back."""
        back: dict[MessageQueue, tuple[int, int]] = {}
        gone: dict[MessageQueue, int] = {}
        for queue in free:
            entry, found = change.state.entry(queue), _offset_of(known, queue)
            is_unattended, entry.is_unattended = entry.is_unattended, False
            position, mirrored = entry.position, entry.mirrored
            if not is_unattended or position is None or found in (position, mirrored):
                continue
            entry.stop = None
            if found >= 0:
                entry.position = entry.mirrored = found
                if found < position:
                    back[queue] = position, found
            elif mirrored is not None:
                entry.position, entry.mirrored = None, NOT_IN_FILE
                gone[queue] = position
        if back:
            shown = first_few(
                f"{queue} at {found} instead of {position}" for queue, (position, found) in back.items()
            )
            _log.warning(
                "group %s: its offsets were moved while none of its queries ran; it continues at the moved "
                "offsets: %s",
                self._group,
                shown,
            )
        if gone:
            shown = first_few(f"{queue} was at {position}" for queue, position in gone.items())
            _log.warning(
                "group %s: the offset file no longer has offsets of %d queues; "
                "they start where consumeFromWhere says: %s",
                self._group,
                len(gone),
                shown,
            )
        return set(back)

    def _compare(
        self, change: Change, queues: Iterable[MessageQueue], known: Mapping[MessageQueue, int]
    ) -> None:
        """Rule 3, rule 5 with a running member, and queues without a position."""
        lowered: dict[MessageQueue, int] = {}
        missing: list[MessageQueue] = []
        for queue in queues:
            entry, found = change.state.entry(queue), _offset_of(known, queue)
            if entry.position is None:
                entry.mirrored = found
                entry.position = found if found >= 0 else None
            elif entry.mirrored is None:
                if entry.owner is None:
                    entry.position = max(entry.position, found)
                _set_mirrored(change, entry, min(found, entry.position))
            elif found in (entry.mirrored, entry.position):
                _set_mirrored(change, entry, found)
            elif found < 0:
                missing.append(queue)
                _set_mirrored(change, entry, NOT_IN_FILE)
            elif found < entry.mirrored:
                lowered[queue] = found
            elif found > entry.position and self._is_kept and self._ignored.get(queue) != found:
                self._ignored[queue] = found
                _log.warning(
                    "group %s: another program set %s to offset %d, and the query is at offset %d: ignored "
                    "while "
                    "queries of the group run. To skip messages, use rmqlog offsets, or stop all queries "
                    "first",
                    self._group,
                    queue,
                    found,
                    entry.position,
                )
        self._report(change, lowered, missing)

    def _report(
        self, change: Change, lowered: Mapping[MessageQueue, int], missing: list[MessageQueue]
    ) -> None:
        """Resets the queues that the file has set back, and warns of them and of missing queues."""
        if lowered:
            before = {queue: change.state.queues[queue].position for queue in lowered}
            shown = first_few(f"{queue} from {before[queue]} to {found}" for queue, found in lowered.items())
            _log.warning(
                "group %s: its offsets were set back and its queries continue there: %s", self._group, shown
            )
            change.reset(lowered, why="the offset file was set back")
        if missing and self._is_kept:
            _log.warning(
                "group %s: the offset file no longer has offsets of %d queues; its running queries write "
                "them again: %s",
                self._group,
                len(missing),
                first_few(map(str, missing)),
            )

    def correct(self, change: Change, targets: Mapping[MessageQueue, int]) -> None:
        """Moves positions beyond the end of their queue back; `save` then lowers the offset file."""
        mirrored = {queue: change.state.queues[queue].mirrored for queue in targets}
        change.reset(targets, why="beyond the end of the queue")
        for queue, offset in mirrored.items():
            change.state.queues[queue].mirrored = offset
        self._to_lower |= set(targets)

    def save(self, change: Change, held: Collection[MessageQueue]) -> bool:
        """Writes the positions of the member's queues to the offset file; False if some must be tried again.

        The state then has the written offsets as mirrored offsets, and the caller writes the state. Otherwise
        a later reset could not be distinguished from our own offset.
        """
        if not self._is_kept:
            return True
        parts: dict[tuple[str, bool], dict[MessageQueue, int]] = {}
        for queue in held:
            entry = change.state.queues[queue]
            if entry.position is not None and entry.mirrored != entry.position:
                # One call per store: a store that cannot be written must not hide what was written to others.
                broker = queue.broker_name if self._offsets.kind == "store" else ""
                parts.setdefault((broker, queue in self._to_lower), {})[queue] = entry.position
        is_saved = True
        for (_, is_reset), offsets in parts.items():
            if not self._offsets.save(offsets, is_reset=is_reset):
                is_saved = False
                continue
            self._seen = self  # compare again: another program may replace the file that was just written
            self._to_lower -= offsets.keys()
            for queue, offset in offsets.items():
                _set_mirrored(change, change.state.queues[queue], offset)
        return is_saved


def _set_mirrored(change: Change, entry: QueueEntry, offset: int) -> None:
    if entry.mirrored != offset:
        entry.mirrored = offset
        change.is_changed = True


def _offset_of(known: Mapping[MessageQueue, int], queue: MessageQueue) -> int:
    """The offset in the file; `NOT_IN_FILE` without an entry, and for RocketMQ's -1, which means unknown."""
    return max(known.get(queue, NOT_IN_FILE), NOT_IN_FILE)
