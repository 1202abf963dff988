"""A new store: the directories and files that a broker expects, and the settings that the broker needs.

A write that fails removes what it created: the store, if nothing was committed in it, and the directory, if
the directory did not exist before.
"""

from __future__ import annotations

from dataclasses import dataclass

from store_format.bookkeeping.identity import STAGING
from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.publication import save_checkpoint
from store_format.errors import OptionError, StoreInUseError
from store_format.files import paths
from store_format.files.lock import CheckedLock, StoreLock
from store_format.files.paths import LOST_AND_FOUND
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.metadata.read import Checkpoint
from store_format.metadata.values import dumps
from store_format.names import SYNC_MEMBER_PREFIX
from store_format.opened.store import OWN_DIRECTORY, Opened

# Empty directories of a new store. The last one is made last: it is the sign of a complete store.
_QUEUED = ("consumequeue", "index", "commitlog")
_BEGUN = {"config", "checkpoint", *_QUEUED}  # left by a creation that was broken off


@dataclass(frozen=True, slots=True)
class StoreDirectory:
    """A directory in which a store is, or can be created; its path ends without a slash."""

    root: str

    def is_store(self) -> bool:
        """Whether the directory is a store; False where a store can be created.

        Raises OptionError for a directory with other files, and for a path whose parent does not exist.
        """
        names = files_at(self.root).names(self.root, missing_ok=True)
        if "commitlog" in names:
            return True
        other = set(names - {OWN_DIRECTORY, "lock", LOST_AND_FOUND})
        if other and other <= _BEGUN and StoreSettings.read(Opened(self.root)) is not None:
            other = {
                name
                for name in ("consumequeue", "index")
                if files_at(self.root).names(f"{self.root}/{name}", missing_ok=True)
            }
        if other:
            found = ", ".join(sorted(other)[:8])
            raise OptionError(
                f"{self.root}: expected a store or an empty directory, found {found}. Give another path, or "
                "move these files away"
            )
        parent = paths.parent(self.root)
        if not names and not files_at(parent).is_directory(parent):
            raise OptionError(
                f"{self.root}: cannot create the store, because {parent} does not exist. Create that "
                "directory, or correct the path"
            )
        return False

    def make(self) -> bool:
        """Creates the directory of a new store. False if the directory exists."""
        if files_at(self.root).is_directory(self.root):
            return False
        parent, _, name = self.root.rpartition("/")
        FileWrites(sync=True).make_directories(parent, name)
        return True

    def create(
        self, settings: StoreSettings, *, timestamp: int, exist_ok: bool = False, lock_timeout: float = 0.0
    ) -> bool:
        """Creates a store that a broker with these settings loads. False if a store exists and `exist_ok`.

        Raises OptionError for a directory with other files, and for an existing store without `exist_ok`.
        """
        files = FileWrites(sync=True)
        if not self._is_free(exist_ok=exist_ok):
            return False
        self.make()
        with StoreLock(self.root, timeout=lock_timeout):
            if not self._is_free(exist_ok=exist_ok):  # Another process created the store meanwhile.
                return False
            try:
                self._fill(settings, timestamp, files)
            except BaseException:
                self._clear(files)
                raise
        return True

    def _fill(self, settings: StoreSettings, timestamp: int, files: FileWrites) -> None:
        opened = Opened(self.root)
        files.make_directories(self.root, OWN_DIRECTORY)
        files.replace(StoreSettings.path(opened), settings.to_json())
        files.replace(f"{self.root}/{OWN_DIRECTORY}/broker.conf", settings.broker_conf())
        files.make_directories(self.root, "config")
        files.persist_config(
            f"{self.root}/config/topics.json", _first_topics(settings.broker_name, timestamp), is_good=False
        )
        save_checkpoint(opened, Checkpoint(), files)
        for directory in _QUEUED:
            files.make_directories(self.root, directory)

    def _clear(self, files: FileWrites) -> None:
        """Removes the files of a creation and of a commit that was undone. Staged files stay."""
        for name in reversed(_QUEUED):
            files.remove_directory(f"{self.root}/{name}")
        for name in ("config/topics.json", "config/topics.json.bak", "checkpoint", "abort"):
            files.remove(f"{self.root}/{name}")
        files.remove_directory(f"{self.root}/config")
        for name in files_at(self.root).names(f"{self.root}/{OWN_DIRECTORY}", missing_ok=True) - {STAGING}:
            files.remove(f"{self.root}/{OWN_DIRECTORY}/{name}")
        files.sync_directory(self.root)

    def _is_free(self, *, exist_ok: bool) -> bool:
        if not self.is_store():
            return True
        if exist_ok:
            return False
        raise OptionError(
            f"{self.root}: cannot create a store, because a store exists there. Give another path, or pass "
            "exist_ok"
        )

    def remove_store(self, *, lock_timeout: float = 0.0) -> bool:
        """Removes a store into which nothing was ever written. False, and no change, for any other store.

        Staged files stay.
        """
        opened = Opened(self.root)
        files = FileWrites(sync=True)
        with CheckedLock(self.root, timeout=lock_timeout):
            used = any(files_at(self.root).names(f"{self.root}/{name}", missing_ok=True) for name in _QUEUED)
            if (
                used
                or not self.is_store()
                or Journal.read(opened) is not None
                or Ledger.read(opened).last is not None
                or Ledger.read(opened).keys
            ):
                return False
            self._clear(files)
        return True

    def restore(self, *, was_missing: bool) -> None:
        """Restores a directory in which no store was created: removes `.rmqlog`, unless it has staged files.

        Removes the directory too if it `was_missing`.
        """
        files = FileWrites(sync=False)
        if files_at(self.root).names(self.root, missing_ok=True) - {OWN_DIRECTORY, "lock"}:
            return
        files.remove_directory(f"{self.root}/{OWN_DIRECTORY}/{STAGING}")
        files.remove_directory(f"{self.root}/{OWN_DIRECTORY}")
        if files_at(self.root).names(self.root, missing_ok=True) == {"lock"}:
            try:
                with StoreLock(self.root) as lock:
                    lock.refuse_other_openers()
                    files.remove(lock.path)
            except StoreInUseError:
                return  # Another process is creating a store here.
        if was_missing:
            files.remove_directory(self.root)


def _first_topics(broker_name: str, timestamp: int) -> bytes:
    """topics.json with the topic that carries the broker's name. A broker adds its other topics at start."""
    topic = f"{SYNC_MEMBER_PREFIX}{broker_name}"
    member = {
        "attributes": {},
        "order": False,
        "perm": 1,  # PermName.PERM_INHERIT, as TopicConfigManager makes it
        "readQueueNums": 1,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": 1,
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": timestamp}
    return dumps({"dataVersion": version, "topicConfigTable": {topic: member}})
