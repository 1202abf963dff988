"""The directory of a group: who is in it, what each owns, and where the directory is.

The members meet in `groupPath`, or else in `.rmqlog/groups/<group>` of the directory that the query loads: a
store, or a cluster's directory, so that a broker added to the cluster changes nothing. Other queries may load
the same stores by another path: one store of the cluster, or another list of paths. Members in two
directories would both read every message. Therefore a query is refused while another directory has members;
when it has none, the query takes over what they recorded there.

`group.json` has the members, the owner of each queue, and how far each queue was read. It changes only under
the directory's lock and is replaced as a whole, so a reader without the lock sees one consistent state. Each
change raises `serial`. A queue's `epoch` rises each time the queue gets an owner; what an earlier owner
reports is ignored.

A query (consumeMode=pull) has a lease of its own, because its queues go to others when it is gone: a file
that its process keeps locked, and a beat (a counter) that a daemon thread writes. Other members judge the
lease by both. On the same host the system drops the lock of a dead process at once. Across hosts, and for a
stopped process, the beat decides: a member is gone when its beat has not changed for the lease time by the
watcher's own clock, so the clocks of the hosts need not agree.

Consumers that pop own no queue, and need not be told apart: those of a topic share one lock in the directory
of their in-flight log. The last one that ends knows that it is the last, and others can ask whether any is
alive.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rmq_spark.consume.consumer import MessageQueue, check_group
from rmq_spark.consume.offset_store import LocalOffsets, OffsetStore, StoreOffsets, make_path
from rmq_spark.consume.orderly import Stop
from store_format.errors import CorruptStoreError, OptionError, StoreError, StoreInUseError
from store_format.files.lock import StoreLock
from store_format.files.polling import Clocks, Repeated
from store_format.files.read import files_at
from store_format.files.shared_log import FileLock
from store_format.files.write import FileWrites
from store_format.follow.log_tail import mark_of, physical_offset_of, place_at
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.pop.log import in_flight_directory, in_flight_logs

_LOCK_SECONDS = 5.0
_WAIT_STEP_SECONDS = 0.05

_log = logging.getLogger(__name__)

_CALLS_A_LEASE = 12  # of `look`
_CALLS_A_BEAT = 3
_BEAT_SIZE = 20  # digits: a single write within one page, so no reader sees a part of it

_POPPING = "members"  # the lock file of the consumers that pop
_LAST_SECONDS = 0.02  # another process asks `live_topics` for microseconds

_VERSION = 1
NOT_IN_FILE = -1  # a mirrored offset: the offset file does not name the queue
_MEMBER_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
_LONG = 1 << 63
_INT = 1 << 31
_HEAD = re.compile(rb'\{"version":1,"serial":([0-9]{1,19}),')  # as `write_state` begins a state
_HEAD_SIZE = 64


# ---- group.json --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MemberEntry:
    """One query: its logical clients and the brokers whose queues it reads; no `brokers` means all of them.

    The other fields are for the members that watch its lease.
    """

    clients: list[str]
    host: str
    process_id: int
    lease_seconds: float
    brokers: list[str] = field(default_factory=list)
    kind: str = "query"  # or push, pull: for the view owners


@dataclass(slots=True)
class QueueEntry:
    """One queue. `position` is the next offset to read, as its owners recorded it.

    `reset` is the number of the reset that last moved the queue. `mirrored` is the offset that members last
    wrote to the offset file or found there: `NOT_IN_FILE`, or None before the first look. `is_unattended`: no
    member has run since the queue's last owner. The module `offset_mirror` explains both. `stop` is where an
    orderly handler stopped, until a recorded position is beyond it. `at` is a recorded position with the
    place of the message before it (`follow.log_tail`): no file of a store says that a topic was created
    again.
    """

    owner: str | None = None
    client: str | None = None
    epoch: int = 0
    position: int | None = None
    reset: int = 0
    mirrored: int | None = None
    is_unattended: bool = False
    stop: Stop | None = None
    at: tuple[int, int] | None = None

    @property
    def place(self) -> int | None:
        """The place of the message before `position`; None where nobody recorded it."""
        return self.at[1] if self.at is not None and self.at[0] == self.position else None


@dataclass(slots=True)
class GroupState:
    """`reset` is the group's reset number, `log_size` the length of the ownership log in bytes.

    `subscription` and `strategy` are those of the present members.
    """

    serial: int = 0
    reset: int = 0
    log_size: int = 0
    subscription: str = ""
    strategy: str = ""
    members: dict[str, MemberEntry] = field(default_factory=dict)
    queues: dict[MessageQueue, QueueEntry] = field(default_factory=dict)

    def clients(self) -> Iterator[str]:
        for member in self.members.values():
            yield from member.clients

    def readers(self) -> dict[str, list[str]]:
        """The brokers of each client whose member names its brokers."""
        return {
            client: member.brokers
            for member in self.members.values()
            if member.brokers
            for client in member.clients
        }

    def entry(self, queue: MessageQueue) -> QueueEntry:
        """The entry of the queue; a new queue gets one."""
        return self.queues.setdefault(queue, QueueEntry())

    def owned_by(self, member: str) -> Iterator[tuple[MessageQueue, QueueEntry]]:
        return ((queue, entry) for queue, entry in self.queues.items() if entry.owner == member)


def _state_path(directory: str) -> str:
    return f"{directory}/group.json"


def has_state(directory: str) -> bool:
    """Whether members have ever recorded something in this directory."""
    return os.path.isfile(_state_path(directory))


def state_identity(directory: str) -> tuple[int, int, int] | None:
    """Differs after the state was replaced. Costs one `stat`.

    It can be equal by chance: inodes are reused, and the clock of a filesystem ticks every few milliseconds.
    """
    return files_at(directory).stat_identity(_state_path(directory))


def state_serial(directory: str) -> int | None:
    """The serial number of the state, from the first 64 bytes of the file; no two states share it.

    None without a file, and for a file that does not begin like a state.
    """
    try:
        with files_at(directory).view(_state_path(directory)) as view:
            head = _HEAD.match(view.read(0, _HEAD_SIZE))
    except FileNotFoundError:
        return None
    return int(head[1]) if head else None


def read_state(directory: str) -> GroupState:
    """The state; an empty one without a file. Raises CorruptStoreError for a file with other content."""
    path = _state_path(directory)
    data = files_at(path).read(path)
    if data is None:
        return GroupState()
    try:
        value = json.loads(data)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        state = GroupState(
            serial=_from_zero(value["serial"]),
            reset=_from_zero(value["reset"]),
            log_size=_from_zero(value["logSize"]),
            subscription=_string(value["subscription"]),
            strategy=_string(value["strategy"]),
            members={_member_id(name): _member_entry(member) for name, member in value["members"].items()},
        )
        unattended = {_from_zero(index) for index in value["unattended"]}
        for index, (row, offset) in enumerate(zip(value["queues"], value["mirrored"], strict=True)):
            queue, entry = _read_queue(row)
            entry.mirrored = offset if offset is None or offset == NOT_IN_FILE else _from_zero(offset)
            entry.is_unattended = index in unattended
            state.queues[queue] = entry
        entries = list(state.queues.values())
        for index, *stop in value["stops"]:
            entries[_from_zero(index, len(entries))].stop = Stop(*map(_from_zero, stop))
        for index, position, physical, mark in value["at"]:
            place = place_at(_from_zero(physical), _from_zero(mark))
            entries[_from_zero(index, len(entries))].at = _from_zero(position), place
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "the state of a consumer group (JSON)", f"other content ({str(error)[:100]})"
        ) from error
    return state


def _member_entry(value: Mapping[str, Any]) -> MemberEntry:  # Any: JSON
    clients = [_string(client) for client in value["clients"]]
    seconds = value["leaseSeconds"]
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < 1e9:
        raise ValueError(f"leaseSeconds {seconds!r}")
    brokers = [_string(broker) for broker in value["brokers"]]
    kind = _string(value.get("kind", "query"))
    host, process = _string(value["host"]), _from_zero(value["processId"])
    return MemberEntry(clients, host, process, float(seconds), brokers, kind)


def _read_queue(row: list[Any]) -> tuple[MessageQueue, QueueEntry]:
    topic, broker_name, queue_id, owner, client, epoch, position, reset = row
    queue = MessageQueue(_string(topic), _string(broker_name), _from_zero(queue_id, _INT))
    entry = QueueEntry(
        None if owner is None else _member_id(owner),
        None if client is None else _string(client),
        _from_zero(epoch),
        None if position is None else _from_zero(position),
        _from_zero(reset),
    )
    return queue, entry


def _from_zero(value: object, stop: int = _LONG) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < stop:
        return value
    raise ValueError(f"expected a number from 0, found {value!r}"[:100])


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"expected a string, found {value!r}"[:100])


def _member_id(value: object) -> str:
    """A member's id: 16 hex digits and nothing else, because it becomes part of a path."""
    if isinstance(value, str) and _MEMBER_ID.fullmatch(value):
        return value
    raise ValueError(f"expected the id of a member, found {value!r}"[:100])


