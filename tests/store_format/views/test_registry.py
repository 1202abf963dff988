"""Every view of the registry: its columns, its errors, an empty store, and that reading changes no file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_format.errors import OptionError
from store_format.store import MessageStore
from store_format.views.registry import ALL_VIEWS, VIEWS, view_batches
from tests.support.fixtures import Golden

NOW = 1_800_000_000_000


def test_views_have_the_columns_that_the_table_says(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    for each in VIEWS:
        batches = list(view_batches(store, each.name, now_ms=NOW))
        assert batches
        assert {batch.schema for batch in batches} == {each.schema}
        assert each.columns[0].name == "brokerName"
        names = [column.name.lower() for column in each.columns]
        assert len(set(names)) == len(names)
        assert all(column.about.endswith((".", "…")) for column in each.columns), each.name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("topic", "did you mean topics"),
        ("Lag", "did you mean lag"),
        ("zzz", f"the views are {VIEWS[0].name}, "),
    ],
)
def test_a_view_that_is_none(golden: Golden, name: str, hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        MessageStore.open(str(golden("basic-5.5.0"))).view(name)


def test_the_view_of_two_stores_names_its_ways(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    (diff,) = (view for view in ALL_VIEWS if view not in VIEWS)
    assert diff.schema == store.diff(store).to_table().schema
    assert all(column.about.endswith(".") for column in diff.columns)
    with pytest.raises(
        OptionError, match="compares stores; use rmqlog diff, the method diff of the store, or"
    ):
        store.view(diff.name)


def test_an_empty_store_has_empty_views(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    store = MessageStore.open(str(tmp_path / "store"))
    for each in VIEWS:
        table = store.view(each.name, now_ms=NOW)
        assert table.schema == each.schema
        assert each.name in ("problems", "checkpoint") or table.num_rows == 0, each.name


def test_looking_changes_nothing(golden: Golden, unchanged: Callable[[Path], Any]) -> None:
    root = golden("crash-5.5.0")
    with unchanged(root):
        for each in VIEWS:
            MessageStore.open(str(root)).view(each.name)
