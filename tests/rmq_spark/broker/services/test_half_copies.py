"""Half messages with several copies: a broker stores a half message again before it knows the decision.

A transaction is decided once any of its copies is, in the view, in the check and in decisions by name.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_spark.services import HalfMessage, transaction
from store_format.metadata.read import BrokerConf
from store_format.store import MessageStore
from tests.support.file_edits import edited_json
from tests.support.fixtures import Golden
from tests.support.halves import (
    BORN_MS,
    checker_offsets,
    half_store,
    op_message,
    states,
    visible,
)
from tests.support.oracle import Message, encode_properties
from tests.support.stored_rows import rows_in
from tests.support.waiting import append

MINUTE = 60_000
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LATER_MS = 1_795_244_200_000  # a minute after the golden's broker stopped
GOLDEN_CONF = BrokerConf(transaction_timeout_ms=2000, transaction_check_interval_ms=3000)


def _check(root: Path, answer: Callable[[HalfMessage], str | None], now_ms: int) -> int:
    return transaction.check(str(root), answer, now_ms).apply()


def _listed(root: Path) -> list[int]:
    """The half offsets in the op messages."""
    bodies = [row["body"] for row in rows_in(root, "body", topic=OP_TOPIC)]
    return [int(each) for body in bodies for each in body.decode().split(",") if each]


def _set_checker(root: Path, half: int, op: int) -> None:
    """The checker's offsets, as a broker leaves them that is killed before it writes them."""
    path = root / "config" / "consumerOffset.json"
    offsets = {
        f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS": {0: half},
        f"{OP_TOPIC}@CID_RMQ_SYS_TRANS": {0: op},
    }
    path.write_text(json.dumps({"offsetTable": offsets}))


@pytest.mark.parametrize("answer", ["commit", "rollback", None])
def test_only_what_the_view_calls_pending_is_asked_about(copy_of: Golden, answer: str | None) -> None:
    """Of a broker's store: of two decided transactions, only the first copies of many are in op messages."""
    root = copy_of("delay-tx-5.5.0")
    before, was_visible = states(root), visible(root, "Tx")
    assert Counter(before.values()) == {"committed": 32, "rolled back": 32, "pending": 16}
    asked: list[str] = []

    def decide(message: HalfMessage) -> str | None:
        asked.append(str(message.msg_id))
        return answer

    run = transaction.check(str(root), decide, LATER_MS, broker_conf=GOLDEN_CONF)
    assert {row["action"] for row in run.table().to_pylist()} == {answer or "check again"}
    assert run.apply() == 16
    pending = sorted(name for name, state in before.items() if state == "pending")
    assert sorted(asked) == pending
    ended = {"commit": "committed", "rollback": "rolled back", None: "pending"}[answer]
    assert states(root) == before | dict.fromkeys(pending, ended)
    assert visible(root, "Tx") == sorted(was_visible + (pending if answer == "commit" else []))
    assert {274, 275} <= set(_listed(root)), "a broker that takes over asks about the other copies neither"
    assert checker_offsets(root) == (277, 3)


def test_a_commit_without_its_op_message_counts(tmp_path: Path) -> None:
    """A broker writes op messages up to 3 seconds after the committed messages, and was killed before."""
    root = half_store(tmp_path / "s", ["A", "B"])
    transaction.decide(str(root), commit=["A"], now_ms=BORN_MS + 1000).apply()
    _forget_ops(root)
    assert states(root) == {"A": "committed", "B": "pending"}
    plan = transaction.decide(str(root), commit=["A"])
    assert [row["state"] for row in plan.table().to_pylist()] == ["committed"]
    asked: list[str] = []
    assert _check(root, lambda message: asked.append(str(message.msg_id)), BORN_MS + MINUTE) == 1
    assert asked == ["B"]
    assert visible(root) == ["A"]


def test_each_transaction_is_asked_about_once(tmp_path: Path) -> None:
    """A broker that was killed has stored the half message again, and begins at its first copy again."""
    root = half_store(tmp_path / "s", ["A", "B"])
    _check(root, lambda message: None, BORN_MS + MINUTE)
    _set_checker(root, 0, 0)
    _forget_turns(root)
    asked: list[tuple[str | None, int]] = []

    def commit(message: HalfMessage) -> str:
        asked.append((message.msg_id, message.check_times))
        return "commit"

    assert _check(root, commit, BORN_MS + 2 * MINUTE) == 2
    assert asked == [("A", 1), ("B", 1)]
    assert visible(root) == ["A", "B"]
    assert sorted(_listed(root)) == [0, 1, 2, 3, 4, 5]


def test_a_decision_by_name_knows_copies_that_the_checker_has_passed(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A", "B"])
    _check(root, lambda message: None, BORN_MS + MINUTE)
    op_message(root, [0])  # the producer's late answer to the first copy
    assert checker_offsets(root)[0] == 2
    assert states(root) == {"A": "rolled back", "B": "pending"}
    plan = transaction.decide(str(root), rollback=["A"], commit=["B"])
    assert [row["state"] for row in plan.table().to_pylist()] == ["pending", "rolled back"]
    assert plan.apply() == 1
    assert visible(root) == ["B"]
    assert {1, 3} <= set(_listed(root)), "both copies"


def test_a_transaction_keeps_the_time_of_its_firstop_message(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    _check(root, lambda message: None, BORN_MS + MINUTE)
    op_message(root, [0])
    store = MessageStore.open(str(root))
    (before,) = store.view("transactions", now_ms=BORN_MS).to_pylist()
    assert _check(root, lambda message: "commit", BORN_MS + 2 * MINUTE) == 0
    (after,) = MessageStore.open(str(root)).view("transactions", now_ms=BORN_MS).to_pylist()
    assert (after["state"], after["decidedTimestamp"]) == ("rolled back", before["decidedTimestamp"])
    assert _listed(root) == [0, 1]


def test_copies_without_a_unique_key_are_found_by_the_offset_of_the_first(tmp_path: Path) -> None:
    properties = {
        "REAL_TOPIC": "Orders", "REAL_QID": "0", "PGROUP": "PG_orders", "TRAN_MSG": "true",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "120",
    }  # fmt: skip
    root = half_store(tmp_path / "s", [])
    half = Message(HALF_TOPIC.encode(), b"x", encode_properties(properties), born_timestamp=BORN_MS)
    append(root, [half, replace(half, body=b"y")], BORN_MS)
    assert _check(root, lambda message: None, BORN_MS + 10_000) == 2
    op_message(root, [0])
    rows = MessageStore.open(str(root)).view("transactions", now_ms=BORN_MS).to_pylist()
    assert [(row["state"], row["copies"]) for row in rows] == [("rolled back", 2), ("pending", 2)]
    assert _check(root, lambda message: "commit", BORN_MS + 3 * MINUTE) == 1
    assert len(visible(root)) == 1


def _forget_ops(root: Path) -> None:
    """The op topic is gone, and its messages in the commitlog are in no queue."""
    shutil.rmtree(root / "consumequeue" / OP_TOPIC)
    with edited_json(root / "config" / "topics.json") as topics:
        del topics["topicConfigTable"][OP_TOPIC]


def _forget_turns(root: Path) -> None:
    """The ledger is a broker's: it has none."""
    (root / ".rmqlog" / "ledger.json").unlink()
