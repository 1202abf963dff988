"""Which consume queues a store has: their directories, and the names that they can have."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from store_format.consumequeue.files import QueueKind
from store_format.errors import StorePermissionError
from store_format.files import paths
from store_format.files.read import Refused, list_directories, refuse

FOLDERS: dict[QueueKind, str] = {"simple": "consumequeue", "batch": "batchconsumequeue"}
_ROCKSDB_FOLDERS = ("consumequeue", "consumequeue_rocksdb")
_NAME_BYTES_MAX = 255  # NAME_MAX of Linux
_QUEUE_ID_MAX = 2**31 - 1


def queue_directory(root: str, topic: str, queue_id: int, kind: QueueKind = "simple") -> str:
    """The directory of a queue's files."""
    return f"{root}/{FOLDERS[kind]}/{topic}/{queue_id}"


def can_be_queue(topic: str, queue_id: int) -> bool:
    """Whether a queue of that name has a directory of its own.

    Names come from messages, too: a topic such as `..` would lead out of the store, and the name of a light
    queue (INNER_MULTI_DISPATCH) can be longer than a file system allows.

    >>> can_be_queue("%LMQ%" + "x" * 250, 0), can_be_queue("%LMQ%" + "x" * 251, 0)
    (True, False)
    """
    if queue_id < 0 or topic in ("", ".", "..") or "/" in topic or "\0" in topic:
        return False
    return len(topic.encode(errors="surrogatepass")) <= _NAME_BYTES_MAX


def is_queue_id(name: str) -> bool:
    """Whether a directory's name is a queue id as a broker writes it: no leading zeros, at most 2^31 - 1."""
    if not (name.isascii() and name.isdigit() and len(name) < 11):
        return False
    return name == str(int(name)) and int(name) <= _QUEUE_ID_MAX


def list_queues(
    root: str, select: Callable[[str], bool], refused: Refused = refuse
) -> Iterator[tuple[str, int, str, QueueKind]]:
    """(topic, queue id, directory, kind) of every queue directory whose topic is selected, sorted.

    A directory below a topic whose name is no queue id is skipped, as the broker does
    (ConsumeQueueStore.loadConsumeQueues). `refused` is called for a selected topic or queue that is a link or
    may not be listed; if it does not raise, the topic or queue is left out.
    """
    for kind, folder in FOLDERS.items():
        for topic, topic_path in list_directories(f"{root}/{folder}", select, refused):
            try:
                found = list_directories(topic_path, is_queue_id, refused)
            except StorePermissionError as error:
                refused(error)
                continue
            for queue_id, path in sorted((int(name), path) for name, path in found):
                yield topic, queue_id, path, kind


def has_rocksdb_queues(root: str) -> bool:
    """Whether RocksDB keeps the consume queues, so that missing queue files say nothing."""
    return any(paths.exists(f"{root}/{folder}/CURRENT") for folder in _ROCKSDB_FOLDERS)
