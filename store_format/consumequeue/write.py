"""Writes consume queue units into their files. Files have their full size from the start; directories and
files are created when they are first needed, and synced at the end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from store_format.consumequeue.files import FOLDERS, queue_directory
from store_format.consumequeue.updates import CqBatch, CqUpdate, QueueEnd, cq_updates, pre_blank_bytes
from store_format.files.read import list_store_files, offset_file_name
from store_format.files.write import FileWrites, WritableFile
from store_format.names import QueueKey

_OPEN_MAX = 256


class QueueFiles:
    """Writes batches to `queues`, each from its queue offset in `bases` on."""

    def __init__(
        self,
        root: str,
        queues: Sequence[QueueKey],
        bases: Sequence[int],
        file_size: int,
        files: FileWrites,
    ) -> None:
        self._root = root
        self._files = files
        self._ends = [
            _end(root, topic, queue_id, base, file_size)
            for (topic, queue_id), base in zip(queues, bases, strict=True)
        ]
        self._numbers = {queue: number for number, queue in enumerate(queues)}
        self._open: OrderedDict[str, WritableFile] = OrderedDict()
        self._dirty: dict[str, None] = {}

    def write(self, batch: CqBatch) -> None:
        """Writes the units of a batch, whose `queue_index` are places in `queues`."""
        for update in cq_updates(self._ends, batch):
            number = self._numbers[update.topic, update.queue_id]
            end = self._ends[number]
            file = self._file(update, end.file_size)
            if update.pre_blank:
                file.write(0, pre_blank_bytes(update.pre_blank))
            file.write(update.position, update.units)
            self._ends[number] = end.after(update)

    def _file(self, update: CqUpdate, size: int) -> WritableFile:
        directory = queue_directory(self._root, update.topic, update.queue_id)
        path = f"{directory}/{offset_file_name(update.file_start)}"
        file = self._open.get(path)
        if file is None:
            if update.is_new_file:
                self._files.make_directories(
                    self._root, FOLDERS["simple"], update.topic, str(update.queue_id)
                )
            file, made = self._files.open_full(path, size)
            if made:
                self._files.sync_directory(directory)
            self._open[path] = file
            if len(self._open) > _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(path)
        self._dirty[path] = None
        return file

    def close(self) -> None:
        """Syncs every file that was written."""
        try:
            for path in self._dirty if self._files.is_sync else ():
                file = self._open.get(path)
                if file is not None:
                    self._files.sync(file)
                else:
                    with self._files.open(path) as reopened:
                        self._files.sync(reopened)
        finally:
            for file in self._open.values():
                file.close()
            self._open.clear()


def _end(root: str, topic: str, queue_id: int, base: int, file_size: int) -> QueueEnd:
    files = list_store_files(queue_directory(root, topic, queue_id))
    if not files:
        return QueueEnd(topic, queue_id, file_size, base, None)
    return QueueEnd(topic, queue_id, files[0].size or file_size, base, files[-1].stop)
