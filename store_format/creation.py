"""A new store of ours: the directories and files a broker expects to find, and the settings it must be started with."""

from __future__ import annotations

from store_format.checkpoint import Checkpoint
from store_format.config_write import dumps
from store_format.errors import OptionError
from store_format.files import entry_names
from store_format.finish import save_checkpoint
from store_format.lock import StoreLock
from store_format.staging import OWN_DIRECTORY
from store_format.store_settings import StoreSettings, settings_path
from store_format.write_files import FileWrites

__all__ = ["create_store"]

_MEMBER_TOPIC = "rmq_sys_SYNC_BROKER_MEMBER_"  # TopicConfigManager: one topic named after the broker


def create_store(root: str, settings: StoreSettings, *, timestamp: int, exist_ok: bool = False) -> bool:
    """Makes the store, which a broker with these settings loads; False when there is one and `exist_ok`.

    Raises OptionError for a directory that has something else in it, or a store when that is not `exist_ok`.
    """
    files = FileWrites(sync=True)
    names = entry_names(root, missing_ok=True)
    if "commitlog" in names:
        if exist_ok:
            return False
        raise OptionError(f"{root} is a store already")
    if names - {OWN_DIRECTORY, "lock"}:
        raise OptionError(f"{root} is not empty and no store: it has {', '.join(sorted(names)[:8])}")
    parent, _, name = root.rstrip("/").rpartition("/")
    files.make_directories(parent, name)
    with StoreLock(root):
        files.make_directories(root, OWN_DIRECTORY)
        files.replace(settings_path(root), settings.to_json())
        files.replace(f"{root}/{OWN_DIRECTORY}/broker.conf", settings.broker_conf())
        files.make_directories(root, "config")
        files.persist_config(f"{root}/config/topics.json", _topics(settings.broker_name, timestamp))
        save_checkpoint(root, Checkpoint(), files)
        for directory in ("consumequeue", "index", "commitlog"):  # the last one makes it a store
            files.make_directories(root, directory)
    return True


def _topics(broker_name: str, timestamp: int) -> bytes:
    """topics.json with the topic that tells the broker's name. A broker adds its other system topics when it starts."""
    topic = f"{_MEMBER_TOPIC}{broker_name}"
    member = {
        "attributes": {},
        "order": False,
        "perm": 1,  # PermName.PERM_INHERIT, as TopicConfigManager makes it
        "readQueueNums": 1,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic,
        "topicSysFlag": 0,
        "writeQueueNums": 1,
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": timestamp}
    return dumps({"dataVersion": version, "topicConfigTable": {topic: member}})
