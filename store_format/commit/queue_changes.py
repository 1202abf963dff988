"""What is changed in each consume queue, and how the changes are written, by a writer and by `recover`.

The differences come from the comparison with the log (`survey/queues.py`), and only what differs is written.
A batch queue is completed if its files have a beginning of the right units, else it is replaced. Entries that
are written have the tags code itself, which a broker accepts in any queue (spec 3.4).

Whole queues are written into `.rmqlog/rebuild` and moved to their places when complete, so that nobody sees
an incomplete queue: no reader, and no broker that starts after this process died. The store is not marked as
crashed meanwhile: a broker would then scan old commitlog files too, and cut the log at the first damaged
message. The directory alone shows the next writer that some queues may still end too early.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import consecutive
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import FOLDERS, LAYOUTS, QueueKind
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import (
    RULES,
    FiledQueue,
    list_queues,
    message_mask,
    valid_batch_units,
)
from store_format.consumequeue.updates import lost_units, pre_blank_bytes
from store_format.errors import StoreWriteError
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.layouts import CQ_UNIT
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.survey.entry_proofs import LogEntries
from store_format.survey.fates import StoredTopics
from store_format.survey.queues import ComparedQueue, StoredQueue

_CHUNK = 1 << 16  # units


@dataclass(frozen=True, slots=True)
class QueueChange:
    """What a queue lacks. `first` is the first queue offset (batch queue: unit) that changes.

    `action` is "create" for a queue without files, "complete" for entries at its end, "correct" for entries
    before its end, "replace" for files that do not fit together, and "cut" for entries behind its end, which
    are removed from unit `cut` on. `by_broker` of the `entries` would be added by a broker that starts.
    """

    queue: QueueKey
    is_batch: bool
    action: str
    first: int
    entries: int
    by_broker: int
    reason: str
    cut: int | None = None


# ---- the plan ----------------------------------------------------------------------------------------------


def change_of(
    queue: ComparedQueue, log: CommitLog, log_stop: int, compared: Mapping[QueueKey, ComparedQueue]
) -> QueueChange | None:
    """What has to be changed in the files of the queue, one of those that were `compared` with the log, which
    ends at `log_stop`. None without a difference. The entries that show that a message is damaged stay.

    Raises the StoreError of files that cannot be read.
    """
    stored = queue.stored
    if queue.error is not None:
        raise queue.error
    if stored.misfit:
        files_at(stored.directory).store_files(stored.directory)  # raises if the files cannot be listed
        return _whole(queue, "replace", stored.misfit)
    if not stored.files:
        return _whole(queue, "create", "no file")
    valid = 0
    if stored.is_batch:
        _, valid, end = _batch_units(stored, log.min_offset, log_stop)
        is_beginning = all(each.kind == "missing" and each.first >= end for each in queue.differences)
        beyond = valid - queue.equal
        is_other = beyond and beyond != _batch_records(queue, log, log_stop)
        if is_other or not is_beginning:
            return _whole(queue, "replace", "entries differ from the messages in the log")
    cut, extra = (None, 0) if stored.is_batch else _behind_end(queue, log, compared)
    more = f"{extra} entries behind its end lead to other messages, and are removed" if extra else ""
    if not queue.differences or _are_holes(queue, log):
        return QueueChange(queue.key, False, "cut", cut, extra, 0, more, cut) if cut is not None else None
    last = queue.differences[-1]
    is_tail = stored.is_batch or (
        last.stop == queue.places.stop
        and all(one.stop == other.first for one, other in pairwise(queue.differences))
    )
    reason = "entries are missing at its end" if is_tail else "entries differ from the messages in the log"
    blanks = sum(each.stop - each.first for each in queue.differences if each.kind == "unfilled")
    if blanks:
        reason += f"; {blanks} units before or between the messages are not written"
    reason += f"; {more}" if more else ""
    return QueueChange(
        queue.key,
        stored.is_batch,
        "complete" if is_tail else "correct",
        valid if stored.is_batch else queue.differences[0].first,
        sum(each.entries for each in queue.differences),
        sum(each.by_broker for each in queue.differences),
        reason,
        cut,
    )


def _are_holes(queue: ComparedQueue, log: CommitLog) -> bool:
    """Whether all that differs are places that a broker counted, and that never had a message."""
    offsets = [np.arange(each.first, each.stop) for each in queue.differences]
    if queue.stored.is_batch or any(each.kind != "unfilled" for each in queue.differences):
        return False
    bounds = queue.stored.filed.bounds(log.min_offset)
    if bounds is None:
        return False
    there = QueueRange(*queue.key, bounds.min_offset, bounds.max_offset, bounds)
    return bool(LogEntries(log).are_holes(there, np.concatenate(offsets)).all())


def _behind_end(
    queue: ComparedQueue, log: CommitLog, compared: Mapping[QueueKey, ComparedQueue]
) -> tuple[int | None, int]:
    """From which unit on the entries behind the queue's last message lead to other messages, and
    how many.

    Entries of expired messages there are of others, too: readers do not find a message before them. Entries
    that lead to damage stay: they show which messages are lost. So do those that lead to a message whose
    queue has no files, which may be damaged.
    """
    stored, first, count = queue.stored, None, 0
    for low, high in stored.chunks(max(queue.places.stop, stored.first), stored.stop):
        units = stored.read(low, high)
        rows = np.flatnonzero(message_mask(units)).tolist()
        if not rows:  # as `verify` does: the rest of a file is zeros
            break
        for row in rows:
            physical = int(units["physical_offset"][row])
            places = LogEntries(log).places_at(physical)
            is_filed = places and all(_is_filed(compared.get(key)) for key, _ in places)
            is_filed = is_filed and not queue.shows_damage(low + row, physical)
            if physical < log.min_offset or (is_filed and (queue.key, low + row) not in places):
                first, count = low + row if first is None else first, count + 1
            else:
                first, count = None, 0
    return first, count


def _is_filed(queue: ComparedQueue | None) -> bool:
    return queue is not None and queue.is_comparable


def _whole(queue: ComparedQueue, action: str, reason: str) -> QueueChange:
    places = queue.places
    return QueueChange(
        queue.key, places.is_batch, action, places.first, places.entries, queue.by_broker, reason
    )


def _batch_units(stored: StoredQueue, log_start: int, log_stop: int) -> tuple[int, int, int]:
    """(units of expired messages, valid units behind them, the queue offset behind the last valid unit)."""
    expired, valid, end = 0, 0, 0
    for low, high in stored.chunks(stored.first, stored.stop):
        units = stored.read(low, high)
        good = valid_batch_units(units) & (units["physical_offset"] < log_stop)
        mine = units if good.all() else units[: int(good.argmin())]
        old = 0 if valid else int(np.count_nonzero(mine["physical_offset"] < log_start))
        expired, valid = expired + old, valid + len(mine) - old
        if len(mine):
            end = int(mine["base_offset"][-1]) + int(mine["batch_size"][-1])
        if len(mine) < len(units):
            break
    return expired, valid, end


def _batch_records(queue: ComparedQueue, log: CommitLog, log_stop: int) -> int:
    """How many entries lead to their `own` damaged messages, or to a `shown_record`, which is damaged, and
    which a broker hands out.
    """
    count, stored = 0, queue.stored
    for low, high in stored.chunks(stored.first, stored.stop):
        units = stored.read(low, high)
        units = units[valid_batch_units(units) & (units["physical_offset"] < log_stop)]
        for base, *place in units[["base_offset", "physical_offset", "size"]].tolist():
            if queue.shows_damage(base, place[0]):
                count += 1
            elif LogEntries(log).message_at(place[0]) is None:
                count += (
                    LogEntries(log).shown_record(queue.key, base, (place[0], place[1]), claims=True)
                    is not None
                )
    return count


# ---- writing ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class QueuesAside:
    """Units of queues that change, in files below the directory `opened`, while the log is read.

    `put` takes the places of a comparison with the log. The files of a queue are complete if the store has
    none that can be used, and in a batch queue. In another queue they begin with the first place that
    differs, and places without a unit have zeros.
    """

    opened: Opened
    files: FileWrites
    queues: dict[QueueKey, StoredQueue] = field(default_factory=dict)

    def put(self, queue: ComparedQueue, placed: tuple[int, NDArray[np.void], bool] | None) -> None:
        stored, aside = queue.stored, self.queues.get(queue.key)
        if placed is None:
            if aside is not None:
                self.files.remove_tree(self.queues.pop(queue.key).directory)
            return
        if aside is None:
            if queue.is_comparable and not stored.is_batch and not queue.differences:
                return
            directory = FiledQueue.of(self.opened, *queue.key, stored.kind).directory
            aside = self.queues[queue.key] = replace(stored, directory=directory, files={}, misfit="")
        _write(self.opened, aside, *placed[:2], self.files)

    def correct(
        self, opened: Opened, queue: ComparedQueue, log_range: tuple[int, int], files: FileWrites
    ) -> None:
        """Writes the units that differ into the queue's files, in ascending order.

        Lists and compares the files again: entries that point behind the log's end have been removed, and
        right entries behind them.
        """
        aside, stop = self.queues[queue.key], queue.places.stop
        stored = StoredQueue.list_in(opened, queue.key, aside.file_size, is_batch=aside.is_batch)
        if stored.is_batch:
            expired, valid, _ = _batch_units(stored, *log_range)
            beyond = valid - queue.equal  # entries of damaged messages
            shift = stored.first + expired + beyond
            _copy(opened, aside, stored, queue.equal, stop, files, shift=shift)
            return

        def differs(wanted: NDArray[np.void], start: int) -> NDArray[np.bool_]:
            return ~queue.right(wanted, stored.read(start, start + len(wanted)), start)

        _copy(opened, aside, stored, queue.differences[0].first, stop, files, chosen=differs)

    def apply(
        self,
        opened: Opened,
        changes: Sequence[QueueChange],
        compared: Mapping[QueueKey, ComparedQueue],
        log_range: tuple[int, int],
        files: FileWrites,
    ) -> None:
        """Carries out the changes. The files of `self` are not synced yet; `files` syncs all of them."""
        new = {change.queue: compared[change.queue] for change in changes if change.action == "create"}
        for change in changes:
            if change.action in ("complete", "correct"):
                self.correct(opened, compared[change.queue], log_range, files)
            elif change.action == "replace":
                self._replace(opened, change.queue, files)
            if change.cut is not None:
                truncate(FiledQueue.of(opened, *change.queue).directory, change.cut * CQ_UNIT.itemsize, files)
        if new:
            self._create(opened, new, files)

    def _replace(self, opened: Opened, key: QueueKey, files: FileWrites) -> None:
        """Puts the built directory in the place of the old one, which is removed with `self.root`."""
        built = self.queues[key]
        target = FiledQueue.of(opened, *key, built.kind).directory
        _sync(built.directory, files)
        files.make_directories(self.opened.path, "old")
        old = f"{self.opened.path}/old/{len(self.opened.files.names(f'{self.opened.path}/old'))}"
        if not files.move(target, old):
            raise StoreWriteError(f"{target}: cannot move the directory to {old}: another file system")
        files.move(built.directory, target)
        files.sync_directory(target.rpartition("/")[0])

    def _create(self, opened: Opened, new: Mapping[QueueKey, ComparedQueue], files: FileWrites) -> None:
        """Moves new queues to their places, all at once if the store has no other simple queue: a broker that
        finds no queue rebuilds all itself. A queue that cannot be moved is copied.
        """
        is_all_new = not StoredTopics(opened).has_queue_files
        for key, built in self.queues.items():
            if key in new:
                _sync(built.directory, files)
            else:
                files.remove_tree(built.directory)
                files.remove_directory(built.directory.rpartition("/")[0])
        simple = sorted(key for key, queue in new.items() if not queue.stored.is_batch)
        if simple and is_all_new and self._move_all(opened, files):
            simple = []
        # Readers see by the names of the moved directories that they have to look again.
        moves = [
            (key, self.queues[key].directory)
            for key in sorted(new.keys())
            if key in simple or new[key].stored.is_batch
        ]
        moves = [
            (key, self._numbered(number, directory, files)) for number, (key, directory) in enumerate(moves)
        ]
        for key, directory in moves:
            target = FiledQueue.of(opened, *key, new[key].stored.kind).directory
            files.make_directories(opened.path, FOLDERS[new[key].stored.kind], key[0])
            clear_directory(target, files)
            if not files.move(directory, target):
                self._write_moved(opened, new[key], directory, files)
            files.sync_directory(target.rpartition("/")[0])

    def create_empty(self, opened: Opened, queue: QueueKey, stop: int, size: int, files: FileWrites) -> None:
        """Makes the file of a queue that ends at queue offset `stop` and whose messages are all expired.

        One that is there was made by a recovery that was broken off.
        """
        built, target = f"{self.opened.path}/empty", FiledQueue.of(opened, *queue).directory
        clear_directory(target, files)
        if files_at(target).store_files(target):
            return
        within = (stop * CQ_UNIT.itemsize - 1) % size + 1  # no blank file, which a broker counts as an entry
        files.make_directories(self.opened.path, "empty")
        with files.create(f"{built}/{StoreFile.name_at(stop * CQ_UNIT.itemsize - within)}", size) as file:
            file.write(0, pre_blank_bytes(within // CQ_UNIT.itemsize))
        _sync(built, files)
        files.make_directories(opened.path, FOLDERS["simple"], queue[0])
        if not files.move(built, target):
            raise StoreWriteError(f"{target}: cannot move the built queue there: another file system")
        files.sync_directory(target.rpartition("/")[0])

    def _move_all(self, opened: Opened, files: FileWrites) -> bool:
        for _, _, directory, kind in list_queues(opened, lambda _: True):
            if kind == "simple":
                clear_directory(directory, files)
        for _, topic_path in opened.files.directories(f"{opened.path}/consumequeue"):
            files.remove_directory(topic_path)
        is_moved = files.move(f"{self.opened.path}/consumequeue", f"{opened.path}/consumequeue")
        files.sync_directory(opened.path)
        return is_moved

    def _numbered(self, number: int, directory: str, files: FileWrites) -> str:
        files.move(directory, f"{self.opened.path}/{number}")
        return f"{self.opened.path}/{number}"

    def _write_moved(self, opened: Opened, queue: ComparedQueue, directory: str, files: FileWrites) -> None:
        """Writes all units of a queue without files; its files aside have been moved to `directory`."""
        aside = self.queues[queue.key]
        moved = {start: f"{directory}/{StoreFile.name_at(start)}" for start in aside.files}
        source = replace(aside, directory=directory, files=moved)
        _copy(opened, source, queue.stored, source.first, queue.places.stop, files)


def _sync(directory: str, files: FileWrites) -> None:
    for file in files_at(directory).store_files(directory):
        with files.open(file.path) as opened:
            files.sync(opened)
    files.sync_directory(directory)


def clear_directory(directory: str, files: FileWrites) -> None:
    """Removes a directory whose files are all empty."""
    found = files_at(directory).store_files(directory)
    if not any(file.size for file in found):
        for file in found:
            files.remove(file.path)
        files.remove_directory(directory)


def _copy(
    opened: Opened,
    source: StoredQueue,
    target: StoredQueue,
    start: int,
    stop: int,
    files: FileWrites,
    *,
    shift: int = 0,
    chosen: Callable[[NDArray[np.void], int], NDArray[np.bool_]] = lambda units, _: units["size"] != 0,
) -> None:
    """Copies the chosen units of [start, stop) that are not zeros, to places that are `shift` farther on."""
    for low, high in source.chunks(start, stop):
        units = source.read(low, high)
        rows = np.flatnonzero((units["size"] != 0) & chosen(units, low))
        for first, end in consecutive(rows):
            _write(opened, target, low + first + shift, units[first:end], files)


def _write(
    opened: Opened, queue: StoredQueue, start: int, units: NDArray[np.void], files: FileWrites
) -> None:
    """Writes units into the queue's files below `opened`, from unit `start` on."""
    size = queue.layout.itemsize
    files.make_directories(opened.path, FOLDERS[queue.kind], queue.topic, str(queue.queue_id))
    for low, high in queue.chunks(start, start + len(units)):
        within = low * size % queue.file_size
        path = f"{queue.directory}/{StoreFile.name_at(low * size - within)}"
        file, made = files.open_full(path, queue.file_size)
        with file:
            file.write(within, np.ascontiguousarray(units[low - start : high - start]))
            files.sync(file)
        if made:
            files.sync_directory(queue.directory)
        queue.files[low * size - within] = path


