"""Which of a broker's two files of consumer offsets counts: one of them, for every reader.

The rule was read from the broker's classes (4.9.7 and 5.5.0): BrokerController has one manager, and
LmqConsumerOffsetManager.decode fills offsetTable and lmqOffsetTable from lmqConsumerOffset.json alone.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.errors import CorruptStoreError
from store_format.metadata.group_offsets import known_groups, read_committed, read_group_offsets
from store_format.opened.store import Opened

PLAIN, LIGHT = "consumerOffset.json", "lmqConsumerOffset.json"


def _put(root: Path, name: str, timestamp: int | None, tables: str) -> None:
    version = "" if timestamp is None else f'"dataVersion":{{"counter":1,"timestamp":{timestamp}}},'
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / name).write_text("{" + version + tables + "}")


def _read(root: Path) -> dict[tuple[str, str], dict[int, int]]:
    """What `read_committed` says, after checking that `read_group_offsets` says the same of each group."""
    found = read_committed(Opened(str(root))).offsets
    for group in ("g", "old", "%LMQ%g"):
        of_group = {
            (topic, queue_id): offset
            for (owner, topic), table in found.items()
            if owner == group
            for queue_id, offset in table.items()
        }
        assert read_group_offsets(Opened(str(root)), group) == of_group
    return found


OLD_PLAIN = '"offsetTable":{"T@g":{0:1,1:7},"T@old":{0:3}}'
NEW_LIGHT = '"lmqOffsetTable":{"%LMQ%t@%LMQ%g":8},"offsetTable":{"T@g":{0:2}},"pullOffsetTable":{"T@g":{0:4}}'


def test_the_entries_of_the_two_files_are_not_mixed(tmp_path: Path) -> None:
    _put(tmp_path, PLAIN, 5, OLD_PLAIN + ',"pullOffsetTable":{"T@old":{0:9}}')
    _put(tmp_path, LIGHT, 6, NEW_LIGHT)
    assert _read(tmp_path) == {("g", "T"): {0: 2}, ("%LMQ%g", "%LMQ%t"): {0: 8}}
    assert read_committed(Opened(str(tmp_path))).pulled == {("g", "T"): {0: 4}}
    assert known_groups(Opened(str(tmp_path))) == {"g", "%LMQ%g"}
    _put(tmp_path, PLAIN, 7, OLD_PLAIN)  # enableLmq was switched off again
    assert _read(tmp_path) == {("g", "T"): {0: 1, 1: 7}, ("old", "T"): {0: 3}}


@pytest.mark.parametrize("timestamp", [None, 5])
def test_the_light_file_counts_where_the_versions_decide_nothing(
    tmp_path: Path, timestamp: int | None
) -> None:
    """4.9 writes no data version; only a broker with enableLmq has made the second file."""
    _put(tmp_path, PLAIN, timestamp, OLD_PLAIN)
    _put(tmp_path, LIGHT, timestamp, NEW_LIGHT)
    assert _read(tmp_path) == {("g", "T"): {0: 2}, ("%LMQ%g", "%LMQ%t"): {0: 8}}


def test_a_file_that_cannot_be_decoded(tmp_path: Path) -> None:
    """A look takes it as missing, as a broker does; offsets that a commit needs are an error."""
    _put(tmp_path, PLAIN, 5, OLD_PLAIN)
    (tmp_path / "config" / LIGHT).write_text('{"offsetTable":{')
    assert read_committed(Opened(str(tmp_path))).offsets == {("g", "T"): {0: 1, 1: 7}, ("old", "T"): {0: 3}}
    with pytest.raises(CorruptStoreError, match=LIGHT):
        read_group_offsets(Opened(str(tmp_path)), "g")


def test_no_file_at_all(tmp_path: Path) -> None:
    assert _read(tmp_path) == {}
