"""Membership seen from inside: joining, handing over, fencing, resets and what is recorded, with a clock that
the test moves.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.change import Change, OwnershipEvent, append_events
from rmq_spark.consume.group.directory import (
    GroupState,
    MemberEntry,
    QueueEntry,
    read_state,
    state_serial,
    write_state,
)
from rmq_spark.consume.group.member import Assignment, GroupMember, Membership, join
from rmq_spark.consume.offset_store import LocalOffsets, NoOffsets, OffsetStore, StoreOffsets
from store_format.errors import CorruptStoreError, OptionError, StoreInUseError
from store_format.files.lock import StoreLock
from store_format.files.polling import Clocks
from store_format.files.write import FileWrites
from tests.support.failing_offsets import kill_at_each_change
from tests.support.fork_server import ForkServer
from tests.support.ownership import begins, double_ownership, queues_by_client, read_events

QUEUES = [MessageQueue("T", "b", queue_id) for queue_id in range(4)]
LEASE = 30.0


@dataclass
class Group:
    """A group's directory, its offsets, a clock in the test's hand, and the members made so far."""

    directory: str
    offsets: OffsetStore
    now: float = 1000.0
    members: list[GroupMember] = field(default_factory=list)

    def join(self, *clients: str, **changes: object) -> GroupMember:
        spec = {
            "group": "g", "clients": clients, "strategy": strategy("AVG"), "subscription": "T *",
            "lease_seconds": LEASE,
        } | changes  # fmt: skip
        clocks = Clocks(lambda: self.now, lambda: int(self.now * 1000), self._sleep)
        member = join(self.directory, Membership(**spec), self.offsets, clocks=clocks)  # type: ignore[arg-type] # by name
        self.members.append(member)
        return member

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def stand_still(self, member: GroupMember) -> None:
        """As a process that is stopped: no beat any more."""
        lease = member._lease
        assert lease is not None
        lease._thread.stop()

    def beat(self, member: GroupMember) -> None:
        """Moving the test's clock does not wake the threads, which wait by the real one."""
        assert member._lease is not None
        member._lease.renew()

    def state(self) -> GroupState:
        return read_state(self.directory)

    def owners(self) -> dict[int, str | None]:
        return {queue.queue_id: entry.client for queue, entry in self.state().queues.items()}

    def positions(self) -> dict[int, int | None]:
        return {queue.queue_id: entry.position for queue, entry in self.state().queues.items()}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(str(tmp_path / "members"), LocalOffsets(str(tmp_path / "offsets.json")))
    yield made
    assert double_ownership(read_events(made.directory)) == []
    for member in made.members:
        if member._lease is not None:
            member._lease.end()


def _zero(queue: MessageQueue) -> int:
    return 0


def _settle(
    member: GroupMember,
    positions: dict[MessageQueue, int] | None = None,
    queues: list[MessageQueue] = QUEUES,
    reset: int = 0,
) -> Assignment:
    return member.settle(queues, positions or {}, begin=_zero, reset=reset)


def _two(group: Group) -> tuple[GroupMember, GroupMember]:
    """Members a and b, which have two queues each."""
    a, b = group.join("a"), group.join("b")
    for member in (a, b, a, b):
        _settle(member)
    return a, b


def _at(**positions: int) -> dict[MessageQueue, int]:
    """`q0=5` for queue 0."""
    return {QUEUES[int(name[1:])]: position for name, position in positions.items()}


# ---- sharing -----------------------------------------------------------------------------------------------


def test_a_queue_changes_hands_when_its_owner_has_recorded_its_position(group: Group) -> None:
    a = group.join("a")
    _settle(a)
    b = group.join("b")
    waiting = _settle(b)
    assert (waiting.owned, waiting.is_settled) == ({}, False)
    given_back = _settle(a, _at(q0=5, q1=6, q2=7, q3=8))
    assert given_back.lost == frozenset(QUEUES[2:])
    assert given_back.is_settled
    taken = _settle(b)
    assert taken.is_settled
    assert taken.starts == _at(q2=7, q3=8)
    assert group.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert group.offsets.read() == _at(q0=5, q1=6, q2=7, q3=8)


