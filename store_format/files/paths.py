"""The paths of stores and of what is in them. Paths are strings, with `/` between the names.

Only this room knows what a path leads to: no other module of `store_format` asks `os.path`.
"""

from __future__ import annotations

import os

absolute = os.path.abspath  # from the root directory, without `.`, `..` and a `/` at the end
parent = os.path.dirname
base_name = os.path.basename
join = os.path.join  # the second path alone if it is absolute
relative = os.path.relpath  # from the second path to the first
real = os.path.realpath  # without symbolic links: two paths with one real path are one place
exists = os.path.lexists  # also for a symbolic link that leads nowhere
is_link = os.path.islink
is_file = os.path.isfile  # a regular file, or a link to one


def is_inside(path: str, directory: str) -> bool:
    """Returns whether an absolute path is the directory, or lies in it."""
    return os.path.commonpath((path, directory)) == directory
