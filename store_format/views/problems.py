"""The view `problems`: what `diagnose` finds."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from store_format.diagnose.problems import PROBLEM_COLUMNS
from store_format.display.columns import (
    batches_of,
)
from store_format.read.store import Store
from store_format.views.view import View


def problems(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each problem, in the order of the checks. Reads the whole commitlog."""
    # imported here, so that the other views do not load every check
    from store_format.diagnose import diagnose

    found = diagnose(store.path, store.commit_log_paths)
    rows = (
        (store.broker_name, each.severity, each.file, each.position, each.expected, each.found, each.advice)
        for each in found
    )
    return batches_of(PROBLEM_COLUMNS, rows)


VIEW = View("problems", "The problems that `diagnose` finds.", PROBLEM_COLUMNS, problems)
