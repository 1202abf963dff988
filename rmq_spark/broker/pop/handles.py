"""Receipt handles in the in-flight log: which message a handle names, and whether the handle is valid."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_spark.broker.pop.message import ReceiptHandle
from store_format.errors import InvalidReceiptHandleError
from store_format.pop.records import CheckPoint, PointKey
from store_format.pop.state import PopState


def acknowledge(
    state: PopState, handles: Sequence[ReceiptHandle], now_ms: int
) -> list[InvalidReceiptHandleError]:
    """Acknowledges the messages of these handles. Returns an error for each handle that is not valid."""
    errors: list[InvalidReceiptHandleError] = []
    positions: dict[PointKey, set[int]] = {}  # a handle may be given twice
    for handle in handles:
        found = position_of(state, handle, now_ms)
        if isinstance(found, InvalidReceiptHandleError):
            errors.append(found)
        else:
            positions.setdefault(found[0].key, set()).add(found[1])
    for key, bits in positions.items():
        point = state.check_point(key)
        assert point is not None
        state.ack(key, None if len(bits) == len(point.offsets) and not point.acked else bits)
    return errors


def position_of(
    state: PopState, handle: ReceiptHandle, now_ms: int
) -> tuple[CheckPoint, int] | InvalidReceiptHandleError:
    """The check point of the handle and the position of its message."""
    point = state.check_point((handle.flag, handle.queue_id, handle.start, handle.pop_time))
    if point is None:
        return unknown_handle(handle)
    try:
        position = point.offsets.index(handle.offset)
    except ValueError:
        return unknown_handle(handle)
    held = 0 if state.reviving is None else state.reviving.bits.get(point.key, 0)
    if (point.acked | held) >> position & 1:
        return unknown_handle(handle)
    if point.visible_at <= now_ms:
        late = now_ms - point.visible_at
        return InvalidReceiptHandleError(
            handle.text,
            f"is expired: the invisible time of {point.invisible_ms / 1000:g} s ended {late} ms ago, and the "
            "message is delivered again; receive with a longer invisible_duration, or call "
            "change_invisible_duration in time",
        )
    return point, position


def unknown_handle(handle: ReceiptHandle) -> InvalidReceiptHandleError:
    return InvalidReceiptHandleError(
        handle.text,
        "names no message that is in flight: it was acknowledged, its invisible time was changed (the newer "
        "handle counts), or it expired and was delivered again",
    )
