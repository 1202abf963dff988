"""`make` on machines that lack something: one line that says what to install, and nothing made before it is
said.

The machines are real processes with a PATH of their own; a `java` of another version is a script that says
so, as java does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What make's recipes use before they install anything.
_TOOLS = ("sh", "make", "sed", "head", "env", "nice")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A directory for PATH that holds these tools and this Python, and no java."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in _TOOLS:
        found = shutil.which(tool)
        assert found, f"{tool} is needed for this test"
        (directory / tool).symlink_to(found)
    (directory / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (directory / "python3").chmod(0o755)
    return directory


def _script(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def _make(tools: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(tools), "HOME": str(tools), "LC_ALL": "C", **environment}
    return subprocess.run(
        ["make", "-C", str(ROOT), *arguments], env=environment, capture_output=True, text=True, check=False
    )


def _one_error(done: subprocess.CompletedProcess[str]) -> str:
    """The line that is ours; make adds its own `*** [check-java] Error 1`."""
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "bench"])
def test_no_java_is_one_line_that_says_what_to_install(tools: Path, target: str) -> None:
    done = _make(tools, target)
    assert _one_error(done).startswith("error: no Java found (java does not run); install a JDK 17 or newer")
    assert "pip" not in done.stdout


def test_an_old_java_is_named_with_its_version(tools: Path) -> None:
    _script(
        tools,
        "java",
        """echo 'Picked up JAVA_TOOL_OPTIONS: -Dx="1"' >&2; echo 'java version "1.8.0_292"' >&2\n""",
    )
    assert _one_error(_make(tools, "check-java")).startswith(
        "error: java is Java 1.8.0_292, Spark needs 17; install a JDK 17"
    )


def test_java_home_goes_before_the_path(tools: Path, tmp_path: Path) -> None:
    _script(tools, "java", """echo 'openjdk version "21.0.2" 2024-01-16' >&2\n""")
    assert _make(tools, "check-java").returncode == 0
    home = tmp_path / "jdk 11"
    (home / "bin").mkdir(parents=True)
    error = _one_error(_make(tools, "check-java", JAVA_HOME=str(home)))
    assert error.startswith(f"error: no Java found ({home}/bin/java does not run)")
    _script(home / "bin", "java", """echo 'openjdk version "11.0.22" 2024-01-16' >&2\n""")
    assert f"{home}/bin/java is Java 11.0.22" in _one_error(_make(tools, "check-java", JAVA_HOME=str(home)))


@pytest.mark.parametrize("version", ["17", "17.0.10", "21-ea", "25.0.1+8"])
def test_a_new_enough_java_is_taken(tools: Path, version: str) -> None:
    _script(tools, "java", f"""echo 'openjdk version "{version}"' >&2\n""")
    done = _make(tools, "check-java")
    assert (done.returncode, done.stderr) == (0, "")


def test_no_python_is_one_line_that_says_what_to_install(tools: Path) -> None:
    (tools / "python3").unlink()
    assert _one_error(_make(tools, "check-python")).startswith(
        "error: no Python 3.11 or newer found; install one"
    )


def test_a_python_that_is_too_old_or_no_python_is_named(tools: Path) -> None:
    old = _script(tools, "python3.6", "exit 1\n")
    error = _one_error(_make(tools, "check-python", f"PYTHON={old}"))
    assert error.startswith(f"error: {old} is not a Python 3.11 or newer; install one")


def test_a_stand_in_that_does_not_run_is_passed_over(tools: Path) -> None:
    _script(tools, "python3.13", "echo 'python3.13: command not found' >&2; exit 127\n")
    done = _make(tools, "check-python")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_python_without_its_venv_module_is_named(tools: Path, tmp_path: Path) -> None:
    # Debian's python3 without python3-venv: `import venv` works, `import ensurepip` does not.
    (tmp_path / "ensurepip.py").write_text("raise ImportError('No module named ensurepip')\n")
    python = _script(tools, "python3.11", f'PYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n')
    error = _one_error(_make(tools, "check-python", f"PYTHON={python}"))
    assert (
        error
        == f"error: {python} cannot make virtual environments; install its venv module (Debian: apt-get "
        f"install python3-venv)"
    )


def test_the_settings_directory_is_the_checkouts(tools: Path) -> None:
    done = _make(tools, "--dry-run", "--print-data-base", "help", SPARK_CONF_DIR=os.devnull)
    assert f"SPARK_CONF_DIR := {ROOT}/conf" in done.stdout.splitlines()


def test_figures_are_written_into_a_page_that_has_their_marks(tools: Path) -> None:
    done = _make(tools, "--dry-run", "figures")
    (page,) = re.findall(r"-m benchmarks --markdown (\S+)", done.stdout)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert 0 < text.index("<!-- measured -->") < text.index("<!-- /measured -->")


def test_all_tests_are_one_run_that_leaves_none_out(tools: Path) -> None:
    runs = re.findall(r"-m pytest.*", _make(tools, "--dry-run", "test-all", JAVA_HOME="").stdout)
    assert len(runs) == 1
    assert re.search(r" (?:-m|-k|--part|--quick|--deselect|--ignore)\b", runs[0].removeprefix("-m")) is None
