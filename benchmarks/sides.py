"""Two versions of the code, measured in turns: each in a process of its own, with its own environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.fill import Filling

_EXIT_SECONDS = 60.0
_Line = dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Version:
    """The code of a commit: its directory, in which `benchmarks` is this package, and a Python that has what
    it needs.
    """

    tree: Path
    python: Path


@dataclass(slots=True)
class Spent:
    """What a case took in each round, on one side."""

    rows: int
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


class Side:
    """`with Side(version) as side`: the process that measures one version (`benchmarks.side`)."""

    def __init__(self, version: Version) -> None:
        environment = dict(
            os.environ,
            PYTHONPATH=str(version.tree),
            SPARK_CONF_DIR=str(version.tree / "conf"),
            PYSPARK_PYTHON=str(version.python),
            PYSPARK_DRIVER_PYTHON=str(version.python),
        )
        self._process = subprocess.Popen(
            [version.python, "-m", "benchmarks.side"],
            cwd=version.tree,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        if kind is None:
            self._process.stdin.close()
        else:
            self._process.terminate()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, order: Mapping[str, object]) -> None:
        """Sends an order; `answer` waits for what comes of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def answer(self) -> _Line:
        """The answer to the oldest order. Raises ChildProcessError if the process ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"{self._process.args!r} ended with status {self._process.wait()}")
        found: _Line = json.loads(line)
        return found


def measure_in_turns(
    versions: Mapping[str, Version],
    part: str,
    root: Path,
    directory: Path,
    filling: Filling,
    *,
    extra: int,
    rounds: int,
) -> tuple[dict[str, dict[str, Spent]], dict[str, int]]:
    """({case: {version: what it took}}, {version: most memory of a Spark worker}).

    Every case runs once to warm up. In a round the versions run a case one after the other; every other round
    goes backwards, cases and versions. Raises ValueError for versions that do not see the same rows.
    """
    sides: dict[str, Side] = {}
    try:
        for name, version in versions.items():
            sides[name] = Side(version)
        for name, side in sides.items():
            own = directory / f"{part}-{name}"
            order = {"open": part, "root": str(root), "directory": str(own), "filling": asdict(filling)}
            side.ask(order | {"extra": extra})
        cases: list[str] = [side.answer()["cases"] for side in sides.values()][-1]
        spent, memory = _rounds(sides, cases, rounds)
        for name, side in sides.items():
            side.ask({"close": True})
            memory[name] = max(memory[name], int(side.answer()["own_bytes"]))
    except BaseException as error:
        for side in sides.values():
            side.__exit__(type(error), error, None)
        raise
    for side in sides.values():
        side.__exit__(None, None, None)
    return spent, memory


def _rounds(
    sides: Mapping[str, Side], cases: Sequence[str], rounds: int
) -> tuple[dict[str, dict[str, Spent]], dict[str, int]]:
    """As `measure_in_turns`; memory is that of the workers while they warm up."""
    memory = dict.fromkeys(sides, 0)
    spent: dict[str, dict[str, Spent]] = {case: {} for case in cases}
    for number in range(-1, rounds):
        step = 1 if number % 2 else -1
        for case in cases[::step]:
            for name in list(sides)[::step]:
                sides[name].ask({"run": case, "watch": number < 0})
                done = sides[name].answer()
                if number < 0:
                    spent[case][name] = Spent(done["rows"])
                    memory[name] = max(memory[name], int(done["own_bytes"]))
                    continue
                spent[case][name].seconds.append(done["seconds"])
                spent[case][name].cpu.append(done["cpu"])
        for case, of_case in spent.items():
            if len({each.rows for each in of_case.values()}) > 1:
                raise ValueError(f"{case}: not the same rows: {of_case}")
    return spent, memory
