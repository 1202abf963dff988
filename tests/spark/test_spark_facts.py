"""What Spark's Python data source API really does, where it shapes this project: one test a fact, the version
in its name.

A test that fails here says that Spark has changed, and the code that leans on the fact can be looked at
again. The sources are defined in functions, so that Spark pickles them by value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThan, InputPartition, LessThan

from rmq_spark.spark.batch_reader import RmqLogReader
from tests.support.fixtures import Golden
from tests.support.reads import PLACE
from tests.support.spark.frames import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


def numbers_source(
    name: str,
    *,
    partitions: Callable[[], Any] = lambda: [InputPartition(0)],
    rows: Callable[[Any], Iterator[Any]] = lambda partition: zip(range(10), strict=True),
    reader: type[DataSourceReader] | None = None,
) -> type[DataSource]:
    """A source of one column `n`; `reader` is in the place of one that gives `rows` for `partitions`."""

    class Reader(DataSourceReader):
        def partitions(self) -> Any:
            return partitions()

        def read(self, partition: InputPartition) -> Iterator[Any]:
            return rows(partition)

    class Numbers(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "n bigint"

        def reader(self, schema: StructType) -> DataSourceReader:
            return Reader() if reader is None else reader()

    return Numbers


def options_source(name: str) -> type[DataSource]:
    """A source of one row that tells the options and the schema its reader was made with."""

    class Reader(DataSourceReader):
        def __init__(self, told: str) -> None:
            self.told = told

        def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
            return iter([(self.told,)])

    class Told(DataSource):
        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> StructType:
            from pyspark.sql.types import StringType, StructField, StructType

            return StructType(
                [
                    StructField(
                        "told", StringType(), True, {"kept": json.dumps(dict(self.options), sort_keys=True)}
                    )
                ]
            )

        def reader(self, schema: StructType) -> DataSourceReader:
            kept = schema.fields[0].metadata.get("kept", "{}")
            return Reader(
                json.dumps({"options": dict(self.options), "kept": json.loads(kept), "columns": schema.names})
            )

    return Told


def told(row: Any) -> dict[str, Any]:
    value = json.loads(row[0])
    assert isinstance(value, dict)
    return value


# ---- filters and pruning -----------------------------------------------------------------------------------


def test_pushed_filters_leak_into_other_uses_of_a_frame_4_3(spark: SparkSession) -> None:
    """2 rows for 5, and 3 for 10, although Spark is told to filter too. On the day they are right, filters
    may be pushed.
    """

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.numbers = list(range(10))

        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            for each in filters:
                if isinstance(each, LessThan):
                    self.numbers = [number for number in self.numbers if number < each.value]
                if isinstance(each, GreaterThan):
                    self.numbers = [number for number in self.numbers if number > each.value]
            return filters

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(number,) for number in self.numbers])

    spark.dataSource.register(numbers_source("facts_push", reader=Reader))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("facts_push").load()
        assert frame.where("n < 3").union(frame.where("n > 7")).count() == 2
        frame = spark.read.format("facts_push").load()
        assert frame.where("n < 3").count() == 3
        assert frame.count() == 3
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_reader_with_push_filters_fails_without_the_setting_4_3(spark: SparkSession) -> None:
    class Reader(DataSourceReader):
        def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
            return filters

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return iter([(1,)])

    spark.dataSource.register(numbers_source("facts_push_off", reader=Reader))
    with pytest.raises(PySparkException, match="filterPushdown"):
        spark.read.format("facts_push_off").load().count()


def test_our_reader_pushes_nothing_4_3() -> None:
    assert RmqLogReader.pushFilters is DataSourceReader.pushFilters


def test_select_prunes_nothing_and_a_schema_does_4_3(spark: SparkSession) -> None:
    spark.dataSource.register(options_source("facts_columns"))
    two = spark.read.format("facts_columns").schema("told string, other string").load()
    # one is selected, and both are asked for
    with pytest.raises(PySparkException, match="Expected: 2 columns"):
        two.select("told").collect()
    one = spark.read.format("facts_columns").schema("Anything string").load()
    assert told(one.collect()[0])["columns"] == ["Anything"]  # nothing is validated


# ---- partitions --------------------------------------------------------------------------------------------


def test_a_schema_of_the_caller_decides_about_nulls_before_a_source_is_asked_4_3(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark folds `n IS NULL` away for a column declared NOT NULL. No Python code runs that could refuse."""
    log = tmp_path / "asked"

    class Refusing(DataSource):
        def __init__(self, options: dict[str, str]) -> None:
            with open(log, "a") as file:
                file.write("x")

        @classmethod
        def name(cls) -> str:
            return "facts_not_null"

        def reader(self, schema: StructType) -> DataSourceReader:
            raise ValueError("expected n to allow null")

    spark.dataSource.register(Refusing)
    frame = spark.read.format("facts_not_null").schema("n bigint not null").load()
    assert frame.where("n is null").count() == 0
    assert not log.exists()
    with pytest.raises(PySparkException, match="expected n to allow null"):
        frame.count()


