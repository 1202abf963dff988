"""Where the commitlog ends of a store that a broker uses or has shut down: remains of a recovery may follow.

A recovery sets the log's end back and clears no byte, neither of the log nor of the consume queues. A broker
then writes over the first of the cut messages. So the last whole message of the file need not be the log's
last message. Each of these signs shows that it is, for a few reads:

- A broker writes `lock` after it has recovered the store, so a message stored since then was written by
  this run, and nothing follows it.
- The broker's last recovery ended with the message (`confirmPhyOffset`), or the message was indexed last.
- It is the last message of one of our own commits (the ledger).

Without a sign the last file is walked, once for each opened store. Older files hold no remains: a recovery
deletes the files after its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import abort_mark
from store_format.bookkeeping.ledger import read_ledger
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.errors import StoreError
from store_format.files.status import file_status
from store_format.files.view import FileCache, FileView
from store_format.index.file import IndexFile, list_index_files
from store_format.message.locate import locate
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.survey.broker_end import end_after_stop
from store_format.survey.readable_end import find_readable_end

_log = logging.getLogger(__name__)

_BLOCK_SIZE = 1 << 16
_LOOK_SIZE = 1 << 12  # so many zeros: nothing was written there
# bytes before the last written byte in which its message is searched
_BACK_SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 40)
_FOLLOWING_SIZE = 16 << 20
_WORD_SIZE = 8
_HEAD_SIZE = 96


@dataclass(frozen=True, slots=True)
class LastUnit:
    """The last whole message of the log's files: where it begins and ends, and its store time in ms."""

    offset: int
    stop: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class WrittenEnd:
    """The log ends at `offset`.

    `last_offset` is the physical offset of the last message before the end, -1 if it is not known.
    `is_certain`: entries that point there or after it are stale, and do not point to damaged messages.
    `remains` counts the whole messages after it that an earlier recovery has cut. `last_timestamp`: ms, of
    the last message before it.
    """

    offset: int
    is_certain: bool
    remains: int = 0
    last_timestamp: int = -1
    last_offset: int = -1


@dataclass(frozen=True, slots=True)
class _Known:
    """A walk's result, and what it depends on."""

    signs: tuple[object, ...]
    head: bytes
    end: WrittenEnd


_known: WeakKeyDictionary[FileCache, dict[tuple[str, bool], _Known]] = WeakKeyDictionary()
_warned: WeakKeyDictionary[FileCache, set[str]] = WeakKeyDictionary()


def written_end(root: str, log: CommitLog, *, is_live: bool, has_more: bool = False) -> WrittenEnd | None:
    """The log's end; None for a log without messages.

    `has_more`: consume queue entries point after the end that a few reads show.
    """
    last = last_unit(log)
    if last is None:
        return None
    run = _Run.read(root, is_live=is_live)
    if run.ended_with(log, last):
        is_certain = run.is_live or run.surely_ended_with(log, last)
        quick = WrittenEnd(last.stop, is_certain, 0, last.timestamp, last.offset)
        if not has_more or not _goes_on(log, last):
            return quick
    end = _walked(root, log, run, last)
    return replace(end, last_offset=last.offset) if end.offset == last.stop else end


def goes_on_to(root: str, log: CommitLog, physical_offset: int) -> bool:
    """Whether the log of a store that nobody uses continues up to the physical offset, by a walk of its last
    files: no recovery has cut what is there, and no later message was written in front of it.
    """
    last = last_unit(log)
    return (
        last is not None
        and _walked(root, log, _Run.read(root, is_live=False), last).offset >= physical_offset
    )


def knows_more(root: str, last: LastUnit) -> bool:
    """Whether the checkpoint, the index or our ledger knows of a message behind the last whole one."""
    run = _Run.read(root, is_live=False)
    checkpoint, ours = run.checkpoint, read_ledger(root).last
    known = max(run.indexed(), checkpoint.confirm_phy_offset, checkpoint.logics_physical_offset)
    is_later = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) > last.timestamp
    return known > last.offset or is_later or (ours is not None and ours.stop > last.stop)


def warn_of_hidden(root: str, cache: FileCache, end: WrittenEnd, hidden: int) -> None:
    """Warns once for each opened store of `hidden` entries that point after the end or to other messages."""
    said = _warned.setdefault(cache, set())
    if root in said or not (end.remains or hidden):
        return
    said.add(root)
    _log.warning(
        "%s: the commitlog ends at %d. A broker's recovery has cut what is behind it: %d whole messages, "
        "which are not read, and %d entries at the ends of consume queues, which are skipped",
        root, end.offset, end.remains, hidden,
    )  # fmt: skip


