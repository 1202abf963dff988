"""The numbers of requests in docs/deploy.md are those that a server of object storage counts."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.files import tree
from store_format.index.file import key_hash
from tests.support import goldens
from tests.support.doc_pages import read_page
from tests.support.large_index import entries_in_one_slot, middle_key, write_large_index
from tests.support.object_server import ObjectServer

_ROW = re.compile(r"^\| ([^|]*`(?:lag|find)`[^|]*) \| (\d+) \| ([a-z0-9, ]+) \|$", re.MULTILINE)
_SHOWN = {row[1]: (int(row[2]), row[3]) for row in _ROW.finditer(read_page("deploy.md"))}


def _lag(path: str) -> None:
    assert MessageStore.open(path).view("lag").num_rows


def _find_by_id(path: str) -> None:
    (row, *_) = [row for row in goldens.expected_rows("basic-5.5.0") if row["topic"] == "Orders"]
    assert MessageStore.open(path).find(message_id=row["msgId"]).how == "offset"


def _find_by_key(path: str) -> None:
    found = MessageStore.open(path).find(key=middle_key(), topic="Orders")
    assert (found.how, found.table.num_rows > 0) == ("index", True)


_ASKED = {
    "`lag` of 16 queues in 30 files": _lag,
    "`find` by offset message id": _find_by_id,
    "`find` by key and topic, in a full index file of 420 MB with five entries in the slot": _find_by_key,
}


def test_every_row_is_asked() -> None:
    assert _SHOWN.keys() == _ASKED.keys()


@pytest.mark.parametrize("asked", _ASKED)
def test_requests_are_as_shown(
    server: ObjectServer, basic: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "_AGE_MIN_S", 600.0)  # a busy machine would list it again
    if "420 MB" in asked:
        shutil.rmtree(basic / "index")
        (basic / "index").mkdir()
        entries = entries_in_one_slot(key_hash(f"Orders#{middle_key()}"))
        write_large_index(basic / "index/20261121065231934", entries)
    _ASKED[asked](server.url_of(basic))
    kinds = Counter(
        request.key.split("/")[1] if request.kind == "get" else "list" for request in server.requests
    )
    text = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    assert _SHOWN[asked] == (len(server.requests), text)
