"""A broker's recovery after a crash, done by a writer before it appends (DefaultMessageStore.recover).

The log ends at its first bad unit, and everything behind is cleared. Every message before gets its missing
queue and index entries, however many files that takes: a 5.4 broker scans the last 10 files only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from store_format.commit.index_repair import Indexing, rebuild_index
from store_format.commit.log_shortage import cleared_from, refuse_loss
from store_format.commit.queue_moves import complete_queues, end_rebuild, is_rebuild_begun
from store_format.commit.queue_repair import Lacking, QueueState, find_lacking, queue_states, truncate
from store_format.commitlog.log import CommitLog
from store_format.commitlog.write import LogFiles
from store_format.files.write import FileWrites
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.names import QueueKey
from store_format.survey.broker_end import LogEnd, end_after_crash
from store_format.survey.gone import queues_in_log

_log = logging.getLogger(__name__)


def repair(
    root: str,
    log: CommitLog,
    log_files: LogFiles,
    queue_file_size: int | None,
    indexing: Indexing | None,
    files: FileWrites,
    *,
    conf: BrokerConf | None = None,
    mended: int | None = None,
    cut_after_damage: bool = False,
    staged: tuple[int, int] | None = None,
) -> LogEnd:
    """Makes log, queues and index agree. Returns the log's end. A second call changes nothing.

    `conf` has the settings of the store's broker. `queue_file_size` None is not known. `indexing` None
    leaves the index files as they are. Index files that reach to the physical offset `mended` are rebuilt:
    the message there is not the one that was indexed. Raises, before any change, UnsupportedFormatError if
    a batch consume queue lacks entries, OptionError if no queue is left and `queue_file_size` is None, and
    what `refuse_loss` raises unless `cut_after_damage` gives up the messages.
    """
    checkpoint = read_checkpoint(f"{root}/checkpoint") or Checkpoint()
    end = end_after_crash(log, checkpoint)
    _log.warning(
        "%s: a broker crashed on this store; its commitlog ends at %d, completing queue and index entries "
        "from %d on",
        root,
        end.offset,
        end.scan_start,
    )
    states = queue_states(root, log, end.offset)
    delays = (conf or BrokerConf()).message_delay_levels_ms
    lacking = _lacking(root, log, end, states, queue_file_size, delays)
    if not cut_after_damage:
        refuse_loss(root, log, end, queues_in_log(root, log), is_crashed=True, staged=staged)
    if lacking.start < end.scan_start:
        _log.warning(
            "%s: consume queues lack entries of older messages too; completing them from %d on",
            root,
            lacking.start,
        )
        end = replace(end, scan_start=lacking.start)
    # A commit that is completed goes on at the end: no byte of an old BLANK may remain behind its messages.
    log_files.clear_behind(cleared_from(log, end) if staged is None else end.offset, keep=end.offset + 1)
    for state in states.values():
        truncate(state, files)
    if lacking.firsts:
        complete_queues(root, log, lacking, states)
    end_rebuild(root)
    if indexing is not None:
        mark = checkpoint.index_msg_timestamp
        rebuild_index(root, log, end.scan_start, end.offset, indexing, mark=mark, mended=mended)
    return end


def _lacking(
    root: str,
    log: CommitLog,
    end: LogEnd,
    states: Mapping[QueueKey, QueueState],
    file_size: int | None,
    delay_levels_ms: tuple[int, ...],
) -> Lacking:
    """The missing queue entries, from the checkpoint's place on.

    From the log's first message on if queues are lost, or end before the checkpoint's place.
    """

    def find(start: int) -> Lacking:
        return find_lacking(
            root,
            log,
            start,
            end.offset,
            states,
            file_size=file_size,
            is_crashed=True,
            delay_levels_ms=delay_levels_ms,
        )

    if (
        not is_rebuild_begun(root)
        and end.scan_start > log.min_offset
        and any(state.max_offset is not None for state in states.values())
    ):
        lacking = find(end.scan_start)
        if not lacking.has_gap(states):
            return lacking
    return find(min(log.min_offset, end.scan_start))
