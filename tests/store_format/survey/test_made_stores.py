"""Small stores as brokers leave them, and what happened to their files: made_stores.txt has the rules, the
stores (`made_and_harmed` reads the words), and what readers, a search, `verify` and recoveries say of each.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.diagnose.problems import Diagnosis, verdict
from store_format.errors import CorruptStoreError, OptionError, StoreError
from store_format.message.columns import arrow_schema, decode_options_of
from store_format.read.store import Queue, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.store import MessageStore
from store_format.survey.fates import Unfiled
from tests.support.referee.made import BrokerStore, made_and_harmed
from tests.support.transcripts import Transcript

STORES = Transcript(Path(__file__).with_name("made_stores.txt"))
_NOTHING = ("nothing has to be done", "next: nothing")
_COLUMNS = ("topic", "queueId", "queueOffset", "physicalOffset")


@pytest.mark.parametrize("question", STORES.questions)
def test_a_made_store(tmp_path: Path, question: str, caplog: pytest.LogCaptureFixture) -> None:
    _, words, *more = question.split(" | ")
    store = made_and_harmed(tmp_path / "store", words, *more)
    strict = _read(store, store.root)
    warned = [f"warned: {text}" for text in caplog.messages]
    around = _read(store, store.root, skips=True)
    if not strict.startswith("asks"):
        assert _read_at_once(store) == re.sub(r"\S+ none(; |$)", "", around).strip("; ")
    searched = _search(store, strict)
    found = diagnose(str(store.root))
    said = _verified(found)
    # without what follows the first sentence of the advice
    damage = [". ".join(str(each).split(". ")[:2]) for each in found.of("damage")]
    told = [
        f"read: {strict}",
        *warned,
        *([f"read around damage: {around}"] if around != strict else []),
        *([f"found: {searched}"] if searched != around else []),
        f"verify: {said}",
        *(f"{each}{f'; and {len(damage) - 1} more' * (len(damage) > 1)}" for each in damage[:1]),
    ]
    changed: dict[str, list[str]] = {}
    for label, is_copy in (("recovered", False), ("salvaged", True)):
        text = _recovered(store, store.root.with_name(label), (strict, around), said, is_copy=is_copy)
        if text != "the same; sound":
            changed.setdefault(text, []).append(label)
    told += [f"{', '.join(labels)}: {text}" for text, labels in changed.items()]
    STORES.check(question, re.sub(f"{tmp_path}/[a-z]+", "STORE", "\n".join(told)))


def _numbers(store: BrokerStore, batches: list[pa.RecordBatch]) -> str:
    """By queue the numbers of the messages, and the queue offset of one that claims another."""
    known = {each.physical_offset: (f"{number}", each) for number, each in enumerate(store.messages)}
    queues: dict[str, list[str]] = {}
    for row in pa.Table.from_batches(batches, arrow_schema(_COLUMNS)).to_pylist():
        number, message = known[row["physicalOffset"]]
        at = "" if row["queueOffset"] == message.queue_offset else f"@{row['queueOffset']}"
        queues.setdefault(f"{row['topic']}-{row['queueId']}", []).append(number + at)
    return "; ".join(f"{queue} {' '.join(numbers)}" for queue, numbers in sorted(queues.items()))


def _read(store: BrokerStore, root: Path, *, skips: bool = False, unfiled: Unfiled | None = None) -> str:
    """The messages of each queue, or why it cannot be read."""
    opened = MessageStore.open(str(root), unfiled_queues=unfiled)
    try:
        queues = opened.queues()
    except OptionError:
        return f"asks; with unfiledQueues=read {_read(store, root, skips=skips, unfiled='read')}"
    return "; ".join(_messages_of(store, opened.queue(*queue.key), skips=skips) for queue in queues)


def _read_at_once(store: BrokerStore) -> str:
    """The messages of all queues, which a Spark task may read in one pass over the commitlog."""
    opened = MessageStore.open(str(store.root))
    queues = [opened.queue(*queue.key) for queue in opened.queues()]
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    pieces = [(queue, queue.piece()) for queue in queues]
    return _numbers(store, list(read_pieces(pieces, decode_options_of(_COLUMNS, True), tolerance)))


def _messages_of(store: BrokerStore, queue: Queue, *, skips: bool) -> str:
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False) if skips else Tolerance()
    try:
        batches = list(read_pieces([(queue, queue.piece())], decode_options_of(_COLUMNS, True), tolerance))
    except StoreError as error:
        where = str(error).partition(f"{queue.store.path}/")[2] or str(error)
        return f"{queue.topic}-{queue.queue_id} fails: {where}"
    return _numbers(store, batches) or f"{queue.topic}-{queue.queue_id} none"


def _search(store: BrokerStore, strict: str) -> str:
    """What a search for all messages finds around damage, and an error at damage that no read has."""
    opened = MessageStore.open(str(store.root), unfiled_queues="read" if strict.startswith("asks") else None)
    try:
        opened.find(since=0)
    except CorruptStoreError as error:
        fails = "" if str(error).partition(f"{store.root}/")[2] in strict else f"; fails: {error}"
    else:
        fails = "; does not fail" if " fails: " in strict else ""
    table = opened.find(since=0, columns=_COLUMNS, on_damage="DROPMALFORMED").table.select(_COLUMNS)
    return _numbers(store, table.sort_by("queueOffset").to_batches()) + fails


def _recovered(store: BrokerStore, root: Path, reads: tuple[str, str], said: str, *, is_copy: bool) -> str:
    """What a recovery of a copy does, what is read afterwards, and what `verify` did not say before."""
    if not is_copy:
        shutil.copytree(store.root, root)
    conf = store.root.with_name("broker.conf")
    conf.write_text("".join(f"{key}={value}\n" for key, value in store.conf.items()))
    source, into = (store.root, str(root)) if is_copy else (root, None)
    try:
        table = recover(str(source), into=into, salvage=is_copy, broker_conf=str(conf)).apply()
    except StoreError as error:
        return f"refused: {error}"
    usual = ("end", "copy", "create", "rebuild") if is_copy else ("end", "rebuild")
    done = [f"{row['action']} {row['entries']}, " for row in table.to_pylist() if row["action"] not in usual]
    read, after = _read(store, root), _verified(diagnose(str(root)))
    if after.startswith("sound: ") and not set(after.split("; ")[1:]) - {*said.split("; "), *_NOTHING}:
        after = "sound"
    return (
        "".join(done) + f"{'the same' if read in reads else read}; {'as before' if after == said else after}"
    )


def _verified(found: Diagnosis) -> str:
    text, step = verdict(found)
    return f"{text}; next: {step}{' with the settings' * found.lacks_settings}"
