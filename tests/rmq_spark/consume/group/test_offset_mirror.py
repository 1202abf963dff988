"""Which offset counts when group.json and the offset file differ: resets by others, deleted groups, dead
members.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.offset_store import LocalOffsets, StoreOffsets
from store_format.errors import StoreInUseError
from tests.rmq_spark.consume.group.test_member import LEASE, QUEUES, Group, _at, _settle, _zero
from tests.support.ownership import begins


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(str(tmp_path / "members"), LocalOffsets(str(tmp_path / "offsets.json")))
    yield made
    for member in made.members:
        if member._lease is not None:
            member._lease.end()


def _run(group: Group, positions: dict[MessageQueue, int]) -> None:
    """A query that reads up to these positions and stops."""
    member = group.join("before")
    _settle(member)
    member.leave(positions)


def _forget(group: Group) -> None:
    """What a deleted group leaves of its offsets."""
    assert isinstance(group.offsets, LocalOffsets)
    for suffix in ("", ".bak"):
        Path(group.offsets.path + suffix).unlink(missing_ok=True)


# ---- no member runs ----------------------------------------------------------------------------------------


def test_a_reset_that_others_made_while_no_query_ran_counts(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    _run(group, _at(q0=300, q1=332, q2=365, q3=329))
    # as mqadmin resetOffsetByTime on a broker, or an editor
    group.offsets.write(_at(q0=0, q1=10, q2=400), is_reset=True)
    member = group.join("a")
    with caplog.at_level(logging.WARNING):
        assert _settle(member).starts == _at(q0=0, q1=10, q2=400, q3=329)
    assert "group g: its offsets were moved while none of its queries ran" in caplog.text
    assert "T-0 of b at 0 instead of 300, T-1 of b at 10 instead of 332" in caplog.text
    member.leave(_at(q0=5, q1=10, q2=400, q3=329))
    assert group.offsets.read() == _at(q0=5, q1=10, q2=400, q3=329)


def test_a_group_that_was_deleted_begins_by_the_rule(group: Group, caplog: pytest.LogCaptureFixture) -> None:
    _run(group, _at(q0=10, q1=10, q2=10, q3=10))
    _forget(group)
    with caplog.at_level(logging.WARNING):
        assert group.join("a").settle(QUEUES, {}, begin=lambda queue: 3).starts == dict.fromkeys(QUEUES, 3)
    assert (
        "no longer has offsets of 4 queues; they start where consumeFromWhere says: T-0 of b was at 10"
        in caplog.text
    )


def test_two_queries_that_start_together_both_follow_the_file(group: Group) -> None:
    _run(group, dict.fromkeys(QUEUES, 10))
    _forget(group)
    a, b = group.join("a"), group.join("b")
    for member in (b, a):  # the first to join is not the first to take
        found = member.settle(QUEUES, {}, begin=lambda queue: 3)
        assert set(found.starts.values()) == {3}
        assert len(found.starts) == 2


def test_queues_that_are_not_read_now_are_compared_when_they_are(group: Group) -> None:
    """A topic left out of one run, or a store of the cluster: its positions stay, and the file counts later
    as well.
    """
    _run(group, _at(q0=10, q1=10, q2=10, q3=10))
    first = group.join("a")
    _settle(first, queues=QUEUES[:1])
    assert group.positions() == dict.fromkeys(range(4), 10)
    group.offsets.write(_at(q1=4), is_reset=True)
    assert _settle(first).starts == _at(q0=10, q1=4, q2=10, q3=10)


def test_a_checkpoint_that_is_further_counts_and_is_said(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    _run(group, _at(q0=300, q1=300, q2=0, q3=0))
    group.offsets.write(_at(q0=40, q1=40), is_reset=True)
    positions = _at(q0=300, q1=20)
    with caplog.at_level(logging.WARNING):
        assert begins(_settle(group.join("a"), positions), positions) == _at(q0=300, q1=40, q2=0, q3=0)
    assert "was set back to offset 40, but this query's checkpoint is at offset 300" in caplog.text


# ---- members that die --------------------------------------------------------------------------------------


class _Broken(LocalOffsets):
    """An offset file that nobody may write."""

    def write(self, offsets: object, *, is_reset: bool = False) -> None:
        raise StoreInUseError("held by a broker")


def test_positions_of_a_member_that_died_before_it_wrote_the_file_count(group: Group, tmp_path: Path) -> None:
    _run(group, dict.fromkeys(QUEUES, 10))
    file, group.offsets = group.offsets, _Broken(str(tmp_path / "offsets.json"))
    a = group.join("a")
    _settle(a)
    _settle(a, dict.fromkeys(QUEUES, 20))
    assert a._lease is not None
    a._lease.end()
    group.offsets = file
    assert file.read() == dict.fromkeys(QUEUES, 10)
    assert _settle(group.join("b")).starts == dict.fromkeys(QUEUES, 20)


def test_after_a_death_a_reset_to_any_offset_counts(group: Group) -> None:
    """Also to the very offset at which the dead member began."""
    group.offsets.write(dict.fromkeys(QUEUES, 7))
    a = group.join("a")
    _settle(a)
    _settle(a, dict.fromkeys(QUEUES, 20))
    assert group.offsets.read() == dict.fromkeys(QUEUES, 20)
    assert a._lease is not None
    a._lease.end()
    group.offsets.write(_at(q0=7, q1=15), is_reset=True)
    assert _settle(group.join("b")).starts == _at(q0=7, q1=15, q2=20, q3=20)


def test_a_member_that_was_dead_before_the_next_one_came_was_no_running_one(group: Group) -> None:
    """Of another host: for a lease time nobody knows whether it lives."""
    a = group.join("a")
    _settle(a)
    _settle(a, dict.fromkeys(QUEUES, 20))
    group.stand_still(a)
    _forget(group)
    b = group.join("b")
    assert _settle(b).starts == {}
    group.now += LEASE
    assert b.settle(QUEUES, {}, begin=lambda queue: 3).starts == dict.fromkeys(QUEUES, 3)


# ---- members run -------------------------------------------------------------------------------------------


def test_a_lower_offset_is_a_reset_that_running_queries_follow(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = group.join("a"), group.join("b")
    for member in (a, b, a, b):
        _settle(member)
    _settle(a, _at(q0=100, q1=100))
    _settle(b, _at(q2=100, q3=100))
    group.offsets.write(_at(q0=40, q2=60), is_reset=True)
    group.now += 2
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = _settle(a, _at(q0=110, q1=110))
            assert (found.starts, found.reset) == (_at(q0=40), 1)
    assert (
        "group g: its offsets were set back and its queries continue there: T-0 of b from 110 to 40"
        in caplog.text
    )
    assert _settle(b, _at(q2=110, q3=110)).starts == _at(q2=60)
    assert _settle(a, _at(q0=50, q1=110), reset=2).starts == {}
    _settle(b, _at(q2=61, q3=110), reset=2)
    assert group.offsets.read() == _at(q0=50, q1=110, q2=61, q3=110)


def test_a_reset_of_an_idle_query_is_seen(group: Group) -> None:
    a, positions = group.join("a"), dict.fromkeys(QUEUES, 100)
    _settle(a, positions)
    group.now += 2
    assert a.settle(QUEUES, positions, begin=_zero).starts == {}
    group.offsets.write(_at(q3=1), is_reset=True)
    group.now += 2
    assert a.settle(QUEUES, positions, begin=_zero).starts == _at(q3=1)


def test_a_higher_offset_is_ignored_with_a_warning_and_counts_when_nobody_runs(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    a, positions = group.join("a"), dict.fromkeys(QUEUES, 100)
    _settle(a, positions)
    group.offsets.write(_at(q1=500), is_reset=True)
    with caplog.at_level(logging.WARNING):
        for position in (110, 120):
            group.now += 2
            assert _settle(a, dict.fromkeys(QUEUES, position)).starts == {}
    assert (
        caplog.text.count(
            "another program set T-1 of b to offset 500, and the query is at offset 110: ignored"
        )
        == 1
    )
    assert group.offsets.read() == _at(q0=120, q1=500, q2=120, q3=120)
    a.leave(dict.fromkeys(QUEUES, 130))
    assert _settle(group.join("b")).starts == _at(q0=130, q1=500, q2=130, q3=130)


def test_offsets_that_vanish_under_a_running_query_are_written_again(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    a, positions = group.join("a"), dict.fromkeys(QUEUES, 100)
    _settle(a, positions)
    _forget(group)
    group.now += 2
    with caplog.at_level(logging.WARNING):
        assert a.settle(QUEUES, positions, begin=_zero).starts == {}
    assert "no longer has offsets of 4 queues; its running queries write them again" in caplog.text
    assert group.offsets.read() == positions


def test_a_file_that_is_torn_under_a_running_query_is_read_later(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    a, positions = group.join("a"), dict.fromkeys(QUEUES, 100)
    _settle(a, positions)
    assert isinstance(group.offsets, LocalOffsets)
    path = Path(group.offsets.path)
    whole = path.read_bytes()
    Path(f"{path}.bak").write_bytes(b"{")
    path.write_bytes(b"{")
    for _ in range(2):
        group.now += 2
        assert a.settle(QUEUES, positions, begin=_zero).starts == {}
    assert caplog.text.count("resets of its offsets are not noticed for now") == 1
    path.write_bytes(whole.replace(b":100", b":50", 1))
    group.now += 2
    assert list(a.settle(QUEUES, positions, begin=_zero).starts.values()) == [50]


def test_a_store_that_cannot_be_written_hides_nothing_about_the_others(tmp_path: Path) -> None:
    """Two brokers, one of which runs: what was written to the other's file is known, so that a reset there is
    seen.
    """
    queues = [MessageQueue("T", name, 0) for name in ("held", "open")]
    roots = {name: str(tmp_path / name) for name in ("held", "open")}
    for root in roots.values():
        Path(root, "config").mkdir(parents=True)

    class Store(StoreOffsets):
        def write(self, offsets: Mapping[MessageQueue, int], *, is_reset: bool = False) -> None:
            if not is_reset and any(queue.broker_name == "held" for queue in offsets):
                raise StoreInUseError("held by a broker")
            super().write(offsets, is_reset=is_reset)

    group = Group(str(tmp_path / "members"), Store("g", roots))
    a = group.join("a")
    _settle(a, dict.fromkeys(queues, 0), queues)
    group.now += 2
    _settle(a, dict.fromkeys(queues, 90), queues)
    state = group.state()
    assert [state.queues[queue].mirrored for queue in queues] == [-1, 90]
    group.offsets.write({queues[1]: 30}, is_reset=True)
    group.now += 2
    assert _settle(a, dict.fromkeys(queues, 95), queues).starts == {queues[1]: 30}
    a.leave({})
