"""A store whose files become shorter, vanish and are replaced while a process reads them.

Run as a process of its own, because a mapped file that becomes shorter ends the process with SIGBUS:
`python -m tests.support.shrinking DIRECTORY HOW ROUNDS` prints of each reader how many rounds ended in which
way.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pyarrow as pa

import rmq_spark
from store_format import MessageStore
from store_format.diagnose import diagnose
from store_format.errors import StoreError
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns

MESSAGES = 3000
_BODY_SIZE = 400
_KEYS = 30
NAMELESS = "an error that names no file"
LOST = "messages lost without an error"


def body(number: int) -> bytes:
    """The body of message `number`: any other bytes in its row are wrong."""
    return random.Random(number).randbytes(_BODY_SIZE)


def make_store(root: str) -> None:
    """A closed store with one topic, three commitlog files and an index."""
    store = MessageStore.create(
        root, mapped_file_size_commit_log=1 << 19, max_hash_slot_num=1000, max_index_num=5000
    )
    numbers = range(MESSAGES)
    keys = encode_property_columns(MESSAGES, {"KEYS": pa.array([f"key-{i % _KEYS}" for i in numbers])})
    bodies = pa.array([body(i) for i in numbers])
    store.append(MessageColumns(topic="T", body=bodies, properties=keys, queue_id=0, born_timestamp=1))


# ---- what happens to a file --------------------------------------------------------------------------------


def _truncate(path: Path, saved: bytes, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(len(saved)))


def _copy_over(path: Path, saved: bytes, chance: random.Random) -> None:
    """`cp backup file`: the file is empty first, then it grows."""
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(saved), 1 << 16):
            file.write(saved[start : start + (1 << 16)])
            time.sleep(chance.random() / 10_000)


def _copy_in_place(path: Path, saved: bytes, chance: random.Random) -> None:
    """`rsync --inplace` of a shorter file: writes its bytes over the old ones, then cuts off the rest."""
    stop = chance.randrange(len(saved))
    with path.open("r+b", buffering=0) as file:
        file.write(saved[:stop])
        file.truncate(stop)


def _create_again(path: Path, saved: bytes, chance: random.Random) -> None:
    path.unlink()
    time.sleep(chance.random() / 10_000)
    path.write_bytes(bytes(len(saved)))


HOW: dict[str, Callable[[Path, bytes, random.Random], None]] = {
    "truncate": _truncate,
    "cp": _copy_over,
    "rsync": _copy_in_place,
    "create": _create_again,
}


# ---- who reads ---------------------------------------------------------------------------------------------


def check(rows: pa.RecordBatch | pa.Table) -> int:
    """Returns how many rows there are. Raises AssertionError for one with a wrong body."""
    for number, content in zip(rows["queueOffset"].to_pylist(), rows["body"].to_pylist(), strict=True):
        assert content == body(number), f"a wrong row at queue offset {number}"
    return len(rows)


COLUMNS = ("queueOffset", "body")

# Each reader first yields 0, when the store is open and the change may come, then how many rows it has got.


def _read(root: str) -> Iterator[int]:
    queue = MessageStore.open(root).queue("T", 0)
    yield 0
    for batch in queue.read(columns=COLUMNS):
        yield check(batch)


def _scan(root: str) -> Iterator[int]:
    batches = MessageStore.open(root).scan(columns=COLUMNS)
    yield check(next(batches))
    for batch in batches:
        yield check(batch)


def _find(root: str) -> Iterator[int]:
    store = MessageStore.open(root)
    yield 0
    for i in range(_KEYS):
        yield check(store.find(key=f"key-{i}", topic="T", columns=COLUMNS).table)


def _verify(root: str) -> Iterator[int]:
    yield 0
    diagnose(root, on_offset=lambda offset: None)


def _export(root: str) -> Iterator[int]:
    from rmq_spark.cli.main import main

    said = StringIO()
    yield 0
    with redirect_stdout(StringIO()), redirect_stderr(said):
        code = main(["export", root, "-", "--format", "jsonl"])
    if code and "no message matches" not in said.getvalue():  # the queue was empty when it was looked at
        raise StoreError(said.getvalue())


def _views(root: str) -> Iterator[int]:
    store = rmq_spark.open(root)
    yield 0
    for name in ("queues", "index", "files", "topics"):
        store.view(name)


# Readers that know before the change how many messages there are. `find`, `export` and `verify` look at the
# store anew and take a shorter file for what the store has.
_COUNTED = ("read", "scan")

WHAT: dict[str, Callable[[str], Iterator[int]]] = {
    "read": _read,
    "scan": _scan,
    "find": _find,
    "verify": _verify,
    "export": _export,
    "views": _views,
}


# ---- rounds ------------------------------------------------------------------------------------------------


def round_of(
    root: str, how: str, reader: Iterator[int], chance: random.Random, *, counted: bool, delay_s: float = 0.03
) -> str:
    """One read of the store with one change to one of its files; returns how the read ended."""
    directories = ("commitlog", "commitlog", "consumequeue/T/0", "index")
    path = chance.choice(sorted((Path(root) / chance.choice(directories)).iterdir()))
    saved = path.read_bytes()
    change = threading.Timer(chance.random() * delay_s, HOW[how], (path, saved, chance))
    rows = next(reader)
    change.start()
    try:
        for count in reader:
            rows += count
            time.sleep(chance.random() / 500)
    except StoreError as error:
        return type(error).__name__ if root in str(error) else f"{NAMELESS}: {error}"
    else:
        return "complete" if rows == MESSAGES or not counted else f"{LOST}: {MESSAGES - rows}"
    finally:
        change.join()
        path.write_bytes(saved)


def main() -> None:
    directory, how, rounds = sys.argv[1:]
    root = str(Path(directory) / "store")
    shutil.rmtree(root, ignore_errors=True)
    make_store(root)
    ended = {}
    for what, read in WHAT.items():
        print(what, file=sys.stderr, flush=True)  # the last one if SIGBUS ends the process
        chance, counted = random.Random(f"{how} {what}"), what in _COUNTED
        ended[what] = Counter(
            round_of(root, how, read(root), chance, counted=counted) for _ in range(int(rounds))
        )
    print(json.dumps(ended))


if __name__ == "__main__":
    main()
