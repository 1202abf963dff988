"""One index file: a hash table from `topic#key` to commitlog offsets, chained newest first (IndexFile,
IndexHeader, spec 4).

The file has only a 31-bit hash of the key. So every result is a candidate; the topic and the keys of its
message decide.
"""

from __future__ import annotations

import datetime
import re
import struct
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from types import TracebackType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.errors import OptionError
from store_format.files.read import FileView, StoreFile, list_store_files
from store_format.index.geometry import DEFAULT_GEOMETRY, IndexGeometry, confirms, infer_geometry
from store_format.index.slots import IndexSlots
from store_format.java.hashes import java_hash, java_hash_many
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, as_struct, unpack

_NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
_HEADER, _UNIT = as_struct(INDEX_HEADER), as_struct(INDEX_UNIT)
_SLOT = struct.Struct(">i")


def index_key(topic: str, key: str, index_type: str | None = None) -> str:
    """The text whose hash is stored (IndexService.buildKey). Type "T" is for tags, indexed from 5.4 on.

    >>> index_key("Orders", "1001"), index_key("Orders", "TagA", "T")
    ('Orders#1001', 'Orders#T#TagA')
    """
    return f"{topic}#T#{key}" if index_type == "T" else f"{topic}#{key}"


def key_hash(text: str) -> int:
    """|Java hash|, and 0 for -2^31, which has no absolute value in 32 bits (IndexFile.indexKeyHashMethod)."""
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def key_hash_many(texts: pa.Array) -> NDArray[np.int32]:
    """`key_hash` of every element."""
    return np.maximum(np.abs(java_hash_many(texts)), np.int32(0))  # numpy too leaves -2^31 as it is


def index_file_name(timestamp: int, zone: datetime.tzinfo) -> str:
    """The name that a broker in `zone` gives at `timestamp` (ms) (UtilAll.timeMillisToHumanString).

    >>> index_file_name(1700000000123, datetime.timezone.utc)
    '20231114221320123'
    """
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=timestamp)
    local = moment.astimezone(zone)
    return f"{local:%Y%m%d%H%M%S}{local.microsecond // 1000:03d}"


def list_index_files(directory: str) -> list[StoreFile]:
    """The index files by name, in the broker's order (IndexService.load); [] without the directory.

    Names are 17 digits of local time, so after a change of the clock a later file can have a lower name.
    Entries with other names are skipped. Raises CorruptStoreError for a link.
    """
    return list_store_files(directory, _NAME)


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header (IndexHeader.load). `index_count` is the number of the next unit, 1 in an empty file."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int

    def to_bytes(self) -> bytes:
        return _HEADER.pack(*astuple(self))