def write_state(directory: str, state: GroupState, files: FileWrites) -> None:
    """Replaces the state. The caller holds the directory's lock and has raised `serial`."""
    members = {
        name: {
            "clients": m.clients,
            "host": m.host,
            "processId": m.process_id,
            "leaseSeconds": m.lease_seconds,
            "brokers": m.brokers,
            "kind": m.kind,
        }
        for name, m in state.members.items()
    }
    value = {
        "version": _VERSION,
        "serial": state.serial,
        "reset": state.reset,
        "logSize": state.log_size,
        "subscription": state.subscription,
        "strategy": state.strategy,
        "members": members,
        "queues": [
            [
                queue.topic,
                queue.broker_name,
                queue.queue_id,
                entry.owner,
                entry.client,
                entry.epoch,
                entry.position,
                entry.reset,
            ]
            for queue, entry in state.queues.items()
        ],
        "mirrored": [entry.mirrored for entry in state.queues.values()],
        "unattended": [index for index, entry in enumerate(state.queues.values()) if entry.is_unattended],
        "stops": [
            [index, entry.stop.offset, entry.stop.times, entry.stop.until_ms]
            for index, entry in enumerate(state.queues.values())
            if entry.stop is not None
        ],
        "at": [
            [index, entry.position, physical_offset_of(entry.place), mark_of(entry.place)]
            for index, entry in enumerate(state.queues.values())
            if entry.place is not None
        ],
    }
    files.replace(_state_path(directory), json.dumps(value, separators=(",", ":")).encode())


