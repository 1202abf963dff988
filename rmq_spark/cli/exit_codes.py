"""The exit codes of `rmqlog`: one table, from which --help and the reference are made.

1 and 2 are those of grep: nothing matches, and wrong usage. 70 is EX_SOFTWARE of sysexits.h. `check` has the
codes 0 to 3 of monitoring plugins.
"""

from __future__ import annotations

import click

OK, NOT_FOUND, USAGE, DAMAGE, PARTIAL, IO, IN_USE = range(7)
BUG = 70
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_PARTIAL = (
    "A part of the answer cannot be read, is unknown, or was left out. Of `doctor`: a check fails. Of "
    "`services` and `clean`: a service or a store failed, and the others did their work."
)

_NOT_FOUND = (
    "No row or message matches, or there is no such store, topic, group or message. Of `check`: a warning. "
    "Of `diff`: the stores differ."
)

_DAMAGE = (
    "Messages are damaged, or a broker may not start on the store. Of `check`: unknown, also for wrong usage."
)

# code, a few words, what it means
EXIT_CODES: tuple[tuple[int, str, str], ...] = (
    (OK, "done", "The command did what it was asked."),
    (
        NOT_FOUND,
        "nothing found",
        _NOT_FOUND,
    ),
    (
        USAGE,
        "wrong usage",
        "An option, argument or setting is wrong, or the format is not supported. Of `check`: critical.",
    ),
    (DAMAGE, "damage", _DAMAGE),
    (
        PARTIAL,
        "a part is missing",
        _PARTIAL,
    ),
    (IO, "I/O error", "The system refused to read or to write."),
    (IN_USE, "store in use", "A broker or another writer has the store."),
    (BUG, "a bug", "An unexpected error of rmqlog; stderr says what to report."),
    (INTERRUPTED, "interrupted", "Ctrl-C ended the command."),
)


class DamagedMessageError(click.ClickException):
    """A message is damaged. The text says where, and which option leaves damaged messages out."""

    exit_code = DAMAGE


class NotFoundError(click.ClickException):
    """The store has no such topic, group or message. The text names the nearest known name."""

    exit_code = NOT_FOUND
