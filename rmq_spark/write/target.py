"""The stores that a write goes to, and which of them accept messages now. They are looked at once, before any
task runs.

A single store that does not accept messages is an error. In a cluster such a store is left out, as a producer
skips a broker that does not answer.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace

from rmq_spark.options.write_options import NewStoreOptions, WriteOptions
from rmq_spark.produce.queues import Routes, StoreTopics
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import StoreSettings, broker_conf_of
from store_format.commit.create_store import StoreDirectory
from store_format.commit.unsupported import StoreRefusals
from store_format.errors import OptionError, StoreInUseError, StoreWriteError, UnsupportedFormatError
from store_format.files.lock import StoreLock
from store_format.metadata.group_offsets import is_broker_49
from store_format.metadata.read import BrokerConf, known_topics, read_topics
from store_format.names import SYNC_MEMBER_PREFIX
from store_format.opened.store import Opened
from store_format.read.store_root import store_roots
from store_format.store import MessageStore
from store_format.survey.gone import LostLog


@dataclass(frozen=True, slots=True)
class TargetStore:
    """One store of a write. The first commit creates the store if it `is_new`.

    `was_missing` says that the store's directory does not exist either.
    """

    root: str
    settings: StoreSettings
    conf: BrokerConf = field(default_factory=BrokerConf)  # of the store's broker
    crc_property: bool = False  # add a CRC property, as the last message has (enabledAppendPropCRC)
    is_old: bool = False  # of a 4.9 broker; known for transactions only
    closed: str | None = None  # why the store cannot be written to now
    is_new: bool = False
    was_missing: bool = False

    @property
    def opened(self) -> Opened:
        """The store as one value, for the functions that take it."""
        return Opened(self.root)


@dataclass(frozen=True, slots=True)
class WriteTarget:
    """The stores of a write and what holds for all its rows. Plain values: pickled to every task."""

    stores: tuple[TargetStore, ...]  # in the order of `routes.stores`
    write: str  # names this write's staging
    options: WriteOptions
    routes: Routes
    is_cluster: bool
    is_begun: bool = False  # the staging directories exist

    @property
    def open_stores(self) -> list[TargetStore]:
        return [store for store in self.stores if store.closed is None]


def open_target(options: WriteOptions) -> WriteTarget:
    """The stores to write to. Nothing is created or changed in them.

    Raises StoreInUseError if a broker uses the only store, StoreWriteError if its disk is full,
    StoreNotFoundError if a commitlog is missing, and UnsupportedFormatError for a format that cannot be
    written. Another Spark write is no error: commits wait for each other.
    """
    path = options.path
    roots = store_roots(path, missing_ok=True)
    is_cluster = roots != [path]
    stores = [_member(root, options) for root in roots] if is_cluster else [_only(path, options)]
    by_name: dict[str, TargetStore] = {}
    for store in stores:
        other = by_name.setdefault(store.settings.broker_name, store)
        if other is not store:
            raise OptionError(
                f"{other.root} and {store.root} both belong to broker {store.settings.broker_name}; "
                "write to only one of them"
            )
    routes = Routes.of(
        [
            StoreTopics(name, dict(read_topics(store.opened) or {}), store.closed)
            for name, store in by_name.items()
        ],
        auto_create=options.auto_create_topic_enable,
        default_topic_queue_nums=options.default_topic_queue_nums,
    )
    ordered = tuple(by_name[store.broker_name] for store in routes.stores)
    _refuse_transactions(options, ordered)
    return WriteTarget(ordered, secrets.token_hex(8), options, routes, is_cluster)


def _refuse_transactions(options: WriteOptions, stores: tuple[TargetStore, ...]) -> None:
    for store in stores if options.transaction is not None else ():
        if store.conf.transaction_rocksdb_enable:
            raise UnsupportedFormatError(
                f"{store.root}: its broker keeps transactions in RocksDB (transRocksDBEnable=true); write "
                "without the option transaction, or to another store"
            )


def given_settings(options: WriteOptions, broker_name: str) -> StoreSettings:
    """The settings of a new store, and of a broker's store whose files do not show their sizes."""
    new = options.new_store
    given = {
        "mapped_file_size_commit_log": new.mapped_file_size_commit_log,
        "mapped_file_size_consume_queue": new.mapped_file_size_consume_queue,
        "max_hash_slot_num": new.max_hash_slot_num,
        "max_index_num": new.max_index_num,
    }
    return StoreSettings(broker_name, **{key: value for key, value in given.items() if value is not None})


