"""Transactions without a broker: decisions by name, and the check of half messages that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.services import HalfMessage, run_once, transaction
from store_format.errors import CorruptStoreError, OptionError, UnsupportedFormatError
from store_format.layouts import CQ_UNIT
from store_format.metadata.read import BrokerConf
from store_format.store import MessageStore
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.halves import (
    BORN_MS,
    add_halves,
    checker_offsets,
    half_store,
    op_message,
    property_of,
    states,
    visible,
)
from tests.support.produced_batches import MAP
from tests.support.reads import flip
from tests.support.staged import append, numbered
from tests.support.stored_rows import rows_in
from tests.support.writes import numbered_rows, write

MINUTE = 60_000


def decide(
    root: Path, commit: Sequence[transaction.Name] = (), rollback: Sequence[transaction.Name] = ()
) -> int:
    plan = transaction.decide(str(root), commit=commit, rollback=rollback, now_ms=BORN_MS + 1000)
    return plan.apply()


def copies(root: Path) -> list[tuple[str, str | None]]:
    """(id, TRANSACTION_CHECK_TIMES) of the half topic's messages."""
    return property_of(root, "TRANSACTION_CHECK_TIMES")


# ---- decisions ---------------------------------------------------------------------------------------------


def test_the_same_decision_again_is_done_and_the_opposite_one_refused(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A", "B"])
    decide(root, commit=["A"], rollback=["B"])
    plan = transaction.decide(str(root), commit=["A"], rollback=["B"])
    assert [row["state"] for row in plan.table().to_pylist()] == ["committed", "rolled back"]
    assert plan.apply() == 0
    assert visible(root) == ["A"]
    with pytest.raises(OptionError, match=r"msgId 'B'.*pending half message to commit.*rolled back"):
        transaction.decide(str(root), commit=["B"])
    with pytest.raises(OptionError, match=r"msgId 'A'.*committed"):
        transaction.decide(str(root), rollback=["A"])


def test_names_without_a_transaction_are_refused(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    with pytest.raises(OptionError, match=r"msgId 'X': expected a half message"):
        transaction.decide(str(root), commit=["A", "X"])
    with pytest.raises(OptionError, match="half offset 7: expected"):
        transaction.decide(str(root), commit=[7])
    with pytest.raises(OptionError, match="one decision, found commit and rollback"):
        transaction.decide(str(root), commit=["A"], rollback=["A"])
    with pytest.raises(OptionError, match="one decision"):
        transaction.decide(str(root), commit=["A"], rollback=[0])
    assert visible(root) == []


def test_a_plan_shows_and_changes_nothing_until_it_is_applied(tmp_path: Path, unchanged: Unchanged) -> None:
    root = half_store(tmp_path / "s", ["A", "B"])
    with unchanged(root):
        plan = transaction.decide(str(root), commit=["A"], rollback=[1])
        rows = plan.table().to_pylist()
    assert [(row["msgId"], row["decision"], row["state"], row["queueId"]) for row in rows] == [
        ("A", "commit", "pending", 0),
        ("B", "rollback", "pending", 1),
    ]
    assert (rows[0]["topic"], rows[0]["producerGroup"]) == ("Orders", "PG_orders")


def test_a_plan_that_another_has_carried_out_writes_nothing(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    first, second = (transaction.decide(str(root), commit=["A"]) for _ in range(2))
    third = transaction.decide(str(root), rollback=["A"])
    assert (first.apply(), second.apply()) == (1, 0)
    with pytest.raises(OptionError, match="committed"):
        third.apply()
    assert visible(root) == ["A"]


def test_the_newest_copy_of_a_checked_half_is_decided(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    transaction.check(str(root), lambda message: None, BORN_MS + MINUTE).apply()
    assert copies(root) == [("A", None), ("A", "1")]
    assert decide(root, commit=[0]) == 1  # named by the first copy's offset
    assert visible(root) == ["A"]
    (view,) = MessageStore.open(str(root)).view("transactions", now_ms=BORN_MS).to_pylist()
    assert (view["state"], view["copies"]) == ("committed", 2)


def test_golden_pending_halves_are_committed(copy_of: Golden) -> None:
    """Of a broker's store: its undecided transactions, some checked nine times, then nothing is pending."""
    root = copy_of("delay-tx-5.5.0")
    before, was_visible = states(root), visible(root, "Tx")
    pending = sorted(name for name, state in before.items() if state == "pending")
    assert len(pending) == 16
    now = 1_795_244_200_000  # a minute after the broker stopped
    transaction.decide(str(root), commit=pending[:10], rollback=pending[10:], now_ms=now).apply()
    after = states(root)
    assert [after[name] for name in pending] == ["committed"] * 10 + ["rolled back"] * 6
    assert {name: state for name, state in after.items() if name not in pending} == {
        name: state for name, state in before.items() if name not in pending
    }
    assert visible(root, "Tx") == sorted(was_visible + pending[:10])


def test_golden_pending_halves_are_checked(copy_of: Golden) -> None:
    """The broker's own check goes on: its next run would have stored these copies of pending ones."""
    root = copy_of("delay-tx-5.5.0")
    before = property_of(root, "TRANSACTION_CHECK_TIMES")
    assert checker_offsets(root) == (259, 3)
    conf = BrokerConf(transaction_timeout_ms=2000, transaction_check_interval_ms=3000)
    run = transaction.check(str(root), lambda message: None, 1_795_244_200_000, broker_conf=conf)
    pending = {name for name, state in states(root).items() if state == "pending"}
    assert run.apply() == 16
    after = property_of(root, "TRANSACTION_CHECK_TIMES")
    assert after == before + [
        (name, str(int(times or 0) + 1)) for name, times in before[259:] if name in pending
    ]
    assert checker_offsets(root) == (277, 3)


def test_a_broker_of_4_9_writes_one_op_message_for_each_half(copy_of: Golden) -> None:
    root = copy_of("basic-4.9.7")
    rows = numbered_rows(
        0, 2, "Orders", queueId=[0, 0], properties=pa.array([[("UNIQ_KEY", name)] for name in "AB"], MAP)
    )
    write(root, rows, transaction="half", producerGroup="PG_orders")
    assert property_of(root, "__transactionId__") == [("A", None), ("B", None)]  # 5.0 adds it
    decide(root, commit=["A"], rollback=["B"])
    ops = rows_in(root, "body", topic="RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert [row["body"] for row in ops] == [b"0", b"1"]
    assert ("A", "Orders") in property_of(root, "REAL_TOPIC", "Orders")  # 5.4 removes it
    assert states(root)["B"] == "rolled back"


def test_a_half_with_a_delay_is_not_committed(tmp_path: Path) -> None:
    """Java producers send none; a broker would deliver it later."""
    root = half_store(tmp_path / "s", ["A"])
    add_halves(root, ["D"], stored={"DELAY": "3"})
    plan = transaction.decide(str(root), commit=["A", "D"])
    with pytest.raises(UnsupportedFormatError, match="msgId 'D': a half message with a delay"):
        plan.apply()
    assert check(root, lambda message: "commit", BORN_MS + MINUTE) == 2
    assert states(root) == {"A": "committed", "D": "pending"}


def test_a_half_that_no_consumer_could_read_is_not_committed(tmp_path: Path) -> None:
    """Its sysFlag says that the body is compressed."""
    root = half_store(tmp_path / "s", ["A", "B"])
    (half,) = MessageStore.open(str(root)).find(key="B").table.to_pylist()
    flip(root, half["physicalOffset"] + 39)  # a bit of its sysFlag
    expected = (
        r"compressed with ZLIB in the half message RMQ_SYS_TRANS_HALF_TOPIC-0@1, .* only be rolled back"
    )
    with pytest.raises(CorruptStoreError, match=expected):
        transaction.decide(str(root), commit=["A", "B"])
    assert visible(root) == []
    assert decide(root, commit=["A"], rollback=["B"]) == 2
    assert visible(root) == ["A"]


def test_rocksdb_transactions_are_refused(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    conf = BrokerConf(transaction_rocksdb_enable=True)
    with pytest.raises(UnsupportedFormatError, match="transRocksDBEnable"):
        transaction.decide(str(root), commit=["A"], broker_conf=conf)
    with pytest.raises(UnsupportedFormatError, match="transRocksDBEnable"):
        transaction.check(str(root), lambda message: None, broker_conf=conf)


# ---- the check ---------------------------------------------------------------------------------------------


def check(root: Path, answer: Callable[[HalfMessage], str | None], now_ms: int) -> int:
    return transaction.check(str(root), answer, now_ms).apply()


def test_a_check_asks_after_the_timeout_and_writes_the_answers(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A", "B", "C"])
    answers = {"A": "commit", "B": "rollback", "C": None}
    asked: list[HalfMessage] = []

    def answer(message: HalfMessage) -> str | None:
        asked.append(message)
        return answers[str(message.msg_id)]

    assert check(root, answer, BORN_MS + 5999) == 0
    assert asked == []
    assert check(root, answer, BORN_MS + 6000) == 3
    assert [(message.msg_id, message.body, message.keys) for message in asked] == [
        (name, f"body of {name}".encode(), [f"key-{name}"]) for name in "ABC"
    ]
    assert (asked[0].topic, asked[0].queue_id, asked[0].tags, asked[0].producer_group) == (
        "Orders", 0, "paid", "PG_orders",
    )  # fmt: skip
    assert visible(root) == ["A"]
    assert states(root) == {"A": "committed", "B": "rolled back", "C": "pending"}
    assert copies(root) == [("A", None), ("B", None), ("C", None), ("A", "1"), ("B", "1"), ("C", "1")]
    assert checker_offsets(root) == (3, None)
    assert property_of(root, "TRANSACTION_CHECK_TIMES", "Orders") == [("A", "1")]  # as in a broker


def test_a_committed_message_names_the_copy_that_the_check_has_stored(tmp_path: Path) -> None:
    """Over several commitlog files."""
    root = half_store(tmp_path / "s", [])
    for i in range(6):
        add_halves(root, [f"{i}-{j}" for j in range(60)], born_ms=BORN_MS + i)
    with_log = list((root / "commitlog").iterdir())
    assert check(root, lambda message: "commit", BORN_MS + MINUTE) == 360
    assert len(list((root / "commitlog").iterdir())) > len(with_log) > 1
    store = MessageStore.open(str(root))
    copies_ = {
        row["msgId"]: row["physicalOffset"]
        for batch in store.queue("RMQ_SYS_TRANS_HALF_TOPIC", 0).read(
            start=360, columns=("msgId", "physicalOffset")
        )
        for row in batch.to_pylist()
    }
    named = {
        row["msgId"]: row["preparedTransactionOffset"]
        for row in rows_in(store, "msgId", "preparedTransactionOffset", topic="Orders")
    }
    assert named == copies_
    assert len(named) == 360
    check(root, lambda message: "commit", BORN_MS + 2 * MINUTE)
    assert len(visible(root)) == 360
    assert checker_offsets(root) == (720, 1)


def test_a_commit_to_a_topic_that_is_not_written_to_does_not_hold_up_the_others(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A", "B"])
    add_halves(root, ["C"], stored={"REAL_TOPIC": "%LMQ%light"})
    assert check(root, lambda message: "commit", BORN_MS + MINUTE) == 3
    assert states(root) == {"A": "committed", "B": "committed", "C": "pending"}


def test_an_unknown_half_is_asked_every_interval_and_discarded_after_fifteen_checks(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    times = []

    def answer(message: HalfMessage) -> str | None:
        times.append(message.check_times)
        return None

    now = BORN_MS + 6000
    for _ in range(40):
        now += 15_000
        check(root, answer, now)
    assert times == list(range(15))
    assert visible(root, "TRANS_CHECK_MAX_TIME_TOPIC") == ["A"]
    assert states(root) == {"A": "discarded"}
    assert checker_offsets(root)[0] == 16
    with pytest.raises(OptionError, match="discarded"):
        transaction.decide(str(root), commit=["A"])
    assert visible(root) == []


def test_a_half_that_is_too_old_is_discarded_and_counted(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A"])
    assert check(root, lambda message: "commit", BORN_MS + 72 * 60 * MINUTE + 1) == 1
    assert visible(root) == []
    assert property_of(root, "TRANSACTION_CHECK_TIMES", "TRANS_CHECK_MAX_TIME_TOPIC") == [("A", "1")]


def test_a_half_with_its_own_immunity_time_is_stored_again_without_a_question(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", [])
    _add_immune(root, "A", 120)
    asked: list[int] = []

    def answer(message: HalfMessage) -> str | None:
        asked.append(message.check_times)
        return "commit"

    assert check(root, answer, BORN_MS + 10_000) == 1
    assert check(root, answer, BORN_MS + 45_000) == 1
    assert asked == []
    assert [value for _, value in property_of(root, "TRAN_PREPARED_QUEUE_OFFSET")] == [None, "0", "0"]
    assert check(root, answer, BORN_MS + 120_000) == 1
    assert visible(root) == ["A"]
    assert asked == [2]


def test_a_half_that_was_decided_under_its_first_offset_is_passed(tmp_path: Path) -> None:
    """A producer decides by the first offset, also after the broker has stored the message again."""
    root = half_store(tmp_path / "s", [])
    _add_immune(root, "A", 120)
    check(root, lambda message: None, BORN_MS + 10_000)
    op_message(root, [0])
    for later in (45_000, 125_000, 160_000):
        assert check(root, lambda message: "commit", BORN_MS + later) == 0
    assert visible(root) == []
    assert checker_offsets(root) == (2, 2)  # the second op message lists the second copy


def test_the_checker_passes_decided_halves_only_up_to_the_first_that_waits(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A", "B", "C", "D"])
    decide(root, commit=["A"], rollback=["B"])
    decide(root, commit=["D"])
    assert checker_offsets(root) == (None, None)
    check(root, lambda message: None, BORN_MS + 3000)
    assert checker_offsets(root) == (2, 1)  # C is young: D's op message waits
    add_halves(root, ["E"], born_ms=BORN_MS + 4000)
    check(root, lambda message: "commit", BORN_MS + 7000)
    assert checker_offsets(root) == (4, 2)  # E is young
    assert visible(root) == ["A", "C", "D"]


def test_an_error_of_the_function_is_no_decision(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = half_store(tmp_path / "s", ["A"])
    assert check(root, lambda message: str(1 / 0), BORN_MS + MINUTE) == 1
    assert "ZeroDivisionError" in caplog.text
    assert states(root) == {"A": "pending"}
    with pytest.raises(OptionError, match="'commit', 'rollback' or None for A, found 'maybe'"):
        check(root, lambda message: "maybe", BORN_MS + 2 * MINUTE)


def _add_immune(root: Path, name: str, seconds: int) -> None:
    add_halves(root, [name], properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": str(seconds)})


def test_the_checker_is_an_extra_service_of_a_turn(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", ["A", "B"])
    checker = transaction.checker(lambda message: "commit" if message.msg_id == "A" else None)
    (young,) = run_once(str(root), ["schedule"], BORN_MS + 1000, extra=[checker], apply=True).to_pylist()[1:]
    assert (young["service"], young["due"], young["done"]) == ("transaction", 0, 0)
    assert young["nextDue"].timestamp() * 1000 == BORN_MS + 6000
    (due,) = run_once(str(root), ["schedule"], BORN_MS + 7000, extra=[checker], apply=True).to_pylist()[1:]
    assert (due["due"], due["done"], due["lateMs"]) == (2, 2, 1000)
    assert due["nextDue"].timestamp() * 1000 == BORN_MS + 37_000
    assert visible(root) == ["A"]


# ---- the check of half messages ----------------------------------------------------------------------------


_PRE_BLANK = bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(8)


def commit(message: HalfMessage) -> str:
    return "commit"


def test_the_places_of_lost_half_messages_are_passed(tmp_path: Path) -> None:
    """More of them than a check reads first. A recovery with --salvage writes such units."""
    root = half_store(tmp_path / "s", [f"{place:02}" for place in range(50)])
    _lose(root, 2, 45)
    (turn,) = run_once(
        str(root), ["schedule"], BORN_MS + 5000, extra=[transaction.checker(commit)], apply=True
    ).to_pylist()[1:]
    assert turn["nextDue"].timestamp() * 1000 == BORN_MS + 6000
    assert check(root, commit, BORN_MS + MINUTE) == 7
    assert visible(root) == ["00", "01", "45", "46", "47", "48", "49"]
    assert checker_offsets(root)[0] == 50


def test_a_queue_that_ends_in_lost_half_messages_is_checked_to_its_end(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", [f"{place:02}" for place in range(50)])
    append(
        root, numbered("Other", 0, 1)
    )  # a log that ends in a half message would show that entries are lost
    _lose(root, 0, 50)
    assert check(root, commit, BORN_MS + MINUTE) == 0
    (turn,) = run_once(
        str(root), ["schedule"], BORN_MS + MINUTE, extra=[transaction.checker(commit)], apply=True
    ).to_pylist()[1:]
    assert turn["nextDue"] is None
    assert checker_offsets(root)[0] == 50


def test_a_check_before_a_crash_is_known_after_retention(tmp_path: Path) -> None:
    """The crash comes after the commit and before the checker's first offsets are written."""
    root = half_store(tmp_path / "s", [])
    for part in range(6):
        add_halves(root, [f"{part}-{place}" for place in range(60)])
    assert check(root, commit, BORN_MS + MINUTE) == 360
    (root / "config/consumerOffset.json").unlink()
    (root / "config/consumerOffset.json.bak").unlink(missing_ok=True)
    min(root.joinpath("commitlog").iterdir()).unlink()
    assert check(root, commit, BORN_MS + 2 * MINUTE) == 0
    assert len(visible(root)) == 360


@pytest.mark.parametrize("topic", ["x" * 300, "é" * 100], ids=["long", "many bytes"])
def test_a_commit_to_a_topic_that_is_too_long_does_not_hold_up_the_others(
    topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = half_store(tmp_path / "s", ["A"])
    add_halves(root, ["C"], stored={"REAL_TOPIC": topic})
    add_halves(root, ["D"])
    assert check(root, commit, BORN_MS + MINUTE) == 3
    assert "cannot be committed and is checked again" in caplog.text
    assert states(root) == {"A": "committed", "C": "pending", "D": "committed"}
    for minute in range(2, 18):
        check(root, commit, BORN_MS + minute * MINUTE)
    assert states(root) == {"A": "committed", "C": "discarded", "D": "committed"}


def test_a_half_message_with_no_room_for_the_count_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its properties have nearly 32,767 bytes, and a check adds TRANSACTION_CHECK_TIMES."""
    root = half_store(tmp_path / "s", ["A"])
    add_halves(root, ["C"], properties={"big": "x" * 32640})
    add_halves(root, ["D"])
    assert check(root, commit, BORN_MS + MINUTE) == 3
    assert "offset 1 cannot be stored again and is discarded" in caplog.text
    assert states(root) == {"A": "committed", "C": "discarded", "D": "committed"}
    assert visible(root, "TRANS_CHECK_MAX_TIME_TOPIC") == ["C"]


def _lose(root: Path, start: int, stop: int) -> None:
    """Makes the units [start, stop) of the half queue those of lost messages."""
    (file,) = (root / "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0").iterdir()
    overwrite(file, start * CQ_UNIT.itemsize, _PRE_BLANK * (stop - start))
