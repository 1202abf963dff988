"""How a journal and a ledger name what they write from and to: staged files, commitlogs, stores of a cluster.

A staged pair of files has a handle of plain values, sizes and checksums. Spark sends it to the driver and a
journal stores it, so that the commit can check that it reads what the task wrote.

No name is a place that a copy or a rename leaves behind. A commitlog directory inside the store is named by
its path below the root. A directory outside has an id in a file beside it, and each store that took part in a
commit over a cluster has an id in `.rmqlog/id`. Copies have the ids of their originals, so an id says only
that something is not another store.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, TypeVar

from store_format.errors import CorruptStoreError, StoreWriteError
from store_format.files import paths
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.names import QueueKey
from store_format.opened.store import Opened

# ---- the JSON files of this project ------------------------------------------------------------------------


_TYPES = {"int": int, "bool": bool, "str": str}
_NUMBER_MAX, _LARGE_MAX = 1 << 62, 1 << 64
_LARGE = ("bodies", "number")
_Parsed = TypeVar("_Parsed")


def refuse_types(value: Any) -> None:  # Any: a dataclass
    """Raises ValueError if a field that was read from JSON has another type than the dataclass says, or if a
    number has more than 62 bits (64 in the fields `bodies` and `number`).
    """
    for each in fields(value):
        held, kind = getattr(value, each.name), _TYPES.get(str(each.type))
        limit = _LARGE_MAX if each.name in _LARGE else _NUMBER_MAX
        is_wrong = kind is not None and type(held) is not kind
        if is_wrong or (isinstance(held, int) and not -limit < held < limit):
            raise ValueError(f"{each.name} {held!r:.100}")


def parsed_json(data: bytes, path: str, what: str, parse: Callable[[Any], _Parsed]) -> _Parsed:  # Any: JSON
    """What `parse` makes of a file of this project. Raises CorruptStoreError if the file is no such thing."""
    try:
        return parse(json.loads(data))
    except json.JSONDecodeError as error:
        raise CorruptStoreError(path, error.pos, what, f"no JSON ({error.msg})") from error
    except KeyError as error:
        raise CorruptStoreError(path, 0, what, f"JSON without the member {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise CorruptStoreError(path, 0, what, f"JSON of another form ({error})") from error


def read_note(path: str, what: str, parse: Callable[[Any], _Parsed]) -> _Parsed | None:  # Any: JSON
    """The value of the file; None without the file. Raises what `parsed_json` raises."""
    data = files_at(path).read(path)
    return None if data is None else parsed_json(data, path, what, parse)


def write_note(path: str, value: Mapping[str, Any], files: FileWrites) -> None:  # Any: JSON
    files.replace(path, note_bytes(value))


def note_bytes(value: Mapping[str, Any]) -> bytes:  # Any: JSON
    return json.dumps({"version": 1, **value}).encode()


def is_lost(data: bytes | None) -> bool:
    """Whether these are the bytes of a JSON file that was renamed into its place, and never reached the disk.

    Such a file has no byte, or bytes of zeros, which no JSON text has.
    """
    return data is not None and (not data or b"\0" in data)


# ---- a staged pair of files --------------------------------------------------------------------------------


STAGING = "staging"  # in `.rmqlog`
RECORDS_SUFFIX = ".records"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged pair `<name>.records` and `<name>.meta` of a write."""

    write: str
    name: str
    units: int
    records_size: int
    records_sum: int
    meta_size: int
    meta_sum: int
    queues: tuple[QueueKey, ...]  # (topic, queue id) by queue number
    crc_property: bool
    unit_size_max: int
    parked: tuple[QueueKey, ...] = ()  # the queues to which its delayed messages go later
    bodies: int = 0  # sum over the bodies, to compare batches (`StagingWriter.append`)

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StagedFile:
        queues = {
            name: tuple((str(topic), int(queue_id)) for topic, queue_id in value[name])
            for name in ("queues", "parked")
        }
        staged = StagedFile(**{**value, **queues})
        refuse_types(staged)
        return staged

    @staticmethod
    def totals(staged: Iterable[StagedFile]) -> tuple[int, int]:
        """(The number of messages, the sum of their bodies)."""
        files = [*staged]
        return sum(each.units for each in files), sum(each.bodies for each in files) % (1 << 64)

    @staticmethod
    def directory(opened: Opened, write: str) -> str:
        return opened.own(f"{STAGING}/{write}")

    def records_path(self, opened: Opened) -> str:
        return f"{StagedFile.directory(opened, self.write)}/{self.name}{RECORDS_SUFFIX}"

    def meta_path(self, opened: Opened) -> str:
        return f"{StagedFile.directory(opened, self.write)}/{self.name}.meta"


_ID_SIZE_MAX = 256
_NAME_SIZE_MAX, _PATH_SIZE_MAX = 255, 4095  # bytes, of Linux


