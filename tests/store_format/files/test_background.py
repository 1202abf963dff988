"""Calls in a thread behind the caller: in order, one at a time, and none behind a failure or the block."""

from __future__ import annotations

import threading

import pytest

from store_format.files.background import Behind


def test_calls_come_in_order_and_beside_the_caller() -> None:
    done: list[int] = []
    may_go_on = threading.Event()

    def wait() -> None:
        assert may_go_on.wait(10)
        done.append(0)

    with Behind() as behind:
        behind.call(wait)
        assert done == []  # it waits for what comes here next
        may_go_on.set()
        for number in range(1, 50):
            behind.call(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(50))


def test_a_failure_is_raised_by_the_next_call_and_nothing_is_called_after_it() -> None:
    done: list[str] = []

    def calls() -> None:
        with Behind() as behind:
            behind.call(lambda: print(1 // 0))
            behind.call(lambda: done.append("after"))

    with pytest.raises(ZeroDivisionError):
        calls()
    assert done == []


def test_a_failure_of_the_last_call_is_raised_at_the_end() -> None:
    with pytest.raises(ZeroDivisionError), Behind() as behind:
        behind.call(lambda: print(1 // 0))


def test_what_the_block_raises_goes_before_and_the_call_has_ended_by_then() -> None:
    started, done = threading.Event(), []

    def slow() -> None:
        started.set()
        threading.Event().wait(0.2)
        done.append("written")
        raise ValueError

    def fails() -> None:
        with Behind() as behind:
            behind.call(slow)
            assert started.wait(10)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert done == ["written"]