def test_no_partitions_are_one_partition_of_none_4_3(spark: SparkSession) -> None:
    def rows(partition: Any) -> Iterator[Any]:
        return iter([(-1 if partition.value is None else 1,)])

    spark.dataSource.register(numbers_source("facts_none", partitions=list, rows=rows))
    assert [row.n for row in spark.read.format("facts_none").load().collect()] == [-1]


def test_partitions_are_a_list_4_3(spark: SparkSession) -> None:
    spark.dataSource.register(numbers_source("facts_iterator", partitions=lambda: iter([InputPartition(0)])))
    with pytest.raises(PySparkException, match="list"):
        spark.read.format("facts_iterator").load().count()


def test_a_not_implemented_error_of_partitions_is_swallowed_4_3(spark: SparkSession) -> None:
    """So an error of ours that is one may not leave `partitions`."""

    def partitions() -> Any:
        raise NotImplementedError("this sentence nobody sees")

    spark.dataSource.register(numbers_source("facts_not_implemented", partitions=partitions))
    assert spark.read.format("facts_not_implemented").load().count() == 10


def test_a_frame_is_planned_once_4_3(spark: SparkSession, tmp_path: Path) -> None:
    log = str(tmp_path / "planned")

    def partitions() -> Any:
        with open(log, "a") as file:
            file.write("x")
        return [InputPartition(0)]

    spark.dataSource.register(numbers_source("facts_planned", partitions=partitions))
    frame = spark.read.format("facts_planned").load()
    assert not Path(log).exists()  # lazily
    assert frame.rdd.getNumPartitions() == 1
    assert frame.count() == frame.where("n >= 0").count() == len(frame.collect()) == 10
    frame.createOrReplaceTempView("facts_planned_view")
    assert spark.sql("SELECT count(*) FROM facts_planned_view").collect()[0][0] == 10
    spark.catalog.dropTempView("facts_planned_view")
    assert Path(log).read_text() == "x"
    spark.read.format("facts_planned").load().count()
    assert Path(log).read_text() == "xx"