# ---- commitlogs and stores ---------------------------------------------------------------------------------


class LogPlace(NamedTuple):
    """A commitlog directory: `path` below the store's root, or outside of it with an `id`.

    The path of a directory outside is where it was, and only errors show it.
    """

    path: str
    id: str = ""

    @staticmethod
    def of(opened: Opened, directory: str, files: FileWrites) -> LogPlace:
        """The name of a commitlog directory. A directory outside of the store gets an id if it has none."""
        real_root, real = paths.real(opened.path), paths.real(directory)
        if paths.is_inside(real, real_root):
            return LogPlace(paths.relative(real, real_root))
        path = LogPlace.id_path(directory)
        try:
            return LogPlace(paths.absolute(directory), _made_id(path, files))
        except StoreWriteError as error:
            # Only root changes the directory of some mount points.
            raise StoreWriteError(
                f"{path}: cannot write the id of the commitlog directory beside it: {error}. Nothing was "
                "written. Let a user who may write there create the file once: "
                f"echo {secrets.token_hex(8)} > {shlex.quote(path)}"
            ) from error

    def is_at(self, opened: Opened, directory: str) -> bool:
        """Whether `directory` is this place of the store at `opened`, as far as its id or its path says."""
        if self.id:
            return _read_id(LogPlace.id_path(directory)) == self.id
        return paths.real(paths.join(opened.path, self.path)) == paths.real(directory)

    @staticmethod
    def id_path(directory: str) -> str:
        """The file with the id of a commitlog directory outside of its store.

        It is beside the directory: a 4.9 broker does not start with anything but its files in the directory
        (MappedFileQueue.doLoad), a directory included.
        """
        return f"{paths.real(directory)}.rmqlog-id"


class ClusterMember(NamedTuple):
    """A store of a commit over a cluster: its name in the cluster's directory, and its id."""

    name: str
    id: str

    @staticmethod
    def of(opened: Opened, files: FileWrites) -> ClusterMember:
        """The name of a store in the commits of its cluster. The store gets an id if it has none."""
        return ClusterMember(_name_of(opened), _made_id(opened.own("id"), files))

    @staticmethod
    def id_of(opened: Opened) -> str | None:
        """The id of the store at `opened`; None for a missing store, and for a store without an id."""
        return _read_id(opened.own("id"))

    def path_beside(self, opened: Opened) -> str:
        """Where the store at `opened` expects this store of its cluster: beside itself."""
        return paths.join(paths.parent(paths.absolute(opened.path)), self.name)

    @staticmethod
    def separate_copies(
        roots: Iterable[str], is_known: Callable[[str, ClusterMember], bool], files: FileWrites
    ) -> None:
        """Gives a store that has the id of another of these stores, because it is a copy, an id of its own.

        The store that `is_known` under its name keeps the id, else the first one.
        """
        by_id: dict[str, list[str]] = {}
        for root in roots:
            id_ = ClusterMember.id_of(Opened(root))
            if id_ is not None:
                by_id.setdefault(id_, []).append(root)
        for id_, same in by_id.items():
            kept = next(
                (root for root in same if is_known(root, ClusterMember(_name_of(Opened(root)), id_))), same[0]
            )
            for root in same:
                if root != kept:
                    _make_id(Opened(root).own("id"), files)


def _name_of(opened: Opened) -> str:
    return paths.base_name(paths.absolute(opened.path))


def members_from(values: object) -> tuple[ClusterMember, ...]:
    """Members from JSON. Raises ValueError for a name that leads out of the cluster's directory."""
    if not isinstance(values, list):
        raise ValueError(f"members {values!r:.100}")
    return tuple(map(_member_from, values))


def _member_from(value: object) -> ClusterMember:
    match value:
        case [str(name), str(id_)] if id_ and is_name(name):
            return ClusterMember(name, id_)
    raise ValueError(f"the store {value!r:.100}")


def is_name(text: str) -> bool:
    """Whether the text can name a file in a directory, and not one elsewhere. Raises as `is_path` does."""
    is_single = text not in (".", "..") and "/" not in text
    return is_path(text) and is_single and len(os.fsencode(text)) <= _NAME_SIZE_MAX


def is_path(text: str) -> bool:
    """Whether the text can be a path. Raises ValueError for characters that no path has."""
    return bool(text) and "\0" not in text and len(os.fsencode(text)) <= _PATH_SIZE_MAX


def _read_id(path: str) -> str | None:
    try:
        data = files_at(path).read(path, _ID_SIZE_MAX)
    except NotADirectoryError:
        return None
    return None if data is None else data.decode("ascii", "replace").strip() or None


def _made_id(path: str, files: FileWrites) -> str:
    return _read_id(path) or _make_id(path, files)


def _make_id(path: str, files: FileWrites) -> str:
    made = secrets.token_hex(8)
    files.replace(path, f"{made}\n".encode())
    return made
