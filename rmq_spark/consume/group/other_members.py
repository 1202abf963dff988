"""The other members of a group: one member watches their leases and expels members that are gone."""

from __future__ import annotations

import logging
from collections.abc import Collection

from rmq_spark.consume.group.change import Change
from rmq_spark.consume.group.leases import Watch, remove_lease
from rmq_spark.consume.group.membership import Clocks
from rmq_spark.consume.group.state import GroupState
from store_format.display.text import first_names, shown

_log = logging.getLogger(__name__)


class OtherMembers:
    """One `Watch` for each other member, kept from one micro-batch boundary to the next."""

    def __init__(self, directory: str, group: str, clocks: Clocks) -> None:
        self._directory = directory
        self._group = group
        self._clocks = clocks
        self._watches: dict[str, Watch] = {}

    def look(self) -> None:
        """Reads all beats. May be called from the lease's thread."""
        for watch in list(self._watches.values()):
            watch.look()

    def any_gone(self) -> bool:
        return any(watch.why_gone() for watch in self._watches.values())

    def expel_gone(self, change: Change, own_id: str) -> None:
        """Removes every other member whose lease is gone, with a warning, and begins to watch new members."""
        others = {name: entry for name, entry in change.state.members.items() if name != own_id}
        self._watches = {name: watch for name, watch in self._watches.items() if name in others}
        for name, entry in others.items():
            watch = self._watches.get(name)
            if watch is None:
                watch = self._watches[name] = Watch(self._directory, name, entry, self._clocks.monotonic)
            why = watch.why_gone()
            if why is not None:
                clients = ", ".join(entry.clients)
                _log.warning("group %s: %s is no longer a member: %s", self._group, shown(clients), why)
                change.expel(name, why, was_seen=watch.has_beaten)
                remove_lease(self._directory, name)

    def warn_of_unread_brokers(self, state: GroupState, brokers: Collection[str]) -> None:
        """Warns of members that started before some of `brokers` were added and do not read those."""
        for other in state.members.values():
            missing = sorted(set(brokers) - set(other.brokers or brokers))
            if missing:
                _log.warning(
                    "group %s: its query %s started before broker %s was added and reads nothing from it; "
                    "restart that query to share the broker's queues",
                    self._group,
                    shown(", ".join(other.clients)),
                    first_names(missing),
                )
