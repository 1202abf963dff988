"""A share of a group that pops in order: consumerOrderInfo.json, take-over after a kill, two ways at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.broker.pop.share import ConsumerShare, ShareOptions
from store_format import MessageStore
from store_format.errors import OptionError
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import read_group_offsets, rewrite_config, write_group_offsets
from store_format.metadata.read import read_order_infos, read_subscription_groups
from store_format.metadata.values import OrderInfo
from store_format.opened.store import Opened
from store_format.pop import order as order_info
from store_format.pop.state import PopState
from tests.support.popped import GROUP, TOPIC, popped_store

NOW = 1_700_000_200_000
KEY = f"{TOPIC}@{GROUP}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return popped_store(tmp_path / "s", 20, queues=2)


def _open(root: Path, *, fifo: bool | None = True, now: int = NOW) -> ConsumerShare:
    options = ShareOptions(fifo=fifo, clock_ms=lambda: now)
    return ConsumerShare.open(MessageStore.open(str(root)), GROUP, TOPIC, options)


def _killed(share: ConsumerShare) -> None:
    """The system drops the locks of a process that is killed."""
    share._keeper.close()
    share._lease.end()


def _pop(share: ConsumerShare, queue_id: int, count: int = 3) -> OrderInfo:
    def change(state: PopState) -> OrderInfo:
        start = state.queues[0, queue_id].next_offset
        return state.order.hand_out(
            queue_id, range(start, start + count), pop_time=share.options.clock_ms(), invisible_ms=30_000
        )

    return share.run(change)


def _ack(share: ConsumerShare, queue_id: int, offset: int, info: OrderInfo) -> bool:
    return share.run(lambda state: state.order.acknowledge(queue_id, offset, info.pop_time))


def _batches(share: ConsumerShare) -> dict[int, OrderInfo]:
    return share.run(lambda state: dict(state.order.batches))


def _stored(root: Path) -> dict[int, OrderInfo]:
    return (read_order_infos(Opened(str(root))) or {}).get(KEY, {})


def _write(root: Path, infos: dict[int, OrderInfo]) -> None:
    """As a broker that ran in between."""

    def merge(data: bytes | None, file: str) -> bytes | None:
        return order_info.merge_order_infos(data, KEY, infos, file)

    rewrite_config(str(root / "config" / "consumerOrderInfo.json"), merge, FileWrites(sync=False))


def test_the_files_have_the_batches_and_the_first_offset_not_acknowledged(root: Path) -> None:
    share = _open(root)
    batch = _pop(share, 0)
    _ack(share, 0, 1, batch)
    _ack(share, 0, 0, batch)
    share.keep()
    assert _stored(root) == _batches(share) != {}
    assert read_group_offsets(Opened(str(root)), GROUP) == {(TOPIC, 0): 2, (TOPIC, 1): 0}
    before = (root / "config" / "consumerOrderInfo.json").stat()
    share.keep()  # nothing has changed
    assert (root / "config" / "consumerOrderInfo.json").stat() == before
    _ack(share, 0, 2, batch)
    share.close()
    assert _stored(root)[0].commit_offset_bit == 7
    assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 3


def test_a_closed_share_goes_on_from_the_files(root: Path) -> None:
    share = _open(root)
    batch = _pop(share, 1)
    _ack(share, 1, 1, batch)
    share.close()
    again = _open(root)
    assert again.run(lambda state: state.order.is_blocked(1, NOW + 29_999, 30_000))
    assert _batches(again)[1].commit_offset_bit == 2
    assert _ack(again, 1, 0, batch)  # the handle is still good
    assert again.run(lambda state: state.queues[0, 1].next_offset) == 2
    again.close()


@pytest.mark.parametrize("is_written", [True, False])
def test_after_a_kill_the_log_counts(root: Path, is_written: bool) -> None:
    """Whether the files had the last changes or not."""
    share = _open(root)
    first = _pop(share, 0)
    share.keep()
    _ack(share, 0, 0, first)
    _pop(share, 1)
    if is_written:
        share.keep()
    expected = _batches(share)
    _killed(share)
    again = _open(root)
    assert _batches(again) == expected == _stored(root)
    again.close()


def test_a_kill_before_the_file_is_written_takes_over_nothing(root: Path) -> None:
    """The log notes a batch, the file never gets it, twice."""
    share = _open(root)
    first = _pop(share, 0)
    share.keep()
    _ack(share, 0, 0, first)
    for _ in range(2):
        share.run(lambda state: state.order.note_mirrored([0], _stored(root), state.order.batches))
        _killed(share)
        share = _open(root)
        assert _batches(share)[0].commit_offset_bit & 1
        _ack(share, 0, 1, first)
    share.close()


def test_what_a_broker_has_written_since_counts(root: Path) -> None:
    share = _open(root)
    _pop(share, 0)
    ours = _pop(share, 1)
    share.keep()
    _killed(share)
    theirs = OrderInfo((0, 1, 2, 3), NOW + 60_000, 10_000, NOW + 60_000, 1, "x", {0: 1, 1: 1, 2: 1}, None)
    _write(root, _stored(root) | {0: theirs})
    write_group_offsets(Opened(str(root)), GROUP, {(TOPIC, 0): 1}, timestamp=NOW)
    again = _open(root, now=NOW + 61_000)
    assert _batches(again) == {0: theirs, 1: ours}
    assert again.run(lambda state: state.queues[0, 0].next_offset) == 1
    again.close()


def test_a_batch_that_a_broker_has_dropped_blocks_nothing(root: Path) -> None:
    share = _open(root)
    _pop(share, 0)
    share.keep()
    _killed(share)
    _write(root, {})
    again = _open(root)
    assert _batches(again) == {}
    again.close()


def test_a_moved_group_is_not_blocked(root: Path) -> None:
    """A reset clears the batch (clearBlock), in the file too."""
    share = _open(root)
    _pop(share, 0)
    share.keep()
    write_group_offsets(Opened(str(root)), GROUP, {(TOPIC, 0): 7}, timestamp=NOW)
    share.keep()
    assert _batches(share) == _stored(root) == {}
    assert share.run(lambda state: state.queues[0, 0].next_offset) == 7
    share.close()


def test_a_day_later_the_batch_is_forgotten(root: Path) -> None:
    share = _open(root)
    _pop(share, 0)
    share.close()
    share = _open(root, now=NOW + order_info.FORGET_MS + 1)
    assert _batches(share) == _stored(root) == {}
    share.close()


@pytest.mark.parametrize("is_old", [True, False])
def test_a_broker_that_has_pop_knows_the_group(root: Path, is_old: bool) -> None:
    """A broker drops the batches of groups that subscriptionGroup.json lacks (autoClean)."""
    topics = root / "config" / "topics.json"
    if is_old:
        topics.write_text(topics.read_text().replace('"stateVersion":0,', ""))
    share = _open(root)
    _pop(share, 0)
    share.close()
    assert _stored(root)
    assert (GROUP in (read_subscription_groups(Opened(str(root))) or {})) is not is_old


@pytest.mark.parametrize("fifo", [True, False])
def test_one_group_pops_in_one_way(root: Path, fifo: bool) -> None:
    share = _open(root, fifo=fifo)
    with pytest.raises(
        OptionError, match=r"fifo: consumers of group billing pop topic Orders .*; give all of them"
    ):
        _open(root, fifo=not fifo)
    share.close()


@pytest.mark.parametrize("fifo", [True, False])
def test_what_is_in_flight_comes_again_in_the_other_way(root: Path, fifo: bool) -> None:
    """After a kill; nothing is lost."""

    def hand_out(state: PopState) -> Callable[[], object]:
        point = state.hand_out(0, 0, [0, 1, 2], 3, NOW, 30_000)
        return lambda: state.ack(point.key, [0])

    share = _open(root, fifo=fifo)
    if fifo:
        _ack(share, 0, 0, _pop(share, 0))
    else:
        share.run(lambda state: hand_out(state)())
    _killed(share)
    other = _open(root, fifo=not fifo)
    assert other.is_ordered is not fifo
    assert other.run(lambda state: (state.queues[0, 0].lowest, state.queues[0, 0].next_offset)) == (1, 1)
    assert not other.run(lambda state: state.order.is_blocked(0, NOW, 30_000))
    other.close()
