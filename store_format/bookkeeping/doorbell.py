"""The doorbell of a store, `.rmqlog/doorbell`: its time changes when a commit has made messages readable.

Processes that wait for messages watch this one file, instead of looking at the store all the time.
"""

from __future__ import annotations

import logging

from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.errors import StoreError
from store_format.files.write import FileWrites

_log = logging.getLogger(__name__)


def doorbell_path(root: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/doorbell"


def ring_doorbell(root: str, files: FileWrites) -> None:
    """Tells other processes that messages were committed. Costs one system call, about 2 µs.

    A failure is logged and raises nothing: the commit has happened, and whoever waits looks at the store
    about every second anyway.
    """
    try:
        files.touch(doorbell_path(root))
    except (StoreError, OSError) as error:
        _log.info("%s; processes that wait for messages notice the commit up to a second later", error)
