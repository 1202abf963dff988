"""Units that are read together are the bytes of the commitlog, whatever lies between them."""

from __future__ import annotations

from pathlib import Path
from random import Random

from store_format.consumequeue.slices import read_slice
from store_format.files.view import FileView
from store_format.message.parts import HEAD_SIZE_MAX
from store_format.read.unit_bytes import read_units
from store_format.store import MessageStore
from tests.support.popped import TOPIC, popped_store


def test_units_across_files_with_gaps(tmp_path: Path) -> None:
    store = MessageStore.open(str(popped_store(tmp_path / "s", 400)))
    assert len(store.log.files) > 3
    _, entries = read_slice(store.queue(TOPIC, 0).piece())
    places = list(zip(entries["physical_offset"].tolist(), entries["size"].tolist(), strict=True))
    random = Random(7)
    for count in (1, 2, 32, 400):
        chosen = sorted(random.sample(places, count))
        for (offset, size), found in zip(chosen, read_units(store.log, chosen), strict=True):
            assert found is not None
            file, data = found
            assert file == store.log.file_at(offset)
            assert data == store.log.read(offset, size)


def test_places_that_are_not_there(tmp_path: Path) -> None:
    store = MessageStore.open(str(popped_store(tmp_path / "s", 400)))
    file = store.log.files[1]
    Path(file.path).unlink()
    beyond = store.log.stop
    found = read_units(store.log, [(0, 100), (file.start, 100), (file.start + 100, 50), (beyond, 100)])
    assert [each is None for each in found] == [False, True, True, True]
    assert read_units(store.log, []) == []


def test_a_damaged_size_reads_no_gigabyte(tmp_path: Path) -> None:
    store = MessageStore.open(str(popped_store(tmp_path / "s", 3, file_size=1 << 26)))
    (found,) = read_units(store.log, [(0, 2**31 - 2)])
    assert found is not None
    file, data = found
    with FileView(file.path) as view:
        assert data == view.read(0, HEAD_SIZE_MAX)
