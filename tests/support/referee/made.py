"""Small stores as a broker writes them, byte by byte: nothing of the product makes them, so that no theory of
the product is in them.

`BrokerStore` takes messages with the queue offsets that they claim, which may be wrong ones: brokers wrote
such logs (batches of 4.8, controller mode, light queues of 5.1). It files them as ConsumeQueue does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support import oracle
from tests.support.file_edits import harm
from tests.support.oracle import Message, SubMessage
from tests.support.store_files import write_file, write_files

QueueKey = tuple[str, int]

ENTRY_SIZE, BATCH_ENTRY_SIZE = 20, 46
SCHEDULED = "SCHEDULE_TOPIC_XXXX"
NOW_MS = 1_700_000_000_000
_NOT_FILED = (0x4, 0xC)  # prepared and rolled back: CommitLogDispatcherBuildConsumeQueue


@dataclass
class BrokerStore:
    """A store in memory; `write` puts it on disk."""

    root: Path
    log_file_size: int = 4096
    queue_entries: int = 8  # of a file
    begin: int = 0  # the physical offset of the first file
    levels: str = ""  # messageDelayLevel, if not the default
    conf: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    filed: list[Message] = field(default_factory=list)  # those that were dispatched
    entries: dict[QueueKey, list[bytes]] = field(default_factory=dict)
    first: dict[QueueKey, int] = field(default_factory=dict)  # the place of the first entry
    batches: dict[QueueKey, list[bytes]] = field(default_factory=dict)
    ext: dict[QueueKey, bytes] = field(default_factory=dict)
    topics: dict[str, dict[str, object]] = field(default_factory=dict)
    _next: dict[QueueKey, int] = field(default_factory=dict)
    _dispatched: dict[QueueKey, int] = field(default_factory=dict)
    _ahead: dict[QueueKey, int] = field(default_factory=dict)  # the last entry for which a file was made

    def __post_init__(self) -> None:
        self.end = self.begin
        self.conf = {
            "mappedFileSizeCommitLog": str(self.log_file_size),
            "mappedFileSizeConsumeQueue": str(self.queue_entries * ENTRY_SIZE),
            "mapperFileSizeBatchConsumeQueue": str(self.queue_entries * BATCH_ENTRY_SIZE),
            "maxHashSlotNum": "50",
            "maxIndexNum": "200",
        } | self.conf
        if self.levels:
            self.conf["messageDelayLevel"] = self.levels

    def topic(self, name: str, queues: int = 2, attributes: Mapping[str, str] | None = None) -> None:
        """Creates it in topics.json."""
        self.topics[name] = self._topic(name, queues, attributes)

    @staticmethod
    def _topic(name: str, queues: int, attributes: Mapping[str, str] | None = None) -> dict[str, object]:
        return {
            "attributes": dict(attributes or {}),
            "order": False,
            "perm": 6,
            "readQueueNums": queues,
            "topicFilterType": "SINGLE_TAG",
            "topicName": name,
            "topicSysFlag": 0,
            "writeQueueNums": queues,
        }

    def next_offset(self, topic: str, queue_id: int) -> int:
        return self._next.get((topic, queue_id), 0)

    def restart(self, topic: str, *, keeps_queues: bool = False) -> None:
        """The topic is deleted and created again: its offsets begin at 0."""
        for queue in [queue for queue in self._next if queue[0] == topic]:
            self._next[queue] = 0
            if not keeps_queues:
                kept: dict[QueueKey, Any]
                places = (self.first, self._dispatched, self._ahead)
                for kept in (self.entries, self.batches, self.ext, *places):
                    kept.pop(queue, None)

    def put(
        self,
        topic: str,
        queue_id: int = 0,
        *,
        body: bytes = b"",
        properties: Mapping[str, str] | None = None,
        offset: int | None = None,
        count: int = 1,
        files: bool = True,
        sys_flag: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Message:
        """Appends a message that claims the next offset of its queue, or `offset`; `count` is that of an
        inner batch. Without `files` only the log has it: a broker was killed before it dispatched.
        """
        known = self.topics.setdefault(topic, self._topic(topic, 1))
        for name in ("readQueueNums", "writeQueueNums"):
            known[name] = max(queue_id + 1, int(str(known[name])))
        queue = (topic, queue_id)
        at = self._next.get(queue, 0) if offset is None else offset
        self._next[queue] = at + count
        number = len(self.messages)
        named = {"UNIQ_KEY": f"U{number:04d}", "KEYS": f"k{number}", "TAGS": f"T{number % 3}"}
        message = Message(
            topic.encode(),
            body or f"{number} of {topic}-{queue_id} at {at} ".encode() * (1 + number * 7 % 5),
            oracle.encode_properties(named | dict(properties or {})),
            queue_id,
            at,
            born_timestamp=NOW_MS + number * 1000,
            store_timestamp=NOW_MS + number * 1000 + 1,
            sys_flag=sys_flag,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        left = self.log_file_size - self.end % self.log_file_size
        if message.total_size + 8 > left:
            self.end += left
        message = replace(message, physical_offset=self.end)
        self.end += message.total_size
        self.messages.append(message)
        if files:
            self.filed.append(message)
            self._file(message, count)
        return message

    def put_batch(self, topic: str, count: int, *, files: bool = True) -> Message:
        """Appends an inner batch of so many messages to queue 0, as for a topic with queue.type=BatchCQ."""
        at = self.next_offset(topic, 0)
        parts = (
            SubMessage(i, b"part %d of %d" % (i, at), b"UNIQ_KEY\x01P%d\x02" % (at + i)) for i in range(count)
        )
        return self.put(
            topic, 0, body=oracle.encode_inner_batch(parts), count=count, files=files,
            sys_flag=0xC0, properties={"INNER_NUM": str(count), "INNER_BASE": str(at)},
        )  # fmt: skip

    @property
    def delivery(self) -> dict[str, int]:
        """UNIQ_KEY -> the tags code of each delayed message: its time of delivery."""
        levels = oracle.delay_levels(self.levels) if self.levels else None
        delayed = [each for each in self.messages if each.topic == SCHEDULED]
        return {each.properties["UNIQ_KEY"]: oracle.tags_code(each, levels) for each in delayed}

    @property
    def lacks_queues(self) -> bool:
        """Whether a queue has messages and no files: none of them was dispatched, or it was deleted."""
        return not {(each.topic, each.queue_id) for each in self.messages} <= {*self.entries, *self.batches}

    # ---- dispatch: ConsumeQueue.putMessagePositionInfo ----------------------------------------------------

    def _file(self, message: Message, count: int) -> None:
        if message.sys_flag & 0xC in _NOT_FILED:
            return
        queue = (message.topic, message.queue_id)
        code = oracle.tags_code(message, oracle.delay_levels(self.levels) if self.levels else None)
        place = (message.physical_offset, message.total_size)
        if self.topics.get(message.topic, {}).get("attributes") == {"queue.type": "BatchCQ"}:
            self.batches.setdefault(queue, []).append(
                oracle.batch_cq_unit(*place, code, message.store_timestamp, message.queue_offset, count)
            )
            return
        if self.conf.get("enableConsumeQueueExt") == "true":
            units = self.ext.get(queue, b"")
            unit = oracle.cq_ext_unit(code, message.store_timestamp, b"")
            code, self.ext[queue] = oracle.cq_ext_address(len(units)), units + unit
        self._append(queue, message.queue_offset, place, code)
        if self.conf.get("enableMultiDispatch") == "true" and "INNER_MULTI_DISPATCH" in message.properties:
            names = message.properties.get("INNER_MULTI_DISPATCH", "").split(",")
            offsets = message.properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
            for name, at in zip(names, offsets, strict=True):
                if name.startswith("%LMQ%"):
                    self._append((name, 0), int(at), place, code)

    def _append(self, queue: QueueKey, at: int, place: tuple[int, int], code: int) -> None:
        entries = self.entries.setdefault(queue, [])
        if sum(place) <= self._dispatched.get(queue, -1):
            return
        if not entries:
            self.first[queue] = at
        elif at != 0 and at < (end := self.first[queue] + len(entries)):
            self._ahead[queue] = end  # the file of the next entry is made before it is seen that
            return  # "Build consume queue repeatedly"
        entries.append(oracle.cq_unit(*place, code))
        self._dispatched[queue] = sum(place)

    # ---- to disk ------------------------------------------------------------------------------------------

    def write(self, *, crashed: bool = False) -> Path:
        """The store as an orderly end leaves it, or a kill."""
        files = self._log_files()
        for start, data in files.items():
            write_file(self.root / "commitlog" / oracle.file_name(start), bytes(data))
        (self.root / "consumequeue").mkdir(exist_ok=True)  # deleting the last topic leaves it, too
        for (topic, queue_id), entries in self.entries.items():
            first = self.first[topic, queue_id]
            blank = first % self.queue_entries
            before = [oracle.pre_blank_cq_unit()] * blank
            is_ahead = self._ahead.get((topic, queue_id)) == (end := first + len(entries))
            ahead = [bytes(ENTRY_SIZE)] if is_ahead and not end % self.queue_entries else []
            self._write_queue("consumequeue", topic, queue_id, first - blank, before + entries + ahead)
        for (topic, queue_id), entries in self.batches.items():
            self._write_queue("batchconsumequeue", topic, queue_id, 0, entries)
        for (topic, queue_id), units in self.ext.items():
            path = self.root / "consumequeue_ext" / topic / str(queue_id) / oracle.file_name(0)
            write_file(path, units.ljust(1 << 12, b"\0"))
        for number, index in enumerate(oracle.build_index_files(self.filed, 50, 200)):
            write_file(self.root / "index" / oracle.index_file_name(NOW_MS + number, 0), index)
        last = self.messages[-1].store_timestamp if self.messages else 0
        # those of the queues and of the index: not later than what was dispatched
        others = max((each.store_timestamp for each in self.filed), default=0)
        write_file(self.root / "checkpoint", oracle.checkpoint(last, others, others, 0, 0, 0))
        version = {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS}
        table = {"dataVersion": version, "topicConfigTable": self.topics}
        write_file(self.root / "config/topics.json", json.dumps(table).encode())
        if self.conf.get("enableLmq") == "true":  # LmqConsumerOffsetManager writes it every five seconds
            offsets = {"dataVersion": version, "lmqOffsetTable": {}, "offsetTable": {}}
            write_file(self.root / "config/lmqConsumerOffset.json", json.dumps(offsets).encode())
        write_file(self.root / "lock", b"lock")
        if crashed:
            write_file(self.root / "abort", b"4711")
        return self.root

    def _log_files(self) -> dict[int, bytearray]:
        size = self.log_file_size
        files = {self.begin: bytearray(size)}
        for message in self.messages:
            start = message.physical_offset - message.physical_offset % size
            if start not in files:
                stop = self._end_before(message)
                files[stop - stop % size][stop % size : stop % size + 8] = oracle.blank(size - stop % size)
                files[start] = bytearray(size)
            at = message.physical_offset - start
            files[start][at : at + message.total_size] = oracle.encode_message(message)
        return files

    def _end_before(self, message: Message) -> int:
        before = [each for each in self.messages if each.physical_offset < message.physical_offset]
        return before[-1].physical_offset + before[-1].total_size

    def _write_queue(self, folder: str, topic: str, queue_id: int, first: int, entries: list[bytes]) -> None:
        size, count = len(entries[0]), self.queue_entries
        directory = self.root / folder / topic / str(queue_id)
        write_files(directory, b"".join(entries), size * count, first * size)


# ---- stores in words --------------------------------------------------------------------------------------

_WORD = re.compile(r"(-?)([A-Za-z]+)(\d*)(?:@(\d+))?(?:%(\d+))?(?:\+(\d+))?(?::(\d+))?(\??)(?:\*(\d+))?")
_SETTINGS = {"log": "log_file_size", "entries": "queue_entries", "begin": "begin"}
_LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}


def made(root: Path, words: str, **settings: Any) -> BrokerStore:
    """A store of messages in words: `A` is a message of A-0, `A1` one of A-1, `A@3` claims offset 3, `A%3`
    offset 3 of the light queue %LMQ%a, `A:800` has a body of 800 zeros, `A?` is not filed, `A*5` are five of
    them, `A*0` the topic with one queue. `Inner` is a topic of inner batches, `Inner+4` a batch. `-A` deletes
    the topic and creates it again.
    """
    store = BrokerStore(root, **settings)
    for word in words.split():
        match = _WORD.fullmatch(word)
        assert match is not None, word
        again, topic, queue, offset, light, count, size, lost, times = match.groups()
        if topic == "Inner" and topic not in store.topics:
            store.topic(topic, 1, {"queue.type": "BatchCQ"})
        if times == "0":
            store.topic(topic, 1)
        for _ in range(int(times or 1)):
            if again:
                store.restart(topic)
            elif count:
                store.put_batch(topic, int(count), files=not lost)
            else:
                named = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": light}
                store.put(
                    topic, int(queue or 0), offset=int(offset) if offset else None, files=not lost,
                    body=bytes(int(size or 0)), properties=named if light else {},
                )  # fmt: skip
    return store


def made_and_harmed(root: Path, words: str, *more: str) -> BrokerStore:
    """The store on disk. `more` are settings (`log 1024`, `entries 4`, `begin 65536`, `light`), `crashed`,
    and what happens to files then, as in `harm`: `A0/60` is the file of A-0 that begins at byte 60, `log/0`
    one of the commitlog, `index` that of the index, and `m2+15` the byte 15 of the message number 2.
    """
    kinds = dict(each.split(" ") for each in more if each.split(" ")[0] in _SETTINGS)
    settings = {_SETTINGS[kind]: int(value) for kind, value in kinds.items()}
    store = made(root, words, conf=dict(_LIGHT) if "light" in more else {}, **settings)
    store.write(crashed="crashed" in more)

    def place(match: re.Match[str]) -> str:
        at = store.messages[int(match[1])].physical_offset + int(match[2])
        start = max(start for start in store._log_files() if start <= at)
        return f"commitlog/{oracle.file_name(start)} {at - start}"

    for each in more:
        if each not in ("light", "crashed") and each.split(" ")[0] not in kinds:
            text = re.sub(
                r"\b([A-Z])(\d)/(\d+)", lambda at: f"consumequeue/{at[1]}/{at[2]}/{int(at[3]):020}", each
            )
            text = re.sub(r"\blog/(\d+)", lambda at: f"commitlog/{int(at[1]):020}", text)
            text = re.sub(r"\bm(\d+)\+(\d+)", place, text)
            harm(root, re.sub(r" index\b", f" index/{oracle.index_file_name(NOW_MS, 0)}", text))
    return store
