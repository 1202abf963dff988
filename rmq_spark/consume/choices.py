"""The words that options of a group may have.

They are apart from the modules that act on them, because each Python process of Spark parses the options, and
few allocate queues or write offsets.
"""

from __future__ import annotations

OFFSET_STORES = ("store", "local", "none")
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONSISTENT_HASH")
