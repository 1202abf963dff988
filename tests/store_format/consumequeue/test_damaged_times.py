"""A search by time that meets damaged messages: an error with the place, or the next message that can be
read; nothing is hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from store_format import MessageStore, Queue
from store_format.commit.options import CommitOptions
from store_format.commit.publication import save_checkpoint
from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites
from store_format.metadata.read import Checkpoint
from store_format.opened.store import Opened
from tests.support.file_edits import overwrite
from tests.support.staged import columns_of, make_store, messages_of, numbered

_COUNT = 40
_START = 1_700_000_000_000
_FILE_SIZE = 1 << 14


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T-0 has a message a second."""
    root = make_store(tmp_path_factory.mktemp("times") / "store")
    times = _START + 1000 * np.arange(_COUNT)
    options = CommitOptions(new_topics={"T": 1}, clock=lambda: _START)
    MessageStore.open(str(root)).append(
        columns_of(numbered("T", 0, _COUNT, queues=1)), store_timestamps=times, options=options
    )
    return root


class Damaged:
    """The store with messages whose magic code is damaged, until they are mended."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mended: list[tuple[Path, int, bytes]] = []
        self._places = [message.physical_offset for message in messages_of(root)]

    def damage(self, *numbers: int) -> None:
        for number in numbers:
            within = self._places[number] % _FILE_SIZE
            path = self.root / "commitlog" / f"{self._places[number] - within:020d}"
            self._mended.append((path, within + 4, path.read_bytes()[within + 4 : within + 8]))
            overwrite(path, within + 4, b"\x11\x22\x33\x44")

    def mend(self) -> None:
        while self._mended:
            overwrite(*self._mended.pop())

    def queue(self) -> Queue:
        return MessageStore.open(str(self.root)).queue("T", 0)


@pytest.fixture
def store(whole: Path) -> Iterator[Damaged]:
    damaged = Damaged(whole)
    yield damaged
    damaged.mend()


@pytest.mark.parametrize("stretch", [1, 7])
@pytest.mark.parametrize("state", ["clean", "crashed"])
def test_no_readable_message_is_left_out(store: Damaged, state: str, stretch: int) -> None:
    abort = store.root / "abort"
    if state == "crashed":
        abort.touch()
        save_checkpoint(Opened(str(store.root)), Checkpoint(), FileWrites(sync=False))
    try:
        for first in range(1, _COUNT, 6):
            bad = set(range(first, min(first + stretch, _COUNT)))
            store.damage(*bad)
            queue = store.queue()
            for number in range(0, _COUNT, 3):
                found = queue.offset_at(_START + 1000 * number, on_damage="DROPMALFORMED")
                assert bad.issuperset(range(found, number) or range(number, found)), (first, number, found)
                found = queue.offset_at(_START + 1000 * number, "UPPER", on_damage="DROPMALFORMED")
                assert found == number or number in bad, (first, number, found)
            store.mend()
    finally:
        abort.unlink(missing_ok=True)


def test_failfast_names_the_place(store: Damaged) -> None:
    store.damage(5)
    assert store.queue().offset_at(_START + 30_000) == 30  # the search does not meet it
    store.damage(19)  # the last of a consume queue file, with which the search begins
    with pytest.raises(
        CorruptStoreError,
        match=r"commitlog/0{20} at byte \d+: expected a message of T-0.* found 0x11223344, \d+",
    ):
        store.queue().offset_at(_START + 30_000)


@pytest.mark.parametrize("option", ["endingTimestamp", "startingTimestamp"])
def test_a_read_by_time(store: Damaged, option: str) -> None:
    store.damage(19)
    options = {"path": str(store.root), "subscribe": "T", option: str(_START + 30_000)}
    with pytest.raises(CorruptStoreError, match="for a search by time"):
        plan(parse_read_options(options), cores=2)
    planned = plan(parse_read_options(options | {"mode": "DROPMALFORMED"}), cores=2)
    pieces = [
        (piece.start, piece.stop)
        for split in planned.splits
        for share in split.shares
        for piece in share.slices
    ]
    assert (min(start for start, _ in pieces), max(stop for _, stop in pieces)) == (
        (0, 30) if option.startswith("end") else (30, _COUNT)
    )