def fill_gap(
    opened: Opened, queue: QueueKey, start: int, stop: int, first: NDArray[np.void], files: FileWrites
) -> None:
    """Writes the units of the queue offsets [start, stop), which no message has, before the unit `first`."""
    size = next(file.size for file in opened.files.store_files(FiledQueue.of(opened, *queue).directory))
    stored = StoredQueue.list_in(opened, queue, size, is_batch=False)
    for low, high in stored.chunks(start, stop):
        _write(opened, stored, low, lost_units(queue[0], high - low, first), files)


# ---- the end of the log ------------------------------------------------------------------------------------


def entries_stop(directory: str, kind: QueueKind, log_stop: int) -> int:
    """The byte of the queue behind its last unit that points before `log_stop`, the log's end.

    Units of zeros before such a unit do not end the queue: they are damage.
    """
    layout, is_valid = LAYOUTS[kind], RULES[kind].is_valid
    size, listed = layout.itemsize, files_at(directory).store_files(directory)
    for file in reversed(listed):
        with files_at(file.path).view(file.path) as view:
            first = view.data_from(0) // size * size
            for low in reversed(range(first, file.size - size + 1, _CHUNK * size)):
                data = view.read(low, _CHUNK * size)
                units = np.frombuffer(data[: len(data) // size * size], layout)
                good = np.flatnonzero(is_valid(units) & (units["physical_offset"] < log_stop))
                if len(good):
                    return file.start + low + (int(good[-1]) + 1) * size
    return listed[0].start if listed else 0


def cut_queue(directory: str, kind: QueueKind, log_stop: int, files: FileWrites) -> None:
    """Zeroes the units behind `entries_stop`, and removes later files."""
    truncate(directory, entries_stop(directory, kind, log_stop), files)


def truncate(directory: str, stop: int, files: FileWrites) -> None:
    """Zeroes the files of a queue from its byte `stop` on, and removes later files.

    A queue that ends at byte 0 has no files then, as after ConsumeQueue.truncateDirtyLogicFiles: a broker
    would take the first zeros of a blank file for an entry. The first file of another queue stays, since its
    name says at which queue offset the queue goes on.
    """
    listed = files_at(directory).store_files(directory)
    for file in reversed(listed):
        if file.start >= stop and (file is not listed[0] or not file.start):
            files.remove(file.path)
            files.sync_directory(directory)
        elif file.stop > stop:
            with files.open(file.path) as writable:
                writable.zero(max(stop - file.start, 0), file.size)
                files.sync(writable)
