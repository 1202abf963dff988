"""The entry of a message whose queue id or queue offset has a flipped bit is all that shows that the message
is damaged. Without the entry, the message would claim another one's place.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from tests.support import oracle
from tests.support.referee.made import made_and_harmed
from tests.support.writes import numbered_rows, write


def queue_files(root: Path) -> dict[Path, bytes]:
    """The files of the queues, without those of the topic New."""
    paths = [*root.glob("consumequeue/[!N]*/*/0*"), *root.glob("batchconsumequeue/*/*/0*")]
    return {path.relative_to(root): path.read_bytes() for path in paths}


def damage(root: Path) -> list[str]:
    return [str(each).replace(str(root), "") for each in diagnose(str(root)).of("damage")]


@pytest.mark.parametrize(
    "words",
    [
        "Inner Inner Inner+4 Inner | crashed | flip m1+27 4",
        "Inner Inner Inner+4 Inner | flip m1+27 4",
        "Inner+2 Inner+4 | flip m0+15",
        (
            "A:300*6 | log 1024 | entries 4 | crashed | remove log/0 | remove log/1024 | remove A0/0"
            " | flip m5+27 4"
        ),
    ],
)
def test_entries_that_show_a_damaged_message_stay(tmp_path: Path, words: str) -> None:
    root = made_and_harmed(tmp_path / "store", *words.split(" | ")).root
    files, found = queue_files(root), damage(root)
    recovered = Path(shutil.copytree(root, tmp_path / "recovered"))
    write(root, numbered_rows(0, 1, "New"))
    recover(str(recovered)).apply()
    for changed in (root, recovered):
        assert queue_files(changed) == files
        assert damage(changed) == found != []


@pytest.mark.parametrize("more", [["crashed"], []])
def test_a_batch_queue_with_such_an_entry_is_completed_behind_the_others(
    tmp_path: Path, more: list[str]
) -> None:
    """The message inside of the inner batch that it claims does not hide the batch."""
    store = made_and_harmed(tmp_path / "store", "Inner Inner Inner+4 Inner?", *more, "flip m1+27 4")
    ((path, before),) = queue_files(store.root).items()
    last = store.messages[-1]
    place = (last.physical_offset, last.total_size, oracle.tags_code(last), last.store_timestamp)
    after = before[:138] + oracle.batch_cq_unit(*place, 6, 1) + before[184:]
    recovered = Path(shutil.copytree(store.root, tmp_path / "recovered"))
    write(store.root, numbered_rows(0, 1, "New"))
    table = recover(str(recovered)).apply().to_pylist()
    assert queue_files(store.root) == queue_files(recovered) == {path: after}
    assert [row["position"] for row in table if row["action"] == "complete"] == [3]
