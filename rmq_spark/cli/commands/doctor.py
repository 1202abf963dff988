"""`doctor`: checks whether Spark finds the format `rmqlog` on this machine.

Nothing of Spark is imported here, so that the checks work where Spark is broken. Spark imports every
top-level module `pyspark_*` to register data sources; if one of them fails to import, Spark registers none.
"""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click

from rmq_spark.cli.cells import painted
from rmq_spark.cli.completion import VARIABLE, default_store
from rmq_spark.cli.exit_codes import OK, PARTIAL
from rmq_spark.cli.options import open_all
from rmq_spark.cli.output import Output, fitted, output_options
from store_format.display.text import shown
from store_format.errors import StoreError

# ---- what Spark needs on this machine ----------------------------------------------------------------------


# As pyproject.toml asks for them.
NEEDED = {"click": (8, 1), "numba": (0, 62), "numpy": (2, 0), "pyarrow": (18, 0), "pyspark": (4, 0)}

# The packages that extras bring, beside those of spark, and what lacks without them.
OPTIONAL = {
    "rocksdict": ("rocksdb", "queues, topics and offsets that a broker keeps in RocksDB"),
    "prometheus_client": ("metrics", "rmqlog metrics"),
    "obstore": ("objects", "stores on object storage"),
    "hdfs-native": ("hdfs", "stores on HDFS"),
    "altair": ("notebook", "charts"),
    "pandas": ("notebook", "pandas, for analysts"),
}

_JAVA_MIN = 17
_SECONDS_MAX = 120
_REGISTER = "or call rmq_spark.register(spark), which needs no automatic registration"

_WORKER = """
import sys, numpy, pyarrow, pyspark, rmq_spark, store_format
print('%d.%d' % sys.version_info[:2], pyspark.__version__)
"""
_REGISTERED = "import pyspark_rmqlog; pyspark_rmqlog.DefaultSource"
_REASON = "import rmq_spark.spark.data_source"
_START = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    spark.read.format("rmqlog").load()
except Exception as error:
    print("seen" if "DATA_SOURCE_NOT_FOUND" not in str(error) else "not found")
spark.stop()
"""


@dataclass(frozen=True, slots=True)
class Check:
    """`state` is ok, warning, absent or fails."""

    name: str
    state: str
    found: str
    advice: str = ""


_ABSENT = Check(
    "pyspark",
    "absent",
    "not installed",
    "The commands need no Spark. To read stores with Spark, run `pip install '.[spark]'` in the checkout of "
    "rmqlog, and install a JDK of version 17 or later",
)


def environment_checks(environment: Mapping[str, str], python: str) -> list[Check]:
    """All checks that do not start Spark. `python` runs this process and the Spark driver.

    Without Spark, the commands work. Where neither PySpark nor SPARK_HOME is there, nobody wants Spark yet.
    """
    has_pyspark = importlib.util.find_spec("pyspark") is not None or _is_installed("pyspark")
    if not has_pyspark and not environment.get("SPARK_HOME"):
        return [*(_package(name) for name in NEEDED if name != "pyspark"), *_neighbours(python), _ABSENT]
    return [
        *map(_package, NEEDED),
        _java(environment),
        _spark_home(environment),
        *_neighbours(python),
        _registration(python),
        _workers(environment, python),
    ]


def _run(*command: str) -> tuple[int, str]:
    """(exit code, last line of stdout or, after a failure, of stderr); 127 if the program does not exist."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS_MAX, check=False
        )
    except FileNotFoundError:
        return 127, f"{command[0]}: no such program"
    except (OSError, subprocess.TimeoutExpired) as error:
        return 126, str(error)
    lines = (
        (done.stdout if done.returncode == 0 and done.stdout.strip() else done.stderr).strip().splitlines()
    )
    return done.returncode, lines[-1] if lines else ""


