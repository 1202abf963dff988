"""What the services have done on a store so far, in `.rmqlog/services.json`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceCounters:
    """The counters of one service. `turns` are those that did something; times are in ms."""

    turns: int = 0
    done: int = 0  # messages written; clean: files deleted
    failures: int = 0  # turns that ended with an error
    last_turn: int = 0
    late_ms_max: int = 0

    def after(self, done: int, late_ms: int, now_ms: int, *, failed: bool) -> ServiceCounters:
        """The counters after one more turn, at `now_ms`."""
        return ServiceCounters(
            self.turns + 1,
            self.done + done,
            self.failures + failed,
            now_ms,
            max(self.late_ms_max, late_ms),
        )


def read_counters(root: str) -> dict[str, ServiceCounters] | None:
    """The counters by service; None before the first turn that did something.

    A file that cannot be read counts as empty.
    """
    path = _counters_path(root)
    data = read_bytes(path)
    if data is None:
        return None
    try:
        found = json.loads(data)["services"]
        return {
            str(name): ServiceCounters(**{key: int(value) for key, value in each.items()})
            for name, each in found.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        _log.warning("%s cannot be read; the counters begin at 0", path)
        return {}


def write_counters(root: str, counters: Mapping[str, ServiceCounters], files: FileWrites) -> None:
    value = {"version": 1, "services": {name: asdict(each) for name, each in counters.items()}}
    files.replace(_counters_path(root), json.dumps(value).encode())


def _counters_path(root: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/services.json"
