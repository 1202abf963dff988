"""The states of a commit: what shows each of them on the disk, and what readers, writers and brokers then do.

A commit writes its journal, its id into `abort`, the messages, the queue entries and the ledger. Then it
removes `abort`, and last the journal (with ASYNC_FLUSH only the journal). In a cluster the journals are not
complete until each store has one. A broker writes an `abort` without an id when it starts, and removes the
file when it stops.

`STATES` has each combination of these files once. Readers, writers and `recover` look their part up here
(`journal.state_of`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reading(Enum):
    """What a reader returns while no process has the lock."""

    ALL = "all messages"
    TO_BASE = "the messages before the commit: log and queues end at the journal's base"
    RECOVERED = "what a broker's recovery after a crash would keep, found in memory"


class Writing(Enum):
    """What the next writer does before it appends."""

    APPEND = "nothing"
    FLUSH = "with SYNC_FLUSH it syncs what was written, and removes abort"
    REPAIR = "it does a broker's recovery after a crash"
    ASK = (
        "it asks the other stores of the cluster: it completes the commit, or drops it if no store has begun"
    )
    COMPLETE = "it appends those messages of the commit that the commitlog lacks"
    REPEAT = "it does all steps of the commit again; behind the messages of a broker only those that lack"
    CONCLUDE = "it removes the journal"
    CONCLUDE_AND_REPAIR = "it removes the journal, and does a broker's recovery after a crash"


class Starting(Enum):
    """How a broker starts."""

    STOPPED = "as after a stop (CommitLog.recoverNormally)"
    CRASHED = "as after a crash (CommitLog.recoverAbnormally)"


class Abort(Enum):
    """What the file `abort` shows."""

    NONE = "no file"
    BROKER = "of a broker, which runs or has crashed"
    OTHER = "of an earlier commit, or of a repair"
    THIS = "with the id of the journal"


@dataclass(frozen=True, slots=True)
class State:
    """One row: the evidence (`journal`, `abort`, `in_ledger`), and what follows from it.

    `journal` is None without a journal, else whether the journal is complete. `in_ledger` says whether the
    ledger's last entry is that of the journal; None: any.
    """

    name: str
    journal: bool | None
    abort: Abort
    in_ledger: bool | None
    reading: Reading
    writing: Writing
    starting: Starting


_Row = tuple[str, bool | None, Abort, bool | None, Reading, Writing, Starting]
_STOPPED, _CRASHED = Starting.STOPPED, Starting.CRASHED
_ROWS: tuple[_Row, ...] = (
    ("settled", None, Abort.NONE, None, Reading.ALL, Writing.APPEND, _STOPPED),
    ("not flushed", None, Abort.OTHER, None, Reading.ALL, Writing.FLUSH, _CRASHED),
    ("crashed", None, Abort.BROKER, None, Reading.RECOVERED, Writing.REPAIR, _CRASHED),
    ("announced", False, Abort.NONE, None, Reading.ALL, Writing.ASK, _STOPPED),
    ("announced, not flushed", False, Abort.OTHER, None, Reading.ALL, Writing.ASK, _CRASHED),
    ("announced, crashed", False, Abort.BROKER, None, Reading.RECOVERED, Writing.ASK, _CRASHED),
    ("decided", True, Abort.NONE, False, Reading.ALL, Writing.COMPLETE, _STOPPED),
    ("decided, not flushed", True, Abort.OTHER, False, Reading.ALL, Writing.COMPLETE, _CRASHED),
    ("begun", True, Abort.THIS, False, Reading.TO_BASE, Writing.REPEAT, _CRASHED),
    ("written", True, Abort.THIS, True, Reading.TO_BASE, Writing.REPEAT, _CRASHED),
    ("taken over", True, Abort.BROKER, False, Reading.RECOVERED, Writing.COMPLETE, _CRASHED),
    ("concluded", True, Abort.NONE, True, Reading.ALL, Writing.CONCLUDE, _STOPPED),
    ("concluded, not flushed", True, Abort.OTHER, True, Reading.ALL, Writing.CONCLUDE, _CRASHED),
    (
        "concluded, crashed",
        True,
        Abort.BROKER,
        True,
        Reading.RECOVERED,
        Writing.CONCLUDE_AND_REPAIR,
        _CRASHED,
    ),
)
STATES = tuple(State(*row) for row in _ROWS)


def find_state(complete: bool | None, abort: Abort, in_ledger: bool) -> State:
    """The row of the table. `complete`: of the journal; None without a journal.

    A store of a cluster that goes on with its part does so with the incomplete journal: the journal's id in
    `abort` shows that the commit has begun.
    """
    complete = True if abort is Abort.THIS else complete
    return next(
        row
        for row in STATES
        if (row.journal, row.abort) == (complete, abort) and row.in_ledger in (None, in_ledger)
    )
