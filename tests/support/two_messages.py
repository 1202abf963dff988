"""Stores in which two messages claim one queue offset, as brokers have stored them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.support import oracle
from tests.support.oracle import Message
from tests.support.store_files import write_file

FILE_SIZE, QUEUE_FILE_SIZE = 16384, 400
LIGHT = "%LMQ%a"

# Queue offsets of messages in the order of the log, and the numbers of those that DefaultMessageStore (5.5.0,
# 4.9.7) serves at 0, 1 and so on (ConsumeQueue.putMessagePositionInfo), also when it builds the queue.
PAIRS = {
    "in the middle": ([0, 1, 1, 2, 2, 3], [0, 1, 3, 5]),
    "at the end": ([0, 1, 2, 2], [0, 1, 2]),
    "far behind": ([0, 1, 2, 3, 4, 1, 2, 5], [0, 1, 2, 3, 4, 7]),
}


def body(number: int) -> bytes:
    return b"message %d" % number * 3


def make_store(root: Path, offsets: list[int], entries: list[int], *, light: bool = False) -> Path:
    """A store that was stopped in order: message `number` has `body(number)`. The queue's entries lead to the
    messages `entries`; with `light` those of a light queue, and the messages alternate between two queues.
    """
    data, places = b"", []
    own = [0, 0]
    for number, offset in enumerate(offsets):
        queue = number % 2 if light else 0
        names = {"INNER_MULTI_DISPATCH": LIGHT, "INNER_MULTI_QUEUE_OFFSET": str(offset)} if light else {}
        properties = oracle.encode_properties({"KEYS": f"k{number}", **names})
        message = Message(
            b"T",
            body(number),
            properties,
            queue,
            own[queue] if light else offset,
            physical_offset=len(data),
        )
        message = replace(message, store_timestamp=1_790_000_000_000 + number)
        own[queue] += 1
        places.append((len(data), message.total_size, queue))
        data += oracle.encode_message(message)
    queues = {(LIGHT, 0): entries, ("T", 0): [], ("T", 1): []} if light else {("T", 0): entries}
    for number, (_, _, queue) in enumerate(places if light else []):
        queues["T", queue].append(number)
    files = {f"commitlog/{0:020}": data.ljust(FILE_SIZE, b"\0"), "checkpoint": oracle.checkpoint(0, 0)}
    for (topic, queue), numbers in queues.items():
        entry = b"".join(
            place.to_bytes(8) + size.to_bytes(4) + bytes(8)
            for place, size, _ in map(places.__getitem__, numbers)
        )
        files[f"consumequeue/{topic}/{queue}/{0:020}"] = entry.ljust(QUEUE_FILE_SIZE, b"\0")
    table = {"T": {"topicName": "T", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}}
    files["config/topics.json"] = json.dumps({"topicConfigTable": table}).encode()
    if light:
        files["config/lmqConsumerOffset.json"] = b'{"offsetTable":{}}'
    for name, content in files.items():
        write_file(root / name, content)
    return root
