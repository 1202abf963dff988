"""broker.conf: the settings of a broker that no file of its store has (BrokerConfig, MessageStoreConfig).

The file is a Java properties file. Settings that nothing here uses are accepted and kept out: a real
broker.conf has many.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from store_format.errors import OptionError, StoreNotFoundError
from store_format.files.read import read_bytes
from store_format.message.properties import DELAY_LEVELS_MS

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"([0-9]{1,9})([smhd])\Z", re.ASCII)
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}\Z", re.ASCII)
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The delays in ms of messageDelayLevel (ScheduleMessageService.parseDelayLevel); level 1 is the first.

    >>> parse_delay_levels("1s 5m")
    (1000, 300000)

    Raises ValueError, naming the part, for anything but numbers with the units s, m, h and d.
    """
    delays = []
    for part in text.split():
        match = _LEVEL.match(part)
        if match is None:
            raise ValueError(f"expected delays such as '1s 5m 2h', found {part!r}")
        delays.append(int(match[1]) * _UNITS_MS[match[2]])
    if not delays:
        raise ValueError("expected at least one delay, such as '1s', found none")
    return tuple(delays)


def _integer(text: str) -> int:
    """A Java int. MixAll.properties2Object ignores others, and numbers with a space: the default is used."""
    if _INTEGER.match(text) is None or not _INT_MIN <= int(text) <= _INT_MAX:
        raise ValueError(f"expected a whole number without spaces, found {text!r}")
    return int(text)


