"""The handle of a staged pair of files, and the names below `.rmqlog/` that it leads to.

Plain values that carry sizes and checksums: a handle travels in Spark's messages and in journals, and whoever
commits can tell that it sees what the task wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from store_format.names import QueueKey

OWN_DIRECTORY = ".rmqlog"  # brokers leave it alone
STAGING = "staging"  # in it
RECORDS_SUFFIX = ".records"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged pair `<name>.records` and `<name>.meta` of a write. Plain values: it travels in messages and
    journals.
    """

    write: str
    name: str
    units: int
    records_size: int
    records_sum: int
    meta_size: int
    meta_sum: int
    queues: tuple[QueueKey, ...]  # (topic, queue id) by number
    crc_property: bool
    unit_size_max: int
    parked: tuple[QueueKey, ...] = ()  # the queues that its delayed messages are for
    bodies: int = -1  # tells batches apart, see `StagingWriter.append`; -1 of an older release

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StagedFile:
        queues = {
            name: tuple((str(topic), int(queue_id)) for topic, queue_id in value.get(name, ()))
            for name in ("queues", "parked")
        }
        return StagedFile(**{**value, **queues})

    def records_path(self, root: str) -> str:
        return f"{staging_path(root, self.write)}/{self.name}{RECORDS_SUFFIX}"

    def meta_path(self, root: str) -> str:
        return f"{staging_path(root, self.write)}/{self.name}.meta"


def staging_path(root: str, write: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/{STAGING}/{write}"
