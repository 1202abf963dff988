"""Filters at work in a scan, without Spark: colliding hashes, the extension of the consume queue, and what
never is decoded.

The store is made here: one queue whose messages have tags of equal Java hashes, plain tags codes and
addresses side by side.
"""

from __future__ import annotations

import base64
import json
import logging
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.plan.batch import narrowed
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError
from store_format.files.read import files_at
from store_format.java.text import java_hash
from tests.rmq_spark.stream.test_positions import Stream
from tests.support import goldens, oracle, oracle_sql92
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.oracle_sql92 import Tree
from tests.support.reads import PLACE, Place, Row, copy_of, flip, read, told, told_places
from tests.support.store_files import write_files, write_log, write_queue

# "Aa" and "BB" have one hash, "AaBB" and "BBAa" another; "f5a5a608" has that of no tag at all, which is 0.
TAGS = ["Aa", "BB", None, "AaBB", "BBAa", "f5a5a608", "red", "Aa", "", "BB"]
PRICES = ["1", "2", None, "x", "5", "6.5", "7", "8", "9", "10"]
LOG_SIZE = 4096


def write(root: Path, *, extended: bool = False) -> Path:
    """The store; where `extended`, every second unit of the queue holds an address
    (enableConsumeQueueExt).
    """
    messages = []
    for i, (tag, price) in enumerate(zip(TAGS, PRICES, strict=True)):
        properties = [("TAGS", tag), ("price", price)]
        raw = oracle.encode_properties([(name, value) for name, value in properties if value])
        messages.append(Message(b"T", b"body%d" % i, raw, 0, i))
    units, ext = b"", b""
    for i, message in enumerate(write_log(root, messages, LOG_SIZE)):
        code = oracle.tags_code(message)
        if extended and i % 2:
            unit = oracle.cq_ext_unit(code, message.store_timestamp, b"")
            code, ext = oracle.cq_ext_address(len(ext)), ext + unit
        units += oracle.cq_unit(message.physical_offset, message.total_size, code)
    write_files(root / "consumequeue/T/0", units, 20 * 20)
    if extended:
        write_files(root / "consumequeue_ext/T/0", ext, 1024)
    return root


def offsets(root: Path, **options: str) -> list[int]:
    return [row["queueOffset"] for row in read(root, columns="queueOffset", **options).rows()]


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("Aa", [0, 7]),
        ("BB", [1, 9]),
        ("BB || AaBB", [1, 3, 9]),
        ("BBAa||red", [4, 6]),
        ("f5a5a608", [5]),
        ("blue", []),
        ("aa", []),
        ("*", list(range(10))),
    ],
)
def test_equal_hashes_do_not_leak(
    tmp_path: Path, expression: str, expected: list[int], split_by: str, extended: bool
) -> None:
    assert java_hash("f5a5a608") == 0
    assert offsets(write(tmp_path, extended=extended), subExpression=expression, splitBy=split_by) == expected


def test_without_consume_queues_the_text_alone_decides(tmp_path: Path) -> None:
    root = write(tmp_path)
    shutil.rmtree(root / "consumequeue")
    assert offsets(root, subExpression="BB") == [1, 9]
    assert offsets(root, subExpression="TAGS = 'BB'", expressionType="SQL92") == [1, 9]


def lose_file(root: Path) -> None:
    shutil.rmtree(root / "consumequeue_ext")


def cut_file(root: Path) -> None:
    path = root / "consumequeue_ext/T/0" / oracle.file_name(0)
    path.write_bytes(path.read_bytes()[:30])


def zero_unit(root: Path) -> None:
    path = root / "consumequeue_ext/T/0" / oracle.file_name(0)
    path.write_bytes(bytes(20) + path.read_bytes()[20:])


