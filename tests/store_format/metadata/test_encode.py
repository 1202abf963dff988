"""Written configuration: every file of the brokers' stores again, byte for byte, and what fastjson itself
wrote of one value.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.read import DECODERS, config_path, read_config
from store_format.metadata.values import Dialect, TopicConfig, dumps, put_topics, with_integer_keys
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.config_shapes import FILES, answers, backup, shapes, table_of
from tests.support.fixtures import Golden

STORES = [
    (name, broker)
    for name in goldens.NAMES
    for broker in (goldens.expected(name).get("brokers") or {"": None})
]
METRICS = ("timermetrics", "transactionMetrics")
NOW = 1_700_000_000_000
_VECTORS = Path(__file__).parents[2] / "vectors"


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_the_brokers_own_files(golden: Golden, name: str, broker: str) -> None:
    root = goldens.brokers(name, golden(name))[broker][0]
    dialect = Dialect.FASTJSON if "4.9" in name else Dialect.FASTJSON2
    different, count = [], 0
    for path in sorted((root / "config").iterdir()) if (root / "config").is_dir() else []:
        kind = path.name.removesuffix(".bak")
        data = path.read_bytes() if path.is_file() and (kind.endswith(".json") or kind in METRICS) else b""
        if data:
            count += 1
            if dumps(with_integer_keys(loads(data, kind), kind), dialect, pretty=kind not in METRICS) != data:
                different.append(path.name)
    assert different == []
    assert count >= 6 or name == "edge-5.5.0"  # that one has no broker, only a store


# tests/vectors/pretty.*.txt is what RemotingSerializable.toJson(bean, true) of 4.9.7 (fastjson 1.2.69) and of
# 5.5.0 (fastjson2 2.0.59) gave for a bean with these members.
BEAN: dict[str, Any] = {
    "emi": {},
    "epos": [],
    "hosted": {0: [{"a": 1, "oc": {1: 2, 2: 3}}, {"a": 1}], 1: []},
    "lb": [{"a": 1}, {"a": 2}],
    "m": {-3: {"a": 1}, 0: {"a": 1}},
    "mo": {"n": None, "em": {}, "d": 1.5, "b": True, "big": 9007199254740993},
    "pos": [1, 2],
    "set": ["a", "b"],
    "str": '\x00\x08\t\n\x0b\x0c\r\x1f "/\\\x7f\x80\x9fé中\u2028\u2029\U0001f600<>',
}


@pytest.mark.parametrize("dialect", Dialect)
def test_a_bean_as_fastjson_wrote_it(dialect: Dialect) -> None:
    assert dumps(BEAN, dialect) == (_VECTORS / f"pretty.{dialect.name.lower()}.txt").read_bytes()


def test_the_old_writer_puts_offsets_of_order_infos_on_lines() -> None:
    value = {"o": [10, 1], "next": [10, 1], "ot": {13: 5}}
    old = b'{\n\t"o":[\n\t\t10,\n\t\t1\n\t],\n\t"next":[10,1],\n\t"ot":{13:5\n\t}\n}'
    assert dumps(value, Dialect.FASTJSON) == old
    assert dumps(value) == b'{\n\t"o":[10,1],\n\t"next":[10,1],\n\t"ot":{\n\t\t13:5\n\t}\n}'


def test_half_a_character_is_a_question_mark() -> None:
    assert dumps({"a\ud83d": "\udc00b"}) == b'{\n\t"a?":"?b"\n}'


# Infinite numbers and other keys than strings and integers are no JSON; floating numbers are in no file.
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), inner, max_size=4)
    ),
    max_leaves=12,
)


def _as_read(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_read(member) for key, member in value.items() if member is not None}
    return [_as_read(item) for item in value] if isinstance(value, list) else value


@given(st.dictionaries(st.text("abc", max_size=3), VALUES), st.sampled_from(list(Dialect)), st.booleans())
def test_what_is_written_is_read(value: dict[str, Any], dialect: Dialect, pretty: bool) -> None:
    data = dumps(value, dialect, pretty=pretty)
    assert loads(data, "drawn") == _as_read(value)
    assert pretty or b"\n" not in data


def test_integer_keys_are_those_of_java() -> None:
    offsets = {"1": {"0": 5}, "a@b": {"0": 5, "x": 1}}
    rest = {"pullOffsetTable": 7, "3": {"4": 5}}
    read = with_integer_keys({"offsetTable": offsets, **rest}, "consumerOffset.json")
    assert read == {"offsetTable": {"1": {0: 5}, "a@b": {0: 5, "x": 1}}, **rest}
    assert with_integer_keys({"offsetTable": {"3": 2}}, "delayOffset.json") == {"offsetTable": {3: 2}}
    orders = {"table": {"T@G": {"0": {"o": [1], "oc": {"1": 2}, "ot": {"-3": 4}}}}}
    assert with_integer_keys(orders, "consumerOrderInfo.json") == {
        "table": {"T@G": {0: {"o": [1], "oc": {1: 2}, "ot": {-3: 4}}}}
    }
    topics: dict[str, Any] = {"topicConfigTable": {"1": {}}}
    assert with_integer_keys(topics, "topics.json") == topics


# ---- topics.json -------------------------------------------------------------------------------------------

NEW = TopicConfig("New", read_queue_nums=8, write_queue_nums=8)
NEW_MEMBERS = """		"New":{
			"attributes":{},
			"order":false,
			"perm":6,
			"readQueueNums":8,
			"topicFilterType":"SINGLE_TAG",
			"topicName":"New",
			"topicSysFlag":0,
			"writeQueueNums":8
		}
