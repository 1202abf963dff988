"""Reading with Spark, local[2], into the noop sink: `rmqlog` beside the transport ceiling of the same
columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.ceiling import prepare_batches, split_rows
from benchmarks.processes import WorkerMemory, cpu_seconds
from benchmarks.rounds import Figure, Rates, interleave
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.spark.types import to_spark_schema

# What is read: the options that say so. CRC is on and off in each.
_GROUPS: dict[str, dict[str, str]] = {
    "default columns": {},
    "body": {"columns": "body"},
    "queueOffset": {"columns": "queueOffset"},
    "queueOffset, one property": {"columns": "queueOffset", "propertyColumns": "region"},
}
_COUNT = "count() of the default columns"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One way to read beside its ceiling, from the same rounds."""

    name: str
    rates: Rates
    ceiling: Rates


@dataclass(frozen=True, slots=True)
class Memory:
    """The most that one Python worker held: all of it, programs and libraries included, and its own."""

    resident_bytes: int
    own_bytes: int


def measure_spark(spark: SparkSession, root: Path, rounds: int) -> tuple[list[Comparison], Memory]:
    """Every group with CRC on and off, and `count()`. Each DataFrame is planned before it is timed."""
    cases = read_cases(spark, root, root.parent, _GROUPS)
    cases[_COUNT] = spark.read.format("rmqlog").load(str(root)).count
    with WorkerMemory() as memory:
        rates = interleave(cases, rounds, cpu_seconds)
    of_group = {name: group for group in _GROUPS for name in cases if name.startswith(f"{group}, CRC")} | {
        _COUNT: "default columns"
    }
    comparisons = [Comparison(name, rates[name], rates[group]) for name, group in of_group.items()]
    return comparisons, Memory(memory.resident_bytes, memory.own_bytes)


def read_cases(
    spark: SparkSession, root: Path, directory: Path, groups: Iterable[str]
) -> dict[str, Callable[[], int]]:
    """For each group its ceiling, by the group's name, and reads with CRC on and off."""
    cases: dict[str, Callable[[], int]] = {}
    for group in groups:
        options = _GROUPS[group]
        cases[group] = consume(_ceiling(spark, root, options, directory / f"{root.name}-{len(cases)}.arrow"))
        for crc in ("on", "off"):
            read = spark.read.format("rmqlog").options(**options, verifyCrc=str(crc == "on").lower())
            cases[f"{group}, CRC {crc}"] = consume(read.load(str(root)))
    return cases


def consume(frame: DataFrame) -> Callable[[], int]:
    """Moves every row into the noop sink. The rows are counted once, before; planning happens there, too."""
    rows = frame.count()

    def consume() -> int:
        frame.write.format("noop").mode("overwrite").save()
        return rows

    return consume


def _ceiling(spark: SparkSession, root: Path, options: Mapping[str, str], batches: Path) -> DataFrame:
    read = parse_read_options({"path": str(root), **options})
    fields = fields_from_options(read)
    scan = Scan(fields, read)
    prepare_batches(scan, batches)
    source = spark.read.format("rmqlog_ceiling").schema(to_spark_schema(fields.to_arrow_schema()))
    return source.options(batches=str(batches), rows=",".join(map(str, split_rows(scan)))).load()


def measure_queues(spark: SparkSession, few: Path, many: Path, rounds: int) -> tuple[Figure, list[Rates]]:
    """The time of the store `many` by that of `few`, of as many messages in fewer queues: a whole query each,
    planning too.
    """
    rates = interleave({str(root): partial(_load_and_consume, spark, root) for root in (few, many)}, rounds)
    seconds = zip(rates[str(many)].seconds, rates[str(few)].seconds, strict=True)
    return Figure.of([mine / other for mine, other in seconds]), list(rates.values())


def _load_and_consume(spark: SparkSession, root: Path) -> int:
    spark.read.format("rmqlog").load(str(root)).write.format("noop").mode("overwrite").save()
    return 1
