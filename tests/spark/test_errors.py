"""What a person sees who asks for something wrong: one clear sentence with the nearest right answer, on the
driver, without a Python traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException

from tests.support.fixtures import Golden, SparkSession
from tests.support.reads import copy_of
from tests.support.spark.frames import read

STORE = "basic-5.5.0"
_TIMEOUT_S = 120  # a query that hangs fails its test; it takes a few seconds


def test_an_error_on_the_driver_is_one_line(spark: SparkSession, golden: Golden) -> None:
    """What Spark was doing, and our sentence."""
    with pytest.raises(AnalysisException) as caught:
        read(spark, golden(STORE), topic="Orders")
    line, *rest = str(caught.value).splitlines()
    assert line.startswith("[PYTHON_DATA_SOURCE_ERROR]")
    assert line.endswith(" store_format.errors.OptionError: unknown option 'topic'; did you mean subscribe?")
    assert len(rest) <= 2, rest  # SQLSTATE


def test_an_error_of_planning_has_no_python_traceback(spark: SparkSession, golden: Golden) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, golden(STORE), subscribe="Audit", startingOffsets='{"Audit":{"0":352}}').collect()
    sentence = (
        "OffsetOutOfRangeError: Audit-0 of broker-a: startingOffsets 352 is not in the queue, which holds"
    )
    assert sentence in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_error_in_a_task_has_no_python_traceback(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    """The read of a damaged record, and a row that cannot be written."""
    root = copy_of(golden, STORE, tmp_path)
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(361 + 88)  # the first byte of the body of Orders-0's first message
        file.write(b"?")
    with pytest.raises(PySparkException, match="ChecksumError") as caught:
        read(spark, root, subscribe="Orders").collect()
    assert "Traceback" not in str(caught.value)
    empty = spark.sql("SELECT 'T' AS topic, CAST('' AS BINARY) AS body")
    with pytest.raises(PySparkException, match="IllegalMessageError") as caught:
        empty.write.format("rmqlog").mode("append").save(str(tmp_path / "new"))
    assert "Traceback" not in str(caught.value)


def test_an_error_of_a_stream_is_one_line(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """Also an error of the options that only a stream refuses, before a reader exists."""
    for options, sentence in (
        ({"endingOffsets": "latest"}, "OptionError: endingOffsets does not apply to a stream query"),
        ({"subscribe": "Order"}, "OptionError: no store has a topic 'Order'; did you mean Orders?"),
    ):
        frame = spark.readStream.format("rmqlog").options(**options).load(str(golden(STORE)))
        checkpoint = str(tmp_path / options.popitem()[1])
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(_TIMEOUT_S)
        assert sentence in str(caught.value).splitlines()[0]
        assert "Traceback" not in str(caught.value)


def test_other_exceptions_keep_their_traceback(spark: SparkSession, golden: Golden) -> None:
    """Spark's switch is set in the worker that fails with our error, which ends: others are not affected."""
    with pytest.raises(AnalysisException):
        read(spark, golden(STORE), topic="Orders")

    def fails(rows: object) -> object:
        raise ValueError("a bug of the user")

    with pytest.raises(PySparkException, match="a bug of the user") as caught:
        spark.range(1).mapInArrow(fails, "id long").collect()  # type: ignore[arg-type]  # it never returns
    assert "Traceback" in str(caught.value)