def test_logical_clients_are_members_of_their_own_in_the_allocation(group: Group) -> None:
    many = group.join("m@0", "m@1", "m@2")
    assert queues_by_client(_settle(many)) == {"m@0": QUEUES[:2], "m@1": QUEUES[2:3], "m@2": QUEUES[3:]}
    group.join("a")
    # AVG over a, m@0, m@1, m@2: one queue each. Queues that only change the client stay in the query, at
    # their positions.
    found = _settle(many, _at(q0=1, q1=2, q2=3, q3=4))
    assert queues_by_client(found) == {"m@0": QUEUES[1:2], "m@1": QUEUES[2:3], "m@2": QUEUES[3:]}
    assert (found.starts, found.lost) == ({}, frozenset(QUEUES[:1]))
    assert group.positions() == {0: 1, 1: 2, 2: 3, 3: 4}
    after = _settle(many, _at(q1=3, q2=4, q3=5))
    assert group.positions() == {0: 1, 1: 3, 2: 4, 3: 5}  # the epoch that came with the new client counts
    assert after.is_settled


def test_a_member_that_leaves_records_and_gives_back(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    _settle(a)
    _settle(b)
    _settle(a)
    a.leave(_at(q0=50, q1=51))
    found = _settle(b)
    assert found.starts == _at(q0=50, q1=51, q2=0, q3=0)
    assert found.is_settled
    assert list(Path(group.directory, "leases").iterdir()) == [Path(group.directory, "leases", b.id)]
    b.leave(_at(q2=9))
    assert group.state().members == {}
    assert group.offsets.read() == _at(q0=50, q1=51, q2=9, q3=0)


def test_new_queues_of_a_topic_are_shared_too(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    two = QUEUES[:2]
    for member in (a, b, a, b):
        _settle(member, queues=two)
    assert group.owners() == {0: "a", 1: "b"}
    for member in (a, b, a, b):
        found = _settle(member)
    assert found.is_settled
    assert group.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_config_shares_nothing_twice(group: Group) -> None:
    a = group.join("a", strategy=strategy("CONFIG", config=[*QUEUES[:3], MessageQueue("Other", "b", 0)]))
    b = group.join("b", strategy=strategy("CONFIG", config=QUEUES[2:]))
    assert set(_settle(a).owned) == set(QUEUES[:3])
    found = _settle(b)
    assert set(found.owned) == {QUEUES[3]}
    assert not found.is_settled


# ---- where reading begins ----------------------------------------------------------------------------------


def test_the_start_is_the_furthest_of_checkpoint_record_and_group(group: Group) -> None:
    group.offsets.save(_at(q0=30, q1=10, q2=10))
    a = group.join("a")
    checkpoint = _at(q0=10, q1=30)
    assert begins(_settle(a, checkpoint), checkpoint) == _at(q0=30, q1=30, q2=10, q3=0)
    a.leave(_at(q3=77))
    group.offsets.save(_at(q2=20))  # a Java consumer was here meanwhile
    b = group.join("b")
    assert begins(_settle(b, _at(q0=31)), _at(q0=31)) == _at(q0=31, q1=30, q2=20, q3=77)


def test_a_first_start_is_kept_for_whoever_comes_next(group: Group) -> None:
    a = group.join("a")
    a.settle(QUEUES, {}, begin=lambda queue: 90)
    group.stand_still(a)  # before it read anything
    b = group.join("b")
    _settle(b)
    group.now += LEASE
    found = b.settle(QUEUES, {}, begin=lambda queue: 200)
    assert set(found.starts.values()) == {90}


def test_an_unknown_offset_in_the_store_is_none(group: Group) -> None:
    group.offsets.save(_at(q0=-1, q1=0))
    assert group.join("a").settle(QUEUES, {}, begin=lambda queue: 7).starts == _at(q0=7, q1=0, q2=7, q3=7)


# ---- leases and epochs -------------------------------------------------------------------------------------


def test_a_member_past_its_lease_loses_its_queues_and_records_nothing(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = _two(group)
    group.stand_still(a)
    _settle(b)
    group.now += LEASE - 1
    assert set(_settle(b).owned) == set(QUEUES[2:])
    group.now += 1.1
    taken = _settle(b, _at(q2=5))
    assert set(taken.owned) == set(QUEUES)
    assert "its lease was not renewed for 30 s" in caplog.text
    _settle(b, _at(q0=3, q1=3))
    group.beat(b)
    before, offsets = group.positions(), group.offsets.read()
    # It goes on, and says how far its last batch went.
    back = _settle(a, _at(q0=100, q1=100))
    assert back.lost == frozenset(QUEUES[:2])
    assert back.owned == {}  # b has them still
    assert (group.positions(), group.offsets.read()) == (before, offsets)
    assert _settle(b, _at(q0=4, q1=4)).lost == frozenset(QUEUES[:2])
    # What it comes back with counts as its checkpoint.
    assert begins(_settle(a, _at(q0=100, q1=2)), _at(q0=100, q1=2)) == _at(q0=100, q1=4)
    events = [event for event in read_events(group.directory) if event.queue == 0]
    assert [(event.event, event.client, event.epoch) for event in events] == [
        ("gain", "a", 1), ("expire", "a", 1), ("gain", "b", 2), ("release", "b", 2), ("gain", "a", 3),
    ]  # fmt: skip


def test_a_lease_that_is_renewed_lasts(group: Group) -> None:
    a, b = _two(group)
    for _ in range(5):
        group.now += LEASE - 1
        group.beat(a)
        assert set(_settle(b).owned) == set(QUEUES[2:])


def test_a_member_on_another_host_is_judged_by_its_beat_alone(group: Group) -> None:
    """Its lock is not held by anybody that this host could ask about."""
    far = "f" * 16
    beat = Path(group.directory, "leases", far, "beat")
    beat.parent.mkdir(parents=True)
    beat.write_bytes(b"%020d" % 1)
    state = GroupState(1, 0, 0, "T *", "AVG", {far: MemberEntry(["a"], "elsewhere/boot", 1, LEASE)})
    state.queues[QUEUES[0]] = QueueEntry(far, "a", 4, 17)
    write_state(group.directory, state, FileWrites(sync=False))
    b = group.join("b")
    assert set(_settle(b).owned) == set(QUEUES[2:])
    for count in range(2, 5):
        group.now += LEASE - 1
        beat.write_bytes(b"%020d" % count)
        assert set(_settle(b).owned) == set(QUEUES[2:])
    group.now += LEASE
    found = _settle(b)
    assert found.starts == _at(q0=17, q1=0, q2=0, q3=0)
    assert found.owned[QUEUES[0]].epoch == 5
    assert not beat.exists()


def test_what_lies_in_the_place_of_a_beat_does_not_beat(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    group.stand_still(a)
    beat = Path(group.directory, "leases", a.id, "beat")
    beat.unlink()
    beat.mkdir()
    _settle(b)
    assert a.id in group.state().members
    group.now += LEASE
    _settle(b)
    assert a.id not in group.state().members


def test_nothing_new_costs_one_look(group: Group) -> None:
    a = group.join("a")
    positions = _at(q0=1)
    _settle(a, positions)
    serial = group.state().serial
    found = a.settle(QUEUES, positions, begin=_zero)
    with StoreLock(group.directory):  # it does not even ask for the lock
        begun = time.perf_counter()
        for _ in range(1000):
            assert a.settle(QUEUES, positions, begin=_zero) is found
        assert (time.perf_counter() - begun) / 1000 < 0.0002
    assert group.state().serial == serial


def test_a_state_that_looks_like_the_one_before_is_another_one(group: Group) -> None:
    """The same inode, length and time: what a filesystem with a slow clock may give two states."""
    a, _ = _two(group)
    path = Path(group.directory, "group.json")
    state, status, data = group.state(), path.stat(), path.read_bytes()
    change = Change(state, "0" * 16, 0)
    change.release(QUEUES[0], a.id)
    state.log_size = append_events(group.directory, change.events, state.log_size, FileWrites(sync=False))
    state.queues[QUEUES[0]].position = 1  # as long as the 0 before
    state.serial += 1
    write_state(group.directory, state, FileWrites(sync=False))
    changed = path.read_bytes().ljust(len(data))
    path.write_bytes(changed)
    a._identity = (path.stat().st_ino, len(changed), status.st_mtime_ns)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    group.now += 2
    assert _settle(a).owned[QUEUES[0]].epoch == 2
    assert state_serial(str(Path(group.directory, "nowhere"))) is None


def test_a_directory_whose_lock_somebody_keeps(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rmq_spark.consume.group.member._LOCK_SECONDS", 0.05)
    a = group.join("a")
    _settle(a)
    with StoreLock(group.directory):
        for position in (5, 6):
            found = _settle(a, _at(q0=position))
            assert set(found.owned) == set(QUEUES)
            assert not found.is_settled
    assert caplog.text.count("positions are not recorded for now") == 1
    assert group.positions()[0] == 0
    assert _settle(a, _at(q0=7)).is_settled
    assert group.positions()[0] == 7
    state = group.state()
    state.queues[QUEUES[1]].epoch += 1  # as if it had been expelled
    state.serial += 1
    write_state(group.directory, state, FileWrites(sync=False))
    with StoreLock(group.directory):
        assert _settle(a, _at(q0=8)).lost == {QUEUES[1]}


# ---- who fits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"subscription": "T TagA"}, "expected the subscription of its members, T *; found T TagA"),
        (
            {"strategy": strategy("CONSISTENT_HASH")},
            "expected the allocation strategy of its members, AVG; found CONSISTENT_HASH virtual",
        ),
        (
            {"clients": ("b", "a")},
            "expected a clientId that no other query of the group uses, found 'a' twice",
        ),
    ],
)
def test_a_member_that_does_not_fit_is_refused_with_an_explanation(
    group: Group, changes: dict[str, object], said: str
) -> None:
    a = group.join("a")
    _settle(a)
    with pytest.raises(OptionError) as caught:
        group.join(**({"clients": ("b",)} | changes))
    assert said in str(caught.value)
    assert list(group.state().members) == [a.id]
    assert len(list(Path(group.directory, "leases").iterdir())) == 1
    a.leave({})
    group.join(**({"clients": ("b",)} | changes))  # nobody is there whom it would not fit


def test_one_that_comes_back_to_a_group_that_has_changed_is_refused(group: Group) -> None:
    a = group.join("a")
    _settle(a)
    group.stand_still(a)
    state = group.state()
    Change(state, "0" * 16, 0).expel(a.id, "for the test")
    state.serial += 1
    write_state(group.directory, state, FileWrites(sync=False))
    group.join("b", subscription="T TagB")
    with pytest.raises(OptionError) as caught:
        _settle(a)
    assert "found T *." in str(caught.value)


# ---- how often it is recorded ------------------------------------------------------------------------------


def test_recording_at_intervals(group: Group) -> None:
    a = group.join("a", persist_seconds=5.0)
    others = _at(q1=0, q2=0, q3=0)
    _settle(a, _at(q0=1) | others)
    group.now += 0.5
    assert _settle(a, _at(q0=2) | others).starts == {}
    assert group.positions()[0] == 1
    group.now += 5
    _settle(a, _at(q0=3) | others)
    assert group.positions()[0] == 3
    assert group.offsets.read()[QUEUES[0]] == 3
    a.settle(QUEUES, _at(q0=4) | others, begin=_zero, force=True)
    assert group.positions()[0] == 4
    assert group.offsets.read()[QUEUES[0]] == 4
    a.leave(_at(q0=5))
    assert group.offsets.read()[QUEUES[0]] == 5


class _Fails(LocalOffsets):
    """An offset store that a broker has for a while."""

    is_held = True

    def write(self, offsets: object, *, is_reset: bool = False) -> None:
        if self.is_held:
            raise StoreInUseError("held by a broker")
        super().write(offsets, is_reset=is_reset)  # type: ignore[arg-type]


def test_a_mirror_that_cannot_be_written_is_tried_again(group: Group, tmp_path: Path) -> None:
    store = _Fails(str(tmp_path / "other.json"))
    group.offsets = store
    a = group.join("a", persist_seconds=5.0)
    _settle(a, _at(q0=9))
    assert store.read() == {}
    assert group.positions()[0] == 9
    store.is_held = False
    group.now += 6
    _settle(a, _at(q0=10))
    assert store.read() == _at(q0=10, q1=0, q2=0, q3=0)


def test_waiting_for_a_settled_allocation(group: Group) -> None:
    a, b = group.join("a"), group.join("b")
    _settle(a)
    begun = group.now
    found = b.wait_settled(QUEUES, {}, begin=_zero)  # a comes to no boundary
    assert LEASE <= group.now - begun < LEASE + 1 or found.is_settled
    _settle(a)
    assert b.wait_settled(QUEUES, {}, begin=_zero).is_settled


# ---- resets ------------------------------------------------------------------------------------------------


def _reset(group: Group, targets: dict[MessageQueue, int]) -> None:
    with StoreLock(group.directory):
        state = read_state(group.directory)
        change = Change(state, "", int(group.now * 1000))
        change.reset(targets)
        group.offsets.save(targets, is_reset=True)
        state.log_size = append_events(group.directory, change.events, state.log_size, FileWrites(sync=False))
        state.serial += 1
        write_state(group.directory, state, FileWrites(sync=False))


def test_a_reset_is_followed_backwards_and_what_was_read_before_it_is_not_recorded(group: Group) -> None:
    a = group.join("a")
    _settle(a, _at(q0=100, q1=100, q2=1, q3=1))
    _reset(group, _at(q0=40, q3=60))
    for _ in range(2):  # told until it is followed: a stream may be asked again before it makes a batch
        found = _settle(a, _at(q0=150, q1=150, q2=1, q3=1))
        assert found.starts == _at(q0=40, q3=60)
        assert (found.lost, found.reset) == (frozenset(), 1)
        assert group.positions() == {0: 40, 1: 150, 2: 1, 3: 60}
    # It may come to be at the very offset where it was.
    assert _settle(a, _at(q0=150, q1=160, q2=1, q3=61), reset=1).starts == {}
    assert group.positions() == {0: 150, 1: 160, 2: 1, 3: 61}
    assert group.offsets.read() == _at(q0=150, q1=160, q2=1, q3=61)
    _reset(group, _at(q1=5))
    assert _settle(a, _at(q0=151, q1=161, q2=1, q3=61), reset=1).starts == _at(q1=5)
    assert group.positions()[0] == 151  # the queues that the reset left alone go on
    a.leave(_at(q0=152, q1=6), 2)
    assert group.offsets.read() == _at(q0=152, q1=6, q2=1, q3=61)


@pytest.mark.parametrize(("seen", "start"), [(0, 55), (1, 90)])
def test_a_checkpoint_from_before_a_reset_says_nothing(group: Group, seen: int, start: int) -> None:
    a = group.join("a")
    _settle(a, _at(q0=80))
    _reset(group, _at(q0=40))
    _settle(a, _at(q0=85))
    a.leave(_at(q0=55), 1)
    b = group.join("b")
    positions = _at(q0=90, q1=3)
    for _ in range(2):
        assert _settle(b, positions, reset=seen).starts == _at(q2=0, q3=0) | ({} if seen else _at(q0=start))
    assert group.positions() == {0: start, 1: 3, 2: 0, 3: 0}


# ---- what is on disk ---------------------------------------------------------------------------------------


def test_the_state_comes_back(tmp_path: Path) -> None:
    state = GroupState(7, 2, 9, "s", "AVG", {"0" * 16: MemberEntry(["é\n"], "h", 4, 1.5)})
    state.queues = {
        MessageQueue("T\u2028", "b", 2**31 - 1): QueueEntry("0" * 16, "c", 3, 2**63 - 1, 1),
        QUEUES[0]: QueueEntry(),
    }
    state.queues |= {
        QUEUES[1]: QueueEntry(mirrored=-1),
        QUEUES[2]: QueueEntry(position=7, mirrored=5, is_unattended=True),
    }
    write_state(str(tmp_path), state, FileWrites(sync=False))
    assert read_state(str(tmp_path)) == state
    assert read_state(str(tmp_path / "nowhere")) == GroupState()


def _broken(change: Callable[[dict], object]) -> bytes:
    value = {
        "version": 1, "serial": 1, "reset": 0, "logSize": 0, "subscription": "", "strategy": "",
        "queues": [["T", "b", 0, None, None, 1, 5, 0]],
        "mirrored": [None], "unattended": [], "stops": [], "at": [],
        "members": {
            "0" * 16: {"clients": ["c"], "host": "h", "processId": 1, "leaseSeconds": 30, "brokers": []}
        },
    }  # fmt: skip
    change(value)
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b"{", b"null", b"[" * 100_000, b"\xff", b'{"version":1}',
        _broken(lambda v: v.update(version=2)),
        _broken(lambda v: v.update(serial=-1)),
        _broken(lambda v: v.update(serial=True)),
        _broken(lambda v: v.update(subscription=None)),
        _broken(lambda v: v.update(members={"../../x": {}})),
        _broken(lambda v: v.update(members=[])),
        _broken(lambda v: v["members"].update({"0" * 16: {"clients": "c", "host": 1}})),
        _broken(lambda v: v["members"]["0" * 16].update(leaseSeconds=float("inf"))),
        _broken(lambda v: v["queues"][0].__setitem__(2, 2**31)),
        _broken(lambda v: v["queues"][0].__setitem__(3, "../0")),
        _broken(lambda v: v["queues"][0].__setitem__(6, 1.5)),
        _broken(lambda v: v["queues"][0].append(1)),
        _broken(lambda v: v.update(queues=7)),
        _broken(lambda v: v.update(mirrored=[])),
        _broken(lambda v: v.update(mirrored=[-2])),
        _broken(lambda v: v.update(unattended=["0"])),
    ],
    ids=lambda data: data[-60:].decode("latin-1"),
)  # fmt: skip
def test_a_state_that_is_none_names_its_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "group.json").write_bytes(data)
    with pytest.raises(CorruptStoreError) as caught:
        read_state(str(tmp_path))
    assert caught.value.file == f"{tmp_path}/group.json"
    with pytest.raises(CorruptStoreError):
        join(str(tmp_path), Membership("g", ("a",), strategy("AVG"), ""), NoOffsets())