@pytest.mark.parametrize(
    ("damage", "unknown"), [(lose_file, [1, 3, 5, 7, 9]), (cut_file, [3, 5, 7, 9]), (zero_unit, [1])]
)
def test_without_the_extension_tags_come_from_the_messages(
    tmp_path: Path, damage: Callable[[Path], None], unknown: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """DefaultMessageStore.getMessage of 5.5.0 hands out such messages for each tag: their tags code is null
    (CqUnit.getValidTagsCodeAsLong); its client compares the tags.
    """
    root = write(tmp_path, extended=True)
    damage(root)
    rows = list(read(root, columns="queueOffset,tags,tagsCode").rows())
    assert [row["tags"] or "" for row in rows] == [tag or "" for tag in TAGS]
    assert [row["queueOffset"] for row in rows if row["tagsCode"] is None] == unknown
    for tag in ("BB", "AaBB", "f5a5a608", "red"):
        assert offsets(root, subExpression=tag) == [i for i, each in enumerate(TAGS) if each == tag]
    assert offsets(root, subExpression="price > 4 AND TAGS = 'BB'", expressionType="SQL92") == [9]
    warning = f"consumequeue_ext/T/0: the tags codes of {len(unknown)} messages are lost"
    assert warning in caplog.text
    assert [each.severity for each in diagnose(str(root)) if "consumequeue_ext" in each.file] == ["warning"]


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("price > 4", [4, 6, 7, 8, 9]),  # x and 6.5 are no whole numbers
        ("price > 4.0", [4, 5, 6, 7, 8, 9]),
        ("price IS NULL OR TAGS IS NULL", [2, 8]),
        ("TAGS IN ('Aa', 'red') AND price <> 7", [0, 7]),
        ("price = 'x'", [3]),
        ("1 = 1", list(range(10))),
        ("NULL", []),
    ],
)
def test_conditions(tmp_path: Path, expression: str, expected: list[int], extended: bool) -> None:
    root = write(tmp_path, extended=extended)
    assert offsets(root, subExpression=expression, expressionType="SQL92") == expected
    assert offsets(
        root, subExpression=expression, expressionType="SQL92", startingOffsets='{"T":{"0":5}}'
    ) == [i for i in expected if i >= 5]


def test_failed_evaluations_are_told_once_a_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        offsets(write(tmp_path), subExpression="price > 4", expressionType="SQL92")
    said = "2 evaluations of subExpression failed; these messages are left out, as by a broker"
    assert [record.getMessage() for record in caplog.records if record.name == "rmq_spark.plan.scan"] == [
        said
    ]


def test_a_condition_with_a_key(tmp_path: Path) -> None:
    assert offsets(write(tmp_path), subExpression="price > 4", expressionType="SQL92", key="nobody") == []


# ---- bodies that cannot be opened --------------------------------------------------------------------------

BROKEN = b"\x78\x9cno zlib"


def write_broken(root: Path, colours: str) -> Path:
    """Ten messages and more, of which the upper-case ones have a compressed body that cannot be opened."""
    messages = []
    for i, colour in enumerate(colours):
        body, flag = (BROKEN, 0x301) if colour.isupper() else (b"fine", 0)
        messages.append(
            Message(b"T", body, oracle.encode_properties([("colour", colour.lower())]), 0, i, sys_flag=flag)
        )
    write_queue(root, write_log(root, messages, LOG_SIZE), 20)
    return root


def rows(root: Path, condition: str, mode: str) -> list[tuple[int, bytes | None, bool]]:
    columns = "queueOffset,body,_corrupt_record" if mode == "PERMISSIVE" else "queueOffset,body"
    options = {"expressionType": "SQL92", "subExpression": condition}
    found = read(root, columns=columns, mode=mode, **options).rows()
    return [(row["queueOffset"], row["body"], row.get("_corrupt_record") is not None) for row in found]


