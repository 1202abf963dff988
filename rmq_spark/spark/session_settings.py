"""The settings `spark.hadoop.fs.s3a.…` of a session, for the processes that read.

Spark gives a data source nothing of the session where it plans: no active session, no configuration and no
local property. So `register` puts the settings on the class that it registers, which Spark keeps in memory
and shows nowhere. Tasks have them as local properties of the job, in which Spark itself hides secrets, so
what we send to tasks has none (`test_the_planner_knows_no_setting_of_the_session_and_a_task_does_4_3`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmq_spark.consume.own_code import SETTING
from rmq_spark.options.s3a_options import PREFIX

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource


_CLASSIC = "pyspark.sql.session"


class SessionSettings:
    """The value of a setting by its name behind `fs.s3a.`. Neither `repr` nor pickle has any value."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = values  # None in a task

    def __call__(self, name: str) -> str | None:
        if self._values is not None:
            return self._values.get(PREFIX + name)
        from pyspark import TaskContext

        task = TaskContext.get()
        return None if task is None else task.getLocalProperty(PREFIX + name)

    def __reduce__(self) -> tuple[type[SessionSettings], tuple[()]]:
        return SessionSettings, ()


def with_settings(source: type[DataSource], spark: SparkSession) -> type[DataSource]:
    """The data source with the settings that the session has now.

    `strategies` None: code of the user has registered the format in a classic session. The user may run any
    code there, and so may name any. A Connect session may name what its setting lists.
    """
    known = spark.conf.getAll
    found = {name: value for name, value in known.items() if name.startswith(PREFIX)}
    listed = None if type(spark).__module__ == _CLASSIC else tuple(known.get(SETTING, "").split(","))
    return type(source.__name__, (source,), {"session": found or None, "strategies": listed})
