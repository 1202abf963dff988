"""What contradicts today: the sentences of `rules` about each case, and nothing else.

A contradiction that was ended is deleted here. The state machine leaves out what cases with sentences do.
"""

from __future__ import annotations

KNOWN: dict[str, tuple[str, ...]] = {}
