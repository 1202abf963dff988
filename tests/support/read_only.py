"""`python -m tests.support.read_only STORE…`: reads, verifies and counts stores in a process that cannot
write to them. Says a line of JSON for each store.
"""

from __future__ import annotations

import errno
import json
import sys
import time
from pathlib import Path

from store_format import MessageStore
from store_format.diagnose import diagnose


def _refused(store: Path) -> str:
    """The name of the error of a new file in the store."""
    try:
        (store / "new").touch()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "written"


def seen(store: Path) -> dict[str, object]:
    """How many messages are read, problems found, and rows counted; and that nothing could be written."""
    tiered = store / "tiered"
    opened = MessageStore.open(str(store), tiered_path=str(tiered) if tiered.exists() else None)
    found = diagnose(str(store))
    return {
        "refused": _refused(store),
        "messages": sum(queue.to_table(columns=["body"]).num_rows for queue in opened.queues()),
        "damage": len([problem for problem in found if problem.severity == "damage"]),
        "topics": opened.view("topics").num_rows,
        "lag": opened.view("lag", now_ms=int(time.time() * 1000)).num_rows,
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(seen(Path(name))), flush=True)
