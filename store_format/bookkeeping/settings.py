"""What a writer takes from the files of a store: their sizes.

The sizes are in our `.rmqlog/store.json`, or they are the lengths of a broker's files: a broker has them in
its configuration only, and refuses to start on files of another length. For stores of this project
`.rmqlog/broker.conf` names the settings with which a broker must be started.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from store_format.bookkeeping.identity import read_note
from store_format.commitlog.log import CommitLog
from store_format.errors import OptionError
from store_format.files.read import files_at
from store_format.index.file import (
    DEFAULT_GEOMETRY,
    IndexFile,
    IndexGeometry,
    confirms,
    has_entries,
    list_index_files,
)
from store_format.layouts import CQ_UNIT
from store_format.metadata.read import BrokerConf, parse_properties, read_broker_conf
from store_format.opened.store import Opened

_FILE_SIZE_MAX = 2**31 - 1  # MappedFile: positions are Java ints
_COMMIT_LOG_FILE_SIZE_MIN = 1 << 10
_SIZES = {"mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum"}
_FALLBACK_MAX = 64  # queue directories searched for a file


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """MessageStoreConfig's names and defaults. Raises OptionError for sizes that no broker could use."""

    broker_name: str
    mapped_file_size_commit_log: int = 1 << 30
    mapped_file_size_consume_queue: int = 6_000_000
    max_hash_slot_num: int = DEFAULT_GEOMETRY.hash_slot_num
    max_index_num: int = DEFAULT_GEOMETRY.index_num

    def __post_init__(self) -> None:
        size = self.mapped_file_size_commit_log
        if not _COMMIT_LOG_FILE_SIZE_MIN <= size <= _FILE_SIZE_MAX:
            raise OptionError(
                f"mappedFileSizeCommitLog={size}: expected {_COMMIT_LOG_FILE_SIZE_MIN} to {_FILE_SIZE_MAX}"
            )
        size = self.mapped_file_size_consume_queue
        if not CQ_UNIT.itemsize <= size <= _FILE_SIZE_MAX:
            raise OptionError(
                f"mappedFileSizeConsumeQueue={size}: expected {CQ_UNIT.itemsize} to {_FILE_SIZE_MAX}"
            )
        if self.max_hash_slot_num < 1 or self.max_index_num < 2 or self.geometry.file_size > _FILE_SIZE_MAX:
            raise OptionError(
                f"maxHashSlotNum={self.max_hash_slot_num}, maxIndexNum={self.max_index_num}: at least 1 and "
                "2, "
                f"and 40 + 4 * maxHashSlotNum + 20 * maxIndexNum at most {_FILE_SIZE_MAX}"
            )

    @staticmethod
    def path(opened: Opened) -> str:
        return opened.own("store.json")

    @staticmethod
    def read(opened: Opened) -> StoreSettings | None:
        """The settings of a store that this project created; None for a broker's store.

        Raises CorruptStoreError for a file that does not hold settings.
        """
        return read_note(StoreSettings.path(opened), "the settings of a store", _settings)

    @staticmethod
    def of(
        opened: Opened,
        log: CommitLog,
        broker_name: str,
        given: StoreSettings | None = None,
        *,
        geometry: IndexGeometry | None = None,
    ) -> StoreSettings:
        """The sizes of new files of the store: those of existing files, else the remembered or `given` ones.

        Raises OptionError for an index file whose units do not prove its geometry: the caller must then give
        the geometry, which counts where no index file has an entry. The same for an index file of another
        size than our store remembers, unless its units prove the broker's default geometry or the given one.
        `geometry` is used without a look at the index files.
        """
        remembered = StoreSettings.read(opened)
        settings = remembered or given or StoreSettings(broker_name)
        if log.files:
            settings = replace(settings, mapped_file_size_commit_log=log.file_size)
        size = _queue_file_size(opened)
        if size is not None and size != settings.queue_file_size:
            settings = replace(settings, mapped_file_size_consume_queue=size)
        if geometry is not None:
            return replace(
                settings, max_hash_slot_num=geometry.hash_slot_num, max_index_num=geometry.index_num
            )
        index_files = [file for file in list_index_files(f"{opened.path}/index") if file.size]
        if index_files and index_files[-1].size != settings.geometry.file_size:
            path = next((file.path for file in reversed(index_files) if has_entries(file.path)), None)
            if path is None and given is not None:
                return settings
            path = path or index_files[-1].path
            settings = (
                _with_proved_geometry(settings, path)
                if remembered is None
                else _with_other_geometry(opened, settings, given, path)
            )
        return settings

    @staticmethod
    def is_queue_file_size_known(opened: Opened, log: CommitLog, is_given: bool) -> bool:
        """Whether the queue_file_size of `of` is given, remembered, or that of an existing file.

        A broker whose commitlog files have the default size is assumed to use the default size for queues
        too.
        """
        return (
            is_given
            or log.file_size == StoreSettings("").mapped_file_size_commit_log
            or StoreSettings.read(opened) is not None
            or _queue_file_size(opened) is not None
        )

    @staticmethod
    def size_of_cut_file(opened: Opened, log: CommitLog, given: StoreSettings | None = None) -> int:
        """The length that the only commitlog file of our store should have, if it was cut off; else 0. Of a
        broker's store the `given` settings have the length.

        A broker may have made a shorter file with another configuration, but ends it with a BLANK. So a file
        was cut off if its last byte belongs to a message, or if it is shorter than any configuration allows.
        """
        settings = (StoreSettings.read(opened) or given) if len(log.files) == 1 else None
        if settings is None or log.files[0].size >= settings.mapped_file_size_commit_log:
            return 0
        stop = 0
        for step in log.walk(log.min_offset, resync=True):
            stop = step.stop
        is_cut = log.files[0].size == stop or log.files[0].size < _COMMIT_LOG_FILE_SIZE_MIN
        return settings.mapped_file_size_commit_log if is_cut else 0

    @property
    def queue_file_size(self) -> int:
        """The size in bytes, rounded up to whole units (MessageStoreConfig.getMappedFileSizeConsumeQueue)."""
        return -(-self.mapped_file_size_consume_queue // CQ_UNIT.itemsize) * CQ_UNIT.itemsize

    @property
    def geometry(self) -> IndexGeometry:
        return IndexGeometry(self.max_hash_slot_num, self.max_index_num)

    def to_json(self) -> bytes:
        return json.dumps({"version": 1, **asdict(self)}, indent=1).encode()

    def broker_conf(self) -> bytes:
        """The properties with which a broker must be started on this store; add storePathRootDir."""
        lines = [
            f"brokerName={self.broker_name}",
            f"mappedFileSizeCommitLog={self.mapped_file_size_commit_log}",
            f"mappedFileSizeConsumeQueue={self.mapped_file_size_consume_queue}",
            f"maxHashSlotNum={self.max_hash_slot_num}",
            f"maxIndexNum={self.max_index_num}",
            (
                "# After writes with ASYNC_FLUSH, call MessageStore.open(path).flush() before a broker starts"
                ": queries by key need it."
            ),
        ]
        return ("\n".join(lines) + "\n").encode()


def _settings(value: Any) -> StoreSettings:  # Any: JSON
    numbers = {name: int(value[name]) for name in StoreSettings.__dataclass_fields__ if name != "broker_name"}
    return StoreSettings(str(value["broker_name"]), **numbers)


def _with_other_geometry(
    opened: Opened, settings: StoreSettings, given: StoreSettings | None, path: str
) -> StoreSettings:
    """For an index file that is not as `.rmqlog/store.json` says: made by a broker with default sizes, or
    with those that are given.

    One that a broker has only lengthened has entries where another geometry has them: no program finds all of
    them, and more would make it worse.
    """
    with files_at(path).view(path) as view:
        for geometry in ([] if given is None else [given.geometry]) + [DEFAULT_GEOMETRY]:
            if view.size == geometry.file_size and confirms(view, geometry):
                return replace(
                    settings, max_hash_slot_num=geometry.hash_slot_num, max_index_num=geometry.index_num
                )
        raise OptionError(
            f"{path} has {view.size} bytes, and with maxHashSlotNum={settings.max_hash_slot_num} and "
            f"maxIndexNum={settings.max_index_num} of {opened.own('store.json')} it has "
            f"{settings.geometry.file_size}: "
            "a broker was started on this store with other index sizes, and queries by key would miss "
            "messages. "
            f"Start brokers with the sizes of {opened.own('broker.conf')}. "
            "To write on, move the index file out of the store: messages stay readable, and queries by key "
            "miss those of that file"
        )


def _with_proved_geometry(settings: StoreSettings, path: str) -> StoreSettings:
    geometry = IndexFile.open(path, likely=settings.geometry).geometry
    if geometry is None:
        raise OptionError(f"{path}: its units do not prove maxHashSlotNum and maxIndexNum; give both")
    return replace(settings, max_hash_slot_num=geometry.hash_slot_num, max_index_num=geometry.index_num)


def _queue_file_size(opened: Opened) -> int | None:
    """The length of one consume queue file of whole entries; None without one."""
    looked = 0
    for _, topic_path in opened.files.directories(f"{opened.path}/consumequeue"):
        for _, path in files_at(topic_path).directories(topic_path):
            files = files_at(path).store_files(path, irregular=lambda _: None)
            if files and files[0].size and not files[0].size % CQ_UNIT.itemsize:
                return files[0].size
            looked += 1
            if looked >= _FALLBACK_MAX:
                return None
    return None


def broker_conf_of(opened: Opened, given: str | BrokerConf | None = None) -> BrokerConf:
    """The settings of a store's broker: `given`, else those in `.rmqlog/broker.conf`, else the defaults.

    `given` is the path of a broker.conf, or its settings. Raises StoreNotFoundError for a path without a
    file, and OptionError for a bad value.
    """
    if isinstance(given, BrokerConf):
        return given
    if given is not None:
        return read_broker_conf(given)
    own = opened.own("broker.conf")
    data = files_at(own).read(own)
    conf = BrokerConf() if data is None else BrokerConf.of(parse_properties(data), own)
    # a file with sizes only is that of a recovered copy, which says nothing of the broker's other settings
    return conf if conf.given - _SIZES else replace(conf, given=frozenset())
