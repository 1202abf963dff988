"""Damaged and hostile stores: right rows, or a StoreError that names file and byte; never another error, a
hang or a wrong row.

`UNPROTECTED` are the fields in which a flipped bit goes unnoticed, because no length, position or checksum of
the format covers them: a row may then differ in the columns they are shown in, and in no other.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from store_format import MessageStore
from store_format.diagnose import diagnose
from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StoreError, StoreNotFoundError
from store_format.message.columns import DecodeOptions
from store_format.read.log_reader import LogReader
from store_format.read.tolerance import Tolerance
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.oracle import Message
from tests.support.rows import ALL, BROKER, rows_of
from tests.support.small_store import FILE_SIZE, KINDS, SmallStore, field_at, write_small_store
from tests.support.staged import append, numbered
from tests.support.store_files import write_files, write_log, write_queue

pytestmark = pytest.mark.slow

Key = tuple[str, int]
Rows = dict[Key, list[dict[str, Any]]]

# Field of a message unit -> the columns that show it.
UNPROTECTED = {
    "flag": {"flag"},
    "born_timestamp": {"bornTimestamp", "bornTimestampMs"},
    "born_host": {"bornHost"},
    "store_timestamp": {"storeTimestamp", "storeTimestampMs"},
    "store_host": {"storeHost", "offsetMsgId", "msgId"},  # msgId where there is no UNIQ_KEY
    "reconsume_times": {"reconsumeTimes"},
    "prepared_transaction_offset": {"preparedTransactionOffset"},
    "properties": {"properties", "tags", "keys", "msgId"},
    # The compression bits say how the body is read. Those for IPv6 hosts move every field behind them, which
    # is noticed.
    "sys_flag": {"sysFlag", "body"},
    "body_crc": {"bodyCRC"},  # of an empty body, which has no sum
}


@pytest.fixture
def store(tmp_path: Path) -> SmallStore:
    return write_small_store(tmp_path / "store")


def read(root: Path, mode: str = "FAILFAST") -> tuple[Rows, Tolerance, StoreError | None]:
    """Rows of all queues, read together, up to the first error; what was dropped; and that error."""
    rows: Rows = {}
    tolerance = Tolerance(mode)
    try:
        store = MessageStore.open(str(root), broker_name=BROKER)
        queues = store.queues()
        reader = store.reader(DecodeOptions(ALL), tolerance)
        _collect(rows, reader.read([queue.piece() for queue in queues if queue.scanned is None]))
        scanned = {
            (queue.topic, queue.queue_id): queue.scanned for queue in queues if queue.scanned is not None
        }
        if scanned:
            pieces = [queue.piece() for queue in queues if queue.scanned is not None]
            stop = max(queue.physical_stop for queue in scanned.values())
            _collect(rows, LogReader(reader, pieces, scanned).read(store.log.min_offset, stop))
    except StoreError as error:
        return rows, tolerance, error
    return rows, tolerance, None


def _collect(rows: Rows, batches: Iterable[pa.RecordBatch]) -> None:
    for batch in batches:
        for row in rows_of(batch):
            rows.setdefault((row["topic"], row["queueId"]), []).append(row)


def check(rows: Rows, expected: Rows, told: bool, columns: set[str] = frozenset()) -> None:  # type: ignore[assignment] # an empty set
    """Every row is one of the expected, `columns` apart; if one is missing, somebody must have been told."""
    missing = 0
    for key, right in expected.items():
        at = {row["queueOffset"]: row for row in rows.get(key, [])}
        assert len(at) == len(rows.get(key, [])), f"{key}: an offset twice"
        for row in right:
            found = at.pop(row["queueOffset"], None)
            if found is None:
                missing += 1
                continue
            wrong = {name for name in ALL if found[name] != row[name]}
            assert wrong <= columns, (
                f"{key} {row['queueOffset']}: {[(name, found[name], row[name]) for name in wrong - columns]}"
            )
        assert not at, f"{key}: rows nobody wrote at {sorted(at)}"
    assert rows.keys() <= expected.keys()
    assert not missing or told, f"{missing} rows are missing, and nothing says so"


def check_told(error: StoreError | None) -> None:
    if isinstance(error, CorruptStoreError):
        assert error.file
        assert error.position >= 0


MODES = ("FAILFAST", "DROPMALFORMED")


def read_and_check(store: SmallStore, where: str, columns: set[str], mode: str) -> None:
    rows, tolerance, error = read(store.root, mode)
    check_told(error)
    try:
        check(rows, store.rows, error is not None or tolerance.dropped > 0, columns)
    except AssertionError as wrong:
        raise AssertionError(f"{where}: {wrong}") from wrong


def test_the_undamaged_store_gives_all_rows(store: SmallStore) -> None:
    rows, tolerance, error = read(store.root)
    assert error is None
    assert rows == store.rows
    assert tolerance.dropped == 0
    shutil.rmtree(store.root / "consumequeue")
    shutil.rmtree(store.root / "batchconsumequeue")
    assert read(store.root)[0] == store.rows


# ---- flipped bits ------------------------------------------------------------------------------------------


class Flips:
    """Flips a bit, and flips it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = path.read_bytes()
        self.file = os.open(path, os.O_WRONLY)

    def __enter__(self) -> Flips:
        return self

    def __exit__(self, *_: object) -> None:
        os.pwrite(self.file, self.data, 0)
        os.close(self.file)

    def each(self, bits: range) -> Iterator[tuple[int, int]]:
        """(byte, bit) while it is flipped."""
        for number in bits:
            byte, bit = divmod(number, 8)
            os.pwrite(self.file, bytes([self.data[byte] ^ 1 << bit]), byte)
            yield byte, bit
            os.pwrite(self.file, self.data[byte : byte + 1], byte)