class IndexFile:
    """An index file open for reading. `geometry` is None if no option sets it and the units do not prove it.

    Use it as a context manager; otherwise garbage collection closes it.
    """

    def __init__(self, view: FileView, geometry: IndexGeometry | None) -> None:
        self.path = view.path
        self.size = view.size
        self.geometry = geometry
        self._view = view

    @classmethod
    def open(
        cls,
        path: str,
        *,
        hash_slot_num: int | None = None,
        index_num: int | None = None,
        likely: IndexGeometry = DEFAULT_GEOMETRY,
    ) -> IndexFile:
        """Opens the file and finds its geometry.

        One given number gives the other by the file's size. Without numbers the units must prove the
        geometry; `likely` is tried first. Raises OptionError when given numbers do not fit the size, or when
        the units prove others, and FileNotFoundError.
        """
        view = FileView(path)
        try:
            return cls(view, _find_geometry(view, hash_slot_num, index_num, likely))
        except OptionError:
            view.close()
            raise

    def header(self) -> IndexHeader:
        """Reads the header again at each call: a broker may be writing. A short one is filled with zeros."""
        header = IndexHeader(*_HEADER.unpack(self._view.read(0, _HEADER.size).ljust(_HEADER.size, b"\0")))
        return header if header.index_count > 0 else replace(header, index_count=1)

    def units(self, start: int = 1, stop: int | None = None) -> NDArray[np.void]:
        """Units number `start` to `stop` (default: all in use) as INDEX_UNIT: a view of the mapped file."""
        header = self.header()
        stop = header.index_count if stop is None else min(stop, header.index_count)
        start = max(start, 1)
        if stop <= start:
            return np.empty(0, INDEX_UNIT)
        origin = self._geometry().units_start
        stop = min(stop, (self.size - origin) // INDEX_UNIT.itemsize)
        if stop <= start:
            return np.empty(0, INDEX_UNIT)
        return unpack(
            self._view.map()[origin + start * INDEX_UNIT.itemsize : origin + stop * INDEX_UNIT.itemsize],
            INDEX_UNIT,
        )

    def slots(self) -> NDArray[np.int32]:
        """The slots as INDEX_SLOT: a view of the mapped file. A file that ends before its units has fewer."""
        raw = self._view.map()[INDEX_HEADER.itemsize : self._geometry().units_start]
        return np.frombuffer(raw[: len(raw) // INDEX_SLOT.itemsize * INDEX_SLOT.itemsize], INDEX_SLOT)

    def slots_to_change(self) -> IndexSlots:
        """The slots as a copy in memory."""
        return IndexSlots.read(self._view, self._geometry())

    def chain(self, hash_value: int, header: IndexHeader) -> Iterator[tuple[int, int, int, int]]:
        """(unit number, key hash, physical offset, time diff) along a slot's chain, newest first.

        The chain ends where it ends for the broker: at 0, behind index_count, and at a unit that links to
        itself. It also ends at the file's end, and at a link to a later unit, which no broker writes and
        every broker would follow in a circle.
        """
        if header.index_count <= 1:
            return
        geometry = self._geometry()
        buffer = self._view.map().data
        slot_start = INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * (hash_value % geometry.hash_slot_num)
        if slot_start + _SLOT.size > len(buffer):
            return
        (number,) = _SLOT.unpack_from(buffer, slot_start)
        limit = min(header.index_count, (len(buffer) - geometry.units_start) // _UNIT.size - 1)
        while 0 < number <= limit:
            unit_hash, physical_offset, time_diff, prev = _UNIT.unpack_from(
                buffer, geometry.units_start + number * _UNIT.size
            )
            yield number, unit_hash, physical_offset, time_diff
            if prev >= number:
                return
            number = prev

    def _geometry(self) -> IndexGeometry:
        if self.geometry is None:
            raise OptionError(
                f"{self.path}: an index file does not store its numbers of hash slots and units, and this "
                "file's units do not prove them; set maxHashSlotNum and maxIndexNum as in the broker's "
                "configuration"
            )
        return self.geometry

    def close(self) -> None:
        self._view.close()

    def __enter__(self) -> IndexFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_index_files(
    directory: str, *, hash_slot_num: int | None = None, index_num: int | None = None
) -> list[IndexFile]:
    """All index files of a store in the broker's order, without those deleted since the listing.

    The geometry of one file is tried first on the next. Raises as `IndexFile.open`.
    """
    files: list[IndexFile] = []
    likely = DEFAULT_GEOMETRY
    for listed in list_index_files(directory):
        try:
            file = IndexFile.open(
                listed.path, hash_slot_num=hash_slot_num, index_num=index_num, likely=likely
            )
        except FileNotFoundError:
            continue
        files.append(file)
        likely = file.geometry or likely
    return files


def _find_geometry(
    view: FileView, hash_slot_num: int | None, index_num: int | None, likely: IndexGeometry
) -> IndexGeometry | None:
    """The geometry by the given numbers, or the one that the units prove; None if they prove none."""
    if hash_slot_num is None and index_num is None:
        return infer_geometry(view.map(), likely)
    given = _complete(view, hash_slot_num, index_num)
    # Wrong numbers would hide entries silently. A damaged file proves nothing, and the given numbers are
    # used.
    if view.size >= INDEX_HEADER.itemsize and not confirms(view.map(), given):
        proved = infer_geometry(view.map())
        if proved is not None and proved != given:
            raise OptionError(
                f"{view.path}: this file does not have maxHashSlotNum={given.hash_slot_num}, "
                f"maxIndexNum={given.index_num}; its units prove {proved.hash_slot_num} and "
                f"{proved.index_num}"
            )
    return given


def _complete(view: FileView, hash_slot_num: int | None, index_num: int | None) -> IndexGeometry:
    """The geometry with the given numbers; a missing one follows from the file's size."""
    if hash_slot_num is None:
        assert index_num is not None
        hash_slot_num, rest = divmod(
            view.size - INDEX_HEADER.itemsize - INDEX_UNIT.itemsize * index_num, INDEX_SLOT.itemsize
        )
    elif index_num is None:
        index_num, rest = divmod(
            view.size - INDEX_HEADER.itemsize - INDEX_SLOT.itemsize * hash_slot_num, INDEX_UNIT.itemsize
        )
    else:
        rest = 0
    if rest or hash_slot_num < 1 or index_num < 1:
        raise OptionError(
            f"{view.path}: {view.size} bytes are not 40 + 4 * maxHashSlotNum + 20 * maxIndexNum with "
            f"maxHashSlotNum={hash_slot_num}, maxIndexNum={index_num}"
        )
    return IndexGeometry(hash_slot_num, index_num)
