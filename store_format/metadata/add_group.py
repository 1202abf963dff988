"""Adds a consumer group to subscriptionGroup.json, as a broker does when it first meets the group."""

from __future__ import annotations

from typing import Any

from store_format.files.write import FileWrites
from store_format.java.fastjson import loads
from store_format.metadata.encode import dumps, next_version
from store_format.metadata.group_offsets import rewrite_config
from store_format.metadata.read import config_path
from store_format.metadata.values import bean_errors_of, members

_FILE = "subscriptionGroup.json"


def add_subscription_group(root: str, group: str, *, timestamp: int, files: FileWrites) -> bool:
    """Adds the group with a broker's defaults; False if the file has the group. The lock is the caller's.

    `timestamp` is the clock in ms. Unknown members and the order are kept. Raises CorruptStoreError for a
    file that cannot be decoded and has no `.bak`.
    """

    def merge(data: bytes | None, file: str) -> bytes | None:
        return merge_group(data, group, timestamp, file)

    files.make_directories(root, "config")
    return rewrite_config(config_path(root, _FILE), merge, files)


def merge_group(data: bytes | None, group: str, timestamp: int, file: str = _FILE) -> bytes | None:
    """subscriptionGroup.json with the group (SubscriptionGroupManager.findSubscriptionGroupConfig).

    None if the file has the group. Raises CorruptStoreError for a file that is no subscriptionGroup.json.
    """
    with bean_errors_of(file):
        raw = members(loads(data, file) if data else None, "the file")
        table = dict(members(raw.get("subscriptionGroupTable"), "subscriptionGroupTable"))
        if group in table:
            return None
        version = dict(members(raw.get("dataVersion"), "dataVersion"))
        version = next_version({"counter": 0, "stateVersion": 0} | version, timestamp)
    first: dict[str, Any] = {"dataVersion": version, "forbiddenTable": {}}  # Any: JSON
    return dumps(
        first | raw | {"dataVersion": version, "subscriptionGroupTable": table | {group: _entry(group)}}
    )


def _entry(group: str) -> dict[str, Any]:  # Any: JSON
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": False,
        "consumeTimeoutMinute": 15,
        "groupName": group,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 16,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }
