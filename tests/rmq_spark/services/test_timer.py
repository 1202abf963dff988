"""The service `timer`: what a broker delivered from its wheel, rolls, recalls, crashes, large slots."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_spark.services import run_once
from store_format.metadata.timer import TimerCheck, read_timer_check
from store_format.metadata.timer_write import timer_check_bytes
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.staged import messages_of

GOLDEN = "delay-tx-5.5.0"
ENQUEUED_MS = 1_795_244_063_000  # when the golden's broker put all its timer messages into the wheel
LATER_MS = 1_795_244_099_000

# In a message unit: queue offset, physical offset; store time; the store's host (IPv4).
_PLACES = ((20, 36), (56, 64), (64, 72))


def _turn(root: Path, now_ms: int, **options: Any) -> dict[str, Any]:
    return run_once(str(root), ["timer"], now_ms, apply=True, **options).to_pylist()[0]


def _check(root: Path) -> TimerCheck:
    check = read_timer_check(str(root / "config" / "timercheck"))
    assert check is not None
    return check


def _set_check(root: Path, **changed: int) -> None:
    path = root / "config" / "timercheck"
    path.write_bytes(timer_check_bytes(replace(_check(root), **changed)))


def _masked(message: Message) -> bytes:
    """The unit without places, store times, and TIMER_DEQUEUE_MS, which is the clock at delivery."""
    properties = dict(message.properties)
    at = message.properties_bytes.replace(
        f"TIMER_DEQUEUE_MS\x01{properties['TIMER_DEQUEUE_MS']}".encode(), b"TIMER_DEQUEUE_MS\x010"
    )
    masked = bytearray(oracle.encode_message(replace(message, properties_bytes=at)))
    for start, stop in _PLACES:
        masked[start:stop] = bytes(stop - start)
    return bytes(masked)


# ---- a broker's store --------------------------------------------------------------------------------------


def test_the_log_and_the_wheel_are_those_of_a_broker(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """All 70 messages are put into the wheel again, at the time when the broker did it."""
    root = shutil.copytree(golden(GOLDEN), tmp_path / "store")
    shutil.rmtree(root / "timerlog")
    (root / "timerwheel").unlink()
    _set_check(root, last_read_time=0, last_timer_log_flush_pos=0, last_timer_queue_offset=0)
    report = _turn(root, ENQUEUED_MS + 421)
    assert (report["due"], report["done"]) == (0, 0)
    assert report["nextDue"].timestamp() * 1000 == ENQUEUED_MS + 2000
    for name in ("timerwheel", "timerlog/00000000000000000000"):
        assert (root / name).read_bytes() == (golden(GOLDEN) / name).read_bytes(), name
        assert (root / name).stat().st_blocks * 512 < 200_000, "holes are not written"
    check = _check(root)
    assert (check.last_timer_log_flush_pos, check.last_timer_queue_offset) == (3640, 70)


def test_delivers_the_bytes_that_a_broker_delivered(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """timercheck is set back: what the broker delivered is delivered again, from the broker's wheel."""
    root = shutil.copytree(golden(GOLDEN), tmp_path / "store")
    before = messages_of(root)
    _set_check(root, last_read_time=ENQUEUED_MS)
    by_broker = {m.properties["UNIQ_KEY"]: m for m in before if "TIMER_DEQUEUE_MS" in m.properties}

    report = _turn(root, LATER_MS)
    assert (report["due"], report["done"], len(by_broker)) == (40, 40, 40)
    ours = messages_of(root)[len(before) :]
    assert [_masked(m) for m in ours] == [_masked(by_broker[m.properties["UNIQ_KEY"]]) for m in ours]
    assert {m.properties["TIMER_DEQUEUE_MS"] for m in ours} == {str(LATER_MS)}
    assert {m.store_timestamp for m in ours} == {LATER_MS}
    check, theirs = _check(root), _check(golden(GOLDEN))
    assert check == replace(theirs, last_read_time=LATER_MS, timestamp=LATER_MS, counter=theirs.counter + 1)
    assert _turn(root, LATER_MS + 900)["done"] == 0
    assert _check(root) == check
