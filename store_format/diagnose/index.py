"""Index files against themselves and against the commitlog: counts, slots, chains, and the keys of the
messages that units point to.

The units of a sound file say what its links must be: a unit leads to the unit before it in its slot, and a
slot to its newest unit. One pass compares them, without following a chain: a link to a later unit would lead
a broker in a circle, and a link that skips units hides their messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.bookkeeping.state import StoreState
from store_format.commitlog.log import CommitLog
from store_format.diagnose.commitlog import Lost, Targets
from store_format.diagnose.files import INDEX_ADVICE, checked_files
from store_format.diagnose.problems import Findings, Severity
from store_format.errors import CorruptStoreError
from store_format.files.view import FileView
from store_format.index.file import DEFAULT_GEOMETRY, IndexFile, IndexGeometry, IndexHeader, key_hash_many
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT
from store_format.message.locate import Units, locate
from store_format.message.property_table import PropertyTable
from store_format.message.unit_refs import UnitRefs
from store_format.names import KEYS, TAGS, UNIQ_KEY

_NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
_CHUNK_UNITS = 1 << 16
_BEGIN_OFFSET_AT, _END_OFFSET_AT, _SLOT_COUNT_AT, _COUNT_AT = 16, 24, 32, 36  # in the header
_PHYSICAL_OFFSET_AT, _PREV_AT = 4, 16  # in a unit
_LINKS_SHOWN_MAX = 100  # of a file
_KEYS_MAX = 1 << 14  # of a message: its properties have 32,767 bytes


def check_index_files(
    findings: Findings, directory: str, log: CommitLog, state: StoreState, log_end: int, lost: Lost
) -> None:
    """Checks every file of the directory. Units that point before the log or to lost messages are right."""
    listed = checked_files(findings, directory, _NAME, "17 digits")
    likely = DEFAULT_GEOMETRY
    opened: list[IndexFile] = []
    for entry in listed:
        try:
            opened.append(IndexFile.open(entry.path, likely=likely))
        except FileNotFoundError:
            continue  # retention has deleted it since the listing
        except CorruptStoreError as error:
            findings.add_error("damage", error, INDEX_ADVICE)
            continue
        likely = opened[-1].geometry or likely
    targets = Targets(log, log_end, lost)
    for file in opened:
        with file:
            _check_file(findings, _with_likely_geometry(file, likely), state, targets)


def _with_likely_geometry(file: IndexFile, likely: IndexGeometry) -> IndexFile:
    """The file with the geometry of the other files, if its own units prove none and it has their length."""
    if file.geometry is None and file.size == likely.file_size:
        return IndexFile(FileView(file.path), likely)
    return file


def _check_file(findings: Findings, file: IndexFile, state: StoreState, targets: Targets) -> None:
    """Checks the header, the messages that units point to, and the links of one file."""
    header = file.header()
    if header.index_count <= 1:
        return
    if file.geometry is None:
        expected = "units that prove the numbers of hash slots and units"
        found = f"{header.index_count - 1} units that do not, in {file.size} bytes"
        # While a commit is writing, slots point to units that the header does not count yet.
        if state is not StoreState.LIVE:
            findings.add("damage", file.path, _COUNT_AT, expected, found, INDEX_ADVICE)
        return
    if header.index_count > file.geometry.index_num:
        expected = f"an index count of at most {file.geometry.index_num}"
        findings.add("damage", file.path, _COUNT_AT, expected, str(header.index_count), INDEX_ADVICE)
    foreign = np.zeros(file.stop, bool)  # units with the hash of no key of their message, by number
    _check_header(findings, file, header)
    behind = _check_targets(findings, file, file.geometry, foreign, targets)
    if behind and state is not StoreState.LIVE:
        severity: Severity = "damage" if state is StoreState.CLEAN else "warning"
        position = file.geometry.units_start + INDEX_UNIT.itemsize * behind[0] + _PHYSICAL_OFFSET_AT
        expected = f"units that point to messages before the log's end, {targets.end}"
        found = f"{behind[1]} units that point behind it"
        advice = "A broker that starts on a crashed store deletes such files (IndexService.load)"
        findings.add(severity, file.path, position, expected, found, advice)
    _check_links(findings, file, file.geometry, header, foreign, is_live=state is StoreState.LIVE)


def _chunks(file: IndexFile, stop: int) -> Iterator[tuple[int, NDArray[np.void]]]:
    """(number of the first unit, units) up to unit `stop`: more may be written meanwhile."""
    for start in range(1, stop, _CHUNK_UNITS):
        yield start, file.units(start, min(start + _CHUNK_UNITS, stop))


def _check_header(findings: Findings, file: IndexFile, header: IndexHeader) -> None:
    stop = file.stop
    if stop <= 1:
        return
    newest = file.units(stop - 2, stop)["physical_offset"].tolist()
    first, last = int(file.units(1, 2)["physical_offset"][0]), newest[-1]
    if header.begin_physical_offset != first:
        expected = f"beginPhyOffset {first}, as in the first unit"
        findings.add(
            "damage", file.path, _BEGIN_OFFSET_AT, expected, str(header.begin_physical_offset), INDEX_ADVICE
        )
    # A broker that is writing has counted the last unit before it stores the end offset.
    if header.end_physical_offset not in newest:
        expected, found = f"endPhyOffset {last}, as in the last unit", str(header.end_physical_offset)
        findings.add("damage", file.path, _END_OFFSET_AT, expected, found, INDEX_ADVICE)


def _check_targets(
    findings: Findings,
    file: IndexFile,
    geometry: IndexGeometry,
    foreign: NDArray[np.bool_],
    targets: Targets,
) -> tuple[int, int] | None:
    """Reports units that point to no message, or to one without their key, and marks the latter in `foreign`.

    Returns the number of the first unit that points behind the log's end, and how many do; None without one.
    """
    behind: tuple[int, int] | None = None
    for start, part in _chunks(file, len(foreign)):
        physical = part["physical_offset"].astype(np.int64)
        late = np.flatnonzero((physical >= targets.end) & ~targets.lost.contains(physical))
        if len(late):
            first, count = behind or (start + int(late[0]), 0)
            behind = first, count + len(late)
        inside = np.flatnonzero(targets.readable(physical))
        files = targets.log.file_index(physical[inside])
        for index in np.unique(files[files >= 0]).tolist():
            for row, wrong_offset, expected, found in _wrong_units(
                targets.log, index, part, inside[files == index]
            ):
                number = start + row
                foreign[number] = not wrong_offset
                position = geometry.units_start + INDEX_UNIT.itemsize * number
                position += _PHYSICAL_OFFSET_AT if wrong_offset else 0
                findings.add("damage", file.path, position, expected, found, INDEX_ADVICE)
    return behind


def _wrong_units(
    log: CommitLog, index: int, part: NDArray[np.void], rows: NDArray[np.int64]
) -> Iterator[tuple[int, bool, str, str]]:
    """(row, whether the offset is wrong, not the hash, expected, found) of units into one file."""
    physical, message = np.unique(part["physical_offset"][rows].astype(np.int64), return_inverse=True)
    for mine, refs in log.refs_at(log.files[index], physical):
        here = np.flatnonzero((message >= mine.start) & (message < mine.stop))
        yield from _wrong_in(refs, part, rows[here], message[here] - mine.start)


def _wrong_in(
    refs: UnitRefs, part: NDArray[np.void], rows: NDArray[np.int64], message: NDArray[np.int64]
) -> Iterator[tuple[int, bool, str, str]]:
    """`_wrong_units` among units whose messages are in `refs`: that of rows[i] has the number message[i]."""
    if kernels.worth(len(rows)):
        hashes, doubtful = np.empty(_KEYS_MAX, np.int32), np.empty(len(rows), np.int64)
        count = kernels.dispatch.doubtful_keys(
            part.view(np.uint8), rows, message, refs.buffer, refs.positions, refs.sizes, hashes, doubtful
        )
        kept = np.isin(rows, doubtful[:count])
        rows, message = rows[kept], message[kept]
        if not len(rows):
            return
    physical = refs.physical_offsets
    good, bad = locate(refs.select(chosen := np.unique(message)), verify_crc=False)
    place = np.full(len(refs), -1)  # the number of each message among the good ones
    place[np.setdiff1d(chosen, chosen[[unit.index for unit in bad]])] = np.arange(len(good))
    for unit in bad:
        number = int(chosen[unit.index])
        for row in rows[message == number].tolist():
            error = unit.error
            found = f"{int(physical[number])}, where {error.expected} is expected and {error.found} found"
            yield row, True, "the physical offset of a message", found
    wanted = part["key_hash"][rows].astype(np.int64)
    known = place[message] >= 0
    right = np.isin(place[message] << 32 | wanted, _message_hashes(good))
    for i in np.flatnonzero(known & ~right).tolist():
        expected = f"the hash of a key of the message at {int(physical[message[i]])}"
        yield int(rows[i]), False, expected, str(int(wanted[i]))


def _message_hashes(units: Units) -> NDArray[np.int64]:
    """message number << 32 | hash, for every key that a broker may have indexed (IndexService.buildIndex)."""
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


def _check_links(
    findings: Findings,
    file: IndexFile,
    geometry: IndexGeometry,
    header: IndexHeader,
    foreign: NDArray[np.bool_],
    *,
    is_live: bool,
) -> None:
    """Reports links of units and slots that are others than IndexFile.putKey writes.

    The slot of a unit in `foreign` is not known, because its hash is wrong. While a broker or a commit writes
    (`is_live`), slots may lead to older units, or to units that the header does not count yet.
    """
    newest = np.zeros(geometry.hash_slot_num, np.int32)
    shown = 0

    def report(position: int, number: int, what: str, right: int, found: int) -> None:
        nonlocal shown
        if not foreign[[number, right, found if 0 < found < len(foreign) else 0]].any():
            shown += 1
            expected = f"a link from {what} to unit {right}" if right else f"no link from {what}"
            findings.add("damage", file.path, position, expected, f"unit {found}", INDEX_ADVICE)

    for start, units in _chunks(file, len(foreign)):
        slots = units["key_hash"].astype(np.int64) % geometry.hash_slot_num
        numbers = np.arange(start, start + len(units), dtype=np.int32)
        order = np.argsort(slots, kind="stable")
        previous = newest[slots]
        again = np.flatnonzero(np.diff(slots[order]) == 0)
        previous[order[again + 1]] = numbers[order[again]]
        newest[slots[order]] = numbers[order]  # of a slot's units the last one stays
        for i in np.flatnonzero(units["prev_index"] != previous).tolist():
            if shown < _LINKS_SHOWN_MAX:
                number, right = start + i, int(previous[i])
                position = geometry.units_start + INDEX_UNIT.itemsize * number + _PREV_AT
                report(position, number, f"unit {number}", right, int(units["prev_index"][i]))
    for start in range(0, len(newest), _CHUNK_UNITS):
        stored = file.slots(start, start + _CHUNK_UNITS)
        wanted = newest[start : start + len(stored)]
        wrong = stored != wanted
        if is_live:
            wrong &= (stored > wanted) & (stored < len(foreign))
        for i in np.flatnonzero(wrong).tolist():
            if shown < _LINKS_SHOWN_MAX:
                position = INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * (start + i)
                report(position, 0, f"slot {start + i}", int(wanted[i]), int(stored[i]))
    used = int(np.count_nonzero(newest))
    if used != header.hash_slot_count and not is_live and not foreign.any():
        expected, found = f"{used} hash slots in use, as there are", str(header.hash_slot_count)
        findings.add("damage", file.path, _SLOT_COUNT_AT, expected, found, INDEX_ADVICE)
