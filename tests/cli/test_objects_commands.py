"""The commands on a store in object storage: what reads says the same, and what writes is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import rmq_spark
from store_format import MessageStore
from store_format.display.units import size_text
from store_format.errors import OptionError
from store_format.files import paths
from store_format.files.read import places
from tests.support.cli_runs import Runner
from tests.support.object_server import ObjectServer


@pytest.mark.parametrize(
    "words",
    [
        ("info",), ("ls", "-l"), ("du",), ("verify",), ("lag",), ("groups",), ("offsets",), ("recover",),
        ("clean",), ("services",), ("delay",), ("half",), ("head", "-t", "Orders"),
        ("find", "-t", "Orders", "--key", "order-7"),
    ],
)  # fmt: skip
def test_a_command_says_the_same(
    server: ObjectServer, basic: Path, rmqlog: Runner, words: tuple[str, ...]
) -> None:
    now = ("--now", "2026-01-01T00:00:00Z") if words[0] in ("clean", "services", "lag") else ()
    local = rmqlog(words[0], basic, *words[1:], *now)
    remote = rmqlog(words[0], server.url_of(basic), *words[1:], *now)
    assert remote.code == local.code
    assert remote.out.replace(server.url_of(basic), str(basic)) == local.out
    said = remote.err.replace(server.url_of(basic), str(basic)).splitlines()
    assert [line for line in said if line in local.err.splitlines()] == local.err.splitlines()
    held = size_text(MessageStore.open(str(basic)).log.files[-1].size)
    assert (f"the last commitlog file still grows: {held}, " in remote.err) is (words[0] == "lag")
    assert not server.refused


@pytest.mark.parametrize(
    "words",
    [("recover", "--apply"), ("clean", "--file-reserved-time", "1", "--apply"), ("services", "--apply")],
)
def test_a_command_that_writes_is_refused(
    server: ObjectServer, basic: Path, rmqlog: Runner, words: tuple[str, ...]
) -> None:
    (basic / "abort").write_text("")
    done = rmqlog(words[0], server.url_of(basic), *words[1:])
    assert done.code not in (0, 1)
    assert "object storage is only read" in done.err
    assert not server.refused


def test_a_copy_is_recovered_to_a_disk(
    server: ObjectServer, basic: Path, rmqlog: Runner, tmp_path: Path
) -> None:
    shutil.rmtree(basic / "consumequeue/Orders")
    new = tmp_path / "new"
    done = rmqlog("recover", server.url_of(basic), "--into", new, "--apply")
    assert done.code == 0, done.err
    assert MessageStore.open(str(new)).queues("Orders".__eq__)
    assert not server.refused


def test_credentials_in_a_path_are_not_repeated(rmqlog: Runner) -> None:
    done = rmqlog("info", "s3://KEY:hidden@bucket/x")
    assert done.code not in (0, 1)
    assert "expected the name of a bucket" in done.err
    assert "hidden" not in done.out + done.err


@pytest.mark.parametrize("verb", ["info", "ls", "verify", "lag", "find", "recover", "doctor"])
def test_a_scheme_that_cannot_be_read(rmqlog: Runner, verb: str) -> None:
    """As load() says it: the schemes that can be read, and for a missing slash the whole path."""
    words = ("--key", "k") if verb == "find" else ()
    for path, advice in (
        ("oss://bucket/x", "file systems such as oss: cannot be read; copy or mount the store"),
        ("s3:/bucket/x", "write s3://bucket/x"),
    ):
        done = rmqlog(verb, path, *words)
        assert done.code not in (0, 1)
        assert f"'{path}': expected {paths.PLACE}; {advice}" in done.out + done.err
        with pytest.raises(OptionError, match=re.escape(advice)):
            MessageStore.open(path)
        with pytest.raises(OptionError, match=re.escape(advice)):
            rmq_spark.open(path)


def test_variables_say_how_object_storage_is_reached(
    server: ObjectServer, basic: Path, rmqlog: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("RMQLOG_FS_ENDPOINT", server.url)
    monkeypatch.setenv("RMQLOG_FS_REQUEST_TIMEOUT", "20s")
    monkeypatch.setattr(places(), "_access", {})
    assert rmqlog("ls", server.url_of(basic)).out == rmqlog("ls", basic).out
    monkeypatch.setenv("RMQLOG_FS_REQUEST_TIMEOUT", "20")
    assert "RMQLOG_FS_REQUEST_TIMEOUT: expected a length of time" in rmqlog("ls", basic).err


def test_a_file_uri_is_a_path(basic: Path, rmqlog: Runner) -> None:
    for uri in (f"file://{basic}", f"file:{basic}"):
        for words in (("ls",), ("find", "-t", "Orders", "--key", "order-7"), ("verify",), ("view", "queues")):
            assert rmqlog(words[0], uri, *words[1:]).out == rmqlog(words[0], basic, *words[1:]).out
        assert rmq_spark.open(uri).path == str(basic)
