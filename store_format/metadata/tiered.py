"""tieredStoreMetadata.json: what a broker notes of its tiered storage (DefaultMetadataStore).

Only what its files cannot say is read: how long each segment is, and the numbers of topics in index files.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from store_format.errors import CorruptStoreError
from store_format.files.read import files_at
from store_format.java.fastjson import loads
from store_format.metadata.read import config_path
from store_format.metadata.values import bean_errors_of, entries, integer, members
from store_format.opened.store import Opened

_log = logging.getLogger(__name__)

Sizes = dict[str, dict[int, int]]  # by BROKER/TOPIC/QUEUE: the bytes of each segment, by its base offset


class TieredMetadata(NamedTuple):
    """The sizes of the segments of logs and of queues, and the topic ids; all empty without the file."""

    log_sizes: Sizes
    queue_sizes: Sizes
    topic_ids: dict[str, int]

    @staticmethod
    def read(opened: Opened) -> TieredMetadata:
        """That of a store. A file that cannot be read counts as missing, with a warning."""
        path = config_path(opened, "tieredStoreMetadata.json")
        for place in (path, f"{path}.bak"):
            data = files_at(place).read(place)
            try:
                if data:
                    with bean_errors_of(place):  # keys are numbers without quotes
                        return _metadata(members(loads(data, place), "the file"))
            except CorruptStoreError as error:
                _log.warning("%s; the files of tiered storage alone say what it has", error)
        return TieredMetadata({}, {}, {})


def _metadata(raw: dict[str, Any]) -> TieredMetadata:
    topics = entries(raw.get("topicMetadataTable"), "topicMetadataTable")
    ids = {name: members(value, name).get("topicId") for name, value in topics.items()}
    return TieredMetadata(
        _sizes(raw, "commitLogFileSegmentTable"),
        _sizes(raw, "consumeQueueFileSegmentTable"),
        {name: number for name, number in ids.items() if isinstance(number, int)},
    )


def _sizes(raw: dict[str, Any], name: str) -> Sizes:
    found: Sizes = {}
    for path, segments in entries(raw.get(name), name).items():
        for base, value in entries(segments, path).items():
            size = integer(members(value, base).get("size", 0), f"{path} {base}")
            found.setdefault(path, {})[integer(base, path)] = size
    return found
