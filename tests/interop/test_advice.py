"""Where an advice, or docs/howto-recover.md, leads to a broker's start: what the real classes have then."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.publication import save_checkpoint
from store_format.diagnose import diagnose
from store_format.diagnose.broker_start import MayStart, broker_start
from store_format.files.write import FileWrites
from store_format.metadata.read import Checkpoint
from store_format.opened.store import Opened
from tests.interop.harness import RocketMQ
from tests.interop.programs import ProgramError
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered

Harm = Callable[[Path], object]


def _without_one_queue(root: Path) -> None:
    shutil.rmtree(root / "consumequeue" / "Orders" / "2")


def _without_queues(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")


def _crashed_without_queues(root: Path) -> None:
    _without_queues(root)
    (root / "abort").touch()
    last = max(int(path.name) for path in (root / "commitlog").iterdir())
    save_checkpoint(Opened(str(root)), Checkpoint(logics_physical_offset=last), FileWrites(sync=False))


def _moved_out(name: str) -> Harm:
    return lambda root: (root / name).rename(root.parent / f"{root.name}-{name}")


@pytest.mark.parametrize(
    ("harm", "store", "lost"),
    [
        (_without_one_queue, "basic-5.5.0", 365),  # the advice says so: a broker does not see them
        pytest.param(_without_queues, "basic-5.5.0", 0, marks=pytest.mark.whole),
        (_crashed_without_queues, "basic-5.5.0", None),  # some
        pytest.param(_moved_out("checkpoint"), "basic-5.5.0", 0, marks=pytest.mark.whole),
        (_moved_out("checkpoint"), "crash-5.5.0", 0),
        pytest.param(_moved_out("index"), "basic-5.5.0", 0, marks=pytest.mark.whole),
    ],
)
def test_what_a_broker_has_after_its_start(
    rocketmq: Callable[[str], RocketMQ],
    copy_of: Golden,
    harm: Harm,
    store: str,
    lost: int | None,
) -> None:
    root = copy_of(store)
    before = _messages(root)
    harm(root)
    assert _messages(root) == before  # readers lose nothing
    opened = rocketmq("5.5.0").open_store(root, goldens.config(store), start=True)
    missing = before - len(opened.messages)
    assert missing == lost if lost is not None else 0 < missing < before


def test_after_a_write_of_ours_a_broker_has_the_lost_queue_too(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    root = copy_of("basic-5.5.0")
    before = _messages(root)
    _without_one_queue(root)
    append(root, numbered("Orders", 10_000, 8))
    opened = rocketmq("5.5.0").open_store(root, goldens.config("basic-5.5.0"), start=True)
    assert len(opened.messages) == before + 8 == _messages(root)


@pytest.mark.parametrize("folder", ["compactionLog", "compactionCq"])
def test_a_broker_refuses_what_a_killed_round_left(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, folder: str
) -> None:
    root, java = copy_of("compaction-5.5.0"), rocketmq("5.5.0")
    config = goldens.config("compaction-5.5.0")
    assert java.open_store(root, config).messages
    left = root / "compaction" / folder / "Stock" / "0" / f"{0:020d}"
    kept = left.with_name(f"{left.name}.delete")
    shutil.copy(left, kept)
    answer = broker_start(diagnose(str(root)))
    assert (answer.may, answer.file) == (MayStart.NO, str(kept))
    with pytest.raises(ProgramError, match=r"For input string: .0+\.delete"):
        java.open_store(root, config)
    kept.unlink()
    assert broker_start(diagnose(str(root))).may is MayStart.YES
    assert java.open_store(root, config).messages


def _messages(root: Path) -> int:
    return sum(queue.max_offset - queue.min_offset for queue in MessageStore.open(str(root)).queues())
