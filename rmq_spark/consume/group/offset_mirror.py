"""The offset file of a group, beside what its members have recorded themselves.

A group's offsets are in two places. Its members have records of their own: queries have positions in
`group.json`, consumers that pop have the in-flight log. Brokers, mqadmin and Java consumers read and change
the offset file (consumerOffset.json, or offsets.json with offsetStore=local). For each queue the record has
the *mirrored* offset, which members last wrote to the offset file or found there. It shows who changed the
file.

Consumers that pop write to the file the lowest offset that is not acknowledged. The in-flight log notes it
before the file is written, and keeps the one before, because a process may be killed in between:

1. The file has one of them: nobody else has changed it, and the in-flight log counts.
2. The file has another offset: somebody has moved the group (rmqlog offsets, mqadmin, a broker). The file
   counts, with a warning. What was in flight of that queue is forgotten.
3. The file has no offset: it is written again, with a warning.

If the topic was deleted and created again, what the log has is forgotten before
(`store_format.pop.log`).

Queries differ, because they own queues and continue from checkpoints of Spark:

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
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.change import Change
from rmq_spark.consume.group.directory import NOT_IN_FILE, QueueEntry
from rmq_spark.consume.offset_store import OffsetStore
from store_format.display.text import first_names
from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import (
    offsets_identity,
    read_group_offsets,
    write_group_offsets_held,
)
from store_format.names import QueueKey
from store_format.pop.log import InFlightLog, PopName
from store_format.pop.state import PopQueue, PopState

_log = logging.getLogger(__name__)


class _OffsetMirror:
    """What one member last saw of the offset file; `identity` is that of the file now."""

    def __init__(self, identity: Callable[[], object]) -> None:
        self._identity = identity
        self._seen: object = self  # the identity at the last comparison; `self` equals no file's

    def is_replaced(self) -> bool:
        """Whether the offset file was replaced since the last comparison."""
        return self._seen != self._identity()


# ---- queries -----------------------------------------------------------------------------------------------


class GroupOffsetMirror(_OffsetMirror):
    """The positions in `group.json` and the offset file. Callers hold the lock of the group's directory."""

    def __init__(self, group: str, offsets: OffsetStore) -> None:
        super().__init__(offsets.identity)
        self._group = group
        self._offsets = offsets
        self._is_kept = offsets.kind != "none"
        self._to_lower: set[MessageQueue] = set()  # corrected queues: their offsets in the file may be higher
        self._ignored: dict[MessageQueue, int] = {}  # higher offsets that a warning has already named
        self._is_torn = False

    def follow(
        self, change: Change, held: Collection[MessageQueue], free: Collection[MessageQueue]
    ) -> set[MessageQueue]:
        """Applies rules 1 to 3 to the queues that the member holds and the free queues that it takes.

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
        """Rule 2. Returns the queues that were moved back."""
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
            shown = first_names(
                f"{queue} at {found} instead of {position}" for queue, (position, found) in back.items()
            )
            _log.warning(
                "group %s: its offsets were moved while none of its queries ran; it continues at the moved "
                "offsets: %s",
                self._group,
                shown,
            )
        if gone:
            shown = first_names(f"{queue} was at {position}" for queue, position in gone.items())
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
        """Rule 3, and queues without a position or before their first look."""
        lowered: dict[MessageQueue, int] = {}
        missing: list[MessageQueue] = []
        for queue in queues:
            entry, found = change.state.entry(queue), _offset_of(known, queue)
            if entry.position is None or entry.mirrored is None:
                entry.mirrored = found
                entry.position = found if found >= 0 else entry.position
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
            shown = first_names(
                f"{queue} from {before[queue]} to {found}" for queue, found in lowered.items()
            )
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
                first_names(map(str, missing)),
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


# ---- consumers that pop ------------------------------------------------------------------------------------


class PopOffsetMirror(_OffsetMirror):
    """The lowest offsets of an in-flight log that are not acknowledged, and consumerOffset.json."""

    def __init__(self, name: PopName, log: InFlightLog, clock_ms: Callable[[], int], *, sync: bool) -> None:
        super().__init__(partial(offsets_identity, name.opened))
        self._name = name
        self._in_flight = log
        self._clock_ms = clock_ms
        self._files = FileWrites(sync=sync)

    def read(self) -> dict[QueueKey, int]:
        return read_group_offsets(self._name.opened, self._name.group)

    def is_changed(self) -> bool:
        """Whether the file was replaced by another program, or no longer has the right offsets."""
        return self.is_replaced() or self._in_flight.run(
            lambda state: any(
                state.mirrored.get(queue, (-1, -1))[1] != each.lowest for queue, each in state.queues.items()
            )
        )

    def is_moved(self, known: Mapping[QueueKey, int]) -> bool:
        """Whether the file has another offset than the log noted, or none, for any queue (rules 2 and 3)."""
        offsets = self._in_flight.run(lambda state: dict(state.mirrored))
        return any(
            known.get((self._name.topic_of(flag), queue_id), -1) not in noted
            for (flag, queue_id), noted in offsets.items()
        )

    def compare(self, known: Mapping[QueueKey, int], *, is_next: bool = False) -> None:
        """Applies the three rules under the store's lock. `is_next`: the file gets the next offsets."""
        moved, missing, offsets = self._in_flight.run(
            lambda state: compared(state, self._name, known, is_next=is_next)
        )
        if moved:
            _log.warning(
                "%s: group %s was moved by another program and continues at the moved offsets: %s",
                self._name.opened.path, self._name.group, first_names(moved),
            )  # fmt: skip
        if missing:
            _log.warning(
                "%s: consumerOffset.json no longer has offsets of group %s; they are written again: %s",
                self._name.opened.path, self._name.group, first_names(missing),
            )  # fmt: skip
        self.write(offsets)

    def write(self, offsets: Mapping[PopQueue, int]) -> None:
        """Writes offsets that the log has noted, and notes that they are written."""
        if offsets:
            keys = {(self._name.topic_of(flag), queue_id): at for (flag, queue_id), at in offsets.items()}
            write_group_offsets_held(
                self._name.opened, self._name.group, keys,
                timestamp=self._clock_ms(), is_reset=True, files=self._files,
            )  # fmt: skip
            # From here on the offset before would be a reset.
            self._in_flight.run(lambda state: state.note_mirrored(offsets))
        self._seen = self._identity()


