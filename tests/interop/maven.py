"""Builds the Java programs beside it against one RocketMQ version, once: what was built stays in
`java/target` until a source changes.

Without Maven, or without a way to Maven Central, the tests are skipped with the reason; with CI=true that is
a failure. `make test-all` runs this file before there is an environment, so it imports no package of one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.interop.jvm import make_archive

_PROJECT = Path(__file__).resolve().parent / "java"
_BUILD_SECONDS_MAX = 400  # the first build loads about 150 MB
# Maven's own JVM lives too short for the second compiler and a collector with threads to pay.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_UNREACHABLE = "Could not transfer"


class NotBuiltError(Exception):
    """Why nothing can be built here."""


def class_path(version: str, project: Path = _PROJECT) -> str:
    """For `java -cp`: our programs and RocketMQ of that version with all it needs."""
    with _skipped():
        return _built(version, project)


def _built(version: str, project: Path) -> str:
    target = project / "target" / version
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test runs in one checkout
        stamp = target / "built-from"
        wanted = _fingerprint(project)
        if not (stamp.exists() and stamp.read_text() == wanted and all(map(os.path.exists, _jars(target)))):
            stamp.unlink(missing_ok=True)
            _build(f"RocketMQ {version}", project, f"-Drocketmq.version={version}")
            _pack(target / "classes")
            make_archive(_joined(target))
            stamp.write_text(wanted)
    return _joined(target)


def jars_of(project: Path) -> str:
    """For `java -cp`: what the pom of a project without classes of its own names."""
    target = project / "target"
    target.mkdir(exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp, wanted = target / "built-from", _fingerprint(project)
        if not (stamp.exists() and stamp.read_text() == wanted and all(map(os.path.exists, _jars(target)))):
            with _skipped():
                _build("Hadoop", project)
            stamp.write_text(wanted)
    return os.pathsep.join(_jars(target))


def _joined(target: Path) -> str:
    return os.pathsep.join([str(target / "classes.jar"), *_jars(target)])


def _jars(target: Path) -> list[str]:
    return (target / "classpath").read_text().strip().split(os.pathsep)


def _fingerprint(project: Path) -> str:
    digest = hashlib.sha256()
    sources = sorted(path for path in (project / "src").rglob("*") if path.is_file())
    for path in [project / "pom.xml", *sources]:
        digest.update(f"{path.relative_to(project)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _build(what: str, project: Path, *settings: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotBuiltError(
            f"Maven (mvn) is not installed (Debian: apt-get install maven), so {what} cannot be fetched "
            "from Maven Central"
        )
    # -U: a download that failed the last time is tried again.
    options = ["-q", "-B", "-U", "-f", str(project / "pom.xml"), *settings]
    command = [maven, *options, "process-classes"]
    environment = os.environ | {"MAVEN_OPTS": f"{_JVM} {os.environ.get('MAVEN_OPTS', '')}"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_BUILD_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise NotBuiltError(
            f"{what} was not fetched from Maven Central within {_BUILD_SECONDS_MAX} seconds"
        ) from None
    output = done.stdout + done.stderr
    if done.returncode and (untransferred := [line for line in output.splitlines() if _UNREACHABLE in line]):
        raise NotBuiltError(f"{what} cannot be fetched from Maven Central: {untransferred[0]}")
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{output}"


def _pack(classes: Path) -> None:
    """An archive of classes (see jvm.py) takes jars only."""
    new = classes.with_suffix(".new")
    with zipfile.ZipFile(new, "w") as jar:
        for path in sorted(path for path in classes.rglob("*") if path.is_file()):
            jar.write(path, path.relative_to(classes))
    new.rename(classes.with_suffix(".jar"))


@contextmanager
def _skipped() -> Iterator[None]:
    """Skips the test that needs what cannot be built, or with CI=true fails it."""
    try:
        yield
    except NotBuiltError as error:
        import pytest

        if os.environ.get("CI") == "true":
            pytest.fail(f"CI=true and {error}", pytrace=False)
        pytest.skip(str(error))


def _build_all() -> None:
    """Builds both versions before a test needs one; the tests say what cannot be had."""
    for version in ("5.5.0", "4.9.7"):
        with suppress(NotBuiltError):
            _built(version, _PROJECT)


if __name__ == "__main__":
    _build_all()
