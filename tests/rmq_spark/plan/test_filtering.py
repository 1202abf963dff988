"""Filters at work in a scan, without Spark: colliding hashes, the extension of the consume queue, and what
never is decoded.

The store is made here: one queue whose messages have tags of equal Java hashes, plain tags codes and
addresses side by side.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError
from store_format.java.text import java_hash
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.reads import read
from tests.support.rows import placed

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
    data, stored = placed(messages, 0)
    units, ext = b"", b""
    for i, message in enumerate(stored):
        code = oracle.tags_code(message)
        if extended and i % 2:
            unit = oracle.cq_ext_unit(code, message.store_timestamp, b"")
            code, ext = oracle.cq_ext_address(len(ext)), ext + unit
        units += oracle.cq_unit(message.physical_offset, message.total_size, code)
    files = {"commitlog": data.ljust(LOG_SIZE, b"\0"), "consumequeue/T/0": units.ljust(20 * 20, b"\0")}
    if extended:
        files["consumequeue_ext/T/0"] = ext.ljust(1024, b"\0")
    return put(root, files)


def put(root: Path, files: dict[str, bytes]) -> Path:
    """The first file of each directory."""
    for name, content in files.items():
        (root / name).mkdir(parents=True)
        (root / name / oracle.file_name(0)).write_bytes(content)
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
    data, stored = placed(messages, 0)
    units = b"".join(oracle.cq_unit(message.physical_offset, message.total_size, 0) for message in stored)
    return put(root, {"commitlog": data.ljust(LOG_SIZE, b"\0"), "consumequeue/T/0": units.ljust(400, b"\0")})


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
