"""Option names of other connectors: the error names ours, or says in a sentence what to do instead."""

from __future__ import annotations

from rmq_spark.options.foreign_names import FOREIGN_NAMES
from rmq_spark.options.option import WRITE
from rmq_spark.options.read_options import OPTIONS, user_options
from rmq_spark.options.write_options import WRITE_OPTIONS


def test_foreign_names_lead_to_options_that_exist() -> None:
    names = {option.name for option in (*OPTIONS, *WRITE_OPTIONS)}
    assert {ours for foreign in FOREIGN_NAMES for ours in foreign.ours} <= names
    assert not {foreign.name.lower() for foreign in FOREIGN_NAMES} & {
        option.name.lower() for option in OPTIONS
    }
    assert len({foreign.name.lower() for foreign in FOREIGN_NAMES}) == len(FOREIGN_NAMES)


def test_a_name_of_ours_is_never_foreign() -> None:
    given = {"topic": "Orders", "path": "/a"}
    assert user_options(given, WRITE, WRITE_OPTIONS) == given
