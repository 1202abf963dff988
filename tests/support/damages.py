"""Every kind of damage that was tried on the stores of real brokers: a row a kind, which changes a copy."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.files.read import FileCache
from store_format.layouts import CQ_UNIT
from tests.support.file_edits import flip, overwrite

Damage = Callable[["Damaged"], object]


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

    def do(self, name: str) -> None:
        """Does the damage of this name."""
        (OF_THE_LOG | OTHERS | MISPLACED)[name](self)

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

    @property
    def used(self) -> list[Path]:
        return [path for path in self.files if self.units_of(path)]

    def paths(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.root.glob(pattern) if path.is_file())

    @property
    def queues(self) -> list[Path]:
        """The directories of the queues, the one with the most entries first."""
        found = sorted({path.parent for path in self.paths("consumequeue/[A-Z]*/*/*")})
        return sorted(found, key=lambda queue: -sum(map(_entries, queue.iterdir())))

    @property
    def queue_file(self) -> Path:
        return self.paths("consumequeue/[A-Z]*/*/*")[0]


def _entries(path: Path) -> int:
    return int((np.frombuffer(path.read_bytes(), CQ_UNIT)["size"] > 0).sum())


_BODY_AT = 90  # a byte of the body, behind a head with IPv4 hosts
_flip = partial(flip, mask=0x5A)


# ---- the commitlog -----------------------------------------------------------------------------------------


def _flip_body(store: Damaged, path: Path) -> None:
    _flip(path, store.a_unit(path).position + _BODY_AT)


def _cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_behind(store: Damaged, path: Path, by: int) -> None:
    """Cuts a file so many bytes behind the end of its last message."""
    os.truncate(path, store.units_of(path)[-1].stop + by)


def _flip_an_early_and_the_last_body(store: Damaged) -> None:
    _flip_body(store, store.files[0])
    _flip(store.last, store.units[-1].position + _BODY_AT)


def _cut_last_file_behind_damage(store: Damaged) -> None:
    """The damaged message and the cut one are one stretch of bytes that are no message."""
    before = store.units[-2]
    _flip(before.path, before.position + 4)
    os.truncate(store.last, store.units[-1].stop - 7)


def _directory_for_a_file(store: Damaged) -> None:
    store.files[0].unlink()
    store.files[0].mkdir()


def _foreign_files(store: Damaged) -> None:
    (store.root / "commitlog/lost+found").mkdir()
    (store.root / "commitlog" / f"{0:020d}.bak").write_bytes(b"x" * 99)


OF_THE_LOG: dict[str, Damage] = {
    "flip_body_in_the_middle": lambda store: _flip_body(store, store.middle),
    "flip_body_in_the_last_file": lambda store: _flip_body(store, store.last),
    "flip_an_early_and_the_last_body": _flip_an_early_and_the_last_body,
    "flip_size": lambda store: _flip(store.middle, store.a_unit(store.middle).position + 2),
    "flip_first_magic": lambda store: _flip(store.files[0], store.units[0].position + 4),
    "zero_page": lambda store: overwrite(store.middle, 4096, bytes(4096)),
    "garbage_page": lambda store: overwrite(store.files[0], 8192, random.Random(1).randbytes(4096)),
    "lose_middle_file": lambda store: store.middle.unlink(),
    "lose_first_file": lambda store: store.files[0].unlink(),
    "lose_last_file": lambda store: store.files[-1].unlink(),
    "cut_middle_file_in_half": lambda store: _cut_in_half(store.middle),
    "cut_middle_file_within_its_last_properties": lambda store: _cut_behind(store, store.middle, -7),
    "cut_middle_file_behind_its_last_message": lambda store: _cut_behind(store, store.middle, 0),
    "cut_first_file_within_its_last_properties": lambda store: _cut_behind(store, store.files[0], -7),
    "cut_last_file_within_the_last_properties": lambda store: _cut_behind(store, store.last, -7),
    "cut_last_file_within_the_last_body": lambda store: os.truncate(
        store.last, store.units[-1].position + 100
    ),
    "cut_last_file_behind_the_last_message": lambda store: _cut_behind(store, store.last, 0),
    "cut_last_file_behind_damage": _cut_last_file_behind_damage,
    "cut_first_file_to_nothing": lambda store: os.truncate(store.files[0], 0),
    "directory_for_a_file": _directory_for_a_file,
    "foreign_files": _foreign_files,
}


# ---- queues, index and the rest ----------------------------------------------------------------------------


def _lose_a_queue_file(store: Damaged) -> None:
    directories = sorted((store.root / "consumequeue").glob("[A-Z]*/*"))
    files = max((sorted(directory.iterdir()) for directory in directories), key=len)
    files[len(files) // 2].unlink()


def _garbage_index(store: Damaged) -> None:
    path = store.paths("index/*")[0]
    path.write_bytes(random.Random(2).randbytes(path.stat().st_size))


def _cut_an_index_file(store: Damaged) -> None:
    path = store.paths("index/*")[-1]
    os.truncate(path, path.stat().st_size - 8)


def _link_a_queue(store: Damaged) -> None:
    directory = store.paths("consumequeue/*/*/*")[0].parent
    moved = store.root.parent / f"{store.root.name}-queue"
    directory.rename(moved)
    directory.symlink_to(moved)


def _cut_topics_json(store: Damaged, *names: str) -> None:
    for name in names:
        (store.root / "config" / name).write_text('{"topicConfigTable":{"Sal')


OTHERS: dict[str, Damage] = {
    "lose_consume_queues": lambda store: shutil.rmtree(store.root / "consumequeue"),
    "lose_a_queue": lambda store: shutil.rmtree(sorted((store.root / "consumequeue").glob("[A-Z]*/*"))[-2]),
    "cut_a_queue_file": lambda store: os.truncate(store.queue_file, 217),
    "flip_a_queue_entry": lambda store: _flip(store.queue_file, 45),
    "zero_queue_entries": lambda store: overwrite(store.queue_file, 40, bytes(120)),
    "lose_a_queue_file": _lose_a_queue_file,
    "lose_index": lambda store: shutil.rmtree(store.root / "index"),
    "garbage_index": _garbage_index,
    "cut_an_index_file": _cut_an_index_file,
    "link_a_queue": _link_a_queue,
    "lose_checkpoint": lambda store: (store.root / "checkpoint").unlink(),
    "empty_checkpoint": lambda store: os.truncate(store.root / "checkpoint", 0),
    "lose_config": lambda store: shutil.rmtree(store.root / "config"),
    "cut_topics_json": lambda store: _cut_topics_json(store, "topics.json"),
    "cut_both_topics_json": lambda store: _cut_topics_json(store, "topics.json", "topics.json.bak"),
    "zero_offsets_json": lambda store: (store.root / "config/consumerOffset.json").write_bytes(bytes(500)),
    "lose_the_log": lambda store: shutil.rmtree(store.root / "commitlog"),
}


# ---- in wrong places ---------------------------------------------------------------------------------------


def _exchange(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def _newest(store: Damaged) -> tuple[Path, int]:
    """The file with the last entry of the largest queue, and how many entries it has."""
    file = [path for path in sorted(store.queues[0].iterdir()) if _entries(path)][-1]
    return file, _entries(file)


def _junk(store: Damaged, number: int) -> None:
    (store.root / "commitlog" / f"{number:020d}").write_bytes(b"junk" * 1000)


def _zero_from(path: Path, position: int) -> None:
    overwrite(path, position, bytes(path.stat().st_size - position))


def _zero_second_half(store: Damaged, path: Path) -> None:
    _zero_from(path, store.a_unit(path).position)


def _exchange_two_files(store: Damaged) -> None:
    used = store.used
    _exchange(used[1], used[len(used) // 2 + 1 if len(used) > 3 else -1])


def _repeat_a_file_as_the_next(store: Damaged) -> None:
    last = store.files[-1]
    following = last.with_name(f"{int(last.name) + last.stat().st_size:020d}")
    shutil.copy(store.middle, following)


def _repeat_a_file_within_the_next(store: Damaged) -> None:
    path = store.used[1]
    shutil.copy(path, path.with_name(f"{int(path.name) + 4096:020d}"))


def _cut_all_files_in_half(store: Damaged) -> None:
    for path in store.files:
        _cut_in_half(path)


def _older_log(store: Damaged) -> None:
    unit = store.units[len(store.units) * 7 // 10]
    for path in store.files:
        start = max(0, unit.position if path == unit.path else 0 if path > unit.path else 1 << 60)
        if start < path.stat().st_size:
            _zero_from(path, start)


def _zero_the_heads_of_all_files(store: Damaged) -> None:
    for path in store.files:
        overwrite(path, 0, bytes(8))


def _lose_a_middle_and_the_last_file(store: Damaged) -> None:
    store.used[1].unlink()
    store.used[-1].unlink()


def _keep_the_last_file(store: Damaged) -> None:
    for path in store.used[:-1]:
        path.unlink()


def _exchange_two_messages(store: Damaged) -> None:
    one, other = _equally_long(store)
    data = bytearray(store.middle.read_bytes())
    first, second = data[one.position : one.stop], data[other.position : other.stop]
    data[one.position : one.stop], data[other.position : other.stop] = second, first
    store.middle.write_bytes(data)


def _repeat_a_message(store: Damaged) -> None:
    one, other = _equally_long(store)
    data = bytearray(store.middle.read_bytes())
    data[other.position : other.stop] = data[one.position : one.stop]
    store.middle.write_bytes(data)


def _equally_long(store: Damaged) -> tuple[Unit, Unit]:
    units = store.units_of(store.middle)
    return next((one, other) for one in units for other in units if one < other and one.size == other.size)


def _flip_field(at: int, store: Damaged) -> None:
    """Flips the lowest bit of a field of a message's head."""
    unit = store.a_unit(store.middle)
    flip(unit.path, unit.position + at)


