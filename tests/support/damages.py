"""Every kind of damage that was tried on the stores of real brokers: one function a kind, which changes a
copy.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.files.view import FileCache
from tests.support.referee.world import overwrite


class Unit(NamedTuple):
    """A message of the commitlog: its file, its first byte there, its size."""

    path: Path
    position: int
    size: int

    @property
    def stop(self) -> int:
        return self.position + self.size


class Damaged:
    """A copy of a store that is damaged: its root and the messages that its log had before."""

    def __init__(self, root: Path) -> None:
        self.root = root
        log = CommitLog.open([str(root / "commitlog")], FileCache())
        self.units = [
            Unit(Path(run.file.path), position, size)
            for run in log.walk(log.min_offset, resync=True)
            if isinstance(run, UnitRun)
            for position, size in zip(run.positions.tolist(), run.sizes.tolist(), strict=True)
        ]
        self.files = sorted(path for path in (root / "commitlog").iterdir() if path.name.isdigit())

    def units_of(self, path: Path) -> list[Unit]:
        return [unit for unit in self.units if unit.path == path]

    @property
    def middle(self) -> Path:
        """A file with messages that has neighbours with messages."""
        with_units = [path for path in self.files if self.units_of(path)]
        return with_units[len(with_units) // 2]

    @property
    def last(self) -> Path:
        """The file of the log's last message."""
        return self.units[-1].path

    def a_unit(self, path: Path) -> Unit:
        units = self.units_of(path)
        return units[len(units) // 2]

    def paths(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.root.glob(pattern) if path.is_file())


_BODY_AT = 90  # a byte of the body, behind a head with IPv4 hosts


def _flip(path: Path, position: int) -> None:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x5A]))


# ---- the commitlog -----------------------------------------------------------------------------------------


def _body(store: Damaged, path: Path) -> None:
    unit = store.a_unit(path)
    _flip(path, unit.position + _BODY_AT)


def flip_body_in_the_middle(store: Damaged) -> None:
    _body(store, store.middle)


def flip_body_in_the_last_file(store: Damaged) -> None:
    _body(store, store.last)


def flip_an_early_and_the_last_body(store: Damaged) -> None:
    _body(store, store.files[0])
    _flip(store.last, store.units[-1].position + _BODY_AT)


def flip_size(store: Damaged) -> None:
    _flip(store.middle, store.a_unit(store.middle).position + 2)


def flip_first_magic(store: Damaged) -> None:
    _flip(store.files[0], store.units[0].position + 4)


def zero_page(store: Damaged) -> None:
    overwrite(store.middle, 4096, bytes(4096))


def garbage_page(store: Damaged) -> None:
    overwrite(store.files[0], 8192, random.Random(1).randbytes(4096))


def lose_middle_file(store: Damaged) -> None:
    store.middle.unlink()


def lose_first_file(store: Damaged) -> None:
    store.files[0].unlink()


def lose_last_file(store: Damaged) -> None:
    store.files[-1].unlink()


