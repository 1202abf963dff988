"""Spark's standalone master and two workers on loopback, whose executors share nothing with the driver.

The tests' user is the driver's. If this is root, the executors run as the user nobody, and the modes of
directories keep the store and the driver's files from them. Another user cannot start processes of a third
one: then only the Python of the executors lacks what the driver has (`Cluster.is_apart`).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from tests.support.object_server import ObjectServer
from tests.support.permissions import NOBODY, open_directory
from tests.support.spark import fast_start
from tests.support.spark.executor_python import copied_python
from tests.support.spark.processes import ROOT, end_session

_WORKERS = 2
_START_S, _STOP_S, _DRIVER_S = 90, 30, 280


@dataclass(frozen=True)
class Cluster:
    """What a driver needs to know."""

    directory: Path  # every user may look into it
    python: Path  # on every node, without packages
    server: ObjectServer  # another process
    environment: dict[str, str]  # of the master, the workers and the executors
    is_apart: bool
    daemons: list[subprocess.Popen[bytes]]  # the master first
    master: str

    def run(
        self, directory: Path, python: Path | str, way: str, steps: dict[str, Any], settings: dict[str, str]
    ) -> dict[str, Any]:
        """What a driver (`tests.support.spark.cluster_job`) finds in `directory`; `log` is what it says.

        `python` is that of the executors; `settings` are Spark's.
        """
        kept = ("PATH", "JAVA_HOME", "HOME", "SPARK_HOME", "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= self.server.environment() | {"PYSPARK_PYTHON": str(python)}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "LD_LIBRARY_PATH": self.environment["LD_LIBRARY_PATH"]}
        settings = {"spark.executor.extraJavaOptions": self.environment["SPARK_DAEMON_JAVA_OPTS"]} | settings
        job = {"checkout": str(ROOT), "master": self.master, "way": way, "steps": steps, "settings": settings}
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("cluster_job.py")), json.dumps(job)],
            cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=_DRIVER_S,
            umask=0o002,  # a write makes directories for the executors' group
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.said_by_executors()}"
        found = json.loads(done.stdout.splitlines()[-1])
        assert isinstance(found, dict)
        return found | {"log": done.stderr}

    def said_by_executors(self) -> str:
        """The ends of the executors' logs."""
        logs = sorted(self.directory.glob("worker-*/app-*/*/stderr"))
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-4000:]}" for path in logs)


@contextmanager
def started(root: Path) -> Iterator[Cluster]:
    """A cluster beside a server of the buckets in `root`, which only this user may look into."""
    home = Path(os.environ.get("SPARK_HOME", pyspark.__path__[0]))
    is_apart = os.geteuid() == 0 and _is_open(Path(pyspark.__path__[0]))
    root.chmod(0o700)
    with _object_server(root) as server, open_directory() as directory:
        python = copied_python(directory / "python")
        environment = {
            "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(directory / "home"),
            "TMPDIR": str(directory / "local"), "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_HOME": str(home), "SPARK_CONF_DIR": str(directory / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": fast_start.java_options(ROOT / ".venv" / "spark", directory / "conf"),
            "LD_LIBRARY_PATH": str(python.parents[1] / "lib"),
            **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
            **server.environment(),  # of the machines, as a role would be: no setting of Spark has it
        }  # fmt: skip
        for name in ("home", "local", "conf"):
            _make(directory / name, is_apart)
        daemons: list[subprocess.Popen[bytes]] = []

        def start(name: str, *arguments: str) -> Path:
            place = directory / name
            _make(place, is_apart)
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{arguments[0]}"]
            user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if is_apart else {}
            with open(place / "log", "wb") as log:
                daemons.append(
                    subprocess.Popen(
                        [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments[1:]], cwd=place,
                        env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                        start_new_session=True, **user,
                    )
                )  # fmt: skip
            return place / "log"

        try:
            log = start("master", "master.Master", "--port", "0")
            (master,) = _lines(log, r"Starting Spark master at (spark://\S+)", 1)
            for number in range(_WORKERS):
                place = directory / f"worker-{number}"
                worker = ("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", str(place))
                start(place.name, *worker, master)
            _lines(log, "Registering worker (\\S+)", _WORKERS)
            yield Cluster(directory, python, server, environment, is_apart, daemons, master)
        finally:
            _stop(daemons)


@contextmanager
def _object_server(root: Path) -> Iterator[ObjectServer]:
    """A server in a process of its own, whose requests are not counted."""
    command = [sys.executable, "-m", "tests.support.object_server", str(root)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield ObjectServer(root, port=int(process.stdout.readline()))
        process.communicate("")


def _is_open(path: Path) -> bool:
    """Whether every user may look into the directory."""
    return all(each.stat().st_mode & 0o005 == 0o005 for each in (path, *path.parents))


def _make(directory: Path, is_apart: bool) -> None:
    directory.mkdir(mode=0o755)
    if is_apart:
        os.chown(directory, NOBODY, NOBODY)


def _lines(log: Path, pattern: str, count: int) -> list[str]:
    """Waits until the log has `count` matches."""
    end = time.monotonic() + _START_S
    while len(found := re.findall(pattern, text := log.read_text(errors="replace"))) < count:
        assert time.monotonic() < end, f"{log}: expected {count} times {pattern}, found\n{text}"
        time.sleep(0.1)
    return [str(each) for each in found]


def _stop(daemons: list[subprocess.Popen[bytes]]) -> None:
    """Stops the workers, which stop their executors, then the master; ends what is left of their sessions."""
    for daemon in reversed(daemons):
        daemon.terminate()
    for daemon in daemons:
        try:
            daemon.wait(_STOP_S)
        finally:
            end_session(daemon.pid)