_HEAD = {
    "total_size": 3, "magic": 7, "body_crc": 11, "queue_id": 15, "flag": 19, "queue_offset": 27,
    "physical_offset": 35, "store_timestamp": 63, "body_length": 87,
}  # fmt: skip


def _exchange_two_queues(store: Damaged) -> None:
    queue = store.queues[0]
    other = next(path for path in sorted(queue.parent.iterdir()) if path != queue)
    aside = queue.with_name("aside")
    queue.rename(aside)
    other.rename(queue)
    aside.rename(other)


def _foreign_queue_files(store: Damaged) -> None:
    """Those of a longer queue of a broker with other messages: each entry leads 100,000 bytes behind."""
    for path in store.queues[0].iterdir():
        units = np.frombuffer(path.read_bytes(), CQ_UNIT).copy()
        units["physical_offset"][units["size"] > 0] += 100_001
        path.write_bytes(units.tobytes())


def _zero_the_last_entries(store: Damaged) -> None:
    file, count = _newest(store)
    overwrite(file, CQ_UNIT.itemsize * max(count - 3, 0), bytes(CQ_UNIT.itemsize * min(3, count)))


def _shift_the_entries_of_a_file(store: Damaged) -> None:
    file = min(store.queues[0].iterdir())
    data = file.read_bytes()
    file.write_bytes(data[:40] + data[20:-20])


