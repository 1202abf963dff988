"""A user's own strategy, machine rooms and hash function: what is asked of them, and what is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.allocate import described, strategy
from rmq_spark.consume.consumer import MessageQueue, is_own, sort_clients
from rmq_spark.consume.group.member import Membership
from rmq_spark.consume.own_code import VARIABLE, OwnStrategy, refuse_unlisted
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from store_format.errors import OptionError

_QUEUES = [MessageQueue("T", f"broker-{room}", queue_id) for room in "ab" for queue_id in range(4)]
_HERE = "tests.support.own_strategies"


class _Of:
    """A strategy from a function of (client, queues, clients)."""

    def __init__(self, choose: Callable[[str, Sequence[MessageQueue], Sequence[str]], object]) -> None:
        self._choose = choose

    def get_name(self) -> str:
        return "OF"

    def allocate(self, consumer_group: str, current_cid: str, mq_all: object, cid_all: object) -> object:
        return self._choose(current_cid, mq_all, cid_all)  # type: ignore[arg-type]


def _asked(choose: Callable[[str, Sequence[MessageQueue], Sequence[str]], object]) -> list[MessageQueue]:
    return OwnStrategy(_Of(choose), "a.b:c").allocate("g", "one", _QUEUES, ["one", "two"])


def test_a_strategy_by_its_name() -> None:
    own = strategy(f"{_HERE}:ByParity")
    found = [own.allocate("g", client, _QUEUES, ["one", "two"]) for client in ("one", "two")]
    assert [[queue.queue_id for queue in queues] for queues in found] == [[0, 2, 0, 2], [1, 3, 1, 3]]
    assert described(own) == f"{_HERE}:ByParity PARITY"


def test_machine_rooms_of_the_user() -> None:
    own = strategy("MACHINE_ROOM_NEARBY", resolver=f"{_HERE}:Rooms")
    found = {client: own.allocate("g", client, _QUEUES, ["1-a", "1-b", "2-b"]) for client in ("1-a", "1-b")}
    assert found == {"1-a": _QUEUES[:4], "1-b": _QUEUES[4:6]}
    assert described(own) == f"MACHINE_ROOM_NEARBY-AVG machineRoomResolver={_HERE}:Rooms"


def test_a_hash_function_of_the_user() -> None:
    own = strategy("CONSISTENT_HASH", hash_function=f"{_HERE}:first_bytes")
    clients = ["one", "two", "three"]
    found = [own.allocate("g", client, _QUEUES, clients) for client in clients]
    assert sorted(queue for queues in found for queue in queues) == _QUEUES
    by_md5 = strategy("CONSISTENT_HASH")
    assert found != [by_md5.allocate("g", client, _QUEUES, clients) for client in clients]
    assert described(own) == f"CONSISTENT_HASH virtualNodeCount=10 hashFunction={_HERE}:first_bytes"


# ---- answers that no group can use -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (
            lambda client, queues, clients: queues[:1],
            "one client for each queue, found T-0 of broker-a for client one and for client two",
        ),
        (
            lambda client, queues, clients: [("T", "broker-a", 9)] if client == "two" else [],
            "queues of mq_all, found T-9 of broker-a for client two",
        ),
        (lambda client, queues, clients: None, "the queues of client one from allocate(…), found TypeError"),
        (lambda client, queues, clients: [1 // 0], "from allocate(…), found ZeroDivisionError"),
    ],
)
def test_an_answer_that_is_refused(choose: Callable[..., object], expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        _asked(choose)
    assert str(caught.value).startswith("a.b:c: expected ")
    assert expected in str(caught.value)


def test_queues_that_go_to_no_client_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    own = OwnStrategy(_Of(lambda client, queues, clients: queues[:2] if client == "one" else []), "a.b:c")
    for clients in (["one"], ["one", "two"]):  # a rebalance does not say it again
        assert own.allocate("g", "one", _QUEUES, clients) == _QUEUES[:2]
    (warning,) = caplog.messages
    assert warning.startswith("a.b:c: 6 queues go to no client, so nobody reads them: T-2 of broker-a")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests.support.no_such:x", "cannot be imported (ModuleNotFoundError"),
        (f"{_HERE}:ByParty", "has no 'ByParty'; did you mean ByParity?"),
        (f"{_HERE}:Rooms", "expected an object with allocate(…)"),
        ("broken:x", "cannot be imported (ZeroDivisionError"),
    ],
)
def test_a_name_that_leads_to_no_strategy(
    name: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("1 // 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OptionError) as caught:
        strategy(name)
    assert str(caught.value).startswith("allocateMessageQueueStrategy: ")
    assert expected in str(caught.value)


def test_a_hash_that_is_no_long_is_refused() -> None:
    with pytest.raises(OptionError, match="expected a whole number of 64 bits"):
        strategy("CONSISTENT_HASH", hash_function="json:dumps").allocate("g", "one", _QUEUES, ["one"])


# ---- who may import ----------------------------------------------------------------------------------------


def test_options_import_nothing() -> None:
    given_options = {"path": "/a", "group": "g", "allocateMessageQueueStrategy": "no.such.module:x"}
    options = parse_read_options(given_options, where=STREAM)
    assert options.group is not None
    assert options.group.own_code == ["no.such.module:x"]
    with pytest.raises(OptionError, match="cannot be imported"):
        options.group.make_strategy(["one"], ["broker-a"])


@pytest.mark.parametrize("text", ["os", "os:system('x')", ":x", "a..b:c", "a:b:c", "a/b:c", "1a:b"])
def test_what_is_no_name(text: str) -> None:
    assert not is_own(text)


def test_only_listed_names_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_unlisted(["os:getcwd"], None)
    refuse_unlisted(["os:getcwd"], ["os:getcwd"])
    refuse_unlisted([], ())
    with pytest.raises(OptionError, match=r"os:getcwd: expected a name that this session may import"):
        refuse_unlisted(["os:getcwd"], ["os:getpid"])
    monkeypatch.setenv(VARIABLE, "a.b:c,os:getcwd")
    refuse_unlisted(["os:getcwd"], ())


# ---- members agree -----------------------------------------------------------------------------------------


@given(
    st.integers(),
    st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=6, unique=True),
    st.integers(1, 12),
)
def test_members_never_disagree(seed: int, clients: list[str], count: int) -> None:
    """Whatever a strategy does with the two lists, no queue has two owners, and every member knows them."""
    queues = [MessageQueue("T", "b", queue_id) for queue_id in range(count)]

    def choose(client: str, mq_all: Sequence[MessageQueue], cid_all: Sequence[str]) -> list[MessageQueue]:
        random = Random(f"{seed}/{mq_all}/{cid_all}")
        owners = [random.choice([*cid_all, ""]) for _ in mq_all]
        return [queue for queue, owner in zip(mq_all, owners, strict=True) if owner == client]

    found: dict[MessageQueue, str] = {}
    for client in clients:
        member = Membership("g", (client,), OwnStrategy(_Of(choose), "a.b:c"), "T *")
        mine = member.allocate(reversed(clients), queues)
        assert not mine.keys() & found.keys()
        found |= mine
    everyone = Membership("g", tuple(clients), OwnStrategy(_Of(choose), "a.b:c"), "T *")
    assert everyone.allocate(sort_clients(clients), queues) == found
