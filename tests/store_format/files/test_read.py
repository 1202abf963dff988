"""Files listed, and files held open: how many, how large together, and closed once deleted or replaced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.recover import recover
from store_format.errors import CorruptStoreError, StoreNotFoundError
from store_format.files.read import FileCache, files_at, one_look
from store_format.files.view import FileView
from tests.support import oracle
from tests.support.oracle import Message


def _file(directory: Path, name: str, size: int) -> str:
    path = directory / name
    path.write_bytes(bytes(size))
    return str(path)


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # the listing's own
    return found


def test_an_unchanged_file_is_opened_once(tmp_path: Path) -> None:
    path = _file(tmp_path, "a", 10)
    cache = FileCache()
    assert cache.open(path) is cache.open(path)


def test_views_above_the_capacity_are_let_go_oldest_first(tmp_path: Path) -> None:
    paths = [_file(tmp_path, name, 100) for name in "abc"]
    cache = FileCache(capacity=2)
    for path in paths:
        cache.open(path)
    assert list(cache) == paths[1:]
    cache.open(paths[1])
    cache.open(paths[0])
    assert list(cache) == [paths[1], paths[0]]


def test_a_replaced_file_is_opened_anew(tmp_path: Path) -> None:
    path = _file(tmp_path, "a", 10)
    cache = FileCache()
    before = cache.open(path)
    os.replace(_file(tmp_path, "other", 20), path)
    after = cache.open(path)
    assert (before.size, after.size, len(cache)) == (10, 20, 1)


def test_deleted_and_replaced_files_are_let_go_of(tmp_path: Path) -> None:
    kept, deleted, replaced = (_file(tmp_path, name, 4096) for name in ("kept", "deleted", "replaced"))
    cache = FileCache()
    for path in (kept, deleted, replaced):
        cache.open(path)
    os.remove(deleted)
    os.replace(_file(tmp_path, "new", 1), replaced)
    assert any(name.startswith(deleted) for name in _descriptors())
    cache.forget_deleted()
    assert list(cache) == [kept]
    assert not any(name.startswith((deleted, replaced)) for name in _descriptors())


def test_a_view_in_use_outlives_the_cache(tmp_path: Path) -> None:
    path = _file(tmp_path, "a", 10)
    cache = FileCache(capacity=1)
    view: FileView = cache.open(path)
    cache.open(_file(tmp_path, "b", 10))
    assert path not in list(cache)
    assert view.read(0, 10) == bytes(10)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    cache = FileCache()
    path = _file(tmp_path, "a", 10)
    cache.open(path)
    os.remove(path)
    with pytest.raises(StoreNotFoundError, match="deleted"):
        cache.open(path)
    assert not len(cache)


def test_a_file_deleted_during_a_listing_hides_no_other_file(tmp_path: Path) -> None:
    """Retention deletes the oldest file at any time: the listing used to be empty then."""
    oldest, newest = _file(tmp_path, "0" * 20, 100), _file(tmp_path, "0" * 17 + "100", 100)

    class Deleting:
        def match(self, name: str) -> re.Match[str] | None:
            if os.path.exists(oldest):
                os.unlink(oldest)
            return re.match("[0-9]{20}", name)

    pattern: re.Pattern[str] = Deleting()  # type: ignore[assignment] # only match() is called
    assert [file.path for file in files_at(str(tmp_path)).store_files(str(tmp_path), pattern)] == [newest]


# ---- one look at local files -------------------------------------------------------------------------------


_OLD = 1_600_000_000


def _write(path: Path, data: bytes, seconds: int = _OLD) -> str:
    """A file as it was before the look, or one with a later time."""
    path.write_bytes(data)
    os.utime(path, (seconds, seconds))
    return str(path)


def test_a_small_file_is_read_once_in_a_look(tmp_path: Path) -> None:
    """Shown by bytes that change without a sign: a later look has the new ones."""
    path = _write(tmp_path / "a", b"one")
    with one_look():
        assert files_at(path).read(path) == b"one"
        _write(tmp_path / "a", b"two")
        assert files_at(path).read(path) == b"one"
        with one_look():  # a part of the same look
            assert files_at(path).read(path) == b"one"
        assert files_at(path).readable_identity(path) is not None
    assert files_at(path).read(path) == b"two"
    with one_look():
        assert files_at(path).read(path) == b"two"


def test_bytes_are_decoded_once_in_a_look(tmp_path: Path) -> None:
    path, decoded = _write(tmp_path / "a", b"one"), list[bytes]()

    def value() -> bytes:
        files = files_at(path)
        data = files.read(path) or b""

        def decode() -> bytes:
            decoded.append(data)
            return data.upper()

        return files.decoded(path, data, decode)

    with one_look():
        assert [value(), value()] == [b"ONE", b"ONE"]
        _write(tmp_path / "a", b"two", _OLD + 1)
        assert [value(), value()] == [b"TWO", b"TWO"]
    assert value() == b"TWO"
    assert decoded == [b"one", b"two", b"two"]


def test_what_was_found_is_kept_until_somebody_writes(tmp_path: Path) -> None:
    lock, found = _write(tmp_path / "lock", b""), list[int]()

    def count() -> int:
        found.append(1)
        return len(found)

    def look() -> int:
        return files_at(lock).kept("names", count)

    with one_look():
        assert [look(), look()] == [1, 2]  # a broker may write
        with files_at(lock).still([lock]):
            assert [look(), look()] == [3, 3]
            with files_at(lock).still([]):  # a part of the same time
                assert look() == 3
            _write(tmp_path / "lock", b"", _OLD + 1)
            assert [look(), look()] == [4, 4]
        assert look() == 5
    assert look() == 6


def test_a_change_is_noticed_in_a_look(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with one_look():
        assert files_at(path).read(path) is None
        _write(tmp_path / "a", b"one")
        assert files_at(path).read(path) == b"one"
        before = files_at(path).readable_identity(path)
        _write(tmp_path / "a", b"two", _OLD + 1)
        assert files_at(path).read(path) == b"two"
        assert files_at(path).readable_identity(path) != before
        os.remove(path)
        assert files_at(path).read(path) is None
        assert files_at(path).readable_identity(path) is None


def test_a_file_that_changed_just_now_is_read_again(tmp_path: Path) -> None:
    """It may change again within a tick of its file system's clock."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    with one_look():
        assert files_at(str(path)).read(str(path)) == b"one"
        young = path.stat()
        path.write_bytes(b"two")
        os.utime(path, ns=(young.st_atime_ns, young.st_mtime_ns))
        assert files_at(str(path)).read(str(path)) == b"two"


