"""Cells of streams: limits, consumer groups and pop. A Spark older than 4.2 does not say where a micro-batch
starts, so it gives none of the three.
"""

from __future__ import annotations

from pathlib import Path

from rmq_spark.consume.offset_store import StoreOffsets
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.sparks.cells import STORE, TOPIC, Case, Seen, cell, digest, of_topic, refusal, told_places, works
from tests.sparks.rules import ADMISSION
from tests.support.reads import Place
from tests.support.staged import append, make_store, numbered

_LIMIT = 300
_GROUP = {"group": "CG_matrix", "subscribe": "T", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
_PLACES = [("T", queue, offset) for queue in range(4) for offset in range(5)]


def _store(case: Case, name: str) -> Path:
    """A store of this run: topic T, four queues of 5 messages."""
    root = make_store(case.base / name)
    append(root, numbered("T", 0, 20))
    return root


def _flat(batches: list[list[Place]]) -> list[Place]:
    return sorted(place for batch in batches for place in batch)


def _committed(root: Path) -> dict[int, int]:
    found = StoreOffsets("CG_matrix", {"broker-a": str(root)}).read()
    return {queue.queue_id: offset for queue, offset in found.items() if queue.topic == "T"}


@cell("stream, continued at its checkpoint")
def stream(case: Case) -> Seen:
    root = case.golden(STORE)
    batches = case.stream("stream", root, subscribe=TOPIC, startingOffsets="earliest")
    assert _flat(batches) == told_places(of_topic)
    assert case.stream("stream", root, subscribe=TOPIC) == []
    grows = _store(case, "grows")
    assert case.stream("grows", grows) == []  # a stream starts at the end by default
    append(grows, numbered("T", 20, 3))
    more = case.stream("grows", grows)
    assert more == [[("T", 0, 5), ("T", 1, 5), ("T", 2, 5)]]
    return works(rows=len(_flat(batches)), batches=len(batches), digest=digest(batches), more=more)


@cell("stream with limits (`maxOffsetsPerTrigger` and the like)", brief=True)
def stream_limits(case: Case) -> Seen:
    batches: list[list[Place]] = []

    def run() -> None:
        options = {"subscribe": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(_LIMIT)}
        batches.extend(case.stream("limits", case.golden(STORE), **options))

    printed = case.printed(run)
    told = told_places(of_topic)
    assert _flat(batches) == told
    sizes = [len(batch) for batch in batches]
    warnings = [line for line in printed.splitlines() if "maxOffsetsPerTrigger" in line]
    if case.version < ADMISSION:
        assert sizes == [len(told)]
        assert len(warnings) == 1, printed
        return Seen("ignored", {"batches": sizes, "digest": digest(_flat(batches))})
    whole, rest = divmod(len(told), _LIMIT)
    assert sizes == [_LIMIT] * whole + [rest]
    assert warnings == []
    return works(batches=sizes, digest=digest(_flat(batches)))


@cell("batch with `group`")
def group_batch(case: Case) -> Seen:
    root = _store(case, "group-batch")
    rows = case.read(root, **_GROUP).select("topic", "queueId", "queueOffset").collect()
    assert sorted(tuple(row) for row in rows) == _PLACES
    return works(rows=len(rows))


@cell("stream with `group`", brief=True)
def group_stream(case: Case) -> Seen:
    root = _store(case, "group-stream")
    if case.version < ADMISSION:
        return _refused(case, root, _GROUP)
    assert _flat(case.stream("group", root, **_GROUP)) == _PLACES
    assert _committed(root) == dict.fromkeys(range(4), 5)
    append(root, numbered("T", 20, 2))
    more = case.stream("group-again", root, **_GROUP)  # another checkpoint: the group goes on
    assert _flat(more) == [("T", 0, 5), ("T", 1, 5)]
    return works(rows=len(_PLACES), more=more)


@cell("stream with `consumeMode=pop`", brief=True)
def pop_stream(case: Case) -> Seen:
    root = _store(case, "pop-stream")
    options = _GROUP | {"consumeMode": "pop"}
    if case.version < ADMISSION:
        return _refused(case, root, options)
    assert _flat(case.stream("pop", root, **options)) == _PLACES
    state = read_in_flight(in_flight_directory(Opened(str(root)), "CG_matrix", "T"))
    assert state is not None
    assert state.is_closed  # everything is acknowledged
    return works(rows=len(_PLACES))


def _refused(case: Case, root: Path, options: dict[str, str]) -> Seen:
    """At `load()`, nothing is read and no offset is written.

    With `group` alone `load()` may be that of a batch, because Spark does not say for what it asks the
    schema. Then the query fails when it starts, and a stream's option is refused at `load()`.
    """
    text = refusal(lambda: case.stream(f"refused-{root.name}", root, **options))
    assert case.spark.version in text
    assert _committed(root) == {}
    if "consumeMode" not in options:
        options = options | {"leaseTime": "30s"}
    assert refusal(lambda: case.read_stream(root, **options)) == text
    return Seen("refused", {"text": text.replace(case.spark.version, "VERSION")})
