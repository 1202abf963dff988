"""Makes the decisions of a RocketMQ consumer: filters, the queues of each client, where to start, offsets.

Two modules are for people: `lag` computes how far a group is behind, `reset` moves its offsets.
"""

from __future__ import annotations

__all__: list[str] = []
