"""Fixtures of the tests with RocketMQ itself: both versions built, writable copies of golden stores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.harness import RocketMQ
from tests.interop.maven import class_path
from tests.interop.pop_runs import PopRuns
from tests.interop.pop_runs import made_once as pops_made_once
from tests.interop.services_runs import Runs, made_once

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test in this directory, whatever fixtures it uses."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("interop")
            item.add_marker(pytest.mark.timeout(600))  # the first test of a session waits for Maven


def _shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
def runs(
    request: pytest.FixtureRequest,
    rocketmq: Callable[[str], RocketMQ],
    tmp_path_factory: pytest.TempPathFactory,
) -> Runs:
    """The workload of the services on all copies, made by one of the processes that run tests."""
    base = _shared_directory(tmp_path_factory)
    return made_once(base / f"services-{request.param}", rocketmq(request.param))


@pytest.fixture(scope="session")
def pop_runs(rocketmq: Callable[[str], RocketMQ], tmp_path_factory: pytest.TempPathFactory) -> PopRuns:
    """A store in which a broker's clients have popped, made by one of the processes that run tests."""
    return pops_made_once(_shared_directory(tmp_path_factory) / "pops", rocketmq("5.5.0"))


@pytest.fixture(scope="session")
def copy_of(golden: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`copy_of("basic-5.5.0")`: a new copy of that golden store, for a broker to write to."""

    def copy(name: str) -> Path:
        target = tmp_path_factory.mktemp("store") / name
        shutil.copytree(golden(name), target)  # the golden's mtimes too: RocketMQ deletes by them
        return target

    return copy
