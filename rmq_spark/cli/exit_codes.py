"""The exit codes of `rmqlog`, and the error for an empty answer."""

from __future__ import annotations

import click

OK, USAGE, NOT_FOUND, DAMAGE, PARTIAL, IO, IN_USE = range(7)
INTERRUPTED = 130  # 128 + SIGINT, as shells report it


class NotFoundError(click.ClickException):
    """The store has no such topic, group or message. The text names the nearest known name."""

    exit_code = NOT_FOUND
