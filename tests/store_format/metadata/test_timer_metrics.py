"""timermetrics: the counts change, everything else stays; a damaged file is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites
from store_format.metadata.read import read_timer_metrics
from store_format.metadata.timer_write import merge_timer_metrics, write_timer_metrics
from store_format.opened.store import Opened
from tests.support.fixtures import Golden


def test_the_form_is_that_of_a_broker(golden: Golden) -> None:
    data = (golden("delay-tx-5.5.0") / "config" / "timermetrics").read_bytes()
    merged = merge_timer_metrics(data, {"Timer": -3}, timestamp=9)
    assert merged is not None
    assert merged == data.replace(b"1795244069070", b"9").replace(b'"count":30', b'"count":27').replace(
        b'"counter":110', b'"counter":111'
    )


def test_nothing_changes_without_a_change(tmp_path: Path) -> None:
    assert not write_timer_metrics(Opened(str(tmp_path)), {"T": 0}, timestamp=9, files=FileWrites(sync=False))
    assert read_timer_metrics(Opened(str(tmp_path))) is None


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "config" / "timermetrics"
    path.parent.mkdir()
    path.write_bytes(b'{"timingCount":{"T":{"count":"many"}}}')
    files = FileWrites(sync=False)
    with pytest.raises(CorruptStoreError, match=r"timingCount\.T\.count"):
        write_timer_metrics(Opened(str(tmp_path)), {"T": 1}, timestamp=9, files=files)
    path.with_name("timermetrics.bak").write_bytes(b'{"timingCount":{"T":{"count":4}}}')
    assert write_timer_metrics(Opened(str(tmp_path)), {"T": 1}, timestamp=9, files=files)
    found = read_timer_metrics(Opened(str(tmp_path)))
    assert found is not None
    assert (found["T"].count, found["T"].time_stamp) == (5, 9)