def compared(
    state: PopState, name: PopName, known: Mapping[QueueKey, int], *, is_next: bool = False
) -> tuple[list[str], list[str], dict[PopQueue, int]]:
    """(queues that were moved, queues that the file lacks, the offsets for the file), see the module."""
    moved, missing, offsets, found = list[str](), list[str](), dict[PopQueue, int](), dict[PopQueue, int]()
    for queue, each in list(state.queues.items()):
        key = name.topic_of(queue[0]), queue[1]
        in_file, mirrored = known.get(key, -1), state.mirrored.get(queue)
        if in_file < 0:
            if mirrored is not None:
                missing.append(f"{key[0]}-{key[1]} at {each.lowest}")
        else:
            found[queue] = in_file
            if mirrored is not None and in_file not in mirrored:
                moved.append(f"{key[0]}-{key[1]} from {each.lowest} to {in_file}")
                state.set_offset(*queue, in_file)
        there = state.queues[queue]
        offsets[queue] = there.next_offset if is_next else there.lowest
    changed = {queue: offset for queue, offset in offsets.items() if found.get(queue) != offset}
    noted = {
        queue: offset
        for queue, offset in offsets.items()
        if queue in changed or state.mirrored.get(queue, (-1, -1))[1] != offset
    }
    if noted:
        # first what the file has now: the log keeps two offsets, and the file must have one of them
        state.note_mirrored({queue: found[queue] for queue in noted if queue in found})
        state.note_mirrored(noted)
    return moved, missing, changed


def opened(state: PopState, name: PopName, known: Mapping[QueueKey, int]) -> None:
    """The first consumer starts at the offsets of the file."""
    if not state.is_closed:
        return
    state.open()
    flags = name.flags()
    for (topic, queue_id), offset in known.items():
        if topic in flags and offset >= 0:
            state.set_offset(flags[topic], queue_id, offset)
            state.note_mirrored({(flags[topic], queue_id): offset})
