"""Hypothesis strategies for what a store may hold: messages, whole commitlogs with their consume queues, and
damage to bytes.

They draw values of the oracle's types, so a test built on them compares with the independent witness for
free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.support import oracle
from tests.support.oracle import Message
from tests.support.store_files import write_file

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

# ---- parts -------------------------------------------------------------------------------------------------


def _v4(number: int) -> str:
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))


def _v6(number: int) -> str:
    return ":".join(f"{number >> shift & 0xFFFF:x}" for shift in range(112, -1, -16))


_IPS = st.one_of(
    st.integers(0, 2**32 - 1).map(_v4),
    st.integers(0, 2**128 - 1).map(_v6),
    # loopback; IPv4 mapped into IPv6
    st.sampled_from([_v6(1), _v6(0xFFFF_01020304), "127.0.0.1", "255.255.255.255"]),
)


def hosts() -> st.SearchStrategy[tuple[str, int]]:
    """(ip, port) of either family, IPv6 written as Java writes it. Java has no other ports."""
    return st.tuples(_IPS, st.integers(0, 65535))


@st.composite
def topics(draw: st.DrawFn) -> tuple[int, bytes]:
    """(magic, topic): V1 up to 127 bytes, V2 beyond, at the lengths where something changes."""
    length = draw(st.sampled_from([1, 2, 9, 9, 9, 31, 32, 126, 127, 128, 129, 200, 255]))
    letters = draw(st.text("ab%|-_Z9", min_size=1, max_size=8)).encode()
    topic = (letters * (length // len(letters) + 1))[:length]
    return (0xDAA320A7 if length <= 127 else 0xDAA320AB), topic


@st.composite
def bodies(draw: st.DrawFn) -> tuple[int, bytes]:
    """(sysFlag bits, stored body): plain or compressed in each of the ways clients do, empty too."""
    body = draw(
        st.one_of(
            st.just(b""),
            st.binary(max_size=64),
            st.binary(min_size=1, max_size=8).map(lambda part: part * 100),
        )
    )
    kind = draw(st.sampled_from([None, None, None, 0, 1, 2, 3]))
    if kind is None:
        return draw(st.sampled_from([0, 0, 0, 0x100, 0x300])), body  # a type without the bit says nothing
    return 1 | kind << 8, oracle.compress(body, kind) if body else body


# Names and values that are apt to be mixed up, each at least once with a meaning to the broker.
_NAMES = ["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "a", "b", "名", "😀", "k" * 40, "TAGS ", "DELAY", "__CRC32#"]
_VALUES = [
    "v",
    "",
    "true",
    "k1 k2",
    " k1  k2 ",
    "7F0000010001014AE5A5000003E80000",
    "标签😀",
    "x\x01y",
    "\x01",
    "z" * 100,
    "3",
]
_RAW_SEGMENTS = [
    b"",
    b"noseparator",
    b"\x01",
    b"\x01v",
    b"k\x01",
    b"ab",
    b"\x01a\x01b",
    b"k\x01\x01",
    b"\xff\x01\xfe",
    b"k\x01\xc3",
    b"\xed\xa0\x80\x01v",
    b"k\x01\xf0\x9f\x98",
    b"\xe4\xb8\x01\xad",
    b"a\x01\x00",
    b"KEYS\x01\xed\xa0",
]


def _pair(name: str, value: str) -> bytes:
    return f"{name}\x01{value}".encode()


_SEGMENTS = st.one_of(
    st.builds(_pair, st.sampled_from(_NAMES), st.sampled_from(_VALUES)),
    st.builds(_pair, st.sampled_from(_NAMES), st.sampled_from(_VALUES)),
    st.builds(_pair, st.text(min_size=1, max_size=4), st.text(max_size=8)),
    st.sampled_from(_RAW_SEGMENTS),
    st.binary(max_size=6),
)


@st.composite
def property_bytes(draw: st.DrawFn) -> bytes:
    """Stored properties, orderly or not: repeated names, empty ends, 0x01 in values, no 0x02 at the end, what
    is no UTF-8.
    """
    segments = draw(st.lists(_SEGMENTS, max_size=6))
    last = b"" if draw(st.sampled_from([False, False, True])) else b"\x02"
    return b"\x02".join(segments) + (last if segments else b"")


# ---- messages ----------------------------------------------------------------------------------------------


def _sys_flag(bits: int, born: tuple[str, int], store: tuple[str, int]) -> int:
    return bits | 0x10 * (":" in born[0]) | 0x20 * (":" in store[0])


@st.composite
def messages(draw: st.DrawFn, crc_property: bool | None = None) -> Message:
    """Any message a broker could have stored, and some that only another writer could; one in six with the
    CRC property.

    `crc_property` says that all or none have it.
    """
    (magic, topic), (body_bits, body) = draw(topics()), draw(bodies())
    born, store = draw(hosts()), draw(hosts())
    other_bits = draw(st.sampled_from([0, 0, 0, 0x2, 0x4, 0x8, 0xC, 0x800, 0x40000000]))
    message = Message(
        topic_bytes=topic,
        body=body,
        properties_bytes=draw(property_bytes()),
        queue_id=draw(st.one_of(st.integers(0, 7), INT32)),
        queue_offset=draw(st.one_of(st.integers(0, 1000), INT64)),
        physical_offset=draw(st.one_of(st.integers(0, 2**40), st.integers(0, 2**62))),
        flag=draw(INT32),
        sys_flag=_sys_flag(body_bits | other_bits, born, store),
        born_timestamp=draw(st.one_of(st.integers(0, 2**41), INT64)),
        born_host=born,
        store_timestamp=draw(st.one_of(st.integers(0, 2**41), INT64)),
        store_host=store,
        reconsume_times=draw(st.one_of(st.integers(0, 16), INT32)),
        prepared_transaction_offset=draw(st.one_of(st.just(0), INT64)),
        magic=magic,
    )
    if crc_property is None:
        crc_property = draw(st.sampled_from([False] * 5 + [True]))
    return oracle.with_crc_property(message) if crc_property else message


@st.composite
def inner_batches(draw: st.DrawFn) -> Message:
    """A message whose body is a batch, as a BatchCQ topic stores it; INNER_BASE is its queue offset."""
    parts = st.builds(
        oracle.SubMessage, flag=INT32, body=st.binary(max_size=20), properties_bytes=property_bytes()
    )
    batch = draw(st.lists(parts, min_size=1, max_size=5))
    message = draw(messages())
    base = draw(st.integers(0, 2**40))
    properties = oracle.encode_properties(
        [("INNER_NUM", str(len(batch))), ("INNER_BASE", str(base)), ("UNIQ_KEY", "U1")]
    )
    return replace(
        message,
        body=oracle.encode_inner_batch(batch),
        body_crc=-1,
        properties_bytes=properties,
        queue_offset=base,
        sys_flag=message.sys_flag & ~0x701 | 0xC0,
    )


# ---- whole logs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class StoredLog:
    """Messages laid into full-size commitlog files, and what their consume queues must hold.

    `files` maps start offsets to contents; `queues` maps (topic, queue id) to the messages that have entries,
    in queue order; a queue whose first message is not at 0 begins with pre-blank units.
    """

    file_size: int
    cq_file_size: int
    files: Mapping[int, bytes]
    messages: tuple[Message, ...]
    queues: Mapping[tuple[str, int], tuple[Message, ...]]
    stop: int

    def __repr__(self) -> str:
        placed = ", ".join(
            f"{m.physical_offset}+{m.total_size} {m.topic[:12]}/{m.queue_id}@{m.queue_offset}"
            for m in self.messages
        )
        return (
            f"StoredLog(files={sorted(self.files)} of {self.file_size}, stop={self.stop}, "
            f"messages=[{placed}])"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # Any: hypothesis does not export its printer
        printer.text(repr(self))  # else it prints every field, and refuses when files make that too long

    def consume_queue(self, topic: str, queue_id: int) -> dict[int, bytes]:
        """The queue's full-size files by start."""
        entries = self.queues[topic, queue_id]
        start = 20 * entries[0].queue_offset // self.cq_file_size * self.cq_file_size
        units = [oracle.pre_blank_cq_unit()] * (entries[0].queue_offset - start // 20)
        units += [oracle.cq_unit(m.physical_offset, m.total_size, oracle.tags_code(m)) for m in entries]
        data = b"".join(units)
        pieces = [data[at : at + self.cq_file_size] for at in range(0, len(data), self.cq_file_size)]
        return {
            start + i * self.cq_file_size: piece.ljust(self.cq_file_size, b"\0")
            for i, piece in enumerate(pieces)
        }

    def write(self, root: Path) -> None:
        """The store of a broker that was shut down cleanly: commitlog, consume queues, checkpoint and
        lock.
        """
        contents = {root / "commitlog" / oracle.file_name(start): data for start, data in self.files.items()}
        for topic, queue_id in self.queues:
            directory = root / "consumequeue" / topic / str(queue_id)
            contents |= {
                directory / oracle.file_name(start): data
                for start, data in self.consume_queue(topic, queue_id).items()
            }
        last = max((message.store_timestamp for message in self.messages), default=0)
        contents |= {root / "checkpoint": oracle.checkpoint(last, last), root / "lock": b"lock"}
        for path, data in contents.items():
            write_file(path, data)


class _Layout:
    """Appends units to full-size files by the rule for a file's end (spec 2.9)."""

    def __init__(self, file_size: int, start: int, filler: bytes) -> None:
        self.file_size, self.filler = file_size, filler
        self.contents: dict[int, bytearray] = {start: bytearray()}
        self.start = start

    @property
    def stop(self) -> int:
        return self.start + len(self.contents[self.start])

    def make_room(self, size: int) -> int:
        """Where the next unit goes."""
        remaining = self.file_size - len(self.contents[self.start])
        if size + 8 > remaining:
            self.contents[self.start] += oracle.blank(remaining) + (self.filler * remaining)[: remaining - 8]
            self.start += self.file_size
            self.contents[self.start] = bytearray()
        return self.stop

    def append(self, unit: bytes) -> None:
        self.contents[self.start] += unit

    def files(self) -> dict[int, bytes]:
        return {start: bytes(data).ljust(self.file_size, b"\0") for start, data in self.contents.items()}


@st.composite
def commit_logs(draw: st.DrawFn, messages_max: int = 12) -> StoredLog:
    """A log of a few topics and queues over one or more files; behind a blank record stand zeros or stale
    bytes.

    Prepared and rolled back messages are in no queue and have queue offset 0. Store timestamps never go back.
    """
    file_size = draw(st.sampled_from([1024, 1024, 2048]))
    layout = _Layout(
        file_size,
        file_size * draw(st.sampled_from([0, 0, 1, 262144])),
        draw(st.sampled_from([b"\0", b"\0", b"stale"])),
    )
    names = draw(st.lists(topics(), min_size=1, max_size=3, unique=True))
    next_offset = {index: draw(st.sampled_from([0, 0, 0, 1, 7])) for index in range(len(names) * 3)}
    finish = (
        oracle.with_crc_property if draw(st.sampled_from([False, False, True])) else lambda message: message
    )
    queues: dict[tuple[str, int], list[Message]] = {}
    stored: list[Message] = []
    now = draw(st.integers(1, 2**41))
    count = min(messages_max, draw(st.sampled_from([0, 1, 2, 4, 6, 12])))
    for message in draw(st.lists(messages(crc_property=False), min_size=count, max_size=count)):
        index, queue_id = draw(st.integers(0, len(names) - 1)), draw(st.integers(0, 2))
        magic, topic = names[index]
        now += draw(st.sampled_from([0, 0, 1, 999, 60_000]))
        queued = message.sys_flag & 0xC in (0x0, 0x8)
        offset = next_offset[index * 3 + queue_id] if queued else 0
        message = replace(
            message,
            magic=magic,
            topic_bytes=topic,
            queue_id=queue_id,
            queue_offset=offset,
            store_timestamp=now,
        )
        size = finish(message).total_size
        if size + 8 > file_size:
            continue  # a broker cannot store it either
        message = finish(replace(message, physical_offset=layout.make_room(size)))
        layout.append(oracle.encode_message(message))
        stored.append(message)
        if queued:
            next_offset[index * 3 + queue_id] += 1
            queues.setdefault((message.topic, queue_id), []).append(message)
    cq_file_size = 20 * draw(st.sampled_from([3, 5, 100]))
    return StoredLog(
        file_size,
        cq_file_size,
        layout.files(),
        tuple(stored),
        {k: tuple(v) for k, v in queues.items()},
        layout.stop,
    )


# ---- damage ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Torn:
    """Damaged bytes, and in words what happened at which byte."""

    data: bytes
    kind: str
    at: int


@st.composite
def torn(draw: st.DrawFn, data: bytes) -> Torn:
    """`data` cut short, with its tail zeroed, with one bit flipped, or with four bytes replaced. `data` must
    not be empty.
    """
    kind = draw(st.sampled_from(["cut", "zeroed", "flipped", "replaced"]))
    at = draw(st.integers(0, len(data) - 1))
    if kind == "cut":
        return Torn(data[:at], kind, at)
    if kind == "zeroed":
        return Torn(data[:at].ljust(len(data), b"\0"), kind, at)
    if kind == "flipped":
        return Torn(data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :], kind, at)
    number = draw(
        st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\0\0\0\x5b"])
    )
    return Torn((data[:at] + number + data[at + 4 :])[: len(data)], kind, at)
