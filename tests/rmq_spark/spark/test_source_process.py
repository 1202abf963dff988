"""What the process of a stream's source imports, beside Spark's own modules, until its first answer.

Spark starts one process for each query and waits ten seconds for it (docs/faq.md). On a busy machine each
import counts. The modules are counted, not timed: the numbers do not depend on the machine.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmq_spark.spark.data_source import RmqLogDataSource
from tests.support import goldens

_MODULES_MAX = 177  # half of what the import of `data_source` and `stream_reader` alone added at first: 354

_ANSWER = """
import sys
import pyspark.sql.streaming.python_streaming_source_runner as runner
from pyspark.sql.datasource import CaseInsensitiveDict
sparks = set(sys.modules)
from rmq_spark.spark.data_source import RmqLogDataSource
schema = runner._parse_datatype_json_string(sys.argv[2])
source = RmqLogDataSource(CaseInsensitiveDict({"path": sys.argv[1]}))
reader = runner._streamReader(source, schema)
offset = reader.latestOffset(reader.initialOffset(), None)
assert offset["Orders"], offset
print(*sorted(set(sys.modules) - sparks))
"""


@pytest.mark.process
@pytest.mark.golden
def test_the_source_of_a_stream_imports_what_it_needs(tmp_path: Path) -> None:
    path = goldens.unpack("basic-5.5.0", tmp_path / "store")
    schema = RmqLogDataSource({"path": str(path)}).schema().json()
    done = subprocess.run(
        [sys.executable, "-c", _ANSWER, str(path), schema], capture_output=True, text=True, check=True
    )
    added = done.stdout.split()
    assert len(added) <= _MODULES_MAX
    # 255, 300 and 5 modules: compiled loops, what Arrow's conversions of lists import, and decoding
    heavy = {"numba", "pandas", "pyarrow.compute"}
    assert not heavy & {*added}
    # what other processes do: write, show a view, plan a batch, be a member of a group, serve, find by key
    others = ("write", "broker", "services", "pop", "consume.group", "consume.sql92", "plan.batch")
    assert not [name for name in added if name.startswith(tuple(f"rmq_spark.{each}" for each in others))]
    assert not [name for name in added if name.startswith(("store_format.commit.", "store_format.views"))]
