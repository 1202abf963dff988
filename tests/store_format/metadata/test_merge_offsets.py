"""Offsets written back: the brokers' own files with an entry changed, byte for byte, and what must not change
with it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError, StoreError
from store_format.files.write import FileWrites
from store_format.java.fastjson import loads
from store_format.metadata.group_offsets import (
    merge_consumer_offsets,
    merge_delay_offsets,
    merge_local_offsets,
    read_local_offsets,
    write_delay_offsets,
)
from store_format.metadata.read import read_delay_offsets
from store_format.opened.store import Opened
from tests.support.fixtures import Golden

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("name", "queue", "old", "new"),
    [("basic-5.5.0", 3, b"3:58", b"3:60"), ("basic-4.9.7", 0, b"0:27,", b"0:30,")],
)
def test_one_offset_of_a_brokers_file(golden: Golden, name: str, queue: int, old: bytes, new: bytes) -> None:
    data = (golden(name) / "config" / "consumerOffset.json").read_bytes()
    at = data.index(b'"Orders@CG_some"')
    expected = data[:at] + data[at:].replace(old, new, 1)
    offset = int(new.strip(b",").split(b":")[1])
    # A broker of 4.9 keeps no data version with its offsets.
    if b"dataVersion" in data:
        before = loads(data, name)["dataVersion"]
        counter = before["counter"]
        expected = expected.replace(b'"counter":%d' % counter, b'"counter":%d' % (counter + 1))
        expected = expected.replace(b'"timestamp":%d' % before["timestamp"], b'"timestamp":%d' % NOW)
    assert merge_consumer_offsets(data, "CG_some", {("Orders", queue): offset}, timestamp=NOW) == expected


def test_a_group_of_its_own_beside_the_others(golden: Golden) -> None:
    data = (golden("basic-5.5.0") / "config" / "consumerOffset.json").read_bytes()
    offsets = {("Orders", 2): 5, ("%RETRY%new", 0): 0, ("Orders", 10): 7}
    text = merge_consumer_offsets(data, "new", offsets, timestamp=NOW)
    before, after = loads(data, ""), loads(text or b"", "")
    tables = {"Orders@new": {"2": 5, "10": 7}, "%RETRY%new@new": {"0": 0}}
    assert after["offsetTable"] == before["offsetTable"] | tables
    assert after["groupTopicMap"] == before["groupTopicMap"] | {"new": ["Orders", "%RETRY%new"]}
    assert after["pullOffsetTable"] == before["pullOffsetTable"]


def test_a_new_file_in_both_dialects() -> None:
    offsets = {("T", 0): 3, ("T", 1): 0}
    assert merge_consumer_offsets(None, "g", offsets, timestamp=NOW) == (
        b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":1800000000000\n\t},'
        b'\n\t"offsetTable":{\n\t\t"T@g":{\n\t\t\t0:3,\n\t\t\t1:0\n\t\t}\n\t},\n'
        b'\t"groupTopicMap":{\n\t\t"g":[\n\t\t\t"T"\n\t\t]\n\t}\n}'
    )
    old = b'{\n\t"offsetTable":{\n\t\t"T@g":{0:3,1:0\n\t\t}\n\t}\n}'
    assert merge_consumer_offsets(b"", "g", offsets, timestamp=NOW, is_old=True) == old


def test_an_offset_goes_down_by_a_reset_only() -> None:
    data = b'{"offsetTable":{"T@g":{0:8,1:5}},"more":[1,{"a":null}]}'
    assert merge_consumer_offsets(data, "g", {("T", 0): 7, ("T", 1): 5}, timestamp=NOW) is None
    mixed = merge_consumer_offsets(data, "g", {("T", 0): 7, ("T", 1): 6}, timestamp=NOW)
    assert loads(mixed or b"", "")["offsetTable"] == {"T@g": {"0": 8, "1": 6}}
    reset = merge_consumer_offsets(data, "g", {("T", 0): 7, ("T", 1): 5}, timestamp=NOW, is_reset=True)
    assert loads(reset or b"", "")["offsetTable"] == {"T@g": {"0": 7, "1": 5}}
    assert loads(reset or b"", "")["more"][0] == 1
    assert merge_consumer_offsets(data, "g", {("T", 1): 5}, timestamp=NOW, is_reset=True) is None


def test_a_light_group_has_a_table_of_its_own() -> None:
    data = (
        b'{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":1},'
        b'"lmqOffsetTable":{"%LMQ%t@%LMQ%g":8},"offsetTable":{}}'
    )
    file = "config/lmqConsumerOffset.json"
    after = merge_consumer_offsets(data, "%LMQ%g", {("%LMQ%t", 0): 9}, timestamp=NOW, file=file)
    found = loads(after or b"", file)
    assert (found["lmqOffsetTable"], found["offsetTable"]) == ({"%LMQ%t@%LMQ%g": 9}, {})
    assert merge_consumer_offsets(data, "%LMQ%g", {("%LMQ%t", 0): 7}, timestamp=NOW, file=file) is None
    plain = merge_consumer_offsets(data, "g", {("T", 0): 1}, timestamp=NOW, file=file)
    assert loads(plain or b"", file)["lmqOffsetTable"] == {"%LMQ%t@%LMQ%g": 8}


OLD = b"""{
	"offsetTable":{{
			"brokerName":"broker-a",
			"queueId":1,
			"topic":"TopicTest"
		}:7,{
			"brokerName":"broker-a",
			"queueId":0,
			"topic":"TopicTest"
		}:12
	}
}"""
NEW = OLD.replace(b'"offsetTable":{{', b'"offsetTable":{\n\t\t{').replace(b":7,{", b":7,\n\t\t{")


@pytest.mark.parametrize("data", [OLD, NEW], ids=["fastjson 1.2", "fastjson2"])
def test_a_clients_file_in_both_dialects(data: bytes) -> None:
    queue = ("TopicTest", "broker-a", 1)
    assert merge_local_offsets(data, {queue: 9}) == data.replace(b":7,", b":9,")
    assert merge_local_offsets(data, {queue: 6}) is None
    assert merge_local_offsets(data, {queue: 6}, is_reset=True) == data.replace(b":7,", b":6,")


def test_a_clients_first_file(tmp_path: Path) -> None:
    offsets = {("TopicTest", "broker-a", 1): 7, ("TopicTest", "broker-a", 0): 12}
    assert merge_local_offsets(None, offsets) == NEW
    more = merge_local_offsets(OLD, {("%RETRY%g", 'b\n"{:1}', 3): 1})
    (tmp_path / "offsets.json").write_bytes(more or b"")
    assert read_local_offsets(str(tmp_path / "offsets.json")) == {**offsets, ("%RETRY%g", 'b\n"{:1}', 3): 1}


def test_what_a_clients_file_has_besides_is_kept() -> None:
    key = b'{"queueId":"1","topic":"T","brokerName":"b","more":true}'
    data = b'{"x":{"offsetTable":0},"offsetTable":{%s:7},"y":"\\n\\t\\"offsetTable\\":0"}' % key
    after = loads(merge_local_offsets(data, {("T", "b", 1): 8}) or b"", "offsets.json")
    assert after["x"] == {"offsetTable": 0}
    assert after["y"] == '\n\t"offsetTable":0'
    assert [(json.loads(key)["more"], offset) for key, offset in after["offsetTable"].items()] == [(True, 8)]


_HOSTILE = [
    b"{",
    b"[]",
    b"5",
    b'{"offsetTable":5}',
    b'{"offsetTable":{"T@g":5}}',
    b'{"offsetTable":{"T@g":{"x":1}}}',
    b'{"offsetTable":{"T@g":{0:[]}}}',
    b'{"offsetTable":{"T@g":{0:99999999999999999999}}}',
    b'{"dataVersion":7,"offsetTable":{}}',
    b'{"dataVersion":{"counter":"x"}}',
    b'{"groupTopicMap":{"g":1}}',
    b"[" * 100_000,
    b'{"offsetTable":' * 70,
]


@pytest.mark.parametrize("data", _HOSTILE, ids=lambda data: data[:40].decode())
def test_hostile_files_are_named(data: bytes) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        merge_consumer_offsets(data, "g", {("T", 0): 3}, timestamp=NOW, file="config/x.json")
    assert caught.value.file == "config/x.json"


def test_what_another_group_has_wrong_is_kept() -> None:
    data = b'{"offsetTable":{"T@other":{"x":1},"T@g":{0:1}},"groupTopicMap":{"other":1},"lmqOffsetTable":[]}'
    after = merge_consumer_offsets(data, "g", {("T", 0): 3}, timestamp=NOW)
    groups = {"groupTopicMap": {"other": 1, "g": ["T"]}, "lmqOffsetTable": []}
    assert loads(after or b"", "") == {"offsetTable": {"T@other": {"x": 1}, "T@g": {"0": 3}}, **groups}


_HOSTILE_KEYS = [
    *('"text"', "5", '"[]"', '{"queueId":{}}', '{"brokerName":"b"}'),
    *('"' + "[" * 3000 + '"', '{"queueId":"9e99"}'),
]


@pytest.mark.parametrize(
    "data", [*_HOSTILE[:4], *(b'{"offsetTable":{%s:1}}' % key.encode() for key in _HOSTILE_KEYS)]
)
def test_hostile_files_of_a_client_are_named(data: bytes) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        merge_local_offsets(data, {("T", "b", 0): 3}, file="offsets.json")
    assert caught.value.file == "offsets.json"


@given(st.binary(max_size=60) | st.text("{}[]:,\"'@g T0123-.etrufalsn\\", max_size=60).map(str.encode))
def test_any_bytes_end_in_a_file_or_a_store_error(data: bytes) -> None:
    merges: list[Callable[[], bytes | None]] = [
        lambda: merge_consumer_offsets(data, "g", {("T", 0): 3}, timestamp=NOW),
        lambda: merge_local_offsets(data, {("T", "b", 0): 3}),
    ]
    for merge in merges:
        with contextlib.suppress(StoreError):
            text = merge()
            assert text is None or isinstance(loads(text, ""), dict)


_NAMES = st.text(min_size=1, max_size=5)
_TABLE = st.dictionaries(
    st.tuples(_NAMES, _NAMES, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), min_size=1, max_size=5
)


@given(_TABLE, _TABLE)
def test_a_clients_entries_come_back(
    first: dict[tuple[str, str, int], int], second: dict[tuple[str, str, int], int]
) -> None:
    once = merge_local_offsets(None, first)
    assert once is not None
    twice = merge_local_offsets(once, second) or once
    table = [(json.loads(key), offset) for key, offset in loads(twice, "")["offsetTable"].items()]
    found = {(q["topic"], q["brokerName"], q["queueId"]): offset for q, offset in table}
    assert found == {queue: max(first.get(queue, -1), second.get(queue, -1)) for queue in first | second}


# ---- delayOffset.json and its `.bak` -----------------------------------------------------------------------


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