@pytest.mark.parametrize("colours", ["rbbRbbBrbb", "bbbbbbbrBR", "RrrrrrrrrB", "BRBRrbrbRR"])
@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
def test_only_bodies_that_are_wanted_are_opened(tmp_path: Path, colours: str, mode: str) -> None:
    """Few or many of them: what is wrong is told of the right message, of others nothing where they are
    few.
    """
    root = write_broken(tmp_path, colours)
    found = rows(root, "colour = 'r'", mode)
    fine = [(i, b"fine", False) for i, colour in enumerate(colours) if colour == "r"]
    assert [row for row in found if not row[2]] == fine
    corrupt = {row[0] for row in found if row[2]}
    wanted, broken = (
        {i for i, colour in enumerate(colours) if test(colour)} for test in (lambda c: c in "rR", str.isupper)
    )
    assert corrupt >= (wanted & broken if mode == "PERMISSIVE" else set())
    assert corrupt <= broken
    if len(wanted) < len(colours) / 2:
        assert corrupt <= wanted


def test_a_broken_body_that_is_wanted_fails_the_read(tmp_path: Path) -> None:
    root = write_broken(tmp_path, "bbbRbbbB")
    with pytest.raises(CorruptStoreError, match="a body compressed with ZLIB"):
        rows(root, "colour = 'r'", "FAILFAST")
    assert rows(root, "colour = 'g'", "FAILFAST") == []


# ---- reads and streams with SQL92 conditions ---------------------------------------------------------------


STORE = "basic-5.5.0"


def compare(symbol: str, name: str, literal: str) -> Tree:
    kind = "string" if literal.startswith("'") else "number"
    return symbol, ("property", name), (kind, literal.strip("'"))


REGION = ("in", ("property", "region"), ("eu-1", "eu-3"), False)
A = ("between", ("property", "a"), ("number", "10"), ("number", "600"), False)
CONDITIONS: dict[str, Tree] = {
    "a text": compare("=", "TAGS", "'Aa'"),
    "one of two texts": REGION,
    "none of two texts": (*REGION[:3], True),
    "numbers": A,
    "numbers that are sometimes no numbers": compare("<", "blank", "3"),  # ' x ' is an error, '0' a match
    "as doubles": compare(">=", "a", "220.0"),
    "absent": ("and", ("is null", ("property", "TAGS"), False), ("is null", ("property", "KEYS"), True)),
    "within": ("contains", ("property", "json"), '"n":1', False),
    "at the end": ("endswith", ("property", "BUYER_ID"), "2", False),
    "boolean": ("=", ("property", "WAIT"), ("boolean", False)),
    "all together": (
        "or",
        ("and", REGION, ("not", A)),
        ("startswith", ("property", "BUYER_ID"), "buyer1", False),
    ),
    "nothing": compare("=", "absent", "'x'"),
    "everything": ("not", ("=", ("number", "1"), ("number", "2"))),
}


def matches(condition: Tree) -> Callable[[Row], bool]:
    """Whether a broker delivers the row."""

    def keep(row: Row) -> bool:
        try:
            return oracle_sql92.evaluate(condition, row["properties"]) is True
        except oracle_sql92.EvaluationError:
            return False

    return keep


def where(condition: Tree) -> dict[str, Any]:  # Any: options, for a read as for a stream
    return {
        "expressionType": "SQL92",
        "subExpression": oracle_sql92.text(condition),
        "includeSystemTopics": True,
    }


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_over_properties(golden: Golden, name: str) -> None:
    condition = CONDITIONS[name]
    rows = told(STORE, matches(condition))
    total = len(goldens.expected_rows(STORE))
    assert (0 < len(rows) < total) == (name not in ("nothing", "everything"))
    assert read(golden(STORE), columns=PLACE, **where(condition)).places() == told_places(rows)


@pytest.mark.parametrize("store", ["batchcq-5.5.0", "rocksdb-5.5.0", "edge-5.5.0", "delay-tx-5.5.0"])
def test_in_batches_without_consume_queues_and_of_every_topic(golden: Golden, store: str) -> None:
    condition = ("or", REGION, compare("=", "TAGS", "'T1'"))
    rows = told(store, matches(condition))
    assert 10 < len(rows) < len(goldens.expected_rows(store))
    assert read(golden(store), columns=PLACE, **where(condition)).places() == told_places(rows)


