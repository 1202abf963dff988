"""`Opened`: a store's directory as one value, which every function takes that looks into the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from store_format.files import paths
from store_format.files.files import Files
from store_format.files.paths import is_remote
from store_format.files.read import files_at

OWN_DIRECTORY = ".rmqlog"  # brokers ignore it
_CONFIG_DATABASES = frozenset({"consumerOffsets", "metadata", "rdb", "subscriptionGroups", "topics"})


@dataclass(frozen=True, slots=True)
class Opened:
    """A store's directory at `path`, which is absolute or an address on object storage or HDFS.

    As a text it is its path, for messages.
    """

    path: str

    @property
    def is_remote(self) -> bool:
        """Whether the store lies on object storage or HDFS."""
        return is_remote(self.path)

    @property
    def files(self) -> Files:
        """The files of the place where the store lies."""
        return files_at(self.path)

    @property
    def dledger_logs(self) -> list[str]:
        """The directories with a DLedger commitlog, `dledger-<id>`: queues may lead there."""
        names = self.files.names(self.path, missing_ok=True)
        return [f"{self.path}/{name}" for name in sorted(names) if name.startswith("dledger-")]

    def unread_ledgers(self, directories: Iterable[str]) -> list[str]:
        """`dledger_logs` of which the files are in none of the directories of the commitlog. A directory
        that is given has those of a ledger without a directory `data` (storePathDLedgerCommitLog).
        """
        read = [paths.absolute(each) for each in directories if each != f"{self.path}/commitlog"]
        return [
            path
            for path in self.dledger_logs
            if not any(paths.is_inside(each, path) for each in read)
            and not (read and not self.files.is_directory(f"{path}/data"))
        ]

    @property
    def config_databases(self) -> list[str]:
        """The directories of `config/` that are RocksDB databases, sorted; most stores have none."""
        config = f"{self.path}/config"
        names = _CONFIG_DATABASES & self.files.names(config, missing_ok=True)
        return [name for name in sorted(names) if self.files.exists(f"{config}/{name}/CURRENT")]

    def own(self, name: str) -> str:
        """The path of a file or directory of this project in the store."""
        return f"{self.path}/{OWN_DIRECTORY}/{name}"

    def __str__(self) -> str:
        return self.path
