"""How many bytes of a sparse store of 4 GiB, with an index file of 420 MB, an operation reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.recover import recover
from tests.support import oracle
from tests.support.oracle import Message

_FILE_SIZE = 1 << 30
_FILES, _MESSAGES = 4, 250  # messages of each file
_BODY = bytes(1000)
_READ = """
import os, sys
sizes, pread, preadv = [], os.pread, os.preadv
def counted_pread(*arguments):
    data = pread(*arguments)
    sizes.append(len(data))
    return data
def counted_preadv(*arguments):
    sizes.append(preadv(*arguments))
    return sizes[-1]
os.pread, os.preadv = counted_pread, counted_preadv
{code}
print(sum(sizes))
"""


def _write_log(directory: Path) -> None:
    """Files of full length with some messages each, and a BLANK that leads to the next file."""
    directory.mkdir(parents=True)
    for number in range(_FILES):
        start, data = number * _FILE_SIZE, b""
        for i in range(_MESSAGES):
            n = number * _MESSAGES + i
            data += oracle.encode_message(
                Message(
                    b"Orders", _BODY, f"KEYS\x01key-{n}\x02".encode(), queue_offset=n,
                    physical_offset=start + len(data), store_timestamp=1_700_000_000_000 + n,
                )
            )  # fmt: skip
        if number < _FILES - 1:
            data += oracle.blank(_FILE_SIZE - len(data))
        path = directory / oracle.file_name(start)
        path.write_bytes(data)
        os.truncate(path, _FILE_SIZE)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("large") / "store"
    _write_log(root / "commitlog")
    config = {"topicName": "Orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"Orders": config}}))
    recover(str(root)).apply()
    (index,) = (root / "index").iterdir()
    assert index.stat().st_size == 40 + 4 * 5_000_000 + 20 * 20_000_000
    assert sum(file.stat().st_size for file in (root / "commitlog").iterdir()) == 4 << 30
    assert MessageStore.open(str(root)).queue("Orders", 0).max_offset == _FILES * _MESSAGES
    return str(root)


def _bytes_read(code: str, *arguments: str) -> int:
    """What the code reads in a process of its own. A walk reads 1 MiB at a time."""
    command = [sys.executable, "-c", _READ.format(code=code), *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    return int(done.stdout.split()[-1])


_PLAN = """
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
assert plan(parse_read_options({"path": sys.argv[1]})).splits
"""
_GET = """
from store_format import MessageStore
(batch,) = MessageStore.open(sys.argv[1]).queue("Orders", 0).read(500, 501)
assert batch.num_rows == 1
"""
_FIND = """
from store_format import MessageStore
found = MessageStore.open(sys.argv[1]).find(key="key-500", topic="Orders")
assert (found.table.num_rows, found.how) == (1, "index")
"""
_LAG = """
import rmq_spark
rmq_spark.open(sys.argv[1]).view("lag")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "most"),
    [
        pytest.param(_PLAN, 2 << 20, id="plan"),
        pytest.param(_GET, 2 << 20, id="get"),
        pytest.param(_FIND, 5 << 20, id="find"),
        pytest.param(_LAG, 3 << 20, id="lag"),
    ],
)
def test_an_operation_reads_what_it_needs(store: str, code: str, most: int) -> None:
    assert _bytes_read(code, store) <= most