def allowed_columns(name: str, message: Message, byte: int) -> set[str]:
    field = field_at(message, byte)
    if field == "body_crc" and message.body:
        return set()
    columns = set(UNPROTECTED.get(field, ()))
    if field == "properties" and name == "prepared":
        return set()
    if field == "topic" and name == "light":
        columns |= {"storedTopic"}  # seen from its light queues
    return columns


def flip_message(store: SmallStore, name: str, step: int) -> None:
    message = store.messages[name]
    path, first, size = store.unit_place(name)
    with Flips(path) as flips:
        for byte, bit in flips.each(range(8 * first + (first % step), 8 * (first + size), step)):
            where = f"{name}, byte {byte - first} ({field_at(message, byte - first)}), bit {bit}"
            read_and_check(store, where, allowed_columns(name, message, byte - first), MODES[bit % 2])


EVERY = pytest.param(1, marks=pytest.mark.whole, id="every")


@pytest.mark.process
@pytest.mark.parametrize("step", [pytest.param(31, id="some"), EVERY])  # each field of 4 bytes
@pytest.mark.parametrize("name", KINDS)
def test_flipped_bits_of_each_message(store: SmallStore, name: str, step: int) -> None:
    flip_message(store, name, step)


@pytest.mark.process
@pytest.mark.parametrize("step", [pytest.param(29, id="some"), EVERY])
@pytest.mark.parametrize(
    ("directory", "start"),
    [
        ("consumequeue/Orders/0", 0),
        ("consumequeue/Orders/0", 60),
        ("consumequeue/%LMQ%a/0", 0),
        ("batchconsumequeue/Batches/0", 0),
    ],
)
def test_flipped_bits_of_queue_entries(store: SmallStore, directory: str, start: int, step: int) -> None:
    path = store.root / directory / oracle.file_name(start)
    width = 46 if "batchconsumequeue" in path.parts else 20
    with Flips(path) as flips:
        for byte, bit in flips.each(range(0, 8 * len(flips.data), step)):
            columns = {"tagsCode"} if 12 <= byte % width < 20 else set()
            read_and_check(
                store, f"{path.relative_to(store.root)}, byte {byte}, bit {bit}", columns, MODES[bit % 2]
            )


# ---- cut files ---------------------------------------------------------------------------------------------


