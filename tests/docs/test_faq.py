"""docs/faq.md quotes what the code says: every class of error has its place, and every message of ours exists
and is of the class told.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.options.write_options import parse_write_options
from rmq_spark.produce.columns import topic_name
from rmq_spark.stream.stores import Losses
from rmq_spark.write.target import open_target
from store_format import MessageStore, errors
from store_format.errors import StoreError
from store_format.files.lock import StoreLock
from tests.support.doc_pages import ROOT, read_page
from tests.support.fixtures import Golden

OURS, OTHERS = (
    part for part in re.split(r"^## Messages of .*$", read_page("faq.md"), flags=re.MULTILINE)[1:]
)
STORE = "basic-5.5.0"


def _entries(part: str) -> dict[str, str]:
    """Heading -> what stands below it."""
    return dict(re.findall(r"^### (.*?)\n\n(.*?)(?=^### |\Z)", part, re.MULTILINE | re.DOTALL))


def _quotes(heading: str) -> list[str]:
    return [quote for _, quote in re.findall(r"(`{1,2})(.+?)\1(?!`)", heading)]


@cache
def _templates() -> list[str]:
    """Every text in the code, with `…` for what is filled in."""
    found = []
    for path in (
        path for package in ("store_format", "rmq_spark") for path in (ROOT / package).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def _pattern(quote: str) -> re.Pattern[str]:
    return re.compile(".*?".join(map(re.escape, quote.strip("… ").split("…"))), re.DOTALL)


MESSAGES = {
    quote: body
    for heading, body in _entries(OURS).items()
    if re.match(r"`\w+Error`", body)
    for quote in _quotes(heading)
}


def test_the_page_has_both_parts() -> None:
    assert len(MESSAGES) > 15
    assert len(_entries(OTHERS)) > 12
    assert all("rmqlog" in body for body in _entries(OTHERS).values())


def test_every_class_of_error_has_its_place() -> None:
    named = set(re.findall(r"`(\w+Error)`", OURS))
    assert set(errors.__all__) - {"StoreError"} <= named
    assert {name for name in named if not name.startswith("ModuleNotFound")} <= set(errors.__all__)


@pytest.mark.process
@pytest.mark.parametrize("quote", MESSAGES)
def test_the_code_says_it(quote: str) -> None:
    pattern = _pattern(quote)
    assert any(pattern.search(template) for template in _templates())


def _open(root: Path) -> None:
    MessageStore.open(str(root))


def _nothing_there(root: Path) -> None:
    _open(root / "elsewhere")


def _no_store(root: Path) -> None:
    _open(root.parent)


def _dledger(root: Path) -> None:
    (root.parent / "dledger" / "dledger-n0").mkdir(parents=True)
    _open(root.parent / "dledger")


def _unknown_option(root: Path) -> None:
    parse_read_options({"path": str(root), "subscription": "Orders"})


def _system_topic(root: Path) -> None:
    topic_name(b"SCHEDULE_TOPIC_XXXX")


def _overtaken(root: Path) -> None:
    queue = MessageStore.open(str(root)).queue("Orders", 0)
    losses = Losses(True)
    losses.begin(MessageQueue("Orders", "broker-a", 0), queue.min_offset - 5, queue)
    losses.report()


def _gone_back(root: Path) -> None:
    queue = MessageStore.open(str(root)).queue("Orders", 0)
    losses = Losses(True)
    losses.begin(MessageQueue("Orders", "broker-a", 0), queue.max_offset + 5, queue)
    losses.report()


def _flipped(root: Path) -> None:
    with (root / "commitlog" / f"{0:020}").open("r+b") as file:
        file.seek(361 + 88)  # the first byte of the body of Orders-0's first message
        file.write(b"?")
    list(MessageStore.open(str(root)).queue("Orders", 0).read(0, 1))


def _emptied(root: Path) -> None:
    list(MessageStore.open(str(root)).log.read(988979, 1 << 20))


def _locked(root: Path) -> None:
    with StoreLock(str(root)), StoreLock(str(root)):
        raise AssertionError("two writers")


def _full(root: Path) -> None:
    open_target(parse_write_options({"path": str(root), "topic": "T", "diskSpaceWarningLevelRatio": "0"}))


def _half_a_key(root: Path) -> None:
    parse_write_options({"path": str(root), "topic": "T", "txnAppId": "job"})


def _no_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    MessageStore.open(str(root)).snapshot()


RAISED: dict[str, Callable[[Path], None]] = {
    "is not a store root": _no_store,
    "does not exist": _nothing_there,
    "found no such directory": _dledger,
    "unknown option": _unknown_option,
    "RocketMQ's own": _system_topic,
    "retention deleted": _overtaken,
    "went back by": _gone_back,
    "at byte … CRC": _flipped,
    "at byte … empty": _emptied,
    "held by": _locked,
    "free some space": _full,
    "give both or neither": _half_a_key,
    "use survey()": _no_queues,
}


@pytest.mark.parametrize("words", RAISED)
def test_it_is_raised_as_it_is_quoted(words: str, copy_of: Golden) -> None:
    root = copy_of(STORE)
    with pytest.raises(StoreError) as raised:
        RAISED[words](root)
    (quote,) = (quote for quote in MESSAGES if words.split(" … ")[0] in quote)
    assert _pattern(quote).search(str(raised.value)), str(raised.value)
    assert type(raised.value).__name__ in MESSAGES[quote]
