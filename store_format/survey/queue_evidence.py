"""How many messages a consume queue has had, by files of the store other than the queue and the commitlog.

A queue offset is never given a second time. So a queue that lacks its newest entries, or all its files, goes
on at the end that these files know.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from store_format.bookkeeping.ledger import Ledger, ledger_path, read_ledger
from store_format.commitlog.log import CommitLog
from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.files.status import stat_identity
from store_format.layouts import OFFSET_MAX
from store_format.metadata.group_offsets import read_broker_offsets, read_committed
from store_format.metadata.read import config_path, read_topics
from store_format.names import REVIVE_GROUP, QueueKey


class KnownEnd(NamedTuple):
    """The queue has had messages up to the queue offset before `offset`; `evidence` is a clause that says
    which file shows it.
    """

    offset: int
    evidence: str


def ledger_ends(root: str, log: CommitLog) -> dict[QueueKey, KnownEnd]:
    """`last_commit_ends`, with the file that shows them."""
    return {
        key: KnownEnd(end, f"the last commit of {root}/.rmqlog/ledger.json ends {_name(key)} at offset {end}")
        for key, end in last_commit_ends(root, log).items()
    }


def last_commit_ends(root: str, log: CommitLog, log_end: int = OFFSET_MAX) -> Mapping[QueueKey, int]:
    """The ends of the queues of our last commit, by the ledger.

    Empty if the log ends before the commit, if a broker has cut it since, with a ledger of an older release,
    and if the ledger cannot be read. A topic that was deleted and created again since begins at 0: its
    entries point behind the commit.
    """
    try:
        identity = stat_identity(ledger_path(root))
        ledger = _ledger_of(root, identity) if identity is not None else Ledger()
        last = ledger.last
        if last is None or not ledger.ends or last.stop > log_end or last.damage(log) is not None:
            return {}
    except (StoreError, OSError):  # who needs the file raises the error
        return {}
    return ledger.ends


@lru_cache(maxsize=8)
def _ledger_of(root: str, identity: object) -> Ledger:
    """The ledger, which is read once for each state of its file: of many queues that takes milliseconds."""
    return read_ledger(root)


def committed_ends(root: str) -> dict[QueueKey, KnownEnd]:
    """What the groups have committed in the queues of the topics of topics.json.

    A proof for a queue without files only: a group may commit any number, and a broker that has cut messages
    keeps their offsets. Only a 5.x broker removes the offsets of a topic that is deleted; consumerOffset.json
    of such a broker has a `dataVersion`. Empty otherwise, and for files that cannot be read.
    """
    places = (config_path(root, name) for name in ("consumerOffset.json", "topics.json"))
    return dict(_committed_ends(root, tuple(map(stat_identity, places))))


@lru_cache(maxsize=8)
def _committed_ends(root: str, identity: object) -> Mapping[QueueKey, KnownEnd]:
    """They are read once for each state of their files."""
    try:
        name, offsets = read_broker_offsets(root)
        if offsets is None or offsets.data_version is None:
            return {}
        committed, topics = read_committed(root), read_topics(root)
    except StoreError:  # who needs the files raises the error
        return {}
    found: dict[QueueKey, KnownEnd] = {}
    for (group, topic), table in committed.offsets.items():
        if group == REVIVE_GROUP or topics is None or topic not in topics:
            continue
        for queue_id, offset in table.items():
            key = (topic, queue_id)
            if offset > (found[key].offset if key in found else 0):
                clause = f"group {shown(group)} has committed offset {offset} of {_name(key)}"
                found[key] = KnownEnd(offset, f"{clause} in {root}/config/{name}")
    return found


def known_ends(root: str, log: CommitLog) -> dict[QueueKey, KnownEnd]:
    """The greater of both ends of each queue: for a queue without files."""
    found = committed_ends(root)
    for key, end in ledger_ends(root, log).items():
        if key not in found or found[key].offset < end.offset:
            found[key] = end
    return found


def _name(key: QueueKey) -> str:
    return f"{shown(key[0])}-{key[1]}"
