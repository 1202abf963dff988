"""Index files of tiered storage, as a broker uploaded them."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.consumequeue.tiered import TieredDirectory
from store_format.errors import CorruptStoreError
from store_format.index.file import index_key, key_hash
from store_format.index.tiered import indexed_logs
from store_format.metadata.tiered import TieredMetadata
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.file_edits import flip
from tests.support.fixtures import Golden
from tests.support.oracle import walk_files
from tests.support.reads import told_places

NAME = goldens.TIERED


def test_every_uploaded_message_has_its_keys(golden: Golden) -> None:
    root = golden(NAME)
    ids = TieredMetadata.read(Opened(str(root))).topic_ids
    assert ids.keys() >= {"Orders", "Audit", "Metrics"}
    files = TieredDirectory.find(str(root / "tiered"), "broker-a").index_files()
    assert len(files) == 8
    wanted = defaultdict[str, set[tuple[str, int, int]]](set)
    for log in (root / "tiered").glob("*/broker-a/*/*/COMMIT_LOG"):
        data = {int(path.name[-20:]): path.read_bytes() for path in log.iterdir()}
        topic, queue_id = log.parts[-3], int(log.parts[-2])
        for base, part in data.items():
            for message in walk_files({base: part}, len(part)).messages:
                for key in {*message.properties.get("KEYS", "").split(), message.properties.get("UNIQ_KEY")}:
                    if key:
                        wanted[index_key(topic, key)].add((topic, queue_id, message.physical_offset))
    assert sum(map(len, wanted.values())) == 1194
    for text, places in sorted(wanted.items())[::40]:
        topic = next(iter(places))[0]
        found = indexed_logs(files, {ids[topic]: key_hash(text)})
        assert {
            (topic, queue_id, at) for (_, queue_id), each in found.items() for at in each.candidates
        } >= places


def test_a_search_reads_few_messages(golden: Golden, tmp_path: Path) -> None:
    """Damage that a search does not meet is no error; a search that reads all messages meets it."""
    root = Path(shutil.copytree(golden(NAME), tmp_path / "store"))
    log = min((root / "tiered").glob("*/broker-a/Orders/0/COMMIT_LOG/*"), key=lambda path: path.name[-20:])
    flip(log, 88)  # the first body
    store = MessageStore.open(str(root), tiered_path=str(root / "tiered"))
    (row,) = [
        row
        for row in goldens.expected_rows(NAME)
        if (row["topic"], row["queueId"], row["queueOffset"]) == ("Orders", 0, 9)
    ]
    key = row["properties"]["UNIQ_KEY"]
    found = store.find(key=key, topic="Orders")
    assert told_places(found.table.to_pylist()) == told_places([row])
    with pytest.raises(CorruptStoreError):
        store.find(key=key, topic="Orders", use_index=False)


def test_a_damaged_index_file_is_not_used(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = Path(shutil.copytree(golden(NAME), tmp_path / "store"))
    path = max(
        (root / "tiered").glob("*/broker-a/rmq_sys_INDEX/0/INDEX/*"), key=lambda path: path.stat().st_size
    )
    flip(path, 26)  # the number of items
    row = next(row for row in goldens.expected_rows(NAME) if row["topic"] == "Orders")
    store = MessageStore.open(str(root), tiered_path=str(root / "tiered"))
    found = store.find(key=row["properties"]["UNIQ_KEY"], topic="Orders")
    assert told_places(found.table.to_pylist()) == told_places([row])
    assert "the index files of tiered storage are not used" in caplog.text
