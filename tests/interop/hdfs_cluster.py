"""Hadoop's mini cluster as a process: a name node and a data node on 127.0.0.1, until the `with` ends."""

from __future__ import annotations

import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.interop.jvm import java
from tests.interop.maven import jars_of

_PROJECT = Path(__file__).resolve().parent / "hdfs"
_START_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 20.0
_OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true"]


@contextmanager
def hdfs_cluster(directory: Path, copies: Mapping[str, Path]) -> Iterator[str]:
    """The address of the name node, as in `hdfs://127.0.0.1:8020`; `copies` has local directories by the
    paths that they are copied to.
    """
    words = [word for path, local in copies.items() for word in (str(local), path)]
    main = [*_OPTIONS, "-cp", jars_of(_PROJECT), str(_PROJECT / "HdfsCluster.java")]
    directory.mkdir()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [java(), *main, str(directory / "data"), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=directory, text=True,
        )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    ports: queue.SimpleQueue[str] = queue.SimpleQueue()
    readline = process.stdout.readline
    reader = threading.Thread(target=lambda: ports.put(readline()), daemon=True)
    reader.start()
    try:
        port = ports.get(timeout=_START_SECONDS_MAX).strip()
        assert port, (directory / "log").read_text(errors="replace")
        yield f"hdfs://127.0.0.1:{port}"
    finally:
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stdout.close()