def _flag(text: str) -> bool:
    """Boolean.parseBoolean takes everything but `true` as false, `true` with a space too."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"expected true or false without spaces, found {text!r}")
    return text.lower() == "true"


def parse_hours(text: str) -> tuple[int, ...]:
    """The hours of deleteWhen, such as `04` or `02;04` (UtilAll.isItTimeToDo, Integer.parseInt).

    Raises ValueError, with the text, for anything else.
    """
    hours = tuple(_integer(part) for part in text.strip().rstrip(";").split(";"))
    if any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError(f"expected hours from 00 to 23, separated by ;, found {text!r}")
    return hours


def _flush_disk_type(text: str) -> str:
    """FlushDiskType.valueOf, which a broker calls with the trimmed text; it does not start with another."""
    if text.strip() not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError(f"expected SYNC_FLUSH or ASYNC_FLUSH, found {text!r}")
    return text.strip()


def _setting(name: str, default: Any, read: Callable[[str], Any] = _integer) -> Any:
    """A field of `BrokerConf`: RocketMQ's name of the setting, its default, and how its text is read."""
    return field(default=default, metadata={"name": name, "read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConf:
    """The settings that services, writes and views use, with the defaults of 5.5.

    `given` are RocketMQ's names of the settings that the file has.
    """

    message_delay_levels_ms: tuple[int, ...] = _setting(
        "messageDelayLevel", DELAY_LEVELS_MS, parse_delay_levels
    )
    timer_wheel_enable: bool = _setting("timerWheelEnable", True, _flag)
    timer_stop_enqueue: bool = _setting("timerStopEnqueue", False, _flag)
    timer_stop_dequeue: bool = _setting("timerStopDequeue", False, _flag)
    timer_precision_ms: int = _setting("timerPrecisionMs", 1000)
    timer_roll_window_slots: int = _setting("timerRollWindowSlot", 2 * 24 * 3600)
    timer_max_delay_sec: int = _setting("timerMaxDelaySec", 3 * 24 * 3600)
    timer_log_file_size: int = _setting("mappedFileSizeTimerLog", 100 << 20)
    timer_delete_key_has_topic: bool = _setting("appendTopicForTimerDeleteKey", False, _flag)
    auto_create_subscription_group: bool = _setting("autoCreateSubscriptionGroup", True, _flag)
    use_separate_retry_queue: bool = _setting("useSeparateRetryQueue", False, _flag)
    timer_rocksdb_enable: bool = _setting("timerRocksDBEnable", False, _flag)
    transaction_timeout_ms: int = _setting("transactionTimeOut", 6000)
    transaction_check_max: int = _setting("transactionCheckMax", 15)
    transaction_check_interval_ms: int = _setting("transactionCheckInterval", 30_000)
    transaction_rocksdb_enable: bool = _setting("transRocksDBEnable", False, _flag)
    file_reserved_hours: int = _setting("fileReservedTime", 72)
    delete_when: tuple[int, ...] = _setting("deleteWhen", (4,), parse_hours)
    disk_max_used_space_ratio: int = _setting("diskMaxUsedSpaceRatio", 75)
    disk_space_clean_forcibly_ratio: int = _setting("diskSpaceCleanForciblyRatio", 85)
    disk_space_warning_level_ratio: int = _setting("diskSpaceWarningLevelRatio", 90)
    clean_file_forcibly_enable: bool = _setting("cleanFileForciblyEnable", True, _flag)
    delete_file_batch_max: int = _setting("deleteFileBatchMax", 10)
    clean_resource_interval_ms: int = _setting("cleanResourceInterval", 10_000)
    flush_disk_type: str = _setting("flushDiskType", "ASYNC_FLUSH", _flush_disk_type)
    flush_interval_commit_log_ms: int = _setting("flushIntervalCommitLog", 500)
    flush_commit_log_least_pages: int = _setting("flushCommitLogLeastPages", 4)
    flush_commit_log_thorough_interval_ms: int = _setting("flushCommitLogThoroughInterval", 10_000)
    max_message_size: int = _setting("maxMessageSize", 4 << 20)
    commit_log_file_size: int = _setting("mappedFileSizeCommitLog", 1 << 30)
    queue_file_size: int = _setting("mappedFileSizeConsumeQueue", 6_000_000)
    batch_queue_file_size: int = _setting("mapperFileSizeBatchConsumeQueue", 300_000 * 46)
    max_hash_slot_num: int = _setting("maxHashSlotNum", 5_000_000)
    max_index_num: int = _setting("maxIndexNum", 20_000_000)
    message_index_enable: bool = _setting("messageIndexEnable", True, _flag)
    broker_name: str = _setting("brokerName", "", str.strip)  # "": that of the store
    broker_cluster_name: str = _setting("brokerClusterName", "DefaultCluster", str.strip)
    revive_queue_num: int = _setting("reviveQueueNum", 8)
    pop_consumer_kv_service_enable: bool = _setting("popConsumerKVServiceEnable", False, _flag)
    given: frozenset[str] = frozenset()

    @property
    def disk_warning_percent(self) -> int:
        """Above this use of a disk the broker refuses writes (getDiskSpaceWarningLevelRatio)."""
        return min(max(self.disk_space_warning_level_ratio, 35), 90)

    @property
    def disk_forcibly_percent(self) -> int:
        """Above this use of a disk the broker deletes files of any age (getDiskSpaceCleanForciblyRatio)."""
        return min(max(self.disk_space_clean_forcibly_ratio, 30), 85)

    @property
    def disk_max_used_percent(self) -> int:
        """Above this use of a disk the broker deletes expired files at any hour (diskMaxUsedSpaceRatio)."""
        return min(max(self.disk_max_used_space_ratio, 10), 95)

    @staticmethod
    def of(properties: dict[str, str], source: str) -> BrokerConf:
        """Raises OptionError, naming `source` and the setting, for a value that no broker would accept."""
        values: dict[str, Any] = {}
        for each in fields(BrokerConf):
            name = each.metadata.get("name")
            if name in properties:
                try:
                    values[each.name] = each.metadata["read"](properties[name])
                except ValueError as error:
                    raise OptionError(f"{source}: {name}: {error}") from error
        return BrokerConf(**values, given=frozenset(properties))


def read_broker_conf(path: str) -> BrokerConf:
    """The settings in a broker.conf. Raises StoreNotFoundError for no file, OptionError for a bad value."""
    data = read_bytes(path)
    if data is None:
        raise StoreNotFoundError(f"{path}: expected the broker.conf of the store's broker, found no file")
    return BrokerConf.of(parse_properties(data), path)


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ENTRY = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)\Z", re.DOTALL)


def parse_properties(data: bytes) -> dict[str, str]:
    """The entries of a Java properties file (java.util.Properties.load); the last entry of a name counts."""
    entries = {}
    line = ""
    for part in re.split(r"\r\n|\r|\n", data.decode("latin-1")):
        part = part.lstrip(" \t\f")
        if not line and (not part or part[0] in "#!"):
            continue
        line += part
        if (len(line) - len(line.rstrip("\\"))) % 2:
            line = line[:-1]  # The next line continues this one.
            continue
        match = _ENTRY.match(line)
        assert match is not None  # Every part of the pattern may be empty.
        entries[_unescaped(match[1])] = _unescaped(match[2])
        line = ""
    if line:
        match = _ENTRY.match(line)
        assert match is not None
        entries[_unescaped(match[1])] = _unescaped(match[2])
    return entries


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(
        lambda match: chr(int(match[1][1:], 16)) if len(match[1]) == 5 else _ESCAPES.get(match[1], match[1]),
        text,
    )
