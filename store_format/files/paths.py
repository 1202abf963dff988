"""The paths of stores and of what is in them. Paths are strings, with `/` between the names.

Only this room knows what a path leads to: no other module of `store_format` asks `os.path`.
"""

from __future__ import annotations

import os
import posixpath
import re

from store_format.errors import OptionError

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
    if is_remote(directory):
        return posixpath.relpath(f"/{path}", f"/{directory}")
    return os.path.relpath(path, directory)


def real(path: str) -> str:
    """Returns the path without symbolic links: two paths with one real path are one place."""
    return path if is_remote(path) else os.path.realpath(path)


def is_link(path: str) -> bool:
    """Returns whether a path is a symbolic link."""
    return not is_remote(path) and os.path.islink(path)


def is_inside(path: str, directory: str) -> bool:
    """Returns whether an absolute path is the directory, or lies in it."""
    return f"{path.rstrip('/')}/".startswith(f"{directory.rstrip('/')}/")
