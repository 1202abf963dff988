"""Flipped bits in heads of messages and in consume queue entries, in stores of real brokers: no read loses a
row in silence, `verify` counts what cannot be read, and a recovery takes no intact message out of its queue.

No checksum covers a message's head. So a queue offset or a queue id can become that of a neighbour.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.errors import OptionError, StoreError
from store_format.names import SCHEDULE_TOPIC
from tests.support import goldens
from tests.support.reads import Read

STORES = ("cleaned-5.5.0", "basic-4.9.7", "crash-5.5.0")
HEAD_SIZE, ENTRY_SIZE = 88, 20
OPTIONS = {
    "includeSystemTopics": "true",
    "subscribePattern": ".*",
    "columns": "topic,queueId,queueOffset,physicalOffset,body,rawBody",
}
_TOGETHER = 24  # flips, of as many messages
_COUNT = re.compile(r"(\d+) (?:malformed )?messages? (?:dropped|lost|are lost)")
_UNKNOWN_LEVELS = re.compile(r"shows the delay of level ([\d, ]+)\.")
_LEVELS = "messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"  # the default
DROP = {"mode": "DROPMALFORMED", "failOnDataLoss": "false"}

Key = tuple[str, int, int]


@dataclass(frozen=True)
class Flip:
    """Bit `bit` of the byte at `position` of a file; `message` is what it belongs to."""

    file: str
    position: int
    bit: int
    message: Key

    def __str__(self) -> str:
        return f"{self.file} byte {self.position} bit {self.bit} of {self.message}"

    def apply(self, root: Path) -> None:
        with (root / self.file).open("r+b", buffering=0) as file:
            file.seek(self.position)
            byte = file.read(1)[0] ^ 1 << self.bit
            file.seek(self.position)
            file.write(bytes([byte]))


def key_of(row: dict[str, Any]) -> Key:
    return row["topic"], row["queueId"], row["queueOffset"]


def rows_of(root: Path, **options: str) -> dict[Key, bytes]:
    rows = Read(root, OPTIONS | options).rows()
    found = {key_of(row): row["body"] for row in rows}
    assert len(found) == len(rows)
    return found


class Store:
    """A golden with one copy, which is flipped and restored in place."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = goldens.unpack(name, root)
        rows = Read(self.root, OPTIONS).rows()
        self.rows = {key_of(row): row["body"] for row in rows}
        self.raw = {key_of(row): row["rawBody"] for row in rows}
        self.places = {key_of(row): row["physicalOffset"] for row in rows}
        log = sorted(path for path in (self.root / "commitlog").iterdir() if path.name.isdigit())
        self.log_size, self.log_start = log[0].stat().st_size, int(log[0].name)

    def head(self, key: Key, byte: int, bit: int) -> Flip:
        place = self.places[key]
        within = place % self.log_size
        return Flip(f"commitlog/{place - within:020}", within + byte, bit, key)

    def entry(self, key: Key, byte: int, bit: int) -> Flip:
        topic, queue_id, offset = key
        directory = self.root / "consumequeue" / topic / str(queue_id)
        size = next(directory.iterdir()).stat().st_size
        at = offset * ENTRY_SIZE
        return Flip(f"consumequeue/{topic}/{queue_id}/{at - at % size:020}", at % size + byte, bit, key)

    def flips(self) -> Iterator[Flip]:
        """All bits of 40 heads and of 40 entries, and one bit of each other live entry."""
        random = Random(f"flips {self.root.name}")
        keys = sorted(self.rows)
        for key in random.sample(keys, 40):
            yield from (self.head(key, byte, bit) for byte in range(HEAD_SIZE) for bit in range(8))
        whole = set(random.sample(keys, 40))
        for key in keys:
            bits = range(8 * ENTRY_SIZE) if key in whole else [random.randrange(8 * ENTRY_SIZE)]
            yield from (self.entry(key, *divmod(number, 8)) for number in bits)

    def batches(self, count: int) -> Iterator[list[Flip]]:
        """The flips in an arbitrary order, `count` of different messages at a time."""
        flips, random = list(self.flips()), Random(f"batches {self.root.name}")
        random.shuffle(flips)
        for start in range(0, len(flips), count):
            yield list({flip.message: flip for flip in flips[start : start + count]}.values())


@dataclass
class Answer:
    """What a read gave: its rows, how many messages it counted as lost, whether it failed."""

    rows: dict[Key, bytes]
    counted: int = 0
    is_error: bool = False


