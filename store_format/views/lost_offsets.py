"""Groups that are configured and have no committed offset, and whether the store shows that they had one.

A group that has never consumed has no offset, and a group that broadcasts keeps its offsets in its clients:
that alone shows nothing. A file of offsets that a recovery kept aside, or a message in a retry topic, which
only a consumer of the group sends back, shows that offsets were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from store_format.display.text import first_names, shown
from store_format.metadata.group_offsets import (
    RetryOwners,
    groups_without_file,
    lacks_offsets,
    read_committed,
)
from store_format.metadata.read import read_subscription_groups
from store_format.names import is_retry_topic, is_system_group
from store_format.read.store import Store

_BROKEN = ("consumerOffset.json.broken", "lmqConsumerOffset.json.broken")  # `recover` may add a number


@dataclass(frozen=True, slots=True)
class GroupsWithoutOffsets:
    """The configured groups without a committed offset, without RocketMQ's own. `evidence` says what shows
    that they had one; it is empty if they may be new.
    """

    groups: tuple[str, ...] = ()
    evidence: str = ""

    @staticmethod
    def find(store: Store, select: Callable[[str], bool] = lambda group: True) -> GroupsWithoutOffsets:
        """The selected groups of a store, without those of `groups_without_file`; none if the offsets of all
        groups are unknown.

        Raises as `refuse_unknown_offsets` if the files of offsets or groups cannot be read.
        """
        if lacks_offsets(store.opened):
            return GroupsWithoutOffsets()
        known = {group for group, _ in read_committed(store.opened).offsets}
        known |= groups_without_file(store.opened)
        configured = set(read_subscription_groups(store.opened) or ()) - known
        groups = sorted(each for each in configured if select(each) and not is_system_group(each))
        return GroupsWithoutOffsets(tuple(groups), _evidence(store, groups) if groups else "")

    def __str__(self) -> str:
        """What to say of them; empty for none.

        >>> str(GroupsWithoutOffsets(("CG_all", "CG_tags")))
        '2 configured groups have no committed offset: CG_all, CG_tags'
        """
        if not self.groups:
            return ""
        count = len(self.groups)
        text = f"{count} configured group{'s have' if count != 1 else ' has'} no committed offset: "
        return text + first_names(self.groups, 3) + (f"; {self.evidence}" if self.evidence else "")


def _evidence(store: Store, groups: list[str]) -> str:
    directory = f"{store.path}/config"
    names = sorted(store.opened.files.names(directory, missing_ok=True))
    if broken := [name for name in names if name.startswith(_BROKEN)]:
        return f"config/{shown(broken[-1])} had the offsets of groups, and was put aside"
    owners = RetryOwners.read(store.opened, store.configured_topics() or store.topics())
    for topic in sorted({queue.topic for queue in store.queues(is_retry_topic) if queue.max_offset}):
        if owners.owner(topic).group in groups:
            return f"but {shown(topic)} has messages that a consumer of the group has sent back"
    return ""
