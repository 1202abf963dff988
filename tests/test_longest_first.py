"""The longest tests are the first of each process, and no test is lost or run twice for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.longest_first import LONGEST, longest_first

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("start", LONGEST)
def test_what_is_listed_exists(start: str) -> None:
    path, _, name = start.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {re.escape(name.partition('[')[0]) or 'test_'}", text, re.MULTILINE)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("others", [0, 1, 5, 100])
def test_each_process_begins_with_its_share(processes: int, others: int) -> None:
    names = [f"tests/a.py::test_{number}" for number in range(others)]
    names[others // 2 : others // 2] = reversed(LONGEST)
    ordered = longest_first([(name, name) for name in names], processes)
    assert sorted(ordered) == sorted(names)
    assert [name for name in ordered if name not in LONGEST] == [
        name for name in names if name not in LONGEST
    ]
    left = ordered if others == 100 else []  # with fewer, a share may be more than its part
    for process in range(processes):  # as worksteal cuts what it gives to each at the start
        size = len(left) // (processes - process)
        share = list(LONGEST[process::processes])
        assert left[: len(share)] == (share if left else [])
        left = left[size:]


def test_tests_of_one_line_stay_together_in_their_order() -> None:
    one, other = LONGEST[0], LONGEST[1]
    names = ["a.py::t", f"{other}::1", f"{other}::2", f"{one}::1", "b.py::t", "c.py::t", "d.py::t", "e.py::t"]
    assert longest_first([(name, name) for name in names], 2) == [
        *(f"{one}::1", "a.py::t", "b.py::t", "c.py::t"),
        *(f"{other}::1", f"{other}::2", "d.py::t", "e.py::t"),
    ]
