"""What the garbage collector looks at while Spark plans, and after a task."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from rmq_spark.plan.garbage import collector_paused

_TASKS = """
import gc
from rmq_spark.plan.garbage import modules_frozen

counts = []
for modules in ("json", "decimal", None):
    with modules_frozen():
        if modules:
            __import__(modules)
        task = [{} for _ in range(1000)]
    counts.append(gc.get_freeze_count())
print(*counts)
"""


def test_a_task_freezes_what_its_modules_made_once() -> None:
    done = subprocess.run([sys.executable, "-c", _TASKS], check=True, capture_output=True, text=True)
    first, second, third = map(int, done.stdout.split())
    assert 0 < first < second  # a later task that loads another module freezes that module, too
    assert third <= second  # and what tasks make is collected as ever


def test_a_failed_task_freezes_its_modules_too() -> None:
    code = _TASKS.partition("counts")[0]
    code += "try:\n    with modules_frozen():\n        1 / 0\nexcept ZeroDivisionError:\n"
    code += "    print(gc.get_freeze_count())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 0


_PLANNING = """
import gc
from rmq_spark.plan.garbage import collector_paused

gc.collect()
if FROZEN:
    gc.freeze()
looks = []
gc.callbacks.append(lambda phase, info: looks.append(phase))
before = gc.get_freeze_count()
with collector_paused():
    made = [{} for _ in range(10_000)]
after = gc.get_freeze_count()
made.append({})
print(len(looks), int(before > 0), after - before)
"""


@pytest.mark.parametrize("frozen", [0, 1])
def test_the_collector_does_not_look_through_what_planning_made(frozen: int) -> None:
    code = _PLANNING.replace("FROZEN", str(frozen))
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    looks, was_frozen, more = map(int, done.stdout.split())
    assert (was_frozen, more) == (frozen, 0)  # what others froze stays frozen
    assert frozen or not looks


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_before_after_planning(enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
