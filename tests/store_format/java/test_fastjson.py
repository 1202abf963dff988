"""Both dialects of the broker's JSON against the standard library, and texts made to mislead or to exhaust a
reader.
"""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import DEPTH_MAX, loads

NASTY = st.text(st.sampled_from('{}[]:,"\\0123456789 \t\n-eE.#$truefalsnl@键é\U0001f600'), max_size=12)
TEXTS = st.one_of(NASTY, st.text(max_size=8))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    TEXTS,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXTS, inner, max_size=4),
        st.dictionaries(st.integers(-(2**31), 2**31), inner, max_size=4),
    ),
    max_leaves=12,
)
OLD, NEW = "old", "new"


def _write(value: Any, dialect: str, level: int = 0) -> str:
    """Pretty text in the manner of fastjson 1.2 (`old`) or fastjson2 (`new`): bare integer keys, TABs,
    entries as in spec 6.2.
    """
    indent, outdent = "\n" + "\t" * (level + 1), "\n" + "\t" * level
    if isinstance(value, list):
        inner = ",".join(indent + _write(item, dialect, level + 1) for item in value)
        return f"[{inner}{outdent}]" if value or dialect == NEW else "[]"
    if isinstance(value, dict):
        inline = dialect == OLD and any(isinstance(key, int) for key in value)
        separator = "" if inline else indent
        entries = (
            (str(key) if isinstance(key, int) else _quote(key)) + ":" + _write(item, dialect, level + 1)
            for key, item in value.items()
        )
        return "{" + ",".join(separator + entry for entry in entries) + (outdent if value else "") + "}"
    return _quote(value) if isinstance(value, str) else json.dumps(value)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _with_string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_string_keys(item) for key, item in value.items()}
    return [_with_string_keys(item) for item in value] if isinstance(value, list) else value


@given(VALUES, st.sampled_from([OLD, NEW]))
def test_both_dialects_give_the_value_and_every_string_survives(value: Any, dialect: str) -> None:
    assert loads(_write(value, dialect).encode("utf-8", "surrogatepass"), "f") == _with_string_keys(value)


@given(VALUES, st.booleans())
def test_on_json_the_reader_is_the_standard_library(value: Any, ascii_only: bool) -> None:
    """`{0:…}` around the value sends it through the token reader, whose answer must be that of json.loads."""
    text = json.dumps(_with_string_keys(value), ensure_ascii=ascii_only)
    assert loads(text.encode(), "f") == json.loads(text)
    assert loads(b"{0:" + text.encode() + b"}", "f") == {"0": json.loads(text)}


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_a_corrupt_file(data: bytes) -> None:
    refused = None
    try:
        loads(b'{1:"' + data, "config/x.json")
    except CorruptStoreError as error:
        refused = error
    assert refused is None or (refused.file == "config/x.json" and 0 <= refused.position <= len(data) + 4)


@given(VALUES, st.data())
def test_a_cut_text_is_never_a_value(value: Any, data: st.DataObject) -> None:
    text = _write({1: value}, NEW).encode("utf-8", "surrogatepass")
    with pytest.raises(CorruptStoreError) as caught:
        loads(text[: data.draw(st.integers(1, len(text) - 1))], "f")
    assert caught.value.position <= len(text)


def test_text_inside_strings_is_left_alone() -> None:
    tricky = '{1:2}, {"a":[3:4]} \\" ,5 : 6}'
    value = {tricky: tricky, "x": {"7": tricky}}
    assert loads(json.dumps(value).encode().replace(b'"7"', b"7"), "f") == value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"offsetTable":{"T@G":{0:8,1:5\n\t\t}\n\t}\n}', {"offsetTable": {"T@G": {"0": 8, "1": 5}}}),
        ('{"a":{-1 : 2 , 3\t:\n4}}', {"a": {"-1": 2, "3": 4}}),
        ('{"a":[\n\t\t\n]}', {"a": []}),
        ('{"a":1,"a":2}', {"a": 2}),
        ('{0:1,"0":2}', {"0": 2}),
        ('{0:"\\u4E2D","x":"中"}', {"0": "中", "x": "中"}),
        ('{0:"\\ud83d\\ude00"}', {"0": "\U0001f600"}),
        ('{"x":"a\\ud800b"}', {"x": "a\ufffdb"}),  # would not survive the way into Arrow
        ('{"x":"tab\there"}', {"x": "tab\there"}),
        (
            "{0:9223372036854775807,1:-1.5e3,2:true,3:null}",
            {"0": 2**63 - 1, "1": -1500.0, "2": True, "3": None},
        ),
        (" [] \n", []),
    ],
)
def test_forms(text: str, expected: Any) -> None:
    assert loads(text.encode(), "f") == expected


def test_objects_as_keys() -> None:
    """A client's offsets.json (consumption 3.6)."""
    text = (
        '{\n\t"offsetTable":{{\n\t\t\t"queueId":1,\n\t\t\t"topic":"T{1:2}"\n\t\t}:7,{"topic":"T",'
        '"queueId":0}:12\n\t}\n}'
    )
    assert loads(text.encode(), "f") == {
        "offsetTable": {'{"queueId":1,"topic":"T{1:2}"}': 7, '{"queueId":0,"topic":"T"}': 12}
    }


