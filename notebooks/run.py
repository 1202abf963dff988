"""Runs the notebooks, each in a fresh kernel and an empty directory, and keeps what they show: `python -m
notebooks.run`.

Names of notebooks choose some of them; `--into DIRECTORY` writes the results there instead of in place, which
is what the tests compare.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from notebooks.checks import CHECKS

HERE = Path(__file__).resolve().parent
NOTEBOOKS = tuple(sorted(path.stem for path in HERE.glob("[0-9]*.ipynb")))

_CELL_SECONDS = 300


def run(name: str, into: Path) -> float:
    """Executes one notebook and writes it, with its outputs, into a directory. Returns the seconds it took.

    Raises nbclient's CellExecutionError, which shows the cell and its traceback.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    files: Any = nbformat  # typed, but not all of it
    notebook = files.read(HERE / f"{name}.ipynb", as_version=4)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rmqlog-notebook-") as directory:
        place = os.path.realpath(directory)
        _prepare(Path(place))
        # Kernels and settings that the user has for Jupyter do not count: this Python is the one to run.
        os.environ |= {
            "JUPYTER_DATA_DIR": f"{place}/.jupyter",
            "JUPYTER_CONFIG_DIR": f"{place}/.jupyter",
            "JUPYTER_PLATFORM_DIRS": "1",
        }
        client = NotebookClient(
            notebook,
            timeout=_CELL_SECONDS,
            startup_timeout=_CELL_SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": place}},
            # Sockets in that directory, instead of ports, which any user of the machine may reach.
            config=Config({"KernelManager": {"transport": "ipc", "ip": f"{place}/kernel"}}),
        )
        # The check runs after the last cell and is not kept: readers need not look at assertions.
        check = files.v4.new_code_cell(CHECKS[name])
        notebook.cells.append(check)
        client.execute(env=_environment(place))
        notebook.cells.remove(check)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [_tidy(_relative(output, place)) for output in cell.outputs]
                cell.metadata.pop("execution", None)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    files.write(notebook, into / f"{name}.ipynb")
    return time.perf_counter() - began


_STARTUP = """
import warnings

from notebooks.pictures import charts_as_pictures

charts_as_pictures()
# Of the test tools, which one of PySpark's own modules imports.
warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
del charts_as_pictures, warnings
"""

_SPARK_DEFAULTS = """
spark.driver.bindAddress 127.0.0.1
spark.driver.host 127.0.0.1
spark.ui.enabled false
spark.ui.showConsoleProgress false
spark.sql.session.timeZone UTC
spark.sql.shuffle.partitions 2
spark.sql.adaptive.enabled false
spark.sql.warehouse.dir {place}/warehouse
"""


def _prepare(place: Path) -> None:
    """Settings of the kernel and of Spark, so that notebooks need no line for them."""
    profile = place / ".ipython" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "notebook.py").write_text(_STARTUP)
    # What a JVM prints goes to the terminal of this process, not into the notebook.
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.capture_fd_output = False\n")
    (place / "conf").mkdir()
    (place / "conf" / "spark-defaults.conf").write_text(_SPARK_DEFAULTS.format(place=place))
    shutil.copy(HERE.parent / "conf" / "log4j2.properties", place / "conf")


def _environment(place: str) -> dict[str, str]:
    """What a kernel is started with: this checkout, this Python, and nothing of the user's own Jupyter."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "IPYTHONDIR": f"{place}/.ipython",
        "SPARK_CONF_DIR": f"{place}/conf",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "TMPDIR": place,  # where the demo store is made
        # A notebook lives too short for the JVM's second compiler and its parallel collector to pay.
        "SPARK_SUBMIT_OPTS": os.environ.get("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"),
        "TZ": "UTC",
    }
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment[name] = sys.executable
    return environment


def _relative(value: Any, place: str) -> Any:  # Any: JSON
    """Paths below the directory of the demo store, as if the notebook had run beside it."""
    if isinstance(value, str):
        return re.sub(re.escape(place) + "/(rmqlog-demo-[^/]+/)?", "", value)
    if isinstance(value, list):
        return [_relative(each, place) for each in value]
    if isinstance(value, dict):
        for key in value:
            value[key] = _relative(value[key], place)
    return value


def _tidy(output: Any) -> Any:  # Any: JSON
    """Without the text that stands in for a page: it is a repr, with addresses that are others in every
    run.
    """
    if "text/html" in output.get("data", {}):
        output["data"].pop("text/plain", None)
    return output


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m notebooks.run", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*NOTEBOOKS, []], metavar="NAME", help=f"one of {', '.join(NOTEBOOKS)}"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=HERE,
        metavar="DIRECTORY",
        help="where the executed notebooks go; default: in place",
    )
    options = parser.parse_args(arguments)
    for name in options.names or NOTEBOOKS:
        print(f"{name}: {run(name, options.into):.1f} s", flush=True)


if __name__ == "__main__":
    main()
