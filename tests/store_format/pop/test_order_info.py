"""Rules of order pop and the bytes of consumerOrderInfo.json: RocketMQ's recorded answers, the older form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError
from store_format.java.fastjson import loads
from store_format.metadata.read import decode_order_infos
from store_format.metadata.values import OrderInfo
from store_format.pop import order as order_info
from tests.support.order_commands import KEY, OurOrder, counts_in_order

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "order_info_vectors.json").read_text())

# 5.0 to 5.3 (fastjson 1.2): store-format.md 6.9, with a second group
OLD_FILE = b"""{
	"table":{
		"T@G":{0:{
				"a":"attempt-2",
				"cm":2,
				"i":30000,
				"l":1700000030000,
				"o":[
					10,
					1,
					3
				],
				"oc":{10:1,11:1,13:1
				},
				"ot":{13:1700000099000
				},
				"popTime":1700000030000
			}
		},
		"T@other":{}
	}
}"""
INFO = OrderInfo(
    (10, 11, 13), 1700000030000, 30000, 1700000030000, 2, "attempt-2",
    {10: 1, 11: 1, 13: 1}, {13: 1700000099000},
)  # fmt: skip


@pytest.mark.parametrize("history", VECTORS)
def test_recorded_histories(history: list[list[object]]) -> None:
    """Each result, and the whole file where one is recorded, equal RocketMQ's."""
    ours = OurOrder()
    for command, result, file in history:
        found, our_file = ours.answer(command)  # type: ignore[arg-type]  # a list of words
        assert counts_in_order(found) == result, command
        if file is not None and decode_order_infos(loads(file.encode(), "file")).get(KEY):  # type: ignore[attr-defined]
            assert our_file.decode() == file, command


def test_the_vectors_cover_every_answer() -> None:
    results = {(command[0], str(result)) for history in VECTORS for command, result, _ in history}
    assert {("ack", "-1"), ("ack", "-2"), ("block", "True"), ("block", "False")} <= results


def test_an_old_file_round_trips() -> None:
    assert order_info.merge_order_infos(OLD_FILE, "T@G", {0: INFO}) is None
    acknowledged, _ = order_info.acknowledge(INFO, 10, INFO.pop_time)
    changed = order_info.merge_order_infos(OLD_FILE, "T@G", {0: acknowledged})
    assert changed == OLD_FILE.replace(b'"cm":2', b'"cm":3')


def test_other_groups_stay() -> None:
    """Members that no version has written yet stay too, and the count follows."""
    head = b'{\n\t"orderInfoCount":1,\n\t"new":[1,2],\n\t"table":{'
    other = head + b'\n\t\t"T@H":{\n\t\t\t7:{\n\t\t\t\t"z":1\n\t\t\t}\n\t\t}\n\t}\n}'
    added = order_info.merge_order_infos(other, "T@G", {0: OrderInfo((4,), 5)})
    assert added is not None
    assert b'"orderInfoCount":2' in added
    assert added.startswith(other.replace(b":1,", b":2,", 1)[:-6])
    assert order_info.merge_order_infos(added, "T@G", {}) == other


def test_a_file_of_another_kind() -> None:
    where = r"config/consumerOrderInfo\.json at byte 0: expected an object as table"
    with pytest.raises(CorruptStoreError, match=where):
        order_info.merge_order_infos(b'{"table":[]}', "T@G", {})


def test_a_batch_without_an_invisible_time() -> None:
    """Each pop that asks lends its own time."""
    info = OrderInfo((5,), 1000)
    assert order_info.is_blocked(info, 1099, 100)
    assert not order_info.is_blocked(info, 1100, 100)


@given(
    offsets=st.lists(st.integers(0, (1 << 63) - 100), min_size=1, max_size=70, unique=True).map(sorted),
    times=st.none() | st.dictionaries(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 60)),
    acked=st.lists(st.integers(0, 69)),
)
def test_any_batch_round_trips(offsets: list[int], times: dict[int, int] | None, acked: list[int]) -> None:
    info = OrderInfo(tuple(offsets), 7, 8, 9, 0, None, {}, times)
    for index in acked:
        info, _ = order_info.acknowledge(info, offsets[index % len(offsets)], 7)
    data = order_info.merge_order_infos(None, "T@G", {3: info})
    assert data is not None
    assert decode_order_infos(loads(data, "file")) == {"T@G": {3: info}}
    assert order_info.merge_order_infos(data, "T@G", {3: info}) is None
