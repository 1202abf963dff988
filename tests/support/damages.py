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

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.files.read import FileCache
from store_format.layouts import CQ_UNIT
from tests.support.file_edits import overwrite


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


# ---- in wrong places ---------------------------------------------------------------------------------------


def _exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _used(store: Damaged) -> list[Path]:
    return [path for path in store.files if store.units_of(path)]


def _entries(path: Path) -> int:
    return int((np.frombuffer(path.read_bytes(), CQ_UNIT)["size"] > 0).sum())


def _queues(store: Damaged) -> list[Path]:
    """The directories of the queues, the one with the most entries first."""
    found = sorted({path.parent for path in store.paths("consumequeue/[A-Z]*/*/*")})
    return sorted(found, key=lambda queue: -sum(map(_entries, queue.iterdir())))


def _newest(store: Damaged) -> tuple[Path, int]:
    """The file with the last entry of the largest queue, and how many entries it has."""
    file = [path for path in sorted(_queues(store)[0].iterdir()) if _entries(path)][-1]
    return file, _entries(file)


def exchange_two_files(store: Damaged) -> None:
    used = _used(store)
    _exchange(used[1], used[len(used) // 2 + 1 if len(used) > 3 else -1])


def exchange_the_first_and_the_last_file(store: Damaged) -> None:
    _exchange(_used(store)[0], _used(store)[-1])


def repeat_a_file_as_the_next(store: Damaged) -> None:
    last = store.files[-1]
    following = last.with_name(f"{int(last.name) + last.stat().st_size:020d}")
    shutil.copy(store.middle, following)


def repeat_a_file_within_the_next(store: Damaged) -> None:
    path = _used(store)[1]
    shutil.copy(path, path.with_name(f"{int(path.name) + 4096:020d}"))


def junk_with_a_number(store: Damaged) -> None:
    (store.root / "commitlog" / f"{1:020d}").write_bytes(b"junk" * 1000)


def junk_with_a_huge_number(store: Damaged) -> None:
    (store.root / "commitlog" / ("9" * 20)).write_bytes(b"junk" * 1000)


def cut_one_byte_of_a_middle_file(store: Damaged) -> None:
    os.truncate(_used(store)[1], _used(store)[1].stat().st_size - 1)


def cut_all_files_in_half(store: Damaged) -> None:
    for path in store.files:
        os.truncate(path, path.stat().st_size // 2)


def older_last_file(store: Damaged) -> None:
    unit = store.a_unit(store.last)
    overwrite(store.last, unit.position, bytes(store.last.stat().st_size - unit.position))


def older_middle_file(store: Damaged) -> None:
    unit = store.a_unit(store.middle)
    overwrite(store.middle, unit.position, bytes(store.middle.stat().st_size - unit.position))


def older_log(store: Damaged) -> None:
    unit = store.units[len(store.units) * 7 // 10]
    for path in store.files:
        start = max(0, unit.position if path == unit.path else 0 if path > unit.path else 1 << 60)
        if start < path.stat().st_size:
            overwrite(path, start, bytes(path.stat().st_size - start))


def zero_the_heads_of_all_files(store: Damaged) -> None:
    for path in store.files:
        overwrite(path, 0, bytes(8))


def zero_the_end_of_a_file(store: Damaged) -> None:
    overwrite(store.middle, store.middle.stat().st_size - 4096, bytes(4096))


def lose_a_middle_and_the_last_file(store: Damaged) -> None:
    _used(store)[1].unlink()
    _used(store)[-1].unlink()


def keep_the_last_file(store: Damaged) -> None:
    for path in _used(store)[:-1]:
        path.unlink()


def exchange_two_messages(store: Damaged) -> None:
    one, other = _equally_long(store)
    data = bytearray(store.middle.read_bytes())
    first, second = data[one.position : one.stop], data[other.position : other.stop]
    data[one.position : one.stop], data[other.position : other.stop] = second, first
    store.middle.write_bytes(data)


def repeat_a_message(store: Damaged) -> None:
    one, other = _equally_long(store)
    data = bytearray(store.middle.read_bytes())
    data[other.position : other.stop] = data[one.position : one.stop]
    store.middle.write_bytes(data)


def _equally_long(store: Damaged) -> tuple[Unit, Unit]:
    units = store.units_of(store.middle)
    return next((one, other) for one in units for other in units if one < other and one.size == other.size)


def _flip_field(name: str, at: int, of_last: bool = False) -> Callable[[Damaged], None]:
    """Flips the lowest bit of a field of a message's head."""

    def flip(store: Damaged) -> None:
        unit = store.units[-1] if of_last else store.a_unit(store.middle)
        overwrite(unit.path, unit.position + at, bytes([unit.path.read_bytes()[unit.position + at] ^ 1]))

    flip.__name__ = f"flip_{name}{'_of_the_last' if of_last else ''}"
    return flip


_FLIPS = tuple(
    _flip_field(name, at)
    for name, at in {
        "total_size": 3, "magic": 7, "body_crc": 11, "queue_id": 15, "flag": 19, "queue_offset": 27,
        "physical_offset": 35, "store_timestamp": 63, "body_length": 87,
    }.items()
)  # fmt: skip


def exchange_two_queues(store: Damaged) -> None:
    queue = _queues(store)[0]
    other = next(path for path in sorted(queue.parent.iterdir()) if path != queue)
    aside = queue.with_name("aside")
    queue.rename(aside)
    other.rename(queue)
    aside.rename(other)


def exchange_two_files_of_a_queue(store: Damaged) -> None:
    first, second = sorted(_queues(store)[0].iterdir())[:2]
    _exchange(first, second)


def rename_a_queue(store: Damaged) -> None:
    _queues(store)[0].rename(_queues(store)[0].with_name("9"))


def repeat_a_queue(store: Damaged) -> None:
    shutil.copytree(_queues(store)[0], _queues(store)[0].with_name("9"))


def repeat_a_topic(store: Damaged) -> None:
    shutil.copytree(_queues(store)[0].parent, store.root / "consumequeue/CopyOfTopic")


def foreign_queue_files(store: Damaged) -> None:
    """Those of a longer queue of a broker with other messages: each entry leads 100,000 bytes behind."""
    for path in _queues(store)[0].iterdir():
        units = np.frombuffer(path.read_bytes(), CQ_UNIT).copy()
        units["physical_offset"][units["size"] > 0] += 100_001
        path.write_bytes(units.tobytes())


def zero_the_last_entries(store: Damaged) -> None:
    file, count = _newest(store)
    overwrite(file, CQ_UNIT.itemsize * max(count - 3, 0), bytes(CQ_UNIT.itemsize * min(3, count)))


def zero_the_first_entries(store: Damaged) -> None:
    overwrite(min(_queues(store)[0].iterdir()), 0, bytes(60))


def shift_the_entries_of_a_file(store: Damaged) -> None:
    file = min(_queues(store)[0].iterdir())
    data = file.read_bytes()
    file.write_bytes(data[:40] + data[20:-20])


def blank_a_queue(store: Damaged) -> None:
    for path in _queues(store)[0].iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def old_entries_behind_the_log(store: Damaged) -> None:
    file, count = _newest(store)
    unit = np.array([(10**7 + 300 * i, 300, 0) for i in range(5)], CQ_UNIT)
    left = file.stat().st_size // CQ_UNIT.itemsize - count
    overwrite(file, CQ_UNIT.itemsize * count, unit[:left].tobytes())


def old_entries_into_the_log(store: Damaged) -> None:
    file, count = _newest(store)
    first = np.frombuffer(sorted(_queues(store)[1].iterdir())[-1].read_bytes(), CQ_UNIT)[:3]
    left = file.stat().st_size // CQ_UNIT.itemsize - count
    overwrite(file, CQ_UNIT.itemsize * count, first[:left].tobytes())


def older_queues(store: Damaged) -> None:
    unit = store.units[len(store.units) * 7 // 10]
    place = int(unit.path.name) + unit.position
    for path in store.paths("consumequeue/*/*/*"):
        units = np.frombuffer(path.read_bytes(), CQ_UNIT).copy()
        units[units["physical_offset"] >= place] = np.zeros(1, CQ_UNIT)
        path.write_bytes(units.tobytes())


MISPLACED: Sequence[Callable[[Damaged], None]] = (
    exchange_two_files,
    exchange_the_first_and_the_last_file,
    repeat_a_file_as_the_next,
    repeat_a_file_within_the_next,
    junk_with_a_number,
    junk_with_a_huge_number,
    cut_one_byte_of_a_middle_file,
    cut_all_files_in_half,
    older_last_file,
    older_middle_file,
    older_log,
    zero_the_heads_of_all_files,
    zero_the_end_of_a_file,
    lose_a_middle_and_the_last_file,
    keep_the_last_file,
    exchange_two_messages,
    repeat_a_message,
    *_FLIPS,
    _flip_field("magic", 4, of_last=True),
    _flip_field("body", 90, of_last=True),
    exchange_two_queues,
    exchange_two_files_of_a_queue,
    rename_a_queue,
    repeat_a_queue,
    repeat_a_topic,
    foreign_queue_files,
    zero_the_last_entries,
    zero_the_first_entries,
    shift_the_entries_of_a_file,
    blank_a_queue,
    old_entries_behind_the_log,
    old_entries_into_the_log,
    older_queues,
)
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
