"""The services by name, in the order of their turns. A service is imported when it is called by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rmq_spark.broker.services.service import Service
from store_format.errors import OptionError
from store_format.names import did_you_mean


def _schedule() -> Service:
    from rmq_spark.broker.services.schedule import Schedule

    return Schedule()


def _timer() -> Service:
    from rmq_spark.broker.services.timer import Timer

    return Timer()


def _revive() -> Service:
    from rmq_spark.broker.pop.revive import ReviveService

    return ReviveService()


def _clean() -> Service:
    from rmq_spark.broker.services.clean import CleanService

    return CleanService()


def _flush_service() -> Service:
    from rmq_spark.broker.services.flush import FlushService

    return FlushService()


# Each is made when a run begins: the modules are imported only if the service is chosen.
_BY_NAME: dict[str, Callable[[], Service]] = {
    "schedule": _schedule,
    "timer": _timer,
    "revive": _revive,
    "clean": _clean,
    "flush": _flush_service,  # the last: what the others wrote is flushed in the same turn
}
NAMED_ONLY = frozenset({"clean"})  # deletes files, so it never runs unless its name is given


def chosen_services(only: Sequence[str] | None) -> list[Service]:
    """The services of these names; None: all that need not be named. Raises OptionError for another name."""
    for name in only or ():
        if name not in _BY_NAME:
            raise OptionError(f"unknown service {name!r}; {did_you_mean(name, _BY_NAME, 'services')}")
    names = [name for name in _BY_NAME if (name in only if only else name not in NAMED_ONLY)]
    return [_BY_NAME[name]() for name in names]


def service_names() -> list[str]:
    return list(_BY_NAME)
