"""Actions in a process of their own, with everything the test has opened and imported."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def fork(action: Callable[[], object]) -> int:
    """Runs the action in a fork and returns its process id. An error is printed and ends the fork with 1."""
    child = os.fork()
    if not child:
        try:
            action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child
