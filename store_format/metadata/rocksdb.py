"""The configuration that a broker keeps in RocksDB: topics, groups and consumer offsets, as the members of
the JSON files that other brokers write.

Version 1 (storeType=defaultRocksDB) has a database for each of the three, or one for all
(useSingleRocksDBForAllConfigs); a JSON file with a later data version than the database is merged in.
Version 2 (configManagerVersion=v2) has one database with binary keys, and reads no JSON file.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from store_format.display.text import shown
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.files import paths
from store_format.files.paths import is_settled
from store_format.java.fastjson import loads
from store_format.java.text import decode_utf8
from store_format.metadata.values import DataVersion, bean, bean_errors_of, members
from store_format.opened.store import Opened

Members = dict[str, Any]  # Any: JSON
_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

_OFFSETS = "consumerOffset.json"
_DATABASES_MAX = 16  # whose members are kept, up to some MB each
_BYTES_MAX = 256 << 20  # of all records of a database; 100,000 topics have 20 MB
_VERSION_KEY = b"kvDataVersionKey"

_V2_HEAD = struct.Struct(">BHB")  # table prefix, table, kind of record
_V2_TABLE, _V2_VERSION, _V2_DATA, _V2_JSON = 1, 1, 2, 1
_V2_VERSION_VALUE = struct.Struct(">qqq")  # state version, timestamp, counter


class _Table(NamedTuple):
    """Where a file's table is: its member in the file; the database of version 1 for it alone; the families
    of the entries and of the data version in the one for all; and the number of the table in version 2.
    """

    member: str
    directory: str
    family: str
    version_family: str
    number: int


_TABLES = {
    "topics.json": _Table("topicConfigTable", "topics", "topic", "topicVersion", 3),
    "subscriptionGroup.json": _Table(
        "subscriptionGroupTable", "subscriptionGroups", "subscriptionGroup", "subscriptionGroupVersion", 4
    ),
    _OFFSETS: _Table("offsetTable", "consumerOffsets", "consumerOffset", "consumerOffsetVersion", 1),
}
NAMES = tuple(_TABLES)  # of the files of `config/` in whose place there may be a database
_FORBIDDEN = "forbidden"  # the family; its member is forbiddenTable
_PULL_OFFSETS = 2  # the number of the table in version 2


class _Kept(NamedTuple):
    """A file's members as a database has them, and whether a later JSON file is merged in."""

    members: Members
    is_merged: bool


class _Database(NamedTuple):
    """The directory of a database, and the members of one file as it has them."""

    place: str
    kept: _Kept


def stored_config(
    opened: Opened,
    name: str,
    decode: Callable[[Members], _T],
    read_file: Callable[[], Members | None],
    *,
    is_needed: bool = False,
) -> tuple[str, _T | None] | None:
    """What a store has in RocksDB in place of the file `name` of `config/`: the directory of the database,
    and the decoded members. None if it has no such database: then the file counts.

    `read_file` gives the members of the file, which may be newer than the database. A database that cannot
    be read counts as lost, the value is None, with a warning; with `is_needed` that raises CorruptStoreError,
    or UnsupportedFormatError without rocksdict.
    """
    places = _places(opened, name)
    try:
        found = _newest(opened, places, name)
        if found is None:
            return None
        with bean_errors_of(found.place):
            return found.place, decode(_with_file(found.kept, name, read_file))
    except (CorruptStoreError, UnsupportedFormatError) as error:
        if is_needed:
            raise
        _warn_once(f"{error}; what it has counts as lost", database_identities(opened, name))
        return places[0], None


@lru_cache(maxsize=64)
def _warn_once(text: str, identity: object) -> None:
    """Warns once of each state of a database: one command reads it several times."""
    _logger.warning("%s", text)


def _newest(opened: Opened, places: Iterable[str], name: str) -> _Database | None:
    """Of both kinds of version 1, as after a change of the setting, the one with the later data version
    (RocksDBTopicConfigManager.migrateFromSeparateRocksDBs).
    """
    found = [
        _Database(place, kept) for place in places if (kept := _read(opened, place).get(name)) is not None
    ]
    return max(found, key=lambda each: _counter(each.kept.members), default=None)


def _with_file(kept: _Kept, name: str, read_file: Callable[[], Members | None]) -> Members:
    """The members that a broker has once it has loaded the database and the JSON file.

    A file with a later data version wins (`merge` in RocksDBTopicConfigManager, in
    RocksDBSubscriptionGroupManager, and in RocksDBConsumerOffsetManager, which drops all other offsets).
    """
    raw = read_file() if kept.is_merged else None
    if raw is None or _counter(raw) <= _counter(kept.members):
        return kept.members
    tables = () if name == _OFFSETS else kept.members.keys() - {"dataVersion"}
    both = {table: kept.members[table] | members(raw.get(table), table) for table in tables}
    return raw | both


def database_identities(opened: Opened, name: str) -> tuple[tuple[int, int, int] | None, ...]:
    """The `stat_identity` of each file of the databases in place of the file `name` of `config/`; () without
    any.
    """
    return tuple(each for place in _places(opened, name) for each in _identities(opened, place))


def _identities(opened: Opened, place: str) -> tuple[tuple[int, int, int] | None, ...]:
    names = sorted(opened.files.names(place, missing_ok=True))
    return tuple(opened.files.stat_identity(f"{place}/{name}") for name in names)


def _places(opened: Opened, name: str) -> list[str]:
    """The directories of the databases in place of a file. Version 2 is read alone."""
    config, there = f"{opened.path}/config", opened.config_databases
    if "rdb" in there:
        return [f"{config}/rdb"]
    return [f"{config}/{each}" for each in ("metadata", _TABLES[name].directory) if each in there]


