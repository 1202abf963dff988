"""Writes timermetrics, which counts how many messages of each topic wait in the timer (spec 6.11,
TimerMetrics).
"""

from __future__ import annotations

from collections.abc import Mapping

from store_format.files.write import FileWrites
from store_format.java.fastjson import loads
from store_format.metadata.read import config_path, loaded_bytes
from store_format.metadata.values import bean_errors_of, dumps, integer, members, next_version
from store_format.opened.store import Opened

_NAME = "timermetrics"


def merge_timer_metrics(
    data: bytes | None, changes: Mapping[str, int], *, timestamp: int, file: str = f"config/{_NAME}"
) -> bytes | None:
    """The file with these changes of the counts by topic; None without a change.

    `data` is the present file, None or empty without one; `timestamp` is the clock in ms. Raises
    CorruptStoreError for a file of another kind.

    >>> merge_timer_metrics(None, {"T": 2}, timestamp=5)
    b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"timingCount":{"T":{"count":2,"timeStamp":5}}}'
    """
    if not any(changes.values()):
        return None
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        counts = dict(members(raw.get("timingCount"), "timingCount"))
        for topic, change in changes.items():
            before = members(counts.get(topic), f"timingCount.{topic}")
            count = integer(before.get("count", 0), f"timingCount.{topic}.count")
            counts[topic] = {**before, "count": count + change, "timeStamp": timestamp}
        version = members(raw.get("dataVersion") or {"counter": 0, "stateVersion": 0}, "dataVersion")
        newer = next_version(version, timestamp)
    return dumps({"dataVersion": newer} | raw | {"dataVersion": newer, "timingCount": counts}, pretty=False)


def write_timer_metrics(
    opened: Opened, changes: Mapping[str, int], *, timestamp: int, files: FileWrites
) -> bool:
    """Adds to the counts by topic; False without a change.

    The caller holds the store's lock. The file is replaced at once, so that a crash never leaves a store
    without it. If a crash of a broker left a damaged file, its `.bak` counts. Raises CorruptStoreError if
    that cannot be decoded either.
    """
    path = config_path(opened, _NAME)
    place, data = loaded_bytes(path)
    text = merge_timer_metrics(data, changes, timestamp=timestamp, file=place)
    if text is None:
        return False
    files.make_directories(opened.path, "config")
    files.replace(path, text)
    return True
