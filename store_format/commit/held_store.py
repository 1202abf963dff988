"""What the holder of a store's lock knows about the store: one value for all steps of a commit."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import StoreSettings, is_queue_file_size_known
from store_format.commit.log_comparison import RecoverOptions
from store_format.commit.options import CommitOptions
from store_format.commitlog.log import CommitLog
from store_format.commitlog.write import LogFiles
from store_format.files.read import FileCache
from store_format.files.write import FileWrites
from store_format.index.file import IndexGeometry
from store_format.metadata.read import BrokerConf
from store_format.opened.store import Opened


@dataclass(frozen=True, slots=True)
class HeldStore:
    """A locked store. `log` is the commitlog as it was listed last, `settings` has the sizes of new files."""

    opened: Opened
    log: CommitLog
    settings: StoreSettings
    options: CommitOptions
    files: FileWrites
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def conf(self) -> BrokerConf:
        return self.options.conf or BrokerConf()

    @property
    def geometry(self) -> IndexGeometry | None:
        """None if the index files stay as they are."""
        return self.settings.geometry if self.options.message_index_enable else None

    @property
    def log_files(self) -> LogFiles:
        size = self.settings.mapped_file_size_commit_log
        return LogFiles(self.log, self.log.directories, size, self.files)

    def relisted(self) -> HeldStore:
        """The store with the commitlog files that exist now."""
        return replace(self, log=open_log(self.log.directories))

    def compared(self, *, index: bool) -> RecoverOptions:
        """How a writer compares the store with its log."""
        options = self.options
        is_given = options.settings is not None and options.is_queue_size_given
        is_known = is_queue_file_size_known(self.opened, self.log, is_given)
        return RecoverOptions(
            index=index and options.message_index_enable,
            cut_after_damage=options.cut_after_damage,
            settings=self.settings,
            is_queue_size_given=is_known,
            batch_queue_file_size=self.conf.batch_queue_file_size,
            delay_levels_ms=self.conf.known_delay_levels_ms,
            tag_keys=options.tag_keys,
            clock=options.clock,
        )


def open_log(directories: tuple[str, ...]) -> CommitLog:
    """The commitlog of a store that is to be changed. Raises for a file that a broker refuses as well."""
    log = CommitLog.open(directories, FileCache())
    if log.unusable:
        raise log.unusable[0]
    return log
