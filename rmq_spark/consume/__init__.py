"""What a RocketMQ consumer decides itself: filters, the queues of each client, where to start, offsets.

`lag` and `reset` are for people: how far a group is behind, and moving its offsets.
"""

from __future__ import annotations

__all__: list[str] = []