def _blank_a_queue(store: Damaged) -> None:
    for path in store.queues[0].iterdir():
        path.write_bytes(bytes(path.stat().st_size))


def _old_entries_behind_the_log(store: Damaged) -> None:
    file, count = _newest(store)
    unit = np.array([(10**7 + 300 * i, 300, 0) for i in range(5)], CQ_UNIT)
    left = file.stat().st_size // CQ_UNIT.itemsize - count
    overwrite(file, CQ_UNIT.itemsize * count, unit[:left].tobytes())


def _old_entries_into_the_log(store: Damaged) -> None:
    file, count = _newest(store)
    first = np.frombuffer(sorted(store.queues[1].iterdir())[-1].read_bytes(), CQ_UNIT)[:3]
    left = file.stat().st_size // CQ_UNIT.itemsize - count
    overwrite(file, CQ_UNIT.itemsize * count, first[:left].tobytes())


def _older_queues(store: Damaged) -> None:
    unit = store.units[len(store.units) * 7 // 10]
    place = int(unit.path.name) + unit.position
    for path in store.paths("consumequeue/*/*/*"):
        units = np.frombuffer(path.read_bytes(), CQ_UNIT).copy()
        units[units["physical_offset"] >= place] = np.zeros(1, CQ_UNIT)
        path.write_bytes(units.tobytes())


MISPLACED: dict[str, Damage] = {
    "exchange_two_files": _exchange_two_files,
    "exchange_the_first_and_the_last_file": lambda store: _exchange(store.used[0], store.used[-1]),
    "repeat_a_file_as_the_next": _repeat_a_file_as_the_next,
    "repeat_a_file_within_the_next": _repeat_a_file_within_the_next,
    "junk_with_a_number": lambda store: _junk(store, 1),
    "junk_with_a_huge_number": lambda store: _junk(store, 10**20 - 1),
    "cut_one_byte_of_a_middle_file": lambda store: os.truncate(
        store.used[1], store.used[1].stat().st_size - 1
    ),
    "cut_all_files_in_half": _cut_all_files_in_half,
    "older_last_file": lambda store: _zero_second_half(store, store.last),
    "older_middle_file": lambda store: _zero_second_half(store, store.middle),
    "older_log": _older_log,
    "zero_the_heads_of_all_files": _zero_the_heads_of_all_files,
    "zero_the_end_of_a_file": lambda store: _zero_from(store.middle, store.middle.stat().st_size - 4096),
    "lose_a_middle_and_the_last_file": _lose_a_middle_and_the_last_file,
    "keep_the_last_file": _keep_the_last_file,
    "exchange_two_messages": _exchange_two_messages,
    "repeat_a_message": _repeat_a_message,
    **{f"flip_{name}": partial(_flip_field, at) for name, at in _HEAD.items()},
    "flip_magic_of_the_last": lambda store: flip(store.last, store.units[-1].position + 4),
    "flip_body_of_the_last": lambda store: flip(store.last, store.units[-1].position + _BODY_AT),
    "exchange_two_queues": _exchange_two_queues,
    "exchange_two_files_of_a_queue": lambda store: _exchange(*sorted(store.queues[0].iterdir())[:2]),
    "rename_a_queue": lambda store: store.queues[0].rename(store.queues[0].with_name("9")),
    "repeat_a_queue": lambda store: shutil.copytree(store.queues[0], store.queues[0].with_name("9")),
    "repeat_a_topic": lambda store: shutil.copytree(
        store.queues[0].parent, store.root / "consumequeue/CopyOfTopic"
    ),
    "foreign_queue_files": _foreign_queue_files,
    "zero_the_last_entries": _zero_the_last_entries,
    "zero_the_first_entries": lambda store: overwrite(min(store.queues[0].iterdir()), 0, bytes(60)),
    "shift_the_entries_of_a_file": _shift_the_entries_of_a_file,
    "blank_a_queue": _blank_a_queue,
    "old_entries_behind_the_log": _old_entries_behind_the_log,
    "old_entries_into_the_log": _old_entries_into_the_log,
    "older_queues": _older_queues,
}