def answer(root: Path, caplog: pytest.LogCaptureFixture, **options: str) -> Answer:
    caplog.clear()
    try:
        rows = rows_of(root, **options)
    except StoreError:
        return Answer({}, is_error=True)
    texts = [record.getMessage() for record in caplog.records]
    return Answer(rows, sum(int(number) for text in texts for number in _COUNT.findall(text)))


def check(store: Store, flips: list[Flip], scratch: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is wrong with the answers about the store with the flips."""
    wrong: list[str] = []
    heads = {flip.message for flip in flips if flip.file.startswith("commitlog")}
    intact = {key: body for key, body in store.rows.items() if key not in heads}

    def expect(what: str, keys: Collection[Key], *, is_right: bool = False) -> None:
        if keys and not is_right:
            wrong.append(f"{what}: {len(keys)} {sorted(keys)[:3]}")

    problems, some, fast = (
        diagnose(str(store.root)), answer(store.root, caplog, **DROP), answer(store.root, caplog)
    )  # fmt: skip
    lost = store.rows.keys() - some.rows.keys()
    expect(f"DROPMALFORMED counts {some.counted} of", lost, is_right=len(lost) <= some.counted)
    expect("none lost, but", lost, is_right="none lost" not in problems.verdict)
    missing = store.rows.keys() - fast.rows.keys()
    expect("FAILFAST lacks", missing, is_right=fast.is_error or len(missing) <= fast.counted)
    # In a crashed store a broker files them where they claim to be. Where a flip takes COMPRESSED_FLAG away
    # a client gets the body as stored (MessageDecoder.decode), which has the right CRC.
    flipped = {bodies[key] for key in heads for bodies in (store.rows, store.raw)}
    for rows in (some.rows, fast.rows):
        expect(
            "other rows", {key for key in rows if rows[key] != intact.get(key) and rows[key] not in flipped}
        )
    for is_copy in (False, True) if problems.of("damage") else ():
        target = scratch / "recovered"
        if is_copy:
            try:
                recover(str(store.root), into=str(target), salvage=True).apply()
            except OptionError as error:  # without a right entry of a level nothing shows its delay
                if (asked := _UNKNOWN_LEVELS.search(str(error))) is None:
                    raise
                queues = {(SCHEDULE_TOPIC, int(level) - 1) for level in asked[1].split(", ")}
                whole = {key for key in store.rows if key[:2] in queues} - {flip.message for flip in flips}
                expect("the delay is asked for, but entries show it", whole)
                conf = scratch / "broker.conf"
                conf.write_text(_LEVELS)
                recover(str(store.root), into=str(target), salvage=True, broker_conf=str(conf)).apply()
        else:
            shutil.copytree(store.root, target)
            with suppress(StoreError):  # it refuses to cut messages off, and changes nothing
                recover(str(target)).apply()
        found = answer(target, caplog, **DROP).rows
        expect(f"recover{' into' * is_copy} takes", {key for key in intact if intact[key] != found.get(key)})
        shutil.rmtree(target)
    return wrong


def run(store: Store, batches: Iterable[list[Flip]], scratch: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Flips many at once, and one by one where something is wrong: two flips can hide messages together."""
    for flips in batches:
        if _wrong_with(store, flips, scratch, caplog):
            wrong = {str(flip): _wrong_with(store, [flip], scratch, caplog) for flip in flips}
            assert not any(wrong.values()), {flip: texts for flip, texts in wrong.items() if texts}


def _wrong_with(
    store: Store, flips: list[Flip], scratch: Path, caplog: pytest.LogCaptureFixture
) -> list[str]:
    for flip in flips:
        flip.apply(store.root)
    wrong = check(store, flips, scratch, caplog)
    for flip in flips:
        flip.apply(store.root)
    return wrong


_PARTS = [
    pytest.param(slice(5), id="some"),
    *(
        pytest.param(
            slice(part, None, 8), id=f"part {part}", marks=[pytest.mark.whole, pytest.mark.timeout(3600)]
        )
        for part in range(8)
    ),
]


@pytest.mark.parametrize("part", _PARTS)
@pytest.mark.parametrize("name", STORES)
def test_no_flip_loses_a_message_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, part: slice
) -> None:
    """All bits of 40 heads and 40 entries, and one bit of each other live entry; 120 flips of each store
    outside of the proofs.
    """
    store = Store(name, tmp_path / name)
    run(store, islice(store.batches(_TOGETHER), part.start, part.stop, part.step), tmp_path, caplog)
