"""`python -m benchmarks.compare`: an older commit and this checkout, measured in turns on the same stores,
and the table of what must be reached.

Every part is kept in a file of its own below build/bench/results, so that a run can be made in pieces: the
table has all parts that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.bars import BARS, COLUMNS, Of, Result, judge
from benchmarks.fill import Filling, fill
from benchmarks.old_commit import ROOT, cases_of, check_out, git, this_version
from benchmarks.report import table, write_block
from benchmarks.sides import Spent, Version, measure_in_turns

BEFORE = "29c3d3cb"
_UNIT_BYTES = 272  # a message of `fill` without its body
_MEMORY_MIB_MAX = 350
_RESULTS = ROOT / "build" / "bench" / "results"
_Json = dict[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of the comparison: what its store is filled with, and how many rounds there are."""

    name: str  # of the part in `parts`, with what tells it from others behind a dash
    filling: Filling
    rounds: int
    extra: int = 0
    older: bool = True  # whether the older commit can do it, too

    @property
    def key(self) -> str:
        return f"{self.name}@{self.filling.body_size}"

    @property
    def part(self) -> str:
        return self.name.partition("-")[0]


def _sized(size_bytes: int, body_size: int) -> Filling:
    return Filling(messages=max(size_bytes // (body_size + _UNIT_BYTES), 50), body_size=body_size)


def _queues(queues: int, messages: int) -> Filling:
    return Filling(messages=messages, body_size=100, topics=queues // 8)


def pieces(share: float, rounds: int) -> list[Piece]:
    """All parts, with this share of the messages. Those that read one store come one after the other."""
    whole, log = int(800e6 * share), int((1 << 30) * share)
    many = max(int(10_000 * share) // 16 * 16, 16)
    few_rounds = min(rounds, 3)
    found = []
    for size in (100, 1024, 16384):
        found += [Piece(part, _sized(whole, size), rounds) for part in ("decode", "read")]
        if size == 100:
            found.append(Piece("narrow", _sized(whole, size), rounds))
        found.append(Piece("write", _sized(whole // 2, size), rounds))
    streamed = max(int(4_000_000 * share), 100)
    return [
        *found,
        Piece("start", _sized(whole, 100), rounds),
        Piece("encode", _sized(whole // 2, 100), rounds),
        Piece("commit", _sized(whole // 2, 100), rounds),
        Piece("stream", Filling(messages=streamed, body_size=100), few_rounds, extra=streamed // 10),
        Piece("search", _sized(log, 1024), rounds),
        Piece("rebuild", _sized(log, 1024), rounds, older=False),
        Piece("plan-few", _queues(many, 2 * many), rounds),
        Piece("look", _queues(many, 2 * many), rounds),
        Piece("plan-many", _queues(many * 128 // 10 // 8 * 8, many * 128 // 5), few_rounds),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    share, rounds = (1e-4, 1) if given.smallest else (0.1, 3) if given.quick else (1.0, 5)
    results = given.results / ("smallest" if given.smallest else "quick" if given.quick else "full")
    chosen = [piece for piece in pieces(share, rounds) if _is_chosen(piece, given.only)]
    if not given.show:
        older = Version(ROOT, Path(sys.executable)) if given.base == "." else check_out(given.base)
        versions = {"before": older, "after": this_version()}
        chosen = _comparable(chosen, older)
        with tempfile.TemporaryDirectory(prefix="rmqlog-bench-", dir=given.directory) as directory:
            measure(chosen, versions, Path(directory), results, given.base)
    text = markdown(load(results))
    print(text, end="")
    if given.markdown is not None:
        write_block(given.markdown, text, "compared")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", description="Measure an older commit and this checkout in turns."
    )
    parser.add_argument("--base", default=BEFORE, help=f"the older commit ({BEFORE})")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--quick", action="store_true", help="a tenth of the messages, three rounds")
    extent.add_argument(
        "--smallest", action="store_true", help="a few messages, one round: shows that it runs"
    )
    parser.add_argument(
        "--only", type=lambda text: text.split(","), help="parts, such as decode,read@100,search (all)"
    )
    parser.add_argument("--show", action="store_true", help="print what was measured before, measure nothing")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="where parts are kept")
    parser.add_argument("--directory", type=Path, help="where to put the stores, up to 3 GB at a time")
    parser.add_argument("--markdown", type=Path, help="a page to write the table into, between its marks")
    return parser


def _comparable(chosen: Sequence[Piece], older: Version) -> list[Piece]:
    """The parts; one whose part, store or columns differ in the older commit is measured here alone."""
    before, after = cases_of(older.tree), cases_of(ROOT)
    return [
        piece if before.get(piece.part) == after[piece.part] else replace(piece, older=False)
        for piece in chosen
    ]


def _is_chosen(piece: Piece, only: Sequence[str] | None) -> bool:
    return only is None or bool({piece.key, piece.name, piece.part} & set(only))


def measure(
    chosen: Sequence[Piece], versions: dict[str, Version], directory: Path, results: Path, base: str
) -> None:
    """Measures the parts and keeps each in `results`."""
    results.mkdir(parents=True, exist_ok=True)
    root, filled = directory / "store", None
    for piece in chosen:
        begun = time.monotonic()
        if piece.part in ("encode", "commit", "look"):  # they make their own messages
            pass
        elif piece.filling != filled:
            shutil.rmtree(root, ignore_errors=True)
            fill(root, piece.filling)
            filled = piece.filling
        sides = versions if piece.older else {"after": versions["after"]}
        own = directory / piece.key
        own.mkdir()
        spent, memory = measure_in_turns(
            sides, piece.part, root, own, piece.filling, extra=piece.extra, rounds=piece.rounds
        )
        shutil.rmtree(own)
        _keep(results, piece, base, spent, memory)
        print(f"{piece.key}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)


def _keep(results: Path, piece: Piece, base: str, spent: dict[str, Of], memory: dict[str, int]) -> None:
    cases = {case: {side: asdict(took) for side, took in of.items()} for case, of in spent.items()}
    found = {
        "base": base,
        "commit": _commit(),
        "rounds": piece.rounds,
        "messages": piece.filling.messages,
        "cases": cases,
        "memory": memory,
    }
    (results / f"{piece.key}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


def _commit() -> str:
    return git("describe", "--always", "--dirty", "--abbrev=7", "--exclude", "*")


def load(results: Path) -> dict[str, _Json]:
    """All parts that were kept, by their keys."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))
    }


# ---- the page ----------------------------------------------------------------------------------------------


def markdown(found: dict[str, _Json]) -> str:
    """What was measured, as a table of the bars and a line about the machine."""
    if not found:
        return "Nothing has been measured yet.\n"
    rows = [judge(bar, _cases(found[bar.part])) for bar in BARS if bar.part in found]
    rows += [row for row in [_memory(found)] if row is not None]
    reached = sum(row.reached for row in rows)
    head = f"{reached} of {len(rows)} bars reached."
    return "\n\n".join([_machine(found), table(COLUMNS, [row.cells for row in rows]), head]) + "\n"


def _cases(part: _Json) -> dict[str, Of]:
    return {case: {side: Spent(**took) for side, took in of.items()} for case, of in part["cases"].items()}


def _machine(found: dict[str, _Json]) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "numpy", "pyarrow"))
    bases = " and ".join(sorted({each["base"] for each in found.values()}))
    commits = " and ".join(sorted({each["commit"] for each in found.values()}))
    rounds = " or ".join(sorted({str(each["rounds"]) for each in found.values()}, reverse=True))
    return (
        f"{cores} cores, Python {platform.python_version()}, {packages}. "
        f"Before is {bases}, after is {commits}; medians of {rounds} rounds in turns."
    )


def _memory(found: dict[str, _Json]) -> Result | None:
    """The most that a Python worker of Spark held in any part, at the default settings."""
    held = [each["memory"] for each in found.values() if each["memory"].get("after")]
    if not held:
        return None
    before, after = (max(each.get(side, 0) for each in held) / (1 << 20) for side in ("before", "after"))
    cells = (
        "a worker's own memory",
        f"{before:.0f} MiB",
        f"{after:.0f} MiB",
        f"{after / before:.2f}",
    )
    reached = after <= _MEMORY_MIB_MAX
    return Result((*cells, f"{_MEMORY_MIB_MAX} MiB", "yes" if reached else "**no**"), reached)


if __name__ == "__main__":
    # an end that removes the stores, too
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
