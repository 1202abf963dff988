"""Bytes of objects on object storage: what was fetched last stays in memory, and more is fetched ahead.

An object of at most `WHOLE_MAX` bytes is fetched whole: a consume queue file, an index of a small store, the
configuration. Of a larger one, blocks of `BLOCK_SIZE` bytes serve single looks, and `fetch` takes longer
ranges. Of many files that are looked at together, the first block is fetched first: most of many queues end
there, and 1,000 whole files are 6 GB. Where whole objects have to go, the pages that somebody has looked at
stay: a second look at the ends of 1,000 queues fetches nothing. An object that had to go is not fetched whole
again: a task that reads many queues in the order of the log takes a little of each, again and again.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

from store_format.errors import StoreError
from store_format.files.client import StoredObject
from store_format.files.source import Bucket

WHOLE_MAX = RANGE_MAX = 8 << 20
BLOCK_SIZE = 64 << 10
_CACHE_SIZE = 64 << 20  # more than what is looked at in one moment
_PAGE_SIZE = 4096
_PAGES_MAX = 8192
_PAGES_AT_ONCE = 17  # pages of a look that is kept; a longer one reads a queue
_THREADS = 16  # requests at once
_FEW = 16  # files whose ends are looked for: of more, the first block is fetched before the whole file
_GONE_MAX = 100_000
_MANY = 2000  # … of more than these, only blocks are fetched, but more at once
_THREADS_OF_MANY = 64

_Found = TypeVar("_Found")
_Look = TypeVar("_Look")

_Key = tuple[StoredObject, int, int]  # the object, the bytes of a block, its number


class _Fetched(threading.local):
    """For the looks of a thread: up to which size an object is fetched whole, and whether its first block
    comes before a whole object.
    """

    whole_max = WHOLE_MAX
    begins_first = False


class Blocks:
    """The bytes of one bucket, or of a name node. `bucket` gives its client."""

    def __init__(self, bucket: Callable[[], Bucket]) -> None:
        self._bucket = bucket
        self._blocks: OrderedDict[_Key, tuple[Future[memoryview], int]] = OrderedDict()  # with their bytes
        self._held = 0  # bytes of all blocks
        self._pages: OrderedDict[_Key, bytes] = OrderedDict()  # of objects that are fetched whole
        self._gone: set[StoredObject] = set()  # objects that were fetched whole, and had to go
        self._lock = threading.Lock()
        self._fetched = _Fetched()
        self._threads: tuple[int, ThreadPoolExecutor] | None = None  # of which process

    def read(self, item: StoredObject, start: int, stop: int) -> memoryview:
        """The bytes [start, stop) of an object, from blocks that are kept."""
        stop = min(stop, item.size)
        if start >= stop:
            return memoryview(b"")
        size = self._size_of_blocks(item, stop)
        return (
            self._of_whole(item, start, stop)
            if size > BLOCK_SIZE
            else self._of_blocks(item, start, stop, size)
        )

    def expect(self, item: StoredObject, start: int, stop: int) -> None:
        """Begins to fetch the blocks of [start, stop), by one request, for looks that come."""
        stop = min(stop, item.size)
        size = self._size_of_blocks(item, stop)
        if start < stop:
            self._wanted(item, _numbers(start, stop, size), size)

    def holds(self, item: StoredObject, start: int, stop: int) -> bool:
        """Whether the bytes [start, stop) are kept, or are on their way."""
        size = self._size_of_blocks(item, stop)
        return all(
            (item, size, number) in self._blocks for number in _numbers(start, min(stop, item.size), size)
        )

    def fetch(self, item: StoredObject, start: int, stop: int) -> Future[memoryview]:
        """Begins to fetch exactly [start, stop); nothing is kept. A small object comes from its block."""
        if item.size <= WHOLE_MAX:
            done: Future[memoryview] = Future()
            try:
                done.set_result(self.read(item, start, stop))
            except StoreError as error:
                done.set_exception(error)
            return done
        return self._pool().submit(self._bucket().get, item, start, stop)

    def look_at_each(
        self, found: Iterable[_Found], look: Callable[[_Found], _Look]
    ) -> Iterator[tuple[_Found, _Look]]:
        """Yields each of `found` with what `look` says of it; many are looked at at once. Of very many, only
        the blocks that are needed are fetched.
        """
        every = list(found)
        is_many = len(every) > _MANY

        def begin() -> None:
            self._fetched.whole_max = BLOCK_SIZE if is_many else WHOLE_MAX
            self._fetched.begins_first = len(every) > _FEW

        threads = _THREADS_OF_MANY if is_many else _THREADS
        with ThreadPoolExecutor(threads, "rmqlog-look", begin) as pool:
            context = copy_context()
            said = pool.map(lambda each: context.copy().run(look, each), every)
            yield from zip(every, said, strict=True)

    def _of_blocks(self, item: StoredObject, start: int, stop: int, size: int) -> memoryview:
        numbers = _numbers(start, stop, size)
        parts = [block.result() for block in self._wanted(item, numbers, size)]
        whole = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return whole[start - numbers[0] * size : stop - numbers[0] * size]

    def _size_of_blocks(self, item: StoredObject, stop: int) -> int:
        """The bytes of the blocks that serve a look up to byte `stop`: BLOCK_SIZE, or all of the object."""
        whole_max, begins_first = self._fetched.whole_max, self._fetched.begins_first
        is_begin = begins_first and stop <= BLOCK_SIZE and (item, item.size, 0) not in self._blocks
        return BLOCK_SIZE if is_begin or item.size > whole_max else item.size

    def _of_whole(self, item: StoredObject, start: int, stop: int) -> memoryview:
        """The bytes [start, stop) of an object that is fetched whole, or of the pages that are left of it."""
        wanted = range(start // _PAGE_SIZE, (stop - 1) // _PAGE_SIZE + 1)
        is_small = len(wanted) <= _PAGES_AT_ONCE
        if is_small and (item, item.size, 0) not in self._blocks:
            pages = [self._pages.get((item, _PAGE_SIZE, number)) for number in wanted]
            if None not in pages:
                found = b"".join(page for page in pages if page is not None)
                return memoryview(found)[start - wanted[0] * _PAGE_SIZE : stop - wanted[0] * _PAGE_SIZE]
        if item in self._gone:
            return self._of_blocks(item, start, stop, BLOCK_SIZE)
        (block,) = self._wanted(item, range(1), item.size)
        data = block.result()
        if is_small:
            for number in wanted:
                self._pages[item, _PAGE_SIZE, number] = bytes(
                    data[number * _PAGE_SIZE : (number + 1) * _PAGE_SIZE]
                )
            while len(self._pages) > _PAGES_MAX:
                with suppress(KeyError):  # another thread was faster
                    self._pages.popitem(last=False)
        return data[start:stop]

    def _wanted(self, item: StoredObject, numbers: range, size: int) -> list[Future[memoryview]]:
        """Blocks of an object. Those that are not kept are fetched, neighbours by one request."""
        found, run = list[Future[memoryview]](), list[Future[memoryview]]()
        with self._lock:
            for number in numbers:
                key, length = (item, size, number), min(size, item.size - number * size)
                block = self._blocks.pop(key, None)
                if block is not None and block[0].done() and block[0].exception() is not None:
                    self._held -= block[1]
                    block = None  # asked for again
                if block is None:
                    block = Future(), length
                    self._held += length
                    run.append(block[0])
                elif run:
                    self._submit(item, number * size, size, run)
                    run = []
                self._blocks[key] = block
                found.append(block[0])
            if run:
                self._submit(item, min(numbers.stop * size, item.size), size, run)
            while self._held > _CACHE_SIZE and len(self._blocks) > 1:
                (gone, of, _), (_, length) = self._blocks.popitem(last=False)
                self._held -= length
                if of > BLOCK_SIZE:
                    self._gone.add(gone)
            if len(self._gone) > _GONE_MAX:
                self._gone.clear()
        return found

    def _submit(self, item: StoredObject, stop: int, size: int, run: list[Future[memoryview]]) -> None:
        """Fetches blocks that end at byte `stop` of the object."""
        start = (stop - 1) // size * size - (len(run) - 1) * size

        def get() -> None:
            try:
                data = self._bucket().get(item, start, stop)
                for i, block in enumerate(run):
                    part = data if len(run) == 1 else memoryview(bytes(data[i * size : (i + 1) * size]))
                    block.set_result(part)
            except BaseException as error:
                for block in run:
                    if not block.done():
                        block.set_exception(error)

        try:
            self._pool().submit(get)
        except RuntimeError as error:  # the interpreter ends
            for block in run:
                block.set_exception(error)

    def _pool(self) -> ThreadPoolExecutor:
        """Not shared with a forked process, which has none of the threads."""
        if self._threads is None or self._threads[0] != os.getpid():
            self._threads = os.getpid(), ThreadPoolExecutor(_THREADS_OF_MANY, "rmqlog-fetch")
        return self._threads[1]


def _numbers(start: int, stop: int, size: int) -> range:
    return range(start // size, (stop - 1) // size + 1)
