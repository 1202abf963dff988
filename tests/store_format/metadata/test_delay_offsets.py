"""delayOffset.json as each broker writes it, and the rule for its `.bak`."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import merge_delay_offsets, write_delay_offsets
from store_format.metadata.read import read_delay_offsets
from store_format.opened.store import Opened
from tests.support.fixtures import Golden

_NOW_MS = 1_795_244_100_000


def _write(root: Path, offsets: dict[int, int]) -> bool:
    return write_delay_offsets(Opened(str(root)), offsets, timestamp=_NOW_MS, files=FileWrites(sync=False))


def test_the_file_of_a_5_5_broker_keeps_its_form(golden: Golden) -> None:
    before = (golden("delay-tx-5.5.0") / "config" / "delayOffset.json").read_bytes()
    after = merge_delay_offsets(before, {3: 7, 14: 6, 4: 1}, timestamp=_NOW_MS)
    assert after == (
        before.replace(b"3:3,", b"3:7,\n\t\t4:1,")
        .replace(b"14:0", b"14:6")
        .replace(b'"counter":7', b'"counter":8')
        .replace(b"1795244093309", b"1795244100000")
    )
    assert merge_delay_offsets(before, {3: 3, 14: 0}, timestamp=_NOW_MS) is None


def test_the_file_of_a_4_9_broker_keeps_its_form(golden: Golden) -> None:
    before = (golden("basic-4.9.7") / "config" / "delayOffset.json").read_bytes()
    after = merge_delay_offsets(before, {1: 4}, timestamp=_NOW_MS)
    assert after == before.replace(b"{3:2", b"{1:4,3:2")


@pytest.mark.parametrize(("name", "old"), [("delay-tx-5.5.0", False), ("basic-4.9.7", True)])
def test_a_new_file_has_the_form_of_the_stores_broker(
    golden: Golden, tmp_path: Path, name: str, old: bool
) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config/topics.json").write_bytes((golden(name) / "config/topics.json").read_bytes())
    assert _write(tmp_path, {2: 5})
    text = (tmp_path / "config" / "delayOffset.json").read_text()
    version = f'"dataVersion":{{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":{_NOW_MS}\n\t}}'
    new = f'{{\n\t{version},\n\t"offsetTable":{{\n\t\t2:5\n\t}}\n}}'
    assert text == ('{\n\t"offsetTable":{2:5\n\t}\n}' if old else new)


def test_the_file_before_becomes_the_bak(tmp_path: Path) -> None:
    for offset in (1, 2):
        assert _write(tmp_path, {1: offset})
    assert not _write(tmp_path, {1: 2})
    path = tmp_path / "config" / "delayOffset.json"
    assert b"1:1" in (tmp_path / "config" / "delayOffset.json.bak").read_bytes()

    path.write_bytes(path.read_bytes()[:-9])  # a crash of a broker
    assert _write(tmp_path, {2: 9})
    assert read_delay_offsets(Opened(str(tmp_path))) == {1: 1, 2: 9}
    assert b"1:1" in (tmp_path / "config" / "delayOffset.json.bak").read_bytes()


def test_a_damaged_file_without_bak_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    path = tmp_path / "config" / "delayOffset.json"
    for text in ('{"offsetTable":{1', '{"offsetTable":[1]}', '{"offsetTable":{"1":"x"}}'):
        path.write_text(text)
        with pytest.raises(CorruptStoreError, match=r"delayOffset\.json"):
            _write(tmp_path, {1: 5})
        assert path.read_text() == text