def cut_middle_file_in_half(store: Damaged) -> None:
    os.truncate(store.middle, store.middle.stat().st_size // 2)


def cut_middle_file_within_its_last_properties(store: Damaged) -> None:
    os.truncate(store.middle, store.units_of(store.middle)[-1].stop - 7)


def cut_middle_file_behind_its_last_message(store: Damaged) -> None:
    os.truncate(store.middle, store.units_of(store.middle)[-1].stop)


def cut_first_file_within_its_last_properties(store: Damaged) -> None:
    os.truncate(store.files[0], store.units_of(store.files[0])[-1].stop - 7)


def cut_last_file_within_the_last_properties(store: Damaged) -> None:
    os.truncate(store.last, store.units[-1].stop - 7)


def cut_last_file_within_the_last_body(store: Damaged) -> None:
    os.truncate(store.last, store.units[-1].position + 100)


def cut_last_file_behind_the_last_message(store: Damaged) -> None:
    os.truncate(store.last, store.units[-1].stop)


def cut_last_file_behind_damage(store: Damaged) -> None:
    """The damaged message and the cut one are one stretch of bytes that are no message."""
    before = store.units[-2]
    _flip(before.path, before.position + 4)
    os.truncate(store.last, store.units[-1].stop - 7)


def cut_first_file_to_nothing(store: Damaged) -> None:
    os.truncate(store.files[0], 0)


def directory_for_a_file(store: Damaged) -> None:
    store.files[0].unlink()
    store.files[0].mkdir()


def foreign_files(store: Damaged) -> None:
    (store.root / "commitlog/lost+found").mkdir()
    (store.root / "commitlog" / f"{0:020d}.bak").write_bytes(b"x" * 99)


# ---- queues, index and the rest ----------------------------------------------------------------------------


def lose_consume_queues(store: Damaged) -> None:
    shutil.rmtree(store.root / "consumequeue")


def lose_a_queue(store: Damaged) -> None:
    shutil.rmtree(sorted((store.root / "consumequeue").glob("[A-Z]*/*"))[-2])


def cut_a_queue_file(store: Damaged) -> None:
    os.truncate(store.paths("consumequeue/[A-Z]*/*/*")[0], 217)


def flip_a_queue_entry(store: Damaged) -> None:
    _flip(store.paths("consumequeue/[A-Z]*/*/*")[0], 45)


def zero_queue_entries(store: Damaged) -> None:
    overwrite(store.paths("consumequeue/[A-Z]*/*/*")[0], 40, bytes(120))


def lose_a_queue_file(store: Damaged) -> None:
    directories = sorted((store.root / "consumequeue").glob("[A-Z]*/*"))
    files = max((sorted(directory.iterdir()) for directory in directories), key=len)
    files[len(files) // 2].unlink()


def lose_index(store: Damaged) -> None:
    shutil.rmtree(store.root / "index")


def garbage_index(store: Damaged) -> None:
    path = store.paths("index/*")[0]
    path.write_bytes(random.Random(2).randbytes(path.stat().st_size))


def cut_an_index_file(store: Damaged) -> None:
    path = store.paths("index/*")[-1]
    os.truncate(path, path.stat().st_size - 8)


def link_a_queue(store: Damaged) -> None:
    directory = store.paths("consumequeue/*/*/*")[0].parent
    moved = store.root.parent / f"{store.root.name}-queue"
    directory.rename(moved)
    directory.symlink_to(moved)


def lose_checkpoint(store: Damaged) -> None:
    (store.root / "checkpoint").unlink()


def empty_checkpoint(store: Damaged) -> None:
    os.truncate(store.root / "checkpoint", 0)


def lose_config(store: Damaged) -> None:
    shutil.rmtree(store.root / "config")


def cut_topics_json(store: Damaged) -> None:
    (store.root / "config/topics.json").write_text('{"topicConfigTable":{"Sal')


def cut_both_topics_json(store: Damaged) -> None:
    cut_topics_json(store)
    (store.root / "config/topics.json.bak").write_text('{"topicConfigTable":{"Sal')


def zero_offsets_json(store: Damaged) -> None:
    (store.root / "config/consumerOffset.json").write_bytes(bytes(500))


def lose_the_log(store: Damaged) -> None:
    shutil.rmtree(store.root / "commitlog")


OF_THE_LOG: Sequence[Callable[[Damaged], None]] = (
    flip_body_in_the_middle,
    flip_body_in_the_last_file,
    flip_an_early_and_the_last_body,
    flip_size,
    flip_first_magic,
    zero_page,
    garbage_page,
    lose_middle_file,
    lose_first_file,
    lose_last_file,
    cut_middle_file_in_half,
    cut_middle_file_within_its_last_properties,
    cut_middle_file_behind_its_last_message,
    cut_first_file_within_its_last_properties,
    cut_last_file_within_the_last_properties,
    cut_last_file_within_the_last_body,
    cut_last_file_behind_the_last_message,
    cut_last_file_behind_damage,
    cut_first_file_to_nothing,
    directory_for_a_file,
    foreign_files,
)
OTHERS: Sequence[Callable[[Damaged], None]] = (
    lose_consume_queues,
    lose_a_queue,
    cut_a_queue_file,
    flip_a_queue_entry,
    zero_queue_entries,
    lose_a_queue_file,
    lose_index,
    garbage_index,
    cut_an_index_file,
    link_a_queue,
    lose_checkpoint,
    empty_checkpoint,
    lose_config,
    cut_topics_json,
    cut_both_topics_json,
    zero_offsets_json,
    lose_the_log,
)
