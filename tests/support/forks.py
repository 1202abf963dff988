"""Actions in a fork of the test process, with everything the test has opened, its threads' locks included.

Only for tests whose subject is such a fork, which may hang; others use `fork_server`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def fork_with_threads(action: Callable[[], object]) -> int:
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
