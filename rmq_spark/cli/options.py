"""How several options become one argument of a command: a function around it that takes what click parsed,
and stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Command", "standing_for"]

Command = Callable[..., Any]  # Any: click calls by keyword, with what the options are


def standing_for(command: Command, called: Command) -> Command:
    """`called`, with the help text and the options that `command` has so far."""
    called.__doc__, called.__name__ = command.__doc__, command.__name__
    called.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined] # where click keeps them
    return called
