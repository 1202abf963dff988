"""Index files against themselves and against the commitlog: counts, slots, chains, and the keys of the
messages that units point to.

The messages of the log say which entries a file must have, and the entries say what its links must be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.bookkeeping.journal import StoreState
from store_format.commit.log_comparison import RecoverOptions
from store_format.commit.rebuilt_index import IndexCheck
from store_format.commitlog.log import CommitLog
from store_format.diagnose.commitlog import Lost, Targets
from store_format.diagnose.files import checked_files
from store_format.diagnose.problems import INDEX_ADVICE, Findings, Severity
from store_format.errors import CorruptStoreError, OptionError
from store_format.files.read import files_at
from store_format.index.file import (
    DEFAULT_GEOMETRY,
    IndexFile,
    IndexGeometry,
    IndexHeader,
    key_hash_many,
    list_index_files,
    wrong_links,
)
from store_format.index.updates import index_batch
from store_format.layouts import INDEX_UNIT
from store_format.message.locate import UnitRefs, Units, locate
from store_format.message.properties import PropertyTable
from store_format.metadata.read import read_checkpoint
from store_format.names import KEYS, TAGS, UNIQ_KEY
from store_format.opened.store import Opened

_NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
_CHUNK_UNITS = 1 << 16
_BEGIN_OFFSET_AT, _END_OFFSET_AT, _COUNT_AT = 16, 24, 36  # in the header
_PHYSICAL_OFFSET_AT = 4  # in a unit
_SHOWN_MAX = 100  # wrong links of a file, and wrong units of a part of it
_KEYS_MAX = 1 << 14  # of a message: its properties have 32,767 bytes
_MISSING_ADVICE = (
    "A search finds these messages by a scan of the commitlog, a broker does not find them by key or id. "
    "rmqlog recover writes the entries"
)


# ---- index files -------------------------------------------------------------------------------------------


def check_index_files(
    findings: Findings, directory: str, log: CommitLog, state: StoreState, log_end: int, lost: Lost
) -> None:
    """Checks every file of the directory. Units that point before the log or to lost messages are right."""
    listed = checked_files(findings, directory, _NAME, "17 digits", may_refuse=False)  # IndexService.load
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
        return IndexFile(files_at(file.path).view(file.path), likely)
    return file


def _check_file(findings: Findings, file: IndexFile, state: StoreState, targets: Targets) -> None:
    """Checks the header, the messages that units point to, and the links of one file."""
    header = file.header()
    if header.index_count <= 1:
        # with a known geometry the entries that the file lacks are counted; it may rightly have none
        if file.geometry is None and state is not StoreState.LIVE:
            expected, found = "a header that counts units", "none: the file is blank"
            findings.add("warning", file.path, 0, expected, found, INDEX_ADVICE)
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
    if file.is_over(targets.log.min_offset):
        return
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
    _check_links(findings, file, foreign, is_live=state is StoreState.LIVE)


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
    highest = 0
    for start, part in _chunks(file, len(foreign)):
        physical = part["physical_offset"].astype(np.int64)
        # Units ascend (IndexService.buildIndex): only the first ones can be of expired messages.
        in_log = np.where(physical < targets.end, physical, 0)
        before = np.maximum.accumulate(np.append(highest, in_log))
        highest = int(before[-1])
        wrong = (physical < 0) | ((physical < targets.log.min_offset) & (physical < before[:-1]))
        for row in np.flatnonzero(wrong)[:_SHOWN_MAX].tolist():
            position = geometry.units_start + INDEX_UNIT.itemsize * (start + row) + _PHYSICAL_OFFSET_AT
            expected, found = f"a physical offset of at least {before[row]}", str(physical[row])
            findings.add("damage", file.path, position, expected, found, INDEX_ADVICE)
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
    if kernels.ready(len(rows)):
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


def _check_links(findings: Findings, file: IndexFile, foreign: NDArray[np.bool_], *, is_live: bool) -> None:
    """Reports wrong links, except those of units in `foreign`: their slot is not known."""
    shown = 0
    for link in wrong_links(file, len(foreign), is_live=is_live):
        found = link.found if 0 < link.found < len(foreign) else 0
        if foreign[[link.number, link.right, found] if link.what else slice(None)].any():
            continue
        expected = f"a link from {link.what} to unit {link.right}"
        if not link.what:
            expected = f"{link.right} hash slots in use, as there are"
        elif not link.right:
            expected = f"no link from {link.what}"
        what = f"unit {link.found}" if link.what else str(link.found)
        findings.add("damage", file.path, link.position, expected, what, INDEX_ADVICE)
        shown += 1
        if shown == _SHOWN_MAX:
            return


# ---- messages without an entry -----------------------------------------------------------------------------


def open_index_check(opened: Opened, log: CommitLog, log_end: int, state: StoreState) -> IndexCheck | None:
    """The index of a store that was stopped in order, to be compared with the log; None if it has none.

    The index of a store in use, or after a crash of its broker, ends before the log.
    """
    if state is not StoreState.CLEAN:
        return None
    with suppress(CorruptStoreError, OptionError):  # another check reports it
        checkpoint = read_checkpoint(f"{opened.path}/checkpoint")
        geometry = RecoverOptions().settings_of(opened, log).geometry
        check = IndexCheck.open(opened, geometry, log.min_offset, log_end)
        has_time = checkpoint is not None and checkpoint.index_msg_timestamp > 0
        if has_time or not check.is_empty or list_index_files(check.directory):
            return check
    return None


def add_messages(check: IndexCheck, refs: UnitRefs, *, tag_keys: bool) -> None:
    """Compares the next messages of the log. A broker before 5.4 that has written some of them indexes no
    tags, and nothing is missing then.
    """
    before = check.missing, check.missing_from
    check.add(index_batch(refs, tag_keys=tag_keys))
    if tag_keys and check.missing > before[0]:
        check.missing, check.missing_from = before
        check.add(index_batch(refs, tag_keys=False))


def report_missing_entries(findings: Findings, check: IndexCheck) -> None:
    """Reports the messages that the index lacks, unless its files are damaged, which is reported."""
    if check.missing and not any(problem.file.startswith(check.directory) for problem in findings.problems()):
        expected = "an index entry for each key of each message"
        found = f"{check.missing} missing, the first of the message at commitlog {check.missing_from}"
        findings.add("warning", check.directory, 0, expected, found, _MISSING_ADVICE)