# ---- leases ------------------------------------------------------------------------------------------------


def _lease_directory(group_directory: str, member: str) -> str:
    """The directory of a member's lease. `member` is a hexadecimal id, so it is safe in a path."""
    return f"{group_directory}/leases/{member}"


def host_name() -> str:
    """This host's name and boot id. Processes with the same value see each other's locks.

    The boot id makes a rebooted host another host.
    """
    boot = (
        files_at("/").read("/proc/sys/kernel/random/boot_id", 4096)
        if sys.platform.startswith("linux")
        else None
    )
    return f"{socket.gethostname()}/{(boot or b'').decode().strip()}"


class Lease:
    """A member's own lease: `begin` takes it, `renew` writes a beat, `end` gives it back.

    The thread that writes the beats lives as long as the process. It calls `look` twelve times per lease
    time, so that a member with long micro-batches still knows since when another member has been silent.
    """

    def __init__(self, group_directory: str, member: str, seconds: float, look: Callable[[], None]) -> None:
        self._group_directory = group_directory
        self._member = member
        self._directory = _lease_directory(group_directory, member)
        self._lock = StoreLock(self._directory)
        self._files = FileWrites(sync=False)  # a lease need not survive a crash of the machine
        self._count = 0
        self._look = look
        self._turns = 0
        self._thread = Repeated(f"lease {member}", lambda: seconds / _CALLS_A_LEASE, self._turn)

    def begin(self) -> None:
        self._files.make_directories(self._group_directory, "leases", self._member)
        self._lock.__enter__()
        self.renew()
        self._thread.start()

    def renew(self) -> None:
        self._count += 1
        # The file is opened each time: a network filesystem shows a write to others when the file is closed.
        self._files.write_whole(f"{self._directory}/beat", b"%020d" % self._count)

    def _turn(self) -> None:
        self._turns += 1
        try:
            if self._turns % _CALLS_A_BEAT == 0:
                self.renew()
            self._look()
        except (StoreError, OSError) as error:  # the next beat tries again
            if not self._thread.is_stopping:
                _log.warning(
                    "the lease of this query could not be renewed; if this lasts, other members take "
                    "its queues: %s",
                    error,
                )

    def end(self) -> None:
        self._thread.stop()
        self._lock.__exit__(None, None, None)
        remove_lease(self._group_directory, self._member)


