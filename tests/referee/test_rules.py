"""The rules find what they are there for: answers that are right but for one thing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.support.referee.answers import Answer
from tests.support.referee.rules import disagreements
from tests.support.referee.truth import Fate, Stored, Truth


def _truth(**fates: Fate) -> Truth:
    """Messages a to e of T-0, of these fates or kept; offset 5 is the next."""
    truth = Truth()
    for offset, name in enumerate("abcde"):
        message = Stored("T", 0, offset, 100 * offset, 100, name.encode(), (name,))
        truth.add(message)
        truth.fates[message] = fates.get(name, Fate.KEPT)
    truth.committed["G", "T", 0] = 2
    if fates:
        truth.differences.append("something is wrong")
    return truth


WHOLE, LOST, UNKNOWN = _truth(), _truth(c=Fate.LOST), _truth(c=Fate.UNKNOWN)
READ = Answer("a batch read", WHOLE, rows=WHOLE.rows)
READ_LOST = Answer("a batch read", LOST, rows=LOST.rows, warnings=("1 message lost",))
VERIFY = Answer("verify", WHOLE, text="sound: 5 messages readable, none lost", counts={"readable": 5})
VERIFY_LOST = Answer(
    "verify", LOST, text="damaged in 1 place: 4 messages readable, 1 message lost", counts={"readable": 4},
    code=3,
)  # fmt: skip
WRITE = Answer("a write", WHOLE, starts={("T", 0): 5}, counts={"overwritten": 0, "left": 0, "unserved": 0})

_OTHER = Counter({("T", 0, 9, "x"): 1})
_FIRST = Counter({WHOLE.messages[0].row: 1})


@pytest.mark.parametrize(
    "right",
    [
        READ,
        READ_LOST,
        replace(READ_LOST, rows=None, warnings=(), refusal="CorruptStoreError: here"),
        replace(READ, rows=Counter(), earlier=WHOLE.rows),
        Answer("find a", WHOLE, key="a", rows=_FIRST),
        VERIFY,
        VERIFY_LOST,
        WRITE,
        Answer("info", WHOLE, counts={"messages": 5}),
        Answer("lag", WHOLE, counts={"G T-0": 3}),
        Answer("a batch read", UNKNOWN, refusal="StoreError: was the topic deleted?"),
    ],
)
def test_a_right_answer_contradicts_nothing(right: Answer) -> None:
    assert disagreements([right]) == []


@pytest.mark.parametrize(
    ("right", "change", "sentence"),
    [
        (READ, {"bug": "IndexError: x"}, "ends with IndexError: x"),
        (READ, {"rows": WHOLE.rows - _FIRST}, "silently leaves out 1 of 5 whole messages"),
        (
            READ,
            {"rows": WHOLE.rows - _FIRST, "warnings": ("gone",)},
            "with a warning leaves out 1 of 5 whole messages",
        ),
        (READ, {"rows": WHOLE.rows + _OTHER}, "returns 1 messages that the store was never given"),
        (READ, {"rows": WHOLE.rows + _FIRST}, "returns 1 messages a second time"),
        (READ, {"earlier": _FIRST}, "returns 1 messages a second time"),
        (READ, {"refusal": "StoreError: x"}, "refuses a sound store: StoreError: x"),
        (READ_LOST, {"warnings": ()}, "does not say that 1 messages are lost"),
        (READ_LOST, {"rows": WHOLE.rows}, "returns 1 messages that are lost"),
        (READ_LOST, {"skips": True, "refusal": "StoreError: x"}, "refuses: StoreError: x"),
        (
            READ_LOST,
            {"warnings": ("T-0 offset 1: deleted (retention)",)},
            "says that retention has deleted T-0 offset 1, which is kept",
        ),
        (VERIFY, {"counts": {"readable": 4}}, "and 5 messages can be read"),
        (VERIFY, {"text": "damaged: 5 messages readable, 1 message lost"}, "and no message is lost"),
        (VERIFY_LOST, {"code": 0}, "ends with exit code 0, and 1 messages are lost"),
        (VERIFY_LOST, {"text": "sound: none lost"}, "and 1 messages are lost"),
        (VERIFY_LOST, {"text": "sound: 1 message lost"}, "and it is not: something is wrong"),
        (WRITE, {"starts": {("T", 0): 4}}, "gives T-0 the offset 4, and the next one was 5"),
        (WRITE, {"counts": {"overwritten": 2}}, "overwrites 2 valid entries of consume queues"),
        (WRITE, {"counts": {"left": 2}}, "leaves 2 entries of whole messages missing or wrong"),
        (WRITE, {"counts": {"unserved": 2}}, "leaves 2 messages in queues that topics.json does not have"),
        (Answer("info", LOST), {"counts": {"messages": 5}}, "counts 5 messages, and 4 can be read"),
        (
            Answer("lag", WHOLE),
            {"counts": {"G T-0": -1}},
            "says -1 for G in T-0, and 3 messages are unread",
        ),
        (
            Answer("a batch read", UNKNOWN, warnings=("1 left out",)),
            {"rows": UNKNOWN.rows},
            "does not ask about 1 messages that may belong to a deleted topic",
        ),
        (Answer("the advice 'x'", LOST), {"refusal": "no"}, "refuses: no"),
    ],
)
def test_a_wrong_answer_is_found(right: Answer, change: dict[str, Any], sentence: str) -> None:
    found = disagreements([replace(right, **change)])
    assert [text for text in found if text.endswith(sentence)], found


def test_answers_are_compared() -> None:
    export = Answer("export --skip-damage", LOST, skips=True, refusal="exit code 3: no")
    assert "verify says 4 messages readable, and export --skip-damage refuses" in disagreements(
        [VERIFY_LOST, export]
    )
    copy = replace(VERIFY_LOST, advice="rmqlog recover S --into N --salvage --broker-conf FILE")
    shown = Answer("recover", LOST, text="2 whole messages", advice="rmqlog recover S --apply")
    first, second = "rmqlog recover S --into N --salvage", "rmqlog recover S"
    assert disagreements([copy, shown]) == [
        f"verify names {first!r} as the next command, and recover {second!r}"
    ]
    assert disagreements([copy, replace(shown, advice=copy.advice)]) == []
    write = Answer("a write", LOST, refusal="StoreError: no")
    mended = [replace(READ_LOST, asker="a batch read after recover --apply"), Answer("recover --apply", LOST)]
    assert disagreements([write, *mended]) == ["a write refuses what recover mends: StoreError: no"]
    info = Answer("info", WHOLE, counts={"messages": 5}, text="a broker start will cut the commitlog at 7")
    cuts_nothing = replace(VERIFY, text=f"{VERIFY.text}; a broker start will cut nothing")
    (found,) = disagreements([info, cuts_nothing])
    assert found.startswith("info says 'a broker start will cut the commitlog at 7', and verify says")
