"""Fixtures of the tests with RocketMQ itself: both versions built, writable copies of golden stores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.harness import RocketMQ
from tests.interop.maven import class_path
from tests.interop.once import made_once
from tests.interop.pop_runs import PopRuns, leave_pops
from tests.interop.services_runs import Runs, make
from tests.support.fixtures import Golden

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this directory, whatever fixtures it uses."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("interop")
            item.add_marker(pytest.mark.timeout(600))  # the first test of a session waits for Maven


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same one in every process that runs tests."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RocketMQ]:
    """`rocketmq("5.5.0")`: that version, built once; skips, or with CI=true fails, where it cannot be had."""
    made: dict[str, RocketMQ] = {}

    def version(name: str) -> RocketMQ:
        if name not in made:
            class_path(name)
            made[name] = RocketMQ(name, tmp_path_factory.mktemp(f"rocketmq-{name}"))
        return made[name]

    return version


@pytest.fixture(scope="session", params=["5.5.0", pytest.param("4.9.7", marks=pytest.mark.whole)])
def runs(request: pytest.FixtureRequest, rocketmq: Callable[[str], RocketMQ], shared_directory: Path) -> Runs:
    """The workload of the services on all copies, made by one of the processes that run tests."""
    directory, java = shared_directory / f"services-{request.param}", rocketmq(request.param)
    left, seen = made_once(directory, lambda: make(directory, java))
    return Runs(java.version, directory, left, seen)


@pytest.fixture(scope="session")
def pop_runs(rocketmq: Callable[[str], RocketMQ], shared_directory: Path) -> PopRuns:
    """A store in which a broker's clients have popped, made by one of the processes that run tests."""
    directory, java = shared_directory / "pops", rocketmq("5.5.0")
    return PopRuns(directory, made_once(directory, lambda: leave_pops(java, directory / "left")))


@pytest.fixture(scope="session")
def copy_of(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """`copy_of("basic-5.5.0")`: a new copy of that golden store, for a broker to write to."""

    def copy(name: str) -> Path:
        target = tmp_path_factory.mktemp("store") / name
        shutil.copytree(golden(name), target)  # the golden's mtimes too: RocketMQ deletes by them
        return target

    return copy