def _event(serial: int, event: str, epoch: int, client: str = "a", writer: str = "w") -> OwnershipEvent:
    return OwnershipEvent(serial, writer, serial, event, "T", "b", 0, client, writer, epoch, 0)


def test_the_log_shows_a_queue_owned_twice() -> None:
    assert double_ownership([_event(1, "gain", 1), _event(2, "release", 1), _event(3, "gain", 2, "b")]) == []
    assert (
        "b gained it in epoch 2 while a had it in epoch 1"
        in double_ownership([_event(1, "gain", 1), _event(2, "gain", 2, "b")])[0]
    )
    assert (
        "epoch 1 of b is not a new epoch"
        in double_ownership([_event(1, "gain", 1), _event(2, "expire", 1), _event(3, "gain", 1, "b")])[0]
    )


def _log(directory: Path, size: int, *events: OwnershipEvent) -> int:
    """Adds them and has the state say so."""
    files = FileWrites(sync=False)
    size = append_events(str(directory), events, size, files)
    write_state(str(directory), GroupState(log_size=size), files)
    return size


def test_lines_of_a_change_that_never_came_true_do_not_count(tmp_path: Path) -> None:
    size = _log(tmp_path, 0, _event(1, "gain", 1))
    # killed here
    append_events(
        str(tmp_path), [_event(2, "release", 1), _event(2, "gain", 2, "x" * 50)], size, FileWrites(sync=False)
    )
    assert [event.serial for event in read_events(str(tmp_path))] == [1]
    size = _log(tmp_path, size)
    size = _log(tmp_path, size, _event(2, "gain", 2, "c"))
    assert [(event.serial, event.client) for event in read_events(str(tmp_path))] == [(1, "a"), (2, "c")]


