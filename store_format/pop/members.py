"""The consumers that use an in-flight log: each has a shared lock on the file `members` while it lives.

The system drops the lock of a process that is killed. So the last consumer that ends knows that it is the
last, and others can ask whether any consumer of a group is alive.
"""

from __future__ import annotations

from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.errors import StoreInUseError
from store_format.files.read import entry_names
from store_format.files.shared_log import FileLock
from store_format.files.write import FileWrites
from store_format.pop.log import in_flight_directory, in_flight_logs

_NAME = "members"
_LAST_SECONDS = 0.02  # another process asks `live_topics` for microseconds


class InFlightLogUser:
    """One consumer of the in-flight log in `directory`, which is made if it is missing."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._lock = FileLock(f"{directory}/{_NAME}")

    def join(self, timeout: float = 10.0) -> None:
        """Waits while the last consumer hands over. Raises StoreInUseError after `timeout` seconds."""
        root, _, rest = self.directory.partition(f"/{OWN_DIRECTORY}/")
        FileWrites(sync=False).make_directories(root, OWN_DIRECTORY, *rest.split("/"))
        if not self._lock.share(timeout):
            raise StoreInUseError(
                f"{self.directory}: expected that the last consumer ends within {timeout:g} s, but it "
                "does not; look for a consumer that was stopped (state T in ps) and continue or end it"
            )

    def is_last(self) -> bool:
        """Whether no other consumer is alive. If so nobody joins until `leave`; else this one has left."""
        return self._lock.try_exclusive(_LAST_SECONDS)

    def leave(self) -> None:
        self._lock.close()


def live_topics(root: str, group: str) -> list[str]:
    """The topics of the store at `root` that consumers of the group pop now, sorted."""
    found = []
    for name, topic in in_flight_logs(root):
        directory = in_flight_directory(root, name, topic)
        if name != group or _NAME not in entry_names(directory, missing_ok=True):
            continue
        lock = FileLock(f"{directory}/{_NAME}")
        if not lock.try_exclusive():
            found.append(topic)
        lock.close()
    return found
