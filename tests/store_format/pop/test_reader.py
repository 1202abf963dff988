"""Following an in-flight log without its lock."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store_format.opened.store import Opened
from store_format.pop.log import InFlightLog, InFlightReader, in_flight_directory
from store_format.pop.state import PopState

NOW_MS = 1_700_000_200_000


def test_a_reader_follows_the_log_over_compactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = in_flight_directory(Opened(str(tmp_path)), "g", "T")
    log, reader = InFlightLog(directory), InFlightReader(directory)
    assert reader.look() is None
    monkeypatch.setattr("store_format.pop.log._COMPACT_SIZE", 2_000)
    log.run(PopState.open)
    log.run(partial(PopState.set_offset, flag=0, queue_id=0, offset=0))

    def hand_out(state: PopState) -> Any:
        start = state.queues[0, 0].next_offset
        return state.hand_out(0, 0, range(start, start + 32), start + 32, NOW_MS, 1000).key

    sizes = []
    for number in range(600):
        key = log.run(hand_out)
        if number % 60 == 5:
            found = reader.look()
            assert found is not None
            assert found.in_flight == log.run(lambda state: state.in_flight) == 64
            sizes.append(Path(reader.path).stat().st_size)
        if number:  # the first stays in flight
            log.run(partial(PopState.ack, key=key))
    assert sizes != sorted(sizes), "no compaction"
    reader.close()
