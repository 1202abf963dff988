"""The handle of a staged pair of files, and the paths of files in `.rmqlog/`.

A handle has plain values, sizes and checksums. Spark sends it to the driver and a journal stores it, so that
the commit can check that it reads what the task wrote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from store_format.names import QueueKey

OWN_DIRECTORY = ".rmqlog"  # brokers ignore it
STAGING = "staging"  # in it
RECORDS_SUFFIX = ".records"


_TYPES = {"int": int, "bool": bool, "str": str}
_NUMBER_MAX, _LARGE_MAX = 1 << 62, 1 << 64
_LARGE = ("bodies", "number")


def refuse_types(value: Any) -> None:  # Any: a dataclass
    """Raises ValueError if a field that was read from JSON has another type than the dataclass says, or if a
    number has more than 62 bits (64 in the fields `bodies` and `number`).
    """
    for each in fields(value):
        held, kind = getattr(value, each.name), _TYPES.get(str(each.type))
        limit = _LARGE_MAX if each.name in _LARGE else _NUMBER_MAX
        is_wrong = kind is not None and type(held) is not kind
        if is_wrong or (isinstance(held, int) and not -limit < held < limit):
            raise ValueError(f"{each.name} {held!r:.100}")


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged pair `<name>.records` and `<name>.meta` of a write."""

    write: str
    name: str
    units: int
    records_size: int
    records_sum: int
    meta_size: int
    meta_sum: int
    queues: tuple[QueueKey, ...]  # (topic, queue id) by queue number
    crc_property: bool
    unit_size_max: int
    parked: tuple[QueueKey, ...] = ()  # the queues to which its delayed messages go later
    bodies: int = (
        -1
    )  # sum over the bodies, to compare batches (`StagingWriter.append`); -1: of an older release

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StagedFile:
        queues = {
            name: tuple((str(topic), int(queue_id)) for topic, queue_id in value.get(name, ()))
            for name in ("queues", "parked")
        }
        staged = StagedFile(**{**value, **queues})
        refuse_types(staged)
        return staged

    def records_path(self, root: str) -> str:
        return f"{staging_path(root, self.write)}/{self.name}{RECORDS_SUFFIX}"

    def meta_path(self, root: str) -> str:
        return f"{staging_path(root, self.write)}/{self.name}.meta"


def staging_path(root: str, write: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/{STAGING}/{write}"
