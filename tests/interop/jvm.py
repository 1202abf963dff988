"""The JVM of the Java programs: its options, and an archive of RocketMQ's classes that makes it start sooner.

Loading 5,000 classes takes a program of 5.5.0 a second of a core, and unpacking RocksDB's native library a
tenth of a second. The archive (JEP 350) is made once, when the programs are built, and the library is kept
beside it; a JVM that cannot use them loads the classes and unpacks the library as usual.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_ARCHIVE_SECONDS_MAX = 120
_HEAP = [
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:CompileThresholdScaling=3",  # most methods of a start run too seldom to be worth the compiler
    "-XX:-UsePerfData",
]
# A JVM that does not verify classes starts sooner. Its warnings, also those about an archive, go to standard
# error: programs speak JSON on standard output.
_START = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
    "-Xlog:disable",
    "-Xlog:all=warning:stderr",
]
# RocketMQ unmaps its files through these; its own start scripts open them too.
_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
]


def java() -> str:
    """The JVM that Spark's launcher would take too."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"


def command(main: str, arguments: list[str], class_path: str, directory: Path) -> list[str]:
    """Runs that program; `directory` takes its home and `directory/tmp` what it extracts."""
    options = [
        *_HEAP,
        *_START,
        *_OPENS,
        f"-Duser.home={directory}",
        f"-Djava.io.tmpdir={directory / 'tmp'}",
        "-Djava.net.preferIPv4Stack=true",
        "-Dtls.server.mode=disabled",  # a certificate of its own would take seconds
        # RocketMQ refuses messages on a disk that is 90 % full, which says nothing about the store under
        # test.
        "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",
        f"-XX:ErrorFile={directory}/hs_err",
    ]
    archive = archive_of(class_path)
    if archive.exists():
        options += [f"-XX:SharedArchiveFile={archive}", f"-Djava.library.path={archive.parent}"]
    return [java(), *options, "-cp", class_path, f"rmqlog.interop.{main}", *arguments]


def archive_of(class_path: str) -> Path:
    """Beside our programs, which are the first of the class path."""
    return Path(class_path.split(os.pathsep)[0]).with_suffix(".jsa")


def make_archive(class_path: str) -> None:
    """Archives the classes that a broker, a client and a store load; keeps the library that they unpack."""
    archive = archive_of(class_path)
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "tmp").mkdir()
        made = directory / "archive"
        words = command("Archived", [str(directory / "store")], class_path, directory)
        # the JVM archives verified classes only
        words.remove("-XX:-BytecodeVerificationRemote")
        done = subprocess.run(
            [words[0], f"-XX:ArchiveClassesAtExit={made}", *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ARCHIVE_SECONDS_MAX,
        )
        assert done.returncode == 0, f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}"
        for library in (directory / "tmp").glob("librocksdbjni*"):
            shutil.copy(library, archive.with_name(f"librocksdbjni{library.suffix}"))
        if made.exists():
            new = archive.with_suffix(".new")
            new.write_bytes(made.read_bytes())
            new.rename(archive)
