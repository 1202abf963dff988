"""Queue entries and key hashes of stored messages by kernels, beside the scalar oracle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import store_format
from store_format import kernels
from store_format.consumequeue.dispatch import QueueRules, QueueTable
from store_format.layouts import INDEX_UNIT
from store_format.message import sysflag
from store_format.message.locate import UnitRefs
from store_format.names import QueueKey
from tests.store_format.kernels.test_walk import BASE, units_of
from tests.support import oracle, oracle_units, strategies
from tests.support.oracle import Message
from tests.support.rows import unit_refs


def _refs(data: bytes, starts: list[int]) -> UnitRefs:
    positions = np.array(starts, np.int64)
    sizes = np.diff(np.append(positions, len(data)))
    return unit_refs(data, BASE, positions, sizes)


def _is_whole(*texts: str | None) -> bool:
    """Whether no byte of the texts was malformed."""
    return all(text is None or "\ufffd" not in text for text in texts)


@settings(max_examples=25)
@given(st.lists(strategies.messages(), min_size=1, max_size=4))
def test_the_entries_are_those_that_the_oracle_expects(messages: list[Message]) -> None:
    data, starts, placed = units_of(messages)
    names: list[QueueKey] = []

    def rules(queue: QueueKey) -> QueueRules:
        names.append(queue)
        return QueueRules(len(names) - 1, 3, BASE, int(queue[0] == "SCHEDULE_TOPIC_XXXX"))

    table = QueueTable(rules)
    for _ in range(2):  # the second time all queues are known
        entries, odd = table.entries(_refs(data, starts))
        queued = [i for i, message in enumerate(placed) if message.sys_flag & 0xC in (0x0, 0x8)]
        assert odd.tolist() == [i for i in queued if not _is_whole(placed[i].properties.get("TAGS"))]
        plain = [placed[i] for i in queued if i not in odd.tolist()]
        assert [(*names[row[0]], *row[1:]) for row in entries.tolist()] == [
            (
                *(m.topic, m.queue_id, m.queue_offset, m.physical_offset, m.total_size),
                *(oracle.tags_code(m), m.store_timestamp, 1),
            )
            for m in plain
            if 3 <= m.queue_offset <= 2**63 - 1 - 2**15 and m.physical_offset > BASE
        ]


def test_unusual_messages_are_left_to_python() -> None:
    light = "INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x015\x02"
    cases = [
        (b"T", "a\x01b\x02", 0, False),
        (b"T", light, 0, True),
        (b"T", "TAGS\x01é\x02", 0, False),
        (b"T", "TAGS\x01\udcff\x02", 0, True),  # the byte ff
        (b"T", "\udcff\x01TAGS\x02", 0, False),
        (b"T", "", sysflag.INNER_BATCH | sysflag.NEED_UNWRAP, False),  # a broker takes its own offset
        (b"Odd", "", 0, True),
        (b"Unknown", "", sysflag.INNER_BATCH | sysflag.NEED_UNWRAP, True),
        (b"Unknown", "", sysflag.INNER_BATCH, False),
    ]
    data, starts, _ = units_of(
        [
            Message(topic, b"", text.encode(errors="surrogateescape"), sys_flag=flag)
            for topic, text, flag, _ in cases
        ]
    )
    table = QueueTable(lambda queue: QueueRules(0, 0, -1, {"Odd": 1, "Unknown": 2}.get(queue[0], 0)))
    entries, odd = table.entries(_refs(data, starts))
    assert odd.tolist() == [i for i, case in enumerate(cases) if case[3]]
    assert len(entries) == len(cases) - len(odd)


def test_more_queues_than_the_table_has_room_for() -> None:
    messages = [Message(b"T" * (n % 100 + 1), queue_id=n // 100) for n in range(3000)]
    data, starts, _ = units_of(messages)
    names: list[QueueKey] = []

    def rules(queue: QueueKey) -> QueueRules:
        names.append(queue)
        return QueueRules(len(names) - 1, 0, -1, 0)

    table = QueueTable(rules)
    for _ in range(2):
        entries, _ = table.entries(_refs(data, starts))
        assert entries[:, 0].tolist() == list(range(3000))
    assert names == [(message.topic, message.queue_id) for message in messages]


@settings(max_examples=25)
@given(st.lists(strategies.messages(), min_size=1, max_size=4), st.booleans())
def test_the_key_hashes_are_those_that_the_oracle_expects(messages: list[Message], tag_keys: bool) -> None:
    data, starts, placed = units_of(messages)
    refs = _refs(data, starts)
    count = len(placed)
    kinds, timestamps = np.full(count, 9, np.uint8), np.empty(count, np.int64)
    hashes, units = np.empty(len(data), np.int32), np.empty(len(data), np.int64)
    found = kernels.dispatch.index_keys(
        refs.buffer, refs.positions, refs.physical_offsets, refs.sizes, tag_keys, kinds, timestamps,
        hashes, units,
    )  # fmt: skip
    expected, wanted_kinds = [], []
    for i, message in enumerate(placed):
        keys = oracle.index_keys(message, tag_keys)
        is_odd = not _is_whole(*keys, message.topic)
        rolled_back = message.sys_flag & 0xC == 0xC
        wanted_kinds.append(2 if rolled_back else int(is_odd))
        if not is_odd:
            expected += [(i, oracle_units.index_key_hash(key)) for key in keys]
        assert rolled_back or timestamps[i] == message.store_timestamp
    assert kinds.tolist() == wanted_kinds
    assert list(zip(units[:found].tolist(), hashes[:found].tolist(), strict=True)) == expected


def test_a_hash_without_absolute_value_and_a_unit_that_does_not_fit() -> None:
    data, starts, _ = units_of([Message(b"TopicTest", b"", b"KEYS\x01aXA4ptp\x02")])
    refs = _refs(data, [*starts, 5])
    kinds, timestamps = np.empty(2, np.uint8), np.empty(2, np.int64)
    hashes, units = np.full(9, -1, np.int32), np.empty(9, np.int64)
    sizes = np.full(2, len(data))
    arguments = (refs.buffer, refs.positions, refs.physical_offsets, sizes, True, kinds, timestamps)
    assert kernels.dispatch.index_keys(*arguments, hashes, units) == 1
    assert (hashes[0], kinds.tolist()) == (0, [kernels.dispatch.PLAIN, kernels.dispatch.NOT_INDEXED])


def test_index_units_that_are_not_certainly_right() -> None:
    properties = b"UNIQ_KEY\x01u\x02KEYS\x01a b\x02TAGS\x01t\x02"
    cases = [Message(b"T", b"", properties), Message(b"T", b"", b"KEYS\x01\xff\x02")]
    data, starts, placed = units_of(cases)
    right = [(oracle_units.index_key_hash(key), BASE + starts[0]) for key in ("T#u", "T#a", "T#b", "T#T#t")]
    wrong = [
        (right[0][0] ^ 1, BASE + starts[0]),
        (oracle_units.index_key_hash("T#\ufffd"), placed[1].physical_offset),  # Python knows
        (right[0][0], BASE + starts[0] + 1),
        (right[0][0], BASE - 1),
        (right[0][0], BASE + len(data)),
        (right[0][0], 2**63 - 1),
        (right[0][0], -(2**63)),
    ]
    index = np.array([(*unit, 0, 0) for unit in (*right, *wrong)], INDEX_UNIT)
    rows, found = np.array([-1, *range(len(index)), 99]), np.empty(99, np.int64)
    offsets, message = np.unique(index["physical_offset"].astype(np.int64), return_inverse=True)
    # where these offsets would be in the bytes
    places, sizes = offsets - BASE, np.full(len(offsets), placed[0].total_size)
    sizes[offsets == placed[1].physical_offset] = placed[1].total_size
    count = kernels.dispatch.doubtful_keys(
        index.view(np.uint8), rows, np.concatenate([[0], message, [0]]), np.frombuffer(data, np.uint8),
        places, sizes, np.empty(9, np.int32), found,
    )  # fmt: skip
    assert found[:count].tolist() == list(range(len(right), len(index)))


# ---- the kernels are loaded where they pay, and nowhere else -----------------------------------------------


_WITHOUT_KERNELS = [
    "import rmq_spark.cli.main",
    "import rmq_spark.plan.batch, rmq_spark.plan.scan",
    "import store_format; from store_format import kernels; assert not kernels.ready(100)",
]


@pytest.mark.parametrize("statement", _WITHOUT_KERNELS)
@pytest.mark.process
def test_an_import_of_the_project_loads_no_compiler(statement: str) -> None:
    check = f"{statement}; import sys; print({{'numba', 'llvmlite'}} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.process
def test_some_thousand_rows_load_the_kernels_without_numba() -> None:
    check = (
        "import sys; from store_format import kernels; print(*map(kernels.ready, [5000, 5000, 5000, 0, 1])); "
        "kernels.walk.follow; print('llvmlite' in sys.modules, 'numba' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert found.stdout == "False False True True True\nTrue False\n", found.stderr


@pytest.mark.process
@pytest.mark.slow
def test_one_process_compiles_while_all_read_on(tmp_path: Path) -> None:
    """And nobody waits for it: the processes that come later find the kernels."""
    source = Path(store_format.__file__).parent
    shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    check = (
        "from store_format import kernels; kernels.MODULES = ('patch', 'search'); "
        "print(*map(kernels.ready, (200_000, 99_000, 2000, 1000)), flush=True); input(); "
        "print(kernels.ready())"
    )
    nothing_kept = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": "", "PYTHONPATH": ""}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", check], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=nothing_kept,
        )
        for _ in range(3)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "False False False False\n"
    deadline = time.monotonic() + 100
    while len(list((tmp_path / "store_format/kernels/__pycache__").glob("*.kernel"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    found = [process.communicate("\n") for process in processes]
    assert [out for out, _ in found] == ["True\n"] * 3
    assert sorted(bool(error) for _, error in found) == [False, False, True]
    assert "compiling the loops that read messages: once for this installation" in "".join(
        error for _, error in found
    )


def test_a_module_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = kernels.no_such_kernels
    assert str(caught.value) == "no kernels of the name no_such_kernels"
