"""What a service of the broker is: it says what is due, and does it under the store's lock.

A service first makes a plan from a reader's view of the store. A turn applies the plan at once; a preview
only shows it. Every service reads its progress, appends with a `ServiceTurn`, and writes its state file after
the commit: a crash in between repeats nothing (`Ledger.resume`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.session import WriteSession
from store_format.errors import StoreError
from store_format.metadata.read import BrokerConf
from store_format.opened.store import Opened
from store_format.read.store import Store

# The most that a service writes in one turn. Then the other services come, and the lock is released.
TURN_MESSAGES_MAX = 10_000
TURN_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Now:
    """The clock in ms, and the settings of the store's broker."""

    ms: int
    conf: BrokerConf = field(default_factory=BrokerConf)


def now_of(path: str, now_ms: int | None, broker_conf: str | BrokerConf | None) -> Now:
    """The clock and the settings for a turn."""
    return Now(
        time.time_ns() // 1_000_000 if now_ms is None else now_ms, broker_conf_of(Opened(path), broker_conf)
    )


class PartsFailedError(StoreError):
    """Parts of a turn failed, such as a delay level or the log of a group; the other parts were done.

    `done` is the number of messages of the other parts, and `next_due` is when these want their next turn.
    `errors` has an error for each part that failed.
    """

    def __init__(self, done: int, next_due: int | None, errors: Sequence[StoreError]) -> None:
        super().__init__(done, next_due, errors)  # the arguments of __init__: pickle needs them
        self.done, self.next_due, self.errors = done, next_due, tuple(errors)

    def __str__(self) -> str:
        return "; ".join(map(str, self.errors))


@dataclass(slots=True)
class Tally:
    """The number of messages or files that a turn has done so far."""

    done: int = 0


@contextmanager
def tallied() -> Iterator[Tally]:
    """A tally for `apply` to count in.

    Raises PartsFailedError with the count if a StoreError comes after a part of the turn was done.
    """
    tally = Tally()
    try:
        yield tally
    except StoreError as error:
        if not tally.done:
            raise
        raise PartsFailedError(tally.done, None, [error]) from error


class ServicePlan(Protocol):
    """What a service does in one turn.

    A plan of several parts also has `errors`: why parts could not be planned. `apply` raises them.
    """

    @property
    def due(self) -> int:
        """The number of messages (clean: files) to write or delete in this turn."""
        ...

    @property
    def changes(self) -> bool:
        """Whether `apply` changes a file: messages are due, or progress is not written yet."""
        ...

    @property
    def next_due(self) -> int | None:
        """When the service wants its next turn, in ms; None: only when somebody else has written."""
        ...

    @property
    def late_ms(self) -> int | None:
        """How late the oldest due message is, in ms; None if nothing is due."""
        ...

    def table(self) -> pa.Table:
        """One row for each message or file that is due."""
        ...

    def apply(self, session: WriteSession) -> int:
        """Does what is due, writes the progress, and returns how many messages or files were done.

        Raises PartsFailedError after all parts have had their turn, if a part fails and others do not. Parts
        that depend on each other end at the first error, such as a state file after the messages.
        """
        ...


class Service(Protocol):
    """One of the broker's background services. `name` is the name for `only`."""

    name: str

    def plan(self, store: Store, ledger: Ledger, now: Now) -> ServicePlan:
        """What is due in the store, at most one turn of it. Changes nothing."""
        ...
