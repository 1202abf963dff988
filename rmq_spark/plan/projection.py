"""The columns a message can have, and which of them one read gives, under which names: a `Projection`.

Arrow types are the base (`store_format.message.columns`); Spark's are derived from them here and nowhere
else. Every field is nullable, as Kafka's source has it, unless a caller's schema says NOT NULL for a column
that is never null.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_spark.options.read_options import ReadOptions
from store_format.arrays.sql_types import type_name
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS, DEFAULT_COLUMNS
from store_format.names import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "COLUMN_TABLE",
    "CORRUPT_RECORD",
    "Column",
    "Output",
    "Projection",
    "projection_from_options",
    "projection_from_schema",
    "same_type",
    "to_spark_schema",
]

CORRUPT_RECORD = "_corrupt_record"
_PROPERTY_TYPE = pa.string()


@dataclass(frozen=True, slots=True)
class Column:
    """One row of the column table. `never_null`: a caller may declare it NOT NULL."""

    name: str
    about: str
    never_null: bool = False

    @property
    def arrow_type(self) -> pa.DataType:
        return COLUMNS[self.name]

    @property
    def ddl(self) -> str:
        """The type as SQL writes it."""
        return type_name(self.arrow_type)

    @property
    def default(self) -> bool:
        return self.name in DEFAULT_COLUMNS


COLUMN_TABLE: tuple[Column, ...] = (
    Column(
        "topic",
        "The queue's topic; with `group`, of a retried or scheduled message the topic it was sent to.",
        True,
    ),
    Column("flag", "The user's flag.", True),
    Column("body", "Decompressed: exactly the bytes the producer gave.", True),
    Column(
        "properties",
        "As the Java client gives them: the last of equal names counts, malformed segments are dropped.",
        True,
    ),
    Column("brokerName", "The broker of the message queue.", True),
    Column("queueId", "The message queue.", True),
    Column("queueOffset", "The place in the message queue.", True),
    Column(
        "bornTimestamp",
        "When the producer made it; null before 0001-01-03 and after 9999-12-29, which Python cannot show.",
    ),
    Column(
        "storeTimestamp",
        "When the broker stored it; null before 0001-01-03 and after 9999-12-29, which Python cannot show.",
    ),
    Column("tags", "The property TAGS; null when absent."),
    Column("keys", "The property KEYS, split at spaces; null when absent."),
    Column("msgId", "UNIQ_KEY, else the offset message id: what a client's `getMsgId()` says.", True),
    Column("bornTimestampMs", "The stored number of `bornTimestamp`.", True),
    Column("storeTimestampMs", "The stored number of `storeTimestamp`.", True),
    Column("offsetMsgId", "Store host and physical offset, as the broker names the message.", True),
    Column("bornHost", "The producer's `ip:port`; IPv6 in brackets.", True),
    Column("storeHost", "The broker's `ip:port`; IPv6 in brackets.", True),
    Column("sysFlag", "The broker's flag bits: compression, transaction state, host versions.", True),
    Column("bodyCRC", "The stored checksum of the stored body.", True),
    Column("reconsumeTimes", "How often consumers have sent it back.", True),
    Column("preparedTransactionOffset", "The physical offset of the half message, if it was one.", True),
    Column("physicalOffset", "The place in the commitlog.", True),
    Column("storeSize", "Bytes in the commitlog.", True),
    Column("tagsCode", "The consume queue's tags code: the Java hash of the tags.", True),
    Column(
        "storedTopic",
        "The topic that the stored bytes carry, where `topic` shows another. With `group` a default column.",
        True,
    ),
    Column("rawBody", "The body as stored: compressed, if it is.", True),
    Column(CORRUPT_RECORD, "With `mode` PERMISSIVE: why the message could not be read, null when it could."),
)

_BY_LOWER = {column.name.lower(): column for column in COLUMN_TABLE}


@dataclass(frozen=True, slots=True)
class Output:
    """One field of the result: `source` is a documented column or, with `is_property`, a property; `name` is
    what the field is called.
    """

    name: str
    source: str
    is_property: bool = False
    nullable: bool = True

    @property
    def arrow_type(self) -> pa.DataType:
        return _PROPERTY_TYPE if self.is_property else COLUMNS[self.source]


@dataclass(frozen=True)
class Projection:
    """The fields of a read in their order. Plain values: it travels to tasks."""

    outputs: tuple[Output, ...] = field(
        default_factory=lambda: tuple(Output(name, name) for name in DEFAULT_COLUMNS)
    )

    @property
    def names(self) -> tuple[str, ...]:
        """What the fields are called."""
        return tuple(output.name for output in self.outputs)

    @property
    def sources(self) -> tuple[str, ...]:
        """What `store_format` is asked for, field by field."""
        return tuple(output.source for output in self.outputs)

    @property
    def properties(self) -> tuple[str, ...]:
        """The properties among them."""
        return tuple(output.source for output in self.outputs if output.is_property)

    @property
    def corrupt_record(self) -> int | None:
        """The place of `_corrupt_record`; None when nobody asks for it."""
        return next(
            (
                i
                for i, output in enumerate(self.outputs)
                if output.source == CORRUPT_RECORD and not output.is_property
            ),
            None,
        )

    def to_arrow_schema(self) -> pa.Schema:
        """Equal to what Spark makes of `to_spark_schema()`; it refuses batches of any other."""
        return pa.schema(
            [pa.field(output.name, output.arrow_type, output.nullable) for output in self.outputs]
        )

    def to_spark_schema(self) -> StructType:
        return to_spark_schema(self.to_arrow_schema())


def projection_from_options(options: ReadOptions) -> Projection:
    """The columns that `columns` names, or the default ones; then `propertyColumns`; then, in PERMISSIVE,
    `_corrupt_record`.

    With `columns` given, `_corrupt_record` comes only if it is among them. A group's rows show the topic that
    a message was sent to, so `storedTopic` is one of their default columns.
    """
    defaults = DEFAULT_COLUMNS if options.group is None else (*DEFAULT_COLUMNS, "storedTopic")
    outputs = [Output(column.name, column.name) for column in map(_column, options.columns or defaults)]
    _refuse_duplicates("columns", (output.name for output in outputs))
    outputs += [Output(name, name, is_property=True) for name in _property_columns(options)]
    if options.columns is None and options.permissive:
        outputs.append(Output(CORRUPT_RECORD, CORRUPT_RECORD))
    return Projection(tuple(outputs))


def projection_from_schema(schema: StructType, options: ReadOptions) -> Projection:
    """The columns of a caller's schema, under the names it gives them; each name, type and NOT NULL is
    checked.

    `propertyColumns` declares which further names it may have. `columns`, if given too, has to name the same
    ones.
    """
    declared = {name.lower(): name for name in _property_columns(options)}
    outputs = [
        _output(field.name, field.dataType, field.nullable, declared, options) for field in schema.fields
    ]
    _refuse_duplicates("schema", (output.name for output in outputs))
    if options.columns is not None:
        named = {_column(name).name for name in options.columns}
        has = {output.source for output in outputs if not output.is_property}
        if named != has:
            other = ", ".join(sorted(named ^ has))
            raise OptionError(
                f"columns and the schema are given together and differ in {other}; give only one of them"
            )
    return Projection(tuple(outputs))


def _output(
    name: str, spark_type: DataType, nullable: bool, properties: dict[str, str], options: ReadOptions
) -> Output:
    source = properties.get(name.lower())
    if source is not None:
        if name != source:  # property names are case-sensitive, so the schema's spelling must be the option's
            raise OptionError(
                f"schema: expected the property column {source} as propertyColumns spells it, found {name}"
            )
        output = Output(name, source, is_property=True, nullable=nullable)
    else:
        output = Output(name, _column(name, "schema", tuple(properties.values())).name, nullable=nullable)
    if not same_type(spark_type, output.arrow_type):
        found = spark_type.simpleString()
        if found == type_name(output.arrow_type):
            found += " whose elements may not be null"
        raise OptionError(f"schema: expected {name} {type_name(output.arrow_type)}, found {name} {found}")
    never_null = (
        not output.is_property and _BY_LOWER[output.source.lower()].never_null and not options.permissive
    )
    if not (nullable or never_null):
        raise OptionError(f"schema: expected {name} to allow null, found {name} NOT NULL; leave NOT NULL out")
    return output


def _column(name: str, where: str = "columns", properties: Iterable[str] = ()) -> Column:
    column = _BY_LOWER.get(name.lower())
    if column is not None:
        return column
    meant = did_you_mean(name, [*(column.name for column in COLUMN_TABLE), *properties])
    hint = f"{meant} A" if meant else "a"
    raise OptionError(
        f"{where}: unknown column {name!r}; {hint} message property becomes a column by the option propertyColumns"
    )


def _property_columns(options: ReadOptions) -> tuple[str, ...]:
    for name in options.property_columns:
        built_in = _BY_LOWER.get(name.lower())
        if built_in is not None:
            raise OptionError(
                f"propertyColumns: expected names that are no column, found {name!r}; the column {built_in.name} is there already"
            )
    _refuse_duplicates("propertyColumns", options.property_columns)
    return options.property_columns


def _refuse_duplicates(where: str, names: Iterable[str]) -> None:
    """Spark's names do not differ by case."""
    seen: dict[str, str] = {}
    for name in names:
        if name.lower() in seen:
            both = name if seen[name.lower()] == name else f"{seen[name.lower()]} and {name}"
            raise OptionError(
                f"{where}: expected each column once, found {both!r}"
                + ("" if both == name else ", which Spark takes for one")
            )
        seen[name.lower()] = name


