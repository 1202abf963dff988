"""Where stores lie that are on no local disk: object storage, and exact bytes of one version of an object.

An object may be replaced at any time, so each request names the version that was listed. Credentials come
from the platform's own chain (environment, instance); they are in no value of this project: a source
holds them, and it cannot be pickled.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from store_format.errors import (
    FileReplacedError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    StorePermissionError,
    StoreUnreachableError,
)

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

_LISTED_AT_ONCE = 1000  # objects, as many as one request of S3 returns
_LIST_TRIES = 5
_TRY_SECONDS = 0.2
_STATUS = re.compile(r"\b([45]\d\d) [A-Z]")  # such as "503 Service Unavailable"


_Listed = TypeVar("_Listed")
GoesOn = Callable[[list["StoredObject"]], bool]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One version of an object: a plain value without a client.

    `version` is the etag, which a request names; empty where there is none. `mark` is the CRC32 of the first
    bytes of a commitlog file that may still grow, which every later version has too; 0 where it is not known.
    """

    path: str
    size: int
    version: str
    mtime_ms: int
    mark: int = field(default=0, compare=False)


class Bucket(Protocol):
    """A place that holds objects. `path` is always whole: scheme, bucket and key."""

    def all_below(self, path: str, goes_on: GoesOn = lambda first: True) -> list[StoredObject] | None:
        """Returns all objects below a path, at any depth.

        None if one request does not list them all, and `goes_on` is false for those of the first request.
        """
        ...

    def names(self, path: str) -> tuple[list[str], list[StoredObject]]:
        """Returns the names one level below a path that have objects below them, and the objects there."""
        ...

    def find(self, path: str) -> StoredObject | None:
        """Returns the object of a path in its newest version; None without one."""
        ...

    def get(self, item: StoredObject, start: int, stop: int) -> memoryview:
        """Returns exactly the bytes [start, stop) of this version.

        Raises FileReplacedError for another version, FileNotFoundError without an object,
        StorePermissionError and StoreUnreachableError.
        """
        ...


def source_of(path: str) -> Bucket:
    """Returns the source of a path such as `s3://bucket/key`, one for each bucket in a process."""
    scheme, _, rest = path.partition("://")
    bucket = rest.partition("/")[0]
    if not bucket or ("@" in bucket and scheme in ("s3", "gs")):  # abfss has the account behind it
        raise OptionError(
            f"{scheme}://{bucket}: expected the name of a bucket, as in {scheme}://backup/store"
        )
    if _user is not None and _user != os.getpid():
        raise StoreUnreachableError(
            f"{scheme}://{bucket}: this process is a fork of one that reads object storage, and its client "
            "does not work in a fork; start the process anew (multiprocessing: the method spawn)"
        )
    return _source(scheme, bucket)


_user: int | None = None  # the process that uses the client


@cache
def _source(scheme: str, bucket: str) -> Bucket:
    global _user
    _user = os.getpid()
    return ObjectBucket(scheme, bucket, os.environ)


