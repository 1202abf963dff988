"""How a run can end: the exit codes, and the two ends that are no error of the store's: nothing was found, a
part is missing.
"""

from __future__ import annotations

import click

OK, USAGE, NOT_FOUND, DAMAGE, PARTIAL, IO = range(6)
INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


class NotFoundError(click.ClickException):
    """What was asked for is not in the store. Says what is."""

    exit_code = NOT_FOUND
