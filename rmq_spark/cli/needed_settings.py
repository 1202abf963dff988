"""The settings that the broker of a store needs, as a line of `verify` and `recover`."""

from __future__ import annotations

from collections.abc import Sequence

from rmq_spark.cli.output import Output, write_line


def write_needed_settings(output: Output, root: str, commit_log_paths: Sequence[str]) -> None:
    """Says which sizes the broker.conf of the store's broker needs, if the defaults do not fit the files."""
    from store_format.commit.needed_settings import needed_text

    if needed := needed_text(root, commit_log_paths):
        write_line(output, "settings", f"broker.conf needs {needed}")
