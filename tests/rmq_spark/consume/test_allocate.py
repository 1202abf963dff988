"""The six allocation strategies against the vectors, and what each promises for any group: every queue once,
whatever the order given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.allocate import AllocateMessageQueueStrategy, described, strategy
from rmq_spark.consume.consumer import MessageQueue, sort_clients, sort_queues
from store_format.errors import OptionError

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "allocate_vectors.json").read_bytes()
)

# Section -> where it is used. Pop shares are for the broker's own assignment, which a later room imitates.
USED = {
    "about", "source", "message_queue_sort", "client_id_sort", "message_queue_to_string",
    "consistent_hash_md5_31", "consistent_hash_ring_example", "edge_cases", "nearby_edge_cases", "grid",
}  # fmt: skip
UNUSED = {"pop_share_cases"}


def _queues(topic: str | None, names: list[str]) -> list[MessageQueue]:
    parts = [name.rpartition("#") for name in names]
    return [MessageQueue(topic or "T", broker, int(queue_id)) for broker, _, queue_id in parts]


def _named(text: str) -> AllocateMessageQueueStrategy:
    """A strategy by the vectors' key: `CONSISTENT_HASH/vn=3`, `MACHINE_ROOM/idcs=a,b`,
    `MACHINE_ROOM_NEARBY-AVG`.
    """
    name, _, argument = text.partition("/")
    value = argument.partition("=")[2]
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        return strategy("MACHINE_ROOM_NEARBY", inner=name.partition("-")[2])
    if argument.startswith("vn="):
        return strategy(name, virtual_node_count=int(value))
    return strategy(name, consumer_idcs=value.split(",") if value else None)


def test_every_section_of_the_vectors_is_listed() -> None:
    assert set(VECTORS) == USED | UNUSED


def test_the_grid() -> None:
    compared = 0
    for case in VECTORS["grid"]:
        queues = _queues(case["topic"], case["queues"])
        for name, expected in case["alloc"].items():
            chosen = _named(name)
            found = [chosen.allocate("g", client, queues, case["clients"]) for client in case["clients"]]
            assert found == [[queues[i] for i in indexes] for indexes in expected], (
                name,
                case["queues"],
                case["clients"],
            )
            assert chosen.name == name.partition("/")[0]
            compared += 1
    assert compared == sum(len(case["alloc"]) for case in VECTORS["grid"]) == 2667


@pytest.mark.parametrize(
    "case", VECTORS["edge_cases"], ids=lambda case: f"{case['strategy']}: {case['desc']}"
)
def test_an_edge(case: dict[str, Any]) -> None:
    chosen = strategy(case["strategy"], consumer_idcs=case.get("consumeridcs"))
    queues = _queues(case["topic"], case["queues"])
    if "error" in case:
        with pytest.raises(OptionError) as caught:
            chosen.allocate("g", case["current"], queues, case["clients"])
        assert str(caught.value) == case["error"]
    else:
        assert chosen.allocate("g", case["current"], queues, case["clients"]) == _queues(
            case["topic"], case["result"]
        )


@pytest.mark.parametrize(
    "case", VECTORS["nearby_edge_cases"], ids=lambda case: f"{case['strategy']}: {case['desc']}"
)
def test_an_edge_of_nearby(case: dict[str, Any]) -> None:
    chosen, queues = _named(case["strategy"]), _queues(case["topic"], case["queues"])
    found = [chosen.allocate("g", client, queues, case["clients"]) for client in case["clients"]]
    assert found == [_queues(case["topic"], names) for names in case["alloc"]]


def test_the_orders_of_queues_and_clients() -> None:
    for case in VECTORS["message_queue_sort"]:
        assert sort_queues(MessageQueue(*each) for each in case["input"]) == [
            MessageQueue(*each) for each in case["sorted"]
        ]
    case = VECTORS["client_id_sort"]
    assert sort_clients(case["input"]) == case["sorted"]
    # Above U+FFFF the order of UTF-16 is not that of code points.
    assert sort_clients(["\uffee", "\U0001f600"]) == ["\U0001f600", "\uffee"]
    assert sort_clients(["b", "\ud800", "a"]) == ["a", "b", "\ud800"]  # half a character is no error


def test_the_text_of_a_queue() -> None:
    for case in VECTORS["message_queue_to_string"]:
        assert MessageQueue(case["topic"], case["brokerName"], case["queueId"]).java_text() == case["string"]


def test_the_places_on_the_ring() -> None:
    from rmq_spark.consume.allocate import _md5, _ring

    for case in VECTORS["consistent_hash_md5_31"]:
        assert _md5(case["key"]) == case["hash"]
    example = VECTORS["consistent_hash_ring_example"]
    clients = tuple(dict.fromkeys(key.rpartition("-")[0] for key in example))
    places, owners = _ring(clients, 10, _md5)
    assert dict(zip(places, owners, strict=True)) == {
        place: key.rpartition("-")[0] for key, place in example.items()
    }
    assert places == sorted(example.values())


def test_a_client_named_twice_has_twice_the_places() -> None:
    from rmq_spark.consume.allocate import _md5, _ring

    assert len(_ring(("a", "a", "b"), 10, _md5)[0]) == 30


# ---- what strategies promise -------------------------------------------------------------------------------

_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="@-"), min_size=1, max_size=6)
_ROOMS = st.sampled_from(["room1", "room2", "room3"])
_QUEUES = st.sets(
    st.builds(MessageQueue, st.just("T"), st.builds("{}@{}".format, _ROOMS, _NAMES), st.integers(0, 40)),
    min_size=1,
    max_size=30,
)
_CLIENTS = st.sets(st.builds("{}-{}".format, _ROOMS, _NAMES), min_size=1, max_size=8)
_WHOLE = [strategy(name) for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")]
_WHOLE += [
    strategy("MACHINE_ROOM_NEARBY", inner=name) for name in ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
]
_WHOLE += [strategy("MACHINE_ROOM", consumer_idcs=["room1", "room2", "room3"])]


@pytest.mark.parametrize("chosen", _WHOLE, ids=lambda chosen: chosen.name)
@given(queues=_QUEUES, clients=_CLIENTS, data=st.data())
def test_every_queue_once_in_any_order_given(
    chosen: AllocateMessageQueueStrategy, queues: set[MessageQueue], clients: set[str], data: st.DataObject
) -> None:
    sorted_queues, sorted_clients = sort_queues(queues), sort_clients(clients)
    by_client = {client: chosen.allocate("g", client, sorted_queues, sorted_clients) for client in clients}
    owned = [queue for each in by_client.values() for queue in each]
    assert sort_queues(owned) == sorted_queues
    shuffled = data.draw(st.permutations(sorted_queues)), data.draw(st.permutations(sorted_clients))
    again = {
        client: chosen.allocate("g", client, sort_queues(shuffled[0]), sort_clients(shuffled[1]))
        for client in clients
    }
    assert again == by_client


@given(queues=_QUEUES, clients=_CLIENTS)
def test_a_room_that_is_not_named_is_read_by_nobody(queues: set[MessageQueue], clients: set[str]) -> None:
    chosen = strategy("MACHINE_ROOM", consumer_idcs=["room1"])
    mq_all, cid_all = sort_queues(queues), sort_clients(clients)
    owned = [queue for client in cid_all for queue in chosen.allocate("g", client, mq_all, cid_all)]
    # Clients of every room share them: where a client is does not count here.
    assert sort_queues(owned) == [queue for queue in mq_all if queue.broker_name.startswith("room1@")]


def test_config_gives_what_was_configured() -> None:
    queues = [MessageQueue("T", "b", 3), MessageQueue("T", "b", 1)]
    assert strategy("CONFIG", config=queues).allocate("g", "whoever", [], []) == queues
    by_client = strategy("CONFIG", config={"a": queues, "b": []})
    assert [by_client.allocate("g", client, [], []) for client in "abc"] == [queues, [], []]


def test_what_members_must_have_in_common() -> None:
    told = {
        described(strategy("AVG")): "AVG",
        described(strategy("CONFIG", config=[])): "CONFIG",
        described(strategy("CONSISTENT_HASH", virtual_node_count=3)): "CONSISTENT_HASH virtualNodeCount=3",
        described(strategy("MACHINE_ROOM", consumer_idcs=["b", "a"])): "MACHINE_ROOM consumerIdcs=a,b",
        described(
            strategy("MACHINE_ROOM_NEARBY", inner="CONSISTENT_HASH")
        ): "MACHINE_ROOM_NEARBY-CONSISTENT_HASH virtualNodeCount=10",
    }
    assert list(told) == list(told.values())


def test_a_client_or_a_queue_without_a_room_is_an_error() -> None:
    chosen = strategy("MACHINE_ROOM_NEARBY")
    with pytest.raises(OptionError) as caught:
        chosen.allocate("g", "a-1", [MessageQueue("T", "@b", 0)], ["a-1"])
    assert str(caught.value).startswith("Machine room is null for mq MessageQueue [")
    with pytest.raises(OptionError) as caught:
        chosen.allocate("g", "a-1", [MessageQueue("T", "a@b", 0)], ["-1", "a-1"])
    assert str(caught.value) == "Machine room is null for consumer id -1"