def remove_lease(group_directory: str, member: str) -> None:
    """Removes the files of a member's lease, if they exist and can be removed."""
    directory = _lease_directory(group_directory, member)
    files = FileWrites(sync=False)
    with suppress(StoreError):
        for name in ("beat", "lock"):
            files.remove(f"{directory}/{name}")
        files.remove_directory(directory)


class Watch:
    """One process's view of another member's lease. `clock` is monotonic, in seconds."""

    def __init__(
        self, group_directory: str, member: str, entry: MemberEntry, clock: Callable[[], float]
    ) -> None:
        self._directory = _lease_directory(group_directory, member)
        # The system does not report a process's own locks to it, nor reliably those of other hosts.
        is_near = entry.host == host_name() and entry.process_id != os.getpid()
        self._can_ask = is_near and sys.platform.startswith("linux")
        self._seconds = entry.lease_seconds
        self._clock = clock
        self._seen: tuple[bytes | None, float] = (None, clock())  # the last beat, and when it was first seen
        self._beats = 0

    def look(self) -> bytes | None:
        """Reads the beat; None if its file is gone. May be called from any thread."""
        beat = self._read()
        if beat != self._seen[0]:
            self._seen = (beat, self._clock())
            self._beats += 1
        return beat

    @property
    def has_beaten(self) -> bool:
        """Whether the member was alive while it was watched. The first beat found may be old."""
        return self._beats > 1

    def why_gone(self) -> str | None:
        """Why the member counts as gone; None while it is alive."""
        # Before the look: a watcher stopped in between must not count its own pause against the other member.
        now = self._clock()
        if self.look() is None:
            return "its lease was given back"
        if self._can_ask and StoreLock.holder(f"{self._directory}/lock") is None:
            return "its process has ended"
        return (
            f"its lease was not renewed for {self._seconds:g} s"
            if now - self._seen[1] >= self._seconds
            else None
        )

    def _read(self) -> bytes | None:
        try:
            return files_at(self._directory).read(f"{self._directory}/beat", _BEAT_SIZE)
        except CorruptStoreError:
            return b""  # a file with other content counts as a beat that does not change


# ---- consumers that pop ------------------------------------------------------------------------------------


