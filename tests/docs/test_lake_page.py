"""docs/howto-lake.md, the section about Delta Lake: run with the Spark and the package that it names.

The newest Spark that Delta supports is older than the one of the tests, so the section gets an environment of
its own. Delta's package comes from Maven Central, as for a user.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT, blocks, is_as_shown, read_page

PAGE = "howto-lake.md"
_INSTALL_S = 900
_SUBMIT_S = 900
_UNREACHABLE = ("Could not find a version", "ConnectionError", "unresolved dependenc", "Connection refused")

# A micro-batch fails after both of its writes, and Spark repeats it: nothing may come twice.
_LOADS = """
load()
{more}
written = write_both


def write_both(messages, batch):
    written(messages, batch)
    raise RuntimeError("the power is gone")


try:
    load()
except Exception as error:
    assert "the power is gone" in str(error), error
else:
    raise SystemExit("the load was not stopped")
write_both = written
{again}
load()
load()
messages = spark.read.format("delta").load("/data/lake/messages")
places = messages.select("brokerName", "queueId", "queueOffset").distinct().count()
print("messages", messages.count(), "places", places)
"""


def _delta_blocks() -> list[str]:
    section = read_page(PAGE).partition("\n## Delta Lake\n")[2].partition("\n## ")[0]
    return re.findall(r"^```text\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


def _load_py(table_and_write: str, look: str) -> str:
    """The page's Python: the source, the stream, Delta's part, and the two loads."""
    source, stream, second, *_ = (
        block.text for block in blocks(read_page(PAGE)) if block.language == "python"
    )
    definitions = stream.partition("\nload()\n")[0]
    produce = second.partition("\nload()\n")[0]
    loads = _LOADS.format(more=produce, again=table_and_write.partition("\n\n\ndef ")[0])
    return "\n".join([source, definitions, table_and_write, loads, look])


def test_the_section_has_the_blocks_that_are_run() -> None:
    submit, table_and_write, look, shown = _delta_blocks()
    assert submit.startswith("spark-submit --packages io.delta:")
    assert table_and_write.startswith("spark.sql(")
    assert shown.startswith("+--")
    compile(_load_py(table_and_write, look), "load.py", "exec")


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.process
@pytest.mark.timeout(_INSTALL_S + _SUBMIT_S + 60)
def test_delta_has_each_message_once_and_the_newest_state(tmp_path: Path) -> None:
    submit, table_and_write, look, shown = _delta_blocks()
    environment = tmp_path / "environment"
    _run(_INSTALL_S, sys.executable, "-m", "venv", str(environment))
    version = re.search(r"delta-spark_(\d+\.\d+)_", submit)
    assert version is not None
    pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet"]
    _run(_INSTALL_S, *pip, f"pyspark[sql]=={version[1]}.*", str(ROOT))
    program = _load_py(table_and_write, look).replace("/data/", f"{tmp_path}/data/")
    (tmp_path / "data").mkdir()
    (tmp_path / "load.py").write_text(program, encoding="utf-8")
    spark_submit, *options = shlex.split(submit.replace("\\\n", " "))
    command = [str(environment / "bin" / spark_submit), "--master", "local[2]", *options]
    printed = _run(_SUBMIT_S, *command, directory=tmp_path)
    _, found, table = printed.partition("messages 6 places 6\n")  # Spark's warnings may come before
    assert found, printed
    assert is_as_shown(shown, table), table


def _run(seconds: int, *command: str, directory: Path = ROOT) -> str:
    """Returns what the command prints. Skips the test without a way to the package index or Maven Central."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK_", "SPARK_"))
    }
    environment["PYSPARK_PYTHON"] = f"{Path(command[0]).parent}/python"
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=seconds
    )
    output = f"{done.stdout}\n{done.stderr}"
    if done.returncode and any(text in output for text in _UNREACHABLE) and os.environ.get("CI") != "true":
        pytest.skip(f"{' '.join(command[:5])} …: no way to the packages: {output[-300:]}")
    assert done.returncode == 0, f"{' '.join(command)}\n{output}"
    return done.stdout
