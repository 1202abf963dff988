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
from contextvars import ContextVar, copy_context
from functools import cache
from typing import TypeVar

from store_format.errors import StoreError
from store_format.files import paths
from store_format.files.client import StoredObject
from store_format.files.source import source_of

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

_blocks: OrderedDict[_Key, tuple[Future[memoryview], int]] = OrderedDict()  # with their bytes
_lock = threading.Lock()
_held = 0  # bytes of all blocks
_pages: OrderedDict[_Key, bytes] = OrderedDict()  # of objects that are fetched whole
_gone: set[StoredObject] = set()  # objects that were fetched whole, and had to go
# for the look of this thread: up to which size an object is fetched whole, and whether its first block comes
# before a whole object
_fetched: ContextVar[tuple[int, bool]] = ContextVar("_fetched", default=(WHOLE_MAX, False))


def read(item: StoredObject, start: int, stop: int) -> memoryview:
    """The bytes [start, stop) of an object, from blocks that are kept."""
    stop = min(stop, item.size)
    if start >= stop:
        return memoryview(b"")
    size = _size_of_blocks(item, stop)
    return _of_whole(item, start, stop) if size > BLOCK_SIZE else _of_blocks(item, start, stop, size)


def _of_blocks(item: StoredObject, start: int, stop: int, size: int) -> memoryview:
    numbers = _numbers(start, stop, size)
    parts = [block.result() for block in _wanted(item, numbers, size)]
    whole = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    return whole[start - numbers[0] * size : stop - numbers[0] * size]


def expect(item: StoredObject, start: int, stop: int) -> None:
    """Begins to fetch the blocks of [start, stop), by one request, for looks that come."""
    stop = min(stop, item.size)
    size = _size_of_blocks(item, stop)
    if start < stop:
        _wanted(item, _numbers(start, stop, size), size)


def holds(item: StoredObject, start: int, stop: int) -> bool:
    """Whether the bytes [start, stop) are kept, or are on their way."""
    size = _size_of_blocks(item, stop)
    return all((item, size, number) in _blocks for number in _numbers(start, min(stop, item.size), size))


def _size_of_blocks(item: StoredObject, stop: int) -> int:
    """The bytes of the blocks that serve a look up to byte `stop`: BLOCK_SIZE, or all of the object."""
    whole_max, begins_first = _fetched.get()
    is_begin = begins_first and stop <= BLOCK_SIZE and (item, item.size, 0) not in _blocks
    return BLOCK_SIZE if is_begin or item.size > whole_max else item.size


def _numbers(start: int, stop: int, size: int) -> range:
    return range(start // size, (stop - 1) // size + 1)


def _of_whole(item: StoredObject, start: int, stop: int) -> memoryview:
    """The bytes [start, stop) of an object that is fetched whole, or of the pages that are left of it."""
    wanted = range(start // _PAGE_SIZE, (stop - 1) // _PAGE_SIZE + 1)
    is_small = len(wanted) <= _PAGES_AT_ONCE
    if is_small and (item, item.size, 0) not in _blocks:
        pages = [_pages.get((item, _PAGE_SIZE, number)) for number in wanted]
        if None not in pages:
            found = b"".join(page for page in pages if page is not None)
            return memoryview(found)[start - wanted[0] * _PAGE_SIZE : stop - wanted[0] * _PAGE_SIZE]
    if item in _gone:
        return _of_blocks(item, start, stop, BLOCK_SIZE)
    (block,) = _wanted(item, range(1), item.size)
    data = block.result()
    if is_small:
        for number in wanted:
            _pages[item, _PAGE_SIZE, number] = bytes(data[number * _PAGE_SIZE : (number + 1) * _PAGE_SIZE])
        while len(_pages) > _PAGES_MAX:
            with suppress(KeyError):  # another thread was faster
                _pages.popitem(last=False)
    return data[start:stop]


def looked_at(
    places: Iterable[str], found: Iterable[_Found], look: Callable[[_Found], _Look]
) -> Iterator[tuple[_Found, _Look]]:
    """Yields each of `found` with what `look` says of it: one after the other if all `places` are on a disk.

    On object storage, many are looked at at once. Of very many objects, only the blocks that are needed are
    fetched.
    """
    if not any(map(paths.is_remote, places)):
        yield from ((each, look(each)) for each in found)
        return
    every = list(found)
    is_many = len(every) > _MANY
    _fetched.set((BLOCK_SIZE if is_many else WHOLE_MAX, len(every) > _FEW))
    threads, context = _THREADS_OF_MANY if is_many else _THREADS, copy_context()
    with ThreadPoolExecutor(threads, thread_name_prefix="rmqlog-look") as pool:
        try:
            said = pool.map(lambda each: context.copy().run(look, each), every)
            yield from zip(every, said, strict=True)
        finally:
            _fetched.set((WHOLE_MAX, False))


def fetch(item: StoredObject, start: int, stop: int) -> Future[memoryview]:
    """Begins to fetch exactly [start, stop); nothing is kept. A small object comes from its block."""
    if item.size <= WHOLE_MAX:
        done: Future[memoryview] = Future()
        try:
            done.set_result(read(item, start, stop))
        except StoreError as error:
            done.set_exception(error)
        return done
    return _pool(os.getpid()).submit(source_of(item.path).get, item, start, stop)


def _wanted(item: StoredObject, numbers: range, size: int) -> list[Future[memoryview]]:
    """Blocks of an object. Those that are not kept are fetched, neighbours by one request."""
    global _held
    found, run = list[Future[memoryview]](), list[Future[memoryview]]()
    with _lock:
        for number in numbers:
            key, length = (item, size, number), min(size, item.size - number * size)
            block = _blocks.pop(key, None)
            if block is not None and block[0].done() and block[0].exception() is not None:
                _held -= block[1]
                block = None  # asked for again
            if block is None:
                block = Future(), length
                _held += length
                run.append(block[0])
            elif run:
                _submit(item, number * size, size, run)
                run = []
            _blocks[key] = block
            found.append(block[0])
        if run:
            _submit(item, min(numbers.stop * size, item.size), size, run)
        while _held > _CACHE_SIZE and len(_blocks) > 1:
            (gone, of, _), (_, length) = _blocks.popitem(last=False)
            _held -= length
            if of > BLOCK_SIZE:
                _gone.add(gone)
        if len(_gone) > _GONE_MAX:
            _gone.clear()
    return found


def _submit(item: StoredObject, stop: int, size: int, run: list[Future[memoryview]]) -> None:
    """Fetches blocks that end at byte `stop` of the object."""
    start = (stop - 1) // size * size - (len(run) - 1) * size

    def get() -> None:
        try:
            data = source_of(item.path).get(item, start, stop)
            for i, block in enumerate(run):
                part = data if len(run) == 1 else memoryview(bytes(data[i * size : (i + 1) * size]))
                block.set_result(part)
        except BaseException as error:
            for block in run:
                if not block.done():
                    block.set_exception(error)

    try:
        _pool(os.getpid()).submit(get)
    except RuntimeError as error:  # the interpreter ends
        for block in run:
            block.set_exception(error)


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Not shared with a forked process, which has none of the threads."""
    return ThreadPoolExecutor(_THREADS_OF_MANY, thread_name_prefix="rmqlog-fetch")
