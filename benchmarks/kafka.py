"""A Kafka broker on the loopback interface, and Spark's connector for it, both from Maven Central.

The broker is a single node without ZooKeeper (KRaft). It lives no longer than the `with` around it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from benchmarks.old_commit import ROOT

_POM = ROOT / "benchmarks" / "java" / "pom.xml"
_TARGET = ROOT / "build" / "peers"
_LOAD_SECONDS_MAX = 400
_START_SECONDS_MAX = 120.0
_STOP_SECONDS_MAX = 30.0
_HEAP = "-Xmx1g"  # of the broker, whose cache is the system's page cache
# transient, so that no data is left and nothing waits for the disk more than Kafka does by itself
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.listener.names=CONTROLLER
offsets.topic.replication.factor=1
log.segment.delete.delay.ms=100
group.initial.rebalance.delay.ms=0
"""


def _jars(peer: str) -> list[Path]:
    """The jars of one profile of the POM, loaded at the first use. Raises FileNotFoundError without Maven."""
    maven = shutil.which("mvn")
    if maven is None:
        raise FileNotFoundError("mvn: Maven is not installed (Debian: apt-get install maven)")
    class_path = _TARGET / peer / "classpath"
    stamp = _TARGET / peer / "loaded-for"
    if not stamp.exists() or stamp.read_bytes() != _POM.read_bytes():
        command = [maven, "-q", "-B", "-U", "-f", str(_POM), f"-Dpeer={peer}", "initialize"]
        subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=_LOAD_SECONDS_MAX)
        stamp.write_bytes(_POM.read_bytes())
    return [Path(jar) for jar in class_path.read_text().strip().split(os.pathsep)]


def connector_jars() -> list[Path]:
    """What Spark needs to read from Kafka and write to it, and does not have itself."""
    own = {_artifact(jar) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return [jar for jar in _jars("connector") if _artifact(jar) not in own]


def _artifact(jar: Path) -> str:
    """The name of a jar without its version."""
    return (
        jar.name[: len(jar.name) - len(jar.parent.name) - len("-.jar")]
        if jar.parent.name[:1].isdigit()
        else (jar.stem.rpartition("-")[0])
    )


class Broker:
    """`with Broker(directory) as broker`: a running broker; `address` is its host and port."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        port, controller = _free_ports(2)
        self.address = f"127.0.0.1:{port}"
        (directory / "server.properties").write_text(
            f"{_SETTINGS}log.dirs={directory / 'data'}\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.address}\n"
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = str(self._directory / "server.properties")
        cluster = "cmtxbG9nLWJlbmNobWFyaw"  # any 16 bytes in Base64
        formatted = self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", settings)
        if formatted.wait():
            raise ChildProcessError(f"Kafka's storage was not formatted:\n{self._log()}")
        self._process = self._java("kafka.Kafka", settings)
        try:
            self._wait_until_it_listens()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        class_path = os.pathsep.join(map(str, _jars("broker")))
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                [java, _HEAP, "-XX:+UseG1GC", "-cp", class_path, *command],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_until_it_listens(self) -> None:
        host, _, port = self.address.partition(":")
        deadline = time.monotonic() + _START_SECONDS_MAX
        while True:
            try:
                socket.create_connection((host, int(port)), timeout=1).close()
                return
            except OSError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise ChildProcessError(f"Kafka does not listen:\n{self._log()}") from None
                time.sleep(0.1)

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _log(self) -> str:
        return "\n".join((self._directory / "log").read_text(errors="replace").splitlines()[-20:])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