def test_every_column_of_what_matches(golden: Golden) -> None:
    """Properties, bodies and the property asked for as a column are those of the rows that stay."""
    frame = read(
        golden(STORE),
        subscribe="Orders",
        columns="properties,region,queueId,queueOffset,body",
        propertyColumns="region",
        **where(REGION) | {"includeSystemTopics": False},
    )
    rows = told(STORE, lambda row: row["topic"] == "Orders" and matches(REGION)(row))
    found = {(row["queueId"], row["queueOffset"]): row for row in frame.rows()}
    assert len(found) == len(rows) > 100
    for row in rows:
        mine = found[row["queueId"], row["queueOffset"]]
        assert dict(mine["properties"]) == row["properties"]
        assert mine["region"] == row["properties"]["region"]
        assert mine["body"] == base64.b64decode(row["body"])


def test_in_one_pass_over_the_files(golden: Golden) -> None:
    frame = read(golden(STORE), columns=PLACE, splitBy="commitlog", **where(REGION))
    assert frame.places() == told_places(told(STORE, matches(REGION)))


def test_the_ends_of_a_read_are_places_in_queues_not_matches(golden: Golden) -> None:
    ends = {
        "startingOffsets": json.dumps({"Orders": {"*": 100}}),
        "endingOffsets": json.dumps({"Orders": {"*": 200}}),
    }
    frame = read(
        golden(STORE),
        columns=PLACE,
        subscribe="Orders",
        **ends,
        **where(REGION) | {"includeSystemTopics": False},
    )
    rows = told(
        STORE,
        lambda row: row["topic"] == "Orders" and 100 <= row["queueOffset"] < 200 and matches(REGION)(row),
    )
    assert frame.places() == told_places(rows) != []


def test_a_stream_goes_on_behind_what_did_not_match(golden: Golden) -> None:
    """Offsets pass over every message: with another condition a restart finds nothing left."""
    stream = Stream(golden(STORE), maxOffsetsPerTrigger=900, **where(REGION))
    found = [place for rows in iter(stream.step, None) for place in rows]
    assert sorted(found) == told_places(told(STORE, matches(REGION)))
    assert stream.start()["Orders"]["broker-a"] == {
        str(queue): 1 + max(row["queueOffset"] for row in rows) for queue, rows in by_queue("Orders")
    }
    stream.restart(**where(CONDITIONS["everything"]))
    assert stream.step() is None


def by_queue(topic: str) -> list[tuple[int, list[Row]]]:
    rows = told(STORE, lambda row: row["topic"] == topic)
    return [
        (queue, [row for row in rows if row["queueId"] == queue])
        for queue in sorted({row["queueId"] for row in rows})
    ]


# ---- reads of one key or id --------------------------------------------------------------------------------


def _read(root: Path, **options: str) -> tuple[list[Place], int]:
    """The places of the rows, and how many queue offsets the tasks look at."""
    frame = read(root, columns=PLACE, includeSystemTopics=True, **options)
    pieces = [piece for split in frame.splits for share in split.shares for piece in share.slices]
    return frame.places(), sum(piece.stop - piece.start for piece in pieces)


def _told(name: str, keep: Callable[[dict[str, Any]], bool]) -> list[Place]:
    return told_places(told(name, lambda row: not row["topic"].startswith("%LMQ%") and keep(row)))


def _has_key(key: str) -> Callable[[dict[str, Any]], bool]:
    return lambda row: (
        key == row["properties"].get("UNIQ_KEY") or key in row["properties"].get("KEYS", "").split(" ")
    )


