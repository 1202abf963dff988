"""Opens the RocksDB databases of a store, as a broker does that starts: the consume queues, and the
configuration. A broker whose database cannot be opened does not start.
"""

from __future__ import annotations

from store_format.consumequeue.database import QueueDatabase
from store_format.consumequeue.files import FOLDERS, queue_database
from store_format.diagnose.problems import MISSING_ADVICE, REBUILT_ADVICE, REFUSES, UNCHECKED_ADVICE, Findings
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.metadata import read as config_json
from store_format.metadata import rocksdb
from store_format.opened.store import Opened
from store_format.survey.fates import StoredTopics

_CONFIG_ADVICE = (
    f"What the database has counts as lost, and a {REFUSES} (RocksDB.open). Restore its directory from a "
    "backup"
)


def has_databases(opened: Opened) -> bool:
    """Whether RocksDB has the queues or the configuration: rmqlog recovers no such store."""
    return queue_database(opened) is not None or StoredTopics(opened).has_rocksdb_config


def lacks_queue_database(opened: Opened) -> bool:
    """Whether RocksDB has the configuration of storeType=defaultRocksDB, and the store has no queues."""
    of_store_type = (f"{opened.path}/{place}/CURRENT" for place in ("config/topics", "config/metadata"))
    return (
        any(map(opened.files.exists, of_store_type))
        and queue_database(opened) is None
        and not any(opened.files.names(f"{opened.path}/{each}", missing_ok=True) for each in FOLDERS.values())
    )


def check_queue_database(findings: Findings, opened: Opened) -> None:
    """Reports a database of consume queues that cannot be read: the end of each queue, and its last entry."""
    directory = queue_database(opened)
    if lacks_queue_database(opened):
        place, expected = f"{opened.path}/consumequeue", "the RocksDB database of the consume queues"
        findings.add("warning", place, 0, expected, "none", MISSING_ADVICE)
    if directory is None:
        return
    try:
        database = QueueDatabase.read(opened)
        if database is not None:
            database.bounds(opened, database.ends, 0)
    except CorruptStoreError as error:
        found = error.found if error.file in error.found else f"{error.found}, in {error.file}"
        findings.add("damage", directory, error.position, error.expected, found, REBUILT_ADVICE)
    except UnsupportedFormatError as error:
        findings.add("info", directory, 0, "a database that can be read", str(error), UNCHECKED_ADVICE)


def check_config_databases(findings: Findings, opened: Opened) -> None:
    """Reports databases of configuration that cannot be read."""
    seen = set[str]()
    for name in rocksdb.NAMES:
        try:
            decode = config_json.DECODERS[name]
            rocksdb.stored_config(opened, name, decode, lambda: None, is_needed=True)
        except CorruptStoreError as error:
            if error.file not in seen:
                seen.add(error.file)
                findings.add_error("damage", error, _CONFIG_ADVICE)
        except UnsupportedFormatError as error:
            place = config_json.config_path(opened, name)
            findings.add("info", place, 0, "a database that can be read", str(error), UNCHECKED_ADVICE)
            return
