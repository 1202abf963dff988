"""The options of a SQL table, kept in the metadata of its first column, because Spark forgets them.

`CREATE TABLE t USING rmqlog OPTIONS (…)` passes the options to `schema()` only. A later `SELECT` passes the
table's schema and the options of the statement to `reader()`. The catalog keeps the metadata in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmq_spark.options.option import BATCH, Given, path_list, paths_json, single_path
from rmq_spark.options.read_options import is_catalog, user_options
from rmq_spark.options.read_table import CHOICES, OPTIONS, PRECEDENCE
from store_format.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA_KEY = "rmqlog.options"
_PATHS = CHOICES[0]


def remember_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """`schema` with the options in its metadata if a catalog asks (CREATE TABLE), else `schema` itself.

    Other reads pass their options to the reader, and the metadata would follow their columns into other
    tables.
    """
    from pyspark.sql.types import StructField, StructType

    if not is_catalog(options) or not schema.fields:
        return schema
    first, *others = schema.fields
    kept = {name: _lasting(name, text) for name, text in user_options(options, None).items()}
    metadata = {**first.metadata, METADATA_KEY: json.dumps(kept, ensure_ascii=False, sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall_options(schema: StructType, options: Mapping[str, str], where: str = BATCH) -> dict[str, str]:
    """The options of a read of `schema`: the remembered ones, overridden by the given ones (`WITH (…)`).

    With an explicit path, no remembered option applies. A given option also removes remembered options that
    exclude it or take precedence over it: `subscribePattern` removes `subscribe`, and `startingOffsets`
    removes `startingTimestamp`. Remembered options that do not apply to `where`, such as a stream's rate in a
    batch, are left out. Raises OptionError without any path.
    """
    given = user_options(options, where)
    if any(name in given for name in _PATHS):
        return given
    applicable = {option.name for option in OPTIONS if where in option.applies}
    remembered = {name: text for name, text in _remembered(schema).items() if name in applicable}
    if not any(name in remembered for name in _PATHS):
        raise OptionError(
            "path is not given; give the broker's store directory, as in load('/data/store'). Create a table "
            "without a column list, as in CREATE TABLE t USING rmqlog OPTIONS (path '/data/store'): with a "
            "column list, Spark does not keep the options"
        )
    for group in (*CHOICES, *PRECEDENCE):
        if any(name in given for name in group):
            remembered = {name: text for name, text in remembered.items() if name not in group}
    return {**remembered, **given}


def _lasting(name: str, text: str) -> str:
    """The option's text with absolute paths. Times stay relative: each query counts from its own start."""
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
        raise _bad_metadata() from error
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise _bad_metadata()
    return user_options(kept, None)


def _bad_metadata() -> OptionError:
    return OptionError(
        f"expected the table's options as a JSON object in the metadata {METADATA_KEY} of its first column, "
        "found something else; create the table again"
    )
