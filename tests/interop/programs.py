"""A Java program that speaks in lines of JSON, as a process of ours: every wait ends in time, and every end
is this process's own.

What the program and RocketMQ print goes to a log file, whose last lines are part of each error.
"""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from tests.interop.jvm import command
from tests.interop.maven import class_path

Line: TypeAlias = dict[str, Any]  # Any: JSON, told where each program is told

_LOG_LINES_SHOWN = 30
_EXIT_SECONDS_MAX = 20.0


class ProgramError(Exception):
    """A program that failed, ended or was silent too long."""


class Program:
    """`Program("5.5.0", "StoreOpen", ["load", store, conf], directory)`; `directory` takes its home, its logs
    and what it extracts.
    """

    def __init__(self, version: str, main: str, arguments: list[str], directory: Path) -> None:
        self.name = main
        self.directory = directory
        self._log = directory / "log"
        self._temporary = directory / "tmp"
        self._temporary.mkdir(parents=True)
        words = command(main, arguments, class_path(version), directory)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._lines: queue.SimpleQueue[Line | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # else the program was killed in the middle of it
                self._lines.put(json.loads(line))
        self._lines.put(None)

    def line(self, seconds_max: float) -> Line:
        """The next line. Raises ProgramError when none comes in time, when the program has ended, or when the
        line is an error.
        """
        try:
            line = self._lines.get(timeout=seconds_max)
        except queue.Empty:
            raise ProgramError(self._told(f"said nothing for {seconds_max:.0f} seconds")) from None
        if line is None:
            self._lines.put(None)
            raise ProgramError(self._told("ended"))
        if "error" in line:
            raise ProgramError(self._told(f"failed: {line['error']}"))
        return line

    def lines(self, until: str, seconds_max: float) -> list[Line]:
        """The lines before the one that has the field `until`."""
        end = time.monotonic() + seconds_max
        found: list[Line] = []
        while until not in (line := self.line(max(0.0, end - time.monotonic()))):
            found.append(line)
        return found

    def say(self, *words: object) -> None:
        """One command: words in URL encoding."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(" ".join(quote(str(word), safe="") for word in words).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ProgramError(self._told("ended")) from None

    def kill(self) -> None:
        """SIGKILL, and all that is left of the process put away; nothing if it has ended already."""
        if self.running:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """The end of its input is a program's sign to end; one that does not is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            self._process.stdin.close()
        try:
            self._process.wait(_EXIT_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        # the native libraries that RocksDB extracts: 60 MB
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _told(self, what: str) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join([f"{self.name} {what}; the end of {self._log}:", *lines[-_LOG_LINES_SHOWN:]])
