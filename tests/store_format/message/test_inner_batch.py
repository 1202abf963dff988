"""Batch bodies split into wire messages, against the oracle; a body that does not add up names the byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.message.decode import split_batches
from tests.support import oracle
from tests.support.oracle import OracleError, SubMessage
from tests.support.strategies import INT32, property_bytes, torn

VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())[
    "batch_wire_body"
]

PARTS = st.lists(
    st.builds(SubMessage, flag=INT32, body=st.binary(max_size=20), properties_bytes=property_bytes()),
    max_size=4,
)


def split(bodies: list[bytes]) -> tuple[list[list[SubMessage]], dict[int, tuple[int, str, str]]]:
    messages, wrong = split_batches(bodies)
    columns = (messages.flags.tolist(), messages.bodies.to_pylist(), messages.raw_properties.to_pylist())
    parts = [SubMessage(*fields) for fields in zip(*columns, strict=True)]
    batches = []
    for count in messages.counts.tolist():
        batches.append(parts[:count])
        parts = parts[count:]
    assert not parts
    return batches, wrong


@given(st.lists(PARTS.filter(bool), max_size=4))
def test_as_the_oracle_splits(batches: list[list[SubMessage]]) -> None:
    assert split([oracle.encode_inner_batch(batch) for batch in batches]) == (batches, {})


def test_vector() -> None:
    expected = [
        SubMessage(m["flag"], m["body"].encode(), bytes.fromhex(m["properties_hex"]))
        for m in VECTOR["messages"]
    ]
    assert split([bytes.fromhex(VECTOR["hex"])]) == ([expected], {})


@given(PARTS.filter(bool), st.data())
def test_a_damaged_body_is_refused_where_the_oracle_refuses_it(
    batch: list[SubMessage], data: st.DataObject
) -> None:
    body = data.draw(torn(oracle.encode_inner_batch(batch))).data or b"?"  # an empty one is refused here only
    healthy = oracle.encode_inner_batch(batch)
    batches, wrong = split([healthy, body, healthy])
    assert batches[0] == batches[2] == batch
    try:
        assert batches[1] == oracle.split_inner_batch(body)
        assert not wrong
    except OracleError:
        assert batches[1] == []
        assert 0 <= wrong[1][0] <= len(body)


@pytest.mark.parametrize(
    ("counts", "wrong"), [([1, 0], {}), ([2, 0], {0: (0, "2 messages, as in the consume queue entry", "1")})]
)
def test_a_batch_holds_what_the_queue_entry_says_and_never_nothing(
    counts: list[int], wrong: dict[int, tuple[int, str, str]]
) -> None:
    one = oracle.encode_inner_batch([SubMessage(0, b"x", b"")])
    messages, found = split_batches([one, b""], counts)
    assert found == wrong | {1: (0, "at least one message in a batch", "none")}
    assert messages.counts.tolist() == [0 if wrong else 1, 0]


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [
        (0, 0, (0, "a wire message size up to 53", "0")),
        (0, 2**32 - 1, (0, "a wire message size up to 53", "-1")),
        (0, 2**31 - 1, (0, "a wire message size up to 53", "2147483647")),
        (0, 21, (0, "a wire message size up to 53", "21")),
        (16, 2**32 - 1, (16, "a body length up to 5", "-1")),
        (16, 6, (16, "a body length up to 5", "6")),
        (16, 4, (24, "properties length 1", "29440")),
        (27, 20, (27, "a wire message of at least 22 bytes", "20 bytes left of the batch")),
    ],
)
def test_each_refusal(at: int, value: int, problem: tuple[int, str, str]) -> None:
    body = oracle.encode_inner_batch([SubMessage(0, b"bodys", b""), SubMessage(0, b"", b"a\x01b\x02")])
    body = body[: 27 + value] if at == 27 else body[:at] + value.to_bytes(4, "big") + body[at + 4 :]
    assert split([body])[1] == {0: problem}
