"""Each page that creates a temporary SQL view over messages says that the view is a snapshot."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_VIEW = re.compile(r"CREATE TEMPORARY VIEW \w+\s+USING rmqlog\s+OPTIONS\s*\(([^)]*)\)")
_PAGES = sorted(
    page
    for page in (*_ROOT.glob("*.md"), *_ROOT.glob("docs/*.md"))
    if any("view '" not in options for options in _VIEW.findall(page.read_text(encoding="utf-8")))
)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.name)
def test_a_page_with_a_view_says_that_it_is_a_snapshot(page: Path) -> None:
    assert "#what-spark-does)" in page.read_text(encoding="utf-8") or "[snapshots]: " in page.read_text(
        encoding="utf-8"
    )


def test_there_are_pages() -> None:
    assert {"README.md", "README.zh-CN.md", "read.md", "filters.md"} <= {page.name for page in _PAGES}
