"""Index files against themselves and against the commitlog: counts, slots and chains, and whether entries
lead to messages of their key.

The links of a sound file name every unit exactly once, from a later unit or a slot of the same hash; so one
pass with one byte a unit tells what is wrong, without following a chain.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.diagnose.commitlog import Lost
from store_format.diagnose.files import INDEX_ADVICE, checked_files
from store_format.diagnose.index_links import check_links
from store_format.diagnose.problems import Findings, Severity
from store_format.errors import CorruptStoreError
from store_format.files.read import FileView
from store_format.index.file import IndexFile, IndexHeader, key_hash_many
from store_format.index.geometry import DEFAULT_GEOMETRY, IndexGeometry
from store_format.layouts import INDEX_UNIT
from store_format.message.locate import Units, locate
from store_format.message.property_table import PropertyTable
from store_format.names import KEYS, TAGS, UNIQ_KEY

__all__ = ["check_index_files"]

_NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
_CHUNK_UNITS = 1 << 16


def check_index_files(
    findings: Findings, directory: str, log: CommitLog, state: StoreState, log_end: int, lost: Lost
) -> None:
    """Every file of the directory. Entries older than the log are expired, those that lead to lost messages
    are not at fault.
    """
    listed = checked_files(findings, directory, _NAME, "17 digits")
    likely = DEFAULT_GEOMETRY
    opened: list[IndexFile] = []
    for entry in listed:
        try:
            opened.append(IndexFile.open(entry.path, likely=likely))
        except FileNotFoundError:
            continue  # retention took it meanwhile
        except CorruptStoreError as error:
            findings.add_error("damage", error, INDEX_ADVICE)
            continue
        likely = opened[-1].geometry or likely
    for file in opened:
        with file:
            _check_file(findings, _with_geometry(file, likely), log, state, log_end, lost)


def _with_geometry(file: IndexFile, likely: IndexGeometry) -> IndexFile:
    """A damaged file proves no geometry; then that of the others is taken, if it has their length."""
    if file.geometry is None and file.size == likely.file_size:
        return IndexFile(FileView(file.path), likely)
    return file


def _check_file(
    findings: Findings, file: IndexFile, log: CommitLog, state: StoreState, log_end: int, lost: Lost
) -> None:
    header = file.header()
    if header.index_count <= 1:
        return
    if file.geometry is None:
        expected = "units that prove the numbers of hash slots and units"
        found = f"{header.index_count - 1} units that do not, in {file.size} bytes"
        # While a commit writes, slots lead to units that the header does not count yet.
        if state is not StoreState.LIVE:
            findings.add("damage", file.path, 36, expected, found, INDEX_ADVICE)
        return
    if header.index_count > file.geometry.index_num:
        findings.add(
            "damage",
            file.path,
            36,
            f"an index count of at most {file.geometry.index_num}",
            str(header.index_count),
            INDEX_ADVICE,
        )
    units = file.units()
    _check_header(findings, file, header, units)
    # units whose hash is not of their message; by number, which counts from 1
    foreign = np.zeros(len(units) + 1, bool)
    behind = _check_targets(findings, file, file.geometry, units, foreign, log, log_end, lost)
    if behind and state is not StoreState.LIVE:
        severity: Severity = "damage" if state is StoreState.CLEAN else "warning"
        position = file.geometry.units_start + INDEX_UNIT.itemsize * behind[0] + 4
        expected = f"units that lead to messages before the log's end, {log_end}"
        advice = "A broker that starts on a crashed store deletes such files (IndexService.load)"
        findings.add(
            severity, file.path, position, expected, f"{behind[1]} units that lead behind it", advice
        )
    check_links(findings, file, file.geometry, header, units, foreign, is_live=state is StoreState.LIVE)


def _check_header(findings: Findings, file: IndexFile, header: IndexHeader, units: NDArray[np.void]) -> None:
    if not len(units):
        return
    first, last = int(units["physical_offset"][0]), int(units["physical_offset"][-1])
    if header.begin_physical_offset != first:
        expected = f"beginPhyOffset {first}, as in the first unit"
        findings.add("damage", file.path, 16, expected, str(header.begin_physical_offset), INDEX_ADVICE)
    # A broker counts a unit before it notes its offset.
    if header.end_physical_offset not in units["physical_offset"][-2:]:
        findings.add(
            "damage",
            file.path,
            24,
            f"endPhyOffset {last}, as in the last unit",
            str(header.end_physical_offset),
            INDEX_ADVICE,
        )


def _check_targets(
    findings: Findings,
    file: IndexFile,
    geometry: IndexGeometry,
    units: NDArray[np.void],
    foreign: NDArray[np.bool_],
    log: CommitLog,
    log_end: int,
    lost: Lost,
) -> tuple[int, int] | None:
    """Marks units of a wrong hash in `foreign`. The first unit that leads behind the log's end, and how many
    do; None without.
    """
    behind: tuple[int, int] | None = None
    for start in range(0, len(units), _CHUNK_UNITS):
        part = units[start : start + _CHUNK_UNITS]
        physical = part["physical_offset"].astype(np.int64)
        gone = lost.contains(physical)
        late = np.flatnonzero((physical >= log_end) & ~gone)
        if len(late):
            behind = (
                (start + 1 + int(late[0]), len(late))
                if behind is None
                else (behind[0], behind[1] + len(late))
            )
        inside = np.flatnonzero((physical >= log.min_offset) & (physical < log_end) & ~gone)
        files = log.file_index(physical[inside])
        for index in np.unique(files[files >= 0]).tolist():
            rows = inside[files == index]
            for row, wrong_offset, expected, found in _wrong_units(log, index, part, rows):
                number = start + 1 + row
                foreign[number] = not wrong_offset
                position = geometry.units_start + INDEX_UNIT.itemsize * number + (4 if wrong_offset else 0)
                findings.add("damage", file.path, position, expected, found, INDEX_ADVICE)
    return behind


def _wrong_units(
    log: CommitLog, index: int, part: NDArray[np.void], rows: NDArray[np.int64]
) -> list[tuple[int, bool, str, str]]:
    """(row, whether the offset is wrong and not the hash, expected, found) of units that lead into one
    commitlog file.
    """
    file = log.files[index]
    physical, message = np.unique(part["physical_offset"][rows].astype(np.int64), return_inverse=True)
    good, bad = locate(log.refs_at(file, physical), verify_crc=False)
    wrong = []
    place = np.full(len(physical), -1)  # of each message among the good ones
    place[np.setdiff1d(np.arange(len(physical)), [unit.index for unit in bad])] = np.arange(len(good))
    for unit in bad:
        for row in rows[message == unit.index].tolist():
            found = f"{int(physical[unit.index])}, where {unit.error.expected} is expected and {unit.error.found} found"
            wrong.append((row, True, "the physical offset of a message", found))
    hashes = part["key_hash"][rows].astype(np.int64)
    known = place[message] >= 0
    right = np.isin(place[message] << 32 | hashes, _message_hashes(good))
    for i in np.flatnonzero(known & ~right).tolist():
        expected = f"the hash of a key of the message at {int(physical[message[i]])}"
        wrong.append((int(rows[i]), False, expected, str(int(hashes[i]))))
    return wrong


def _message_hashes(units: Units) -> NDArray[np.int64]:
    """message number << 32 | hash, of every key a broker may have indexed (IndexService.buildIndex)."""
    table = PropertyTable(units.raw_properties())
    topics = units.stored_topics().cast(pa.binary())
    words = pc.split_pattern(table.values(KEYS), " ")
    parents = pc.list_parent_indices(words)
    numbers = pa.array(np.arange(len(units), dtype=np.int64))
    found = []
    for of, keys, mark in (
        (numbers, table.values(UNIQ_KEY), b"#"),
        (parents.cast(pa.int64()), pc.list_flatten(words), b"#"),
        (numbers, table.values(TAGS), b"#T#"),
    ):
        texts = pc.binary_join_element_wise(topics.take(of), keys.cast(pa.binary()), mark)
        present = texts.is_valid().to_numpy(zero_copy_only=False)
        hashes = key_hash_many(texts).astype(np.int64)
        found.append((of.to_numpy(zero_copy_only=False) << 32 | hashes)[present])
    return np.concatenate(found)
