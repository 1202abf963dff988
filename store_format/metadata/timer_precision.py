"""The precision of a timer wheel, from the wheel itself: else only the broker's settings have it."""

from __future__ import annotations

from dataclasses import replace

from store_format.errors import StoreError
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.timer import TimerLog, TimerWheel

_SLOTS_MAX = 64  # that are tried, the latest first: their units are the last to be deleted


def with_wheel_precision(root: str, conf: BrokerConf) -> BrokerConf:
    """The settings with the precision of the store's timer wheel, if they do not name one.

    Slots of another precision would be written over those of the wheel.
    """
    found = None if "timerPrecisionMs" in conf.given else wheel_precision_ms(root)
    return conf if found is None else replace(conf, timer_precision_ms=found)


def wheel_precision_ms(root: str) -> int | None:
    """The precision in ms; None without a wheel, or if no slot has a unit in the timerlog.

    A slot has its time in units of the precision, the units of its chain have theirs in ms.
    """
    try:
        wheel, log = TimerWheel.open(f"{root}/timerwheel"), TimerLog.open(f"{root}/timerlog")
    except StoreError:
        return None
    slots = () if wheel is None else wheel.slots()
    for slot in slots[: -_SLOTS_MAX - 1 : -1]:
        try:
            unit = log.unit_at(int(slot["last_pos"]))
        except StoreError:
            continue
        time_ms = int(unit["write_timestamp"]) + int(unit["delayed_time"])
        precision, rest = divmod(time_ms, max(int(slot["slot_time"]), 1))
        if 0 < precision <= 3_600_000 and rest < precision:
            return precision
    return None
