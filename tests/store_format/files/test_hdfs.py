"""HDFS without a cluster: which places are taken, what is refused, and how long a silent name node is waited
for. `tests/interop/test_hdfs.py` reads from a real one.
"""

from __future__ import annotations

import pickle
import socket
import sys
import time
from pathlib import Path

import pytest

from rmq_spark.options.access_options import parse_access
from rmq_spark.options.option import Given, single_path, written_path
from store_format import MessageStore
from store_format.errors import OptionError, StoreUnreachableError
from store_format.files.client import Access
from store_format.files.paths import absolute, is_remote, parent
from store_format.files.read import places
from store_format.files.source import place_of


@pytest.mark.parametrize(
    ("text", "path", "place"),
    [
        ("hdfs://node:8020/backup//store/", "hdfs://node:8020/backup/store", "hdfs://node:8020"),
        ("HDFS://service/store", "hdfs://service/store", "hdfs://service"),
        ("hdfs:///backup/a/../store", "hdfs:///backup/store", "hdfs://"),
    ],
)
def test_paths(text: str, path: str, place: str) -> None:
    assert is_remote(text)
    assert absolute(text) == path == absolute(path)
    assert place_of(path) == place
    assert single_path(Given("path", text, 0)) == (path,)
    assert parent(f"{path}/commitlog") == path


@pytest.mark.parametrize("path", ["hdfs://user:hidden@node:8020/x", "hdfs://hidden@node/x", "hdfs:///"])
def test_a_user_is_not_repeated(path: str) -> None:
    with pytest.raises(OptionError, match="expected a name node with its port, or a name service") as caught:
        single_path(Given("path", path, 0))
    assert "hidden" not in str(caught.value)


def test_what_does_not_apply_and_what_is_written() -> None:
    access = parse_access({"fs.region": "eu-north-1"}, "hdfs://node:8020/store")
    with pytest.raises(OptionError, match=r"fs\.region does not apply to hdfs://node:8020; leave it out"):
        access.settings("hdfs://node:8020")
    with pytest.raises(OptionError, match=r"which HDFS does not have; write to a local"):
        written_path(Given("path", "hdfs://node:8020/store", 0))


def test_a_name_without_a_port_and_a_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    for path in ("hdfs://unknown/store", "hdfs:///store"):
        with pytest.raises(OptionError, match=r"expected a name node with its port \(mostly 8020\), or a"):
            MessageStore.open(path)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(OptionError, match="run `pip install hdfs-native`, also for the Python of the exec"):
        MessageStore.open("hdfs://missing:8020/store")


def test_a_silent_name_node_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts the connection, and never answers: the client itself would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/store"
        places().reach(url, Access(request_timeout_ms=300))
        begun = time.monotonic()
        with pytest.raises(StoreUnreachableError, match=r"HDFS could not be read, no whole answer in 0\.3 s"):
            MessageStore.open(url)
        assert time.monotonic() - begun < 30
    with pytest.raises(TypeError, match="may not be pickled"):
        pickle.dumps(places().objects_at(url).bucket())
    monkeypatch.setattr(places().clients, "_process", 1)
    with pytest.raises(StoreUnreachableError, match="is a fork of one that reads object storage or HDFS"):
        places().objects_at(url).bucket()
