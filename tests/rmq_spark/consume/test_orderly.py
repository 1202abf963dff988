"""Where an orderly handler stops in each queue, what is counted, and what becomes a dead letter."""

from __future__ import annotations

import pytest

from rmq_spark.consume.orderly import DeadLetter, OrderlyRun, QueueReport, Stop
from store_format.errors import OptionError
from tests.support.orderly_rows import handled, queue


def test_a_queue_stops_at_its_first_failure_and_the_others_go_on() -> None:
    run = OrderlyRun({})
    rows = [(0, 5), (1, 7), (0, 6), (1, 8), (0, 9), (1, 9)]
    assert handled(run, rows, (0, 6)) == [(0, 5, 0), (1, 7, 0), (0, 6, 0), (1, 8, 0), (1, 9, 0)]
    assert run.reports() == [
        QueueReport(queue(0), 6, times=1, error="ValueError: no"),
        QueueReport(queue(1), 10),
    ]


def test_failures_are_counted_at_the_place_of_the_stop_only() -> None:
    run = OrderlyRun({queue(0): Stop(6, 4), queue(1): Stop(3, 2)}, max_reconsume_times=9)
    rows = [(0, 5), (0, 6), (0, 7), (1, 4)]
    assert handled(run, rows, (0, 6)) == [(0, 6, 4), (1, 4, 0)]  # offset 5 is handled already
    assert [(each.next_offset, each.times) for each in run.reports()] == [(6, 5), (5, 0)]


def test_the_maximum_makes_a_dead_letter_and_the_queue_goes_on() -> None:
    run = OrderlyRun({queue(0): Stop(6, 2)}, max_reconsume_times=2)
    assert handled(run, [(0, 6), (0, 7), (0, 8)], (0, 6), (0, 8)) == [(0, 6, 2), (0, 7, 0), (0, 8, 0)]
    assert run.reports() == [QueueReport(queue(0), 8, [DeadLetter(6, 2)], 1, "ValueError: no")]
    none = OrderlyRun({}, max_reconsume_times=0)
    handled(none, [(0, 1), (0, 2)], (0, 1), (0, 2))
    assert none.reports() == [QueueReport(queue(0), 3, [DeadLetter(1, 0), DeadLetter(2, 0)])]


def test_rows_out_of_order_are_refused() -> None:
    with pytest.raises(
        OptionError, match="T-0 of broker-a: expected the rows of the queue in order, found offset 4 after 4"
    ):
        handled(OrderlyRun({}), [(0, 4), (0, 4)])
