"""The progress line: what it says at a moment, and that nothing is said where no terminal is."""

from __future__ import annotations

import io

from rmq_spark.cli.remarks import Progress


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
    assert first == "export: 954 MiB of 9.3 GiB (10 %), 954 MiB/s, 9 s left"
    assert second == "export: 4.7 GiB of 9.3 GiB (50 %), 477 MiB/s, 10 s left"
    assert screen.getvalue().endswith("\r\x1b[K")


def test_without_a_total_and_without_a_terminal() -> None:
    times = iter([0.0, 2.0])
    screen = io.StringIO()
    with Progress("export", 0, stream=screen, clock=lambda: next(times)) as progress:
        progress.add(3000)
        assert progress.line(2.0) == "export: 2.9 KiB, 1.5 KiB/s"
    assert screen.getvalue() == ""
