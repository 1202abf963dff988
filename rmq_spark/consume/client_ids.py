"""Groups and their clients: which names are allowed, which words their options may have, client ids as
RocketMQ's ClientConfig builds them, and whether a group may consume from a store.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping

from store_format.errors import OptionError
from store_format.metadata.read import read_subscription_groups
from store_format.metadata.values import SubscriptionGroup

CLUSTERING, BROADCASTING = "CLUSTERING", "BROADCASTING"

# TopicValidator's table, and Validators.CHARACTER_MAX_LENGTH
_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}", re.ASCII)
_NAME_BYTES_MAX = 255  # of a directory: a BROADCASTING client's offsets are in a directory with its id

# Here, because each Python process of Spark parses the options, and few allocate queues or write offsets.
OFFSET_STORES = ("store", "local", "none")
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONSISTENT_HASH")


# ---- names -------------------------------------------------------------------------------------------------


def check_group(group: str) -> str:
    """Returns the name, which is then safe as the name of a directory.

    Raises OptionError for a name that RocketMQ does not allow (Validators.checkGroup).
    """
    if not _GROUP.fullmatch(group):
        raise OptionError(
            f"group: expected 1 to 255 letters, digits and any of % | - _, found {group[:100]!r}"
        )
    return group


def check_client_id(client_id: str) -> str:
    """Returns the id. Raises OptionError for an id that cannot be the name of a directory."""
    if not client_id or client_id in (".", "..") or not client_id.isprintable() or "/" in client_id:
        raise OptionError(
            f"clientId: expected a name without slashes and control characters, found {client_id[:100]!r}"
        )
    if len(client_id.encode("utf-8", "replace")) > _NAME_BYTES_MAX:
        raise OptionError(f"clientId: expected at most {_NAME_BYTES_MAX} bytes, found {client_id[:100]!r}…")
    return client_id


def default_client_id(message_model: str, *, process_id: int, now_ns: int) -> str:
    """`ip@pid#nanos`, new at each start; for BROADCASTING `ip@DEFAULT`, which finds its offsets again.

    ClientConfig.changeInstanceNameToPID.
    """
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    return f"{address}@{'DEFAULT' if message_model == BROADCASTING else f'{process_id}#{now_ns}'}"


def client_ids(client_id: str, consumers: int) -> list[str]:
    """The ids of a query's logical clients: `client_id` for one client, else with `@` and their numbers.

    RocketMQ has a client's unit name in the place of the number.

    >>> client_ids("10.0.0.7@4711#1", 2)
    ['10.0.0.7@4711#1@0', '10.0.0.7@4711#1@1']
    """
    return [client_id] if consumers == 1 else [f"{client_id}@{number}" for number in range(consumers)]


# ---- whether a group may consume ---------------------------------------------------------------------------


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