"""


@pytest.mark.parametrize("data", [None, b""])
def test_a_first_topic(data: bytes | None) -> None:
    expected = (
        '{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,'
        '\n\t\t"timestamp":1700000000000\n\t},\n\t"topicConfigTable":{\n'
    )
    assert put_topics(data, [NEW], NOW) == f"{expected}{NEW_MEMBERS}\t}}\n}}".encode()


@pytest.mark.parametrize(
    ("name", "counter", "timestamp", "members"),
    [
        ("basic-5.5.0", 7, 1795243971375, NEW_MEMBERS),
        ("basic-4.9.7", 8, 1795244353622, NEW_MEMBERS.replace('\t\t\t"attributes":{},\n', "")),
    ],
)
def test_a_topic_of_a_store_that_has_some(
    golden: Golden, name: str, counter: int, timestamp: int, members: str
) -> None:
    """The broker's text, but for the data version and the new topic at the end of the table."""
    data = (golden(name) / "config" / "topics.json").read_bytes()
    added = put_topics(data, [NEW, TopicConfig("Orders")], NOW)
    told = data.decode().replace(f'"counter":{counter}', f'"counter":{counter + 1}')
    told = told.replace(f'"timestamp":{timestamp}', f'"timestamp":{NOW}')
    assert added == (told.removesuffix("\n\t}\n}") + ",\n" + members + "\t}\n}").encode()
    assert put_topics(added, [NEW], NOW + 1) is None


def test_what_is_not_known_is_kept() -> None:
    version = b'{"counter":"5","stateVersion":3,"timestamp":1,"y":2}'
    data = b'{"topicConfigTable":{"1":{"perm":2,"x":[1]}},"later":{"7":null},"dataVersion":%b}' % version
    topic = TopicConfig("T", attributes={"message.type": "FIFO"}, unknown={"zone": "z"})
    added = put_topics(data, [topic], NOW)
    assert added is not None
    value = loads(added, "topics.json")
    assert list(value) == ["dataVersion", "topicConfigTable", "later"]
    assert value["dataVersion"] == {"counter": 6, "stateVersion": 3, "timestamp": NOW, "y": 2}
    old, new = value["topicConfigTable"].values()
    assert (old, new["attributes"]) == ({"perm": 2, "x": [1]}, {"message.type": "FIFO"})
    assert list(new)[-1] == "zone"


def test_the_counter_wraps_as_a_long() -> None:
    data = b'{"dataVersion":{"counter":9223372036854775807,"stateVersion":0}}'
    added = put_topics(data, [NEW], NOW)
    assert added is not None
    assert loads(added, "topics.json")["dataVersion"]["counter"] == -(2**63)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "config/topics.json at byte 1"),
        (b"[]", r"config/topics.json at byte 0: expected an object as the file, found \[\]"),
        (b'{"topicConfigTable":[]}', "expected an object as topicConfigTable"),
        (b'{"dataVersion":3}', "expected an object as dataVersion, found 3"),
        (b'{"dataVersion":{"counter":"x"}}', "expected a 64-bit integer as dataVersion.counter, found 'x'"),
    ],
)
def test_what_is_no_topics_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(CorruptStoreError, match=message):
        put_topics(data, [NEW], NOW)


# ---- the shapes in which people, editors and power losses leave files of `config/` -------------------------


ANSWERS = answers()


@pytest.mark.parametrize("name", FILES)
def test_every_shape_is_read_as_by_a_broker(tmp_path: Path, name: str) -> None:
    path = tmp_path / "config" / name
    path.parent.mkdir()
    path.with_name(f"{name}.bak").write_bytes(backup(name))
    expected = {label: tables[0] for label, tables in ANSWERS[name].items()}
    assert {label: _read(path, data) for label, data in shapes(name).items()} == expected


def _read(path: Path, data: bytes) -> Any:
    path.write_bytes(data)
    found = read_config(config_path(Opened(str(path.parents[1])), path.name), DECODERS[path.name])
    if path.name in ("consumerOffset.json", "lmqConsumerOffset.json"):
        assert found is not None
        found = getattr(found, "offsets" if path.name == "consumerOffset.json" else "lmq_offsets")
    return table_of(path.name, found)
