"""What becomes of messages that cannot be given: damaged ones, and those that are gone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, StoreNotFoundError
from store_format.message.unit_refs import BadUnit

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tolerance:
    """What happens to messages that cannot be given, and how many there were.

    `mode` (FAILFAST, DROPMALFORMED, PERMISSIVE) is for bytes that are wrong, `fail_on_data_loss` for bytes
    that are gone.
    """

    mode: str = "FAILFAST"
    fail_on_data_loss: bool = True
    dropped: int = 0
    lost: int = 0

    def lose(self, count: int, error: OffsetOutOfRangeError | StoreNotFoundError, advice: str = "") -> None:
        """`advice` ends the text of the error; a warning says what was found, and no more."""
        if self.fail_on_data_loss:
            raise type(error)(f"{error}. {advice}") if advice else error
        self.lost += count
        _log.warning("%d messages lost: %s", count, error)

    def damage(self, error: CorruptStoreError) -> None:
        """Bytes that are no message at all: in FAILFAST an error, else counted as one."""
        self.drop([BadUnit(0, error)])
        if self.mode == "PERMISSIVE":
            _log.warning("stepped over damage: %s", error)  # no row says it

    def drop(self, bad: Sequence[BadUnit]) -> None:
        if self.mode == "FAILFAST" and bad:
            raise bad[0].error
        self.dropped += len(bad)
        if bad and self.mode == "DROPMALFORMED":
            _log.warning("%d malformed messages dropped, the first: %s", len(bad), bad[0].error)