# ---- what a few reads tell ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """The broker's last run, as far as files show it. `start` in ms; None if no start is known."""

    root: str
    is_live: bool
    start: int | None
    checkpoint: Checkpoint

    @staticmethod
    def read(root: str, *, is_live: bool) -> _Run:
        is_live = is_live and abort_mark(root) == ""  # else our own commit holds the lock
        # Written into at each start, behind the recovery (DefaultMessageStore.start); writers of this project
        # leave it as it is.
        status = file_status(f"{root}/lock")
        checkpoint = Checkpoint()
        with suppress(StoreError, OSError):  # a read that needs the file raises the error
            checkpoint = read_checkpoint(f"{root}/checkpoint") or checkpoint
        return _Run(root, is_live, None if status is None else status[1], checkpoint)

    def ended_with(self, log: CommitLog, last: LastUnit) -> bool:
        """Whether the log certainly ends with its last whole message, or continues with damage only."""
        if self.start is not None and last.timestamp >= self.start:
            return True
        if self.is_live and self.checkpoint.confirm_phy_offset:
            return self.checkpoint.confirm_phy_offset == last.offset
        indexed = self.indexed()
        if indexed < 0 and self._is_newest_by_checkpoint(last):
            return True
        return (
            indexed == last.offset
            or self._is_ours(log, last)
            or (indexed >= 0 and _follows(log, indexed, last))
        )

    def surely_ended_with(self, log: CommitLog, last: LastUnit) -> bool:
        """Whether nothing after the last whole message was lost since the broker stopped."""
        indexed = self.indexed()
        if indexed > last.offset:
            return False
        if indexed == last.offset or self._is_ours(log, last):
            return True
        return self._is_newest_by_checkpoint(last) and not any(_head_at(log, last.stop)[:_WORD_SIZE])

    def _is_newest_by_checkpoint(self, last: LastUnit) -> bool:
        checkpoint = self.checkpoint
        if checkpoint.logics_physical_offset not in (0, last.offset):
            return False
        return last.timestamp in (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)

    def indexed(self) -> int:
        """The physical offset of the last message in the newest index file; -1 without one."""
        with suppress(StoreError, OSError):
            files = list_index_files(f"{self.root}/index")
            if files:
                with FileView(files[-1].path) as view:
                    header = IndexFile(view, None).header()
                return header.end_physical_offset if header.index_count > 1 else -1
        return -1

    def _is_ours(self, log: CommitLog, last: LastUnit) -> bool:
        with suppress(StoreError):
            ours = read_ledger(self.root).last
            return ours is not None and ours.last_offset == last.offset and ours.damage(log) is None
        return False


def last_unit(log: CommitLog) -> LastUnit | None:
    """The last whole message: a bisection of the zeros after it, then a search in the bytes before them."""
    stop = written_stop(log)
    for file in reversed(log.files):
        if file.start >= stop:
            continue
        for back in _BACK_SIZES:
            start = max(file.start, min(stop, file.stop) - back)
            runs = [
                run
                for run in log.walk(start, min(stop, file.stop), verify_crc=True, resync=True)
                if isinstance(run, UnitRun)
            ]
            if runs:
                offset = runs[-1].file.start + int(runs[-1].positions[-1])
                return LastUnit(offset, runs[-1].file.start + runs[-1].stop, log.store_timestamp_at(offset))
            if start == file.start:
                break
    return None


