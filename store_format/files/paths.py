"""The paths of stores and of what is in them. Paths are strings, with `/` between the names.

Only this room knows what a path leads to: no other module of `store_format` asks `os.path`.
"""

from __future__ import annotations

import errno
import os
import posixpath
import pwd
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from store_format.display.text import shown
from store_format.errors import CorruptStoreError, OptionError, StoreError, StorePermissionError
from store_format.files.client import StoredObject

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "hdfs")
_FILE_URI = re.compile(r"\Afile:(?://)?(?=/(?!/))", re.IGNORECASE)  # file:/x and file:///x
_REMOTE = re.compile(rf"({'|'.join(SCHEMES)})://+", re.ASCII | re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/", re.ASCII)
PLACE = f"a local path or one of {', '.join(f'{each}://' for each in SCHEMES)}"

base_name = os.path.basename
join = os.path.join  # the second path alone if it is absolute


def is_remote(path: str) -> bool:
    """Returns whether a path leads to object storage or HDFS, such as `s3://bucket/store`."""
    return path[:1] != "/" and _REMOTE.match(path) is not None


def scheme(path: str) -> str:
    """Returns the scheme of `s3://bucket/store`, also with one slash; empty for other paths and `file:/x`."""
    found = _SCHEME.match(without_file_scheme(path))
    return found[1].lower() if found is not None else ""


def refused(path: str) -> tuple[str, str] | None:
    """Returns the path as an error shows it, and what to do instead, if its scheme cannot be read, else None.

    >>> refused("s3:/backup/store")
    ("'s3:/backup/store'", 'write s3://backup/store')
    """
    name = "" if is_remote(path) else scheme(path)
    if not name:
        return None
    may_hold_secret = "@" in path or "?" in path
    if name in SCHEMES:
        root = "/" if name == "hdfs" else ""  # of the default name node
        advice = f"write {name}://{'…' if may_hold_secret else root + path[len(name) + 2 :]}"
    else:
        advice = f"file systems such as {name}: cannot be read; copy or mount the store"
    return f"{path[: len(name)]}:/…" if may_hold_secret else repr(path), advice


def remote_kind(path: str) -> str:
    """Returns what a remote path leads to, in the words of messages."""
    return "HDFS" if path[:5].lower() == "hdfs:" else "object storage"


def without_file_scheme(path: str) -> str:
    """Returns the local path of `file:/x` and `file:///x`, and every other path as it is."""
    return _FILE_URI.sub("", path, count=1)


def absolute(path: str) -> str:
    """Returns the path from the root directory, without `.`, `..` and a `/` at the end.

    >>> absolute("S3A://backup/store/")
    's3://backup/store'
    >>> absolute("hdfs:///backup/store/")  # of the default name node
    'hdfs:///backup/store'
    """
    found = _REMOTE.match(path) if path[:1] != "/" else None
    if found is None:
        return os.path.abspath(without_file_scheme(path))
    scheme = {"s3a": "s3"}.get(found[1].lower(), found[1].lower())
    has_default = scheme == "hdfs" and found[0].endswith("///")
    return f"{scheme}:/{'/' * has_default}{posixpath.normpath('/' + path[found.end() :])}"


def given(path: str) -> str:
    """Returns the absolute path of what a user wrote. Raises OptionError for a scheme that cannot be read."""
    why = refused(path)
    if why is not None:
        raise OptionError(f"{why[0]}: expected {PLACE}; {why[1]}")
    return absolute(path)


def parent(path: str) -> str:
    """Returns the directory that a path is in; a bucket itself."""
    found = os.path.dirname(path)
    return path if is_remote(path) and not is_remote(f"{found}/") else found


def relative(path: str, directory: str) -> str:
    """Returns the path from the directory to the first path."""
    return posixpath.relpath(f"/{path}", f"/{directory}")  # also of `s3://bucket/store`


def real(path: str) -> str:
    """Returns the path without symbolic links: two paths with one real path are one place."""
    return path if is_remote(path) else os.path.realpath(path)


def is_link(path: str) -> bool:
    """Returns whether a path is a symbolic link."""
    return not is_remote(path) and os.path.islink(path)


def is_inside(path: str, directory: str) -> bool:
    """Returns whether an absolute path is the directory, or lies in it."""
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")


# ---- what paths lead to ------------------------------------------------------------------------------------
# A link below the root of a store is refused: a store may be hostile, and the link could point anywhere.


# fsck creates this directory at the root of a file system; only root may read it. No topic has this name:
# TopicValidator does not allow `+`.
LOST_AND_FOUND = "lost+found"

# Called with the error for an entry that cannot be read: raises the error, or returns to skip the entry.
Refused = Callable[[StoreError], object]

OFFSET_NAME = re.compile(r"[0-9]{20}\Z", re.ASCII)
YOUNG_NS = 50_000_000  # what changed so recently may change again within a tick of its file system's clock
OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # refuses links, waits for no pipe


def symbolic_link(path: str) -> CorruptStoreError:
    """Returns the error for a symbolic link, which is followed at the root of a store only."""
    found = "a symbolic link, which is not followed below the root level"
    return CorruptStoreError(path, 0, "a file or directory", found)


def denied(path: str) -> StorePermissionError:
    """Returns the error for a path that this user may not read: the path's owner, and what to do."""
    owner, me, place = None, os.geteuid(), path
    while owner is None:
        try:
            owner = os.stat(place).st_uid
        except OSError:  # in a directory that the user may not search: then its owner counts
            place = os.path.dirname(place)
    advice = f"give {_user(me)} read permission"
    if owner != me:
        advice = f"run the command as {_user(owner)} (`sudo -u {_user(owner)} …`), or {advice}"
    return StorePermissionError(
        f"{shown(path)}: user {_user(me)} may not read it, its owner is {_user(owner)}; {advice}"
    )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def refuse(error: StoreError) -> None:
    """The `Refused` that raises every error."""
    raise error


def is_settled(identity: tuple[int, int, int] | None, now_ns: int) -> bool:
    """Returns whether each later change of the file changes its `stat_identity`, which was taken at `now_ns`
    or later.

    A missing file is settled: a new one has an identity.
    """
    return identity is None or identity[2] <= now_ns - YOUNG_NS


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One file of a file queue (such as the commitlog): path, offset of its first byte, length in bytes.

    `identity` differs once another file has the path; None for a file that was not listed. `stored` is the
    version of the object on object storage. `head_size`: bytes in front of each message, of its entry's head.
    """

    path: str
    start: int
    size: int
    identity: tuple[int, int] | None = None
    stored: StoredObject | None = None
    head_size: int = 0

    @staticmethod
    def name_at(offset: int) -> str:
        """The name of the file that begins at byte `offset` of its file queue (UtilAll.offset2FileName).

        >>> StoreFile.name_at(1073741824)
        '00000000001073741824'
        """
        return f"{offset:020d}"

    @property
    def stop(self) -> int:
        return self.start + self.size

    @property
    def is_remote(self) -> bool:
        """Whether the file lies on object storage or HDFS."""
        return is_remote(self.path)


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory. `size` is 0 for everything but a file."""

    name: str
    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A file system: where it is mounted, its size, what is free, and the used share in percent, rounded up.

    The size and the share do not count the blocks reserved for root
    (UtilAll.getDiskPartitionSpaceUsedPercent).
    """

    mount: str
    total_bytes: int
    free_bytes: int
    used_percent: int


def open_descriptor(path: str) -> int:
    """Returns a read-only descriptor. Refuses links, does not wait for pipes. The caller closes it."""
    try:
        return os.open(path, OPEN_FLAGS)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise symbolic_link(path) from error
        if isinstance(error, PermissionError):
            raise denied(path) from error
        raise


class Descriptor:
    """An open file, which `close` closes once."""

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_identity(descriptor: int) -> tuple[int, int]:
    """Returns (device, inode) of an open file."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
