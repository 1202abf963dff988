"""What an operator has to know before a broker starts: what retention deletes, and where a `.bak` counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.report.contents import Section
from store_format.bookkeeping.settings import broker_conf_of
from store_format.diagnose.broker_start import MayStart
from store_format.diagnose.problems import Diagnosis
from store_format.diagnose.state_files import counts_backup
from store_format.display.rows import iso_utc
from store_format.display.text import shown
from store_format.display.units import duration_text
from store_format.errors import StoreError
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf
from store_format.read.store import Store
from store_format.views.registry import view_table
from store_format.views.retention import deletion_ms

_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_SINCE = {
    "consumerOffset.json": "groups get the messages that they consumed since then again",
    "topics.json": "topics and queues that were created since then are not in it",
}


@dataclass(frozen=True, slots=True)
class NextDeletion:
    """The next deletion of unread messages: at `at_ms`, `messages` (None: unknown) of `groups` groups.

    `is_least`: more messages may go. `oldest_ms` is the time from which the age of the first file counts.
    """

    at_ms: int
    groups: int
    messages: int | None
    is_least: bool
    oldest_ms: int
    conf: BrokerConf

    @staticmethod
    def of(store: Store, losing: pa.Table, broker_conf: str | BrokerConf | None, now_ms: int) -> NextDeletion:
        """The first deletion of these rows of `lagByTopic`, which have an `expiresTimestamp`."""
        conf = broker_conf_of(store.opened, broker_conf)
        expires = [us // 1000 for us in losing["expiresTimestamp"].cast(pa.int64()).to_pylist()]
        times = [deletion_ms(each, now_ms, conf, None, is_any_hour=False) for each in expires]
        first = losing.filter(pa.array([each == min(times) for each in times]))
        known = pc.sum(first["nextLostMessages"]).as_py()
        return NextDeletion(
            at_ms=min(times),
            groups=len(first["group"].unique()),
            messages=known or None,
            is_least=bool(first["nextLostMessages"].null_count),  # queues that are read by a scan
            oldest_ms=min(expires) - int(conf.file_reserved_hours * _HOUR_MS),
            conf=conf,
        )

    @property
    def what(self) -> str:
        """The messages, and whose they are."""
        count = "an unknown number of messages" if self.messages is None else f"{self.messages:,} messages"
        if self.messages is not None and self.is_least:
            count = f"at least {count}"
        who = f"{self.groups} group{'s have' if self.groups > 1 else ' has'} not consumed"
        return f"{count}{' (the sum over the groups)' * (self.groups > 1)} that {who}"

    def __str__(self) -> str:
        hours = ";".join(f"{hour:02}" for hour in self.conf.delete_when)
        given = "" if {"fileReservedTime", "deleteWhen"} <= self.conf.given else "; --broker-conf has yours"
        return (
            f"The next deletion of retention, at {iso_utc(self.at_ms)}, takes {self.what} (fileReservedTime "
            f"{self.conf.file_reserved_hours} h, deleteWhen {hours} in the zone of this machine{given})."
        )

    def warning(self, now_ms: int) -> str:
        """What to do before a broker starts; empty if the deletion is more than a day away."""
        if self.at_ms - now_ms > _DAY_MS:
            return ""
        needed = math.ceil((now_ms - self.oldest_ms) / _HOUR_MS + self.conf.file_reserved_hours)
        when = "now" if self.at_ms <= now_ms else iso_utc(self.at_ms)
        return (
            f"deletes {self.what} at its next deletion ({when}): set fileReservedTime={needed} in "
            "broker.conf first"
        )


def recovery_is_optional(may: MayStart, diagnosis: Diagnosis, command: str) -> str:
    """Why the recovery that `command` shows is not needed for a start; empty if it is needed, or none."""
    if may is not MayStart.YES or not command.startswith("rmqlog recover "):
        return ""
    if diagnosis.of("damage"):
        why = "without it a broker serves every message that can be read"
    elif diagnosis.summary.state == "crashed":
        why = "a broker that starts recovers the log itself"
    else:
        why = "a broker starts without it, and serves every message"
    return f"rmqlog recover is optional: {why}"


def backups(store: Store, diagnosis: Diagnosis) -> Section | None:
    """The configuration files in whose place a `.bak` counts, and how old each of these is."""
    files = [each.file for each in diagnosis if counts_backup(each)]
    if not files:
        return None
    newest = _newest_ms(store)
    section = Section("backups", "Configuration of which the .bak counts")
    section.warning = " ".join(_backup(path, newest) for path in dict.fromkeys(files))
    return section


def _newest_ms(store: Store) -> int | None:
    """When the newest message was stored."""
    try:
        newest = pc.max(view_table(store, "queues")["lastStoreTimestamp"].cast(pa.int64())).as_py()
    except (StoreError, OSError):  # is among the problems
        return None
    return None if newest is None else int(newest) // 1000


def _backup(path: str, newest: int | None) -> str:
    name = path.rpartition("/")[2]
    status = files_at(path).status(f"{path}.bak")
    text = f"{shown(name)} cannot be used: {shown(name)}.bak counts instead, as for a broker"
    if status is None:
        return f"{text}."
    written = status[1]
    since = f"; {_SINCE[name]}" if name in _SINCE else ""
    text += f". It was written at {iso_utc(written)}"
    if newest is not None and written < newest:
        return f"{text}, about {duration_text(newest - written)} before the last message{since}."
    return f"{text}, after the last message{since}."