class PopLease:
    """One consumer of the in-flight log in `directory`, which is made if it is missing."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = FileLock(f"{directory}/{_POPPING}")

    def begin(self, timeout: float = 10.0) -> None:
        """Waits while the last consumer hands over. Raises StoreInUseError after `timeout` seconds."""
        root, _, rest = self._directory.partition(f"/{OWN_DIRECTORY}/")
        FileWrites(sync=False).make_directories(root, OWN_DIRECTORY, *rest.split("/"))
        if not self._lock.share(timeout):
            raise StoreInUseError(
                f"{self._directory}: expected that the last consumer ends within {timeout:g} s, but it "
                "does not; look for a consumer that was stopped (state T in ps) and continue or end it"
            )

    def is_last(self) -> bool:
        """Whether no other consumer is alive. If so nobody begins until `end`; else this one has ended."""
        return self._lock.try_exclusive(_LAST_SECONDS)

    def end(self) -> None:
        self._lock.close()


def live_topics(root: str, group: str) -> list[str]:
    """The topics of the store at `root` that consumers of the group pop now, sorted."""
    opened = Opened(root)
    found = []
    for name, topic in in_flight_logs(opened):
        directory = in_flight_directory(opened, name, topic)
        if name != group or _POPPING not in files_at(directory).names(directory, missing_ok=True):
            continue
        lock = FileLock(f"{directory}/{_POPPING}")
        if not lock.try_exclusive():
            found.append(topic)
        lock.close()
    return found


# ---- where the members meet --------------------------------------------------------------------------------


def group_directory(
    store: OffsetStore,
    *,
    group: str,
    roots: Mapping[str, str],
    paths: Sequence[str] = (),
    group_path: str | None = None,
) -> str | None:
    """The directory where the members meet: in `groupPath`, else beside the offsets.

    None for the offset store `none` without a groupPath: the members do not meet. `roots` are store
    directories by broker name, `paths` the loaded directories; of several paths the first by name counts.
    Without `paths` (in the offset tools) it is the directory with records of members, else the cluster's
    directory for several stores, else the only store's.
    """
    if group_path is not None:
        return f"{group_path.rstrip('/')}/{check_group(group)}"
    if isinstance(store, LocalOffsets):
        return f"{os.path.dirname(store.path)}/members"
    if not isinstance(store, StoreOffsets):
        return None
    if paths:
        return _directory_in(min(paths), group)
    parents = {os.path.dirname(root) for root in roots.values()}
    for path in (*parents, *roots.values()):
        directory = _directory_in(path, group)
        if has_state(directory):
            return directory
    return _directory_in(parents.pop() if len(roots) > 1 and len(parents) == 1 else roots[min(roots)], group)


def other_places(
    directory: str | None,
    store: OffsetStore,
    *,
    group: str,
    roots: Mapping[str, str],
    paths: Sequence[str] = (),
) -> list[str]:
    """Directories other than `directory`, and other than a groupPath, where members of the group have met."""
    if directory is None or not isinstance(store, StoreOffsets):
        return []
    known = {*paths, *roots.values(), *(os.path.dirname(root) for root in roots.values())}
    found = {os.path.realpath(place): place for place in sorted(_directory_in(path, group) for path in known)}
    found.pop(os.path.realpath(directory), None)
    return [place for place in found.values() if has_state(place)]


def _directory_in(path: str, group: str) -> str:
    return f"{path.rstrip('/')}/{OWN_DIRECTORY}/groups/{check_group(group)}"


def refuse_members_elsewhere(
    group: str, directory: str, others: Iterable[str], clocks: Clocks, *, known_gone: Collection[str] = ()
) -> frozenset[str]:
    """Raises OptionError if a directory of `others` has a live member.

    Members on other hosts are watched for at most their lease time. Returns the ids of the members that are
    gone, which a second call need not watch again.
    """
    gone = set(known_gone)
    found = _live_member(others, clocks, gone)
    if found is not None:
        raise OptionError(
            f"group {group}: expected all its queries to meet in one directory, found the query "
            f"{', '.join(found[1])} in {found[0]} while this query would meet others in {directory}: "
            "both would read every message. Load the same path in all queries of the group, or set the "
            "same groupPath in all of them"
        )
    return frozenset(gone)


def live_clients(group: str, paths: Iterable[str], clocks: Clocks) -> tuple[str, list[str]] | None:
    """(directory, client ids) of a live member of the group in the directories `paths`; None without one.

    Members that meet in a groupPath elsewhere are not found.
    """
    return _live_member(dict.fromkeys(_directory_in(path, group) for path in paths), clocks, set())


def _live_member(directories: Iterable[str], clocks: Clocks, gone: set[str]) -> tuple[str, list[str]] | None:
    """(directory, client ids) of a live member. `gone` has ids that are not watched, and gets others."""
    for directory in directories:
        for name, entry in read_state(directory).members.items():
            if name not in gone and not _is_gone(directory, name, entry, clocks):
                return directory, entry.clients
            gone.add(name)
    return None


def _is_gone(directory: str, name: str, entry: MemberEntry, clocks: Clocks) -> bool:
    watch = Watch(directory, name, entry, clocks.monotonic)
    while watch.why_gone() is None:
        if watch.has_beaten:
            return False
        clocks.sleep(_WAIT_STEP_SECONDS)
    return True


def inherit(directory: str, others: Sequence[str]) -> None:
    """Takes over what members recorded in the directories `others`.

    A new `directory` gets their queue positions, and every directory the highest reset number. A position
    that is not the newest does no harm: the offset file shows that other members read further (`member`).
    """
    if not others:
        return
    make_path(directory)
    with StoreLock(directory, timeout=_LOCK_SECONDS):
        state = read_state(directory)
        is_new = not has_state(directory)
        before = state.reset
        for other in others:
            theirs = read_state(other)
            state.reset = max(state.reset, theirs.reset)
            if is_new:
                _merge_queues(state, theirs)
        if is_new or state.reset != before:
            state.serial += 1
            write_state(directory, state, FileWrites(sync=True))


def _merge_queues(state: GroupState, theirs: GroupState) -> None:
    """Adds queues of another state. For a queue in both the later reset counts, then the higher position."""
    for queue, entry in theirs.queues.items():
        there = state.queues.get(queue)
        if there is None or (entry.reset, entry.position or 0) > (there.reset, there.position or 0):
            epoch = max(entry.epoch, there.epoch if there else 0)
            state.queues[queue] = QueueEntry(
                None, None, epoch, entry.position, entry.reset, entry.mirrored, at=entry.at
            )
