"""The sizes of a store's files that a broker has in its broker.conf only.

A broker refuses commitlog files and consume queue files of another length than its settings say ("length not
matched message store config value"). It lengthens an index file, and then misses keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from store_format.commit.log_comparison import RecoverOptions, sizes_in
from store_format.commitlog.log import CommitLog
from store_format.errors import StoreError
from store_format.files.read import FileCache, files_at
from store_format.files.write import FileWrites
from store_format.metadata.read import BrokerConf
from store_format.opened.store import OWN_DIRECTORY, Opened
from store_format.read.store_root import log_directories


def contradictions(opened: Opened, log: CommitLog, conf: BrokerConf) -> dict[str, tuple[int, int]]:
    """The sizes (in `conf`, in the files) that differ. A setting that `conf` lacks has the default."""
    said = sizes_in(conf)
    found = RecoverOptions().sizes_of_files(opened, log).items()
    return {name: (said[name], size) for name, size in found if said[name] != size}


def settings_text(settings: dict[str, int]) -> str:
    """
    >>> settings_text({"mappedFileSizeCommitLog": 4194304, "maxIndexNum": 200000})
    'mappedFileSizeCommitLog=4194304, maxIndexNum=200000'
    """
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def needed_text(root: str, commit_log_paths: Sequence[str] = ()) -> str:
    """The sizes that the broker.conf of the store's broker needs; empty if the defaults fit the files, or the
    files cannot be read.
    """
    with suppress(StoreError, OSError):  # a problem names the files
        log = CommitLog.open(log_directories(Opened(root), commit_log_paths), FileCache())
        return settings_text(RecoverOptions().needed_settings(Opened(root), log))
    return ""


def write_needed_settings(opened: Opened, log: CommitLog, files: FileWrites) -> None:
    """Writes `.rmqlog/broker.conf` with the sizes that differ from the defaults, unless the file exists."""
    needed, path = RecoverOptions().needed_settings(opened, log), opened.own("broker.conf")
    if needed and files_at(path).read(path) is None:
        lines = [
            "# The sizes of the store's files. Add them to the broker.conf with which the broker is started.",
            *(f"{name}={value}" for name, value in needed.items()),
        ]
        files.make_directories(opened.path, OWN_DIRECTORY)
        files.replace(path, "".join(f"{line}\n" for line in lines).encode())
