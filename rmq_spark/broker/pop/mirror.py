"""consumerOffset.json while a group pops: the lowest offset that is not acknowledged of each queue.

Who has changed an offset in the file? The in-flight log notes the offset that the file gets (the mirrored
one) before the file is written, and again afterwards. In between it also has the one before, because a
process may be killed before the file is written.

1. The file has one of them: nobody else has changed it, and the in-flight log counts.
2. The file has another offset: somebody has moved the group (rmqlog offsets, mqadmin, a broker). The file
   counts, with a warning. What was in flight of that queue is forgotten.
3. The file has no offset: it is written again, with a warning.

If the topic was deleted and created again, what the log has is forgotten before
(`rmq_spark.broker.pop.new_topic`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from rmq_spark.broker.pop.pop_name import PopName
from rmq_spark.consume.message_queue import first_few
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import (
    offsets_identity,
    read_group_offsets,
    write_group_offsets_held,
)
from store_format.names import QueueKey
from store_format.pop.log import InFlightLog
from store_format.pop.state import PopQueue, PopState

_log = logging.getLogger(__name__)


class PopOffsetMirror:
    """Keeps the offsets of an in-flight log and those of the file together."""

    def __init__(self, name: PopName, log: InFlightLog, clock_ms: Callable[[], int], *, sync: bool) -> None:
        self._name = name
        self._in_flight = log
        self._clock_ms = clock_ms
        self._files = FileWrites(sync=sync)
        self._seen: object = None  # the identity of the file at the last comparison

    def read(self) -> dict[QueueKey, int]:
        return read_group_offsets(self._name.root, self._name.group)

    def is_changed(self) -> bool:
        """Whether the file was replaced by another program, or no longer has the right offsets."""
        return self._seen != offsets_identity(self._name.root) or self._in_flight.run(
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
                self._name.root, self._name.group, first_few(moved),
            )  # fmt: skip
        if missing:
            _log.warning(
                "%s: consumerOffset.json no longer has offsets of group %s; they are written again: %s",
                self._name.root, self._name.group, first_few(missing),
            )  # fmt: skip
        self.write(offsets)

    def write(self, offsets: Mapping[PopQueue, int]) -> None:
        """Writes offsets that the log has noted, and notes that they are written."""
        if offsets:
            keys = {(self._name.topic_of(flag), queue_id): at for (flag, queue_id), at in offsets.items()}
            write_group_offsets_held(
                self._name.root, self._name.group, keys,
                timestamp=self._clock_ms(), is_reset=True, files=self._files,
            )  # fmt: skip
            # From here on the offset before would be a reset.
            self._in_flight.run(lambda state: state.note_mirrored(offsets))
        self._seen = offsets_identity(self._name.root)


class CheckedLock(StoreLock):
    """The store's lock, which refuses a broker that is starting."""

    def __enter__(self) -> StoreLock:
        super().__enter__()
        try:
            self.refuse_other_openers()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self


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
