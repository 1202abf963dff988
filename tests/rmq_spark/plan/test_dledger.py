"""A batch read of DLedger stores on object storage, as tasks do it: rows of a broker's own classes."""

from __future__ import annotations

import pytest

from tests.rmq_spark.stream.test_positions import Stream
from tests.support import goldens
from tests.support.conformance import NAMES, differences, expected, rows_of
from tests.support.object_server import ObjectServer
from tests.support.reads import read


@pytest.mark.parametrize(
    ("name", "split_by"),
    [
        ("dledger-5.5.0", "queue"),
        ("dledger-crash-5.5.0", "queue"),
        ("dledger-upgraded-5.5.0", "queue"),
        ("dledger-upgraded-5.5.0", "commitlog"),
    ],
)
def test_every_row_and_column_from_object_storage(server: ObjectServer, name: str, split_by: str) -> None:
    root = goldens.unpack(name, server.bucket / "store")
    url = server.url_of(root)
    found = rows_of(read(url, includeSystemTopics=True, columns=",".join(NAMES), splitBy=split_by).table())
    assert differences(found, expected(name, root)) == []
    held = max(row["physicalOffset"] for row in found) // 65536 * 65536  # a copy may lack a part of this file
    assert Stream(url, includeSystemTopics=True).step() == sorted(
        (row["topic"], row["queueId"], row["queueOffset"]) for row in found if row["physicalOffset"] < held
    )
    assert not server.refused