def test_a_file_above_the_size_is_refused_in_a_look(tmp_path: Path) -> None:
    path = _write(tmp_path / "a", b"one")
    with one_look():
        assert files_at(path).read(path) == b"one"
        with pytest.raises(CorruptStoreError, match="at most 2 bytes"):
            files_at(path).read(path, 2)


def test_a_link_is_refused_in_a_look(tmp_path: Path) -> None:
    _write(tmp_path / "a", b"one")
    (tmp_path / "link").symlink_to("a")
    for _ in range(2):
        with one_look():
            for look in (files_at("/").read, files_at("/").readable_identity):
                with pytest.raises(CorruptStoreError):
                    look(str(tmp_path / "link"))


def test_a_queue_file_is_opened_once_in_a_look(tmp_path: Path) -> None:
    path = _write(tmp_path / "a", b"one")
    with one_look():
        with files_at(path).kept_view(path) as first:
            assert first.read(0, 3) == b"one"
        with files_at(path).kept_view(path) as again:
            assert again is first
        (tmp_path / "new").write_bytes(b"two")
        os.replace(tmp_path / "new", path)
        with files_at(path).kept_view(path) as later:
            assert later.read(0, 3) == b"two"
        assert files_at(path).view(path).identity == later.identity
    with files_at(path).kept_view(path) as outside:
        assert outside is not later


