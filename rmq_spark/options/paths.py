"""Parsers of paths: plain paths, `file:` URIs and JSON lists become absolute local paths. Reads no file.

Tasks run in other directories than the caller, so relative paths are made absolute here.
"""

from __future__ import annotations

import json
import re

from rmq_spark.options.parse import Given
from store_format.files import paths

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/", re.ASCII)
_FILE_URI = re.compile(r"\Afile:(?://)?(?=/(?!/))", re.IGNORECASE)  # file:/x and file:///x


def single_path(given: Given) -> tuple[str, ...]:
    """One path."""
    return (_local(given, given.text),)


def file_path(given: Given) -> str:
    """The path of one file, absolute."""
    return _local(given, given.text)


def paths_json(given: Given) -> tuple[str, ...]:
    """Paths from the JSON list that Spark passes for `load([a, b])`."""
    try:
        found = json.loads(given.text)
    except (ValueError, RecursionError) as error:
        raise given.error('a JSON list of paths such as ["/data/a","/data/b"]') from error
    if not isinstance(found, list) or not found or not all(isinstance(path, str) for path in found):
        raise given.error('a JSON list of paths such as ["/data/a","/data/b"]')
    return _once(given, [_local(given, path) for path in found])


def path_list(given: Given) -> tuple[str, ...]:
    """Paths separated by commas, as the broker's `storePathCommitLog` (MixAll.MULTI_PATH_SPLITTER)."""
    return _once(given, [_local(given, path.strip()) for path in given.text.split(",")])


def _local(given: Given, path: str) -> str:
    """An absolute path. Not percent-decoded: in Spark's Hadoop paths `%20` is three characters."""
    plain = _FILE_URI.sub("", path, count=1)
    scheme = _SCHEME.match(plain)
    if scheme is not None:
        raise given.error(
            "a local path",
            repr(path),
            f"file systems such as {scheme[1]}: cannot be read; copy or mount the store",
        )
    if not plain.strip() or "\0" in plain:
        raise given.error(
            "a path", repr(path), "give the broker's store directory, as in load('/data/store')"
        )
    return paths.absolute(plain)


def _once(given: Given, paths: list[str]) -> tuple[str, ...]:
    for i, path in enumerate(paths):
        if path in paths[:i]:
            raise given.error("each path once", repr(path), "its messages would be read twice")
    return tuple(paths)
