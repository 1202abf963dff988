"""How a SQL table keeps its options: in the metadata of its first column, because Spark forgets them.

`CREATE TABLE t USING rmqlog OPTIONS (…)` gives the options to `schema()` only; a later `SELECT` gives
`reader()` the table's schema and the options of the statement itself. The metadata survives in the catalog
between the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmq_spark.options.option import BATCH
from rmq_spark.options.parse import Given
from rmq_spark.options.paths import path_list, paths_json, single_path
from rmq_spark.options.read_options import is_catalog, user_options
from rmq_spark.options.read_table import CHOICES, OPTIONS, PRECEDENCE
from store_format.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA_KEY = "rmqlog.options"
_PATHS = CHOICES[0]


def remember_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """`schema` with the options in it when a catalog asks (CREATE TABLE), else `schema` itself.

    Other reads carry their options along, and metadata would travel on with their columns into other tables.
    """
    from pyspark.sql.types import StructField, StructType

    if not is_catalog(options) or not schema.fields:
        return schema
    first, *others = schema.fields
    kept = {name: _lasting(name, text) for name, text in user_options(options, None).items()}
    metadata = {**first.metadata, METADATA_KEY: json.dumps(kept, ensure_ascii=False, sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall_options(schema: StructType, options: Mapping[str, str], where: str = BATCH) -> dict[str, str]:
    """The options of a read of `schema`: those remembered in it, overridden by those given (`SELECT … FROM t
    WITH (…)`).

    An explicit path is another read: nothing is remembered then. An option that is given also silences
    remembered ones that exclude it or would beat it: `subscribePattern` a remembered `subscribe`,
    `startingOffsets` a remembered `startingTimestamp`. What is remembered and not for `where`, as a stream's
    rate in a batch, is left out. Raises OptionError when there is no path at all.
    """
    given = user_options(options, where)
    if any(name in given for name in _PATHS):
        return given
    applicable = {option.name for option in OPTIONS if where in option.applies}
    remembered = {name: text for name, text in _remembered(schema).items() if name in applicable}
    if not any(name in remembered for name in _PATHS):
        raise OptionError(
            "path is not given; name the broker's store directory, as in load('/data/store'). A table is created without a column list, "
            "as in CREATE TABLE t USING rmqlog OPTIONS (path '/data/store'): with one, Spark does not keep the options"
        )
    for group in (*CHOICES, *PRECEDENCE):
        if any(name in given for name in group):
            remembered = {name: text for name, text in remembered.items() if name not in group}
    return {**remembered, **given}


def _lasting(name: str, text: str) -> str:
    """What the option will still mean in another working directory. Times stay relative: a table looks back
    from each query.
    """
    given = Given(name, text, 0)
    match name:
        case "path":
            return single_path(given)[0]
        case "paths":
            return json.dumps(paths_json(given), ensure_ascii=False)
        case "storePathCommitLog":
            return ",".join(path_list(given))
    return text


def _remembered(schema: StructType) -> dict[str, str]:
    if not schema.fields:
        return {}
    text = schema.fields[0].metadata.get(METADATA_KEY)
    if text is None:
        return {}
    try:
        kept = json.loads(text)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"the table's options are expected as JSON in the metadata {METADATA_KEY} of its first column; create it anew"
        ) from error
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise OptionError(
            f"the table's options are expected as JSON text in the metadata {METADATA_KEY} of its first column; create it anew"
        )
    return user_options(kept, None)