def test_a_look_keeps_few_files_open(tmp_path: Path) -> None:
    def count() -> int:
        return sum(1 for _ in os.scandir("/proc/self/fd"))

    paths = [_write(tmp_path / str(number), b"x") for number in range(200)]
    before = count()
    with one_look():
        for path in paths:
            files_at(path).kept_view(path).close()
        assert before < count() <= before + 150
    assert count() <= before


# ---- how many bytes an operation reads of a sparse store ---------------------------------------------------


_FILE_SIZE = 1 << 30
_FILES, _MESSAGES = 4, 250  # messages of each file
_BODY = bytes(1000)
_READ = """
import os, sys
sizes, pread, preadv = [], os.pread, os.preadv
def counted_pread(*arguments):
    data = pread(*arguments)
    sizes.append(len(data))
    return data
def counted_preadv(*arguments):
    sizes.append(preadv(*arguments))
    return sizes[-1]
os.pread, os.preadv = counted_pread, counted_preadv
{code}
print(sum(sizes))
"""


def _write_log(directory: Path) -> None:
    """Files of full length with some messages each, and a BLANK that leads to the next file."""
    directory.mkdir(parents=True)
    for number in range(_FILES):
        start, data = number * _FILE_SIZE, b""
        for i in range(_MESSAGES):
            n = number * _MESSAGES + i
            data += oracle.encode_message(
                Message(
                    b"Orders", _BODY, f"KEYS\x01key-{n}\x02".encode(), queue_offset=n,
                    physical_offset=start + len(data), store_timestamp=1_700_000_000_000 + n,
                )
            )  # fmt: skip
        if number < _FILES - 1:
            data += oracle.blank(_FILE_SIZE - len(data))
        path = directory / oracle.file_name(start)
        path.write_bytes(data)
        os.truncate(path, _FILE_SIZE)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("large") / "store"
    _write_log(root / "commitlog")
    config = {"topicName": "Orders", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": {"Orders": config}}))
    recover(str(root)).apply()
    (index,) = (root / "index").iterdir()
    assert index.stat().st_size == 40 + 4 * 5_000_000 + 20 * 20_000_000
    assert sum(file.stat().st_size for file in (root / "commitlog").iterdir()) == 4 << 30
    assert MessageStore.open(str(root)).queue("Orders", 0).max_offset == _FILES * _MESSAGES
    return str(root)


def _bytes_read(code: str, *arguments: str) -> int:
    """What the code reads in a process of its own. A walk reads 1 MiB at a time."""
    command = [sys.executable, "-c", _READ.format(code=code), *arguments]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    return int(done.stdout.split()[-1])


_PLAN = """
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
assert plan(parse_read_options({"path": sys.argv[1]})).splits
"""
_GET = """
from store_format import MessageStore
(batch,) = MessageStore.open(sys.argv[1]).queue("Orders", 0).read(500, 501)
assert batch.num_rows == 1
"""
_FIND = """
from store_format import MessageStore
found = MessageStore.open(sys.argv[1]).find(key="key-500", topic="Orders")
assert (found.table.num_rows, found.how) == (1, "index")
"""
_LAG = """
import rmq_spark
rmq_spark.open(sys.argv[1]).view("lag")
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "most"),
    [
        pytest.param(_PLAN, 2 << 20, id="plan"),
        pytest.param(_GET, 2 << 20, id="get"),
        pytest.param(_FIND, 5 << 20, id="find"),
        pytest.param(_LAG, 3 << 20, id="lag"),
    ],
)
def test_an_operation_reads_what_it_needs(store: str, code: str, most: int) -> None:
    assert _bytes_read(code, store) <= most
