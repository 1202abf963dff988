"""Finds columns by their documented names in the rows of a write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from store_format.errors import OptionError


def column_places(names: Sequence[str], documented: Iterable[str], option: str) -> dict[str, int]:
    """The places of the documented columns among `names`, which match in any case, as in Spark.

    Raises OptionError, which begins with `option`, for a column that is there twice.

    >>> column_places(["MSGID", "other"], ["brokerName", "msgId"], "transaction=commit")
    {'msgId': 0}
    """
    known = {name.lower(): name for name in documented}
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        column = known.get(name.lower())
        if column in found:
            raise OptionError(f"{option}: expected the column {column} once, found it twice")
        if column is not None:
            found[column] = place
    return found
