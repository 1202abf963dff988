"""The pages of `docs/` and the README as a reader uses them: blocks of shell, Python and SQL, and the output
that each page says they have.

A block of text right behind a block is what that one prints. `/data/…` are copies of the stores that
docs/README.md says to unpack; in the README, `/tmp/shop` is the demo store.
"""

from __future__ import annotations

import io
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rmq_spark.cli.main import Remarks, main
from tests.support.fixtures import Golden, SparkSession

ROOT = Path(__file__).resolve().parent.parent.parent

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$\n*", re.MULTILINE | re.DOTALL)
_UNPACK = re.compile(r"^tar xzSf tests/golden/(\S+)/store\.tar\.gz -C (/data/\w+)$", re.MULTILINE)
_EXIT_CODE = re.compile(r"\s+# exit code (\d+)$")
_RUNS = {"sh", "python", "sql"}
_TIMEOUT_S = 150  # of a line of shell: some of them start Spark


@dataclass(frozen=True, slots=True)
class Block:
    """Something to run, with what it prints where the page shows that; `line` is where it stands."""

    line: int
    language: str
    text: str
    output: str | None


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    """The blocks that run, in their order. A `text` block belongs to the one it touches."""
    found = list(_FENCED.finditer(page))
    for block, behind in zip_longest(found, found[1:]):
        if block[1] in _RUNS:
            shows = behind is not None and behind[1] == "text" and behind.start() == block.end()
            yield Block(
                page.count("\n", 0, block.start()) + 1,
                block[1],
                block[2],
                behind[2] if behind is not None and shows else None,
            )


def anchors(page: str) -> list[str]:
    """The anchors that GitHub makes of the headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", _FENCED.sub("", page), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def example_stores() -> dict[str, str]:
    """Path of the pages -> golden store, as docs/README.md tells a reader to make them."""
    return {path: store for store, path in _UNPACK.findall(read_page("README.md"))}


def is_as_shown(shown: str, printed: str) -> bool:
    """Equal but for the width of columns, which follows a path's; a line of `…` alone stands for any lines,
    or none.
    """
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(f"{line}\n") for line in _lines(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [
        re.sub(r"-{3,}", "---", re.sub(r" {2,}", "  ", line.strip()))
        for line in text.strip("\n").splitlines()
    ]


@dataclass
class Session:
    """One reader with one page: the stores are copied when a block names them, and names of Python live from
    block to block.
    """

    directory: Path
    golden: Golden
    spark: Callable[[], SparkSession]
    names: dict[str, Any] = field(default_factory=dict)  # Any: whatever the page's Python makes
    root: str = "/data/"  # the directory of the page's stores, which stands for `directory`

    def run(self, block: Block) -> str:
        """What the block printed: stdout, and behind it what `rmqlog` said on stderr."""
        text = self._here(block.text)
        return getattr(self, f"_{block.language}")(text).replace(f"{self.directory}/", self.root)

    def _here(self, text: str) -> str:
        for path, store in example_stores().items():
            copy = self.directory / Path(path).name
            if re.search(rf"{path}\b", text) and not copy.exists():
                shutil.copytree(self.golden(store), copy)
        return text.replace(self.root, f"{self.directory}/")

    def _sh(self, text: str) -> str:
        return "".join(map(self._command, text.replace("\\\n", "").splitlines()))

    def _command(self, line: str) -> str:
        expected = _EXIT_CODE.search(line)
        command = line[: expected.start()] if expected else line
        code, out = self._rmqlog(command) if re.fullmatch(r"rmqlog [^|>$]*", command) else self._bash(command)
        assert code == (int(expected[1]) if expected else 0), (line, out)
        return out

    def _rmqlog(self, command: str) -> tuple[int, str]:
        out, err = io.StringIO(), io.StringIO()
        remarks = logging.StreamHandler(err)
        remarks.setFormatter(Remarks())
        logging.getLogger().addHandler(remarks)  # as the process does
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = main(shlex.split(command)[1:])
        finally:
            logging.getLogger().removeHandler(remarks)
        return code, out.getvalue() + err.getvalue()

    def _bash(self, command: str) -> tuple[int, str]:
        """With an `rmqlog` on the path that is this checkout's, whatever is installed, and its `python`."""
        programs = self.directory / "bin"
        programs.mkdir(exist_ok=True)
        for name, module in (("rmqlog", " -m rmq_spark.cli"), ("python", "")):
            program = programs / name
            program.write_text(
                f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{module} "$@"\n', encoding="utf-8"
            )
            program.chmod(0o755)
        # spark-submit and spark-sql are those of this environment
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def _python(self, text: str) -> str:
        if "spark" in text:
            self.spark()  # so that getOrCreate finds it
        with redirect_stdout(io.StringIO()) as out:
            exec(text, self.names)
        return out.getvalue()

    def _sql(self, text: str) -> str:
        with redirect_stdout(io.StringIO()) as out:
            for statement in filter(None, map(str.strip, text.split(";"))):
                rows = self.spark().sql(statement)
                if rows.columns:
                    rows.show(truncate=False)
        return out.getvalue()