def test_the_log_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_spark.consume.group.change._SIZE_MAX", 4000)
    size = 0
    for serial in range(100):
        before = size
        size = _log(tmp_path, size, _event(serial, "gain", serial))
    found = [event.serial for event in read_events(str(tmp_path))]
    assert found == list(range(found[0], 100))
    assert 2000 < size < 4400
    # One that died when it had halved the log, before the state could say so.
    _log(tmp_path, 100 * before, _event(100, "gain", 100))
    assert [event.serial for event in read_events(str(tmp_path))] == list(range(found[0], 101))[
        -len(read_events(str(tmp_path))) :
    ]


def test_replays_are_marked(group: Group) -> None:
    a = group.join("a")
    a.note_replay(QUEUES[:2])
    assert [(event.event, event.queue) for event in read_events(group.directory)] == [
        ("replay", 0),
        ("replay", 1),
    ]


@pytest.mark.process
@pytest.mark.parametrize("what", ["kill", "torn"])
def test_a_member_killed_at_every_change_is_succeeded(tmp_path: Path, forks: ForkServer, what: str) -> None:
    """It joins, begins at 3, records 5, leaves with 20. Whoever comes next goes on from one of these, and
    never from an earlier one.
    """
    base, copies = tmp_path / "base", tmp_path / "copies"
    (base / "config").mkdir(parents=True)
    copies.mkdir()
    changes = kill_at_each_change(forks, base, copies, what, "member")
    starts = []
    for at in range(1, changes + 2):
        root = str(copies / str(at))
        queue = MessageQueue("T", "b", 0)
        store = StoreOffsets("g", {"b": root})
        shown = store.read().get(queue, 0)
        member = join(f"{root}/group", Membership("g", ("b",), strategy("AVG"), "T *"), store)
        found = member.settle([queue], {}, begin=lambda _: 3)
        assert found.is_settled
        assert shown <= found.starts[queue]
        starts.append(found.starts[queue])
        member.leave({queue: 30})
        assert store.read() == {queue: 30}
        assert read_state(f"{root}/group").members == {}
        assert double_ownership(read_events(f"{root}/group")) == []
    assert starts == sorted(starts)
    assert set(starts) == {3, 5, 20}
    assert len(starts) > 30