def test_malformed_utf8_is_read_as_java_reads_it() -> None:
    assert loads(b'{"a":"x\xffy",0:"\xed\xa0\x80"}', "f") == {"a": "x\ufffdy", "0": "\ufffd"}


@pytest.mark.parametrize(
    ("data", "position", "found"),
    [
        (b"", 0, "the end of the file"),
        (b"   ", 3, "the end of the file"),
        (b"\0\0\0\0", 4, "the end of the file"),
        (b'{"a":1', 6, "the end of the file"),
        (b'{"a":1}x', 7, "'x'"),
        (b'{"a" 1}', 5, "'1}'"),
        (b'{"a":}', 5, "'}'"),
        (b'{"a":1,,}', 7, "',}'"),
        (b"[1,,]", 3, "',]'"),
        (b"[1}", 2, "'}'"),
        (b"{1.5:2}", 1, "'1.5:2}'"),
        (b"{true:2}", 1, "'true:2}'"),
        (b"{0:NaN}", 3, "'NaN}'"),
        (b'{"a":NaN}', 5, "'NaN}'"),
        (b'{0:"\\x"}', 3, "'\"\\\\x\"}'"),
        (b'{0:"abc', 3, "'\"abc'"),
        (b'{"\xe4\xb8\xad":?}', 7, "'?}'"),
        (b'{"\xff\xe4\xb8":?}', 7, "'?}'"),  # bytes count as they stand in the file, malformed or not
        (b'{{"a":{}}:1}', 1, "'{\"a\":{}}:1}'"),
        (b'{{"a":1}}', 8, "'}'"),
    ],
)
def test_errors_name_file_and_byte(data: bytes, position: int, found: str) -> None:
    with pytest.raises(CorruptStoreError) as caught:
        loads(data, "config/topics.json")
    told = (caught.value.file, caught.value.position, caught.value.found)
    assert told == ("config/topics.json", position, found)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_depth_is_bounded_for_json_and_for_the_dialects() -> None:
    assert loads(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, "f") != []
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}"), (b"{1:", b"}"), (b"{", b"}")):
        data = opening * (DEPTH_MAX + 1) + b"1" + closing * (DEPTH_MAX + 1)
        with pytest.raises(CorruptStoreError) as caught:
            loads(data, "f")
        assert caught.value.position == len(opening) * DEPTH_MAX
        assert str(DEPTH_MAX) in caught.value.expected


@pytest.mark.process
@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b"{" * 1_000_000,
        b'{"a":' * 200_000,
        b"{0:" * 300_000,
        b'{0:"' + b'\\"' * 500_000,
        b'{0:"' + b"\\\\" * 500_000,
        b'"' * 1_000_001,
        b"{0:" + b"9" * 1_000_000,
        b'{"a":' + b"9" * 1_000_000 + b"}",
        b"[" + b"1" * 4301 + b"]",
        b"{0:1" + b" " * 1_000_000 + b"x",
        b"{" + b"1:1," * 100_000,
        b"/*" * 500_000,
        b"{" + b"//x\n" * 250_000,
        b"[1" + b"e1" * 500_000,
        b'{"a":{"$ref":"$' + b".a" * 300_000 + b'"}}',
        b'{"a":[' + b'{"$ref":"$.a"},' * 50_000 + b"1]}",
        b'{"m":{'
        + b",".join(b'"%d":1' % i for i in range(20_000))
        + b'},"r":['
        + b'{"$ref":"$.m"},' * 50_000
        + b"1]}",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_hostile_text_costs_no_more_than_its_length(data: bytes) -> None:
    """Each is a megabyte or less, which takes a second at most; quadratic time would take many minutes."""
    start = time.perf_counter()
    with pytest.raises(CorruptStoreError) as caught:
        loads(data, "f")
    assert time.perf_counter() - start < 30
    assert len(str(caught.value)) < 500


def test_references() -> None:
    table = '{"T@G":{0:8},"a.b":{1:2},"R":{"$ref":"$.offsetTable.T@G"},"S":{"$ref":"$.offsetTable.a\\\\.b"}}'
    text = '{"offsetTable":' + table + ',"l":[[1],{"$ref":"$.l[0]"}]}'
    assert loads(text.encode(), "f") == {
        "offsetTable": {"T@G": {"0": 8}, "a.b": {"1": 2}, "R": {"0": 8}, "S": {"1": 2}},
        "l": [[1], [1]],
    }
    quoted = '{"x":{"T@G":{"0":8}},"R":{"$ref":"$[\\"x\\"][\'T@G\']"},"S":{"$ref":"$.x[\\"T@G\\"]"}}'
    assert loads(quoted.encode(), "f")["R"] == loads(quoted.encode(), "f")["S"] == {"0": 8}


@pytest.mark.parametrize("path", ["..", "@", "$", "$.missing", "$.a.b.c", "$.l[9]", "$.l[", "$x", "$.deep"])
def test_references_that_lead_nowhere_are_refused(path: str) -> None:
    text = json.dumps({"a": {"b": 1}, "l": [1], "deep": {"x": {}}, "r": {"$ref": path}})
    with pytest.raises(CorruptStoreError) as caught:
        loads(text.encode(), "f")
    assert caught.value.found == repr(path)