def _is(row: dict[str, Any], unique: str | None = None, msg_id: str | None = None) -> bool:
    return row["properties"].get("UNIQ_KEY") == unique if unique is not None else row["msgId"] == msg_id


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["basic-5.5.0", "basic-4.9.7", "cleaned-5.5.0", "crash-5.5.0", "batchcq-5.5.0", "rocksdb-5.5.0"]
)
def test_keys_and_ids(golden: Golden, name: str) -> None:
    root, rows = golden(name), [row for row in goldens.expected_rows(name) if "UNIQ_KEY" in row["properties"]]
    for row in rows[:: len(rows) // 6]:
        unique, words = row["properties"]["UNIQ_KEY"], row["properties"].get("KEYS", "").split()
        for key in [unique, *words[:1]]:
            found, _ = _read(root, key=key)
            assert found == _told(name, _has_key(key))
            assert _read(root, key=key, subscribe=row["topic"])[0] == [
                place for place in found if place[0] == row["topic"]
            ]
        found, looked_at = _read(root, messageId=unique)
        assert found == _told(name, partial(_is, unique=unique))
        assert looked_at == len(found) or name == "rocksdb-5.5.0"
        if row["msgId"]:
            assert _read(root, messageId=row["msgId"])[0] == _told(name, partial(_is, msg_id=row["msgId"]))


def test_a_narrowed_read_looks_at_the_messages_alone(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    (row, *_) = told("basic-5.5.0", lambda row: row["topic"] == "Orders" and "KEYS" in row["properties"])
    key = row["properties"]["KEYS"].split()[0]
    found, looked_at = _read(root, key=key)
    assert looked_at == len(found) > 0
    assert _read(root, key=key, mode="PERMISSIVE")[1] > looked_at
    assert _read(root, key="nobody's") == ([], 0)
    first = f'{{"Orders":{{"{row["queueId"]}":{row["queueOffset"] + 1}}}}}'
    assert (row["topic"], row["queueId"], row["queueOffset"]) in found
    later, _ = _read(root, key=key, subscribe="Orders", startingOffsets=first)
    assert (row["topic"], row["queueId"], row["queueOffset"]) not in later


def test_light_queues_are_looked_at(golden: Golden) -> None:
    row = next(row for row in goldens.expected_rows("edge-5.5.0") if row["topic"].startswith("%LMQ%"))
    found, looked_at = _read(golden("edge-5.5.0"), subscribe=row["topic"], messageId=row["msgId"])
    assert (row["topic"], row["queueId"], row["queueOffset"]) in found
    assert looked_at > len(found) or looked_at == 1


def test_damage_elsewhere_is_no_matter_and_damage_here_is(golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, "basic-5.5.0", tmp_path)
    rows = told("basic-5.5.0", lambda row: row["topic"] == "Audit" and row["body"])
    victim, other = rows[5], rows[-5]
    flip(root, victim["physicalOffset"] + 90)
    unique = [row["properties"]["UNIQ_KEY"] for row in (victim, other)]
    assert _read(root, messageId=unique[1])[0] == [("Audit", other["queueId"], other["queueOffset"])]
    with pytest.raises(CorruptStoreError):
        _read(root, messageId=unique[0])
    assert _read(root, messageId=unique[0], mode="DROPMALFORMED")[0] == []


@pytest.mark.parametrize(
    ("offsets", "parts"),
    [
        ([], []),
        ([5], [(5, 6)]),
        ([7, 5, 6, 5], [(5, 8)]),
        ([1, 3, 4, 9, 10, 99], [(3, 5), (9, 10)]),
    ],
)
def test_narrowed(offsets: list[int], parts: list[tuple[int, int]]) -> None:
    piece = QueueSlice(QueueRange("t", 0, 0, 99, None), 3, 10)
    assert [(part.start, part.stop) for part in narrowed(piece, offsets)] == parts


# ---- which rows a read gives -------------------------------------------------------------------------------


PLAIN = ("Audit", "Metrics", "Orders")


# ---- topics and queues -------------------------------------------------------------------------------------

TOPICS: dict[str, tuple[dict[str, str | bool], Callable[[Row], bool]]] = {
    "nothing: no system topic": ({}, lambda row: row["topic"] in PLAIN),
    "includeSystemTopics": ({"includeSystemTopics": True}, lambda row: True),
    "subscribe one": ({"subscribe": "Orders"}, lambda row: row["topic"] == "Orders"),
    "subscribe two": ({"subscribe": "Orders, Audit"}, lambda row: row["topic"] in ("Orders", "Audit")),
    "subscribe a system topic":
        ({"subscribe": "SCHEDULE_TOPIC_XXXX"}, lambda row: row["topic"] == "SCHEDULE_TOPIC_XXXX"),
    "subscribe a retry topic":
        ({"subscribe": "%RETRY%CG_tags,Audit"}, lambda row: row["topic"] in ("%RETRY%CG_tags", "Audit")),
    "pattern": ({"subscribePattern": "(Ord|Aud).*"}, lambda row: row["topic"] in ("Orders", "Audit")),
    "pattern matches whole names": ({"subscribePattern": "Order"}, lambda row: False),
    "pattern with %": ({"subscribePattern": "%RETRY%.*"}, lambda row: row["topic"].startswith("%RETRY%")),
    "pattern of everything": ({"subscribePattern": ".*"}, lambda row: row["topic"] in PLAIN),
    "pattern of everything, system topics too":
        ({"subscribePattern": ".*", "includeSystemTopics": True}, lambda row: True),
    "assign":
        ({"assign": '{"Orders":[1,3]}'}, lambda row: row["topic"] == "Orders" and row["queueId"] in (1, 3)),
    "assign with the broker":
        ({"assign": '{"Orders":{"broker-a":[0]},"Metrics":[7]}'},
         lambda row: (row["topic"], row["queueId"]) in (("Orders", 0), ("Metrics", 7))),
    "a topic without messages": ({"subscribe": "TBW102"}, lambda row: False),
    "a topic without messages and one with":
        ({"subscribe": "BenchmarkTest,Audit"}, lambda row: row["topic"] == "Audit"),
}  # fmt: skip


@pytest.mark.parametrize("case", TOPICS)
def test_topics_and_queues(golden: Golden, case: str) -> None:
    options, keep = TOPICS[case]
    assert read(golden(STORE), columns=PLACE, **options).places() == told_places(told(STORE, keep))


def test_a_store_without_a_message_is_a_partition_without_a_row(tmp_path: Path) -> None:
    """Of no partition at all Spark makes one of its own (tests/spark/test_spark_facts.py)."""
    (tmp_path / "commitlog").mkdir()
    frame = read(tmp_path)
    assert frame.columns[:3] == ["topic", "flag", "body"]
    assert frame.parts() == [[]]


# ---- tags, keys, ids ---------------------------------------------------------------------------------------


# "Aa" and "BB" have one Java hash, which is all that a consume queue holds of a tag. The tags code of
# SCHEDULE_TOPIC_XXXX is a time: it may not decide.
@pytest.mark.parametrize(
    ("store", "expression"),
    [
        (STORE, "Aa||TagB"),
        (STORE, " 标签 || étiquette "),
        ("batchcq-5.5.0", "Aa"),
        ("rocksdb-5.5.0", "Aa"),
        ("edge-5.5.0", "Aa"),
        ("delay-tx-5.5.0", "TagA"),
    ],
)
def test_tags_are_compared_by_text(golden: Golden, store: str, expression: str) -> None:
    tags = {word.strip() for word in expression.split("||")}
    rows = told(store, lambda row: row["properties"].get("TAGS") in tags)
    assert len(rows) > 10
    found = read(golden(store), columns=PLACE, subExpression=expression, includeSystemTopics=True)
    assert found.places() == told_places(rows)


def has_key(row: Row, key: str) -> bool:
    return key in row["properties"].get("KEYS", "").split(" ") or row["properties"].get("UNIQ_KEY") == key


@pytest.mark.parametrize(
    "key", ["several", "b1", "7F00000123B25FFD2B276878DF600001", "sever", "key with several"]
)
def test_one_key(golden: Golden, key: str) -> None:
    rows = told(STORE, lambda row: row["topic"] in PLAIN and has_key(row, key))
    # a part of a word, and three words, are no key
    assert bool(rows) == (key not in ("sever", "key with several"))
    assert read(golden(STORE), columns=PLACE, key=key).places() == told_places(rows)


def test_one_message_by_each_kind_of_id(golden: Golden) -> None:
    rows = told(STORE, lambda row: row["topic"] in PLAIN)
    row = rows[len(rows) // 2]
    for identifier in (row["properties"]["UNIQ_KEY"], row["msgId"], row["msgId"].lower()):
        found = read(golden(STORE), columns=PLACE, messageId=identifier).places()
        assert found == told_places(
            other for other in rows if identifier.upper() in (other["properties"]["UNIQ_KEY"], other["msgId"])
        )
    (row, *_) = told("edge-5.5.0", lambda row: row["storeHost"].startswith("[") and row["queueOffset"] > 3)
    assert len(row["msgId"]) == 56  # of an IPv6 host
    assert read(golden("edge-5.5.0"), messageId=row["msgId"]).places() == told_places([row])
    assert read(golden(STORE), messageId="7F000001000078BF00000000FFFFFFFF").places() == []


# ---- several stores, and other places of the log -----------------------------------------------------------


def test_a_cluster_its_brokers_and_their_queues(golden: Golden) -> None:
    root = golden("cluster-5.5.0")
    rows = told("cluster-5.5.0", lambda row: row["topic"] == "Orders")
    expected = sorted((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)

    def found(path: Path | list[Path], **options: str) -> list[tuple[str, int, int]]:
        rows = read(path, columns="brokerName,queueId,queueOffset", **options).rows()
        return sorted((row["brokerName"], row["queueId"], row["queueOffset"]) for row in rows)

    assert found(root, subscribe="Orders") == expected
    assert found([root / "broker-b", root / "broker-a"], subscribe="Orders") == expected
    alone = [place for place in expected if place[0] == "broker-b"]
    assert found(root / "broker-b", subscribe="Orders") == alone
    late = {"startingOffsets": '{"Orders":{"broker-b":{"0":30}}}', "assign": '{"Orders":{"broker-b":[0]}}'}
    assert found(root, **late) == [("broker-b", 0, offset) for offset in range(30, 38)]


def test_a_name_of_ones_own(golden: Golden) -> None:
    start = '{"Audit":{"lab":{"0":350}}}'
    frame = read(golden(STORE), brokerName="lab", subscribe="Audit", startingOffsets=start)
    assert [row["brokerName"] for row in frame.rows()] == ["lab"]


def test_a_commitlog_on_two_disks(golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, STORE, tmp_path)
    disks = (tmp_path / "disk1", tmp_path / "disk2")
    for disk in disks:
        disk.mkdir()
    for i, file in enumerate(sorted((root / "commitlog").iterdir())):
        file.rename(disks[i % 2] / file.name)
    (root / "commitlog").rmdir()
    elsewhere = ",".join(map(str, disks))
    options: dict[str, str | bool] = {"includeSystemTopics": True, "columns": PLACE}
    options["storePathCommitLog"] = elsewhere
    assert read(root, **options).places() == told_places(told(STORE))
    shutil.rmtree(root / "consumequeue")
    assert read(root, **options).places() == told_places(told(STORE))


@pytest.mark.parametrize("has_rocksdict", [True, False])
def test_rocksdb_is_scanned_without_rocksdict(
    golden: Golden,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    has_rocksdict: bool,
) -> None:
    name = "rocksdb-5.5.0"
    if not has_rocksdict:
        monkeypatch.setitem(sys.modules, "rocksdict", None)
        files_at("/").databases.forget()
    start = '{"Orders":{"1":30}}'
    frame = read(golden(name), includeSystemTopics=True, columns=PLACE, startingOffsets=start)
    late = told(name, lambda row: (row["topic"], row["queueId"]) != ("Orders", 1) or row["queueOffset"] >= 30)
    with caplog.at_level(logging.WARNING):
        assert frame.places() == told_places(late)
    sentence = "has no consume queue files (RocksDB, or deleted): scanning its commitlog"
    assert (f"{golden(name)} {sentence}" in caplog.text) is not has_rocksdict
    assert ("run `pip install rocksdict`" in caplog.text) is not has_rocksdict