def written_stop(log: CommitLog) -> int:
    """About where the log's last bytes are: files have their full length, with zeros after the last bytes."""
    for file in reversed(log.files):
        view = log.view(file)
        if not any(view.read(0, _LOOK_SIZE)):
            continue
        low, high = 0, -(-file.size // _BLOCK_SIZE)
        while low + 1 < high:
            middle = (low + high) // 2
            if any(view.read(middle * _BLOCK_SIZE, _LOOK_SIZE)):
                low = middle
            else:
                high = middle
        return min(file.start + high * _BLOCK_SIZE, file.stop)
    return log.min_offset


def is_unwritten(log: CommitLog, offset: int) -> bool:
    """Whether nothing is written at the physical offset and behind it, as far as a few reads show.

    The first bytes of a unit or of a BLANK are never all zero. But a power loss may have left whole pages of
    zeros, with messages behind them.
    """
    file = log.file_at(offset)
    if file is None:
        return False
    try:
        head = log.read(offset, min(_BLOCK_SIZE, file.stop - offset))
    except StoreError:
        return False
    return not head.strip(b"\0") and written_stop(log) <= offset + _BLOCK_SIZE


def _head_at(log: CommitLog, offset: int) -> bytes:
    file = log.file_at(offset)
    return b"" if file is None else log.view(file).read(offset - file.start, _HEAD_SIZE)


def _follows(log: CommitLog, indexed: int, last: LastUnit) -> bool:
    """Whether only messages of the same run lie between the last indexed message and the last one.

    Messages that a recovery has cut would be older.
    """
    if not last.offset - _FOLLOWING_SIZE < indexed < last.offset or log.file_at(indexed) is None:
        return False
    newest, end = -1, indexed
    for run in log.walk(indexed, last.stop):
        assert isinstance(run, UnitRun)
        times = np.concatenate([[newest], _times(log, run)])
        if bool((np.diff(times) < 0).any()):
            return False
        newest, end = int(times[-1]), run.file.start + run.stop
    return end == last.stop


def _goes_on(log: CommitLog, last: LastUnit) -> bool:
    """Whether a whole message follows all the same, for example after zeros of an unwritten page."""
    if log.file_at(last.stop) is None:
        return False
    return any(isinstance(step, UnitRun) for step in log.walk(last.stop, verify_crc=True, resync=True))


# ---- what a walk through the last file tells ---------------------------------------------------------------


def _walked(root: str, log: CommitLog, run: _Run, last: LastUnit) -> WrittenEnd:
    known = _known.setdefault(log.cache, {})
    key = (root, run.is_live)
    signs = (last, run.start, run.checkpoint.confirm_phy_offset)
    before = known.get(key)
    if before is not None and before.signs == signs and before.head == _head_at(log, before.end.offset):
        return before.end
    if (
        before is not None
        and run.is_live
        and before.signs[1:] == signs[1:]
        and _is_new(run, before.end.last_timestamp)
    ):
        end = _grown(log, run, before.end)
    else:
        end = _whole_look(root, log, run, last)
    known[key] = _Known(signs, _head_at(log, end.offset), end)
    return end


def _is_new(run: _Run, timestamp: int) -> bool:
    """Whether a message was written in the broker's current run."""
    return run.is_live and run.start is not None and timestamp >= run.start


def _whole_look(root: str, log: CommitLog, run: _Run, last: LastUnit) -> WrittenEnd:
    end = end_after_stop(log)
    found = find_readable_end(root, log, end)
    result = WrittenEnd(
        found.offset,
        run.is_live or found.remains > 0 or run.surely_ended_with(log, last),
        found.remains,
        found.last_timestamp,
    )
    if not run.is_live or run.start is None or _is_new(run, found.last_timestamp):
        return result
    turn = _turn(log, run.start, end.scan_start, found.offset)
    if turn is not None:
        return WrittenEnd(turn[0], True, _messages_from(log, turn[0]), turn[1])
    # Nothing was written in this run, whose recovery ended before the damage: what is behind was cut then. A
    # confirmPhyOffset of 0 says nothing: it may be the first message, or of a broker that does not write it.
    if found.offset > end.offset and run.checkpoint.confirm_phy_offset == end.last_unit_offset > 0:
        return WrittenEnd(
            end.offset, True, found.messages + found.remains, log.store_timestamp_at(end.last_unit_offset)
        )
    return result


def _turn(log: CommitLog, start_ms: int, first: int, stop: int) -> tuple[int, int] | None:
    """(end of the log, its store time): where an older message directly follows one of this run; else None.

    A new message may end exactly where a cut one begins. Until the clock has passed the new message's time,
    the clock may have been set back instead.
    """
    newest = -1
    for run in _runs(log, first, stop):
        times = _times(log, run)
        times = np.concatenate([[newest], times])
        turns = np.flatnonzero((times[:-1] >= start_ms) & (times[1:] < start_ms))
        if len(turns):
            at, timestamp = int(turns[0]), int(times[int(turns[0])])
            return (
                (run.file.start + int(run.positions[at]), timestamp)
                if timestamp <= time.time_ns() // 1_000_000
                else None
            )
        newest = int(times[-1])
    return None


def _grown(log: CommitLog, run: _Run, before: WrittenEnd) -> WrittenEnd:
    """The end after the messages that were written since it was found."""
    end = before
    assert run.start is not None
    if log.file_at(before.offset) is None:
        return before
    for step in log.walk(before.offset, verify_crc=True):
        assert isinstance(step, UnitRun)
        times = _times(log, step)
        old = np.flatnonzero(times < run.start)
        count = int(old[0]) if len(old) else len(times)
        if count:
            offset = step.file.start + int(step.positions[count - 1] + step.sizes[count - 1])
            end = replace(end, offset=offset, last_timestamp=int(times[count - 1]))
        if count < len(times):
            break
    return end


def _runs(log: CommitLog, start: int, stop: int) -> Iterator[UnitRun]:
    if start < stop:
        yield from (step for step in log.walk(start, stop, resync=True) if isinstance(step, UnitRun))


def _times(log: CommitLog, run: UnitRun) -> NDArray[np.int64]:
    units, _ = locate(log.refs_of(run), verify_crc=False)
    return units.integers("store_timestamp").astype(np.int64)


def _messages_from(log: CommitLog, start: int) -> int:
    walk = log.walk(start, resync=True) if log.file_at(start) is not None else ()
    return sum(len(step.positions) for step in walk if isinstance(step, UnitRun))
