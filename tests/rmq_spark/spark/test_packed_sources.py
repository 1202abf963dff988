"""What `register(by_value=True)` sends with each query: the modules that tasks need, and no more."""

from __future__ import annotations

import json
import lzma

from rmq_spark.spark.by_value import packed_sources

SIZE_MAX = 420_000  # docs/deploy.md and docs/howto-cluster.md say so


def test_it_is_small() -> None:
    assert len(packed_sources()) <= SIZE_MAX


def test_it_has_what_tasks_import_and_no_more() -> None:
    sources = json.loads(lzma.decompress(packed_sources()))
    needed = {"rmq_spark", "rmq_spark.spark.data_source", "rmq_spark.stream.group_positions"}
    needed |= {"store_format.kernels.walk", "store_format.views.problems", "store_format.diagnose"}
    assert needed <= sources.keys()
    assert [name for name in sources if name.startswith(("rmq_spark.cli", "rmq_spark.charts"))] == []
    assert sources["rmq_spark"][1]
    for name, (text, _) in sources.items():
        compile(text, name, "exec")
