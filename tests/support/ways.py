"""`python -m tests.support.ways NAME PLACE`: the files of the product that a call of the user goes through.

A file counts if one of its functions runs between the call and its result, in a new process. Imports do not
count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.pop import SimpleConsumer
from rmq_spark.services import run_once
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.session import stage_messages
from tests.support import goldens
from tests.support.popped import GROUP, TOPIC, popped_store
from tests.support.staged import columns_of, numbered

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = (f"{_ROOT}/rmq_spark/", f"{_ROOT}/store_format/")


def _batch_read(place: Path) -> Callable[[], object]:
    root = popped_store(place / "store", 100)

    def call() -> int:
        options = parse_read_options({"path": str(root), "subscribe": TOPIC})
        scan = Scan(fields_from_options(options), options)
        splits = plan(options, cores=2).splits
        return sum(batch.num_rows for split in splits for batch in scan.read(split))

    return call


def _write(place: Path) -> Callable[[], object]:
    root = popped_store(place / "store", 100)

    def call() -> int:
        messages, options = columns_of(numbered(TOPIC, 100, 5, queues=1)), CommitOptions()
        return commit(str(root), [stage_messages(str(root), messages, options)], options=options).stop

    return call


def _pop(place: Path) -> Callable[[], object]:
    root = popped_store(place / "store", 100)

    def call() -> int:
        with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
            found = consumer.receive(32)
            consumer.ack(found)
            return len(found)

    return call


def _services(place: Path) -> Callable[[], object]:
    root = goldens.unpack("delay-tx-5.5.0", place / "store")
    later = 4_000_000_000_000  # ms: everything is due

    def call() -> int:
        return sum(run_once(str(root), None, later, apply=True)["done"].to_pylist())

    return call


CALLS = {"batch read": _batch_read, "write": _write, "pop": _pop, "services": _services}


def touched_files(call: Callable[[], object]) -> tuple[set[str], object]:
    """The files with a function that ran, in any thread, and what the call returned."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(_ROOMS) and frame.f_code.co_name != "<module>":
            found.add(name[len(str(_ROOT)) + 1 :])

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found, result


if __name__ == "__main__":
    files, result = touched_files(CALLS[sys.argv[1]](Path(sys.argv[2])))
    assert result, "nothing was read, written or done"
    print(*sorted(files), sep="\n")
