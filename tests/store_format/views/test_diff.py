"""The comparison of stores: copies are equal whatever their files look like, each planted difference is
found, and memory is bounded.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rmq_spark
from benchmarks.fill import Filling, fill
from store_format import MessageStore, kernels
from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import OptionError
from store_format.message.columns import DecodeOptions
from store_format.names import is_system_topic
from store_format.read.store import read_pieces
from store_format.read.tolerance import Tolerance
from store_format.views import diff_parts
from store_format.views.diff import StoreDiff, diff_stores
from store_format.views.diff_parts import KINDS, RecordParts
from store_format.views.message_digests import READ, RECORD, MessageDigests
from tests.support import goldens, oracle
from tests.support.cli_runs import ROOT
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.small_store import write_small_store
from tests.support.staged import append, make_store, messages_of, numbered

OTHER_SIZES = StoreSettings("broker-b", 1 << 19, 20 * 50, 70, 300)
GOLDENS = ("basic-4.9.7", "basic-5.5.0")
Rows = list[dict[str, Any]]


def diff(a: Path, b: Path) -> StoreDiff:
    return MessageStore.open(str(a)).diff(MessageStore.open(str(b)))


def rows_of(found: StoreDiff, *names: str) -> Rows:
    with found:
        return found.to_table().select(["difference", *names]).to_pylist()


def producers_messages(root: Path) -> list[Message]:
    """The messages of a store that are in queues of no system topic."""
    return [each for each in messages_of(root) if not is_system_topic(each.topic) and each.sys_flag & 12 != 4]


def with_properties(message: Message, change: Callable[[dict[str, str]], dict[str, str]]) -> Message:
    return replace(message, properties_bytes=oracle.encode_properties(change(dict(message.properties))))


def with_property(message: Message, name: str, value: str) -> Message:
    return with_properties(message, lambda properties: properties | {name: value})


def store_of(root: Path, messages: Iterable[Message], settings: StoreSettings = OTHER_SIZES) -> Path:
    append(make_store(root, settings), [*messages])
    return root


# ---- equal stores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", goldens.NAMES)
def test_a_copy_is_equal(golden: Golden, copy_of: Golden, name: str) -> None:
    roots = [[root for root, _ in goldens.brokers(name, store(name)).values()] for store in (golden, copy_of)]
    a, b = ([MessageStore.open(str(root), unfiled_queues="read") for root in each] for each in roots)
    with diff_stores(a, b) as found:
        assert found.is_equal
        assert found.counts == dict.fromkeys(KINDS, 0)
        assert found.messages[0] == found.messages[1] > 0
        assert found.to_table().num_rows == 0


# by hand: what brokers add or leave out
_OF_BROKERS = (
    "__CRC32#",
    "MSG_REGION",
    "TRACE_ON",
    "CLUSTER",
    "WAIT",
    "INNER_BASE",
    "INNER_MULTI_QUEUE_OFFSET",
)


def as_another_broker(message: Message) -> Message:
    """The message as a broker of another version stores it, in another queue, and with a plain body."""

    def change(properties: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in properties.items() if name not in _OF_BROKERS}
        return {"CLUSTER": "another", "MSG_REGION": "far", **dict(reversed(kept.items()))}

    body, codec = oracle.decompress(message.body, message.sys_flag), 0x701
    moved = replace(message, body=body, sys_flag=message.sys_flag & ~codec, queue_id=message.queue_id ^ 1)
    return with_properties(replace(moved, store_host=("10.9.8.7", 1234)), change)


@pytest.mark.parametrize("name", GOLDENS)
def test_another_broker_makes_no_difference(golden: Golden, tmp_path: Path, name: str) -> None:
    messages = producers_messages(golden(name))
    b = store_of(tmp_path / "b", map(as_another_broker, reversed(messages)))
    with diff(golden(name), b) as found:
        assert found.is_equal
        assert found.messages == (len(messages),) * 2
        ids = sum("UNIQ_KEY" in message.properties for message in messages)
        assert found.counts == dict.fromkeys(KINDS, 0) | {"moved": ids}
        moved = found.to_table().to_pylist()
    assert len(moved) == ids > 100
    for row in moved:
        assert row["queueIdB"] == row["queueIdA"] ^ 1
        assert row["brokerNameB"] == "broker-b"
    assert any(each.sys_flag & 1 for each in messages) or name == "basic-4.9.7"  # compressed ones


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_a_compressed_body_is_the_body(tmp_path: Path, codec: int) -> None:
    plain = numbered("T", 0, 40, body_size=2000)
    squeezed = [
        replace(each, body=oracle.compress(each.body, codec), sys_flag=1 | codec << 8) for each in plain
    ]
    assert diff(store_of(tmp_path / "a", plain), store_of(tmp_path / "b", squeezed)).is_equal


# ---- planted differences -----------------------------------------------------------------------------------

# the change of a message -> the columns that differ
CHANGES: dict[str, Callable[[Message], Message]] = {
    "topic": lambda each: replace(each, topic_bytes=b"Elsewhere"),
    "body": lambda each: replace(each, body=b"another body", sys_flag=each.sys_flag & ~0x701),
    "flag": lambda each: replace(each, flag=each.flag ^ 1),
    "bornTimestamp": lambda each: replace(each, born_timestamp=each.born_timestamp + 1),
    "bornHost": lambda each: replace(each, born_host=(each.born_host[0], each.born_host[1] ^ 1)),
    "reconsumeTimes": lambda each: replace(each, reconsume_times=each.reconsume_times + 1),
    "properties.color": lambda each: with_property(each, "color", "red"),
    "properties.TAGS": lambda each: with_property(each, "TAGS", "another"),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_each_planted_difference_is_found(golden: Golden, tmp_path: Path, name: str) -> None:
    messages = producers_messages(golden(name))
    with_ids = [i for i, each in enumerate(messages) if "UNIQ_KEY" in each.properties]
    places = dict(zip([*CHANGES, "lost", "twice", "moved"], with_ids[5::7], strict=False))
    changed = {places[field]: change(messages[places[field]]) for field, change in CHANGES.items()}
    stored = [changed.get(i, each) for i, each in enumerate(messages)]
    at = places["moved"]
    stored[at] = replace(stored[at], queue_id=stored[at].queue_id ^ 1)
    stored.append(stored[places["twice"]])
    stored.append(replace(numbered("Orders", 1, 1)[0], flag=9))
    del stored[places["lost"]]
    b = store_of(tmp_path / "b", stored)
    found = rows_of(diff(golden(name), b), "fields", "msgId", "copiesA", "copiesB")

    def row(kind: str, place: int, copies: tuple[int, int], *fields: str) -> dict[str, Any]:
        id_ = messages[place].properties["UNIQ_KEY"]
        values = (kind, list(fields) or None, id_, *copies)
        return dict(zip(("difference", "fields", "msgId", "copiesA", "copiesB"), values, strict=True))

    expected = [row("changed", places[field], (1, 1), field) for field in CHANGES]
    expected += [row("onlyInA", places["lost"], (1, 0)), row("moreInB", places["twice"], (1, 2))]
    expected += [row("moved", places["moved"], (1, 1))]
    added = {"difference": "onlyInB", "fields": None, "msgId": "U0000001", "copiesA": 0, "copiesB": 1}
    assert found[-1] == added
    assert sorted(found, key=str) == sorted([*expected, added], key=str)


def test_a_change_of_the_topic_names_both(tmp_path: Path) -> None:
    messages = numbered("T", 0, 3)
    other = [*messages[:2], replace(messages[2], topic_bytes=b"U")]
    found = diff(store_of(tmp_path / "a", messages), store_of(tmp_path / "b", other))
    names = ("fields", "topic", "addressA", "addressB")
    expected = ("changed", ["topic"], "T", "T/2@0", "U/2@0")
    assert [tuple(row.values()) for row in rows_of(found, *names)] == [expected]


def test_a_message_without_an_id_is_not_paired(tmp_path: Path) -> None:
    one = replace(numbered("T", 0, 1)[0], properties_bytes=b"")
    other = [replace(one, body=b"other"), replace(one, queue_id=3)]
    found = diff(store_of(tmp_path / "a", [one]), store_of(tmp_path / "b", other))
    assert rows_of(found, "queueIdB") == [{"difference": "onlyInB", "queueIdB": 0}]
    assert diff(tmp_path / "b", tmp_path / "a").counts == dict.fromkeys(KINDS, 0) | {"onlyInA": 1}


def test_an_id_pairs_messages_of_one_topic_first(tmp_path: Path) -> None:
    """A retry has the id of the message: neither takes the place of the other."""
    one = numbered("T", 0, 1)[0]
    retry = replace(one, topic_bytes=b"Retries", reconsume_times=1)
    a = store_of(tmp_path / "a", [one, retry])
    b = store_of(tmp_path / "b", [replace(retry, flag=2), replace(one, flag=2)])
    assert [tuple(row.values()) for row in rows_of(diff(a, b), "addressA", "addressB", "fields")] == [
        ("changed", "T/0@0", "T/0@0", ["flag"]),
        ("changed", "Retries/0@0", "Retries/0@0", ["flag"]),
    ]


def test_a_second_message_of_an_id_is_missing_on_the_other_side(tmp_path: Path) -> None:
    """As a dead letter that was stored again: howto-migrate.md says so."""
    one = numbered("T", 0, 1)[0]
    again = replace(one, reconsume_times=2)
    a, b = store_of(tmp_path / "a", [one]), store_of(tmp_path / "b", [one, again])
    assert [row["addressB"] for row in rows_of(diff(a, b), "addressB")] == ["T/0@1"]
    assert diff(a, b).counts["onlyInB"] == 1
    c = store_of(tmp_path / "c", [replace(one, flag=2), again])
    found = diff(a, c).counts
    assert (found["changed"], found["onlyInB"]) == (1, 1)


def test_copies_are_counted(tmp_path: Path) -> None:
    one, two, three = (replace(each, queue_id=0) for each in numbered("T", 0, 3))
    a = store_of(tmp_path / "a", [one, one, one, two, three, three])
    b = store_of(tmp_path / "b", [one, two, two, replace(three, queue_id=1), three, numbered("T", 9, 1)[0]])
    found = diff(a, b)
    counts = {"onlyInB": 1, "moved": 1, "moreInA": 2, "moreInB": 1}
    assert found.counts == dict.fromkeys(KINDS, 0) | counts
    names = ("copiesA", "copiesB", "queueOffsetA", "queueOffsetB", "queueIdB")
    assert [tuple(row.values()) for row in rows_of(found, *names)] == [
        ("moreInA", 3, 1, 0, None, None),
        ("moved", 2, 2, 4, 0, 1),
        ("moreInB", 1, 2, None, 1, 0),
        ("onlyInB", 0, 1, None, 1, 1),
    ]


def test_stores_of_a_cluster_are_one_side(tmp_path: Path) -> None:
    messages = numbered("T", 0, 50)
    whole = store_of(tmp_path / "whole", messages)
    parts = [store_of(tmp_path / name, messages[i::2]) for i, name in enumerate("xy")]
    stores = [MessageStore.open(str(root)) for root in parts]
    assert MessageStore.open(str(whole)).diff(stores).is_equal
    assert not MessageStore.open(str(whole)).diff(stores[0]).is_equal


def test_a_path_is_no_open_store(tmp_path: Path) -> None:
    root = str(store_of(tmp_path / "a", numbered("T", 0, 5)))
    found = f"diff: expected an open store, found {root!r}; give "
    stores = (MessageStore.open(root), rmq_spark.open(root))
    for store, opener in zip(stores, ("MessageStore", "rmq_spark"), strict=True):
        assert isinstance(store, MessageStore)
        for other in (root, [root], [store, root]):
            with pytest.raises(OptionError, match=re.escape(f"{found}{opener}.open({root!r})")):
                store.diff(other)  # type: ignore[arg-type] # what people type
        with pytest.raises(OptionError, match=re.escape(f"give {opener}.open({root!r})")):
            store.diff(Path(root))  # type: ignore[arg-type] # what people type
        with store.diff(store) as same, store.diff([store]) as listed:
            assert (same.is_equal, listed.is_equal) == (True, True)


def test_topics_are_chosen(tmp_path: Path) -> None:
    a = store_of(tmp_path / "a", numbered("T", 0, 5) + numbered("%RETRY%g", 0, 5))
    b = store_of(tmp_path / "b", numbered("T", 0, 5) + numbered("U", 0, 1))
    one, two = MessageStore.open(str(a)), MessageStore.open(str(b))
    assert one.diff(two).counts["onlyInB"] == 1
    assert one.diff(two, topics=["T"]).is_equal
    found = one.diff(two, include_system_topics=True)
    assert (found.counts["onlyInA"], found.counts["changed"]) == (4, 1)


def test_what_is_damaged_is_left_out_and_counted(golden: Golden, tmp_path: Path) -> None:
    store = golden("basic-5.5.0")
    last = producers_messages(store)[0]
    copy = goldens.flipped(
        store, tmp_path / "b", last.physical_offset + last.total_size - len(last.properties_bytes) - 9
    )
    found = diff(store, copy)
    assert found.unread == (0, 1)
    assert found.counts["onlyInA"] == 1
    assert not found.is_equal
    assert rows_of(found, "physicalOffsetA") == [
        {"difference": "onlyInA", "physicalOffsetA": last.physical_offset}
    ]


# ---- digests -----------------------------------------------------------------------------------------------


def _sip_words(key: tuple[int, int], words: Sequence[int]) -> tuple[int, int]:
    """SipHash-1-3 with 128 bits, as the paper and the reference code describe it, of whole words."""
    mask = 2**64 - 1

    def turned(value: int, bits: int) -> int:
        return (value << bits | value >> 64 - bits) & mask

    v = [
        int.from_bytes(text) ^ key[i % 2]
        for i, text in enumerate((b"somepseu", b"dorandom", b"lygenera", b"tedbytes"))
    ]
    v[1] ^= 0xEE

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[1] = turned(v[1], 13) ^ v[0]
            v[0] = turned(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = turned(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = turned(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = turned(v[1], 17) ^ v[2]
            v[2] = turned(v[2], 32)

    for each in words:
        v[3] ^= each
        rounds(1)
        v[0] ^= each
    v[2] ^= 0xEE
    rounds(3)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(3)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def _words(*texts: bytes) -> list[int]:
    filled = b"".join(text.ljust(-len(text) // 8 * -8, b"\0") for text in texts)
    return np.frombuffer(filled, "<u8").tolist()


def test_the_kernels_make_siphash() -> None:
    kernels.load()
    key, texts = (
        (0x0123456789ABCDEF, 0xFEDCBA9876543210),
        [b"x" * size for size in (0, 1, 7, 8, 9, 63, 64, 200)],
    )
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    found = np.empty(2 * len(texts), np.uint64)
    keys = np.array(key, np.uint64)
    data = np.frombuffer(b"".join(texts), np.uint8)
    kernels.digests.digests(data, offsets, keys, found)
    expected = [_sip_words(key, [len(text), *_words(text)]) for text in texts]
    assert list(map(tuple, found.reshape(-1, 2).tolist())) == expected
    maps, skipped = np.array([0, 3, 4], np.int32), np.array([False, True, False, False, *[False] * 4])
    sums = np.empty(4, np.uint64)
    kernels.digests.map_digests(data, offsets, data, offsets, skipped, maps, keys, sums)
    entries = [_sip_words(key, [len(text) << 32 | len(text), *_words(text, text)]) for text in texts]
    both = [sum(entries[i][word] for i in (0, 2)) % 2**64 for word in (0, 1)]
    assert list(map(tuple, sums.reshape(-1, 2).tolist())) == [tuple(both), entries[3]]


def test_ranges_outside_of_the_bytes_have_no_digest() -> None:
    kernels.load()
    found = np.full(6, 7, np.uint64)
    offsets = np.array([-1, 2, 9, 3], np.int32)
    kernels.digests.digests(np.zeros(4, np.uint8), offsets, np.zeros(2, np.uint64), found)
    assert found.tolist() == [0] * 6


def test_plain_and_compiled_digests_are_equal_for_the_same_messages(golden: Golden, tmp_path: Path) -> None:
    kernels.load()
    roots = [golden("edge-5.5.0"), golden("basic-5.5.0"), write_small_store(tmp_path / "small").root]
    plain, compiled = MessageDigests(0), MessageDigests(0)
    plain._digests, compiled._digests = plain._plain, compiled._compiled
    pairs, count = set(), 0
    for root in roots:
        queues = MessageStore.open(str(root)).queues()
        pieces = [(queue, queue.piece()) for queue in queues] * 2
        tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
        for batch in read_pieces(pieces, DecodeOptions(READ), tolerance):
            one, two = plain.records(batch, 0), compiled.records(batch, 0)
            for name in ("place", "copies"):
                assert (one[name] == two[name]).all()
            names = ["low", "high", "id"]
            pairs |= set(zip(one[names].tolist(), two[names].tolist(), strict=True))
            count += len(batch)
    assert len({first for first, _ in pairs}) == len({second for _, second in pairs}) == len(pairs)
    assert len(pairs) * 2 <= count


# ---- bounded memory ----------------------------------------------------------------------------------------


def _records(*messages: tuple[int, int, int, int]) -> np.ndarray[Any, np.dtype[np.void]]:
    """Records of (digest, id, queue, store)."""
    found = np.zeros(len(messages), RECORD)
    found["copies"] = 1
    for record, (digest, id_, queue, store) in zip(found, messages, strict=True):
        record["low"], record["high"], record["id"] = digest << 60, digest, id_ << 60
        record["place"]["queue"], record["place"]["store"] = queue, store
    return found


def test_copies_count_though_equal_messages_left_before(tmp_path: Path) -> None:
    """Pairs that are read soon after another leave at once; a third copy, or a move, may come later."""
    parts = RecordParts(8, 1)
    parts.put(_records((1, 1, 0, 0), (2, 2, 0, 0), (3, 3, 0, 0), (4, 4, 0, 0)), 0)
    parts.put(_records((1, 1, 0, 1), (2, 2, 0, 1), (3, 3, 0, 1), (4, 4, 7, 1)), 1)
    parts.put(_records((2, 2, 5, 0)), 0)
    parts.put(_records((1, 1, 0, 1), (5, 3, 0, 1), (2, 2, 6, 1)), 1)
    found = np.concatenate([*parts.differences()])
    rows = {(KINDS[row["kind"]], int(row["copies_a"]), int(row["copies_b"])) for row in found}
    assert rows == {("moreInB", 1, 2), ("moved", 2, 2), ("moved", 1, 1), ("onlyInB", 0, 1)}
    assert len(found) == 4


def _planted_sides(root: Path) -> tuple[Path, Path]:
    """Two stores with differences of each kind, of messages with ids, without, with copies, and of one id."""
    messages = numbered("T", 0, 300) + numbered("U", 0, 100)
    plain = [replace(each, properties_bytes=b"") for each in numbered("T", 500, 200)]
    hot = [with_property(each, "UNIQ_KEY", "one id") for each in numbered("T", 800, 200)]
    changed = [CHANGES["flag"](each) if i % 50 == 7 else each for i, each in enumerate(messages)]
    a = [*messages, *plain, *hot, *[messages[3]] * 150]
    b = [*changed[20:], *plain[:-5], *hot[:-10], *numbered("U", 900, 7), *[messages[3]] * 40]
    return store_of(root / "a", a), store_of(root / "b", b)


def test_parts_on_the_disk_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _planted_sides(tmp_path)
    with diff(a, b) as found:
        expected, counts = found.to_table(), found.counts
    assert min(counts[kind] for kind in ("onlyInA", "onlyInB", "changed", "moreInA")) > 0
    held = tmp_path / "held"
    held.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(held))
    monkeypatch.setattr(diff_parts, "HELD_BYTES", 3000)
    monkeypatch.setattr("store_format.views.diff.PART_BYTES", 500)
    monkeypatch.setattr(diff_parts, "PART_BYTES", 1 << 20)
    with diff(a, b) as found:
        assert len([*held.iterdir()]) == 1  # of the differences; that of the messages is gone
        assert (found.to_table(), found.counts) == (expected, counts)
    assert [*held.iterdir()] == []


def test_too_many_messages_of_one_id_are_compared_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = _planted_sides(tmp_path)
    counts = diff(a, b).counts
    monkeypatch.setattr(diff_parts, "HELD_BYTES", 3000)
    monkeypatch.setattr(diff_parts, "PART_BYTES", 2000)
    with diff(a, b) as found:
        assert found.counts == counts
        assert not found.is_equal
    with diff(a, a) as found:
        assert found.is_equal


_MEASURED = """
import resource, sys
from itertools import islice
from store_format import MessageStore, kernels

kernels.load()
a, b = map(MessageStore.open, sys.argv[1:])
with a.diff(b) as found:
    rows = sum(batch.num_rows for batch in islice(found.batches(), 20))
    print(sum(found.counts.values()), rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(600)
def test_two_large_stores_need_little_memory(tmp_path: Path) -> None:
    """All messages are equal, then all have changed: records and differences are on the disk."""
    messages = 1_500_000
    for seed in (1, 2):
        fill(tmp_path / str(seed), Filling(messages=messages, body_size=64, seed=seed))
    for other, differences in ((1, 0), (2, messages)):
        stores = [str(tmp_path / "1"), str(tmp_path / str(other))]
        command = [sys.executable, "-c", _MEASURED, *stores]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=300)
        counted, rows, used = map(int, done.stdout.split())
        assert (counted, rows > 0) == (differences, differences > 0)
        assert used < 500_000_000
