"""Queries that run while the store changes: a stream as Spark runs it, and a stream in a consumer group."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.stream.group_positions import GroupPositions
from rmq_spark.stream.plan import plan_stream
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format.files.polling import Clocks
from tests.support.referee.answers import Answer, asked
from tests.support.referee.askers import rows_of
from tests.support.referee.truth import Fate, Row, Truth


class Follower:
    """A query that began when the store was whole. `step` reads everything that has come since."""

    def __init__(self, root: Path, *, skips: bool = True, offsets: Path | None = None) -> None:
        self.root, self.skips = root, skips
        self.delivered: Counter[Row] = Counter()
        self._told: set[Row] = set()
        self.has_failed = False
        given = {"path": str(root), "startingOffsets": "earliest"}
        if offsets is not None:
            given = {
                "path": str(root), "group": "g", "clientId": "one", "offsetStore": "local",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "offsetStorePath": str(offsets),
                "persistConsumerOffsetInterval": "0s",
            }  # fmt: skip
        if skips:
            given |= {"failOnDataLoss": "false", "mode": "DROPMALFORMED"}
        self._options = parse_read_options(given, where=STREAM)
        self._scan = Scan(fields_from_options(self._options), self._options)
        self._at: dict[str, Any] | None = None
        self._start()

    def _start(self) -> None:
        self._stores = StreamStores(self._options)
        self._positions: StreamPositions | GroupPositions
        if self._options.group is None:
            self._positions = StreamPositions(self._stores, clock_ms=lambda: 0)
        else:
            clocks = Clocks(lambda: 0.0, lambda: 1_700_000_000_000, lambda seconds: None)
            self._positions = GroupPositions(self._stores, self._options.group, clocks=clocks)

    def restart(self) -> None:
        """Another process with the same checkpoint."""
        self.close()
        self._start()

    @property
    def name(self) -> str:
        kind = "a running stream" if self._options.group is None else "a group"
        return f"{kind} with failOnDataLoss=false" if self.skips else kind

    def step(self, truth: Truth) -> Answer:
        """The messages of all micro-batches until there is nothing new."""

        def ask(answer: Answer) -> Answer:
            found: Counter[Row] = Counter()
            while batch := self._batch():
                found += batch
            earlier = self.delivered.copy()
            self.delivered += found
            return replace(answer, rows=found, earlier=earlier, told=frozenset(self._told))

        answer = asked(Answer(self.name, truth, skips=self.skips), self.root, ask)
        if any("is moved back from offset" in warning for warning in answer.warnings):
            # As a client does for OFFSET_OVERFLOW_BADLY. If all messages before the group's offset are
            # expired, nothing shows that the queue has others now: the group goes on at its end.
            left_out = Counter(truth.rows) - (answer.rows or Counter())
            self.delivered |= left_out
            answer = replace(answer, earlier=answer.earlier | left_out)
        if not answer.is_silent:
            self._told |= {each.row for each in truth.of(Fate.DAMAGED, Fate.LOST, Fate.UNKNOWN)}
        self.has_failed = bool(answer.refusal or answer.bug)
        return answer

    def close(self) -> None:
        """Ends its lease."""
        if isinstance(self._positions, GroupPositions):
            part: Any = self._positions._group._part  # None before it has joined
            if part is not None:
                part._lease.end()

    def _batch(self) -> Counter[Row] | None:
        """The next micro-batch; None if Spark would see no new offset."""
        if self._at is None:
            self._at = _copy(self._positions.initial())
        end = _copy(self._positions.latest(self._at))
        if json.dumps(end) == json.dumps(self._at):
            return None
        start, stop = StreamOffset.from_json(self._at), StreamOffset.from_json(end)
        clients = None
        if isinstance(self._positions, GroupPositions):
            self._positions.begin_batch(start, stop)
            clients = self._positions.clients_of(start, stop)
        planned = plan_stream(self._options, self._stores, start, stop, clients=clients)
        rows = rows_of(batch for split in planned.splits for batch in self._scan.read(split))
        self._at = end
        return rows


def _copy(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark stores it."""
    return json.loads(json.dumps(offset))
