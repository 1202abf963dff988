"""The paths of stores and of what is in them. Paths are strings, with `/` between the names.

Only this room knows what a path leads to: no other module of `store_format` asks `os.path`.
"""

from __future__ import annotations

import os


def absolute(path: str) -> str:
    """Returns the path from the root directory, without `.`, `..` and a `/` at the end."""
    return os.path.abspath(path)


def parent(path: str) -> str:
    """Returns the directory of a path. The parent of a root directory is itself."""
    return os.path.dirname(path)


def base_name(path: str) -> str:
    """Returns the last name of a path."""
    return os.path.basename(path)


def join(directory: str, path: str) -> str:
    """Returns a path inside a directory; `path` alone if it is absolute."""
    return os.path.join(directory, path)


def real(path: str) -> str:
    """Returns the absolute path without symbolic links: two paths with one real path are one place."""
    return os.path.realpath(path)


def exists(path: str) -> bool:
    """Returns whether there is anything at a path, a symbolic link that leads nowhere included."""
    return os.path.lexists(path)


def is_link(path: str) -> bool:
    """Returns whether there is a symbolic link at a path."""
    return os.path.islink(path)


def is_file(path: str) -> bool:
    """Returns whether a path leads to a regular file."""
    return os.path.isfile(path)


def is_inside(path: str, directory: str) -> bool:
    """Returns whether an absolute path is the directory, or lies in it."""
    return os.path.commonpath((path, directory)) == directory


def relative(path: str, directory: str) -> str:
    """Returns the path from a directory to a path inside."""
    return os.path.relpath(path, directory)
