"""A group's offsets in two places, `group.json` and the offset file: which of them counts, and when.

Members record positions in `group.json`. The offset file (consumerOffset.json, or offsets.json with
offsetStore=local) is what brokers, mqadmin and Java consumers read and change. `group.json` remembers for
each queue the *mirrored* offset: the one that members last wrote to the offset file, or found there. From
that follows who changed the file:

1. The file has the mirrored offset or the recorded position: nobody else has changed it. The recorded
   position counts. It may be newer, because a member can die after Spark's commit and before it writes the
   file.
2. The file has another offset, and no member has run since the queue's last owner: somebody else has moved
   the group. The file counts, forwards and backwards. A queue that the file no longer names begins where
   `consumeFromWhere` says: the group or the topic was deleted.
3. The file has another offset while members run. A lower one than the mirrored offset is a reset: the queries
   go on there, backwards too. A higher one than the position is ignored with a warning; it counts once no
   member runs. A missing one is written again, with a warning.
4. A checkpoint is compared after that, and whoever is further counts; but a checkpoint from before a reset of
   rule 3 says nothing.
5. A `group.json` of an older version has no mirrored offsets. Without a running member the file counts if it
   names the queue, else the recorded position; with one, whichever is further.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from rmq_spark.consume.group.change import Change
from rmq_spark.consume.group.state import NOT_IN_FILE, QueueEntry
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.offset_store import OffsetStore
from store_format.errors import CorruptStoreError

__all__ = ["Mirror"]

_log = logging.getLogger(__name__)

_SHOWN_MAX = 3


class Mirror:
    """One member's view of the offset file. All methods are called under the lock of the group's directory."""

    def __init__(self, group: str, offsets: OffsetStore) -> None:
        self._group = group
        self._offsets = offsets
        self._is_kept = offsets.kind != "none"
        self._seen: object = self  # identity of the file when it was last compared; no file has this one
        self._to_lower: set[MessageQueue] = set()  # the file may have a higher offset than the corrected one
        self._ignored: dict[MessageQueue, int] = {}  # higher offsets that a warning has named
        self._is_torn = False

    def is_moved(self) -> bool:
        """Whether the file was replaced since it was last compared."""
        return self._offsets.identity() != self._seen

    def follow(
        self, change: Change, held: Collection[MessageQueue], free: Collection[MessageQueue]
    ) -> set[MessageQueue]:
        """Compares the file with queues that the member holds, and free ones that it takes next; rules 1 to 3
        and 5.

        Positions in the state are right afterwards; None is a queue of which nobody knows one. Returns the
        free queues that the file has moved back by rule 2.
        """
        seen = self._offsets.identity()  # before reading: a file that is replaced meanwhile is compared again
        if seen == self._seen and not free:
            return set()
        try:
            known = self._offsets.read()
        except CorruptStoreError as error:
            if free:
                raise
            if not self._is_torn:
                _log.warning(
                    "group %s: a reset of its offsets would not be noticed for now: %s", self._group, error
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
        """Rule 2, and of rule 5 the half without a running member."""
        back: dict[MessageQueue, tuple[int, int]] = {}
        gone: dict[MessageQueue, int] = {}
        for queue in free:
            entry, found = change.state.entry(queue), _offset_of(known, queue)
            is_unattended, entry.is_unattended = entry.is_unattended, False
            position, mirrored = entry.position, entry.mirrored
            if not is_unattended or position is None or found in (position, mirrored):
                continue
            if found >= 0:
                entry.position = entry.mirrored = found
                if found < position:
                    back[queue] = position, found
            elif mirrored is not None:
                entry.position, entry.mirrored = None, NOT_IN_FILE
                gone[queue] = position
        if back:
            shown = _shown(
                f"{queue} at {found} instead of {position}" for queue, (position, found) in back.items()
            )
            _log.warning(
                "group %s: its offsets were moved while no query of it ran; it goes on where they say: %s",
                self._group,
                shown,
            )
        if gone:
            shown = _shown(f"{queue} was at {position}" for queue, position in gone.items())
            told = "group %s: the offset file no longer has offsets of %d queues, which begin where consumeFromWhere says: %s"
            _log.warning(told, self._group, len(gone), shown)
        return set(back)

    def _compare(
        self, change: Change, queues: Iterable[MessageQueue], known: Mapping[MessageQueue, int]
    ) -> None:
        """Rule 3, of rule 5 the half with a running member, and queues without a position."""
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
                told = (
                    "group %s: %s was set to offset %d by somebody else, and its query is at %d: ignored while queries of the group run. "
                    "To skip messages, use rmqlog offsets or stop all queries of the group first"
                )
                _log.warning(told, self._group, queue, found, entry.position)
        if lowered:
            before = {queue: change.state.queues[queue].position for queue in lowered}
            shown = _shown(f"{queue} from {before[queue]} to {found}" for queue, found in lowered.items())
            _log.warning(
                "group %s: its offsets were set back, its queries go on there: %s", self._group, shown
            )
            change.reset(lowered, why="the offset file was set back")
        if missing and self._is_kept:
            told = "group %s: the offset file no longer has offsets of %d queues, its running queries write them again: %s"
            _log.warning(told, self._group, len(missing), _shown(map(str, missing)))

    def correct(self, change: Change, targets: Mapping[MessageQueue, int]) -> None:
        """Moves positions that are beyond the end of their queue back to it; `save` then lowers the file."""
        mirrored = {queue: change.state.queues[queue].mirrored for queue in targets}
        change.reset(targets, why="beyond the end of the queue")
        for queue, offset in mirrored.items():
            change.state.queues[queue].mirrored = offset
        self._to_lower |= set(targets)

    def save(self, change: Change, held: Collection[MessageQueue]) -> bool:
        """Writes the positions of the member's queues to the file; False when that has to be tried again.

        What was written is in the state then, which the caller writes: without it a later reset could not be
        told from our own offset.
        """
        if not self._is_kept:
            return True
        parts: dict[tuple[str, bool], dict[MessageQueue, int]] = {}
        for queue in held:
            entry = change.state.queues[queue]
            if entry.position is not None and entry.mirrored != entry.position:
                # Each store has a file of its own: one that cannot be written must not hide what was written
                # to the others.
                broker = queue.broker_name if self._offsets.kind == "store" else ""
                parts.setdefault((broker, queue in self._to_lower), {})[queue] = entry.position
        is_saved = True
        for (_, is_reset), offsets in parts.items():
            if not self._offsets.save(offsets, is_reset=is_reset):
                is_saved = False
                continue
            self._seen = self  # compared once more: somebody may replace what was just written
            self._to_lower -= offsets.keys()
            for queue, offset in offsets.items():
                _set_mirrored(change, change.state.queues[queue], offset)
        return is_saved


def _set_mirrored(change: Change, entry: QueueEntry, offset: int) -> None:
    if entry.mirrored != offset:
        entry.mirrored = offset
        change.is_changed = True


def _offset_of(known: Mapping[MessageQueue, int], queue: MessageQueue) -> int:
    """RocketMQ's -1 is "unknown", as is no entry."""
    return max(known.get(queue, NOT_IN_FILE), NOT_IN_FILE)


def _shown(each: Iterable[str]) -> str:
    texts = list(each)
    return ", ".join(texts[:_SHOWN_MAX]) + (
        f" and {len(texts) - _SHOWN_MAX} more queues" if len(texts) > _SHOWN_MAX else ""
    )