# ---- any order of events -----------------------------------------------------------------------------------

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["settle", "settle", "settle", "die", "reset"]), st.integers(0, 2), st.integers(1, 9)
    ),
    max_size=40,
)


@given(_STEPS)
def test_whatever_happens_a_queue_has_one_owner_and_no_position_is_lost(
    steps: list[tuple[str, int, int]],
) -> None:
    """Three members over one state: each reads on what it believes to own, and all that was recorded was
    read.
    """
    state = GroupState()
    spec = [Membership("g", (name,), strategy("AVG"), "") for name in "abc"]
    held: list[dict[MessageQueue, int]] = [{}, {}, {}]
    seen = [0, 0, 0]
    positions: list[dict[MessageQueue, int]] = [{}, {}, {}]
    events: list[OwnershipEvent] = []
    read: dict[MessageQueue, set[int]] = {queue: set() for queue in QUEUES}
    for what, who, amount in steps:
        name = str(who) * 16
        change = Change(state, name, 0)
        if what == "die" and name in state.members:
            # and it does not know: it reads on what it holds, and tries to record that
            change.expel(name, "dead")
        elif what == "reset":
            change.reset({queue: min(amount, len(read[queue])) for queue in QUEUES})
        elif what == "settle":
            if name not in state.members:
                change.admit(
                    "g", name, MemberEntry(list(spec[who].clients), "", 1, 1.0), subscription="", strategy=""
                )
                lost = dict(held[who])
                change.record(name, lost, positions[who], seen[who])
                assert not any(change.owns(name, queue, epoch) for queue, epoch in lost.items())
                held[who] = {}
            change.record(name, held[who], positions[who], seen[who])
            held[who] = {
                queue: epoch for queue, epoch in held[who].items() if change.owns(name, queue, epoch)
            }
            for queue in held[who]:
                if state.queues[queue].reset > seen[who]:
                    positions[who][queue] = state.queues[queue].position or 0
            seen[who] = state.reset
            target = spec[who].allocate(state.clients(), QUEUES)
            for queue in [queue for queue in held[who] if queue not in target]:
                change.release(queue, name)
                del held[who][queue]
            for queue, client in target.items():
                entry = state.entry(queue)
                if entry.owner is None:
                    positions[who][queue] = entry.position or 0
                    held[who][queue] = change.take(queue, name, client, entry.position or 0)
        events += change.events
        state.serial += bool(change.is_changed)
        for queue in held[who]:  # its next batch
            start = positions[who][queue]
            read[queue] |= set(range(start, start + amount))
            positions[who][queue] = start + amount
        for queue, entry in state.queues.items():
            assert read[queue] >= set(range(entry.position or 0)), queue
    assert double_ownership(events) == []
