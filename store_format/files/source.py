"""Where stores lie that are on no local disk: object storage, and exact bytes of one version of an object.

An object may be replaced at any time, so each request names the version that was listed. Credentials come
from the platform's own chain (environment, instance) or from a session of Spark (`Access.keys`): a source
holds them, and it cannot be pickled. HDFS, whose files are objects here too, is in `hdfs.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from store_format.errors import (
    FileReplacedError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    StoreUnreachableError,
)
from store_format.files.client import STATUS, Access, BucketClient, GoesOn, StoredObject

if TYPE_CHECKING:
    from obstore import GetOptions
    from obstore.store import ObjectStore

_LISTED_AT_ONCE = 1000  # objects, as many as one request of S3 returns
_LIST_TRIES = 5


_NAME_NODE = re.compile(r"([\w.-]+(:\d+)?)?", re.ASCII)  # `:` may also stand between a user and a secret


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

        Raises FileReplacedError for another version and without an object, and StoreUnreachableError.
        """
        ...


def place_of(path: str) -> str:
    """Returns the scheme and the bucket of a path, or the name node. Raises OptionError without one."""
    scheme, _, rest = path.partition("://")
    bucket = rest.partition("/")[0]
    if scheme == "hdfs":
        if not rest.strip("/") or not _NAME_NODE.fullmatch(bucket):
            raise OptionError(
                f"hdfs://{'…' * bool(bucket)}: expected a name node with its port, or a name service, as in "
                "hdfs://namenode:8020/backup/store, or neither, as in hdfs:///backup/store; the user comes "
                "from HADOOP_USER_NAME or Kerberos"
            )
        return f"hdfs://{bucket}"
    # abfss has the account behind @; a key and a secret, with `:` between them, are never repeated
    if not bucket or ":" in bucket or ("@" in bucket and scheme in ("s3", "gs")):
        raise OptionError(
            f"{scheme}://{'…' * bool(bucket)}: expected the name of a bucket, as in {scheme}://backup/store; "
            "credentials come from the environment or the role of the machine"
        )
    return f"{scheme}://{bucket}"


class ObjectBucket(BucketClient):
    """A bucket of object storage, through obstore, which the extra `objects` installs."""

    def __init__(self, place: str, access: Access) -> None:
        try:
            import obstore
            from obstore.store import from_url
        except ImportError as error:
            raise OptionError(
                f"{place}: object storage is read with the package obstore, which is missing; "
                "run `pip install obstore`, also for the Python of the executors"
            ) from error
        super().__init__(place, access, (OSError, ValueError, obstore.exceptions.BaseError))
        self._api = obstore
        scheme = place.partition("://")[0]
        # no name for the environment: Spark can show the local names of a call that fails
        in_environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        endpoint = access.endpoint or in_environment * (scheme == "s3")
        self._host = endpoint.partition("://")[2].rpartition("@")[2] or scheme
        if access.endpoint and os.environ.get("AWS_ENDPOINT_URL_S3"):
            raise OptionError(
                f"{place}: fs.endpoint and AWS_ENDPOINT_URL_S3 are both given; use one of them "
                "(fs.s3a.endpoint of a session of Spark counts as fs.endpoint)"
            )
        config = access.settings(place)
        if scheme == "s3" and not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
            config.setdefault("region", "us-east-1")
        self._store: ObjectStore = self._asked(
            place,
            lambda: from_url(
                place,
                client_options={"allow_http": endpoint.startswith("http://"), "timeout": access.timeout},
                retry_config={"max_retries": 8, "retry_timeout": access.timeout},
                **config,
            ),
        )

    def all_below(self, path: str, goes_on: GoesOn = lambda first: True) -> list[StoredObject] | None:
        key = self._key(path) or None

        def listed() -> list[StoredObject] | None:
            found: list[StoredObject] = []
            for number, batch in enumerate(self._api.list(self._store, key, chunk_size=_LISTED_AT_ONCE)):
                if number == 1 and not goes_on(found):
                    return None
                found += map(self._object, batch)
            return found

        return self._asked(path, listed, _LIST_TRIES)

    def names(self, path: str) -> tuple[list[str], list[StoredObject]]:
        key = self._key(path) or None
        found = self._asked(path, lambda: self._api.list_with_delimiter(self._store, key), _LIST_TRIES)
        prefixes = [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]]
        return prefixes, [self._object(each) for each in found["objects"]]

    def find(self, path: str) -> StoredObject | None:
        try:
            return self._object(self._asked(path, lambda: self._api.head(self._store, self._key(path))))
        except FileReplacedError:  # the request names no version, so the object is gone
            return None

    def get(self, item: StoredObject, start: int, stop: int) -> memoryview:
        options: GetOptions = {"range": (start, stop)}
        if item.version:
            options["if_match"] = item.version
        key = self._key(item.path)
        with self._turns:
            data = self._asked(
                item.path, lambda: memoryview(self._api.get(self._store, key, options=options).bytes())
            )
        if len(data) != stop - start:
            raise FileReplacedError(
                f"{item.path}: expected {stop - start} bytes from byte {start} on, found {len(data)}"
            )
        return data

    def _error_of(self, path: str, error: BaseException) -> StoreError:
        exceptions, text = self._api.exceptions, str(error)
        found = STATUS.search(text)
        status = found[1] if found else ""
        if isinstance(error, exceptions.PreconditionError):
            return FileReplacedError(
                f"{path}: another version was uploaded since the objects were listed. If a program copies "
                "the store, wait until the copy is complete"
            )
        if isinstance(error, FileNotFoundError) and "NoSuchBucket" not in text:
            return FileReplacedError(
                f"{path}: the object is gone since the objects were listed. If a program copies the store, "
                "wait until the copy is complete"
            )
        if status == "404" or isinstance(error, FileNotFoundError):
            return StoreNotFoundError(f"{path}: {self._host} does not know {self._place}")
        if isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)) or (
            status in ("401", "403") or "ExpiredToken" in text
        ):
            return StoreUnreachableError(
                f"{path}: {self._host} refused the request; give the credentials the right to list and get "
                "objects there, in the way of the platform (environment, role of the instance), and look "
                "whether they have expired. Of a session of Spark, the settings spark.hadoop.fs.s3a.* count "
                "that are set before rmq_spark.register(spark) is called"
            )
        why = "no answer that can be used"
        if "redirect" in text or "AuthorizationHeaderMalformed" in text:
            why = "it names another address or region for the bucket"
        elif status:
            why = f"it answered {status}"
        elif "TimedOut" in text:
            why = f"no whole answer in {self._timeout_s:g} s (fs.requestTimeout)"
        return StoreUnreachableError(
            f"{path}: {self._host} could not be read, {why}, after several tries; look at the "
            "address, region and account of the service (fs.endpoint, fs.region; AWS_ENDPOINT_URL, "
            "AWS_REGION, AZURE_STORAGE_ACCOUNT_NAME)"
        )

    def _object(self, found: Mapping[str, Any]) -> StoredObject:  # Any: a value of obstore
        mtime_ms = int(found["last_modified"].timestamp() * 1000)
        return StoredObject(f"{self._place}/{found['path']}", found["size"], found["e_tag"] or "", mtime_ms)