def _only(root: str, options: WriteOptions) -> TargetStore:
    opened = Opened(root)
    was_missing = not os.path.isdir(root)
    if not was_missing:
        StoreRefusals(opened).refuse_store()
    is_new = not StoreDirectory(root).is_store()
    conf = broker_conf_of(opened, options.broker_conf)
    held, full = _held(root, options), _full(root, options, conf)
    if held:
        raise StoreInUseError(f"{root} is {held}; stop the broker, or write to another store")
    if full:
        raise StoreWriteError(
            f"{root}: {full}; free some space (rmqlog clean), or raise diskSpaceWarningLevelRatio"
        )
    if is_new:
        settings = given_settings(options, options.new_store.broker_name or os.path.basename(root))
        return TargetStore(root, settings, conf, is_new=True, was_missing=was_missing)
    return _existing(root, options, conf, None)


def _member(root: str, options: WriteOptions) -> TargetStore:
    opened = Opened(root)
    if options.new_store.broker_name is not None:
        raise OptionError(
            f"brokerName names one store, and {options.path} is a cluster; "
            "leave it out: each store has the name of its broker"
        )
    StoreRefusals(opened).refuse_store()
    conf = broker_conf_of(opened, options.broker_conf)
    return _existing(root, options, conf, _held(root, options) or _full(root, options, conf))


def _existing(root: str, options: WriteOptions, conf: BrokerConf, closed: str | None) -> TargetStore:
    opened = Opened(root)
    store = MessageStore.open(root, broker_name=options.new_store.broker_name)
    LostLog.refuse(opened, store.log)
    settings = StoreSettings.of(
        opened, store.log, store.broker_name, given_settings(options, store.broker_name)
    )
    _refuse_other_settings(root, options.new_store, settings)
    crc_property = Ledger.read(opened).ends_with_crc_property(store.log)
    is_old = options.transaction is not None and is_broker_49(opened)
    return TargetStore(root, settings, conf, crc_property, is_old, closed)


def _refuse_other_settings(root: str, given: NewStoreOptions, settings: StoreSettings) -> None:
    """Raises OptionError for an option that differs from the store: a write cannot change its settings."""
    names = _own_names(root)
    queue_file_size = None
    if given.mapped_file_size_consume_queue is not None:
        queue_file_size = replace(
            settings, mapped_file_size_consume_queue=given.mapped_file_size_consume_queue
        ).queue_file_size
    for name, wanted, found in (
        (
            "brokerName",
            given.broker_name,
            given.broker_name if given.broker_name in names or not names else names[0],
        ),
        ("mappedFileSizeCommitLog", given.mapped_file_size_commit_log, settings.mapped_file_size_commit_log),
        ("mappedFileSizeConsumeQueue", queue_file_size, settings.queue_file_size),
        ("maxHashSlotNum", given.max_hash_slot_num, settings.max_hash_slot_num),
        ("maxIndexNum", given.max_index_num, settings.max_index_num),
    ):
        if wanted not in (None, found):
            raise OptionError(
                f"{name}={wanted}, but {root} has {found}: the option applies to new stores only; "
                "leave it out"
            )


def _own_names(root: str) -> list[str]:
    """The broker names in the store: from its settings, else (since 5.0) its topics named after brokers."""
    opened = Opened(root)
    settings = StoreSettings.read(opened)
    if settings is not None:
        return [settings.broker_name]
    return [
        topic.removeprefix(SYNC_MEMBER_PREFIX)
        for topic in known_topics(opened) or ()
        if topic.startswith(SYNC_MEMBER_PREFIX)
    ]


def _held(root: str, options: WriteOptions) -> str | None:
    """Who uses the store: a broker, or, only with writerLockTimeout 0, another Spark write."""
    holder_of = StoreLock.foreign_holder if options.writer_lock_timeout_ms else StoreLock.holder
    holder = holder_of(f"{root}/lock")
    return None if holder is None else f"in use by {StoreLock.described(holder)}"


def _full(root: str, options: WriteOptions, conf: BrokerConf) -> str | None:
    """Why a broker on these disks would refuse to write."""
    given = options.disk_used_percent_max
    return StoreRefusals(Opened(root)).full_disk((), conf.disk_warning_percent if given is None else given)
