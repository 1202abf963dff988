"""The fixture by which pages of documentation get a Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.fixtures import SparkSession


@pytest.fixture
def lazy_spark(request: pytest.FixtureRequest) -> Iterator[Callable[[], SparkSession]]:
    """The session, started by the first block that wants it; its temporary views go with the page."""
    started: list[SparkSession] = []

    def start() -> SparkSession:
        if not started:
            started.append(request.getfixturevalue("spark"))
        return started[0]

    yield start
    for session in started:
        for table in session.catalog.listTables():
            session.catalog.dropTempView(table.name)
