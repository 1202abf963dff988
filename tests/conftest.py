"""What all tests share: one Spark session, unpacked golden stores, hypothesis profiles, and the proof that
reading changed nothing.

The settings of the environment are made here, so that `pytest` alone behaves as `make test` does.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support import goldens, sparse_copies
from tests.support.fixtures import Golden, Unchanged
from tests.support.fork_server import ForkServer
from tests.support.longest_first import longest_first
from tests.support.object_server import ObjectServer, served
from tests.support.spark import fast_start
from tests.support.unchanged import unchanged as _unchanged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_buckets = count()

ROOT = Path(__file__).resolve().parent.parent

# Both read by the JVM at its start: Spark's settings, and the Python that its workers run.
os.environ.setdefault("SPARK_CONF_DIR", str(ROOT / "conf"))
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)

# A store of the shell that starts the tests is none of theirs.
os.environ.pop("RMQLOG_STORE", None)

# `make` fills this directory; without it, Spark only starts later.
for _name, _value in fast_start.environment(ROOT / ".venv" / "spark").items():
    os.environ.setdefault(_name, _value)

# Without bytecode files each of the tests' many processes compiles the packages again: 0.3 s of a core each,
# and pytest rewrites every assertion again: 8 s for each of its processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that runs something in the background has it ignore Ctrl-C, and what a test starts and interrupts
# would ignore it too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

sparse_copies.install()

# The markers of tests that `--quick` leaves out.
NOT_QUICK = ("spark", "process", "slow", "interop")

# `--hypothesis-profile=explore` looks where the default, the same examples on every run, does not.
settings.register_profile("deterministic", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile("whole", derandomize=True, deadline=None, database=None, max_examples=200)
settings.register_profile(
    "explore", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("quick", derandomize=True, deadline=None, database=None, max_examples=10)
settings.load_profile("deterministic")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole",
        action="store_true",
        help="run every point, every order and every kill of the proofs: hours, not minutes",
    )
    parser.addoption(
        "--part",
        metavar="K/N",
        type=_part,
        help="run the K-th of N parts of the selected tests, K from 1 to N",
    )
    parser.addoption(
        "--quick",
        action="store_true",
        help="run what needs no JVM and no process of its own, with 10 examples for each property",
    )


def _part(text: str) -> tuple[int, int]:
    """Parses "2/6" as (2, 6); raises argparse.ArgumentTypeError for anything else."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"expected K/N with K from 1 to N, such as 2/6, found {text!r}")
    return int(match[1]), int(match[2])


def pytest_configure(config: pytest.Config) -> None:
    for name in ("whole", "quick"):
        if config.getoption(name):
            settings.load_profile(name)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Imports a share of the test modules first if several processes collect all tests, each another share.

    To rewrite the assertions of all modules takes 9 s of a core. Then each process finds what the others have
    rewritten, whatever order pytest collects in.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args_source is not pytest.Config.ArgsSource.TESTPATHS:
        return
    number = int(worker["workerid"].removeprefix("gw"))
    for path in sorted(ROOT.glob("tests/**/test_*.py"))[number :: worker["workercount"]]:
        # the collection reports what a module raises, also that it skips its tests
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the markers `spark` and `golden` to the tests that use these fixtures; deselects by the options;
    puts the longest first if several processes share them.
    """
    for item in items:
        for name in ("spark", "golden"):
            if name in getattr(item, "fixturenames", ()):
                item.add_marker(name)
    kept = items[:]
    if not config.getoption("whole"):
        kept = [item for item in kept if not item.get_closest_marker("whole")]
    if config.getoption("quick"):
        kept = [item for item in kept if not any(map(item.get_closest_marker, NOT_QUICK))]
    part = config.getoption("part")
    if part is not None:
        kept = kept[part[0] - 1 :: part[1]]
    if len(kept) < len(items):
        selected = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in selected])
        items[:] = kept
    processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if processes > 1:
        items[:] = longest_first([(item.nodeid, item) for item in items], processes, _uses_the_session)


def _uses_the_session(item: pytest.Item) -> bool:
    fixtures = {"spark", "lazy_spark"} & {*getattr(item, "fixturenames", ())}
    return bool(fixtures) and item.get_closest_marker("spark") is not None


def pytest_collection_finish() -> None:
    """Leaves the 350,000 objects of 7,000 tests and their modules out of what Python's collector looks
    through, and lets it look seldom: a look at all that the tests import takes 0.1 s.
    """
    gc.freeze()
    gc.set_threshold(10_000)


@pytest.fixture(scope="session")
def whole(request: pytest.FixtureRequest) -> bool:
    """Whether a proof goes over every point (`--whole`), or over some of them."""
    return bool(request.config.getoption("whole"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2] in UTC, with the data source registered; Spark checks each Arrow batch against the declared
    schema.
    """
    from pyspark.sql import SparkSession

    import rmq_spark

    directory = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("rmqlog tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
        .getOrCreate()
    )
    rmq_spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Runs actions in forks of a process without threads, for a session."""
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """`golden("basic-5.5.0")`: that store unpacked, once a session. Tests read it; one that writes makes a
    copy.
    """
    from tests.support import goldens

    unpacked: dict[str, Path] = {}

    def unpack(name: str) -> Path:
        if name not in unpacked:
            directory = tmp_path_factory.mktemp("golden") / name
            directory.mkdir()
            goldens.unpack(name, directory)
            unpacked[name] = directory
        return unpacked[name]

    return unpack


@pytest.fixture
def copy_of(golden: Golden, tmp_path: Path) -> Golden:
    """`copy_of("basic-5.5.0")`: a copy of that golden store, which the test may change."""
    return lambda name: Path(shutil.copytree(golden(name), tmp_path / name))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store without topics that the writer made, with files of 16 KiB."""
    from tests.support.staged import make_store

    return make_store(tmp_path / "store")


@pytest.fixture(scope="session")
def demo_shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo store of the README and its pictures, with a fixed end. Tests read it; one that writes makes a
    copy.
    """
    from rmq_spark.demo.__main__ import main
    from tests.support.pictures import END

    path = tmp_path_factory.mktemp("demo") / "shop"
    main([str(path), "--end", END])
    return path


@pytest.fixture(scope="session")
def unchanged() -> Unchanged:
    """`with unchanged(store): ...` fails when a file, a time or a listing below `store` is another one
    afterwards.
    """
    return _unchanged


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A server of object storage, whose only bucket is new to this process, which knows it."""
    bucket = tmp_path / "buckets" / f"bucket-{os.getpid()}-{next(_buckets)}"
    bucket.mkdir(parents=True)
    with served(bucket.parent) as told:
        for name, value in told.environment().items():
            monkeypatch.setenv(name, value)
        yield told


@pytest.fixture
def basic(server: ObjectServer) -> Path:
    """The store basic-5.5.0 in the bucket of `server`."""
    root = server.bucket / "store"
    root.mkdir()
    return goldens.unpack("basic-5.5.0", root)
