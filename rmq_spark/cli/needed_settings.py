"""The settings that the broker of a store needs, as a line of `verify` and `recover`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from rmq_spark.cli.output import Output, write_line


def write_needed_settings(output: Output, root: str, commit_log_paths: Sequence[str]) -> None:
    """Says which sizes the broker.conf of the store's broker needs, if the defaults do not fit the files."""
    from store_format.commit.log_comparison import RecoverOptions
    from store_format.commitlog.log import CommitLog
    from store_format.errors import StoreError
    from store_format.files.read import FileCache
    from store_format.opened.store import Opened

    with suppress(StoreError, OSError):  # a problem names the files
        log = CommitLog.open(commit_log_paths or (f"{root}/commitlog",), FileCache())
        if needed := RecoverOptions().needed_settings(Opened(root), log):
            lines = ", ".join(f"{name}={value}" for name, value in needed.items())
            write_line(output, "settings", f"broker.conf needs {lines}")
