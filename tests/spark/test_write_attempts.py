"""Attempts of tasks that fail, are killed or come twice: what they staged is published once or not at all,
and nothing of it stays.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.spark.processes import run

# a JVM of its own: with local[2] a task has one attempt only
pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SCRIPT = """
import json, os, signal, sys, time
from collections import Counter
from pathlib import Path
import pyarrow as pa
from pyspark.sql import SparkSession
import rmq_spark

top = Path(sys.argv[1])
builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC")
spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "50").getOrCreate()
rmq_spark.register(spark)


def staging_process(root):
    \"\"\"The process that has records staged: it alone has a file of the staging open.\"\"\"
    for place in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(place)
            if target.startswith(str(root)) and target.endswith(".records") and os.path.getsize(target):
                return int(place.parts[2])
        except OSError:
            continue
    return None


def rows_for(what, directory):
    def rows(batches):
        from pyspark import TaskContext

        context = TaskContext.get()
        (directory / f"attempt-{context.partitionId()}-{context.attemptNumber()}").touch()
        for batch in batches:
            numbers = [str(number) for number in batch["id"].to_pylist()]
            # So long that no buffer between the processes keeps a batch back.
            yield pa.RecordBatch.from_pydict({"topic": ["T"] * len(numbers), "body": [number.ljust(3000) for number in numbers]})
        if context.partitionId() == 0 and (context.attemptNumber() == 0 or what == "always"):
            deadline = time.monotonic() + 30
            while (process := staging_process(directory)) is None and time.monotonic() < deadline:
                time.sleep(0.01)
            (directory / f"staged-{process is not None}").touch()
            if what == "killed":
                os.kill(process, signal.SIGKILL)
                time.sleep(5)  # Spark notices, and ends this process too
            raise ValueError("this attempt fails")

    return rows


def write(what):
    directory = top / what
    directory.mkdir()
    root = directory / "store"
    tasks = 4 if what == "beside" else 1
    frame = spark.range(0, 400, 1, tasks).mapInArrow(rows_for(what, directory), "topic string, body string")
    failed = False
    try:
        frame.write.format("rmqlog").mode("append").save(str(root))
    except Exception as error:
        failed = True
        assert "this attempt fails" in str(error), error
    found = Counter()
    if root.exists():
        found = Counter(int(row.body) for row in spark.read.format("rmqlog").option("columns", "body").load(str(root)).collect())
    return {
        "failed": failed,
        "rows": len(found),
        "most": max(found.values(), default=0),
        "attempts": sorted(path.name for path in directory.glob("attempt-*")),
        "staged": sorted(path.name for path in directory.glob("staged-*")),
        "staging": sorted(str(path) for path in root.glob(".rmqlog/staging/*")),
        "there": root.exists(),
    }


print(json.dumps({what: write(what) for what in ("raises", "killed", "beside", "always")}))
"""  # noqa: E501


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each write."""
    directory = tmp_path_factory.mktemp("attempts")
    answer = json.loads(run(_SCRIPT, str(directory), directory=directory).splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("what", ["raises", "killed", "beside"])
def test_an_attempt_that_fails_after_it_has_staged_is_done_again(
    answers: dict[str, dict[str, Any]], what: str
) -> None:
    """By an error of its input, by SIGKILL of the Python process that stages, and beside tasks that succeed
    at once.
    """
    answer = answers[what]
    assert (answer["staged"], answer["failed"]) == (["staged-True"], False)
    assert (answer["rows"], answer["most"], answer["staging"]) == (400, 1, [])
    others = [f"attempt-{task}-0" for task in (1, 2, 3)] if what == "beside" else []
    assert answer["attempts"] == ["attempt-0-0", "attempt-0-1", *others]


def test_when_all_attempts_fail_nothing_is_there(answers: dict[str, dict[str, Any]]) -> None:
    answer = answers["always"]
    assert (answer["staged"], answer["failed"], answer["rows"], answer["there"]) == (
        ["staged-True"],
        True,
        0,
        False,
    )
    assert answer["attempts"] == [f"attempt-0-{attempt}" for attempt in range(4)]
