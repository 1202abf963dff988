"""What happens where RocketMQ cannot be had: without CI the tests are skipped, with CI=true they fail; the
reason is said.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import jvm
from tests.interop.harness import RocketMQ
from tests.interop.maven import class_path

PROJECT = Path(__file__).parent / "java"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The Maven project, not built yet."""
    return shutil.copytree(PROJECT, tmp_path / "java", ignore=shutil.ignore_patterns("target"))


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_without_maven(
    ci: str, outcome: type[BaseException], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(project))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome) as raised:
        class_path("5.5.0", project)
    assert "mvn" in str(raised.value)


def test_without_a_way_to_maven_central(
    project: Path, rocketmq: Callable[[str], RocketMQ], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocketmq("5.5.0")  # there is a Maven
    monkeypatch.setenv(
        "MAVEN_OPTS", f"-Dmaven.repo.local={tmp_path} -Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9"
    )
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception) as raised:
        class_path("5.5.0", project)
    assert "cannot be fetched from Maven Central" in str(raised.value)


def test_what_is_built_is_not_built_again(
    rocketmq: Callable[[str], RocketMQ], monkeypatch: pytest.MonkeyPatch
) -> None:
    rocketmq("5.5.0")
    monkeypatch.setenv("PATH", "/nowhere")
    assert class_path("5.5.0").startswith(str(PROJECT / "target" / "5.5.0" / "classes.jar"))


@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_programs_start_from_an_archive_of_their_classes(
    version: str, rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    rocketmq(version)
    conf, log = tmp_path / "conf", tmp_path / "classes"
    conf.touch()
    words = jvm.command(
        "StoreOpen", ["load", str(tmp_path / "store"), str(conf)], class_path(version), tmp_path
    )
    words.insert(words.index("-cp"), f"-Xlog:class+load:file={log}")
    subprocess.run(words, capture_output=True, check=True)
    ours = [line for line in log.read_text().splitlines() if "rocketmq.store.DefaultMessageStore " in line]
    assert [line.partition("source: ")[2] for line in ours] == ["shared objects file (top)"]