def cut_everywhere(store: SmallStore, path: Path, step: int) -> None:
    data = path.read_bytes()
    for size in [*range(0, len(data), step), len(data) - 1]:
        path.write_bytes(data[:size])
        read_and_check(store, f"{path.relative_to(store.root)} cut to {size} bytes", set(), MODES[size % 2])
    path.write_bytes(data)


CUT = [
    ("commitlog", 0, 97),
    ("commitlog", FILE_SIZE, 97),
    ("consumequeue/Orders/0", 0, 4),
    ("consumequeue/Orders/0", 60, 4),
    ("consumequeue/Parent/0", 0, 10),
    ("batchconsumequeue/Batches/0", 0, 23),
]


@pytest.mark.process
@pytest.mark.parametrize(("directory", "start", "step"), CUT)
def test_a_file_cut_at_many_places(store: SmallStore, directory: str, start: int, step: int) -> None:
    cut_everywhere(store, store.root / directory / oracle.file_name(start), step)


@pytest.mark.whole
def test_each_file_cut_all_over(store: SmallStore) -> None:
    for path in list(store.files()):
        cut_everywhere(store, path, 3 if path.parent.name == "commitlog" else 1)


def test_what_stands_before_the_cut_of_a_copied_log_is_read(store: SmallStore) -> None:
    path, first, size = store.unit_place("commit")
    os.truncate(path, first + size)  # in the last file; what follows is gone
    rows, tolerance, _ = read(store.root, "DROPMALFORMED")
    lost = {("Orders", 0): store.messages["crc property"].queue_offset}
    assert rows == {
        key: [row for row in right if row["queueOffset"] != lost.get(key)]
        for key, right in store.rows.items()
    }
    assert tolerance.dropped == 1
    (finding,) = MessageStore.open(str(store.root)).log.findings
    assert (
        str(finding)
        == f"{path} at byte {first + size}: expected a file of {FILE_SIZE} bytes, like the others, found "
        f"{first + size} bytes"
    )


def test_missing_parts(store: SmallStore) -> None:
    shutil.rmtree(store.root / "consumequeue" / "Orders")
    rows, _, error = read(store.root)  # a broker would not have these queues either
    assert error is None
    assert rows == {key: right for key, right in store.rows.items() if key[0] != "Orders"}
    shutil.rmtree(store.root / "commitlog")
    assert "is not a store root: expected a directory `commitlog` in it" in str(read(store.root)[2])
    (store.root / "commitlog").mkdir()
    rows, tolerance, error = read(store.root, "DROPMALFORMED")
    assert (rows, tolerance.dropped) == ({}, 0)
    assert "the commitlog's disk" in str(error)
    (store.root / "commitlog" / oracle.file_name(0)).touch()
    assert "the commitlog's disk" in str(read(store.root)[2])


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 4096, b"{", b"[1,2", b'{"topicConfigTable":7}', b"\xff\xfe", b"[" * 100_000]
)
def test_garbage_in_topics_json_does_not_hide_messages(store: SmallStore, content: bytes) -> None:
    """It names the broker, no more."""
    (store.root / "config" / "topics.json").write_bytes(content)
    rows, _, error = read(store.root)
    assert error is None
    assert rows == store.rows


# ---- absurd numbers ----------------------------------------------------------------------------------------

NUMBERS = [2**31 - 1, 2**31 - 2, -(2**31), -1, 0, 1, 90, 91, FILE_SIZE, FILE_SIZE * 2]


@pytest.mark.process
@pytest.mark.parametrize("value", NUMBERS)
def test_absurd_lengths(store: SmallStore, value: int) -> None:
    for name in ("plain", "v2", "batch"):
        message = store.messages[name]
        path, first, _ = store.unit_place(name)
        data = path.read_bytes()
        topic_at = 84 + 4 + len(message.body)
        for at in (0, 84, topic_at, topic_at + (2 if name == "v2" else 1) + len(message.topic_bytes)):
            path.write_bytes(
                data[: first + at] + value.to_bytes(4, "big", signed=True) + data[first + at + 4 :]
            )
            for mode in ("FAILFAST", "DROPMALFORMED"):
                rows, tolerance, error = read(store.root, mode)
                check_told(error)
                check(rows, store.rows, error is not None or tolerance.dropped > 0)
        path.write_bytes(data)


