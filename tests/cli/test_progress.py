"""The progress line: what it says at a moment, and that nothing is said where no terminal is."""

from __future__ import annotations

import io

from rmq_spark.cli.progress import Progress, in_bytes


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bytes_rate_and_time_left() -> None:
    times = iter([0.0, 1.0, 1.05, 10.0])
    screen = _Terminal()
    with Progress("export", 10_000_000_000, stream=screen, clock=lambda: next(times)) as progress:
        progress.add(1_000_000_000)
        progress.add(1)  # too soon to be drawn
        progress.reach(5_000_000_000)
    first, second = (line for line in screen.getvalue().split("\r\x1b[K") if line)
    assert first == "export: 1.0 GB of 10.0 GB (10 %), 1.0 GB/s, 9 s left"
    assert second == "export: 5.0 GB of 10.0 GB (50 %), 500.0 MB/s, 10 s left"
    assert screen.getvalue().endswith("\r\x1b[K")


def test_without_a_total_and_without_a_terminal() -> None:
    times = iter([0.0, 2.0])
    screen = io.StringIO()
    with Progress("export", 0, stream=screen, clock=lambda: next(times)) as progress:
        progress.add(3000)
        assert progress.line(2.0) == "export: 3.0 kB, 1.5 kB/s"
    assert screen.getvalue() == ""


def test_sizes_for_people() -> None:
    assert [in_bytes(size) for size in (0, 999, 1000, 1_234_567, 10**18)] == [
        "0 bytes",
        "999 bytes",
        "1.0 kB",
        "1.2 MB",
        "1000.0 PB",
    ]
