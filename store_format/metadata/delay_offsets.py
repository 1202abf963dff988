"""delayOffset.json: how far each delay level is delivered (ScheduleMessageService, spec 6.6)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from store_format.files.write import FileWrites
from store_format.java.fastjson import loads
from store_format.metadata.encode import Dialect, dumps, next_version
from store_format.metadata.group_offsets import is_broker_49, rewrite_config
from store_format.metadata.read import config_path
from store_format.metadata.values import bean_errors_of, integer_map, members

_NAME = "delayOffset.json"
_OLD_MAP = re.compile(rb'"offsetTable":\{-?[0-9]+:')  # fastjson 1.2 writes no line break before integer keys


def merge_delay_offsets(
    data: bytes | None,
    offsets: Mapping[int, int],
    *,
    timestamp: int,
    is_old: bool = False,
    file: str = f"config/{_NAME}",
) -> bytes | None:
    """The file with these next offsets by delay level (from 1); None if it has them already.

    `data` is the present file, None or empty without one; then `is_old` says that the broker is a 4.9, which
    writes no data version. Other levels and members stay. A data version is incremented with `timestamp`, the
    clock in ms. Raises CorruptStoreError for a file of another kind.

    >>> merge_delay_offsets(b'{"offsetTable":{3:2}}', {3: 2}, timestamp=0) is None
    True
    """
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        table = integer_map(raw.get("offsetTable"), "offsetTable")
        after = dict(sorted((table | dict(offsets)).items()))  # the order of a HashMap with small keys
        if after == table:
            return None
        version = raw.get("dataVersion") if data else None if is_old else {"counter": 0, "stateVersion": 0}
        if version is not None:
            newer = next_version(members(version, "dataVersion"), timestamp)
            raw = {"dataVersion": newer} | raw | {"dataVersion": newer}
    old = bool(_OLD_MAP.search(data)) if data else is_old
    return dumps(raw | {"offsetTable": after}, Dialect.FASTJSON if old else Dialect.FASTJSON2)


def write_delay_offsets(root: str, offsets: Mapping[int, int], *, timestamp: int, files: FileWrites) -> bool:
    """Writes the next offsets by delay level; False if the file has them already.

    The caller holds the store's lock. `timestamp` is the clock in ms. Raises CorruptStoreError for a file
    that cannot be decoded and has no `.bak`.
    """
    is_old = is_broker_49(root)

    def merge(data: bytes | None, file: str) -> bytes | None:
        return merge_delay_offsets(data, offsets, timestamp=timestamp, is_old=is_old, file=file)

    files.make_directories(root, "config")
    return rewrite_config(config_path(root, _NAME), merge, files)
