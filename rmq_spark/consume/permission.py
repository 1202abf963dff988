"""Whether a group may consume from a store: `consumeEnable` and `consumeBroadcastEnable`."""

from __future__ import annotations

from collections.abc import Mapping

from store_format.errors import OptionError
from store_format.metadata.read import read_subscription_groups
from store_format.metadata.values import SubscriptionGroup


def consuming_group(root: str, name: str, *, is_broadcasting: bool = False) -> SubscriptionGroup:
    """The group in subscriptionGroup.json of the store at `root`, with the defaults if it is not there.

    Raises OptionError if the group may not consume: a broker answers NO_PERMISSION (PullMessageProcessor,
    PopMessageProcessor).
    """
    groups: Mapping[str, SubscriptionGroup] = read_subscription_groups(root) or {}
    group = groups.get(name, SubscriptionGroup(name))
    if not group.consume_enable:
        raise _refusal(root, name, "that may consume", "consumeEnable=false", "-s true")
    if is_broadcasting and not group.consume_broadcast_enable:
        raise _refusal(root, name, "that may consume BROADCASTING", "consumeBroadcastEnable=false", "-d true")
    return group


def _refusal(root: str, name: str, expected: str, found: str, argument: str) -> OptionError:
    return OptionError(
        f"{root}: group {name}: expected a group {expected}, found {found} in subscriptionGroup.json; "
        f"change it with mqadmin updateSubGroup {argument}"
    )
