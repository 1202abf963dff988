"""How things are measured: all cases in each round, rounds one after another, so that what disturbs the
machine meets every case alike.

A figure is the median and the minimum over the rounds; a ratio is taken within a round, between neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

_CPU_TICK_S = 0.01  # a process's CPU time is counted in these; a case that uses less uses one


@dataclass(frozen=True, slots=True)
class Figure:
    """Median and minimum of what the rounds gave; of rates and ratios the minimum is the worst."""

    median: float
    minimum: float

    @staticmethod
    def of(values: list[float]) -> Figure:
        return Figure(median(values), min(values))


@dataclass(frozen=True, slots=True)
class Rates:
    """One case: how many rows (or messages) it went through, and how long in each round."""

    name: str
    rows: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...] = ()  # of all processes that take part, if it was asked for

    def rate(self) -> Figure:
        """Rows a second."""
        return Figure.of([self.rows / seconds for seconds in self.seconds])

    def ratio(self, ceiling: Rates) -> Figure:
        """This rate by that of `ceiling`, round by round."""
        pairs = zip(self.seconds, ceiling.seconds, strict=True)
        return Figure.of([self.rows / mine / (ceiling.rows / other) for mine, other in pairs])

    def cpu_ratio(self, ceiling: Rates) -> Figure:
        """The same of rows for a second of CPU time, which other load on the machine disturbs less."""
        return Rates(self.name, self.rows, self.cpu_seconds).ratio(
            Rates(ceiling.name, ceiling.rows, ceiling.cpu_seconds)
        )


@dataclass(slots=True)
class _Spent:
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


def interleave(
    cases: Mapping[str, Callable[[], int]],
    rounds: int,
    cpu: Callable[[], float] | None = None,
    before: Mapping[str, Callable[[], None]] | None = None,
) -> dict[str, Rates]:
    """Run every case once to warm up and then `rounds` times; each returns how many rows it saw. `before`
    runs untimed ahead of its case.

    Every other round goes backwards: a machine that slows down during a round then favours nobody. `cpu`
    tells the CPU seconds used so far. Raises ValueError for a case that does not see the same rows each time.
    """
    prepare = before or {}
    rows = {}
    for name, case in cases.items():
        prepare.get(name, _nothing)()
        rows[name] = case()
    spent: dict[str, _Spent] = {name: _Spent() for name in cases}
    for number in range(rounds):
        names = list(cases) if number % 2 == 0 else list(cases)[::-1]
        for name in names:
            prepare.get(name, _nothing)()
            cpu_start = cpu() if cpu else 0.0
            start = time.perf_counter()
            seen = cases[name]()
            spent[name].seconds.append(time.perf_counter() - start)
            spent[name].cpu_seconds.append(max((cpu() if cpu else 0.0) - cpu_start, _CPU_TICK_S))
            if seen != rows[name]:
                raise ValueError(f"{name}: {seen} rows, and {rows[name]} before")
    return {
        name: Rates(name, rows[name], tuple(spent[name].seconds), tuple(spent[name].cpu_seconds))
        for name in cases
    }


def _nothing() -> None:
    pass
