"""Stores on HDFS: the files below a name node, as objects whose version is their length and time of change.

No request to HDFS can name a version. So each read asks for the length and the time behind it: both are those
that were listed, or the bytes are not used. A file of HDFS grows at its end and never changes in the middle,
and a file that is written or copied again has a new time. What is not noticed is a file that was replaced by
one of the same length and the same time to a millisecond, as `distcp -p` makes it of another store.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from store_format.errors import FileReplacedError, OptionError, StoreError, StoreUnreachableError
from store_format.files.client import Access, BucketClient, GoesOn, StoredObject

if TYPE_CHECKING:
    from hdfs_native import Client, FileStatus

_LISTED_AT_ONCE = 16  # directories
_DENIED = re.compile(r"Permission denied: user=([^,]+), access=(\w+)")
_TEXT_MAX = 200

_Answer = TypeVar("_Answer")


class HdfsBucket(BucketClient):
    """The files of a name node, through hdfs-native, which the extra `hdfs` installs."""

    def __init__(self, place: str, access: Access) -> None:
        try:
            from hdfs_native import Client
        except ImportError as error:
            raise OptionError(
                f"{place}: HDFS is read with the package hdfs-native, which is missing; "
                "run `pip install hdfs-native`, also for the Python of the executors"
            ) from error
        access.settings(place)
        super().__init__(place, access, (OSError, RuntimeError))
        try:
            self._client: Client = Client(place)
        except RuntimeError as error:  # the name is no address, and the configuration does not have it
            raise OptionError(
                f"{place}/: expected a name node with its port (mostly 8020), or a name service of the "
                "configuration in HADOOP_CONF_DIR, which the executors need too; without a name, "
                f"fs.defaultFS of this configuration ({error})"
            ) from None

    def all_below(self, path: str, goes_on: GoesOn = lambda first: True) -> list[StoredObject] | None:
        found, level, depth = list[StoredObject](), [path], 0
        with ThreadPoolExecutor(_LISTED_AT_ONCE, thread_name_prefix="rmqlog-list") as pool:
            while level:
                if depth == 2 and not goes_on(found):  # a store shows by what is in its directories
                    return None
                listed = list(zip(level, pool.map(self.names, level), strict=True))
                found += [item for _, (_, objects) in listed for item in objects]
                level = [f"{directory}/{name}" for directory, (names, _) in listed for name in names]
                depth += 1
        return found

    def names(self, path: str) -> tuple[list[str], list[StoredObject]]:
        key = f"/{self._key(path)}"

        def listed() -> list[FileStatus]:
            try:
                return [each for each in self._client.list_status(key) if each.path != key]
            except FileNotFoundError:  # also a directory that is deleted meanwhile
                return []

        found = self._asked(path, lambda: self._in_time(listed))
        directories = [_name(each) for each in found if each.isdir]
        return directories, [_object(f"{path}/{_name(each)}", each) for each in found if not each.isdir]

    def find(self, path: str) -> StoredObject | None:
        key = f"/{self._key(path)}"
        try:
            found = self._asked(path, lambda: self._in_time(lambda: self._client.get_file_info(key)))
        except FileReplacedError:  # the file is gone
            return None
        return None if found.isdir else _object(path, found)

    def get(self, item: StoredObject, start: int, stop: int) -> memoryview:
        with self._turns:
            data = self._asked(item.path, lambda: self._in_time(lambda: self._read(item, start, stop)))
        if data is None:
            raise FileReplacedError(
                f"{item.path}: the file was written or replaced since the files were listed. If a program "
                "copies the store, wait until the copy is complete"
            )
        return memoryview(data)

    def _read(self, item: StoredObject, start: int, stop: int) -> bytes | None:
        """The bytes [start, stop); None of another version, which a read that fails may show too."""
        key, data, failed = f"/{self._key(item.path)}", None, None
        try:
            reader = self._client.read(key)
            if stop <= len(reader):
                data = reader.read_range(start, stop - start)
        except self._errors as error:
            failed = error
        if _object(item.path, self._client.get_file_info(key)) != item:
            return None
        if failed is not None:
            raise failed
        return data

    def _in_time(self, ask: Callable[[], _Answer]) -> _Answer:
        """The answer, or TimeoutError. The client waits without end for a name node that is silent, so the
        thread that waits is left alone; it does not keep the process from ending.
        """
        answer: Future[_Answer] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=run, name="rmqlog-hdfs", daemon=True).start()
        return answer.result(self._timeout_s)

    def _error_of(self, path: str, error: BaseException) -> StoreError:
        text = str(error).partition("\\n")[0].partition("\n")[0]
        if isinstance(error, FileNotFoundError):
            return FileReplacedError(
                f"{path}: the file is gone since the files were listed. If a program copies the store, wait "
                "until the copy is complete"
            )
        denied = _DENIED.search(text)
        if denied:
            return StoreUnreachableError(
                f"{path}: HDFS gives user {denied[1]} no {denied[2]} permission; give it, or run as another "
                "user (HADOOP_USER_NAME, or a Kerberos ticket), also the executors"
            )
        why = text[:_TEXT_MAX] or type(error).__name__
        if isinstance(error, TimeoutError):
            why = f"no whole answer in {self._timeout_s:g} s (fs.requestTimeout)"
        return StoreUnreachableError(
            f"{path}: HDFS could not be read, {why}; look whether the name node and the data nodes run, and "
            "at their address (HADOOP_CONF_DIR)"
        )


def _name(status: FileStatus) -> str:
    return status.path.rpartition("/")[2]


def _object(path: str, status: FileStatus) -> StoredObject:
    version = f"{status.length} {status.modification_time}"
    return StoredObject(path, status.length, version, status.modification_time)