def _counter(raw: Members) -> int:
    version = raw.get("dataVersion")
    return 0 if version is None else bean(DataVersion, version, "dataVersion").counter


# ---- reading a database ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _LastDatabase:
    """One value, so that a thread never sees the members of another state of the database."""

    value: tuple[object, dict[str, _Kept]] = (None, {})


@lru_cache(maxsize=_DATABASES_MAX)
def _last_database(place: str) -> _LastDatabase:
    return _LastDatabase()


def _read(opened: Opened, place: str) -> dict[str, _Kept]:
    """By the name of the file; a database that stays as it is is opened once."""
    if paths.is_link(place):
        raise paths.symbolic_link(place)
    now_ns, identities = time.time_ns(), _identities(opened, place)
    last = _last_database(place)
    seen, known = last.value
    if seen == identities:
        return known
    decode: Callable[[_ConfigDatabase], dict[str, _Kept]]
    decode = {"rdb": _second, "metadata": _single}.get(place.rpartition("/")[2], _separate)
    with opened.files.database(place) as database, bean_errors_of(place):
        known = decode(_ConfigDatabase(place, database.families, database.records))
    if all(is_settled(each, now_ns) for each in identities):
        last.value = identities, known
    return known


@dataclass(frozen=True, slots=True)
class _ConfigDatabase:
    """An open database at `place`. `read` yields the records of a family, some at a time."""

    place: str
    families: frozenset[str]
    read: Callable[[str], Iterable[Iterable[tuple[bytes, bytes]]]]

    def records(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """The keys and values of a family."""
        size = 0
        for records in self.read(family):
            for key, value in records:
                size += len(key) + len(value)
                if size > _BYTES_MAX:
                    expected = f"at most {_BYTES_MAX} bytes of configuration"
                    raise CorruptStoreError(self.place, 0, expected, "more")
                yield key, value

    def entries(self, family: str) -> Iterator[tuple[str, Members]]:
        """Each name of a family of version 1, with the members of its JSON value."""
        for key, value in self.records(family):
            name = decode_utf8(key)
            yield name, self.json(value, name)

    def json(self, value: bytes, name: str) -> Members:
        """The members of the JSON value of a name."""
        return members(loads(value, self.place), f"the value of {shown(name)}")


def _separate(database: _ConfigDatabase) -> dict[str, _Kept]:
    directory = database.place.rpartition("/")[2]
    name = next(name for name, table in _TABLES.items() if table.directory == directory)
    return {name: _first(database, name, "default", "kvDataVersion")}


def _single(database: _ConfigDatabase) -> dict[str, _Kept]:
    return {
        name: _first(database, name, table.family, table.version_family)
        for name, table in _TABLES.items()
        if table.family in database.families
    }


def _first(database: _ConfigDatabase, name: str, family: str, version_family: str) -> _Kept:
    """The members of a file in families of version 1 (RocksDBConfigManager)."""
    table: Mapping[str, Any] = dict(database.entries(family))
    if name == _OFFSETS:
        table = {key: value.get("offsetTable") or {} for key, value in table.items()}
    raw: Members = {_TABLES[name].member: table}
    for key, value in database.records(version_family):
        if key == _VERSION_KEY:
            raw["dataVersion"] = database.json(value, "the data version")
    if name == "subscriptionGroup.json":
        raw["forbiddenTable"] = dict(database.entries(_FORBIDDEN))
    return _Kept(raw, is_merged=True)


def _second(database: _ConfigDatabase) -> dict[str, _Kept]:
    """The members of the three files in the one family of version 2 (ConfigStorage, TablePrefix, TableId)."""
    numbers = {table.number: (name, table.member) for name, table in _TABLES.items()}
    numbers[_PULL_OFFSETS] = _OFFSETS, "pullOffsetTable"
    found: dict[str, Members] = {name: {table.member: {}} for name, table in _TABLES.items()}
    for key, value in database.records("default"):
        try:
            prefix, number, kind = _V2_HEAD.unpack_from(key)
            if prefix != _V2_TABLE or number not in numbers:
                continue
            name, member = numbers[number]
            if kind == _V2_VERSION and number != _PULL_OFFSETS:
                found[name]["dataVersion"] = _version(value)
            elif kind == _V2_DATA:
                table = found[name].setdefault(member, {})
                _add_second(database, table, key[_V2_HEAD.size :], value, has_queues=name == _OFFSETS)
        except (struct.error, IndexError) as error:
            expected = "a record of configuration as ConfigStorage writes it"
            raise CorruptStoreError(database.place, 0, expected, f"the key {key[:80]!r}") from error
    return {name: _Kept(raw, is_merged=False) for name, raw in found.items()}


def _version(value: bytes) -> Members:
    state, timestamp, counter = _V2_VERSION_VALUE.unpack(value)
    return {"stateVersion": state, "timestamp": timestamp, "counter": counter}


def _add_second(
    database: _ConfigDatabase, table: Members, rest: bytes, value: bytes, *, has_queues: bool
) -> None:
    """Adds a record to its table. `rest` is its key behind the head: a name; or a group, a topic and a queue
    id, whose value is an offset.
    """
    first, rest = _name(rest)
    if has_queues:
        topic, rest = _name(rest[1:])
        (queue_id,), (offset,) = struct.unpack(">i", rest[1:]), struct.unpack(">q", value)
        table.setdefault(f"{topic}@{first}", {})[str(queue_id)] = offset
    elif value[0] == _V2_JSON:  # a broker skips every other kind
        table[first] = database.json(value[1:], first)


def _name(data: bytes) -> tuple[str, bytes]:
    (length,) = struct.unpack_from(">H", data)
    if len(data) < 2 + length:
        raise IndexError(length)
    return decode_utf8(data[2 : 2 + length]), data[2 + length :]
