"""Attempts with pauses: as many as the time allows, by the clock that is given."""

from __future__ import annotations

from store_format.files.polling import Clocks, attempts


class _Time:
    """A clock that only sleeps move on."""

    def __init__(self, seconds: float = 1_700_000_000.0) -> None:
        self.now = seconds
        self.slept: list[float] = []
        self.clocks = Clocks(lambda: self.now, lambda: int(self.now * 1000), self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def test_attempts_pause_until_the_time_is_over() -> None:
    time = _Time()
    assert len(list(attempts(1.0, 0.25, clocks=time.clocks))) == 5
    assert time.slept == [0.25] * 4


def test_one_attempt_without_a_time() -> None:
    time = _Time()
    assert len(list(attempts(0.0, 0.25, clocks=time.clocks))) == 1
    assert time.slept == []


def test_pauses_grow_up_to_the_longest() -> None:
    time = _Time()
    list(attempts(1.0, 0.125, pause_max=0.5, clocks=time.clocks))
    assert time.slept == [0.125, 0.25, 0.5, 0.5]
