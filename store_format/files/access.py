"""How object storage is reached: the address of a service, and how requests are made there.

These are plain values, which travel to tasks. Credentials are not among them: a client takes those from the
platform.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from store_format.errors import OptionError

CONCURRENCY_MAX = 64
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
    """The `fs.…` options of a read. None leaves the choice to the environment of the process."""

    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    anonymous: bool | None = None
    request_timeout_ms: int | None = None
    concurrency: int | None = None

    @property
    def timeout(self) -> timedelta:
        """How long one request may take; after this time no request is repeated either."""
        return timedelta(milliseconds=self.request_timeout_ms or _REQUEST_TIMEOUT_MS)

    def settings(self, place: str) -> dict[str, Any]:  # Any: the types of obstore's settings
        """The settings of the client of a bucket. Raises OptionError for an option that does not apply."""
        scheme = place.partition("://")[0]
        names = _NAMES["az" if scheme.startswith("abfs") else scheme]
        found: dict[str, Any] = {}
        for field, option in (
            ("endpoint", "fs.endpoint"), ("region", "fs.region"), ("path_style", "fs.pathStyle"),
            ("anonymous", "fs.anonymous"),
        ):  # fmt: skip
            value = getattr(self, field)
            if value is None:
                continue
            if field not in names:
                raise OptionError(f"{option} does not apply to {place}; leave it out")
            found[names[field]] = not value if field == "path_style" else value
        return found