@pytest.mark.parametrize("physical", [2**63 - 1, -(2**63), -1, 2**62, FILE_SIZE * 2, FILE_SIZE * 2 - 1, 1])
@pytest.mark.parametrize("size", [2**31 - 1, -(2**31), 0, 91, 100])
def test_entries_that_point_nowhere(store: SmallStore, physical: int, size: int) -> None:
    path = store.root / "consumequeue" / "Orders" / "0" / oracle.file_name(0)
    data = path.read_bytes()
    path.write_bytes(data[:20] + oracle.cq_unit(physical, size, 0) + data[40:])
    rows, tolerance, error = read(store.root, "DROPMALFORMED")
    check(rows, store.rows, tolerance.dropped > 0 or error is not None)
    assert read(store.root)[2] is not None or rows == store.rows


def replace_queue(store: SmallStore, units: list[bytes], start: int = 0, topic: str = "Orders") -> Path:
    """The only file of queue 0 of the topic."""
    directory = store.root / "consumequeue" / topic / "0"
    shutil.rmtree(directory)
    return write_files(directory, b"".join(units), 60, start)


def test_a_queue_with_huge_offsets_is_as_long_as_it_is(store: SmallStore) -> None:
    start = 2**62 // 60 * 60
    replace_queue(store, [oracle.cq_unit(0, 100, 0)], start)
    found = MessageStore.open(str(store.root)).queue("Orders", 0)
    assert (found.min_offset, found.max_offset) == (start // 20, start // 20 + 1)
    assert isinstance(read(store.root)[2], CorruptStoreError)


@pytest.mark.timeout(20)
def test_batches_with_bases_of_2_to_the_60(store: SmallStore) -> None:
    path = store.root / "batchconsumequeue" / "Batches" / "0" / oracle.file_name(0)
    first = store.messages["batch"]
    units = [
        oracle.batch_cq_unit(first.physical_offset, first.total_size, 0, 1, base, 3)
        for base in (0, 2**60, 2**61)
    ]
    path.write_bytes(b"".join(units))
    rows, tolerance, _ = read(store.root, "DROPMALFORMED")
    assert rows["Batches", 0] == store.rows["Batches", 0][:3]
    assert tolerance.dropped == 2


def test_a_queue_that_points_at_messages_of_another(
    store: SmallStore, caplog: pytest.LogCaptureFixture
) -> None:
    other = store.messages["v6"]
    replace_queue(store, [oracle.cq_unit(other.physical_offset, other.total_size, 0)])
    rows, _, error = read(store.root)
    assert rows["Orders", 0] == store.rows["Orders", 0][:1]  # from the log
    assert error is None
    assert "lead to other messages, the first at offset 0 of Orders-0" in caplog.text


# ---- memory ------------------------------------------------------------------------------------------------


def one_queue_store(root: Path, messages: list[Message], file_size: int) -> None:
    stored = write_log(root, [replace(each, queue_offset=i) for i, each in enumerate(messages)], file_size)
    write_queue(root, stored, len(stored) + 1)


@pytest.mark.process
@pytest.mark.parametrize(
    "inflated", [pytest.param(20 << 20, id="allowed"), pytest.param(80 << 20, id="too large")]
)
def test_bombs_do_not_fill_the_memory(tmp_path: Path, inflated: int) -> None:
    """A dozen bodies of 20 MiB, or 80, in a file of a megabyte: one decode batch, were it not for what they
    inflate to.
    """
    body = zlib.compress(bytes(inflated), 9)
    one_queue_store(tmp_path, [Message(b"T", body, sys_flag=0x301)] * 12, 4 << 20)
    store = MessageStore.open(str(tmp_path))
    tolerance = Tolerance("DROPMALFORMED")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = []
    for batch in store.reader(DecodeOptions(("body",)), tolerance).read([store.queue("T", 0).piece()]):
        sizes += [len(value.as_buffer()) for value in batch["body"]]
        del batch
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert (sizes, tolerance.dropped) == (([inflated] * 12, 0) if inflated < 64 << 20 else ([], 12))
    assert grown < 200 << 20


def test_small_messages_with_all_columns_of_a_large_batch(tmp_path: Path) -> None:
    """32,767 messages in one unit of 720 KB: each has its own body, not the unit's."""
    body = oracle.encode_inner_batch([oracle.SubMessage(0, b"", b"")] * 32767)
    one_queue_store(tmp_path, [Message(b"T", body, sys_flag=0xC0)] * 2, 4 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = sum(batch.num_rows for batch in MessageStore.open(str(tmp_path)).scan(ALL))
    assert count == 2 * 32767
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < 400 << 20


# ---- hostile directories -----------------------------------------------------------------------------------

HOSTILE_NAMES = [
    b"..x",
    b"... ",
    b"a\nb",
    b"\x1b[31mred",
    b"a\tb",
    b"x" * 255,
    b"%s%n",
    b"'; DROP TABLE",
    "标签".encode(),
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_hostile_topic_names_are_topics_like_others(tmp_path: Path, name: bytes) -> None:
    magic = 0xDAA320AB if len(name) > 127 else 0xDAA320A7
    one_queue_store(tmp_path, [Message(name, b"x", magic=magic)], 1024)
    os.rename(tmp_path / "consumequeue" / "T", os.fsencode(tmp_path / "consumequeue") + b"/" + name)
    store = MessageStore.open(str(tmp_path))
    (queue,) = store.queues()
    assert queue.topic == name.decode()
    (batch,) = queue.read(columns=["topic", "body"])
    assert batch.to_pylist() == [{"topic": name.decode(), "body": b"x"}]
    (tmp_path / "commitlog" / oracle.file_name(0)).write_bytes(bytes(1024))
    with pytest.raises(CorruptStoreError) as caught:
        list(queue.read())
    assert str(caught.value).isprintable()
    with pytest.raises(StoreNotFoundError) as refused:
        store.snapshot()
    assert str(refused.value).isprintable()
    (tmp_path / "commitlog" / oracle.file_name(0)).write_bytes(b"no message".ljust(1024, b"\0"))
    os.truncate(f"{tmp_path}/consumequeue/{name.decode()}/0/{oracle.file_name(0)}", 41)
    (error,) = store.snapshot().damaged.values()
    assert str(error).isprintable()


EVIL = "T\x1b[2J\n\u202eb"
_ENTRY = 20


def _queue_file(root: Path, queue_id: int) -> Path:
    return root / "consumequeue" / EVIL / str(queue_id) / oracle.file_name(0)


def _write_entries(root: Path, queue_id: int, start: int, data: bytes) -> None:
    overwrite(_queue_file(root, queue_id), start * _ENTRY, data)


def _lose_newest(root: Path) -> None:
    _write_entries(root, 0, 8, bytes(2 * _ENTRY))


def _lose_middle(root: Path) -> None:
    _write_entries(root, 0, 4, bytes(2 * _ENTRY))


def _point_elsewhere(root: Path) -> None:
    _write_entries(root, 0, 4, _queue_file(root, 1).read_bytes()[4 * _ENTRY : 5 * _ENTRY])


def _lose_queue(root: Path) -> None:
    shutil.rmtree(_queue_file(root, 1).parent)


def _lose_topic(root: Path) -> None:
    """The store does not show whether the topic was deleted and created again."""
    shutil.rmtree(root / "consumequeue" / EVIL)
    (root / ".rmqlog" / "ledger.json").unlink()


def _lose_sizes(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / ".rmqlog")


def _compact(root: Path) -> None:
    path = root / "config" / "topics.json"
    value = json.loads(path.read_bytes())
    value["topicConfigTable"][EVIL]["attributes"] = {"cleanup.policy": "COMPACTION"}
    path.write_text(json.dumps(value))


def _lose_log_end(root: Path) -> None:
    """Consume queues point behind the end of the log."""
    path = root / "commitlog" / oracle.file_name(0)
    data = path.read_bytes()
    start = data.rindex(b"message 19 of") - 88
    path.write_bytes(data[:start].ljust(len(data), b"\0"))
    shutil.rmtree(root / ".rmqlog")


def _read_all(root: Path) -> None:
    for queue in MessageStore.open(str(root)).queues():
        list(queue.read())


def _write_more(root: Path) -> None:
    append(root, numbered(EVIL, 20, 2, queues=2))


def _write_unanswered(root: Path) -> None:
    append(root, numbered("U", 4, 1, queues=1))


def _read_unknown(root: Path) -> None:
    MessageStore.open(str(root)).queue("Nobody", 0)


def _diagnosed(root: Path) -> None:
    for problem in diagnose(str(root)):
        logging.getLogger("tests").warning("%s", problem)


HOSTILE_NAME_IN = {
    "a warning of newest entries": (_lose_newest, _read_all, "entries of their newest messages: "),
    "a warning of zeros": (_lose_middle, _read_all, "-0: 2 entries of the consume queue are zeros"),
    "a warning of wrong entries": (_point_elsewhere, _read_all, "the first at offset 4 of "),
    "a warning of a lost queue": (_lose_queue, _read_all, "no consume queue files: "),
    "a question to a reader": (_lose_topic, _read_all, "in no consume queue, and the store does not show"),
    "a question to a writer": (_lose_topic, _write_more, "in no consume queue, and the store does not show"),
    "a warning of a writer": (_lose_topic, _write_unanswered, "These messages stay in no consume queue"),
    "an error of unknown sizes": (_lose_sizes, _write_more, "has to be rebuilt from the commitlog"),
    "a warning of completed queues": (_lose_queue, _write_more, "lack entries of messages in the commitlog"),
    "a warning of a compacted topic": (_compact, _read_all, "compacted topics"),
    "a warning of a cut log": (_lose_log_end, _write_more, "point to messages behind this end"),
    "the topics there are": (_compact, _read_unknown, "the topics are "),
    "a problem": (_lose_queue, _diagnosed, "expected consume queue files of "),
    "a problem of a topic": (_compact, _diagnosed, "cleanup.policy=COMPACTION of "),
}


@pytest.mark.parametrize("place", HOSTILE_NAME_IN)
def test_a_hostile_topic_name_is_escaped_in(root: Path, caplog: pytest.LogCaptureFixture, place: str) -> None:
    damage, act, told = HOSTILE_NAME_IN[place]
    append(root, numbered(EVIL, 0, 10, queues=2) + numbered("U", 0, 4, queues=1))
    append(root, numbered(EVIL, 10, 10, queues=2))
    damage(root)
    texts = []
    try:
        act(root)
    except StoreError as error:
        texts.append(str(error))
    texts += [record.getMessage() for record in caplog.records]
    assert any(told in text and shown(EVIL) in text for text in texts), texts
    assert all(map(str.isprintable, texts)), texts


def test_names_that_are_no_utf_8(store: SmallStore) -> None:
    directory = store.root / "consumequeue"
    shutil.copytree(directory / "Parent", directory / os.fsdecode(b"Par\xffent"))
    opened = MessageStore.open(str(store.root), broker_name=BROKER)
    (error,) = opened.snapshot().damaged.values()
    assert str(error).endswith(r"Par\xffent/0 at byte 0: expected a topic's name in UTF-8, found other bytes")
    rows, _, failure = read(store.root)
    assert failure is None
    assert rows == store.rows


@pytest.mark.parametrize(
    "name", ["x", "-1", "00", "1.5", "٣", "2147483648", "99999999999999999999", " 1", "+1", "1_0"]
)
def test_directories_that_are_no_queue_are_passed_over(store: SmallStore, name: str) -> None:
    shutil.copytree(
        store.root / "consumequeue" / "Parent" / "0", store.root / "consumequeue" / "Parent" / name
    )
    rows, _, error = read(store.root)
    assert error is None
    assert rows == store.rows


LINKS = [
    "consumequeue/Orders",
    "consumequeue/Orders/0",
    f"consumequeue/Orders/0/{0:020d}",
    f"commitlog/{0:020d}",
    "batchconsumequeue/Batches",
]


@pytest.mark.parametrize("path", LINKS)
def test_links_below_the_root_level_are_refused(store: SmallStore, path: str) -> None:
    linked, moved = store.root / path, store.root.parent / "elsewhere"
    linked.rename(moved)
    linked.symlink_to(moved)
    rows, _, error = read(store.root)
    if path.endswith(f"Orders/0/{0:020d}"):  # the entries of a file that is no file are made from the log
        assert (error, rows) == (None, store.rows)
        return
    found = "a symbolic link, which is not followed below the root level"
    assert str(error) == f"{linked} at byte 0: expected a file or directory, found {found}"


@pytest.mark.parametrize("name", ["", "commitlog", "consumequeue", "batchconsumequeue", "config"])
def test_links_at_root_level_are_followed(store: SmallStore, name: str) -> None:
    linked, moved = store.root / name, store.root.parent / "elsewhere"
    linked.rename(moved)
    linked.symlink_to(moved)
    rows, _, error = read(store.root)
    assert error is None
    assert rows == store.rows


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "path",
    [
        f"consumequeue/Orders/0/{0:020d}",
        f"consumequeue/Parent/0/{0:020d}",
        f"commitlog/{0:020d}",
        "config/topics.json",
        "lock",
        "abort",
    ],
)
def test_a_pipe_in_place_of_a_file(store: SmallStore, path: str) -> None:
    place = store.root / path
    place.unlink(missing_ok=True)
    os.mkfifo(place)
    rows, tolerance, error = read(store.root, "DROPMALFORMED")
    check_told(error)
    check(rows, store.rows, error is not None or tolerance.dropped > 0)


@pytest.mark.parametrize(
    "path", ["consumequeue", "consumequeue/Orders", "batchconsumequeue", "commitlog", "config"]
)
def test_a_file_in_place_of_a_directory(store: SmallStore, path: str) -> None:
    shutil.rmtree(store.root / path)
    (store.root / path).write_bytes(b"x")
    rows, _, error = read(store.root)
    if path == "consumequeue/Orders":  # as any file among the topics: there are no such queues
        assert (error, rows) == (
            None,
            {key: right for key, right in store.rows.items() if key[0] != "Orders"},
        )
    else:
        check(rows, store.rows, error is not None)


@pytest.mark.parametrize(
    "path", ["lock", "abort", "checkpoint", f"consumequeue/Parent/0/{0:020d}", f"commitlog/{FILE_SIZE:020d}"]
)
def test_a_directory_in_place_of_a_file(store: SmallStore, path: str) -> None:
    (store.root / path).unlink(missing_ok=True)
    (store.root / path).mkdir()
    rows, tolerance, error = read(store.root, "DROPMALFORMED")
    check(rows, store.rows, error is not None or tolerance.dropped > 0)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("split_by", ["queue", "commitlog"])
def test_plans_of_hostile_queues_stay_small(store: SmallStore, split_by: str) -> None:
    """Offsets and sizes in entries are no reason for a trillion partitions."""
    first = store.messages["batch"]
    units = [
        oracle.batch_cq_unit(first.physical_offset, first.total_size, 0, 1, base, 3)
        for base in (0, 2**60, 2**61)
    ]
    (store.root / "batchconsumequeue" / "Batches" / "0" / oracle.file_name(0)).write_bytes(b"".join(units))
    replace_queue(store, [oracle.cq_unit(2**62, 2**31 - 1, 0)] * 3)
    for least in (1, 7, 2**31 - 1):
        options = parse_read_options(
            {"path": str(store.root), "splitBy": split_by, "minPartitions": str(least)}
        )
        assert 1 <= len(plan(options).splits) <= (8 if least <= 7 else 1000)
