"""What the clients of object storage and of HDFS have in common: one version of a file, tries, and errors."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import TypeVar

from store_format.errors import StoreError, StoreUnreachableError
from store_format.files.access import CONCURRENCY_MAX, Access

_TRY_SECONDS = 0.2
_REST_SECONDS = 0.5
STATUS = re.compile(r"\b([45]\d\d) [A-Z]")  # such as "503 Service Unavailable"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object: a plain value without a client.

    `version` is the etag, which a request names, and of HDFS the length and the time; empty where there is
    none. `mark` is the CRC32 of the first
    bytes of a commitlog file that may still grow, which every later version has too; 0 where it is not known.
    """

    path: str
    size: int
    version: str
    mtime_ms: int
    mark: int = field(default=0, compare=False)


GoesOn = Callable[[list[StoredObject]], bool]


@dataclass(slots=True)
class Unanswered:
    """How many requests of this process failed, after their tries, and the error of the last one."""

    count: int = 0
    text: str = ""

    def add(self, text: str) -> None:
        self.count, self.text = self.count + 1, text


unanswered = Unanswered()


class BucketClient:
    """What the clients of all services have in common: one try after another, and one error of ours."""

    def __init__(self, place: str, access: Access, errors: tuple[type[BaseException], ...]) -> None:
        self._place, self._errors, self._timeout_s = place, errors, access.timeout.total_seconds()
        self._rests_until = 0.0
        self._turns = BoundedSemaphore(access.concurrency or CONCURRENCY_MAX)

    def __reduce__(self) -> str:
        raise TypeError(f"the client of {self._place} has credentials, and may not be pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._place}>"

    def _asked(self, path: str, ask: Callable[[], _Answer], tries: int = 1) -> _Answer:
        """The answer of the client, or our error for its own, whose text may have parts of a signed request.

        The client repeats a request that fails, but not a listing whose answer is cut: `tries` are for that.
        """
        begun = time.monotonic()
        if begun < self._rests_until:
            raise StoreUnreachableError(unanswered.text)
        while True:
            try:
                return ask()
            except self._errors as error:
                failed, tries = self._error_of(path, error), tries - 1
                is_last = tries <= 0 or STATUS.search(str(error)) is not None
            # behind the block: within, the error of the client would be the context of ours
            if is_last or time.monotonic() > begun + self._timeout_s:
                if isinstance(failed, StoreUnreachableError):
                    unanswered.add(str(failed))
                    if time.monotonic() > begun + self._timeout_s / 2:
                        # who goes on without this object must not wait as long for the next one
                        self._rests_until = time.monotonic() + _REST_SECONDS
                raise failed
            time.sleep(_TRY_SECONDS)

    def _error_of(self, path: str, error: BaseException) -> StoreError:
        raise NotImplementedError

    def _key(self, path: str) -> str:
        return path.removeprefix(self._place).strip("/")