class ObjectBucket:
    """A bucket of object storage, through obstore, which the extra `objects` installs."""

    def __init__(self, scheme: str, bucket: str, environment: Mapping[str, str]) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise OptionError(
                f"{scheme}://{bucket}: object storage is read with the package obstore, which is missing; "
                "run `pip install obstore`, also for the Python of the executors"
            ) from error
        self._place, self._api = f"{scheme}://{bucket}", obstore
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
        self._host = endpoint.partition("://")[2].rpartition("@")[2] or scheme
        has_region = scheme != "s3" or "AWS_REGION" in environment or "AWS_DEFAULT_REGION" in environment
        config: dict[str, Any] = {} if has_region else {"region": "us-east-1"}  # Any: keys of obstore
        with self._errors(self._place):
            self._store: ObjectStore = from_url(
                self._place,
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "timeout": timedelta(seconds=60),
                },
                retry_config={"max_retries": 8, "retry_timeout": timedelta(seconds=60)},
                **config,
            )

    def __reduce__(self) -> str:
        raise TypeError(f"the client of {self._place} has credentials, and may not be pickled")

    def __repr__(self) -> str:
        return f"<ObjectBucket {self._place}>"

    def all_below(self, path: str, goes_on: GoesOn = lambda first: True) -> list[StoredObject] | None:
        key = self._key(path) or None

        def listed() -> list[StoredObject] | None:
            found: list[StoredObject] = []
            for number, batch in enumerate(self._api.list(self._store, key, chunk_size=_LISTED_AT_ONCE)):
                if number == 1 and not goes_on(found):
                    return None
                found += map(self._object, batch)
            return found

        return self._tried(path, listed)

    def names(self, path: str) -> tuple[list[str], list[StoredObject]]:
        key = self._key(path) or None
        found = self._tried(path, lambda: self._api.list_with_delimiter(self._store, key))
        prefixes = [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]]
        return prefixes, [self._object(each) for each in found["objects"]]

    def find(self, path: str) -> StoredObject | None:
        try:
            with self._errors(path):
                return self._object(self._api.head(self._store, self._key(path)))
        except StoreNotFoundError:
            return None

    def get(self, item: StoredObject, start: int, stop: int) -> memoryview:
        with self._errors(item.path):
            options: GetOptions = {"range": (start, stop)}
            if item.version:
                options["if_match"] = item.version
            data = memoryview(self._api.get(self._store, self._key(item.path), options=options).bytes())
        if len(data) != stop - start:
            raise FileReplacedError(
                f"{item.path}: expected {stop - start} bytes from byte {start} on, found {len(data)}"
            )
        return data

    def _tried(self, path: str, listed: Callable[[], _Listed]) -> _Listed:
        """The client repeats a request that fails, but not one whose answer is cut."""
        for _ in range(_LIST_TRIES - 1):
            try:
                with self._errors(path):
                    return listed()
            except StoreUnreachableError:
                time.sleep(_TRY_SECONDS)
        with self._errors(path):
            return listed()

    def _key(self, path: str) -> str:
        return path.removeprefix(self._place).strip("/")

    def _object(self, found: Mapping[str, Any]) -> StoredObject:  # Any: a value of obstore
        path = f"{self._place}/{found['path']}"
        mtime_ms = int(found["last_modified"].timestamp() * 1000)
        return StoredObject(path, found["size"], found["e_tag"] or "", mtime_ms)

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        """Raises our errors for those of the client, whose texts may have parts of a signed request."""
        from obstore import exceptions

        failed: StoreError | None = None
        try:
            yield
        except exceptions.PreconditionError:
            failed = FileReplacedError(
                f"{path}: another version was uploaded since the objects were listed. If a program copies "
                "the store, wait until the copy is complete"
            )
        except FileNotFoundError:
            failed = StoreNotFoundError(f"{path}: the object is gone since the objects were listed")
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
            failed = self._refused(path)
        except (exceptions.BaseError, ValueError) as error:
            status = _STATUS.search(str(error))
            if status is not None and status[1] == "404":
                failed = StoreNotFoundError(f"{path}: {self._host} does not know {self._place}")
            elif status is not None and status[1] in ("401", "403"):
                failed = self._refused(path)
            else:
                told = f"it answered {status[1]}" if status else "no answer that can be used"
                failed = StoreUnreachableError(
                    f"{path}: {self._host} could not be read, {told}, after several tries; look at the "
                    "address, region and account of the service (AWS_ENDPOINT_URL, AWS_REGION, "
                    "AZURE_STORAGE_ACCOUNT_NAME)"
                )
        if failed is not None:
            raise failed  # here, where the client's error is no longer its context

    def _refused(self, path: str) -> StorePermissionError:
        return StorePermissionError(
            f"{path}: {self._host} refused the request; give the credentials the right to list and get "
            "objects there, in the way of the platform (environment, role of the instance)"
        )
