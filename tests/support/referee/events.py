"""Events that a random generator chooses: the same seed has the same events in every process.

Hypothesis draws some numbers from the constants of all modules that are loaded, so that its examples depend
on the tests that ran before; and it cannot repeat one example of many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

Draw = Callable[[Random], Any]


def between(least: int, most: int) -> Draw:
    """A number from `least` to `most`, both included."""
    return lambda random: random.randint(least, most)


def one_of(*values: object) -> Draw:
    return lambda random: random.choice(values)


def some_of(values: list[str], most: int) -> Draw:
    """A set of at most so many of the values."""
    return lambda random: set(random.sample(values, random.randint(0, most)))


@dataclass(frozen=True)
class Event:
    """A method of a machine, when it may be called, and how its arguments are drawn."""

    method: Callable[..., None]
    when: Callable[[Any], object]
    draws: dict[str, Draw]

    def draw(self, random: Random) -> dict[str, Any]:
        return {name: draw(random) for name, draw in self.draws.items()}


def event(*, when: Callable[[Any], object] = lambda machine: True, **draws: Draw) -> Callable[..., Event]:
    return lambda method: Event(method, when, draws)


def some_events(machine: type, random: Random) -> list[Event]:
    """The events of one life: with fewer kinds of them, each kind happens more often."""
    events = [value for value in vars(machine).values() if isinstance(value, Event)]
    left_out = random.random() * 0.7
    return [each for each in events if random.random() >= left_out] or events


def chosen(machine: object, events: list[Event], random: Random) -> Event:
    """One of the events that may happen now; if none may, one of all."""
    possible = [each for each in events if each.when(machine)]
    if not possible:
        members = (getattr(type(machine), name) for name in dir(type(machine)))
        possible = [each for each in members if isinstance(each, Event) and each.when(machine)]
    return random.choice(possible)
