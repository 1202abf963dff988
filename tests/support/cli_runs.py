"""Runs of `rmqlog`: in this process, with what it wrote and its exit code; and as a process of its own."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.cli.exit_codes import NOT_FOUND, OK
from rmq_spark.cli.main import main

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Run:
    """How a run ended."""

    code: int
    out: str
    err: str


class Runner:
    """`rmqlog(…)`: a run in this process."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: object) -> Run:
        self._capture.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = self._capture.readouterr()
        return Run(code, out, err)

    def rows(self, *arguments: object) -> list[dict[str, Any]]:
        """The rows of `--output json`; those of JSON lines and of CSV are the same."""
        done = self(*arguments, "--output", "json")
        assert done.code in (OK, NOT_FOUND), done.err
        found = json.loads(done.out)
        assert done.code == (OK if found else NOT_FOUND)
        lines = self(*arguments, "--output", "jsonl").out.splitlines()
        assert [json.loads(line) for line in lines] == found
        table = list(csv.DictReader(io.StringIO(self(*arguments, "--output", "csv").out)))
        assert len(table) == len(found)
        for text, row in zip(table, found, strict=True):
            assert list(text) == list(row)
            for name, value in row.items():
                assert text[name] == _csv(value), name
        return found

    def table(self, *arguments: object) -> list[list[str]]:
        """The lines of the table, the headings first, each split where two spaces are."""
        done = self(*arguments)
        assert done.code == 0, done.err
        return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in done.out.splitlines()]

    def fails(self, code: int, *arguments: object) -> str:
        """The sentence on stderr of a run that ends with `code`: one line, and nothing of Python's."""
        done = self(*arguments)
        assert done.code == code, (done.out, done.err)
        assert "Traceback" not in done.err
        sentence = done.err.splitlines()[-1]
        assert sentence.startswith("rmqlog: ")
        return sentence.removeprefix("rmqlog: ")


def _csv(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return "" if value is None else str(value)


def command(*arguments: object) -> list[str]:
    """The command line of a run of its own."""
    return [sys.executable, "-m", "rmq_spark.cli", *map(str, arguments)]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **more}


def without_disk(text: str) -> str:
    """A text of `retention` without how full the disk of this machine is."""
    return re.sub(r"^(disk +)\d+ % of .* used: \w.*$", r"\1(of this machine)", text, flags=re.MULTILINE)


def process(*arguments: object, **more: str) -> Run:
    """A run of its own, to its end; `more` are variables of its environment."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(**more), timeout=60, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr)