def to_spark_schema(schema: pa.Schema) -> StructType:
    """What Spark makes of batches of this schema."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _spark_type(field.type), field.nullable) for field in schema])


def _spark_type(arrow_type: pa.DataType) -> DataType:
    from pyspark.sql import types

    if pa.types.is_map(arrow_type):
        return types.MapType(_spark_type(arrow_type.key_type), _spark_type(arrow_type.item_type))
    if pa.types.is_list(arrow_type):
        return types.ArrayType(_spark_type(arrow_type.value_type))
    if pa.types.is_timestamp(arrow_type):
        return types.TimestampType()
    plain: dict[pa.DataType, DataType] = {
        pa.string(): types.StringType(),
        pa.binary(): types.BinaryType(),
        pa.int32(): types.IntegerType(),
        pa.int64(): types.LongType(),
        pa.bool_(): types.BooleanType(),
        pa.float64(): types.DoubleType(),
        pa.date32(): types.DateType(),
    }
    return plain[arrow_type]


def same_type(found: DataType, arrow_type: pa.DataType) -> bool:
    """A string of any collation is a string; elements and values that may not be null are another type to
    Arrow.
    """
    from pyspark.sql.types import StringType

    return found == _spark_type(arrow_type) or (arrow_type == pa.string() and isinstance(found, StringType))