def test_a_temporary_view_is_planned_once_and_a_table_at_each_query_4_3(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The view keeps the table object (PythonDataSourceV2), which keeps its partitions. Nothing resets it."""
    log = tmp_path / "planned"

    def partitions() -> Any:
        with open(log, "a") as file:
            file.write("x")
        return [InputPartition(0)]

    spark.dataSource.register(numbers_source("facts_views", partitions=partitions))
    spark.sql("CREATE TEMPORARY VIEW facts_v USING facts_views")
    spark.sql("CREATE TABLE facts_t USING facts_views")
    try:
        spark.sql("SELECT * FROM facts_v").collect()
        spark.sql("REFRESH TABLE facts_v")
        spark.catalog.refreshTable("facts_v")
        spark.sql("SELECT count(*) FROM facts_v").collect()
        assert log.read_text() == "x"
        spark.sql("SELECT * FROM facts_t").collect()
        spark.sql("SELECT count(*) FROM facts_t").collect()
        assert log.read_text() == "xxx"
        spark.sql("CREATE OR REPLACE TEMPORARY VIEW facts_v AS SELECT * FROM facts_t")  # kept as text
        spark.sql("SELECT * FROM facts_v").collect()
        spark.sql("SELECT count(*) FROM facts_v").collect()
        assert log.read_text() == "xxxxx"
    finally:
        spark.catalog.dropTempView("facts_v")
        spark.sql("DROP TABLE facts_t")


# ---- batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arrow_type", "name"),
    [(pa.int32(), "n"), (pa.int64(), "N"), (pa.dictionary(pa.int32(), pa.int64()), "n")],
    ids=["another type", "another name", "a dictionary"],
)
def test_batches_have_the_very_schema_declared_4_3(
    spark: SparkSession, arrow_type: pa.DataType, name: str
) -> None:
    def rows(partition: Any) -> Iterator[Any]:
        return iter(
            [pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int64()).cast(arrow_type)], names=[name])]
        )

    source = f"facts_schema_{arrow_type.id}_{name}"
    spark.dataSource.register(numbers_source(source, rows=rows))
    with pytest.raises(PySparkException):
        spark.read.format(source).load().collect()


def test_batches_are_taken_as_they_are_4_3(spark: SparkSession) -> None:
    def rows(partition: Any) -> Iterator[Any]:
        return iter([pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int64())], names=["n"])] * 3)

    spark.dataSource.register(numbers_source("facts_batches", rows=rows))
    assert [row.n for row in spark.read.format("facts_batches").load().collect()] == [1, 2] * 3


# ---- options and tables ------------------------------------------------------------------------------------


def test_options_arrive_in_lower_case_and_as_text_4_3(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(options_source("facts_options"))
    reader = (
        spark.read.format("facts_options")
        .option("startingOffsets", "Earliest")
        .option("minPartitions", 3)
        .option("verifyCrc", True)
    )
    one = told(reader.load("/data/Store").collect()[0])["options"]
    assert one == {
        "startingoffsets": "Earliest",
        "minpartitions": "3",
        "verifycrc": "true",
        "path": "/data/Store",
    }
    two = told(spark.read.format("facts_options").load(["/data/a", "/data/b"]).collect()[0])["options"]
    assert json.loads(two["paths"]) == ["/data/a", "/data/b"]
    assert "path" not in two


def test_a_table_forgets_its_options_and_keeps_column_metadata_4_3(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.dataSource.register(options_source("facts_table"))
    spark.sql(f"CREATE TABLE facts_t USING facts_table OPTIONS (path '{tmp_path}', someOption 'x')")
    try:
        seen = told(spark.sql("SELECT * FROM facts_t").collect()[0])
        with_option = told(spark.sql("SELECT * FROM facts_t WITH (someOption = 'y')").collect()[0])
    finally:
        spark.sql("DROP TABLE facts_t")
    assert "someoption" not in seen["options"]
    assert with_option["options"]["someoption"] == "y"
    created = {name.lower(): value for name, value in seen["kept"].items()}
    assert created["someoption"] == created["option.someoption"] == "x"
    assert created["path"] == f"file:{tmp_path}"  # a URI by then
    assert created["provider"] == "facts_table"
    assert {"owner", "location"} <= created.keys()


def test_a_table_with_a_column_list_asks_no_schema_4_3(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(options_source("facts_list"))
    spark.sql(
        f"CREATE TABLE facts_l (told STRING) USING facts_list OPTIONS (path '{tmp_path}', someOption 'x')"
    )
    try:
        seen = told(spark.sql("SELECT * FROM facts_l").collect()[0])
    finally:
        spark.sql("DROP TABLE facts_l")
    assert seen == {"options": {}, "kept": {}, "columns": ["told"]}


def test_a_temporary_view_keeps_its_options_4_3(spark: SparkSession, tmp_path: Path) -> None:
    spark.dataSource.register(options_source("facts_view"))
    spark.sql(f"CREATE TEMPORARY VIEW facts_v USING facts_view OPTIONS (path '{tmp_path}', someOption 'x')")
    seen = told(spark.sql("SELECT * FROM facts_v").collect()[0])
    spark.catalog.dropTempView("facts_v")
    assert seen["options"]["someoption"] == "x"


# ---- our own reader, and settings --------------------------------------------------------------------------


def test_the_reader_pickles_to_tasks_small_4_3(spark: SparkSession, golden: Golden) -> None:
    """Every task gets the reader; it holds plain values only."""
    from pyspark import cloudpickle

    from rmq_spark.spark.data_source import RmqLogDataSource

    source = RmqLogDataSource({"path": str(golden("basic-5.5.0"))})
    reader = source.reader(source.schema())
    assert len(cloudpickle.dumps(reader)) < 8192  # type: ignore[no-untyped-call]  # pyspark's copy has no types


def test_the_planner_knows_no_setting_of_the_session_and_a_task_does_4_3(spark: SparkSession) -> None:
    """So `register` puts the settings of S3A on the data source, and tasks need none from it."""
    name = "spark.hadoop.fs.s3a.endpoint"

    class Reader(DataSourceReader):
        def partitions(self) -> list[InputPartition]:
            from pyspark import TaskContext
            from pyspark.sql import SparkSession

            return [InputPartition((SparkSession.getActiveSession(), TaskContext.get()))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            from pyspark import TaskContext

            task = TaskContext.get()
            assert task is not None
            yield (int(partition.value == (None, None) and task.getLocalProperty(name) == "http://host"),)

    spark.dataSource.register(numbers_source("settings", reader=Reader))
    spark.conf.set(name, "http://host")
    try:
        assert [row["n"] for row in spark.read.format("settings").load().collect()] == [1]
    finally:
        spark.conf.unset(name)


def test_the_unix_socket_setting_exists_and_is_ours_4_3(spark: SparkSession, golden: Golden) -> None:
    """conf/spark-defaults.conf turns it on, for `make demo` too: Spark must have read that file."""
    assert spark.sparkContext.getConf().get("spark.python.unix.domain.socket.enabled") == "true"
    assert read(spark, golden("basic-5.5.0"), columns=PLACE, subscribe="Audit").count() == 351
