"""Writing without Spark: encoding, the driver's commit of what tasks staged, and many small commits one after
another.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.fill import Filling, message_columns
from benchmarks.pages import settle
from benchmarks.rounds import Figure, Rates, interleave
from store_format import MessageStore
from store_format.bookkeeping.identity import StagedFile
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.staging import StagingWriter
from store_format.message.encode import encode
from store_format.opened.store import Opened

INDEXED = "three index entries a message"
_TASKS = 2
_CHUNK_BYTES = 4 << 20  # of bodies; about what a task gets of Spark at a time
_SMALL_ROWS = 10


@dataclass(frozen=True, slots=True)
class SmallCommits:
    """Milliseconds of a commit of ten messages, staging aside, and of it the part that waited for the
    disk.
    """

    flush_disk_type: str
    commits: int
    milliseconds: Figure
    fsync_milliseconds: Figure
    files_left: int  # below .rmqlog, more than after the first commit


def measure_encode(filling: Filling, rounds: int) -> Rates:
    """Messages a second through `encode`, one thread."""
    return interleave({"encode": encode_case(filling)}, rounds)["encode"]


def encode_case(filling: Filling) -> Callable[[], int]:
    """Encodes all messages, in chunks of what a task gets of Spark at a time."""
    chunks = [message_columns(filling, start, stop)[0] for start, stop in _chunks(filling)]
    return lambda: sum(len(encode(chunk)) for chunk in chunks)


def measure_commit(directory: Path, filling: Filling, rounds: int) -> dict[str, Rates]:
    """The driver's part of a write into a new store, and for scale a copy of as many bytes with the same
    flush.
    """
    place = CommitPlace(directory / "commit", filling)
    cases: dict[str, Callable[[], int]] = {}
    before: dict[str, Callable[[], None]] = {}
    for flush, sync in (("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)):
        for index in (False, True):
            name = f"commit, {flush}, {INDEXED if index else 'no index'}"
            cases[name], before[name] = partial(place.commit, sync), partial(place.stage, index)
        cases[f"file copy, {flush}"], before[f"file copy, {flush}"] = (
            partial(place.copy, sync),
            place.stage_copy,
        )
    try:
        return interleave(cases, rounds, before=before)
    finally:
        place.clear()


class CommitPlace:
    """A new store for every commit, with the messages staged by as many tasks as there are cores here."""

    def __init__(self, directory: Path, filling: Filling) -> None:
        self._directory = directory
        self._filling = filling
        self._staged: list[StagedFile] = []
        self._has_index = False

    @property
    def _root(self) -> str:
        return str(self._directory / "store")

    def clear(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)

    def stage(self, index: bool) -> None:
        self.clear()
        self._directory.mkdir(parents=True)
        MessageStore.create(self._root)
        self._has_index = index
        chunks = list(_chunks(self._filling))
        self._staged = [self._stage_task(chunks[task::_TASKS]) for task in range(_TASKS)]
        settle(self._directory, self._filling)

    def _stage_task(self, chunks: list[tuple[int, int]]) -> StagedFile:
        writer = StagingWriter(Opened(self._root), secrets.token_hex(8), sync=False)
        for start, stop in chunks:
            writer.stage(message_columns(self._filling, start, stop)[0])
        return writer.close()

    def commit(self, sync: bool) -> int:
        options = CommitOptions(
            sync=sync,
            message_index_enable=self._has_index,
            new_topics=dict.fromkeys(self._filling.topic_names, 8),
        )
        result = commit(self._root, self._staged, options=options)
        return sum(stop - start for start, stop in result.queues.values())

    def stage_copy(self) -> None:
        self.stage(False)
        self.commit(False)
        settle(self._directory, self._filling)

    def copy(self, sync: bool) -> int:
        """The log's bytes, read and written as a copy would. Its last file is sparse behind the messages."""
        log = MessageStore.open(self._root)
        stop = max(
            int(queue.range.bounds.last_physical_offset)
            for queue in log.queues()
            if queue.range.bounds is not None
        )
        target = self._directory / "copy"
        with open(target, "wb") as output:
            for path in sorted(Path(self._root, "commitlog").iterdir()):
                left = min(path.stat().st_size, stop - int(path.name))
                with open(path, "rb") as source:
                    while left > 0:
                        left -= os.sendfile(output.fileno(), source.fileno(), None, left)
            if sync:
                os.fsync(output.fileno())
        target.unlink()
        return self._filling.messages


def measure_small_commits(directory: Path, commits: int) -> list[SmallCommits]:
    """Commits of ten messages each, with a key, as a stream of tiny batches makes them."""
    found = []
    for flush, sync in (("ASYNC_FLUSH", False), ("SYNC_FLUSH", True)):
        root = directory / f"small-{flush}"
        store = MessageStore.create(str(root))
        spent, waited, files = [], [], 0
        for number in range(commits):
            messages, _ = message_columns(Filling(messages=_SMALL_ROWS, body_size=100), 0, _SMALL_ROWS)
            writer = StagingWriter(store.opened, secrets.token_hex(8), sync=sync)
            writer.stage(messages)
            staged = writer.close()
            begun = time.perf_counter()
            result = commit(
                store.path,
                [staged],
                key=("stream", number),
                options=CommitOptions(sync=sync, new_topics={"Orders": 8}),
            )
            spent.append((time.perf_counter() - begun) * 1000)
            waited.append(result.sync_seconds * 1000)
            files = files or _own_files(root)
        left = _own_files(root) - files
        found.append(SmallCommits(flush, commits, Figure.of(spent), Figure.of(waited), left))
        shutil.rmtree(root)
    return found


def _own_files(root: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(root / ".rmqlog"))


def _chunks(filling: Filling) -> list[tuple[int, int]]:
    step = max(_CHUNK_BYTES // filling.body_size, 1)
    edges = np.arange(0, filling.messages, step).tolist()
    return [(start, min(start + step, filling.messages)) for start in edges]
