"""`python -m tests.support.referee.lives NUMBER FIRST STOP STEPS`: some lives of the state machine, one after
the other, and what contradicts in each of them. A test stops at the first.

With `--answers`, also what the callers said that contradict, and which messages they left out.
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.support.fork_server import ForkServer
from tests.support.referee import machine, rules
from tests.support.referee.answers import Answer
from tests.support.referee.truth import Fate

_EVENTS_SHOWN = 30


def main(number: int, first: int, stop: int, steps: int, *, answers: bool) -> int:
    """Prints the lives that contradict; returns how many."""
    wrong = 0
    for life in range(first, stop):
        with tempfile.TemporaryDirectory() as place, ForkServer() as forks:
            one = _Talkative(Path(place), forks) if answers else machine.Machine(Path(place), forks)
            try:
                one.run(Random(f"{number}/{life}"), steps)
            except AssertionError as error:
                wrong += 1
                events = "\n   ".join(one.events[-_EVENTS_SHOWN:])
                print(f"life {life} of {number}: {error}\n   {events}", flush=True)
            except Exception:
                wrong += 1
                print(f"life {life} of {number}: {traceback.format_exc()}", flush=True)
    print(f"{wrong} of {stop - first} lives contradict")
    return wrong


class _Talkative(machine.Machine):
    def judge(self, answers: list[Answer]) -> None:
        for each in answers if rules.disagreements(answers) else ():
            rows = {} if each.rows is None else each.rows
            right = each.truth.of(Fate.KEPT) if rows else []
            left_out = [one.place for one in right if one.row not in rows and one.row not in each.earlier]
            print(f"{each.asker}: {each.refusal} {each.warnings}, without {left_out}")
        super().judge(answers)


def _numbers(words: Sequence[str]) -> tuple[int, int, int, int]:
    number, first, stop, steps = (int(word) for word in words if not word.startswith("--"))
    return number, first, stop, steps


if __name__ == "__main__":
    sys.exit(main(*_numbers(sys.argv[1:]), answers="--answers" in sys.argv) > 0)
