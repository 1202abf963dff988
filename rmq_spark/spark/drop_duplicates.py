"""Drops messages that were stored more than once: a producer whose send timed out sends the message again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from rmq_spark.options.option import Given, duration_ms
from store_format.errors import OptionError
from store_format.names import did_you_mean

By = str | Column | Sequence[str | Column]

_KEY, _TIME = "_duplicateKey", "_duplicateTime"
_PLACE = ("topic", "brokerName", "queueId", "queueOffset")
_STORED = "storeTimestamp"


def drop_duplicates(df: DataFrame, by: By = "msgId", within: str | None = None) -> DataFrame:
    """See `rmq_spark.drop_duplicates`."""
    columns = [_key_column(df, each) for each in ([by] if isinstance(by, str | Column) else by)]
    if not columns:
        raise OptionError("by: expected at least one column, found none")
    _refuse_missing_columns(df, _PLACE)
    place = F.struct(*_PLACE)
    is_null = reduce(or_, (column.isNull() for column in columns))
    # A message without a key is equal to no other message, so its place is its key.
    keys = [F.when(~is_null, column).alias(f"by{number}") for number, column in enumerate(columns)]
    keyed = df.withColumn(_KEY, F.struct(*keys, F.when(is_null, place).alias("place")))
    ms = None if within is None else duration_ms(Given("within", within, 0))
    return (_of_stream if df.isStreaming else _of_batch)(keyed, ms).drop(_KEY, _TIME)


def _of_stream(keyed: DataFrame, within_ms: int | None) -> DataFrame:
    """By the time of reading: rows before the watermark are lost, and store times differ between queues."""
    if within_ms is None:
        raise OptionError(
            "within: expected a time such as '1 hour' for a stream, found none; Spark keeps each key so long"
        )
    timed = keyed.withColumn(_TIME, F.current_timestamp()).withWatermark(_TIME, f"{within_ms} milliseconds")
    return timed.dropDuplicatesWithinWatermark([_KEY])


def _of_batch(keyed: DataFrame, within_ms: int | None) -> DataFrame:
    """The message that was stored first, and those more than `within_ms` after the one before."""
    _refuse_missing_columns(keyed, (_STORED,))
    before = F.lag(_STORED).over(Window.partitionBy(_KEY).orderBy(_STORED, *_PLACE))
    first = before.isNull()
    if within_ms is not None:
        gap = F.unix_millis(_STORED) - F.unix_millis(before)
        first = first | F.coalesce(gap > within_ms, F.lit(True))
    return keyed.withColumn(_TIME, first).where(_TIME)


def _key_column(df: DataFrame, by: str | Column) -> Column:
    if isinstance(by, Column):
        return by
    if by not in df.columns:
        raise OptionError(f"by: {did_you_mean(by, df.columns, 'columns')}")
    return df[by]


def _refuse_missing_columns(df: DataFrame, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in df.columns]
    if missing:
        raise OptionError(
            f"drop_duplicates: expected the columns {', '.join(names)}, found no {missing[0]}; drop "
            "duplicates before you select other columns"
        )
