"""Step 5 of a commit: every position is decided, and written down as the journal.

From the journal and the staged files the rest of the commit follows: doing the steps again writes the same
bytes at the same places.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.identity import log_place
from store_format.bookkeeping.journal import Journal, abort_mark
from store_format.bookkeeping.staged_file import StagedFile, staging_path
from store_format.commit.append_position import find_writer_end, gaps_before, queue_append_positions
from store_format.commit.appended_crc import has_crc_property_before
from store_format.commit.checkpoint import note_flushed
from store_format.commit.held_store import HeldStore
from store_format.commit.journal_place import bytes_before
from store_format.commit.repeats import totals
from store_format.commit.staged_units import check_staged
from store_format.commit.staging import TIMES_SUFFIX
from store_format.commit.unsupported import refuse_missing_queues, refuse_timer, refuse_topics
from store_format.commitlog.write import LogLayout
from store_format.errors import OptionError, StoreWriteError
from store_format.files.write import FileWrites
from store_format.index.updates import last_index_file
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig
from store_format.names import QueueKey
from store_format.survey.fates import filed_topics, lost_topics

_log = logging.getLogger(__name__)

# A last message that is further ahead of the clock than this does not move the store times of new messages.
_CLOCK_STEP_MAX_MS = 24 * 3_600_000


def check(held: HeldStore, staged: Sequence[StagedFile], *, records_sum: bool = False) -> tuple[str, ...]:
    """Checks that the staged files are complete and that each message fits into a commitlog file.

    Returns a report for each earlier batch that was cut or overwritten since the last commit. Without
    `records_sum` the checksum of the messages is left to `Publication.append_log`, where a difference can
    still be undone.
    """
    for each in staged:
        check_staged(held.root, each, records_sum=records_sum)
        LogLayout(0, held.settings.mapped_file_size_commit_log).place(
            np.array([each.unit_size_max] if each.units else [])
        )
    reports = tuple(held.ledger.new_reports(held.log))
    for report in reports:
        _log.warning("%s: %s", held.root, report)
    return reports


def plan(
    held: HeldStore,
    staged: tuple[StagedFile, ...],
    *,
    key: tuple[str, int] | None,
    store_timestamps: int | NDArray[np.int64] | None,
    began: int | None = None,
) -> Journal:
    """The journal of a commit to one store: where the log ends, and the next offset of each queue.

    Writes an array of store times into the staging directory, so that the commit can be repeated. Raises
    UnsupportedFormatError and IllegalMessageError for topics and queues that are not written to, and
    StoreWriteError for messages without the CRC property that the log has.
    """
    root, options, files, settings = held.root, held.options, held.files, held.settings
    now = options.clock()
    end = find_writer_end(held)
    queues = tuple(dict.fromkeys(queue for each in staged for queue in each.queues))
    topics: Mapping[str, TopicConfig] = read_topics(root) or {}
    refuse_topics(root, queues, topics)
    refuse_timer(root, {topic for topic, _ in queues}, topics)
    if began is None:  # A broker delivers to the queue that a message names, whatever topics.json says.
        refuse_missing_queues(root, (*queues, *(queue for each in staged for queue in each.parked)), topics)
    _refuse_missing_crc(held, staged, end.offset)
    timestamp, times_name = _store_times(root, staged, store_timestamps, now, files)
    if timestamp < end.last_timestamp <= timestamp + _CLOCK_STEP_MAX_MS:
        timestamp = end.last_timestamp  # store times never go back, unless the clock was far wrong
    messages, bodies = totals(staged)
    bases = queue_append_positions(held, end, queues)
    places = tuple(log_place(root, directory, files) for directory in held.log.directories)
    if not options.sync and abort_mark(root) is None:
        note_flushed(root, end.last_offset, end.last_timestamp)
    return Journal(
        id=secrets.token_hex(8),
        key=key,
        staged=staged,
        skip=0,
        base=end.offset,
        file_size=settings.mapped_file_size_commit_log,
        queue_file_size=settings.queue_file_size,
        queues=queues,
        queue_bases=tuple(place.base for place in bases),
        new_topics=_new_topics(root, options.new_topics, queues if began is None else (), topics),
        store_timestamp=timestamp,
        store_timestamps=times_name,
        sync=options.sync,
        index=options.message_index_enable,
        hash_slot_num=settings.geometry.hash_slot_num,
        index_num=settings.geometry.index_num,
        index_base=last_index_file(f"{root}/index"),
        written_at=now,
        zone_seconds=time.localtime(now // 1000).tm_gmtoff,
        log_places=places,
        before=bytes_before(held.log, end.offset, end.last_offset)
        if any(each.id for each in places)
        else None,
        messages=messages,
        bodies=bodies,
        keeps_key=options.keeps_key,
        began=began,
        gaps=gaps_before(bases),
    )


def _new_topics(
    root: str, wanted: Mapping[str, int], queues: Sequence[QueueKey], topics: Mapping[str, TopicConfig]
) -> dict[str, int]:
    """The number of queues of each topic that topics.json lacks.

    All of `wanted` count: a message in SCHEDULE_TOPIC_XXXX is for a topic that has no queue in this batch.
    No topic gets fewer queues than it has files of. If topics.json is lost, all topics with files get in.
    """
    missing = {topic: number for topic, number in wanted.items() if topic not in topics}
    for topic, queue_id in queues:
        if topic not in topics:
            missing[topic] = max(missing.get(topic, 0), queue_id + 1)
    filed = filed_topics(root, missing.__contains__) if missing else {}
    for topic, number in (filed | lost_topics(root)).items():
        missing[topic] = max(missing.get(topic, 0), number)
    return missing


def _refuse_missing_crc(held: HeldStore, staged: Sequence[StagedFile], end: int) -> None:
    """Raises StoreWriteError for messages without a CRC property behind a message that has the property."""
    if all(each.crc_property for each in staged if each.units) or not has_crc_property_before(held.log, end):
        return
    raise StoreWriteError(
        f"{held.root}: the last message of the log, which ends at {end}, has the property __CRC32# (a broker "
        "with enabledAppendPropCRC=true), and this write encoded its messages without it: a broker with "
        "forceVerifyPropCRC=true would truncate them. Nothing was written. A broker has written to the store "
        "since this write began: run it again"
    )


def _store_times(
    root: str,
    staged: tuple[StagedFile, ...],
    store_timestamps: int | NDArray[np.int64] | None,
    now: int,
    files: FileWrites,
) -> tuple[int, str | None]:
    """(The store time of all messages in ms, None), or (0, the name of a staged file with one for each)."""
    if store_timestamps is None:
        return now, None
    if not isinstance(store_timestamps, np.ndarray):
        return store_timestamps, None
    units = sum(each.units for each in staged)
    if len(store_timestamps) != units:
        raise OptionError(
            f"{root}: expected {units} store timestamps, one for each message, found {len(store_timestamps)}"
        )
    if not staged:
        return 0, None
    name = f"{secrets.token_hex(8)}{TIMES_SUFFIX}"
    path = f"{staging_path(root, staged[0].write)}/{name}"
    files.write_whole(path, store_timestamps.astype("<i8").tobytes())
    files.sync_directory(path.rpartition("/")[0])
    return 0, name