def _is_installed(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _package(name: str) -> Check:
    from importlib import metadata  # `rmqlog --help` imports this file, and not 16 ms of modules for packages

    least = ".".join(map(str, NEEDED[name]))
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        # pip finds this package also where rmqlog was installed from a checkout
        return Check(name, "fails", "not installed", f"pip install '{name}>={least}'")
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < NEEDED[name]:
        return Check(
            name,
            "fails",
            f"version {version}",
            f"At least {least} is needed: pip install --upgrade '{name}>={least}'",
        )
    return Check(name, "ok", f"version {version}")


def _java(environment: Mapping[str, str]) -> Check:
    home = environment.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else "java"
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        where = (
            f"JAVA_HOME is {home}, which has no bin/java"
            if home
            else "no java on the PATH, and JAVA_HOME is not set"
        )
        return Check(
            "java",
            "fails",
            where,
            f"Spark needs a JDK of version {_JAVA_MIN} or later; install one, or set JAVA_HOME to it",
        )
    match = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if match is None:
        return Check("java", "warning", f"{program} does not print its version")
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    if major < _JAVA_MIN:
        return Check(
            "java",
            "fails",
            f"{program} is of version {major}",
            f"Spark needs {_JAVA_MIN} or later; set JAVA_HOME to a newer JDK",
        )
    return Check("java", "ok", f"{program}, version {major}")


def _spark_home(environment: Mapping[str, str]) -> Check:
    home = environment.get("SPARK_HOME")
    if home:
        return Check(
            "SPARK_HOME",
            "warning",
            home,
            "Spark is started from this directory: it must have the version of the installed pyspark",
        )
    return Check("SPARK_HOME", "ok", "not set: pyspark's own Spark is used")


def _neighbours(python: str) -> list[Check]:
    """Imports each other module `pyspark_*` by itself."""
    names = sorted(
        {module.name for module in pkgutil.iter_modules() if module.name.startswith("pyspark_")}
        - {"pyspark_rmqlog"}
    )
    found = []
    for name in names:
        code, said = _run(python, "-c", f"import {name}")
        advice = (
            f"It disables the automatic registration of all data sources: repair or remove it, {_REGISTER}"
        )
        found.append(
            Check(name, "ok", "imports")
            if code == 0
            else Check(name, "fails", f"does not import: {said}", advice)
        )
    return found


def _registration(python: str) -> Check:
    if importlib.util.find_spec("pyspark_rmqlog") is None:
        advice = f"Run `pip install .` in the checkout of rmqlog, {_REGISTER}"
        return Check("pyspark_rmqlog", "fails", "not on the path of this Python", advice)
    code, _ = _run(python, "-c", _REGISTERED)
    if code == 0:
        return Check("pyspark_rmqlog", "ok", 'offers format("rmqlog") to Spark')
    return Check(
        "pyspark_rmqlog",
        "fails",
        f"offers nothing: {_run(python, '-c', _REASON)[1]}",
        "See the failed checks above",
    )


def _workers(environment: Mapping[str, str], python: str) -> Check:
    """The Python that runs the tasks: PYSPARK_PYTHON, else python3 of the PATH (SparkContext.pythonExec)."""
    worker = environment.get("PYSPARK_PYTHON") or "python3"
    code, said = _run(worker, "-c", _WORKER)
    if code != 0:
        advice = (
            f"Set PYSPARK_PYTHON to a Python that has rmqlog, such as {python}; "
            "on a cluster also register(spark, by_value=True)"
        )
        return Check("workers' Python", "fails", f"{worker}: {said}", advice)
    if said.split(" ")[0] != "{}.{}".format(*sys.version_info):
        return Check(
            "workers' Python",
            "fails",
            f"{worker} is Python {said.split(' ')[0]}",
            f"Driver and workers need the same Python version: set PYSPARK_PYTHON to {python}",
        )
    return Check("workers' Python", "ok", f"{worker}, Python {said.replace(' ', ', pyspark ')}")


def start_check(python: str) -> Check:
    """Starts Spark and reads with the format."""
    code, said = _run(python, "-c", _START)
    if code == 0 and said == "seen":
        return Check("Spark", "ok", 'started, and knows format("rmqlog")')
    found = (
        'started, and does not know format("rmqlog")' if said == "not found" else f"does not start: {said}"
    )
    return Check(
        "Spark",
        "fails",
        found,
        f"See the failed checks above, {_REGISTER}" if said == "not found" else "See the failed checks above",
    )


# ---- the command -------------------------------------------------------------------------------------------


@click.command("doctor")
@click.argument("store", type=click.Path(readable=False), required=False)
@click.option("--start", is_flag=True, help="Also start Spark and look for the format; takes some seconds.")
@output_options()
def doctor_(store: str | None, start: bool, output: Output) -> int:
    """Check whether Spark finds the format rmqlog.

    Checks versions, the JDK, modules that break Spark's registration, and the Python of Spark's workers; with
    a STORE, also the store. The exit code is 4 if a check fails; Spark that is not installed is no failure.
    """
    from rmq_spark.cli.view_rows import show_batches
    from store_format.display.columns import TEXT, ViewColumn, batch_of

    checks = [
        *environment_checks(dict(os.environ), sys.executable),
        *optional_checks(),
        _default_store_check(),
    ]
    if start:
        checks.append(start_check(sys.executable))
    if store is not None:
        checks += _store_checks(store)
    columns = (
        ViewColumn("check", TEXT, "What was checked."),
        ViewColumn("state", TEXT, "`ok`, `warning`, `absent` or `fails`."),
        ViewColumn("found", TEXT, "What was found."),
        ViewColumn("advice", TEXT, "What to do."),
    )
    batch = batch_of(columns, [(check.name, check.state, check.found, check.advice) for check in checks])
    if output.form == "table" and not output.columns:
        print_checks(output, checks)
    else:
        show_batches(output, [batch], [column.name for column in columns])
    return PARTIAL if any(check.state == "fails" for check in checks) else OK


def print_checks(output: Output, checks: Sequence[Check]) -> None:
    """Prints a line for each check, wrapped for the terminal."""
    colours = {"ok": "32", "warning": "33", "absent": "33", "fails": "31"}
    for check in checks:
        advice = f". {shown(check.advice)}" if check.advice else ""
        label = f"{check.state:<7}  {check.name:<18}  "
        line = fitted(output, f"{label}{shown(check.found)}{advice}", indent=len(label))
        word = painted(line[:7], colours[check.state] if output.colour else "")
        print(word + line[7:])


def optional_checks() -> list[Check]:
    """A row for each package of an extra that is not installed. That is no failure."""
    return [
        Check(name, "absent", f"not installed: no {lacking}", f"Needed for that alone: the extra `{extra}`")
        for name, (extra, lacking) in OPTIONAL.items()
        if not _is_installed(name)
    ]


def _default_store_check() -> Check:

    default = default_store()
    if default is None:
        return Check(VARIABLE, "ok", "not set: commands need a STORE")
    return Check(VARIABLE, "ok", f"{default}, where a command names no STORE")


def _store_checks(path: str) -> list[Check]:
    try:
        stores = open_all(path)
    except (StoreError, OSError) as error:
        return [Check("store", "fails", str(error))]
    found = []
    for store in stores:
        queues = (
            ""
            if store.indexed(lambda topic: False) is not None
            else ", no consume queues that can be read: the commitlog is scanned"
        )
        found.append(
            Check(
                "store",
                "warning" if queues else "ok",
                f"{store.path}: broker {store.broker_name}, {store.state.value}{queues}",
            )
        )
    return found
