"""How the clients of object storage and of HDFS reach a service, and what they have in common: one version of
a file, tries, and errors.

The address of a service and the way of requests are plain values (`Access`), which travel to tasks.
Credentials of the platform are not among them: a client takes those itself. Those of a session of Spark are
(`Access.keys`), in the process that has found them: no `repr` shows them, and no task is sent them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from threading import BoundedSemaphore
from typing import Any, ClassVar, TypeVar

from store_format.errors import OptionError, StoreError, StoreUnreachableError

# ---- how a service is reached ------------------------------------------------------------------------------


_REQUEST_TIMEOUT_MS = 30_000

# The settings of a client (obstore) by the scheme of a path: what has no name there does not apply.
_NAMES = {
    "s3": {"endpoint": "endpoint", "region": "region", "path_style": "virtual_hosted_style_request",
           "anonymous": "skip_signature"},
    "gs": {"anonymous": "skip_signature"},
    "az": {"endpoint": "endpoint", "anonymous": "skip_signature"},
    "hdfs": {},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """The `fs.…` options of a read. None leaves the choice to the environment of the process.

    `keys` are an access key, its secret and, for a limited time, a token; () leaves them to the platform.
    """

    CONCURRENCY_MAX: ClassVar = 64

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    anonymous: bool | None = None
    request_timeout_ms: int | None = None
    concurrency: int | None = None
    keys: tuple[str, ...] = field(default=(), repr=False, kw_only=True)

    @property
    def timeout(self) -> timedelta:
        """How long one request may take; after this time no request is repeated either."""
        return timedelta(milliseconds=self.request_timeout_ms or _REQUEST_TIMEOUT_MS)

    def settings(self, place: str) -> dict[str, Any]:  # Any: the types of obstore's settings
        """The settings of the client of a bucket. Raises OptionError for an option that does not apply."""
        scheme = place.partition("://")[0]
        names = _NAMES["az" if scheme.startswith("abfs") else scheme]
        found: dict[str, Any] = {}
        for name, option in (
            ("endpoint", "fs.endpoint"), ("region", "fs.region"), ("path_style", "fs.pathStyle"),
            ("anonymous", "fs.anonymous"),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is None:
                continue
            if name not in names:
                raise OptionError(f"{option} does not apply to {place}; leave it out")
            found[names[name]] = not value if name == "path_style" else value
        if self.keys:
            key, secret, *token = self.keys
            found["credential_provider"] = lambda: {
                "access_key_id": key, "secret_access_key": secret, "token": token[0] if token else None,
                "expires_at": None,
            }  # fmt: skip
        host = f"://{place.partition('://')[2]}."
        if self.path_style is False and self.endpoint and host not in self.endpoint:
            found["endpoint"] = self.endpoint.replace("://", host, 1)
        return found


# ---- one version, and one try after another ----------------------------------------------------------------

_TRY_SECONDS = 0.2
_REST_SECONDS = 0.5
STATUS = re.compile(r"\b([45]\d\d) [A-Z]")  # such as "503 Service Unavailable"

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object: a plain value without a client.

    `version` is the etag, which a request names, and of HDFS the length and the time; empty where there is
    none. `mark` is the CRC32 of the first bytes of a commitlog file that may still grow, which every later
    version has too; 0 where it is not known.
    """

    path: str
    size: int
    version: str
    mtime_ms: int
    mark: int = field(default=0, compare=False)


GoesOn = Callable[[list[StoredObject]], bool]


class BucketClient:
    """What the clients of all services have in common: one try after another, and one error of ours.

    `unanswered` is the error of the last request that failed after its tries, and the count says how many
    did.
    """

    def __init__(self, place: str, access: Access, errors: tuple[type[BaseException], ...]) -> None:
        self._place, self._errors, self._timeout_s = place, errors, access.timeout.total_seconds()
        self._rests_until = 0.0
        self.unanswered, self.unanswered_count = "", 0
        self._turns = BoundedSemaphore(access.concurrency or Access.CONCURRENCY_MAX)

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
            raise StoreUnreachableError(self.unanswered)
        while True:
            try:
                return ask()
            except self._errors as error:
                failed, tries = self._error_of(path, error), tries - 1
                is_last = tries <= 0 or STATUS.search(str(error)) is not None
            # behind the block: within, the error of the client would be the context of ours
            if is_last or time.monotonic() > begun + self._timeout_s:
                if isinstance(failed, StoreUnreachableError):
                    self.unanswered, self.unanswered_count = str(failed), self.unanswered_count + 1
                    if time.monotonic() > begun + self._timeout_s / 2:
                        # who goes on without this object must not wait as long for the next one
                        self._rests_until = time.monotonic() + _REST_SECONDS
                raise failed
            time.sleep(_TRY_SECONDS)

    def _error_of(self, path: str, error: BaseException) -> StoreError:
        raise NotImplementedError

    def _key(self, path: str) -> str:
        return path.removeprefix(self._place).strip("/")
