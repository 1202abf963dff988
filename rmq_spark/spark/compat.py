"""What differs between the versions of Spark. No other module asks which Spark runs.

| since | what Spark has |
|---|---|
| 4.1 | `DataSourceStreamArrowWriter`; `register` replaces a format that Spark found by itself |
| 4.2 | admission: `latestOffset` gets a start, and `prepareForTriggerAvailableNow` is called |

Without admission Spark reads what one `latestOffset` answers and ends a query with `Trigger.AvailableNow`.
With a limit, messages would be left, so limits are ignored. A group has to know where a micro-batch begins
before it decides which queues it owns, so groups are refused.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource
from pyspark.version import __version__

from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import OPTIONS, ReadOptions, user_options
from store_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow

    HAS_ADMISSION: bool
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        HAS_ADMISSION = True
    except ImportError:
        HAS_ADMISSION = False

        class SupportsTriggerAvailableNow:
            """Stands in before Spark 4.2, which looks for no such class."""

    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        DataSourceStreamArrowWriter = datasource.DataSourceStreamArrowWriter
    else:

        class DataSourceStreamArrowWriter(
            datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter
        ):
            """Stands in on Spark 4.0, which passes batches instead of rows to each DataSourceArrowWriter.

            Also in a stream its worker asks for that class (`pyspark.sql.worker.write_into_data_source`).
            """


_ADMISSION_SINCE = "4.2"
_ALREADY_EXISTS = "DATA_SOURCE_ALREADY_EXISTS"
# the fields of ReadOptions that limit a micro-batch, and their options
_LIMITS = {
    "max_offsets_per_trigger": "maxOffsetsPerTrigger",
    "max_offsets_per_queue": "maxOffsetsPerQueue",
    "max_offsets_per_topic": "maxOffsetsPerTopic",
    "max_bytes_per_trigger": "maxBytesPerTrigger",
    "min_offsets_per_trigger": "minOffsetsPerTrigger",
}
_STREAM_ONLY = {option.name for option in OPTIONS if option.applies == {STREAM}}


def refuse_group(options: ReadOptions, given: Mapping[str, str] | None = None) -> None:
    """Raises OptionError for a stream of a group, or one that pops, on a Spark that cannot run it.

    Spark does not say whether it asks for the schema of a batch or of a stream. Then `given`, the caller's
    options, decide: `group` alone may be a batch.
    """
    if HAS_ADMISSION:
        return
    needs = f"needs Spark {_ADMISSION_SINCE} or newer, found Spark {__version__}"
    if options.pop is not None:
        raise OptionError(f"consumeMode=pop {needs}; without it, read without group or update Spark")
    if options.group is None or (given is not None and not _STREAM_ONLY & user_options(given, None).keys()):
        return
    raise OptionError(
        f"group in a stream {needs}; leave out group, read the group with spark.read, or update Spark"
    )


def ignored_limits(options: ReadOptions) -> str:
    """A warning about the limits that this Spark cannot keep; "" if there is no such limit."""
    names = [name for field, name in _LIMITS.items() if getattr(options, field) is not None]
    if HAS_ADMISSION or not names:
        return ""
    return (
        f"{', '.join(names)} needs Spark {_ADMISSION_SINCE} or newer, found Spark {__version__}: it is "
        "ignored, and each micro-batch reads all messages that there are"
    )


def without_limits(options: ReadOptions) -> ReadOptions:
    """`options` as this Spark can keep them: without limits if it has no admission."""
    if HAS_ADMISSION:
        return options
    no_limits: dict[str, Any] = dict.fromkeys(_LIMITS)  # Any: fields of several types, all of them None
    return replace(options, **no_limits)


def register_format(spark: SparkSession, source: type[DataSource], *, by_value: bool) -> None:
    """Registers `source`. Spark 4.0 replaces no format that it found by itself (`pyspark_rmqlog`).

    Such a format is the one that is registered, so this is no error; with `by_value` it is an OptionError,
    because the tasks would not get the source code.
    """
    from pyspark.errors import PySparkException

    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        if error.getCondition() != _ALREADY_EXISTS:
            raise
        if by_value:
            raise OptionError(
                f"by_value: Spark {__version__} found {source.name()} in a Python of the driver and cannot "
                "replace it; leave out by_value if every worker has rmqlog, else uninstall rmqlog from "
                "that Python (PYSPARK_DRIVER_PYTHON, else PYSPARK_PYTHON), or use Spark 4.1 or newer"
            ) from error
        log = logging.getLogger("rmq_spark")
        log.debug("Spark has found the format %s by itself", source.name())
        if getattr(source, "session", None):
            log.warning(
                "Spark %s found %s by itself and cannot replace it: the settings spark.hadoop.fs.s3a.* of "
                "the session do not count. Use the options fs.* and the platform's credentials, or Spark 4.1",
                __version__,
                source.name(),
            )
