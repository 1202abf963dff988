"""Bytes of objects on object storage: what was fetched last stays in memory, and more is fetched ahead.

An object of at most `WHOLE_MAX` bytes is fetched whole: a consume queue file, an index of a small store, the
configuration. Of a larger one, blocks of `BLOCK_SIZE` bytes serve single looks, and `fetch` takes longer
ranges. Where whole objects have to go, the pages that somebody has looked at stay: a second look at the ends
of 1,000 queues fetches nothing.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import TypeVar

from store_format.errors import StoreError
from store_format.files.source import StoredObject, source_of

WHOLE_MAX = RANGE_MAX = 8 << 20
BLOCK_SIZE = 64 << 10
_CACHE_SIZE = 128 << 20  # more than what is looked at in one moment
_PAGE_SIZE = 4096
_PAGES_MAX = 8192
_PAGES_AT_ONCE = 17  # pages of a look that is kept; a longer one reads a queue
_THREADS = 16  # requests at once
_MANY = 2000  # files whose ends are looked for: of more, only blocks are fetched, but more at once
_THREADS_OF_MANY = 64

_Found = TypeVar("_Found")
_Look = TypeVar("_Look")

_Key = tuple[StoredObject, int, int]  # the object, the bytes of a block, its number

_blocks: OrderedDict[_Key, tuple[Future[memoryview], int]] = OrderedDict()  # with their bytes
_lock = threading.Lock()
_held = 0  # bytes of all blocks
_pages: OrderedDict[_Key, bytes] = OrderedDict()  # of objects that are fetched whole
_whole_max = WHOLE_MAX


def read(item: StoredObject, start: int, stop: int) -> memoryview:
    """The bytes [start, stop) of an object, from blocks that are kept."""
    stop = min(stop, item.size)
    if start >= stop:
        return memoryview(b"")
    size = item.size if item.size <= _whole_max else BLOCK_SIZE
    if size > BLOCK_SIZE:
        return _of_whole(item, start, stop)
    first, last = start // size, (stop - 1) // size
    for number in range(first, last + 1):
        _block(item, number, size)
    parts = [_block(item, number, size).result() for number in range(first, last + 1)]
    whole = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
    return whole[start - first * size : stop - first * size]


def _of_whole(item: StoredObject, start: int, stop: int) -> memoryview:
    """The bytes [start, stop) of an object that is fetched whole, or of the pages that are left of it."""
    wanted = range(start // _PAGE_SIZE, (stop - 1) // _PAGE_SIZE + 1)
    is_small = len(wanted) <= _PAGES_AT_ONCE
    if is_small and (item, item.size, 0) not in _blocks:
        pages = [_pages.get((item, _PAGE_SIZE, number)) for number in wanted]
        if None not in pages:
            found = b"".join(page for page in pages if page is not None)
            return memoryview(found)[start - wanted[0] * _PAGE_SIZE : stop - wanted[0] * _PAGE_SIZE]
    data = _block(item, 0, item.size).result()
    if is_small:
        for number in wanted:
            _pages[item, _PAGE_SIZE, number] = bytes(data[number * _PAGE_SIZE : (number + 1) * _PAGE_SIZE])
        while len(_pages) > _PAGES_MAX:
            with suppress(KeyError):  # another thread was faster
                _pages.popitem(last=False)
    return data[start:stop]


def looked_at(found: Iterable[_Found], look: Callable[[_Found], _Look]) -> Iterator[tuple[_Found, _Look]]:
    """Yields each of `found` with what `look` says of its objects, and looks at many at once.

    Of very many objects, only the blocks that are needed are fetched.
    """
    global _whole_max
    every = list(found)
    is_many = len(every) > _MANY
    _whole_max = BLOCK_SIZE if is_many else WHOLE_MAX
    threads = _THREADS_OF_MANY if is_many else _THREADS
    with ThreadPoolExecutor(threads, thread_name_prefix="rmqlog-look") as pool:
        try:
            yield from zip(every, pool.map(look, every), strict=True)
        finally:
            _whole_max = WHOLE_MAX


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


def _block(item: StoredObject, number: int, size: int) -> Future[memoryview]:
    global _held
    key, start = (item, size, number), number * size
    stop = min(start + size, item.size)
    with _lock:
        found = _blocks.pop(key, None)
        if found is not None and found[0].done() and found[0].exception() is not None:
            _held -= found[1]
            found = None  # asked for again
        if found is None:
            found = _pool(os.getpid()).submit(source_of(item.path).get, item, start, stop), stop - start
            _held += found[1]
        _blocks[key] = found
        while _held > _CACHE_SIZE and len(_blocks) > 1:
            _held -= _blocks.popitem(last=False)[1][1]
    return found[0]


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Not shared with a forked process, which has none of the threads."""
    return ThreadPoolExecutor(_THREADS_OF_MANY, thread_name_prefix="rmqlog-fetch")
