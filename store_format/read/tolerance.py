"""What happens to messages that cannot be returned: damaged ones, and deleted ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    OffsetOutOfRangeError,
    StoreNotFoundError,
)
from store_format.message.locate import BadUnit

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tolerance:
    """How a read treats damaged and deleted messages, and how many there were.

    `mode` (FAILFAST, DROPMALFORMED, PERMISSIVE) is for damaged bytes, `fail_on_data_loss` for deleted ones.
    With `warned`, the errors in it are counted without a warning, and others are added to it.
    """

    mode: str = "FAILFAST"
    fail_on_data_loss: bool = True
    dropped: int = 0
    lost: int = 0
    warned: set[str] | None = None

    def lose(
        self,
        count: int,
        error: OffsetOutOfRangeError | StoreNotFoundError | FileReplacedError,
        advice: str = "",
    ) -> None:
        """Counts deleted messages with a warning, or raises the error, with `advice` at its end."""
        if self.fail_on_data_loss:
            raise type(error)(f"{error}. {advice}") if advice else error
        self.lost += count
        _log.warning("%d messages lost: %s", count, error)

    def damage(self, error: CorruptStoreError) -> None:
        """Bytes that are not a message: raises in FAILFAST, else counts them as one message."""
        self.drop([BadUnit(0, error)])
        if self.mode == "PERMISSIVE":
            _log.warning("skipped damaged bytes: %s", error)  # no row shows them

    def drop(self, bad: Sequence[BadUnit]) -> None:
        """Counts damaged messages with a warning, or raises the error of the first one."""
        if self.mode == "FAILFAST" and bad:
            raise bad[0].error
        self.dropped += len(bad)
        new = bad if self.warned is None else [unit for unit in bad if str(unit.error) not in self.warned]
        if self.warned is not None:
            self.warned.update(str(unit.error) for unit in new)
        if new and self.mode == "DROPMALFORMED":
            words = "message" if len(new) == 1 else "messages"
            _log.warning("%d malformed %s dropped, the first: %s", len(new), words, new[0].error)
