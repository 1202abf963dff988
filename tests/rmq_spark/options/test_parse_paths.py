"""Paths as Spark writes them become absolute local ones."""

from __future__ import annotations

import os

import pytest

from rmq_spark.options.option import Given, path_list, paths_json, single_path, written_path
from store_format.errors import OptionError


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/store", "/data/store"),
        ("/data//x/../store/", "/data/store"),
        ("file:/data/store a", "/data/store a"),
        ("file:///data/store", "/data/store"),
        ("FILE:/data/store", "/data/store"),
        ("file:/data/store%20a", "/data/store%20a"),  # a Hadoop path is not percent-encoded
        ("store", os.path.join(os.getcwd(), "store")),
    ],
)
def test_one_path(text: str, path: str) -> None:
    assert single_path(Given("path", text, 0)) == (path,)


def test_several() -> None:
    assert paths_json(Given("paths", '["/a,b","file:/c"]', 0)) == ("/a,b", "/c")
    assert path_list(Given("storePathCommitLog", "/a, /b", 0)) == ("/a", "/b")


PLACE = "a local path or one of s3://, s3a://, gs://, az://, abfs://, abfss://, hdfs://"
REMOTE = "file systems such as {}: cannot be read; copy or mount the store"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("viewfs://host/x", f"path: expected {PLACE}, found 'viewfs://host/x'; {REMOTE.format('viewfs')}"),
        ("oss://b/x", f"path: expected {PLACE}, found 'oss://b/x'; {REMOTE.format('oss')}"),
        ("ftp://u:p@h/x", f"path: expected {PLACE}, found ftp:/…; {REMOTE.format('ftp')}"),
        ("hdfs:/x/y", f"path: expected {PLACE}, found 'hdfs:/x/y'; write hdfs:///x/y"),
        ("s3a:/x/y", f"path: expected {PLACE}, found 's3a:/x/y'; write s3a://x/y"),
        ("s3:/key:secret@x", f"path: expected {PLACE}, found s3:/…; write s3://…"),
        ("file://host/x", f"path: expected {PLACE}, found 'file://host/x'; {REMOTE.format('file')}"),
        (" ",
         "path: expected a path, found ' '; give the broker's store directory, as in load('/data/store')"),
        ("a\0b",
         ("path: expected a path, found 'a\\x00b'; give the broker's store directory, as in "
          "load('/data/store')")),
    ],
)  # fmt: skip
def test_what_is_no_local_path(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        single_path(Given("path", text, 0))
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["s3://backup/store", "s3:/backup/store"])
def test_a_write_to_object_storage(text: str) -> None:
    with pytest.raises(OptionError, match=r"^path: expected a local path, found .*; a write needs a lock"):
        written_path(Given("path", text, 0))


@pytest.mark.parametrize("text", ["/a,/b", "[]", "[1]", '{"a":1}', "[" * 100_000])
def test_paths_are_a_json_list(text: str) -> None:
    with pytest.raises(
        OptionError, match=r'^paths: expected a JSON list of paths such as \["/data/a","/data/b"\], found '
    ):
        paths_json(Given("paths", text, 0))


def test_a_store_named_twice() -> None:
    with pytest.raises(OptionError) as caught:
        paths_json(Given("paths", '["/a","file:/a/"]', 0))
    assert str(caught.value) == "paths: expected each path once, found '/a'; its messages would be read twice"
