"""No lease outlives its test: it would warn of its removed directory in a later one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rmq_spark.consume.group.directory import Lease


@pytest.fixture(autouse=True)
def no_lease_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    begun: list[Lease] = []
    begin = Lease.begin

    def noted(self: Lease) -> None:
        begun.append(self)
        begin(self)

    monkeypatch.setattr(Lease, "begin", noted)
    yield
    for lease in begun:
        lease._thread.stop()
